"""Results in the forms of the Hugging Face Hub, read back by its own readers."""

import math

import huggingface_hub
import yaml
from bench.protocols.rows import row
from bench.report.exchange import published, write_hub
from bench.report.frame import Results
from bench.site import Site
from bench.store.specs import Pinned

from tests import records


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
    both = write_hub(one + two, tmp_path)
    assert len(set(both)) == 2
    assert write_hub(two, tmp_path / "again")[0].parent.name == both[1].parent.name
