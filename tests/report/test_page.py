"""The page of a report answers its questions, is safe for any text, needs nothing else, and says what is missing."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from bench.cli import main
from bench.commands.results import status_rows
from bench.protocols.statistics import paired_difference, seeds_needed
from bench.registry import Registry
from bench.report.cost import CostRow
from bench.report.frame import Results, collect
from bench.report.page.about import MOST, PICTURES, DataSet, data_sets
from bench.report.page.curves import HEIGHT, WIDTH, charts_of
from bench.report.page.page import PAGE, page_html
from bench.report.page.tables import results_table
from bench.report.page.words import CONFIDENCE, NEAR_CHANCE, RETRIEVAL, Anchors, Words, difference_of
from bench.report.render import csv_uri, to_csv
from bench.report.seeds import SeedGroup
from bench.report.write import Judged
from bench.store.folder import Damage, Store
from bench.store.specs import Pinned
from PIL import Image

from tests.report.shown import comparison, comparison_frame, facts_of

from .page_records import ALONE, CHALLENGERS, CLOSE, FRACTIONS, LEADING, POINT, UNSURE, Made

VOID = {"meta", "link", "input", "line", "img"}
MADE = (LEADING, CLOSE, POINT, UNSURE, ALONE)
HOSTILE = [
    '<script>alert("x")</script>',
    "a|b `c` **d**",
    '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0",
    "</script><!-- {{ 7*7 }} {% raw %}",
    "javascript:alert(1)",
    "x\x1b[2J\x00\u202ey",
    "' onmouseover='alert(1)",
]


def text_of(tree):
    """Text of a page as a reader sees it: without scripts, styles and repeated spaces."""
    (whole,) = (text for _, text in tree.all("html"))
    for tag in ("script", "style"):
        for _, text in tree.all(tag):
            whole = whole.replace(text, "", 1)
    return re.sub(r"\s+", " ", whole)


class Tree(HTMLParser):
    """Elements of a page with their attributes and texts; end tags have to fit their start tags."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, tag):
        return [(attributes, "".join(texts)) for name, attributes, texts in self.found if name == tag]

    def by_id(self, name):
        (found,) = [("".join(texts)) for _, attributes, texts in self.found if attributes.get("id") == name]
        return re.sub(r"\s+", " ", found)


def _results(*made):
    return Results.of(tuple(record for each in made for record in each.records()))


def _page(tmp_path, *made, damaged=(), pictures=()):
    return page_html(Judged(Store(tmp_path), _results(*made)), damaged, pictures)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return _page(tmp_path_factory.mktemp("runs"), *MADE)


@pytest.fixture(scope="module")
def tree(page):
    return Tree(page)


@pytest.fixture(scope="module")
def facts():
    (found,) = facts_of(_results(*MADE))
    return found


def _attributes(tree):
    return [(tag, name, value) for tag, attributes, _ in tree.found for name, value in attributes.items()]


# What it says


def test_the_verdict_comes_first_and_answers_every_question(tree):
    text = tree.by_id("verdict-d")
    assert "leading (probabilistic) has the highest MAP@R of 4 ranked methods, 81.00 ± 1.00 %" in text
    assert "(rank 1-2 of 4, seeds 0-2)" in text
    assert "The best deterministic one is point, 71.00 ± 1.00 %" in text
    assert (
        "1 of the other 3 ranked methods may also be the best: a joint comparison of all 4 does not rule it out at 95 %"
        in text
    )
    assert "The last column compares leading with each method alone" in text
    assert "2 methods are ruled out as the best." in text
    assert "Not ranked: alone, MAP@R 90.00 % (one seed)" in text
    assert (
        "With leading, use its own confidence, AUROC 91.0 %: it is better (+21.0 [+18.5, +23.5] points over norm"
        in text
    )
    assert "it is better for 1 (leading), equivalent for 0, worse for 1 and undecided for 1" in text
    ahead = r"close, MAP@R: leading minus this method: \+0.7 \[-3.1, \+4.5\] points, undecided: needs about \d+ seeds"
    assert re.search(ahead, text)
    order = [each["id"] for each, _ in tree.all("section") if "id" in each]
    assert order.index("verdict") < order.index("results") < order.index("failures")


