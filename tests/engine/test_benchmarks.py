"""The table of costs: every row runs at its smallest size, and both sides compute the same."""

import pickle

from .conftest import loaded_tool


def test_every_row_of_the_table_of_costs_runs_and_both_sides_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))  # rows set it
    with loaded_tool("all") as costs:
        for row in costs.ROWS:
            ours, theirs = (side(*row.data(*row.sizes[0])) for side in (row.ours, row.theirs))
            assert row.same(ours, theirs, *row.data(*row.sizes[0])), row.name
            assert len(row.sizes) == len(costs.SIZES)
        row = next(row for row in costs.ROWS if row.name == "AUROC")
        costs.measure(row, "theirs", 0, tmp_path / "out")
        seconds, mebibytes, area, kernels = pickle.loads((tmp_path / "out").read_bytes())
        assert seconds >= 0
        assert mebibytes >= 0
        assert 0.5 < area < 1
        assert kernels["torch"]
        assert costs.HEAD in costs.PAGE.read_text()
