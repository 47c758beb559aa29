"""Results from elsewhere: archived, read like others, rescored without a training, and checked."""

import io
import json
import lzma
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench.cli import main
from bench.commands.rescore import rescore_results
from bench.commands.results import archive_results, status_rows
from bench.engine import rescoring
from bench.engine.queries import queries_file
from bench.engine.testing import rows_of_views, without_nan
from bench.errors import UnitFailed, UserError
from bench.protocols.declare import _DECLARED
from bench.protocols.known_tests import load_tests
from bench.report.frame import collect, provenance
from bench.seeds import content_id
from bench.site import Site
from bench.store.check import damages
from bench.store.files import COPY, file_texts, read_archive, sha256, write_archive, write_atomic
from bench.store.folder import Store
from bench.store.records import ROW_KEYS, Corrupted, Curve, Epoch
from safetensors.torch import load, save

from tests import records
from tests.plans import planned

DIM, COUNT = 64, 48

PLUGIN = '''
"""Mean first coordinate of the unit embeddings."""
from bench.protocols.declare import test
from bench.protocols.metrics import Metric
from bench.protocols.rows import row


@test(group="firsts", per="embeddings", needs=("directions",), metrics=(
    Metric(name="first_mean", title="First", group="firsts", of="embeddings", unit="number", low=-1.0, high=1.0),
))
def firsts(view):
    """Mean first coordinate."""
    yield row("first_mean", float(view.unit_vectors[:, 0].mean()))
'''