def test_in_short_it_names_the_method_and_both_confidences(page):
    short = Tree(page[page.index('<div class="cards">') : page.index('<details class="dataset"')].rstrip())
    text = re.sub(r"\s+", " ", "".join(short.all("div")[0][1]))
    others = "1 of the other 3 ranked methods may also be the best"
    assert f"leading (probabilistic); {others}; best deterministic one: point, +10.0 [+10.0, +10.0]" in text
    assert "Confidence before a gallery clean images: its own confidence, AUROC 91.0 % (better)" in text
    assert "Undecided" in text


def test_methods_with_other_numbers_of_seeds_are_named(page, tmp_path):
    assert page.count("umbers of seeds differ") == 2  # in short, and in the words on the data set
    assert "those that most methods have: alone (1 seed, not 3 seeds)." in page
    assert "umbers of seeds differ" not in _page(tmp_path, LEADING, CLOSE)


TUNED = {"hparams": "tuned", "trials": 50}
TWO_BUDGETS = (
    *(LEADING, CLOSE, POINT, UNSURE),
    replace(LEADING, map_at_r=(0.40, 0.41, 0.42), **TUNED),
    replace(POINT, map_at_r=(0.50, 0.51, 0.52), **TUNED),
)


@pytest.fixture(scope="module")
def two_budgets(tmp_path_factory):
    return Tree(_page(tmp_path_factory.mktemp("runs"), *TWO_BUDGETS))


def test_words_compare_rows_of_one_budget_and_begin_with_the_largest(two_budgets):
    leading = two_budgets.by_id("verdict-d")
    used = "The verdict uses the leading budget tuned, 50 trials, which 2 of 4 methods of this data set have;"
    assert f"{used} close, unsure have results at another budget only." in leading
    assert "point (deterministic) has the highest MAP@R of 2 ranked methods, 51.00 ± 1.00 %" in leading
    assert "81.00" not in leading
    assert leading.count("close") == leading.count("unsure") == 1
    assert "Results at other budgets are in the files: default settings (4 of 4 methods)." in leading


def test_a_larger_budget_of_less_than_half_of_the_methods_is_below(tmp_path):
    more = Made("more", (0.6, 0.6, 0.6))
    tree = Tree(_page(tmp_path, *TWO_BUDGETS, more))
    text = tree.by_id("verdict-d")
    used = "uses the leading budget default settings, nothing tuned, which all 5 methods of this data set have."
    assert used in text
    assert "in the files: tuned, 50 trials (2 of 5 methods at this budget)." in text


def test_tables_are_of_the_leading_budget(two_budgets):
    ids = [each["id"] for each, _ in two_budgets.all("tr") if each.get("id", "").startswith("result-d-")]
    assert ids == ["result-d-point", "result-d-leading"]
    for name in ("use", "parameters"):
        assert "close" not in two_budgets.by_id(f"{name}-d-table"), name
    every = [value for _, name, value in _attributes(two_budgets) if name == "id"]
    assert len(every) == len(set(every))
    targets = {each["href"][1:] for each, _ in two_budgets.all("a") if each["href"].startswith("#")}
    assert targets <= set(every)


def test_ranks_are_among_the_rows_of_one_budget():
    tuned, default = facts_of(_results(*TWO_BUDGETS))
    assert [row.rank.text for row in tuned.rows] == ["1", "2"]
    assert len(default.rows) == 4
    assert {row.rank.interval.high for row in default.rows} == {2, 3, 4}
    assert all(row.unequal == "" for facts in (tuned, default) for row in facts.rows)


def test_a_larger_budget_of_one_method_does_not_lead(tmp_path):
    tree = Tree(_page(tmp_path, LEADING, POINT, replace(POINT, map_at_r=(0.9, 0.9, 0.9), **TUNED)))
    text = tree.by_id("verdict-d")
    assert "leading (probabilistic) has the highest MAP@R of 2 ranked methods" in text
    assert "in the files: tuned, 50 trials (1 of 2 methods at this budget)." in text


