"""The text of what was pinned is the one that tables have always had, and nothing else tells two runs apart."""

from dataclasses import fields

import pandas as pd
import pytest
from bench.store.specs import Pinned
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

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
    (Pinned(pooling="own", weights="0a1b2c3d"), "own pooling; starting weights sha256:0a1b2c3d"),
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
    # Ids of runs without a pooling are those of records that had no place for it.
    unsaid = set() if pinned.pooling else {"pooling"}
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
