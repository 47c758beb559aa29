"""Results from elsewhere: packed, read like others, rescored without a training, checked, claimed and verified."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench.cli import main
from bench.commands.contribute import wrong_values
from bench.commands.rescore import rescore_results
from bench.commands.results import status_rows
from bench.engine import rescoring
from bench.errors import UserError
from bench.planning.experiment import Experiment
from bench.planning.planner import build_plans
from bench.protocols.declare import _DECLARED
from bench.report import packing
from bench.report.frame import collect
from bench.report.packing import pack, verify
from bench.report.provenance import provenance_frame
from bench.seeds import content_id
from bench.site import Site
from bench.store.check import damages
from bench.store.consistency import inconsistencies
from bench.store.files import sha256, write_atomic
from bench.store.folder import Store
from bench.store.marks import VERIFIED, read_marks
from bench.store.pack import PACK, Packed, Provenance, read_pack, write_pack
from bench.store.records import Columns, Corrupted, Curve, Environment, Epoch, Role, TestRecord, TrainRecord
from safetensors.torch import load, save

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


def _environment():
    return Environment(
        bench="0", torch="0", python="3", machine="x", device="cpu", threads=1, seconds=1.0, peak_memory_mib=1,
        commit="c0ffee",
    )  # fmt: skip


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
    request = Experiment(methods=("arcface",), datasets=("ndigit_smoke",), hparams="default")
    return build_plans(request, Site(results=str(tmp_path_factory.mktemp("plan")))).plans[0]


def _train_record(spec):
    return TrainRecord(
        unit=spec.id, cell=spec.cell, spec=spec, files={"weights.safetensors": "0" * 64}, num_classes=2, channels=1,
        manifests={"train": "a", "val": "b"}, history=(Epoch(epoch=1, loss=1.0, val_map_at_r=0.5),), best_epoch=1,
        selection_value=0.5, val_map_at_r=0.5, environment=_environment(),
    )  # fmt: skip


def _test_record(spec, trained, digest, seed, finished):
    content = trained.spec.model_dump(mode="json")
    return TestRecord(
        unit=spec.id, cell=trained.cell, spec=spec, files={"embeddings.safetensors": digest},
        columns=Columns(
            protocol=spec.protocol, preset=spec.preset, dataset=trained.spec.dataset, method=trained.spec.method,
            base="", fidelity="corrected", hparams=spec.hparams, trials=spec.trials, pinned=spec.pinned,
            backbone=trained.spec.backbone, dim=DIM, ensemble="", seed=seed,
        ),
        role=Role(primary_scorer="cosine", default_confidence="norm", probabilistic=False, trainings=0,
                  train=trained.unit, base_train=""),
        setting={key: content[key] for key in ("params", "optim", "batches", "augmentation")},
        manifests={"test": "t", "train": "a", "val": "b"},
        corruptions={"crop": Corrupted(severity=(0.0, 0.5), seed=1, sha256="0" * 64)},
        rows=(), curves={"crop": Curve(severity=(), rank={})}, environment=_environment(), finished=finished,
    )  # fmt: skip


def _run(root, plan, finished=1.0, shift=0.0):
    """A results folder as `bench run` leaves it, of two seeds, without a training."""
    site = Site(results=str(root))
    for seed in range(2):
        specs = plan.train_specs({}, seed, None)
        trained = _train_record(specs[0])
        site.store.write(trained)
        data = _arrays(seed)
        spec = plan.test_specs(specs)[0]
        spec = spec.replaced(tests=replace(spec.tests, groups=("retrieval", "filter_out", "clustering")))
        record = _test_record(spec, trained, sha256(data), seed, finished)
        path = site.store.unit_dir(record.cell, "test", record.unit) / "embeddings.safetensors"
        write_atomic(path, data)
        rows = rescoring.stored_rows(record, [rescoring.read_model(path, {})], ["retrieval"], ["cosine"], site)
        rows = [{**row, "value": row["value"] and row["value"] - shift} for row in rows]
        site.store.write(record.model_copy(update={"rows": tuple(rows)}))
    site.store.mark("reality_check", 1)
    return site


@pytest.fixture(scope="module")
def made(plan, tmp_path_factory):
    site = _run(tmp_path_factory.mktemp("runs"), plan)
    out = tmp_path_factory.mktemp("reference")
    pack(site, out, "Jane Doe", "")
    return site, out


@pytest.fixture
def reference(made, tmp_path):
    """A copy of the packed folder, for tests that change it."""
    for path in made[1].rglob("*"):
        if path.is_file():
            write_atomic(tmp_path / path.relative_to(made[1]), path.read_bytes(), sync=False)
    return Store(tmp_path)


def _reasons(store):
    return [damage.reason for damage in (*damages(store.root), *inconsistencies(store), *wrong_values(store))]


def _edit(store, change, kind="test"):
    """Change the JSON of the first packed record of a kind, with a checksum that fits again; only its rows may not."""
    path = store.packs()[0]
    lines = read_pack(path)
    place = min(place for place in lines if place.startswith(kind))
    held = json.loads(lines[place].text)
    del held["checksum"]
    change(held)
    held["checksum"] = content_id(held)
    write_pack(path, lines | {place: Packed(lines[place].provenance, json.dumps(held).encode())})


def test_packed_records_are_read_as_if_each_had_a_file(made):
    site, out = made
    packed = Store(out)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert [path.name.partition(".")[2] for path in sorted(files)] == ["records.xz", "float16.xz", "json"]
    assert list(packed.tests()) == list(site.store.tests())
    for record in packed.tests():
        assert packed.trained(record.cell, record.spec.train[0]) == site.store.trained(
            record.cell, record.spec.train[0]
        )
    assert collect(packed).frame.equals(collect(site.store).frame)
    assert packed.marker_of_records() == site.store.marker_of_records()
    (row,) = status_rows(packed)
    assert (row["trained"], row["tested"], row["states"]) == (2, 2, {"claimed": 2})


def test_packing_again_gives_the_same_bytes_and_keeps_what_is_there(made, plan, reference, tmp_path_factory):
    before = {path: path.read_bytes() for path in reference.root.rglob("*.xz")}
    pack(made[0], reference.root, "Jane Doe", "")
    assert {path: path.read_bytes() for path in reference.root.rglob("*.xz")} == before
    other = _run(tmp_path_factory.mktemp("one"), plan)
    other.store.remove(next(other.store.tests()).cell, "test", next(other.store.tests()).unit)
    pack(other, reference.root, "Jane Doe", "")
    assert len(list(reference.tests())) == 2


def test_large_embeddings_are_left_out(made, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "MOST_FLOAT16", 1000)
    pack(made[0], tmp_path, "Jane Doe", "")
    assert not list(tmp_path.rglob("*.float16.xz"))
    assert _reasons(Store(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "values", "stays"),
    [
        ("clean.loc", [[0.1, -0.3], [1e-9, 0.2]], False),
        ("clean.variance", [0.1, 0.2], False),
        ("clean.variance", [0.1, 1e-9], True),  # would be rounded to zero
        ("clean.loc", [[1e6, 0.0]], True),  # would be infinite
        ("clean.confidence.norm", [0.1, 0.2], True),
        ("labels", [0.0, 1.0], True),
    ],
)
def test_only_what_float16_can_hold_is_rounded(name, values, stays):
    assert packing._stays(name, torch.tensor(values)) is stays


def test_a_whole_folder_of_packs_has_no_fault(made):
    assert _reasons(Store(made[1])) == []


def test_the_first_seed_has_small_embeddings_and_each_record_its_origin(made):
    site, out = made
    packed = Store(out)
    halves = {record.columns.seed: packed.float16(record) is not None for record in packed.tests()}
    assert halves == {0: True, 1: False}
    frame = provenance_frame(packed, collect(packed))
    assert frame[["by", "commit", "state", "seed"]].values.tolist() == [
        ["Jane Doe", "c0ffee", "claimed", seed] for seed in (0, 1)
    ]
    assert set(provenance_frame(site.store, collect(site.store))["state"]) == {"own"}


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

    def refuse(*_, **__):
        raise AssertionError("something was trained")

    for name in ("bench.engine.training.run_training", "bench.engine.networks.embed", "bench.engine.testing.run_tests"):
        monkeypatch.setattr(name, refuse)


def test_a_new_test_gives_all_rows_of_the_reference_a_value_without_a_training(made, reference, plugin, untrained):
    before = {record.unit: record for record in reference.tests()}
    site = Site(results=str(reference.root), plugins=(str(plugin),))
    rows = rescore_results(site, (), Path(made[0].results), quiet=True)
    assert [(row["failure"], row["float16"], row["largest_difference"]) for row in rows] == [("", False, 0.0)] * 2
    collected = collect(reference)
    new = collected.frame[collected.frame["metric"] == "first_mean"]
    assert sorted(new["split"] + new["seed"].astype(str)) == ["test0", "test1", "test_crop0", "test_crop1"]
    # Each new value names the rescoring, whose record names its code; equal values and the records stay as they are.
    made_by = {record.unit: record for record in reference.rescorings()}
    assert set(new["unit"]) == set(made_by)
    for record in made_by.values():
        assert record.spec.versions["test.firsts"].startswith("file.")
    own = collected.frame[collected.frame["metric"] == "map_at_r"]
    assert set(own["unit"]) == set(before)
    assert {record.unit: record for record in reference.tests()} == before
    assert provenance_frame(reference, collected)["rescored"].tolist().count("") == 2
    (status,) = status_rows(reference)
    assert sum(status["codes"].values()) == 4
    # The second time, nothing is computed.
    stamps = {path: path.stat().st_mtime_ns for path in reference.root.rglob("record.json")}
    rescore_results(site, (), Path(made[0].results), quiet=True)
    assert {path: path.stat().st_mtime_ns for path in reference.root.rglob("record.json")} == stamps


def test_float16_says_how_far_it_is_and_never_replaces_a_value(reference, plugin, capsys):
    args = ["rescore", "--results", str(reference.root), "--plugin", str(plugin)]
    assert main(args) == 1
    shown = capsys.readouterr().err
    assert "from float16 embeddings" in shown
    assert "name the results folder that has it with --arrays" in shown
    (record,) = reference.rescorings()
    assert record.spec.float16
    assert 0 <= record.largest_difference <= rescoring.TOLERANCE
    frame = collect(reference).frame
    assert set(frame[frame["unit"] == record.unit]["metric"]) >= {"first_mean"}
    assert "map_at_r" not in set(frame[(frame["unit"] == record.unit) & (frame["split"] == "test")]["metric"])


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
        (["rescore"], "`bench run` creates some"),
        (["status", "--by", "me"], "is for --pack and --verify"),
        (["status", "--check", "--pack", "x", "--by", "me"], "--check goes without --pack"),
    ],
)
def test_a_bad_call_is_one_line(arguments, reason, tmp_path, capsys):
    assert main([*arguments, "--results", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["rescore", "--results", "loop"],
        ["claims", "--results", "loop"],
        ["status", "--results", "{made}", "--pack", "loop", "--by", "me"],
        ["report", "--results", "{made}", "--plugin", "loop"],
    ],
)
def test_a_loop_of_links_is_one_line(arguments, made, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert main([text.format(made=made[0].results) for text in arguments]) == 2
    error = capsys.readouterr().err
    assert "loop" in error
    assert error.count("\n") == 1


def test_a_file_cannot_be_repaired_and_the_line_says_so(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["status", "--repair", "--results", str(tmp_path / "file")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err


def test_an_unknown_group_of_tests_is_refused(made, capsys):
    assert main(["rescore", "--results", made[0].results, "--tests", "clusterin"]) == 2
    assert "did you mean 'clustering'" in capsys.readouterr().err


def _set(*path, value):
    def change(held):
        for name in path[:-1]:
            held = held[name]
        held[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("rows", 0, "value", value=7.0), "is 7, outside of [0, 1]"),
        (_set("rows", 0, "value", value=1e308), "is 1e+308, outside of [0, 1]"),
        (_set("rows", 0, "n_queries", value=10**12), "is no count"),
        (_set("rows", 0, "metric", value="best_ever"), "unknown metric 'best_ever'"),
        (_set("rows", 0, "split", value="../up"), "unknown split"),
        (_set("columns", "trials", value=50), "its column trials is 50, its specification has 0"),
        (_set("columns", "seed", value=3), "its trainings are not of seed 3"),
        (_set("columns", "dim", value=128), "embedding size is not that of its trainings"),
        (_set("setting", "optim", "lr", value=1.0), "its setting optim.lr is not that of its trainings"),
        (_set("manifests", "train", value="z"), "its manifests are not those of its trainings"),
        (_set("manifests", "test", value="z"), "its test images are not those of the other results"),
        (_set("finished", value=1e12), "finished in the future"),
        (_set("files", value={"../../x": "0" * 64}), "String should match pattern"),
        (_set("surprise", value=1), "surprise: Extra inputs are not permitted"),
        (_set("schema", value=1), "of schema 1, not a test record of 3"),
        (_set("cell", value=["..", "..", "etc"]), "it belongs at"),
        (_set("spec", "trials", value=50), "is not that of its specification"),
    ],
)
def test_a_record_that_claims_what_it_has_not_is_refused_in_a_line(change, reason, reference):
    _edit(reference, change)
    reasons = _reasons(Store(reference.root))
    assert any(reason in each for each in reasons), reasons
    assert all("\n" not in each and len(each) < 300 for each in reasons)


def test_a_claimed_budget_needs_its_trials(plan, reference):
    path = reference.packs()[0]
    lines = read_pack(path)
    place = min(place for place in lines if place.startswith("test"))
    record = TestRecord.from_json(lines[place].text)
    spec = record.spec.replaced(hparams="tuned", trials=50)
    columns = record.columns.model_copy(update={"hparams": "tuned", "trials": 50})
    claimed = record.model_copy(update={"spec": spec, "unit": spec.id, "columns": columns})
    write_pack(
        path,
        {
            **lines,
            f"test-{spec.id}/record.json": Packed(lines[place].provenance, claimed.to_json().replace(b"\n", b"")),
        },
    )
    assert "it claims 50 trials, its study has 0" in _reasons(Store(reference.root))


def test_values_that_do_not_follow_from_the_embeddings_are_refused(reference):
    def improve(held):
        for row in held["rows"]:
            if row["value"] is not None:
                row["value"] = min(1.0, row["value"] + 0.05)

    path = reference.packs()[0]
    lines = read_pack(path)
    place = next(place for place, line in lines.items() if line.provenance.float16)
    held = json.loads(lines[place].text)
    del held["checksum"]
    improve(held)
    held["checksum"] = content_id(held)
    write_pack(path, lines | {place: Packed(lines[place].provenance, json.dumps(held).encode())})
    assert any("from those of its embeddings" in reason for reason in _reasons(Store(reference.root)))


@pytest.mark.parametrize(
    "change",
    [
        {"labels": torch.arange(3)},
        {"clean.loc": torch.full((COUNT, DIM), float("nan"))},
        {"clean.confidence.norm": torch.full((COUNT,), float("inf"))},
        {"clean.confidence.norm": torch.zeros(COUNT, 2)},
        {"queries": torch.tensor([10**6])},
    ],
)
def test_embeddings_that_are_none_are_refused_in_a_line(change, reference):
    path = next(reference.root.rglob("*.float16.xz"))
    data = lzma.decompress(path.read_bytes())
    texts = {"distribution": "point", "ids": "\n".join(f"image {i}" for i in range(COUNT))}
    path.write_bytes(lzma.compress(save({**load(data), **change}, texts)))
    pack_path = reference.packs()[0]
    digest = sha256(path.read_bytes())
    lines = {
        place: Packed(line.provenance.model_copy(update={"float16": line.provenance.float16 and digest}), line.text)
        for place, line in read_pack(pack_path).items()
    }
    write_pack(pack_path, lines)
    reasons = _reasons(Store(reference.root))
    assert len(reasons) == 1
    assert "\n" not in reasons[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"../../etc/passwd\t{}\t{}\n", "line 1 is not that of a record"),
        (b"nothing\n", "line 1 is not that of a record"),
        (b'test-0123456789abcdef/record.json\t{"by": "a\\nb", "where": "", "commit": ""}\t{}\n', "line 1"),
        (b'test-0123456789abcdef/record.json\t{"by": "", "where": "", "commit": ""}\t{"a": NaN}\n', "of schema None"),
        (b'test-0123456789abcdef/record.json\t{"by": "", "where": "", "commit": ""}\t[]\n', "not a JSON object"),
    ],
)
def test_a_pack_of_something_else_is_refused(text, reason, reference):
    reference.packs()[0].write_bytes(lzma.compress(text))
    assert any(reason in each for each in _reasons(Store(reference.root)))


def test_a_truncated_pack_and_one_that_unpacks_to_too_much_are_refused(reference, monkeypatch):
    path = reference.packs()[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert "is damaged: it ends too early or too late" in _reasons(Store(reference.root))
    path.write_bytes(whole)
    monkeypatch.setattr("bench.store.pack.MOST_BYTES", 1000)
    assert any("unpacks to more than" in reason for reason in _reasons(Store(reference.root)))


def test_a_second_contributor_cannot_replace_a_result(reference):
    path = reference.packs()[0]
    lines = read_pack(path)
    place = min(place for place in lines if place.startswith("test"))
    record = TestRecord.from_json(lines[place].text)
    spec = record.spec.replaced(versions={**record.spec.versions, "engine": 2})
    later = record.model_copy(update={"spec": spec, "unit": spec.id, "finished": 2.0})
    text = later.to_json().replace(b"\n", b"")
    origin = Provenance(by="Mallory", where="", commit="")
    write_pack(path.with_name(f"mallory{PACK}"), {f"test-{spec.id}/record.json": Packed(origin, text)})
    assert any("has a result of this setting and seed already" in reason for reason in _reasons(Store(reference.root)))


def test_a_second_run_with_equal_values_verifies_a_claim(made, plan, reference, tmp_path_factory):
    again = _run(tmp_path_factory.mktemp("again"), plan, finished=9.0)
    with pytest.raises(UserError, match="no second run"):
        verify(Store(tmp_path_factory.mktemp("empty")), reference, "Maintainer", "")
    assert {reason for _, reason in verify(again.store, reference, "Jane Doe", "")} == {"Jane Doe has contributed it"}
    assert {reason for _, reason in verify(made[0].store, reference, "Maintainer", "")} == {"it is the same run"}
    assert {reason for _, reason in verify(again.store, reference, "Maintainer", "")} == {""}
    assert set(provenance_frame(reference, collect(reference))["state"]) == {"verified"}
    assert _reasons(reference) == []
    # A record that is changed later loses its mark.
    _edit(reference, _set("finished", value=2.0))
    changed = Store(reference.root)
    assert sorted(provenance_frame(changed, collect(changed))["state"]) == ["claimed", "verified"]
    assert any("is not for the record that is here" in reason for reason in _reasons(changed))


def test_a_second_run_with_other_values_verifies_nothing(plan, reference, tmp_path_factory):
    other = _run(tmp_path_factory.mktemp("other"), plan, finished=9.0, shift=0.02)
    assert all("a value differs by 0.02" in reason for _, reason in verify(other.store, reference, "Maintainer", ""))
    assert read_marks(reference.root) == {}


@pytest.mark.parametrize("option", ["--pack", "--verify"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--by", ""], "--by needs the name of who ran the results"),
        (["--by", "\u674e\u660e"], "one letter a-z or digit"),
        (["--by", "x" * 201], "at most 200 printable characters"),
        (["--by", "Jane\nDoe"], "at most 200 printable characters"),
        (["--by", "me", "--commit", "a\tb"], "--commit a b: write at most 200 printable"),
    ],
)
def test_a_name_or_commit_that_no_pack_can_have_is_one_line(arguments, reason, option, made, reference, capsys):
    assert main(["status", "--results", made[0].results, option, str(reference.root), *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_values_that_were_not_measured_again_are_not_verified(made, plan, reference, tmp_path_factory):
    again = _run(tmp_path_factory.mktemp("again"), plan, finished=9.0)
    for record in list(again.store.tests()):
        *rows, last = record.rows
        again.store.write(record.model_copy(update={"rows": (*rows, {**last, "value": None})}))
    reasons = {reason for _, reason in verify(again.store, reference, "Maintainer", "")}
    assert all(reason.startswith("1 of its values were not measured again") for reason in reasons)
    assert read_marks(reference.root) == {}
    # More values than were claimed are no fault.
    for record in list(again.store.tests()):
        *rows, last = record.rows
        more = [{**last, "metric": "map_at_r", "variant": "later", "value": 0.5}]
        own = next(test for test in reference.tests() if test.unit == record.unit).rows
        again.store.write(record.model_copy(update={"rows": (*own, *more)}))
    assert {reason for _, reason in verify(again.store, reference, "Maintainer", "")} == {""}


@pytest.mark.parametrize("text", ["unit\n1\n", "unit,record\n../x,1\n", "\x00"])
def test_a_table_of_marks_that_is_none_is_named(text, reference):
    (reference.root / VERIFIED).write_text(text)
    assert any("is no table of unit, record, by" in reason for reason in _reasons(reference))