@pytest.mark.parametrize(("level", "marked"), [(0.54, True), (0.56, False)])
def test_a_confidence_near_chance_is_marked_and_the_mark_explained(tmp_path, level, marked):
    weak = dict.fromkeys(Made("x", ()).free, (level,) * 3)
    text = _page(tmp_path, replace(POINT, auroc=weak))
    assert ('<a href="#term-chance">near chance</a>' in text) is marked
    assert "An AUROC below 55 %" in Tree(text).by_id("reading")


def test_near_chance_is_where_leaving_out_half_of_the_answers_hardly_lowers_errors():
    normal = NormalDist()
    apart = 2**0.5 * normal.inv_cdf(NEAR_CHANCE / 100)  # of the means of right and wrong answers, in SDs
    wrong, low, high = 0.2, -5.0, 5.0
    for _ in range(60):
        median = (low + high) / 2
        below = wrong * normal.cdf(median) + (1 - wrong) * normal.cdf(median - apart)
        low, high = (median, high) if below < 0.5 else (low, median)
    assert (1 - normal.cdf(median)) / 0.5 == pytest.approx(0.9, abs=0.03)


def test_the_highest_confidence_over_all_methods_is_named_with_what_is_decided(tmp_path):
    best = replace(POINT, name="best", map_at_r=(0.90, 0.91, 0.92))
    tree = Tree(_page(tmp_path, best, LEADING, UNSURE))
    text = tree.by_id("verdict-d")
    highest = "the highest AUROC is that of leading with its own confidence, 91.0 %: +21.0 [+18.5, +23.5] points"
    rest = "better as a pair. A joint comparison of all 3 rules out the others."
    assert f"{highest} over the one recommended for best, {rest}" in text
    short = "highest AUROC of all methods, of which some answer worse: leading with its own confidence, 91.0 % "
    assert short in tree.by_id("verdict")
    assert f"{short}(undecided)" not in tree.by_id("verdict")
    (facts,) = facts_of(_results(best, LEADING, UNSURE, ALONE))
    found = Words(facts).tallies["before_gallery"][0].highest
    assert (facts.labels[found.contender], found.others, found.compared) == ("leading", 0, 3)


def test_the_free_confidence_is_said_to_be_chosen_on_validation(tree):
    assert "points over norm, the free one chosen on validation data)" in tree.by_id("verdict-d")
    assert "chosen by its mean AUROC over seeds on validation classes, never on test classes" in tree.by_id("verdict")


def test_an_ensemble_says_how_many_trainings_and_embeddings_it_takes(tmp_path):
    joint = Made("joint", (0.95,), base="leading", ensemble="seeds", models=5)
    text = _page(tmp_path, LEADING, POINT, joint)
    tree = Tree(text)
    assert "it takes 5 trainings, and as many embeddings of each image" in tree.by_id("verdict")
    assert "at 5 times the trainings and embeddings" in tree.by_id("verdict-d")
    (facts,) = facts_of(_results(LEADING, POINT, joint))  # one budget, though the size differs
    table = results_table(facts, "t", {})
    place = [column.title for column in table.columns].index("networks")
    assert [row.cells[place].text for row in table.rows] == ["5", "1", "1"]


def test_parts_of_data_sets_are_marked_at_the_top(tmp_path):
    pinned = Pinned(partial="5 of 9 images")
    text = _page(tmp_path, replace(LEADING, pinned=pinned), replace(POINT, pinned=pinned))
    assert "Part of the data only: 5 of 9 images." in Tree(text).by_id("data")
    assert "Part of the data" not in _page(tmp_path, LEADING, POINT)


def test_the_free_confidence_is_named_if_the_own_one_is_not_worth_it(facts):
    tally = Words(facts).tallies["before_gallery"][0]
    advised = {facts.labels[contender]: each for contender, each in tally.by_method.items()}
    assert {name: (each.use, each.outcome) for name, each in advised.items()} == {
        "leading": ("method", "better"),
        "close": ("norm", "worse"),
        "unsure": ("norm", "undecided"),
        "point": ("norm", ""),
        "alone": ("norm", ""),
    }
    assert tally.free == [("norm", 4)]


