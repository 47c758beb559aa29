"""Results in the forms of other places, read back by their own readers and checked against their schemas."""

import json
import math
import os
from pathlib import Path

import huggingface_hub
import jsonschema
import pytest
import yaml
from bench.protocols.rows import row
from bench.report.exchange import published, write_every_eval_ever, write_hub
from bench.report.frame import Results
from bench.site import Site
from bench.store.specs import Pinned

from tests import records

DOCUMENT = json.loads((Path(__file__).parents[1] / "golden" / "every_eval_ever.json").read_text())
"""What of Every Eval Ever's schema 0.3.0 bears on these documents; the whole one is at $EVERY_EVAL_EVER_SCHEMA."""


def shown(dataset, method="dul_cls", pinned=None, values=(0.5, 0.7)):
    tests = []
    for seed, value in enumerate(values):
        columns = records.columns(
            dataset=dataset, method=method, seed=seed, pinned=pinned or Pinned(), replicate="study"
        )
        rows = [
            records.map_at_r(value, scorer="cosine"),
            {"split": "test", **row("confidence_auroc", 0.9, scorer="cosine", confidence="norm")},
            {"split": "test_crop", **row("spearman_crop", math.nan, confidence="norm")},
        ]
        tests.append(records.of_test(columns, rows, finished=100.0 + seed))
    return published(Results(tuple(tests)), Site(results="none"))


def test_a_document_of_every_eval_ever_fits_its_schema_and_has_the_values(tmp_path):
    schemas = [DOCUMENT]
    if "EVERY_EVAL_EVER_SCHEMA" in os.environ:
        schemas.append(json.loads(Path(os.environ["EVERY_EVAL_EVER_SCHEMA"]).read_text()))
    kinds = []
    for dataset in ("cub200", "inshop", "mine"):
        (path,) = write_every_eval_ever(shown(dataset), tmp_path)
        document = json.loads(path.read_text())
        for schema in schemas:
            jsonschema.Draft7Validator(schema).validate(document)
        kinds.append(document["evaluation_results"][0]["source_data"]["source_type"])
    assert kinds == ["hf_dataset", "url", "other"]
    assert path.parent == tmp_path / "every_eval_ever" / "mine"
    held = {each["evaluation_result_id"]: each for each in document["evaluation_results"]}
    assert set(held) == {"test/map_at_r", "test/confidence_auroc"}  # what is nan at every seed is left out
    score = held["test/map_at_r"]["score_details"]
    half = 12.706204736432095 * 0.1  # t of one degree of freedom; the standard error is 0.1
    interval = score["uncertainty"]["confidence_interval"]
    assert (score["score"], score["uncertainty"]["num_samples"]) == (pytest.approx(0.6), 2)
    assert (interval["lower"], interval["upper"]) == (pytest.approx(0.6 - half), pytest.approx(0.6 + half))
    assert document["model_info"]["additional_details"]["arxiv"] == "2003.11339"
    assert document["evaluation_timestamp"] == "101"


def test_the_hub_reads_what_is_written_for_it(tmp_path):
    card, entries = write_hub(shown("cub200", values=(0.5,)), tmp_path)
    held = huggingface_hub.ModelCard.load(card).data
    assert {"dul_cls", "arxiv:2003.11339"} <= set(held.tags)
    first = held.eval_results[0]
    assert (first.metric_type, first.metric_value) == ("map_at_r", 0.5)
    assert first.dataset_type == "bentrevett/caltech-ucsd-birds-200-2011"
    found = huggingface_hub.parse_eval_result_entries(yaml.safe_load(entries.read_text()))
    assert [(each.task_id, each.value) for each in found] == [("map_at_r", 0.5), ("confidence_auroc", 0.9)]
    assert "confidence: norm" in found[1].notes


def test_a_part_of_a_release_is_not_given_out_as_the_data_set(tmp_path):
    (card,) = write_hub(shown("cub200", pinned=Pinned(partial="100 of 11788 images")), tmp_path)
    first = huggingface_hub.ModelCard.load(card).data.eval_results[0]
    assert first.dataset_type == "cub200"
    assert "100 of 11788 images" in first.metric_args["pinned"]


def test_two_settings_of_a_method_have_a_place_each_in_any_report(tmp_path):
    one, two = shown("mine", "cosface"), shown("mine", "cosface", Pinned(settings={"method.scale": 3.0}))
    both = write_every_eval_ever(one + two, tmp_path)
    assert len(set(both)) == 2
    assert write_every_eval_ever(two, tmp_path / "again")[0].name == both[1].name
    ids = [json.loads(path.read_text())["model_info"]["id"] for path in both]
    assert len(set(ids)) == 2
