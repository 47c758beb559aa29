"""Cut of a backbone before a stage: both parts together are the backbone, and only the second one is trained."""

import pytest
import torch
from bench.methods._model import EmbeddingModel
from bench.methods.backbones.registry import build_backbone
from bench.methods.backbones.stages import Cut, NoStage
from bench.methods.cosface import CosFace

from tests.refusals import one_line

NETWORKS = [
    ("convnet", "features.8", 28),
    ("tf_efficientnet_lite0", "blocks.5", 64),
    ("squeezenet1_0", "features.10", 64),
    ("googlenet", "inception5a", 64),
    ("bn_inception", "inception_5b", 64),
    ("resnet18", "layer4", 64),
    ("resnet18", "layer3.1", 64),
    ("convnext_atto", "stages.3", 64),
    ("swin_tiny_patch4_window7_224", "layers.3", 224),
]


def _network(name, size):
    torch.manual_seed(0)
    channels = 1 if name == "convnet" else 3
    return build_backbone(name, channels, image_size=size), torch.rand(4, channels, size, size)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stage", "size"), NETWORKS)
def test_both_parts_together_are_the_backbone_and_its_gradients(name, stage, size):
    backbone, images = _network(name, size)
    cut = Cut(backbone.eval(), stage)
    whole = backbone(images)
    whole.square().sum().backward()
    wanted = {key: value.grad for key, value in backbone.named_parameters()}
    backbone.zero_grad()
    with torch.no_grad():
        maps = cut.maps(images)
    parts = cut.features(maps)
    assert torch.equal(parts, whole)
    parts.square().sum().backward()
    below = {id(parameter) for module in cut.frozen for parameter in module.parameters()}
    above = [key for key, value in backbone.named_parameters() if id(value) not in below]
    found = {key: value.grad for key, value in backbone.named_parameters()}
    assert below
    assert any(wanted[key] is not None for key in above)
    for key, gradient in found.items():
        if key in above and wanted[key] is not None:
            torch.testing.assert_close(gradient, wanted[key], rtol=1e-4, atol=1e-6 * float(wanted[key].abs().max()))
        else:
            assert gradient is None


def test_a_model_freezes_what_precedes_the_stage_with_its_batch_norms_and_keeps_its_names():
    backbone, images = _network("resnet18", 64)
    names = set(EmbeddingModel(CosFace(), build_backbone("resnet18", 3), 5, 8).state_dict())
    model = EmbeddingModel(CosFace(), backbone, 5, 8, train_from="layer4").train()
    assert set(model.state_dict()) == names
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.reads_maps = True
    raw = model(model.cut.maps(images)).raw
    model.objective(model.method.distribution(raw, None), torch.arange(4)).backward()
    optimiser.step()
    changed = {
        key.split(".")[3]
        for key in names
        if not torch.equal(before[key], model.state_dict()[key]) and "backbone.body" in key
    }
    assert changed == {"layer4"}


@pytest.mark.parametrize(
    ("name", "stage", "said"),
    [
        ("resnet18", "layer9", "no stage 'layer9'; near: layer4, layer3, layer2"),
        ("resnet18", "conv1", "nothing precedes 'model.conv1'"),
        ("resnet18", "layer4.0.conv2", "more than one value leads past"),
        ("resnet18", "model", "nothing precedes"),
        ("bn_inception", "inception_9a", "near: inception_"),
        ("vit_tiny_patch16_224", "blocks.10", "cannot be traced"),
    ],
)
def test_a_stage_that_cannot_be_is_refused_in_one_line(name, stage, said):
    assert said in one_line(NoStage, Cut, _network(name, 224 if "vit" in name else 64)[0], stage)