def test_of_combined_confidences_only_those_that_are_worth_it_are_advised():
    made = Made("m", (0.5, 0.5, 0.6), (0.60, 0.61, 0.62), {"margin": (0.7, 0.71, 0.72)})
    records = []
    for record in made.records():
        level = {"method+margin": 0.80, "method+margin+agreement": 0.69}
        rows = [
            {**row, "value": level[row["confidence"]] + record.columns.seed * 0.01}
            if row["metric"] == "confidence_auroc" and row["confidence"] in level
            else row
            for row in record.rows
        ]
        records.append(record.model_copy(update={"rows": tuple(rows)}))
    (facts,) = facts_of(Results.of(tuple(records)))
    (advised,) = Words(facts).tallies["at_query_time"][0].by_method.values()
    assert (advised.use, advised.outcome, advised.alike, advised.auroc) == ("method+margin", "better", False, "81.0")


@pytest.mark.parametrize(
    ("values", "decision"),
    [
        ([0.001, 0.0, -0.001], "equivalent within 0.5 points"),
        ([0.10, 0.11, 0.12], "better as a pair"),
        ([0.10, -0.05, 0.04], "undecided: needs about {} seeds in all"),
        ([0.10], "undecided: one seed"),
    ],
)
def test_a_difference_says_what_it_decides_and_how_many_seeds_it_needs(values, decision):
    summary = paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    found = difference_of(summary, RETRIEVAL)
    needed = seeds_needed(summary.sd, summary.mean) if "{}" in decision else None
    assert found.decision == decision.format(needed)
    assert (found.needed == needed) if needed else (found.needed != found.needed)


def test_undecided_verdicts_are_listed_with_the_seeds_that_they_need(facts):
    found = [each for each in Words(facts).open if facts.labels[each.contender] == "unsure"]
    # The same difference to the best free confidence, before the gallery and thrice at query time.
    assert len(found) == 1 + len(CHALLENGERS)
    difference = paired_difference(dict(enumerate(UNSURE.own)), dict.fromkeys(range(3), 0.7))
    region = CONFIDENCE.declared.equivalence
    assert {each.difference.needed for each in found} == {seeds_needed(difference.sd, max(difference.mean, region))}


def test_answers_depend_on_undecided_confidences_of_the_leading_method_alone():
    (behind,) = facts_of(_results(UNSURE, POINT))
    assert len(Words(behind).open) == 1 + len(CHALLENGERS)
    assert Words(behind).foremost == []
    (ahead,) = facts_of(_results(UNSURE, Made("low", (0.1, 0.1, 0.1))))
    assert len(Words(ahead).foremost) == 1 + len(CHALLENGERS)


def test_values_are_those_of_the_comparison(facts):
    (rows,) = comparison(*_frame_and_roles(_results(*MADE))).values()
    table = results_table(facts, "t", {})
    assert [row.cells[0].text for row in table.rows] == [row.label for row in rows]
    assert [row.cells[5].text for row in table.rows] == [row.values[1].text(percent=True) for row in rows]
    assert [row.cells[2].text for row in table.rows] == ["-", "yes", "yes", "no", "no"]
    assert csv_uri(table.csv) == csv_uri(comparison_frame({"d": rows}))


def _frame_and_roles(results):
    return results.frame, results.roles


def test_the_time_per_image_is_shown_if_it_was_measured(facts):
    contender = facts.rows[0].contender
    spent = CostRow(contender, 3, 0, 0, 3, 1.0, 2.0, 0.0, 9, None, 12.34, "")
    first, second = results_table(facts, "t", {contender: spent}).rows[:2]
    assert "12.3" in [cell.text for cell in first.cells]
    assert "not recorded" in [cell.note for cell in second.cells]


def test_gaps_are_named_with_their_reasons(facts):
    notes = " ".join(results_table(facts, "t", {}).notes)
    assert "No rank or may be best: alone (one seed)." in notes
    assert "ms per image: all (not recorded)" in notes
    assert "point (no own confidence)" in notes


def test_csv_buttons_hold_the_tables_as_harmless_csv(tree):
    held = {each["download"]: each["href"] for each, _ in tree.all("a") if "download" in each}
    assert {"results-d.csv", "use-d.csv"} <= set(held)
    text = base64.b64decode(held["results-d.csv"].partition("base64,")[2]).decode()
    assert text == to_csv(comparison_frame({"d": comparison(*_frame_and_roles(_results(*MADE)))["d"]}))


