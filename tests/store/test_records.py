"""Records, specifications and pinned values read themselves back; folders that lost a part are recognised."""

import json
from dataclasses import fields

import pandas as pd
import pytest
from bench.errors import UserError
from bench.store.folder import Store
from bench.store.records import SCHEMA_VERSION, DamagedRecord, TrialRecord, checked_content
from bench.store.specs import Pinned, StudySpec, TestSpec, TrainSpec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.plans import planned


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    asked = {"hparams": "tuned", "corruptions": ("all",)}
    return planned(tmp_path_factory.mktemp("results"), "pfe", "dul_cls", "nir", **asked)[0]


def _trial(**values):
    defaults = {"study": "0" * 16, "number": 3, "params": {"optim.lr": 1.0, "method.samples": 5}, "units": ("a", "b")}
    return TrialRecord(**{**defaults, "state": "complete", "value": 0.5, **values})


def test_a_specification_keeps_its_id_on_the_way_through_json(plans):
    for plan in plans:
        bases = plan.base and plan.base.train_specs(plan.base.defaults(), 0, None)
        trained = plan.train_specs(plan.defaults(), 0, bases)
        specs = [*trained.values(), *plan.test_specs(trained), plan.study_spec(0, bases)]
        assert len({spec.id for spec in specs}) == len(specs)
        for spec in specs:
            again = type(spec).model_validate_json(spec.model_dump_json())
            assert again == spec
            assert again.id == spec.id


def test_ids_of_specifications_are_of_their_type_and_of_every_value(plans):
    template = plans[0].template
    assert isinstance(template, TrainSpec)
    changed = {
        "versions": {"engine": 2},
        "replicate": 1,
        "fold": 1,
        "params": {**template.params, "scale": 17.0},
        "dim": template.dim + 1,
        "partial": "half of it",
    }
    ids = {template.replaced(**{key: value}).id for key, value in changed.items()}
    assert len(ids | {template.id}) == len(changed) + 1
    assert template.replaced().id == template.id


def test_whole_numbers_and_their_floats_are_one_value(plans):
    template = plans[0].template
    optim = {name: getattr(template.optim, name) for name in template.optim.__dataclass_fields__}
    assert template.replaced(optim={**optim, "lr": 1}).id == template.replaced(optim={**optim, "lr": 1.0}).id


@pytest.mark.parametrize("spec", [TrainSpec, TestSpec, StudySpec])
def test_a_specification_refuses_what_it_does_not_know(spec, plans):
    plan = next(plan for plan in plans if plan.base is None)
    trained = plan.train_specs(plan.defaults(), 0, None)
    made = {TrainSpec: trained[0], TestSpec: plan.test_specs(trained)[0], StudySpec: plan.study_spec(0, None)}[spec]
    with pytest.raises(ValueError, match="surprise"):
        spec.model_validate({**made.model_dump(), "surprise": 1})


def test_a_record_reads_itself():
    record = _trial(val_map_at_r=0.25, best_epochs=(3,))
    assert TrialRecord.from_json(record.to_json()) == record
    stored = json.loads(record.to_json())
    assert stored["schema"] == SCHEMA_VERSION == 3
    assert stored["params"] == {"optim.lr": 1.0, "method.samples": 5}


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "", "not valid JSON"),
        (lambda text: "[]", "not a JSON object"),
        (lambda text: "{}", "not a trial record"),
        (lambda text: text.replace('"number": 3', '"number": 4'), "checksum"),
        (lambda text: text.replace("0.5", "0.6"), "checksum"),
        (lambda text: text.replace('"schema": 3', '"schema": 1'), "schema 1"),
        (lambda text: text.replace('"kind": "trial"', '"kind": "train"'), "a train record"),
    ],
)
def test_a_record_that_was_altered_is_noticed(edit, reason):
    with pytest.raises(DamagedRecord, match=reason):
        TrialRecord.from_json(edit(_trial().to_json().decode()))


@pytest.mark.parametrize(
    "number", ["NaN", "1e400", "9" * 5000, '"\\ud800"', "[" * 5000, "[" * 100_000, '0.5, "value": 0.5']
)
def test_what_no_record_can_contain_is_damage(number):
    """Infinite numbers were a traceback."""
    with pytest.raises(DamagedRecord) as caught:
        TrialRecord.from_json(_trial().to_json().decode().replace("0.5", number))
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("value", [1e-07, 1e16, 5e-324, 0.1, -0.0, 1.5, 1e-05, -1e-05, 9.9999e-05, 1e-10, 1.25e-06])
def test_every_float_has_one_checksum(value):
    record = _trial(value=value)
    assert TrialRecord.from_json(record.to_json()) == record


def test_the_order_of_keys_in_a_file_does_not_count():
    held = json.loads(_trial().to_json())
    assert TrialRecord.from_json(json.dumps(dict(reversed(held.items())))) == _trial()


@pytest.mark.parametrize("place", ['{"a": 1, "a": 1}', '[{"a": 1, "a": 1}]', '{"b": [[{"a": 1, "a": 1}]]}'])
def test_a_repeated_key_is_damage_wherever_it_is(place):
    with pytest.raises(DamagedRecord, match="'a' is there more than once"):
        checked_content(f'{{"kind": "trial", "schema": 3, "deep": {place}}}', "trial")


def test_every_single_bit_of_a_record_counts():
    """Flipping any one bit of the file gives an error, or the same content (white space that became other)."""
    record = _trial()
    data = record.to_json()
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                assert TrialRecord.from_json(bytes(flipped)) == record
            except DamagedRecord:
                continue


def test_a_value_that_json_does_not_have_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        _trial(value=float("nan")).to_json()


