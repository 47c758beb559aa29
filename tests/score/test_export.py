"""bench export: files that give other programs what the network gives us."""

import json

import pytest
import torch
from bench.datasets.view import View
from bench.engine import exported
from bench.protocols.operate import document_of
from bench.registry import Registry
from bench.scoring.embedding_set import EmbeddingSet
from bench.scoring.view import distribution_of, view_of
from bench.site import Site
from bench.store.specs import BaseReference

from tests.untrained import untrained_unit

NAMES = {"onnx": "net.onnx", "torch": "net.pt2"}

STRANGE = """
import torch
from bench.methods import CosineClassifier, Method, SpreadHead, register
from bench.methods.distributions import IsotropicNormal

@register
class Strange(Method):
    \"\"\"A variance by way of what the body says.\"\"\"
    name = "strange"
    summary = "strange"
    def spread_head(self, in_features, dim):
        return SpreadHead(in_features, 1)
    def distribution(self, raw, spread):
        BODY
        return IsotropicNormal(raw, variance, validate_args=False)
    def confidence(self, distribution):
        return -distribution.variance
    def objective(self, num_classes, dim, base=None):
        return CosineClassifier(num_classes, dim, 16.0)
"""


def _unit(root, method, **more):
    if Registry("methods").method(method).on_base:
        more["base"] = BaseReference(method="cosface", params={}, unit="0" * 16)
    return untrained_unit(root, method, **more)


def _images(count, channels=1, size=(10, 26)):
    return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(1))


def _export(bench, folder, form, *more):
    unit = folder.name.removeprefix("train-")[:8]
    return bench("export", unit, "--to", form, "--out", NAMES[form], "--results", "runs", *more)


def _ran(form, path, images):
    """Outputs by name, and the metadata, of a file read with nothing of ours."""
    if form == "torch":
        extra = {"bench.json": ""}
        module = torch.export.load(path, extra_files=extra).module()
        return {name: value.detach().numpy() for name, value in module(images).items()}, json.loads(extra["bench.json"])
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images.numpy()}))), session.get_modelmeta().custom_metadata_map


@pytest.mark.parametrize("form", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("method", "spread", "confidence"),
    [
        pytest.param("cosface", None, "max_cosine", marks=pytest.mark.slow),
        ("dul_cls", "variance", "method"),
        pytest.param("hib", "variance", "method", marks=pytest.mark.slow),
        pytest.param("spe", "variance", "method", marks=pytest.mark.slow),
        pytest.param("mc_dropout", "variance", "method", marks=pytest.mark.slow),
        pytest.param("el_nivmf", "concentration", "method", marks=pytest.mark.slow),
    ],
)
def test_the_file_gives_what_the_network_gives(bench, tmp_path, form, method, spread, confidence):
    model, folder = _unit(tmp_path, method)
    code, out, err = _export(bench, folder, form)
    assert (code, err, f"confidence: {confidence};" in out) == (0, "", True)
    images = _images(5)  # a number that was not compared when the file was written
    found, about = _ran(form, tmp_path / NAMES[form], images)
    with torch.no_grad():
        embedding = model(images)
        wanted = model.confidences(embedding)[confidence]
    assert set(found) == {"embedding", "confidence", *filter(None, [spread])}
    mean = torch.nn.functional.normalize(embedding.distribution.mean, dim=-1)
    assert found["embedding"] == pytest.approx(mean.numpy(), abs=1e-5)
    assert found["confidence"] == pytest.approx(wanted.numpy(), rel=1e-5, abs=1e-5)
    if spread == "variance":  # of draws, scaled as the embedding is
        distribution = embedding.distribution
        draws = distribution.sample((20000,)) / distribution.mean.norm(dim=-1, keepdim=True)
        drawn = draws.var(0)
        drawn = drawn.mean(-1) if found[spread].ndim == 1 else drawn
        assert found[spread] == pytest.approx(drawn.numpy(), rel=0.05)
    elif spread:
        assert found[spread] == pytest.approx(getattr(embedding.distribution, spread).numpy(), rel=1e-5)
    assert about["confidence"] == confidence
    assert about["name"] == f"{method} on ndigit_smoke"
    view = json.loads(about["view"])
    sample = Site(results=str(tmp_path)).dataset("ndigit_smoke").test()
    assert (view["mean"], view["std"], view["image_size"]) == (list(sample.mean), list(sample.std), [10, 26])
    _check_operating_points(json.loads(about["operate"]), lambda images: _ran(form, tmp_path / NAMES[form], images)[0])
    assert str(exported.__file__).encode().rpartition(b"/")[0] not in (tmp_path / NAMES[form]).read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def _check_operating_points(about, run):
    """Compare the operating points with those of the file's own outputs for the validation images."""
    val = Site(results="runs").dataset("ndigit_smoke").train_val(0, 4).val
    found = run(val.evaluation(torch.arange(len(val))))
    given = {"embeddings": found["embedding"], "labels": val.labels, "confidence": found["confidence"]}
    images = EmbeddingSet.of({**given, "ids": list(val.ids)}).in_order()
    expected = document_of(view_of(images, distribution_of(images), ("cosine",)), "cosine")
    assert about["images"] == len(val) == 304
    assert len(about["points"]) == len(expected["points"]) == 8
    for point, wanted in zip(about["points"], expected["points"]):
        assert (point["threshold"] is None) == (wanted["threshold"] is None)  # of a network at random weights
        for key, digits in {"threshold": 1e-4, "coverage": 0.01, "tar": 0.01}.items():
            assert point[key] is None or point[key] == pytest.approx(wanted[key], abs=digits)
    assert sum(point["threshold"] is not None for point in about["points"]) > 2