def test_curves_are_means_over_seeds_inside_of_their_chart(facts):
    group = SeedGroup.of(_results(LEADING).frame.merge(_results(LEADING).roles, on="unit"))
    curve = group.curve("filter_out_recall_at_1", "test", "query_only", "method")
    assert {share: value.mean for share, value in curve.items()} == pytest.approx({x: 0.8 + 0.1 * x for x in FRACTIONS})
    charts = charts_of(facts, facts.rows[1].contender, Anchors())
    assert len(charts) == 2
    for chart in charts:
        for line in chart.lines:
            places = [tuple(map(float, point.split(","))) for point in chart.path(line).split()]
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
            assert line.points[0] == (0.0, pytest.approx(20.0))  # errors, in percent
        assert len(chart.data["lines"]) == len(chart.lines)


# Data sets, and how much there is to read


@pytest.mark.slow
def test_data_sets_are_in_the_order_of_their_weight_and_the_unknown_before_toys():
    found = data_sets(["ndigit", "a_plug_in", "cub200", "glyphs", "cars196"])
    assert list(found) == ["cars196", "cub200", "a_plug_in", "glyphs", "ndigit"]
    assert found["ndigit"].title == "ndigit (toy)"
    assert found["a_plug_in"] == DataSet("a_plug_in")
    assert found["cub200"].pictures == ()
    assert found["cub200"].licence == "not known; see the source"


@pytest.mark.slow
def test_pictures_are_of_embedded_data_sets_few_and_of_the_size_of_their_images():
    names = [entry.name for entry in Registry("datasets")]
    found = data_sets(names).values()
    assert all(each.citation and each.licence for each in found if each.pictures)
    assert PICTURES <= sum(len(each.pictures) for each in found) <= MOST
    (ndigit,) = data_sets(["ndigit"]).values()
    assert len(set(ndigit.pictures)) == PICTURES
    picture = Image.open(io.BytesIO(base64.b64decode(ndigit.pictures[0].partition("base64,")[2])))
    assert (picture.size, picture.mode) == ((50, 18), "L")
    assert ndigit.test == "2,000 test images of 250 classes"


def test_every_part_of_the_page_has_the_data_sets_in_one_order(tmp_path):
    names = ["ndigit", "a_plug_in", "cub200"]
    made = [replace(each, dataset=name, cell=f"{name}{each.name}") for name in names for each in (LEADING, POINT)]
    text = _page(tmp_path, *made)
    tree = Tree(text)
    order = ["cub200", "a_plug_in", "ndigit"]
    for tag in ("h3", "h4"):
        shown = [text.removesuffix(" (toy)") for _, text in tree.all(tag)]
        assert [name for name in shown if name in names][:3] == order
    top = tree.by_id("data")
    assert sorted(names, key=top.index) == order
    assert "ndigit (toy): 500 three-digit handwritten numbers" in top
    assert "Licence: CC BY 4.0." in top
    assert "No pictures." in top
    assert len(tree.all("img")) == PICTURES
    folded = [text.split(":")[0].removesuffix(" (toy)") for _, text in tree.all("summary")]
    assert [name for name in folded if name in names][:3] == order


def test_outcomes_have_one_vocabulary(tree):
    text = text_of(tree)
    assert text.count("worth it") == 1  # the question
    for other in ("not decided", "too small to matter,", "different as a pair", "equal within"):
        assert other not in text


def test_what_is_left_out_is_in_files_that_the_page_names(tree):
    named_files = re.findall(r"\w+\.(?:md|csv)", tree.by_id("results"))
    judged = Judged(Store("."), _results(*MADE))
    documents = {"comparison", "systems", "verdicts", "decisions", "fidelity", "cost", *judged.numbers}
    assert {name.partition(".")[0] for name in named_files} <= documents
    assert {"comparison.md", "verdicts.md", "provenance.csv"} <= set(named_files)


def test_a_page_of_a_few_methods_is_short(tree):
    assert len(text_of(tree)) < 25_000


def test_the_page_of_the_reference_results_can_be_read():
    page = Path(__file__).parents[2] / "docs" / "reference_page.html"
    assert len(text_of(Tree(page.read_text(encoding="utf-8")))) <= 150_000


# What failed


