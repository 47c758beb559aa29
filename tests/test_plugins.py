"""Plug-ins of one file: what kind of class each is, and what it gets without saying so."""

import textwrap

import pytest
from bench.errors import UserError
from bench.registry import Registry

from tests.templates import method_of_cloud


@pytest.fixture
def plugin(tmp_path):
    """Write a plug-in file."""

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def names(path):
    """Names that a plug-in adds to each registry."""
    return {
        kind: sorted(entry.name for entry in Registry(kind, (path,)) if entry.plugin)
        for kind in ("methods", "datasets")
    }


BODY = "\n    name = 'birds'\n    summary = 'some birds'\n"


NEAR = {
    "datasets": "from bench.datasets.folder import Folder as Base\nfrom bench.datasets import register\n",
    "methods": "from bench.methods.cosface import CosFace as Dataset\nfrom bench.methods import register\n",
}


@pytest.mark.parametrize(
    "text",
    [
        "from bench.methods import Method, register\n@register\nclass NotADataset(Method):",
        "from bench.methods import register\nfrom .near import Dataset\n@register\nclass Mine(Dataset):",
        "from bench.methods import register_method\nfrom .near import Dataset\n@register_method\nclass Mine(Dataset):",
        "from .near import Dataset, register\n@register\nclass Mine(Dataset):",
        "from bench.datasets import register\nfrom bench.datasets.folder import Folder\n"
        "@register\nclass Birds(Folder):",
        "from bench.datasets.dataset import register as entry\nfrom bench.datasets import folder\n"
        "@entry\nclass Birds(folder.Folder):",
        "import bench.datasets as d\nimport bench.datasets.folder\n"
        "@d.register\nclass Birds(bench.datasets.folder.Folder):",
        "from bench.datasets import Dataset, register\nclass Base(Dataset): ...\n@register\nclass Birds(Base):",
        "from bench.datasets import register_dataset\nfrom .near import Base\n@register_dataset\nclass Birds(Base):",
        "from .near import *\n@register\nclass Birds(Base):",
        "from .near import Base, register\n@register\nclass Birds(Base):",
    ],
)
def test_a_class_is_told_by_its_base_and_not_by_its_name(plugin, text):
    """Fault A5: a class whose base is not called SomethingDataset was listed as a method."""
    kind, other = ("datasets", "methods") if "class B" in text else ("methods", "datasets")
    plugin(NEAR[kind], "near.py")
    assert names(plugin(text + BODY)) == {kind: ["birds"], other: []}


def test_a_class_that_can_only_be_told_by_an_import_that_fails_is_reported(plugin):
    path = plugin("from .nowhere import Base, register\n@register\nclass Birds(Base):" + BODY)
    for kind in ("methods", "datasets"):
        registry = Registry(kind, (path,))
        assert "birds" in registry
        with pytest.raises(UserError, match="No module named"):
            registry.get("birds")


QUOTED = {
    "adaface": "norm", "arcface": "max_cosine", "bayesian_triplet": "method", "cosface": "max_cosine",
    "cr_fiqa": "method", "deep_ensemble": "neg_entropy", "dsml": "max_cosine", "dul_cls": "method",
    "dul_reg": "method", "el_nivmf": "method", "hib": "method", "hyperbolic": "norm", "idml": "method",
    "laplace": "method", "loss_prediction": "method", "magface": "norm", "margin": "norm", "mc_dropout": "method",
    "mc_infonce": "method",
    "multi_similarity": "norm", "nir": "max_cosine", "norm_softmax": "max_cosine", "pfe": "method",
    "proxy_anchor": "max_cosine", "proxy_anchor_el_nivmf": "method", "proxy_distance": "method",
    "proxy_nca": "max_cosine", "repvlm": "method", "scf": "method", "soft_triple": "max_cosine", "spe": "method",
    "untrained": "norm", "vmf_fl": "method", "vmf_loss": "method",
}  # fmt: skip


def test_the_confidence_that_is_quoted_of_each_method_of_ours():
    methods = Registry("methods")
    assert {entry.name: methods.method(entry.name).default_confidence for entry in methods} == QUOTED


def test_a_method_with_a_confidence_of_its_own_is_quoted_with_it():
    """Fault A7: it was quoted with the largest class cosine unless it said `method` as well."""
    from bench.methods import Method
    from bench.methods.multi_similarity import MultiSimilarity

    def distribution(self, raw, spread):
        raise NotImplementedError

    def confidence(self, distribution):
        raise NotImplementedError

    own = {"distribution": distribution, "confidence": confidence}
    mixin = type("Mixin", (), own)
    spread = type("Spread", (Method,), {"distribution": distribution})
    expected = {
        type("Both", (Method,), own): "method",
        type("FromABase", (spread,), {"confidence": confidence}): "method",
        type("OfABaseWithAnother", (MultiSimilarity,), own): "method",
        type("FromAMixin", (mixin, Method), {}): "method",
        type("SaysOtherwise", (Method,), {**own, "default_confidence": "norm"}): "norm",
        type("NoDistribution", (Method,), {"confidence": confidence}): "max_cosine",
        spread: "max_cosine",
    }
    assert {cls.__name__: cls.default_confidence for cls in expected} == {
        cls.__name__: value for cls, value in expected.items()
    }


@pytest.mark.slow
def test_a_method_with_a_distribution_of_its_own_conforms(plugin, tmp_path):
    """Fault A8: a distribution of one's own was refused for want of an array form."""
    from bench.conformance import CHECKS, check

    cls = Registry("methods", (plugin(method_of_cloud(tmp_path)),)).method("mine")
    assert cls.default_confidence == "method"
    for name in CHECKS:
        check(name, cls)
