"""Plug-ins of one file, run by the command line: data sets with their recipe, and everything that tests use."""

import csv

import numpy as np
import pytest
from bench.cli import main
from bench.datasets.corruptions.registry import CORRUPTIONS
from bench.site import Site

from tests.photographs import write_photographs
from tests.plans import planned
from tests.templates import changed, method_of_cloud, template, written

SMALL = """
SMALL = replace(
    FOLDER, backbone="squeezenet1_0", classes_per_batch=2, images_per_class=2,
    view={**FOLDER.view, "image_size": 32, "resize": 36},
    end_to_end=replace(FOLDER.end_to_end, epochs=1),
)
"""


@pytest.fixture
def birds(tmp_path):
    """A release of 16 classes of 4 images, and a plug-in for it with some recipe."""
    root = tmp_path / "data" / "release"
    write_photographs(root, 16, 4, (50, 40))
    (root / "birds.txt").write_text("here they are")

    def write(inside="", top=""):
        path = tmp_path / "birds.py"
        own = ("recipe = replace(FOLDER, classes_per_batch=2, images_per_class=2)", inside)
        above = ("@register_dataset", f"{SMALL}{top}\n\n@register_dataset")
        path.write_text(template(tmp_path, "photo-dataset", "birds", own, above))
        return path

    return write


RUN = ("run", "--method", "cosface", "--hparams", "default", "--seeds", "1", "--weights", "none", "--workers", "1")


@pytest.mark.parametrize("recipe", [{"inside": "recipe = SMALL"}, {"top": "RECIPE = SMALL"}])
def test_a_photo_data_set_brings_its_recipe(inside, birds, recipe):
    plugin = birds(**recipe)
    shown = inside.json("show", "birds", "--plugin", plugin)["recipe"]
    assert (shown["backbone"], shown["view"]["image_size"]) == ("squeezenet1_0", 32)
    asked = ("--dataset", "birds", "--data-root", "data", "--plugin", plugin)
    done = inside("data", "verify", "birds", *asked[2:])
    assert "Birds at" in done.stdout
    inside("test", "--dataset", "birds", *asked[2:])
    done = inside(*RUN, *asked, "--dry-run")
    assert "squeezenet" not in done.stderr
    assert "at most 1 epochs" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"inside": "recipe = 'default'"}, 'set recipe = "folder", or a Recipe with a view, in class Birds'),
        ({"inside": "recipe = 'nothing'"}, "unknown recipe 'nothing' (known: "),
        ({"inside": "recipe = 3"}, "neither a Recipe nor the name of one: 3"),
        (
            {"inside": "recipe = replace(SMALL, view={'side': 3})"},
            "the view of its recipe has side; settings of a view: image_size",
        ),
        ({"inside": "recipe = replace(SMALL, augmentation={'tilt': 3})"}, "augmentation of its recipe has tilt;"),
    ],
)
def test_a_photo_data_set_with_an_unsuited_recipe_is_refused_in_one_line(inside, birds, recipe, said):
    """Fault A4: `data verify` passed, and `bench run` ended in a traceback of 42 lines."""
    plugin = birds(**recipe)
    inside("data", "verify", "birds", "--data-root", "data", "--plugin", plugin)
    assert said in inside.refused(*RUN, "--dataset", "birds", "--data-root", "data", "--plugin", plugin, "--dry-run")


def test_embedded_data_sets_are_verified(inside):
    """Fault A12: `data verify` refused them."""
    report = inside.json("data", "verify", "ndigit_smoke")
    assert (report["images"], report["classes"], report["shape"]) == (2400, 300, [1, 10, 26])
    assert {part: split["classes"] for part, split in report["splits"].items()} == {
        "train": 112,
        "val": 38,
        "test": 150,
    }
    assert all(len(split["manifest_sha256"]) == 64 for split in report["splits"].values())
    assert "1 x 10 x 26" in inside("data", "verify", "ndigit_smoke").stdout


@pytest.fixture
def extras(tmp_path):
    """A test of embeddings with two metrics, a scorer and a corruption, in one text."""
    kinds = (("test", "extent"), ("scorer", "flattened"), ("corruption", "dim"))
    return "".join(template(tmp_path, *each) for each in kinds)