def _arrays(seed):
    """Embeddings of 8 classes, clean and cropped, with a confidence; their file and its texts."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(COUNT) % 8
    centres = torch.randn(8, DIM, generator=random)
    arrays = {"labels": labels, "crop_fraction": torch.rand(COUNT, generator=random, dtype=torch.float64)}
    for name, noise in (("clean", 1.0), ("crop", 2.0)):
        arrays[f"{name}.loc"] = centres[labels] + noise * torch.randn(COUNT, DIM, generator=random)
        arrays[f"{name}.confidence.norm"] = torch.rand(COUNT, generator=random)
    return save(arrays, {"distribution": "point", "ids": "\n".join(f"image {i}" for i in range(COUNT))})


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("plan"), "arcface")[0][0]


def _views(record, files):
    """Clean and cropped test images, whose clean ones stand in for validation images."""
    (views,) = rescoring.views_of_embeddings(record, files, ["cosine"])
    validation = replace(views["test"], held_out=True)
    return {"val": validation, **{name: replace(view, validation=validation) for name, view in views.items()}}


def _run(root, plan):
    """A results folder as `bench run` leaves it, of two seeds, without a training."""
    site = Site(results=str(root))
    files, manifests = {"weights.safetensors": "0" * 64}, {"train": "a", "val": "b"}
    history = (Epoch(epoch=1, loss=1.0, val_map_at_r=0.5),)
    for seed in range(2):
        specs = plan.train_specs({}, seed, None)
        trained = records.of_training(specs[0], 0.5, files=files, manifests=manifests, history=history)
        site.store.write(trained)
        data = _arrays(seed)
        spec = plan.test_specs(specs)[0]
        asked = ("retrieval", "filter_out", "clustering", "risk", "open_set")
        spec = spec.replaced(tests=replace(spec.tests, groups=asked))
        path = site.store.unit_dir(trained.cell, "test", spec.id) / "embeddings.safetensors"
        write_atomic(path, data)
        content = trained.spec.model_dump(mode="json")
        names = ("protocol", "preset", "hparams", "trials", "pinned")
        columns = records.columns(
            **{name: getattr(spec, name) for name in names}, dataset=trained.spec.dataset, method=trained.spec.method,
            backbone=trained.spec.backbone, dim=DIM, seed=seed,
        )  # fmt: skip
        record = records.of_test(
            columns, (), spec, cell=trained.cell, files={path.name: sha256(data)},
            setting={key: content[key] for key in ("params", "optim", "batches", "augmentation")},
            manifests=manifests | {"test": "t"}, role=records.role(train=trained.unit), finished=1.0,
            corruptions={"crop": Corrupted(severity=(0.0, 0.5), seed=1, sha256="0" * 64)},
            curves={"crop": Curve(severity=(), rank={"norm": ()})},
        )  # fmt: skip
        kept = rescoring.kept_files(record, "embeddings", site.store)
        rows = rescoring.embedding_rows(record, kept, ["retrieval"], ["cosine"], site)
        views = _views(record, kept)
        rows += map(without_nan, rows_of_views(views, load_tests(["risk", "open_set"])))
        known = queries_file(views, ["risk", "open_set"])
        write_atomic(path.with_name("queries.safetensors"), known)
        record = record.model_copy(update={"files": {**record.files, "queries.safetensors": sha256(known)}})
        site.store.write(record.model_copy(update={"rows": tuple(rows)}))
    site.store.mark("reality_check", 1)
    return site


@pytest.fixture(scope="module")
def made(plan, tmp_path_factory):
    """A results folder, and one of its archive, with the queries of the first seed."""
    site = _run(tmp_path_factory.mktemp("runs"), plan)
    out = tmp_path_factory.mktemp("reference")
    archive_results(Path(site.results), out / "smoke.tar.xz")
    Store(out).mark("reality_check", 1)
    record = next(record for record in site.store.tests() if record.columns.seed == 0)
    known = (site.store.unit_dir(record.cell, "test", record.unit) / "queries.safetensors").read_bytes()
    write_atomic(out.joinpath(*record.cell, f"test-{record.unit}{COPY}"), lzma.compress(known))
    return site, out


@pytest.fixture
def reference(made, tmp_path):
    """A copy of the packed folder, for tests that change it."""
    for path in made[1].rglob("*"):
        if path.is_file():
            write_atomic(tmp_path / path.relative_to(made[1]), path.read_bytes(), sync=False)
    return Store(tmp_path)


def _reasons(store):
    return [damage.reason for damage in damages(store.root)]


def _key(row):
    return tuple(row.get(name) for name in ROW_KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["in a folder", "alone"])
def test_archived_records_are_read_as_if_each_had_a_file(made, alone, capsys, tmp_path):
    site, out = made
    archived = Store(out / "smoke.tar.xz" if alone else out)
    assert list(archived.tests()) == list(site.store.tests())
    for record in archived.tests():
        unit = record.spec.train[0]
        assert archived.trained(record.cell, unit) == site.store.trained(record.cell, unit)
    assert collect(archived).frame.equals(collect(site.store).frame)
    assert archived.marker_of_records() == site.store.marker_of_records()
    assert provenance(collect(archived), {}).equals(provenance(collect(site.store), {}))
    (row,) = status_rows(archived)
    assert (row["trained"], row["tested"]) == (2, 2)
    results = ["--results", str(archived.root)]
    assert main(["status", *results, "--check"]) == 0
    assert "everything is whole" in capsys.readouterr().out
    assert main(["report", *results, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "comparison.csv").exists()


def test_the_same_records_give_the_same_bytes_and_an_archive_can_be_archived(made, tmp_path):
    site, out = made
    assert _reasons(Store(out)) == []
    assert {str(place.parent.name)[:5] for place in map(Path, read_archive(out / "smoke.tar.xz"))} >= {"test-", "train"}
    for number, folder in enumerate((Path(site.results), out, out / "smoke.tar.xz")):
        archive_results(folder, tmp_path / f"{number}.tar.xz")
        assert (tmp_path / f"{number}.tar.xz").read_bytes() == (out / "smoke.tar.xz").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--method", "arcface", "--dataset", "ndigit_smoke", "--results", "{archive}"],
        ["rescore", "--results", "{archive}"],
        ["report", "--results", "{archive}"],
        ["status", "--results", "{runs}", "--archive", "{archive}/x.tar.xz"],
        ["status", "--results", "{runs}", "--archive", "records.zip"],
    ],
)
def test_nothing_is_written_into_an_archive(made, arguments, refusal):
    archive = made[1] / "smoke.tar.xz"
    before = archive.read_bytes()
    refusal(*(text.format(archive=archive, runs=made[0].results) for text in arguments))
    assert archive.read_bytes() == before


def test_a_folder_with_damage_is_not_archived(plan, tmp_path):
    site = _run(tmp_path / "runs", plan)
    next((tmp_path / "runs").rglob("record.json")).write_text("{")
    with pytest.raises(UserError, match="has damaged records"):
        archive_results(Path(site.results), tmp_path / "x.tar.xz")
    assert not (tmp_path / "x.tar.xz").exists()


@pytest.fixture(autouse=True)
def declared():
    """A plug-in's tests end with the test that loads it; all others in this process would run them too."""
    yield
    for place in [place for place in _DECLARED if not place[0].startswith("bench.")]:
        del _DECLARED[place]


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "firsts.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def untrained(monkeypatch):
    """Nothing may be trained or embedded."""
    for name in ("bench.engine.training.run_training", "bench.engine.networks.embed", "bench.engine.testing.run_tests"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("something was trained"))


