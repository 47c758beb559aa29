"""Plans of every table and figure: on tiny copies of the official layouts and on embedded sets."""

from dataclasses import replace

import pytest
from bench.cli import main
from bench.papers.items import every_item, find_item
from bench.papers.run import batches_of, plan_item, what_differs
from bench.papers.tables import build_table
from bench.report.render import files_of
from bench.site import Site

EMBEDDED = {}
TINY = {"set": ("data.classes_per_batch=2",)}
RUN = sorted(name for name, named in every_item().items() if named.item.kind != "drawing")


def _site(tmp_path, **kwargs):
    return Site(results=str(tmp_path / "results"), **kwargs)


@pytest.mark.slow
def test_every_row_is_planned_on_the_papers_data(layouts, tmp_path):
    """Tiny copies of the official layouts, with published settings where there are some."""
    fallbacks = {}
    sites = {name: _site(tmp_path, data_root=str(root), weights="none") for name, root in layouts.items()}
    for name in RUN:
        named = find_item(name)
        for dataset in named.item.datasets:
            planned = plan_item(named, dataset, TINY, sites[dataset])
            assert not planned.left_out, (name, dataset, planned.left_out)
            fallbacks[name, dataset] = {row.row.title for row in planned.rows if row.fallback}
            for row in planned.rows:
                template = row.plan.template
                assert (template.backbone, template.dim) == named.network(row.row)
                assert row.plan.hparams == ("default" if row.fallback else "published")
                assert row.plan.seeds == 5
            assert "random starting weights" in what_differs(planned)
    assert not any(titles for (name, _), titles in fallbacks.items() if name in ("per/table1", "per/table2"))
    assert fallbacks["nir/table4", "cub200"] == set()
    assert fallbacks["el/table1", "sop"] >= {"EL-nivMF", "PANC + EL-nivMF"}


def test_dry_run_prints_rows_and_what_differs(layouts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bench.commands.dry_run.print_estimate", lambda *_: None)
    arguments = ["--dataset", "cub200", "--data-root", str(layouts["cub200"]), "--weights", "none", "--dry-run"]
    arguments += ["--results", str(tmp_path / "r"), "--seeds", "2", "--set", "data.classes_per_batch=2"]
    assert main(["paper", "table", "per/table5", *arguments]) == 0
    out = capsys.readouterr().out
    assert "[Baseline-logit]" in out
    assert "arcface on cub200: 0 trials (published) + 2 seeds" in out
    assert "7 published numbers to compare with" in out
    line = next(line for line in out.splitlines() if "differs from the paper" in line)
    assert "random starting weights" in line
    assert "2 seeds, not 5" in line
    assert "set by hand: data.classes_per_batch=2" in line
    assert not (tmp_path / "r").exists()


def test_a_dry_run_needs_neither_photographs_nor_weights_and_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    monkeypatch.setattr("bench.planning.checks._poolings", lambda *arguments: ("avg_max", "avg"))
    asked = ["paper", "table", "per/table5", "--dataset", "cub200"]
    assert main([*asked, "--dry-run"]) == 0
    *plan, weights, images = capsys.readouterr().out.splitlines()
    assert any(line.startswith("arcface on cub200: 0 trials (published) + 5 seeds, at most") for line in plan)
    assert weights.startswith(
        "missing: no package and no cache of timm or torch has ImageNet weights of 'bn_inception'"
    )
    assert images.startswith("missing: ")
    assert "`bench data download cub200" in images
    assert main(asked) == 2
    assert capsys.readouterr().err.startswith("bench: ")


def test_what_was_adapted_to_the_data_set_is_said_once(tmp_path):
    planned = plan_item(find_item("per/table5"), "ndigit_smoke", EMBEDDED, _site(tmp_path))
    rows = tuple(
        replace(each, plans=tuple(replace(plan, notes=("x",)) for plan in each.plans)) for each in planned.rows
    )
    (table,) = build_table(replace(planned, rows=rows), {}).tables
    assert table.notes[0].split("; ").count("x") == 1


def test_another_network_and_a_part_of_the_data_are_told_in_every_form(layouts, tmp_path):
    """A replay that cannot be the paper's says so on one line, in the table and in all its files."""
    sorted(layouts["cub200"].glob("*/images/*/*.jpg"))[0].unlink()
    site = _site(tmp_path, data_root=str(layouts["cub200"]), weights="none", allow_partial=True)
    options = {"backbone": "squeezenet1_0", "set": ("data.classes_per_batch=2",)}
    planned = plan_item(find_item("per/table5"), "cub200", options, site)
    assert all(row.plan.hparams == "default" for row in planned.rows)
    made = build_table(planned, {})
    differs = what_differs(planned)
    for text in ("squeezenet1_0/128 instead of bn_inception/128", "a part of the data (23 of 24 images"):
        assert text in differs
    assert "the recipe's settings for every row" in differs
    assert "\n" not in differs
    assert differs in files_of(made)["cub200.md"]
    assert "squeezenet1\\_0/128 instead of" in files_of(made)["cub200.tex"]
    assert set(made.numbers["differs"]) == {differs}
    assert len(made.numbers) == 7  # every published number


def test_the_base_of_several_rows_is_in_the_plan_once(tmp_path):
    (batch,) = batches_of([plan_item(find_item("per/table1"), "ndigit_smoke", EMBEDDED, _site(tmp_path))])
    cells = [plan.cell.method for plan in batch]
    assert len(set(cells)) == len(cells) == 8
    assert all(plan.requested for plan in batch)  # CosFace is a row, and the base of three others
    # So are rows of one method at several settings; other tests of the same models follow.
    ablations = plan_item(find_item("nir/table4"), "ndigit_smoke", EMBEDDED, _site(tmp_path))
    assert [len(batch) for batch in batches_of([ablations])] == [len(ablations.rows)]
    plans = tuple(replace(plan, testing=replace(plan.testing, scorers=("l2",))) for plan in ablations.rows[0].plans)
    again = replace(ablations, rows=(replace(ablations.rows[0], plans=plans),))
    assert [len(batch) for batch in batches_of([ablations, again])] == [len(ablations.rows), 1]


def test_a_value_set_by_hand_goes_to_the_rows_that_have_it(tmp_path):
    options = {"set": ("method.margin=0.3",)}
    planned = plan_item(find_item("per/table1"), "ndigit_smoke", options, _site(tmp_path))
    pinned = {row.row.title: row.plan.pinned.text for row in planned.rows}
    assert pinned["CosFace"] == "method.margin=0.3"
    assert pinned["HIB"] == pinned["PFE"] == ""


def test_figures_without_data_say_so(capsys, tmp_path):
    assert main(["paper", "table", "el/figure2", "--dry-run", "--results", str(tmp_path)]) == 0
    assert "at most 0 trainings" in capsys.readouterr().out
