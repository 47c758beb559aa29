"""Mistakes in plug-ins that a first-time author makes: each is refused in one line that says what is legal."""

import re

import pytest
from bench.protocols import declare

from tests.photographs import write_photographs
from tests.templates import template

DOTS, BIRDS, EXTENT = ("dataset", "dots"), ("photo-dataset", "birds"), ("test", "extent")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """What a plug-in declares ends with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(declare, "_DECLARED", dict(declare._DECLARED))


@pytest.fixture
def written(tmp_path):
    """Write a template of a plug-in with one passage replaced."""

    def write(named, old="", new=""):
        path = tmp_path / "plugin.py"
        path.write_text(template(tmp_path, *named, (old, new)))
        return path

    return write


@pytest.fixture
def photos(tmp_path):
    """A release of eight classes of two photographs."""
    write_photographs(tmp_path / "data", 8, 2)
    (tmp_path / "data" / "birds.txt").write_text("here")
    return tmp_path / "data"


def test_the_same_plugin_twice_is_one(bench, written, tmp_path):
    plugin = written(DOTS)
    code, out, _ = bench("list", "datasets", "--plugin", plugin, "--plugin", plugin.name)
    assert (code, sum(line.startswith("dots ") for line in out.splitlines())) == (0, 1)


COMMANDS = {
    DOTS: ("test", "--dataset", "dots"),
    BIRDS: ("data", "verify", "birds", "--data-root", "data"),
    EXTENT: ("test", "--test", "extent"),
}
PARTS = "dev, test, query, gallery"


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        (DOTS, "def test(self)", "def tested(self)", "class Dots must define test"),
        (DOTS, "    input_channels = 1\n", "", "class Dots must define input_channels"),
        (DOTS, 'name = "dots"', 'name = "My-Dots"', "class Dots: 'My-Dots' cannot be a name: use lower-case letters"),
        (BIRDS, "    official = ", "    other = ", "class Birds must define official"),
        (BIRDS, "    source = ", "    other = ", "class Birds must define source"),
        (BIRDS, "path.parent.name, path.parent.name)", 'path.parent.name, path.parent.name, "train")', PARTS),
        (BIRDS, "path.parent.name, path.parent.name)", "path.parent.name, path.parent)", PARTS),
        (BIRDS, "path.relative_to(folder).as_posix()", "path", PARTS),
        (BIRDS, ", path.parent.name, path.parent.name)", ", path.parent.name)", "missing 1 required positional"),
        (EXTENT, 'per="embeddings"', 'per="image"', "per must be one of 'scorer', 'own scorer', 'embeddings', not"),
        (EXTENT, '"directions"', '"unit"', "needs 'unit', which embeddings do not have (known: candidates, confid"),
        (EXTENT, 'of="embeddings"', 'of="images"', "of must be one of 'ranking', 'confidence', 'embeddings', not"),
        (EXTENT, 'better="higher"', 'better="up"', "better must be one of 'higher', 'lower', '', not 'up'"),
        (EXTENT, 'unit="correlation"', 'unit="percent"', "unit must be one of 'share', 'correlation', 'number', not"),
        (EXTENT, "high=1.0", "high=-1.0", "low=-1 is not below high=-1"),
        (EXTENT, "high=1.0", "equivalence=2.5", "equivalence=2.5 is negative or spans the range"),
    ],
)
def test_a_mistake_in_a_declaration_is_refused_with_what_is_legal(written, photos, refusal, kind, old, new, said):
    assert said in refusal(*COMMANDS[kind], "--plugin", written(kind, old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("torch.cat(pixels)", "torch.cat(pixels).numpy()", "pixels, uint8 [N, C, H, W], must be a torch tensor, not"),
        ("labels, ids", "labels.numpy(), ids", "labels, int64 [N], must be a torch tensor"),
        ("SIDE = 64", "SIDE = 6", "4 folds need at least 4 development classes"),
    ],
)
def test_an_error_that_stops_all_checks_is_said_once(bench, written, old, new, said):
    code, out, _ = bench("test", "--dataset", "dots", "--plugin", written(DOTS, old, new))
    failed = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert (code, len(failed)) == (1, 1), out
    assert said in failed[0]


RUN = ("run", "--dataset", "dots", "--method", "cosface", "--hparams", "default", "--dry-run")


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        ("backbone='convnett'", (), "the recipe of data set 'dots': unknown backbone 'convnett'"),
        ("backbone='convnett'", ("--backbone", "convnettt"), "--backbone: unknown backbone 'convnettt'"),
        ("augmentation={'shift': -1.0}", (), "the recipe of data set 'dots': "),
        ("", ("--set", "augment.shift=2"), "--set augment.*: "),
    ],
)
def test_a_mistake_of_a_recipe_is_blamed_on_the_recipe(written, refusal, recipe, options, said):
    plugin = written(DOTS, "images_per_class=2)", f"images_per_class=2, {recipe})")
    assert said in refusal(*RUN, "--plugin", plugin, *options)


EVEN = """gt=0)

        from pydantic import field_validator

        @field_validator("scale")
        @classmethod
        def even(cls, value):
            raise ValueError("scale must be even")
"""


def test_the_message_of_a_validator_comes_without_a_prefix(written, refusal):
    asked = ("run", "--dataset", "ndigit_smoke", "--method", "mine", "--hparams", "default", "--dry-run")
    plugin = written(("method", "mine"), "gt=0)\n", EVEN)
    line = refusal(*asked, "--set", "method.scale=3", "--plugin", plugin)
    assert "does not fit method 'mine': scale must be even (see" in line


def test_a_wrong_option_points_at_the_help_of_its_command(refusal):
    assert refusal("new", "nothing", "x").endswith("(see `bench new --help`)")
    assert refusal("data", "verify").endswith("(see `bench data verify --help`)")


def test_backbones_are_listed(bench):
    code, out, _ = bench("list", "backbones")
    names = [line.split()[0] for line in out.splitlines()]
    assert code == 0
    assert len(names) < 150
    assert names[:3] == ["bench:", "convnet", "bn_inception"]
    assert {"resnet", "vision_transformer"} <= set(names)
    assert "3x3 convolutions" in out.splitlines()[1]
    first, *found = bench("list", "backbones", "DINOv2")[1].splitlines()
    assert first == "vision_transformer:"
    assert all("dinov2" in line for line in found)
    assert "vit_small_patch14_dinov2.lvd142m" in found[0]
    assert "no name contains 'nothing'; `bench list backbones` has all" in bench("list", "backbones", "nothing")[2]


def test_metrics_are_listed_with_those_of_a_plugin(bench, written, tmp_path):
    plugin = written(EXTENT)
    assert "\nextent" not in bench("list", "metrics")[1]
    code, out, _ = bench("list", "metrics", "--plugin", plugin)
    assert code == 0
    assert out.startswith("recall_at_{k} ")
    assert re.search(r"^extent_inside .*Mean cosine inside classes", out, re.MULTILINE)
