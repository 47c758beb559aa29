"""Heads on frozen features against the network as it is: verdicts, marks, and first lines of page and terminal."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from bench.protocols.embeddings import row
from bench.report.comparison import MARK, comparison_document
from bench.report.frame import Results, provenance
from bench.report.terminal import print_comparison
from bench.report.write import Judged
from bench.store.folder import Store
from bench.store.specs import Pinned
from scipy.stats import ttest_rel

from .page_records import Made
from .shown import judged as judged_of
from .shown import printed

FROZEN = Pinned(frozen_backbone=True)


def _made(name, *values, **changes):
    return Made(name, values, pinned=FROZEN, **changes)


RAW = _made("raw", 0.30, 0.30, 0.30, reference=True)
LOSES = _made("loses", 0.25, 0.251, 0.249)
UNSURE = _made("unsure", 0.29, 0.33, 0.28)
WINS = _made("wins", 0.35, 0.352, 0.351)
SAME = _made("same", 0.3001, 0.3, 0.2999)
EVERY = (RAW, LOSES, UNSURE, WINS, SAME)
SENTENCE = (
    "MAP@R of heads against raw, the network as it is (30.00): better: wins; worse: loses; equivalent: same;"
    " undecided: unsure."
)


def _rows(tmp_path, *made):
    return {row.contender.label: row for part in judged_of(tmp_path, *made).comparison for row in part.rows}


def test_the_verdicts_are_paired_tests_adjusted_over_the_heads(tmp_path):
    rows = _rows(tmp_path, *EVERY)
    found = {name: each.verdict for name, row in rows.items() for each in row.against}
    assert found == {"loses": "worse", "unsure": "undecided", "wins": "better", "same": "equivalent"}
    assert not rows["raw"].against
    p = {each.name: ttest_rel(each.map_at_r, RAW.map_at_r).pvalue for each in EVERY[1:]}
    smallest = min(p, key=p.get)
    assert rows[smallest].against[0].p_holm == pytest.approx(4 * p[smallest], rel=1e-6)
    assert rows["loses"].against[0].text == "-5.0 [-5.2, -4.8]"


def test_heads_that_are_not_better_are_marked_and_named_first_wherever_they_are_shown(tmp_path):
    judged = judged_of(tmp_path, *EVERY)
    marked = {name for name, row in _rows(tmp_path, *EVERY).items() if row.marked.endswith(f" {MARK}")}
    assert marked == {"loses", "unsure", "same"}
    shown = printed(print_comparison, judged.comparison, width=100)
    first, *lines = shown.strip().splitlines()
    assert first.startswith("d: mean ± SD")
    assert " ".join(" ".join(lines).split()).startswith(f"frozen backbone {MARK} {SENTENCE}")
    assert f"loses {MARK}" in shown
    (table,) = comparison_document(judged.comparison).tables
    assert table.notes[0] == f"{MARK} {SENTENCE}"


@pytest.mark.parametrize(
    "made", [(LOSES, WINS), (RAW, WINS), (replace(RAW, reference=False), LOSES), (replace(RAW, pinned=Pinned()), LOSES)]
)
def test_nothing_is_said_without_a_reference_or_if_all_heads_are_better(tmp_path, made):
    (part,) = judged_of(tmp_path, *made).comparison
    assert not any(row.marked.endswith(MARK) for row in part.rows)
    assert not part.against


def test_one_seed_decides_nothing(tmp_path):
    (against,) = _rows(tmp_path, _made("raw", 0.3, reference=True), _made("a", 0.2))["a"].against
    assert (against.verdict, against.text) == ("one seed", "-10.0")


def test_each_metric_of_retrieval_has_a_sentence_if_some_head_is_not_better(tmp_path):
    levels = {"raw": (0.5, 0.5, 0.5), "wins": (0.4, 0.401, 0.402)}
    records = []
    for made in (RAW, WINS):
        for record, level in zip(made.records(), levels[made.name]):
            extra = {"split": "test", **row("recall_at_1", level, scorer="cosine")}
            records.append(record.model_copy(update={"rows": (*record.rows, extra)}))
    judged = Judged(Store(tmp_path), Results(tuple(records)))
    (part,) = judged.comparison
    sentence = "R@1 of heads against raw, the network as it is (50.00): worse: wins."
    assert part.against == [f"{MARK} {sentence}"]  # its MAP@R is better


def test_replicates_of_different_code_are_said_and_their_codes_are_in_the_sources(tmp_path):
    records = []
    for record in _made("mine", 0.5, 0.6, models=1).records():
        spec = record.spec.model_copy(update={"train": (f"of seed {record.columns.seed}",)})
        records.append(record.model_copy(update={"spec": spec}))

    def trained(cell, unit):
        return SimpleNamespace(unit=unit, spec=SimpleNamespace(versions={"method": 1 + int(unit[-1])}))

    judged = Judged(SimpleNamespace(root=tmp_path, trained=trained), Results(tuple(records)))
    assert judged.mixed == ["mine on d: trained by 2 codes: method 2; version 1."]
    assert provenance(judged.results, judged.codes)["trained_by"].tolist() == ["version 1", "method 2"]
    assert Judged(judged.store, Results((records[0],))).mixed == []
