"""Conversion of results of schema 2: the values as they were, and the same command finds everything finished.

The folder ``schema_2`` was made by the last commit of schema 2; of its tests, two metrics were kept.
"""

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bench import versions
from bench.cli import main
from bench.engine.tuning import choose
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.protocols._base import GROUPS
from bench.protocols.reality_check import PRESETS
from bench.report.frame import collect
from bench.seeds import content_id
from bench.site import Site
from bench.store.check import damages, inconsistencies
from bench.store.files import unpacked
from bench.store.folder import Store
from bench.store.records import ROW_KEYS
from bench.store.specs import TUNING, Pinned
from bench.store.upgrade import pinned_of, upgrade

FORMER = Path(__file__).parent / "schema_2"
RUNS = (
    {"methods": ("cosface", "pfe", "deep_ensemble"), "seeds": 2, "trials": 2},
    {"methods": ("dul_cls", "hib"), "seeds": 1, "hparams": "default", "preset": "per", "fidelity": "released"},
    {"methods": ("cosface",), "seeds": 1, "trials": 1, "corruptions": ("crop", "blur"), "scorers": ("all",),
     "tuning": {"tune_for": "both"}},
)  # fmt: skip
"""The commands that made the folder; two runs with frozen sources of randomness are in it, too."""


def _lines():
    for path in sorted(FORMER.rglob("*.records.xz")):
        for line in unpacked(path).splitlines():
            place, _, text = line.split(b"\t")
            yield path, place.decode(), text


@pytest.fixture
def packed(tmp_path):
    return shutil.copytree(FORMER, tmp_path / "packed")


@pytest.fixture
def loose(tmp_path):
    """The same results, each record in a file of its own, with array files."""
    root = tmp_path / "loose"
    for path, place, text in _lines():
        file = root / path.parent.relative_to(FORMER) / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
        for name in json.loads(text).get("files", ()):
            file.with_name(name).write_text(f"{name} of {place}")
    shutil.copy(FORMER / "store.json", root)
    return root


def _edited(path, **changes):
    """Write a record with other fields and a checksum that fits."""
    held = json.loads(path.read_bytes()) | changes
    del held["checksum"]
    path.write_text(json.dumps(held | {"checksum": content_id(held)}))


def _files(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_relative_to(root / ".schema-2")
    }


def test_values_stay_and_every_record_fits_its_id(packed, loose):
    rows = []
    for _, _, text in _lines():
        held = json.loads(text)
        names = [*map(str, held.get("columns", {}).values())]
        rows += [(*names, *(row[name] for name in ROW_KEYS), row["value"]) for row in held.get("rows", ())]
    for root in (packed, loose):
        assert upgrade(root) == (sum(1 for _ in _lines()), [])
        columns = sorted(next(Store(root).tests()).columns.model_dump())
        frame = collect(Store(root)).frame.astype(dict.fromkeys(columns, str))
        found = frame[[*columns, *ROW_KEYS, "value"]].astype(object).where(frame.notna(), None)
        assert sorted(map(repr, found.itertuples(index=False, name=None))) == sorted(map(repr, rows))
    assert damages(packed) == inconsistencies(Store(packed)) == []
    # The array files of the fixture are not those of a network.
    assert {damage.reason for damage in damages(loose)} == {"its SHA-256 is not that of its record"}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: ",".join(run["methods"]))
def test_the_same_command_finds_everything_finished(packed, monkeypatch, run):
    upgrade(packed)
    # What the present code may have changed since is not the question.
    monkeypatch.setattr(versions, "version", lambda entry: 1)
    former = tuple(name for name in GROUPS if name not in ("open_set", "confidence_correlation"))
    for name, preset in PRESETS.items():
        monkeypatch.setitem(PRESETS, name, replace(preset, tests=replace(preset.tests, groups=former)))
    store = Store(packed)
    experiment = Experiment(datasets=("ndigit_smoke",), set=("optim.epochs=1",), **run)
    plans = {plan.cell.method: plan for plan in build_plans(experiment, Site(results=str(packed))).plans}
    units = {path.name for kind in ("train", "test", "study") for path in store.units(kind)}
    of_study = {study.unit: trials for study, trials in store.studies()}
    trained, tried = {}, {}
    for name, plan in plans.items():
        bases = trained.get(plan.base.cell.method) if plan.base else None
        if plan.ensemble:
            (spec,) = plan.test_specs(*bases)
            assert f"test-{spec.id}" in units
            continue
        point = plan.defaults()
        if plan.trials:
            study = plan.study_spec(tried[plan.base.cell.method] if bases else None)
            trials = of_study[study.id]
            assert len(trials) >= plan.trials
            assert {f"train-{unit}" for trial in trials for unit in trial.units} <= units
            point = choose(study.tune_for, trials[: plan.trials]).params
            tried[name] = plan.train_specs(point, TUNING, None)
        trained[name] = [plan.train_specs(point, seed, bases[seed] if bases else None) for seed in range(plan.seeds)]
        for specs in trained[name]:
            if run["seeds"] == plan.seeds and plan.requested:
                assert {f"train-{spec.id}" for spec in specs.values()} <= units
                assert {f"test-{spec.id}" for spec in plan.test_specs(specs)} <= units


