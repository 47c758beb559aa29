"""Units of a results folder without a training: networks at their starting weights, and their records."""

from bench.engine.networks import build_model
from bench.protocols.recipes._base import Optim
from bench.site import Site
from bench.store.files import sha256, write_atomic
from bench.store.specs import Batches, StageSelection, TrainSpec
from safetensors.torch import save

from tests.records import of_training

USUAL = {"versions": {"protocol": 1}, "protocol": "reality_check", "folds": 4, "fold": 0, "replicate": 0}
USUAL |= {"weights": None, "dim": 8, "augmentation": {}, "partial": "", "files": ""}


def untrained_unit(
    root, method, dataset="ndigit_smoke", params=None, base=None, view=None, backbone="convnet", plugins=()
):
    """A training unit with untrained weights."""
    site = Site(results=str(root / "runs"), weights="none", plugins=plugins)
    spec = TrainSpec(
        **USUAL,
        dataset=dataset,
        method=method,
        params=params or {},
        backbone=backbone,
        optim=Optim(epochs=1, lr=1e-3, lr_objective=1e-3),
        batches=Batches(classes_per_batch=2, images_per_class=2, feature_views=1, freeze_norm="no", epoch_repeats=1.0),
        view=view or {},
        selection=StageSelection(metric="map_at_r", scorer="cosine", candidates=0, patience=1, min_improvement=0.0),
        base=base,
    )
    channels = 1 if dataset == "ndigit_smoke" else 3
    model = build_model(spec, site, 5, channels).eval()
    weights = site.store.weights(spec.cell, spec.id)
    data = save({key: value.contiguous() for key, value in model.state_dict().items()})
    write_atomic(weights, data)
    files = {weights.name: sha256(data)}
    site.store.write(of_training(spec, files=files, num_classes=5, channels=channels, best_epoch=0))
    return model, weights.parent