@pytest.mark.slow
def test_a_new_test_gives_all_rows_of_the_reference_a_value_without_a_training(made, reference, plugin, untrained):
    before = {record.unit: record for record in reference.tests()}
    site = Site(results=str(reference.root), plugins=(str(plugin),))
    rows = rescore_results(site, (), Path(made[0].results), quiet=True)
    assert [row["failure"] for row in rows] == [""] * 2
    collected = collect(reference)
    new = collected.frame[collected.frame["metric"] == "first_mean"]
    places = [(split, seed) for split in ("test", "test_crop") for seed in (0, 1)]
    assert sorted(zip(new["split"], new["seed"], strict=True)) == places
    # Each new value names the rescoring, whose record names its code; equal values and the records stay as they are.
    made_by = {record.unit: record for record in reference.rescorings()}
    assert set(new["unit"]) == set(made_by)
    for record in made_by.values():
        assert record.spec.versions["test.firsts"].startswith("file.")
    assert set(collected.frame[collected.frame["metric"] == "map_at_r"]["unit"]) == set(before)
    assert {record.unit: record for record in reference.tests()} == before
    assert provenance(collected, {})["rescored"].tolist().count("") == 2
    (status,) = status_rows(reference)
    assert sum(status["codes"].values()) == 4
    # The second time, nothing is computed.
    stamps = {path: path.stat().st_mtime_ns for path in reference.root.rglob("record.json")}
    rescore_results(site, (), Path(made[0].results), quiet=True)
    assert {path: path.stat().st_mtime_ns for path in reference.root.rglob("record.json")} == stamps


def test_the_queries_alone_give_the_values_of_confidences_again_to_the_last_bit(reference, plugin, capsys):
    """Without an embedding: on test and validation images, fits on validation images included."""
    args = ["rescore", "--results", str(reference.root), "--plugin", str(plugin), "--json"]
    assert main(args) == 1
    first, second = sorted(json.loads(capsys.readouterr().out), key=lambda row: row["seed"])
    assert "name the results folder that has it with --arrays" in second["failure"]
    assert first["failure"] == ""
    assert first["left_out"] == ["retrieval", "filter_out", "clustering", "firsts"]
    own = next(record for record in reference.tests() if record.columns.seed == 0)
    assert {row["metric"] for row in own.rows} > {"open_set_auroc", "open_set_oscr", "open_set_tar"}
    risk = [row for row in own.rows if row["metric"] in ("aurc", "e_aurc", "augrc", "confidence_auroc")]
    assert {row["split"] for row in risk} == {"val", "test", "test_crop"}
    assert {"norm+margin+agreement", "margin+agreement", "consistency"} < {row["confidence"] for row in risk}
    found = rescoring.kept_files(own, "queries", reference)
    again = [[(*_key(row), row["value"]) for row in rescoring.query_rows(own, found, ["risk"])] for _ in range(3)]
    assert again[0] == again[1] == again[2]  # though a file has no order
    assert {*again[0]} >= {(*_key(row), row["value"]) for row in risk}
    assert main(["rescore", "--results", str(reference.root), "--tests", "clustering"]) == 1
    assert "clustering needs embeddings, which test" in capsys.readouterr().err


