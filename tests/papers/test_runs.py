"""Tables and figures of the papers from end to end on a small embedded set."""

import json

import pandas as pd
import pytest
from bench.datasets.ndigit import NDigitSmoke
from bench.papers.items import every_item

from tests.engine.conftest import Inside
from tests.in_process import bring_workers_in, forget_determinism

QUICK = ("--dataset", "ndigit_smoke", "--seeds", "1", "--set", "optim.epochs=1", "--results", "runs", "--workers", "1")
DRAWINGS = sorted(name for name, named in every_item().items() if named.item.kind == "drawing")
RUN = sorted(name for name, named in every_item().items() if named.item.kind != "drawing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture
def shared(folder, monkeypatch, capsys):
    """The command line in a folder that all tests of this file have in common: units are trained once."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(NDigitSmoke, "classes", 100)  # of 300: scores of all pairs took most of the time
    bring_workers_in(monkeypatch, figures=False)
    yield Inside(folder, capsys)
    forget_determinism()


def _table(shared, name):
    return pd.read_csv(shared.cwd / "runs" / "reproduce" / name / "ndigit_smoke.csv")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_table_is_run_and_written(shared, name):
    done = shared("reproduce", name, *QUICK)
    named = every_item()[name]
    assert "failed" not in done.stderr
    frame = _table(shared, name)
    runs = {row.title for row in named.rows if row.method}
    left_out = [line for line in done.stdout.splitlines() if line.startswith("* left out")]
    assert all("the same run as" in line for line in left_out)
    assert len(set(frame["row"]) & runs) == len(runs) - len(left_out)
    assert frame["published_mean"].isna().all()
    assert frame["ours_mean"].notna().all()
    assert all("no value was published for ndigit_smoke" in text for text in frame["differs"])
    assert "no value was published for ndigit_smoke" in done.stdout
    assert f"{name} on ndigit_smoke: differs from the paper: " in done.stderr
    folder = shared.cwd / "runs" / "reproduce" / name
    for suffix in (".md", ".tex"):
        assert "differs from the paper" in (folder / f"ndigit_smoke{suffix}").read_text()
    if named.item.figure:
        assert list(folder.glob("*.svg"))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_without_data_is_drawn(shared, name):
    shared("reproduce", name, "--results", "runs")
    assert list((shared.cwd / "runs" / "reproduce" / name).glob("*.svg"))


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_writes_the_same(shared):
    first = shared("reproduce", "nir/table3", *QUICK)
    before = _table(shared, "nir/table3")
    again = shared("reproduce", "nir/table3", *QUICK, "--json")
    assert "0 trainings done, 2 already done" in again.stderr
    assert _table(shared, "nir/table3").equals(before)
    assert "2 already done" in first.stderr or "2 trainings done" in first.stderr
    lines = json.loads(again.stdout)
    assert [line["ours_mean"] for line in lines] == pytest.approx(before["ours_mean"].tolist())
    # The numbers are those of the tidy table.
    tidy = pd.read_csv(shared.cwd / "runs" / "metrics.csv", keep_default_na=False)
    chosen = tidy[(tidy["metric"] == "spectral_decay") & (tidy["method"] == "proxy_anchor")]
    ours = before[(before["row"] == "ProxyAnchor") & (before["column"] == "spectral decay")]["ours_mean"]
    assert ours.iloc[0] == pytest.approx(float(chosen["value"].iloc[0]))