def test_a_folder_with_failed_units_only_names_them_and_why(tmp_path):
    store = Store(tmp_path)
    store.mark("reality_check", 1)
    failed = tmp_path / "reality_check" / "d" / "m" / "train-0123456789abcdef"
    failed.mkdir(parents=True)
    (failed / "error.txt").write_text("Traceback\n  File\nValueError: <b>loss</b> is not finite\n\n")
    waiting = failed.with_name("train-1123456789abcdef")
    waiting.mkdir()
    (waiting / "checkpoint.pt").write_bytes(b"")
    tree = Tree(page_html(Judged(store, collect(store)), []))
    text = tree.by_id("failures")
    assert "train-0123456789abcdef" in text
    assert "ValueError: <b>loss</b> is not finite" in text
    assert "unfinished" in text
    assert "1 × failed, 1 × unfinished" in tree.by_id("verdict")
    assert not tree.all("b")
    (row,) = status_rows(store)
    assert row["failed"] == {"train-0123456789abcdef": "ValueError: <b>loss</b> is not finite"}
    assert row["unfinished"] == 1


def test_a_unit_that_succeeded_in_the_end_is_no_failure(tmp_path):
    store = Store(tmp_path)
    for record in POINT.records():
        store.write(record)
        (store.unit_dir(record.cell, "test", record.unit) / "error.txt").write_text("OSError: once")
    assert "Nothing: every trial" in Tree(page_html(Judged(store, collect(store)), [])).by_id("failures")


def test_records_of_other_versions_are_named(tmp_path):
    store = Store(tmp_path)
    for record in LEADING.records():
        store.write(record)
    old = LEADING.record(0, version="0.0.9")
    text = json.loads(old.to_json()) | {"schema": 1}
    path = store.unit_dir(old.cell, "test", "0" * 16) / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(text))
    store.write(CLOSE.record(0, version="0.0.9"))
    damaged = []
    store.on_damage = damaged.append
    tree = Tree(page_html(Judged(store, collect(store)), damaged))
    assert "a test record of schema 1, not a test record of 3" in tree.by_id("failures")
    assert "0.0.9" in tree.by_id("provenance")
    assert "0.1.0" in tree.by_id("provenance")


# Safety and form


def test_hostile_texts_stay_texts(tmp_path, page):
    made = [
        Made(
            text,
            LEADING.map_at_r,
            LEADING.own,
            dataset=HOSTILE[0],
            pinned=Pinned(settings={"method.a": text}),
            cell=f"m{place}",
        )
        for place, text in enumerate(HOSTILE)
    ]
    made.append(
        Made("m", (0.5, 0.6, 0.7), (0.5, 0.6, 0.7), {name: (0.9,) * 3 for name in HOSTILE}, free=tuple(HOSTILE))
    )
    damaged = [Damage(tmp_path / text.replace("/", "_"), text) for text in HOSTILE]
    tree, usual = Tree(_page(tmp_path, *made, damaged=damaged)), Tree(page)
    assert {tag for tag, _, _ in tree.found} <= {tag for tag, _, _ in usual.found}
    assert {(tag, name) for tag, name, _ in _attributes(tree)} <= {(tag, name) for tag, name, _ in _attributes(usual)}
    scripts = [(each, text) for each, text in tree.all("script") if "type" not in each]
    assert scripts == [(each, text) for each, text in usual.all("script") if "type" not in each]
    labels = {text.strip() for _, text in tree.all("th")}
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[4]} <= labels
    assert "x\\x1b[2J\\x00\\u202ey" in labels
    charts = [json.loads(text) for each, text in tree.all("script") if each.get("type") == "application/json"]
    assert any(HOSTILE[4] in line["label"] for chart in charts for line in chart["lines"])
    for each, _ in tree.all("a"):
        if "download" in each:
            lines = base64.b64decode(each["href"].partition("base64,")[2]).decode().splitlines()
            assert not any(cell.startswith("=") for line in lines for cell in line.replace('"', "").split(","))