def test_damaged_embeddings_are_named_and_the_rest_is_done(plan, plugin, tmp_path, capsys):
    site = _run(tmp_path / "runs", plan)
    path = next(iter(sorted(tmp_path.rglob("embeddings.safetensors"))))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["rescore", "--results", site.results, "--plugin", str(plugin), "--tests", "firsts", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert sorted(bool(row["failure"]) for row in rows) == [False, True]
    assert any("is damaged" in row["failure"] and str(path) in row["failure"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["rescore", "--results", "none"], "`bench run` creates some"),
        (["status", "--archive", "x.tar.xz", "--results", "none"], "`bench run` creates some"),
        (["status", "--results", "file"], "is a file; name a folder"),
        (["rescore", "--results", "{made}", "--tests", "clusterin"], "did you mean 'clustering'"),
        (["rescore", "--results", "loop"], "loop"),
        (["claims", "--results", "loop"], "loop"),
        (["status", "--results", "{made}", "--archive", "loop/x.tar.xz"], "loop"),
        (["report", "--results", "{made}", "--plugin", "loop"], "loop"),
    ],
)
def test_a_bad_call_is_one_line(arguments, reason, made, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    assert reason in refusal(*(text.format(made=made[0].results) for text in arguments))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": {"../../x": "0" * 64}}, "String should match pattern"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"schema": 1}, "of schema 1, not a test record of 3"),
        ({"cell": ["..", "..", "etc"]}, "it belongs at"),
        ({"spec": {"trials": 50}}, "is not that of its specification"),
    ],
)
def test_a_record_that_is_none_is_refused_in_a_line(change, reason, reference):
    (path,) = reference.root.glob("*.tar.xz")
    texts = read_archive(path)
    place = min(place for place in texts if "/test-" in place)
    held = json.loads(texts[place])
    del held["checksum"]
    held |= {key: held[key] | value if key == "spec" else value for key, value in change.items()}
    held["checksum"] = content_id(held)  # which fits again
    write_archive(path, texts | {place: json.dumps(held).encode()})
    reasons = _reasons(Store(reference.root))
    assert any(reason in each for each in reasons), reasons
    assert all("\n" not in each and len(each) < 300 for each in reasons)


@pytest.mark.parametrize(
    "change",
    [
        {"test.labels": torch.arange(3)},
        {"test.confidence.norm": torch.full((COUNT,), float("inf"))},
        {"test.confidence.norm": torch.zeros(COUNT, 2)},
        {"test.scorer.cosine.margin": torch.full((COUNT,), float("nan"))},
        {"test.scorer.cosine.recall_at_1": torch.ones(3)},
        {"test.queries": torch.tensor([10**6])},
    ],
)
def test_queries_that_are_none_are_refused_in_a_line(change, reference):
    path = next(reference.root.rglob(f"*{COPY}"))
    data = lzma.decompress(path.read_bytes())
    (record,) = (record for record in reference.tests() if record.unit in path.name)
    path.write_bytes(lzma.compress(save({**load(data), **change}, file_texts(data))))
    assert _reasons(Store(reference.root)) == ["its SHA-256 is not that of its record"]
    with pytest.raises(UnitFailed) as caught:
        rescoring.query_rows(record, {"queries": (path, "")}, ["risk"])
    assert "\n" not in str(caught.value)


def _tar(*members):
    """An unpacked tar file of members: name, content, and changes of the header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text, changes in members:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            for key, value in changes.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(text))
    return buffer.getvalue()


RECORD = "reality_check/x/y/test-0123456789abcdef/record.json"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_tar(("../../etc/passwd", b"{}", {})), "'../../etc/passwd' is not the place of a record"),
        (_tar(("/etc/passwd", b"{}", {})), "is not the place of a record"),
        (_tar((f"../{RECORD}", b"{}", {})), "is not the place of a record"),
        (_tar((RECORD.replace("record", "weights"), b"{}", {})), "is not the place of a record"),
        (_tar((RECORD, b"{}", {}), (RECORD, b"{}", {})), "is not the place of a record"),
        (_tar((RECORD, b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})), "is no whole file"),
        (_tar((RECORD, b"", {"type": tarfile.DIRTYPE})), "is no whole file"),
        (_tar((RECORD, b"", {"type": tarfile.FIFOTYPE})), "is no whole file"),
        (_tar((RECORD, b"{}", {}))[:512], "is no whole file"),
        (b"nothing", "is damaged"),
        (_tar((RECORD, b'{"a": NaN}', {})), "of schema None"),
        (_tar((RECORD, b"[]", {})), "not a JSON object"),
    ],
)
def test_an_archive_of_something_else_is_refused(data, reason, reference):
    next(reference.root.glob("*.tar.xz")).write_bytes(lzma.compress(data))
    reasons = _reasons(Store(reference.root))
    assert any(reason in each for each in reasons), reasons
    assert all("\n" not in each for each in reasons)


def test_a_truncated_archive_and_one_that_unpacks_to_too_much_are_refused(reference, monkeypatch):
    path = next(reference.root.glob("*.tar.xz"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert "is damaged: it ends too early or too late" in _reasons(Store(reference.root))
    path.write_bytes(whole)
    monkeypatch.setattr("bench.store.files.MOST_BYTES", 1000)
    assert any("unpacks to more than" in reason for reason in _reasons(Store(reference.root)))
    with pytest.raises(UserError, match="give each data set a results folder"):
        write_archive(path, {RECORD: bytes(1000)})