@pytest.mark.slow
def test_a_plugin_brings_a_test_with_metrics_a_scorer_and_a_corruption(cli, extras, tmp_path):
    plugin = written(tmp_path, extras)
    with_it = ("--plugin", plugin)
    for kind, name, summary in (
        ("scorers", "flattened", "-|E[z1]/|E[z1]| - E[z2]/|E[z2]||"),
        ("corruptions", "dim", "darkened by up to 80 %"),
        ("tests", "extent", "Mean cosine of two images of one class, and of two classes."),
    ):
        assert name not in {row["name"] for row in cli.json("list", kind)}
        assert {"name": name, "summary": summary} in cli.json("list", kind, *with_it)
    asked = ("--dataset", "ndigit_smoke", "--scorers", "flattened", "--corruptions", "crop,dim:5", *with_it)
    asked = (*RUN, *asked, "--set", "optim.epochs=1")
    assert "1 trainings done" in cli(*asked).stderr
    table = _table(tmp_path)
    assert {row["split"] for row in table if row["metric"] == "extent_inside"} == {"test", "test_crop", "test_dim"}
    assert {row["split"] for row in table if row["metric"] == "spearman_dim"} == {"test_dim"}
    assert "map_at_r" in {row["metric"] for row in table if row["scorer"] == "flattened"}
    for name in ("comparison.md", "report.html"):
        assert "Mean cosine between classes" in (tmp_path / "results/runs/report" / name).read_text()

    units = {row["unit"] for row in table}
    plugin.write_text("# nothing new\n" + extras)
    assert "0 trainings done" in cli(*asked).stderr
    assert {row["unit"] for row in _table(tmp_path)} == units
    plugin.write_text(extras.replace("0.8 * severity", "0.7 * severity"))
    assert "0 trainings done" in cli(*asked).stderr
    assert not {row["unit"] for row in _table(tmp_path)} & units