TEXTS = [
    (Pinned(), ""),
    (Pinned(settings={"optim.epochs": 2, "method.scale": "8"}), "method.scale=8; optim.epochs=2"),
    (
        Pinned(settings={"data.images_per_class": 3, "optim.lr": 0.01, "method.margin": "0.30"}),
        "method.margin=0.30; optim.lr=0.01; data.images_per_class=3",
    ),
    # Batches come before the settings of photographs, each sorted by name.
    (
        Pinned(settings={"augment.flip": True, "data.crop": 224, "data.pooling": "avg", "optim.milestones": [25, 50]}),
        "optim.milestones=[25, 50]; data.pooling=avg; data.crop=224; augment.flip=True",
    ),
    (Pinned(folds=4, frozen_backbone=True, select_by="cosine"), "folds=4; frozen backbone; select_by=cosine"),
    # What was typed stands with the settings, what a form of public code implies does not.
    (Pinned(settings={"data.calibrate": False}, select_by="mls"), "data.calibrate=False; select_by=mls"),
    (Pinned(uncalibrated=True, select_by="mls"), "select_by=mls; data.calibrate=False"),
    (Pinned(corruptions=("blur:0.2-1.0", "noise:0.6")), "corruptions=blur:0.2-1.0,noise:0.6"),
    (Pinned(sampler="tpe", tune_for="both"), "sampler=tpe; tune_for=both"),
    (Pinned(stage="scf", differences=("4 folds", "optim.lr")), "stage 1 of scf; not as published: 4 folds, optim.lr"),
    (
        Pinned(partial="5 of 9 images, 2 of 3 classes", weights="0a1b2c3d"),
        "partial release: 5 of 9 images, 2 of 3 classes; starting weights sha256:0a1b2c3d",
    ),
    (Pinned(pooling="own", base=("method.a=1", "released")), "own pooling; base: method.a=1, released"),
]
ADAPTER = TypeAdapter(Pinned)


@pytest.mark.parametrize(("pinned", "text"), TEXTS)
def test_each_fact_has_its_text_and_its_place(pinned, text):
    assert (str(pinned), bool(pinned)) == (text, bool(text))


names = st.sampled_from(["method.margin", "optim.lr", "data.pooling", "data.size", "augment.x"])
values = st.text(max_size=3) | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
facts = st.builds(
    Pinned,
    folds=st.none() | st.integers(1, 9),
    settings=st.dictionaries(names, values | st.lists(st.integers(), max_size=2), max_size=3),
    frozen_backbone=st.booleans(),
    select_by=st.none() | st.just("mls"),
    uncalibrated=st.booleans(),
    corruptions=st.sampled_from([(), ("blur:0.1", "noise:0.6")]),
    differences=st.sampled_from([(), ("optim.lr",), ("4 folds", "a partial release")]),
    partial=st.text(max_size=3),
    pooling=st.sampled_from(["", "own"]),
)


@given(facts)
def test_a_record_gives_it_back(pinned):
    again = ADAPTER.validate_json(ADAPTER.dump_json(pinned))
    assert (again, again.text, hash(again)) == (pinned, pinned.text, hash(pinned))
    # Ids of runs without a pooling or another base are those of records that had no place for it.
    unsaid = {name for name in ("pooling", "base") if not getattr(pinned, name)}
    assert set(ADAPTER.dump_python(pinned)) == {each.name for each in fields(Pinned)} - unsaid


@pytest.mark.slow
@given(st.lists(facts, min_size=1))
def test_tables_are_sorted_by_its_text(found):
    assert [each.text for each in sorted(found)] == sorted(each.text for each in found)
    frame = pd.DataFrame({"pinned": found, "seed": range(len(found))})
    assert [each.text for each in frame.sort_values(["pinned", "seed"])["pinned"]] == sorted(map(str, found))
    assert [key.text for key, _ in frame.groupby("pinned", sort=True)] == sorted({each.text for each in found})


@given(facts)
def test_facts_can_be_taken_away(pinned):
    assert not pinned.without(set(pinned.values)).values
    assert pinned.without({"method.none"}) == pinned


@pytest.mark.parametrize("content", [{"fold": 2}, {"folds": "two"}, {"settings": ["a"]}, []])
def test_other_content_is_refused(content):
    with pytest.raises(ValueError, match="validation error"):
        ADAPTER.validate_python(content)


UNIT = "reality_check/ndigit_smoke/cosface/train-0123456789abcdef"


def _folder(root, *files):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return Store(root)


@pytest.mark.parametrize(
    "files",
    [
        (),
        (".DS_Store", "store.json"),
        (".drivers/one",),
        (".drivers/one", "store.json"),
        (".drivers/one", f"{UNIT}/checkpoint.pt"),
        (".drivers/one", f"{UNIT}/record.json", "store.json", "report/comparison.csv", "metrics.csv"),
        ("reproduce/el/figure2/densities.svg",),  # drawn without records
    ],
)
def test_a_run_that_lost_its_marker_before_its_first_record_begins_anew(files, tmp_path):
    """Every repeat ended with "is not empty and not a results folder", or with "store.json is damaged"."""
    store = _folder(tmp_path, *files)
    store.open("reality_check", 1, create=True)
    store.mark("reality_check", 1)
    store.open("reality_check", 1, create=False)
    assert all((tmp_path / name).exists() for name in files)


@pytest.mark.parametrize(
    "files",
    [
        ("notes.txt",),
        ("metrics.csv",),  # of another program, which ours would replace
        ("report/index.html", "metrics.csv"),
        ("store.json", "src/main.py"),
        ("a/b/c/train-new/record.json",),
    ],
)
def test_a_folder_of_something_else_is_left_alone(files, tmp_path):
    with pytest.raises(UserError, match=r"name another|move the folder"):
        _folder(tmp_path, *files).open("reality_check", 1, create=True)