def test_a_conversion_that_was_killed_goes_on(loose, tmp_path, monkeypatch):
    whole = shutil.copytree(loose, tmp_path / "whole")
    upgrade(whole)
    replace, left = Path.replace, 0

    def dying(path, target):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", dying)
    written = sum(1 for _ in _lines()) + 1
    for steps in (3, written, 1, 1, 0):  # in the middle of the records, and at each step of the exchange
        left = steps
        with pytest.raises(KeyboardInterrupt):
            upgrade(loose)
    monkeypatch.undo()
    upgrade(loose)
    assert _files(loose) == _files(whole)


def test_units_with_other_values_by_other_code_stay_apart(loose):
    path = next(loose.glob("*/*/dul_cls/train-*/record.json"))
    held = json.loads(path.read_bytes())
    spec = held["spec"] | {"code": "0" * 16}
    unit = content_id(["TrainSpec", spec])
    for number, history in enumerate((held["history"], held["history"] * 2)):
        other = path.parents[1] / f"train-{unit[:-1]}{number}" / "record.json"
        other.parent.mkdir()
        shutil.copy(path, other)
        _edited(other, spec=spec, unit=other.parent.name[6:], history=history)
    upgrade(loose)
    found = [Store(loose).trained(("reality_check", "ndigit_smoke", "dul_cls"), folder.name[6:])
             for folder in loose.glob("*/*/dul_cls/train-*")]  # fmt: skip
    # The one that a test used keeps version 1, the one with equal values is the same, the other names its code.
    assert sorted(str(record.spec.versions["engine"]) for record in found) == ["1", f"code.{'0' * 16}"]


def test_what_a_plug_in_made_names_the_code_that_made_it(loose):
    path = next(loose.glob("*/*/dul_cls/train-*/record.json"))
    held = json.loads(path.read_bytes())
    _edited(path, spec=held["spec"] | {"method": "mine"})
    upgrade(loose)
    (record,) = (Store(loose).trained(("reality_check", "ndigit_smoke", "dul_cls"), folder.name[6:])
                 for folder in loose.glob("*/*/dul_cls/train-*"))  # fmt: skip
    assert record.spec.versions["method"] == f"file.{held['spec']['code']}"
    assert record.spec.versions["dataset"] == 1


def test_damaged_records_are_named(packed):
    torn = packed / "reality_check/ndigit_smoke/hib/train-0123456789abcdef/record.json"
    torn.parent.mkdir()
    torn.write_text("{")
    pack = next(packed.rglob("*pfe/*.records.xz"))
    pack.write_bytes(lzma.compress(b"../../x\t{}\t{}\n"))
    _, found = upgrade(packed)
    assert [damage.path for damage in found] == [torn, pack]
    assert found[0].reason.startswith("not valid JSON")
    assert "it has a line that is not that of a record" in found[1].reason


def test_packed_records_are_in_an_archive_for_each_data_set(packed):
    upgrade(packed)
    assert [path.name for path in packed.iterdir() if path.is_file()] == ["ndigit_smoke.tar.xz", "store.json"]
    assert all(record.environment.processor for record in Store(packed).tests())


def test_every_other_command_says_what_to_type(packed, capsys):
    assert main(["report", "--results", str(packed)]) == 2
    assert capsys.readouterr().err == (
        f"bench: {packed} has results of schema 2, of an earlier bench; `bench status --upgrade --results {packed}`"
        " converts them\n"
    )
    assert main(["status", "--upgrade", "--results", str(packed)]) == 0
    said = capsys.readouterr()
    assert "records converted; `bench report` makes its tables anew" in said.err
    assert "pfe                  2 trials" in said.out
    assert main(["status", "--upgrade", "--results", str(packed)]) == 0
    assert "has results of the present schema already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "folds=5; method.margin=0.3; optim.epochs=1; optim.milestones=[2, 3]; data.pooling=avg; data.fit=squash",
        "method.kind=free; data.calibrate=False",
        "data.calibrate=False; data.resize=64; augment.flip=0.5; frozen backbone; select_by=l2; corruptions=crop,blur",
        "optim.lr=0.1; data.calibrate=False; sampler=tpe; tune_for=both; frozen=order (tuned anew)",
        "stage 1 of scf; not as published: epochs 3 (30), batches; partial release: 8144 of 16185 images, 196 of 196"
        " classes; weights=e25f0cd8; frozen=nothing",
    ],
)
def test_the_text_of_fixed_settings_is_read_once_and_for_all(text):
    assert str(Pinned(**pinned_of(text))) == text.replace("weights=", "starting weights sha256:")
