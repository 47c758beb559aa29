"""Tables on request: intervals from kept embeddings, forms of the papers, copies as Parquet."""

from __future__ import annotations

import pandas as pd
import pytest
from bench.commands.extra_tables import check_extras, write_extras
from bench.errors import UserError
from bench.papers.items import every_item
from bench.papers.tables import fill_form
from bench.report.frame import collect
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
    check_extras(["parquet", "per/table1", "el/table1", "nir/table3"])
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
    assert "cosface & " in latex(document)


def test_parquet_has_the_tables_and_equal_records_give_equal_bytes(results, tmp_path):
    pytest.importorskip("pyarrow")
    csv = tmp_path / "scorers.csv"
    csv.write_text("a,b\n1,x\n")
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        judged = Judged(Store(tmp_path), results)
        write_extras(["parquet", "per/table1"], Site(results=str(tmp_path)), judged, out, [csv])
    names = {path.name for path in outs[0].iterdir()}
    assert {"metrics.parquet", "scorers.parquet", "form_per_table1.parquet", "form_per_table1.tex"} <= names
    assert all((outs[1] / name).read_bytes() == (outs[0] / name).read_bytes() for name in names)
    assert pd.read_parquet(outs[0] / "metrics.parquet")["value"].tolist() == results.frame["value"].tolist()