@pytest.mark.slow
def test_photographs_have_the_view_of_the_record(bench, tmp_path):
    view = vars(View(image_size=64, resize=72, interpolation="bicubic"))
    _, folder = untrained_unit(tmp_path, "cosface", dataset="folder", view=view)
    assert _export(bench, folder, "torch")[0] == 0
    found, about = _ran("torch", tmp_path / NAMES["torch"], _images(2, 3, (64, 64)))
    assert found["embedding"].shape == (2, 8)
    held = json.loads(about["view"])
    assert held == {**view, "mean": [0.0] * 3, "std": [1.0] * 3, "range": [0, 1], "order": "RGB"}
    operate = json.loads(about["operate"])  # the photographs are not here
    assert operate["points"] == []
    assert operate["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in Registry("methods").names if name != "deep_ensemble"])
def test_every_method_can_be_exported(bench, tmp_path, method):
    _, folder = _unit(tmp_path, method)
    for form in ("torch", "onnx"):
        assert _export(bench, folder, form)[0] == 0


@pytest.mark.slow
def test_a_file_with_other_values_is_not_left(refused, tmp_path, monkeypatch):
    _, folder = _unit(tmp_path, "cosface")
    (tmp_path / NAMES["torch"]).write_bytes(b"of before")
    monkeypatch.setattr(exported.Exported, "_confidence", lambda self, raw, distribution: raw[:, 0])
    assert "the exported network differs from ours by" in _export(refused, folder, "torch")
    assert (tmp_path / NAMES["torch"]).read_bytes() == b"of before"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "form", "said"),
    [
        ("variance = torch.special.bessel_j0(spread.squeeze(-1)).exp()", "onnx", "ONNX has no operator for prims."),
        ("variance = spread.squeeze(-1).exp() if spread.sum() > 0 else spread[:, 0].exp()", "torch", "cannot be exp"),
        ("variance = spread.squeeze(-1).exp() + torch.rand(raw.shape[0])", "torch", "differs from ours by"),
        ("variance = spread.new_ones(len(raw))", "torch", "its code fixes the number of images"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(refused, tmp_path, body, form, said):
    (tmp_path / "strange.py").write_text(STRANGE.replace("BODY", body))
    _, folder = untrained_unit(tmp_path, "strange", plugins=(str(tmp_path / "strange.py"),))
    assert said in _export(refused, folder, form, "--plugin", "strange.py")
    assert not (tmp_path / NAMES[form]).exists()


def test_without_the_extra_the_command_that_installs_it_is_named(refused, tmp_path, monkeypatch):
    _, folder = _unit(tmp_path, "cosface")
    monkeypatch.setattr(exported, "find_spec", lambda name: None if name == "onnxruntime" else name)
    line = "bench: ONNX needs onnxruntime: `uv sync --inexact --extra onnx`, or take --to torch\n"
    assert _export(refused, folder, "onnx") == line