def _table(folder):
    with (folder / "results" / "runs" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_files_of_embeddings_are_scored_with_a_plugin(inside, extras, tmp_path):
    plugin = written(tmp_path, extras)
    rng = np.random.default_rng(0)
    for name in ("first", "second"):
        np.savez(tmp_path / f"{name}.npz", embeddings=rng.normal(size=(20, 4)), labels=np.arange(20) // 4)
    asked = ("--scorers", "flattened", "--metrics", "extent,map_at_r", "--plugin", plugin)
    rows = inside.json("score", "first.npz", *asked)["rows"]
    assert {(row["metric"], row["scorer"]) for row in rows} >= {("extent_between", ""), ("map_at_r", "flattened")}
    assert inside.json("score", "first.npz", "second.npz", *asked)["comparison"]


def test_a_plugin_that_does_not_import_or_takes_a_name_is_refused_in_one_line(inside, extras, tmp_path):
    for text, said in (
        (extras.replace('"flattened"', '"cosine"'), "scorer 'cosine' is already defined in bench.methods.scorers."),
        (extras.replace('"dim"', '"blur"'), "corruption 'blur' is already defined in bench.datasets.corruptions.blur"),
        (extras.replace("import torch", "import torch, nothing_of_the_kind"), "No module named 'nothing_of_the_kind'"),
    ):
        line = inside.refused("list", "scorers", "--plugin", written(tmp_path, text))
        assert said in line
        assert "mine.py does not import" in line


@pytest.mark.slow
def test_a_package_brings_them_by_an_entry_point(cli, extras, tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "extras-1.dist-info").mkdir(parents=True)
    (site / "extras-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extras\nVersion: 1\n")
    (site / "extras-1.dist-info" / "entry_points.txt").write_text(
        "[bench.plugins]\nmine = bench_extras\nbroken = bench_no_such_module\n"
    )
    (site / "bench_extras.py").write_text(extras)
    monkeypatch.setenv("PYTHONPATH", str(site))
    listed = cli("list", "corruptions")
    assert "darkened by up to 80 %" in listed.stdout
    assert "entry point 'broken' does not import" in listed.stderr
    asked = ("--dataset", "ndigit_smoke", "--corruptions", "dim", "--set", "optim.epochs=1")
    cli(*RUN, *asked)
    table = _table(tmp_path)
    assert {"extent_inside", "spearman_dim"} <= {row["metric"] for row in table}
    (site / "bench_extras.py").write_text(extras.replace("0.8 * severity", "0.7 * severity"))
    assert "0 trainings done" in cli(*RUN, *asked).stderr
    assert not {row["unit"] for row in _table(tmp_path)} & {row["unit"] for row in table}


def _plans(plugin, folder, **options):
    return planned(Site(results=str(folder / "results"), plugins=(str(plugin),)), **options)[0]


def test_the_code_of_a_plugin_is_part_of_its_units_and_not_of_its_rows(tmp_path):
    """Every edit of a plug-in made a row of its own, which stayed in all tables and was compared in its place."""
    found = []
    for number, scale in enumerate(("16.0", "17.0")):
        # Another folder is another module: one file is imported once per process.
        plugin = tmp_path / str(number) / "mine.py"
        plugin.parent.mkdir()
        plugin.write_text(template(tmp_path, "method", "mine", ("tuned(16.0", f"tuned({scale}")))
        found += _plans(plugin, tmp_path, methods=("mine",))
    assert [plan.pinned.text for plan in found] == ["", ""]
    assert found[0].template.id != found[1].template.id


def test_a_value_outside_of_the_declared_range_is_refused_where_tests_run(inside, extras, tmp_path):
    """A metric without a range is a share: a length of 1.6 was printed as 160 percent."""
    plugin = written(tmp_path, changed(extras, ("low=-1.0", "low=0.99")))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", embeddings=rng.normal(size=(20, 4)), labels=np.arange(20) // 4)
    line = inside.refused("score", "x.npz", "--metrics", "extent", "--plugin", plugin)
    (failed,) = _failures(inside, "--test", "extent", "--plugin", plugin)
    for text, part in ((line, "metric 'extent_inside'"), (failed, "extent_inside is ")):
        assert part in text
        assert "[0.99, 1]" in text


def _corruption(body, call='Corruption("dim", "less light", 0.0, 1.0, dim)', signature="image, severity, draw"):
    return (
        "import numpy as np\nimport random\nimport torch\n"
        "from bench.datasets.corruptions import Corruption, register_corruption\n"
        f"def dim({signature}):\n    {body}\nregister_corruption({call})\n"
    )


DIM = "return (image.float() * (1 - 0.5 * severity)).round().to(torch.uint8)"


def _failures(inside, *arguments):
    done = inside("test", *arguments, check=False)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("FAIL")]


@pytest.mark.parametrize(
    ("body", "check", "said"),
    [
        ("return image.float() * (1 - 0.5 * severity)", "pixels", "(mine.py) gives torch.float32"),
        ("return image[:, 1:] // 2", "pixels", "(mine.py) gives torch.uint8 [1, 19, 20]"),
        ("return image.numpy()", "pixels", "(mine.py) gives ndarray"),
        ("image.mul_(0); return image", "pixels", "work on a copy"),
        (
            "return (image.float() * (0.5 + 0.5 * severity)).to(torch.uint8)",
            "grows",
            "severity 1 changes images no more",
        ),
        ("return image if severity > 0.4 and severity < 0.6 else image // 2 * (severity < 0.9)", "grows", "stronger"),
        ("return image // 2 + torch.randint(0, 9, image.shape, dtype=torch.uint8)", "draws", "from draw(n)"),
        ("np.random.rand(); return image // 2", "draws", "from draw(n)"),
        ("random.random(); return image // 2", "draws", "from draw(n)"),
        ("return image // 2 + np.random.default_rng().integers(9)", "draws", "the second time"),
        ("raise IndexError('no such thing')", "pixels", "IndexError: no such thing (mine.py:6)"),
    ],
)
def test_each_fault_of_a_corruption_is_found(body, check, said, tmp_path, monkeypatch, capsys):
    """A corruption had no checks; a wrong type or shape was first found by a run, in code that was not at fault."""
    monkeypatch.setattr(CORRUPTIONS, "added", {})
    assert main(["test", "--corruption", "dim", "--plugin", str(written(tmp_path, _corruption(body)))]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert any(f" {check} " in line and said in line for line in failed), failed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_corruption(DIM, signature="image, severity"), "its function takes (image, severity, draw)"),
        (_corruption(DIM, call='Corruption("dim", "less light", 0.0, 2.0, dim)'), "severities are from 0 to 1"),
    ],
)
def test_a_corruption_that_cannot_run_is_not_registered(text, said, tmp_path, refusal):
    assert said in refusal("list", "corruptions", "--plugin", written(tmp_path, text))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["point", "isotropic_normal"])
def test_a_name_of_our_distributions_is_refused_in_one_line(cli, tmp_path, kind):
    """The module of ours was imported later, and that ended in a traceback."""
    text = "import torch\nfrom bench.methods.distributions import array_form\n"
    text += f'@array_form("{kind}", "loc")\nclass Mine(torch.distributions.Distribution):\n    """Mine."""\n'
    line = cli.refused("list", "distributions", "--check", "--plugin", written(tmp_path, text))
    assert f"array form {kind!r} of Mine is already that of bench.methods.distributions." in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"""One line on the method; its paper goes into ``paper``."""', ""), "class Mine needs a docstring"),
        (("def mean", "def centre"), "Cloud lacks mean"),
        (("def rsample", "def sampled"), "Cloud lacks rsample"),
    ],
)
def test_what_a_distribution_or_a_method_lacks_is_named_once(inside, tmp_path, change, said):
    loss = ("return Loss(num_classes, dim, self.params.scale)", "return CosineClassifier(num_classes, dim, 16.0)")
    text = changed(method_of_cloud(tmp_path), change, loss)
    failed = _failures(inside, "--method", "mine", "--plugin", written(tmp_path, text))
    assert sum(said in line for line in failed) == 1, failed
