"""Tables on request: intervals from kept embeddings, forms of the papers, copies as Parquet."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from bench.commands import extra_tables
from bench.commands.extra_tables import check_extras, write_extras
from bench.errors import UserError
from bench.methods.distributions.normal import PointMass
from bench.papers.items import every_item
from bench.papers.tables import fill_form
from bench.protocols.statistics import nested_bootstrap
from bench.report import intervals
from bench.report.figures import tested
from bench.report.figures.source import Missing, Source
from bench.report.frame import Results, collect
from bench.report.intervals import interval_document, query_intervals
from bench.report.write import Judged
from bench.site import Site
from bench.store.folder import Store

from tests.engine.test_sharing import Fake, _drive
from tests.report.shown import latex, markdown


@pytest.fixture
def results(tmp_path, monkeypatch):
    _drive(tmp_path, [Fake()], monkeypatch, methods=("cosface", "arcface"), hparams="default", seeds=2)
    return collect(Store(tmp_path))


def test_names_of_extra_tables_are_checked():
    check_extras(["bootstrap", "parquet", "per/table1", "el/table1", "nir/table3"])
    for name in ("per/table99", "el/figure2", "boot"):
        with pytest.raises(UserError, match="unknown extra table"):
            check_extras([name])


def test_a_form_has_the_columns_of_the_paper_and_a_row_for_every_method(results):
    named = every_item()["per/table1"]
    document = fill_form(named, results)
    table = document.numbers
    assert set(table["method"]) == {"cosface", "arcface"}
    assert list(dict.fromkeys(table["column"])) == [column.title for column in named.columns("ndigit_smoke")]
    own = results.frame[(results.frame["method"] == "cosface") & (results.frame["metric"] == "map_at_r")]["value"]
    shown = table[(table["method"] == "cosface") & (table["column"] == "MAP@R")].iloc[0]
    assert shown["mean"] == pytest.approx(100 * own.mean())
    assert shown["seeds"] == 2
    other = table[(table["method"] == "cosface") & (table["column"] != "MAP@R")]
    assert other["mean"].isna().all()
    assert "| cosface |" in markdown(document)
    assert " | \\- |" in markdown(document)
    assert "worth it before the gallery" in latex(document)


def _model(noise):
    """A fake for :func:`read_model`: four classes of three images, with noise around their means."""

    def read(store, record, label, index):
        generator = torch.Generator().manual_seed(record.columns.seed)
        labels = torch.arange(12) % 4
        means = torch.nn.functional.one_hot(labels).float() + noise * torch.randn(12, 4, generator=generator)
        everything = torch.arange(12)
        kept = {"norm": torch.rand(12, generator=generator)}
        return tested.TestedModel(record, label, index, (), labels, PointMass(means), kept, everything, everything)

    return read


def test_intervals_need_embeddings_that_give_the_recorded_value(results, monkeypatch):
    monkeypatch.setattr(intervals, "read_model", _model(0.5))
    source = Source(Site(results="."), results)
    found = query_intervals(source)
    assert {each.reason for each in found} == {"seed 0: the kept embeddings do not give the recorded value"}
    assert all(each.interval is None for each in found)
    assert "cosface: seed 0" in markdown(interval_document(found, "bootstrap"))


def test_intervals_are_the_nested_bootstrap_of_the_queries(results, monkeypatch):
    read = _model(0.5)
    values = {}
    for seed in (0, 1):
        model = read(None, next(t for t in results.tests if t.columns.seed == seed), "", 0)
        ranking = intervals.rank(intervals.DistributionScorer("cosine", model.distribution), model.labels, depth=2)
        values[seed] = intervals.per_query(ranking)
    monkeypatch.setattr(intervals, "read_model", read)
    frame = results.frame
    lines = []
    for metric in ("recall_at_1", "map_at_r"):
        part = frame[frame["metric"] == "map_at_r"].assign(metric=metric, scorer="cosine")
        part["value"] = [float(values[seed][metric].double().nanmean()) for seed in part["seed"]]
        lines.append(part)
    changed = Results(results.tests, 0, pd.concat(lines, ignore_index=True), results.roles)
    found = query_intervals(Source(Site(results="."), changed))
    assert [each.reason.partition(":")[0] for each in found] == ["", "", "seed 0", "seed 0"] * 2
    table = np.stack([values[seed]["map_at_r"].double().numpy() for seed in (0, 1)])
    expected = nested_bootstrap(table, np.arange(12) % 4)
    own = next(each.interval for each in found if each.metric == "map_at_r")
    assert (own.mean, own.seeds, own.classes, own.queries) == (expected.mean, 2, 4, 12)
    assert (own.ci_low, own.ci_high) == (max(expected.ci_low, 0.0), min(expected.ci_high, 1.0))
    assert "Not simulated with so few classes." in markdown(interval_document(found, "bootstrap"))


def test_one_seed_or_lost_embeddings_are_a_gap(results, monkeypatch):
    def lost(store, record, label, index):
        raise Missing("no embeddings are kept")

    monkeypatch.setattr(intervals, "read_model", lost)
    found = query_intervals(Source(Site(results="."), results))
    assert {each.reason for each in found} == {"no embeddings are kept"}
    one = Results.of(tuple(test for test in results.tests if test.columns.seed == 0))
    assert {each.reason for each in query_intervals(Source(Site(results="."), one))} == {"one seed"}


def test_parquet_has_the_tables_and_equal_records_give_equal_bytes(results, tmp_path):
    pytest.importorskip("pyarrow")
    csv = tmp_path / "scorers.csv"
    csv.write_text("a,b\n1,x\n")
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        judged = Judged(Store(tmp_path), results)
        write_extras(["parquet", "per/table1", "side_by_side"], Site(results=str(tmp_path)), judged, out, [csv])
    names = {path.name for path in outs[0].iterdir()}
    assert {"metrics.parquet", "scorers.parquet", "form_per_table1.parquet", "form_per_table1.tex"} <= names
    assert "ArcFace" in (outs[0] / "side_by_side.tex").read_text()
    assert all((outs[1] / name).read_bytes() == (outs[0] / name).read_bytes() for name in names)
    assert pd.read_parquet(outs[0] / "metrics.parquet")["value"].tolist() == results.frame["value"].tolist()


def test_parquet_without_pyarrow_is_said_before_anything_is_written(monkeypatch):
    def absent():
        raise UserError("Parquet needs pyarrow")

    monkeypatch.setattr(extra_tables, "check_pyarrow", absent)
    with pytest.raises(UserError, match="pyarrow"):
        check_extras(["parquet"])