def test_links_lead_to_parts_of_the_page_and_ids_are_unique(tree):
    ids = [value for _, name, value in _attributes(tree) if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {each["href"] for each, _ in tree.all("a") if each["href"].startswith("#")}
    assert len(targets) > 10
    assert {target[1:] for target in targets} <= set(ids)
    assert all("#" in each["href"][:1] or each["href"].startswith("data:text/csv") for each, _ in tree.all("a"))
    rows = [each for each, _ in tree.all("tr") if "id" in each]
    assert len(rows) == len(MADE)


def test_the_page_loads_nothing_and_its_policy_allows_its_own_script_and_style_alone(tree):
    (policy,) = [each["content"] for each, _ in tree.all("meta") if "http-equiv" in each]
    script = next(text for each, text in tree.all("script") if "type" not in each)
    (_, style) = tree.all("style")[0]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    for _, name, value in _attributes(tree):
        assert name != "style"
        assert not name.startswith("on")
        assert name not in ("src", "href") or value.startswith(("#", "data:"))


def test_tables_have_captions_and_headings_for_rows_and_columns(tree):
    tables, captions = tree.all("table"), tree.all("caption")
    assert len(tables) == len(captions) > 5
    assert all(each.get("scope") in ("row", "col") for each, _ in tree.all("th"))
    levels = [int(tag[1]) for tag, _, _ in tree.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_same_records_give_the_same_bytes_wherever_they_are(tmp_path, page):
    elsewhere = tmp_path / "another name"
    assert _page(elsewhere, *MADE) == page
    assert str(tmp_path) not in page


def test_pictures_are_part_of_the_page_if_asked_for(tmp_path, tree):
    path = tmp_path / "images_d.png"
    path.write_bytes(b"\x89PNG")
    found = Tree(_page(tmp_path, POINT, LEADING, pictures=[path])).all("img")
    assert [each["src"] for each, _ in found] == ["data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()]
    assert not tree.all("img")
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    Image.fromarray(noise).save(path)  # incompressible, as photographs are
    ((each, _),) = Tree(_page(tmp_path, POINT, LEADING, pictures=[path])).all("img")
    kind, _, content = each["src"].partition(";base64,")
    packed = base64.b64decode(content)
    assert (kind, Image.open(io.BytesIO(packed)).size) == ("data:image/jpeg", (400, 400))
    assert len(packed) < path.stat().st_size / 2


@pytest.mark.slow
def test_figures_that_are_named_are_drawn_and_shown(tmp_path, capsys):
    store = Store(tmp_path)
    store.mark("reality_check", 1)
    for record in LEADING.records():
        store.write(record)
    assert main(["report", "--figures", "filter_out", "--results", str(tmp_path), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written[0] == str(tmp_path / "report" / PAGE)
    drawn = next(path for path in written if path.endswith(".png"))
    (shown,) = [each["src"] for each, _ in Tree((tmp_path / "report" / PAGE).read_text()).all("img")]
    with open(drawn, "rb") as file:
        assert base64.b64decode(shown.partition("base64,")[2]) == file.read()


def test_files_of_others_are_those_of_their_packages_with_their_licences(tree):
    folder = resources.files("bench.report.page") / "vendor"
    packages = tomllib.loads((folder / "vendored.toml").read_text())["package"]
    files = {name: digest for package in packages for name, digest in package["files"].items()}
    held = {each.name for each in folder.iterdir()} - {"vendored.toml"}
    assert held == set(files)
    for name, digest in files.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert "</s" not in (folder / name).read_text().lower()  # the end of a script or style
    notes = "".join(text for _, text in tree.all("footer"))
    assert "Permission is hereby granted, free of charge" in notes
    assert "This is free and unencumbered software" in notes


def _schemes():
    css = (resources.files("bench.report.page") / "page.css").read_text()
    for block in re.findall(r":root \{([^}]*)\}", css):
        yield dict(re.findall(r"--([\w]+): *(#[0-9a-f]{3,6})", block))


def _luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear))


def test_texts_have_the_contrast_that_wcag_asks_for():
    schemes = list(_schemes())
    assert len(schemes) == 3  # light, dark and print
    for scheme in schemes:
        for text in ("ink", "soft", "link", "good", "bad"):
            for ground in ("paper", "band", "hit"):
                bright, dark = sorted((_luminance(scheme[text]), _luminance(scheme[ground])), reverse=True)
                assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground, scheme)


def test_the_page_begins_with_its_type(page):
    assert page.startswith("<!doctype html>")  # or browsers fall back to their quirks
