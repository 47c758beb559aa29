"""The page of a report says what its comparisons say, is safe for any text, needs nothing else, leaves out nothing."""

import base64
import hashlib
import io
import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from bench.commands.results import status_rows
from bench.protocols.embeddings import row
from bench.report.frame import Results, collect
from bench.report.page import answers, tables
from bench.report.page.answers import PLACES, parts_of
from bench.report.page.page import page_html
from bench.report.page.tables import confidence_table, results_table
from bench.report.questions import SYSTEM
from bench.report.write import Judged
from bench.store.folder import Damage, Store
from bench.store.records import Epoch, TrainRecord
from bench.store.specs import Pinned
from PIL import Image

from tests.records import stored

from .page_records import ALONE, CLOSE, LEADING, POINT, UNSURE, Made
from .shown import judged as _judged

HEADS = tuple(replace(each, base="point") for each in (LEADING, CLOSE, UNSURE))
MADE = (*HEADS, POINT, ALONE)
TUNED = {"hparams": "tuned", "trials": 50}
HOSTILE = [
    '<script>alert("x")</script>',
    "a|b `c` **d**",
    '"><img src=x onerror=alert(1)>',
    "</script><!-- {{ 7*7 }} {% raw %}",
    "javascript:alert(1)",
    "x\x1b[2J\x00\u202ey",
    "' onmouseover='alert(1)",
]


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
        if tag not in {"meta", "img", "link"}:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes), []))

    def handle_data(self, data):
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, tag):
        return [(attributes, "".join(texts)) for name, attributes, texts in self.found if name == tag]

    def by_id(self, name):
        (found,) = ["".join(texts) for _, attributes, texts in self.found if attributes.get("id") == name]
        return " ".join(found.split())

    @property
    def attributes(self):
        return [(tag, name, value) for tag, attributes, _ in self.found for name, value in attributes.items()]

    @property
    def prose(self):
        """Words that are read as text: without tables, pictures, scripts and the head."""
        (whole,) = (text for _, text in self.all("body"))
        for tag in ("script", "table", "svg"):
            for _, text in self.all(tag):
                whole = whole.replace(text, " ", 1)
        return whole.split()


def _page(tmp_path, *made, damaged=(), pictures=()):
    return page_html(_judged(tmp_path, *made), damaged, pictures)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    return _judged(tmp_path_factory.mktemp("runs"), *MADE)


@pytest.fixture(scope="module")
def page(judged):
    return page_html(judged, ())


@pytest.fixture(scope="module")
def tree(page):
    return Tree(page)


# What it says


def test_it_names_what_to_use_and_what_is_not_decided(judged, tree):
    (part,) = parts_of(judged)
    assert part.labels[part.retrieves] == "leading (point)"  # +10 points of MAP@R, adjusted
    assert part.labels[part.plain] == "point"
    for use, name in (("before_gallery", "own of leading (point)"), ("at_query_time", "own of leading (point)")):
        assert part.advised((use, "test")) == (name, "91")
    assert part.advised(("before_gallery", "test_crop")) == ("", "-")  # not tested
    said = {topic: " ".join(text.striptags().split()) for topic, text in answers.answers([part])}
    level = f"leading (point) ({100 * part.level(part.retrieves):.1f})"
    assert said["To retrieve (MAP@R in %)"] == level
    assert said["Systems with a learned confidence shown to be better before the gallery"] == "leading"
    first = tree.by_id("answer")
    assert "Other data: before the gallery leading (clean images): " in first
    assert all(text in first for each in said.items() for text in each)
    assert said["Not decided"].startswith("1 of 3 comparisons before the gallery: intervals reach +")


def test_without_a_win_that_holds_the_free_confidence_of_the_plain_method_is_named(tmp_path):
    (part,) = parts_of(_judged(tmp_path, *HEADS[1:], POINT))
    assert part.labels[part.retrieves] == "close (point)"  # better by retrieval, not by its confidence
    assert part.advised(("before_gallery", "test")) == ("norm", "70")
    none = "none of 2 methods: 1 worse, 1 undecided of 2 comparisons"
    assert answers.headline([part]).striptags() == f"before the gallery {none}; at query time {none}"


@pytest.mark.parametrize(
    ("free", "advised", "bold"), [(0.6, "own of leading (point)", "own"), (0.95, "norm of leading (point)", "norm")]
)
def test_a_network_that_answers_better_is_named_with_its_free_confidence_if_the_own_one_is_worse(
    free, advised, bold, tmp_path
):
    answers_better = replace(HEADS[0], auroc={"norm": (free, free, free)})
    (part,) = parts_of(_judged(tmp_path, answers_better, POINT))
    place = ("before_gallery", "test")
    (win,) = part.wins(place)
    assert part.confidence(win.contender, place).outcome == ("better" if free == 0.6 else "worse")
    assert part.advised(place) == (advised, f"{100 * max(free, 0.91):.0f}")
    (row,) = [each for each in confidence_table(part).rows if each.anchor == part.anchor(win)]
    assert [cell.text.split()[0] for cell in row.cells if cell.bold] == [bold]


def test_counts_of_the_first_sentence_add_up_and_a_win_has_its_data_set(tmp_path):
    other = [replace(each, dataset="e", own=(0.68, 0.72, 0.70)) for each in (*HEADS, *HEADS[:1])]
    other[1] = replace(other[1], own=(0.7075, 0.7125, 0.71))  # better, but not of three
    other[3] = replace(other[3], name="least", own=(0.68, 0.685, 0.695))
    parts = parts_of(_judged(tmp_path, HEADS[0], POINT, *other, replace(POINT, dataset="e")))
    outcomes = Counter((row.outcome, row.holds) for part in parts for row in part.at(("before_gallery", "test")))
    assert outcomes == {("better", True): 1, ("better", False): 1, ("undecided", False): 3}
    said = answers.headline(parts).striptags().removeprefix("before the gallery leading (d on clean images): ")
    assert said.split(";")[0] == "1 better, 1 better only before adjustment, 3 undecided of 5 comparisons"


def test_of_the_confidences_that_splits_chose_the_most_frequent_is_shown(judged):
    (part,) = parts_of(judged)
    contender = next(each for each, name in part.labels.items() if name == "leading (point)")
    for names in ("method+margin or method", "gone or method+margin or method"):
        assert part.confidence(contender, ("at_query_time", "test"), names).confidence == "method+margin"
    assert part.confidence(contender, ("at_query_time", "test"), "gone").confidence == "method"


def test_counts_pictures_and_matrix_are_those_of_the_comparisons(judged, page, tree):
    (part,) = parts_of(judged)
    rows = [each for each in judged.ask(SYSTEM) if each.column.metric == "augrc" and answers.place_of(each) in PLACES]
    assert len(rows) == 6
    marks = re.findall(r'<g class="([\w ]+)"><title>', page)
    drawn = [each.outcome + " adjusted" * each.holds for each in rows]
    assert Counter(marks) - Counter(f"c{place}" for place in range(12)) == Counter(drawn)
    links = re.findall(r'<td class="n[^"]*"[^>]*><a href="#([\w-]+)">', page)
    assert sorted(links) == sorted(map(part.anchor, rows))
    for each in rows:
        assert each.text in tree.by_id(part.anchor(each))


def test_the_table_of_confidences_names_each_and_has_the_values_of_the_comparisons(judged):
    (part,) = parts_of(judged)
    table = confidence_table(part)
    by_name = {(line.cells[0].text, line.cells[1].text): [cell.text for cell in line.cells[2:]] for line in table.rows}
    found = by_name["leading (point)", "Before the gallery, clean images"]
    assert found[:4] == ["own 91.0", "norm 70.0", "+21.0 [+18.5, +23.5]", "better, adjusted"]
    assert found[4:7] == ["point: norm", "9.0", "2.7"]
    assert by_name["point", "Before the gallery, clean images"][:4] == ["-", "norm 70.0", "-", "no own confidence"]
    use = {line.cells[0].text: [cell.text for cell in line.cells if cell.bold] for line in table.rows[::2]}
    assert use.pop("leading (point)") == ["own 91.0"]
    assert list(use.values()) == 4 * [["norm 70.0"]]


def test_the_table_of_results_is_of_the_leading_budget_and_names_the_others(tmp_path, judged):
    (part,) = parts_of(judged)
    table = results_table(part, [], [])
    ((*_, rows),) = judged.comparison
    assert [line.cells[0].text for line in table.rows] == [each.contender.label for each in rows]
    place = [column.title for column in table.columns].index("MAP@R")
    assert [line.cells[place].text for line in table.rows] == [each.values[1].text(2, 100.0) for each in rows]
    assert "No rank: alone (one seed)." in table.notes
    two = [*MADE[:-1], replace(HEADS[0], map_at_r=(0.4, 0.41, 0.42), **TUNED), replace(POINT, **TUNED)]
    (part,) = parts_of(_judged(tmp_path, *two))
    assert (part.budget, len(part.labels)) == ("tuned once, 50 trials, net/8", 2)
    frozen = Pinned(frozen_backbone=True, tune_for="both")
    (part_of_frozen,) = parts_of(_judged(tmp_path, *(replace(each, pinned=frozen) for each in MADE)))
    assert part_of_frozen.budget == "default settings, net/8, frozen backbone; tune_for=both"
    notes = results_table(part, [], []).notes
    assert "Only at other settings, in comparison.md: close (point), unsure (point)." in notes


def test_a_run_of_two_methods_begins_with_its_verdict_its_table_and_its_curves(tmp_path):
    text = _page(tmp_path, HEADS[0], POINT)
    tree = Tree(text)
    order = ['class="lead"', 'id="results-d"', 'class="line"', 'id="use-d"', 'id="data"']
    assert sorted(order, key=text.index) == order
    (lead,) = (text for each, text in tree.all("p") if each.get("class") == "lead")
    assert lead.startswith("leading (point) against point, in points. Better: retrieval +10.0; confidence before the")
    assert " of 1 " not in " ".join(tree.prose)
    assert 'id="matrix"' not in text
    assert len(tree.prose) < 700


FEW = (HEADS[0], POINT)


def _on_splits(made, *numbers):
    return [replace(made, pinned=Pinned(settings={"data.class_seed": n}), cell=f"{made.name}{n}") for n in numbers]


def test_class_splits_answer_in_place_of_seeds_and_say_which_confidence_most_of_them_chose(tmp_path):
    other = dict.fromkeys(("norm", "max_cosine"), (0.70, 0.70, 0.70)) | {"max_cosine": (0.75, 0.75, 0.75)}
    plain = [*_on_splits(POINT, 1, 2), *_on_splits(replace(POINT, auroc=other), 3)]
    (part,) = parts_of(_judged(tmp_path, *FEW, *_on_splits(HEADS[0], 1, 2, 3), *plain))
    assert (part.unit, part.over) == ("split", "3 class splits")
    assert {each.n for each in part.systems if each.column.split == "test"} == {3}
    assert part.confidence(part.plain, ("before_gallery", "test")).rival == "norm or max_cosine"
    table = confidence_table(part)
    assert "most often norm 71.7" in [cell.text for row in table.rows for cell in row.cells]
    (part,) = parts_of(_judged(tmp_path, *FEW, HEADS[1], *_on_splits(HEADS[0], 1, 2), *plain))
    notes = results_table(part, [], []).notes
    assert "On fewer class splits: leading (point) (2)." in notes
    assert "On no class splits at this budget, in comparison.md: close (point)." in notes


@pytest.mark.parametrize(
    ("made", "reasons"),
    [
        ([replace(each, map_at_r=each.map_at_r[:1]) for each in FEW], ["one seed", "No rank: leading (point), point"]),
        ([LEADING], ["No result of the plain method at this budget", "nothing to compare with"]),
        ([POINT], ["no own confidence", "nothing to compare with"]),
        ([LEADING, CLOSE], ["o result of the plain method at this budget"]),
        ([replace(each, splits=()) for each in FEW], ["No confidence of the ranking was tested: leading (point)"]),
        ([*_on_splits(HEADS[0], 1, 2), *_on_splits(POINT, 3, 4)], ["no result of the plain method", "2 class splits"]),
        ([replace(each, splits=("test",)) for each in FEW], ["no validation rows"]),
        ([replace(HEADS[0], own=(0.5,) * 3), POINT], ["confidence constant for all images", "Own confidence constant"]),
        ([replace(HEADS[0], own=(0.30, 0.31, 0.32)), POINT], ["Own confidence reversed on clean images"]),
        ([replace(each, pinned=Pinned(partial="5 of 9 images")) for each in FEW], ["part of the data only, 5 of 9"]),
    ],
)
def test_what_is_missing_has_its_reason(tmp_path, made, reasons):
    tree = Tree(_page(tmp_path, *made))
    text = " ".join(tree.by_id("top").split())
    for reason in reasons:
        assert reason in text
    names = {name for _, name in tree.all("th")}
    assert {f"{each.name} (point)" if each.base else each.name for each in made} <= names


def test_a_metric_of_half_of_the_records_is_shown_with_the_others_named(tmp_path):
    measured = {"split": "test", **row("recall_at_1", 0.8, scorer="cosine")}
    half = [each.model_copy(update={"rows": (*each.rows, measured)}) for each in HEADS[0].records()]
    others = [record for each in MADE[1:-1] for record in each.records()]
    (part,) = parts_of(Judged(Store(tmp_path), Results((*half, *others))))
    table = results_table(part, [], [])
    assert "80.00 ± 0.00" in [cell.text for cell in table.rows[0].cells]
    assert any(each.startswith("No R@1: close (point), point, unsure (point) (not measured)") for each in table.notes)


def test_data_sets_are_in_the_order_of_their_weight_and_families_are_answered_apart(tmp_path):
    names = ("ndigit", "x", "cub200")
    made = [replace(each, dataset=name, cell=f"{name}-{each.name}") for name in names for each in FEW]
    assert [each.title for each in parts_of(_judged(tmp_path, *made))] == ["cub200", "x", "ndigit (toy)"]
    tree = Tree(_page(tmp_path, *made))
    families = [each["aria-label"] for each, _ in tree.all("section") if each.get("class") == "card"]
    assert families == ["Photographs", "Other data", "Toys"]
    assert "CC BY 4.0" in tree.by_id("data")
    assert [text for each, text in tree.all("h3") if not each][-4:-1] == ["cub200", "x", "ndigit (toy)"]


def test_settings_are_those_of_all_tests_of_a_method_not_of_one_of_them(tmp_path):
    made = [record for each in FEW for record in each.records()]
    params = [
        {"margin": 0.3, "width": 0.5, "kind": "a", "form": "corrected"},
        {"margin": 0.3, "width": 2.0, "kind": "b"},
    ]
    made[:3] = [
        test.model_copy(update={"setting": {"params": own, "optim": {"lr": lr}}})
        for test, own, lr in zip(made, (params[1], params[0], params[0]), (1e-3, 1e-4, 1e-3))
    ]
    (part,) = parts_of(Judged(Store(tmp_path), Results(tuple(made))))
    for order in (made, made[::-1]):
        table = tables.settings_table(part, [(test, ()) for test in order])
        shown = {row.cells[0].text: row.cells[1].text for row in table.rows}
        assert shown["hyper-parameters of leading (point)"] == "kind=a (2); b (1); margin=0.3; width=0.5 to 2"
        assert (shown["hyper-parameters of point"], shown["optim.lr"]) == (
            "margin=0.2",
            "0.0001 to 0.001 (3); none (3)",
        )
        assert (shown["tuning trials"], shown["hyper-parameters"]) == ("0", "default")


def test_a_training_whose_loss_never_fell_is_named():
    def training(*losses):
        history = tuple(Epoch(epoch=i, loss=loss, val_map_at_r=0.1) for i, loss in enumerate(losses))
        return TrainRecord.model_construct(history=history)

    falls = (training(), training(2.0), training(None, 2.0), training(None, 2.0, 2.5, 1.9))
    assert {each.loss_note for each in falls} == {""}
    assert training(None, 2.0, 2.0 - 1e-9).loss_note.startswith("the loss never fell: 2 in")  # rounding alone
    (test,) = POINT.records()[:1]
    assert list(tables.losses([(test, falls)])) == []
    rises = (test, (training(None, 2.0, 2.5, 2.25),))
    said = "point on d, seed 0: the loss never fell: 2 in the first epoch, 2.25 at best later."
    assert list(tables.losses([rises])) == [said]
    assert list(tables.losses([rises] * 3)) == ["point on d, seed 0, and 2 more: the loss never fell."]


def test_prose_is_short(tree):
    assert len(tree.prose) < 1000
    reference = Path(__file__).parents[2] / "docs" / "reference_page.html"
    assert len(Tree(reference.read_text(encoding="utf-8")).prose) <= 1500


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
    for part in ("train-0123456789abcdef", "ValueError: <b>loss</b> is not finite", "unfinished"):
        assert part in text
    assert "no finished test in this folder" in tree.by_id("answer")
    assert not tree.all("b")
    (found,) = status_rows(store)
    assert found["failed"] == {"train-0123456789abcdef": "ValueError: <b>loss</b> is not finite"}
    assert found["unfinished"] == 1


def test_a_unit_that_succeeded_in_the_end_is_no_failure(tmp_path):
    store = Store(tmp_path)
    for record in POINT.records():
        store.write(record)
        (store.unit_dir(record.cell, "test", record.unit) / "error.txt").write_text("OSError: once")
    assert "Nothing: all that was begun" in Tree(page_html(Judged(store, collect(store)), [])).by_id("failures")


def test_records_of_other_versions_are_named(tmp_path):
    store = stored(tmp_path, LEADING.records())
    old = LEADING.record(0, version="0.0.9")
    path = store.unit_dir(old.cell, "test", "0" * 16) / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(json.loads(old.to_json()) | {"schema": 1}))
    store.write(CLOSE.record(0, version="0.0.9"))
    damaged = []
    store.on_damage = damaged.append
    tree = Tree(page_html(Judged(store, collect(store)), damaged))
    assert "a test record of schema 1, not a test record of 3" in tree.by_id("failures")
    assert all(version in tree.by_id("machines") for version in ("0.0.9", "0.1.0"))


# Safety and form


def test_hostile_texts_stay_texts(tmp_path, page):
    held = LEADING.map_at_r, LEADING.own
    made = [
        Made(text, *held, dataset=HOSTILE[0], pinned=Pinned(settings={"method.a": text}), cell=f"m{place}")
        for place, text in enumerate(HOSTILE)
    ]
    free = {name: (0.9,) * 3 for name in HOSTILE}
    made += [
        Made("m", *held, free, dataset=HOSTILE[0], free=tuple(HOSTILE)),
        replace(POINT, dataset=HOSTILE[0], cell="p"),
    ]
    damaged = [Damage(tmp_path / text.replace("/", "_"), text) for text in HOSTILE]
    tree, usual = Tree(_page(tmp_path, *made, *MADE, damaged=damaged)), Tree(page)
    assert {tag for tag, _, _ in tree.found} <= {tag for tag, _, _ in usual.found}
    assert {each[:2] for each in tree.attributes} <= {each[:2] for each in usual.attributes}
    assert tree.all("script") == usual.all("script")
    assert {*HOSTILE[:4], "x\\x1b[2J\\x00\\u202ey"} <= {text.strip() for _, text in tree.all("th")}
    assert all(each["href"].startswith("#") for each, _ in tree.all("a"))


def test_links_lead_to_parts_of_the_page_and_ids_are_unique(tree):
    ids = [value for _, name, value in tree.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {each["href"] for each, _ in tree.all("a")}
    assert len(targets) > 10
    assert targets <= {f"#{name}" for name in ids}


def test_the_page_loads_nothing_and_its_policy_allows_its_own_script_and_style_alone(page, tree):
    assert page.startswith("<!doctype html>")  # or browsers fall back to their quirks
    (policy,) = [each["content"] for each, _ in tree.all("meta") if "http-equiv" in each]
    for kind in ("script", "style"):
        ((_, text),) = tree.all(kind)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    for _, name, value in tree.attributes:
        assert name != "style"
        assert not name.startswith("on")
        assert name not in ("src", "href") or value.startswith(("#", "data:"))


def test_tables_have_captions_and_headings_for_rows_and_columns(tree):
    assert len(tree.all("table")) == len(tree.all("caption")) > 5
    assert all(each.get("scope") in ("row", "col") for each, _ in tree.all("th"))
    levels = [int(tag[1]) for tag, _, _ in tree.found if re.fullmatch("h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_same_records_give_the_same_bytes_wherever_they_are(tmp_path, page):
    assert _page(tmp_path / "another name", *MADE) == page
    assert str(tmp_path) not in page


def test_pictures_are_part_of_the_page_if_asked_for(tmp_path, tree):
    path = tmp_path / "images_d.png"
    path.write_bytes(b"\x89PNG")
    found = Tree(_page(tmp_path, *FEW, pictures=[path])).all("img")
    assert [each["src"] for each, _ in found] == ["data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()]
    assert not tree.all("img")
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    Image.fromarray(noise).save(path)  # incompressible, as photographs are
    ((each, _),) = Tree(_page(tmp_path, *FEW, pictures=[path])).all("img")
    kind, _, content = each["src"].partition(";base64,")
    packed = base64.b64decode(content)
    assert (kind, Image.open(io.BytesIO(packed)).size) == ("data:image/jpeg", (400, 400))
    assert len(packed) < path.stat().st_size / 2


def _luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear))


def test_texts_have_the_contrast_that_wcag_asks_for():
    css = (resources.files("bench.report.page") / "page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): *(#\w+)", block)) for block in re.findall(r":root \{([^}]*)\}", css)]
    assert len(schemes) == 3  # light, dark and print
    for scheme, text, ground in itertools.product(
        schemes, ("ink", "soft", "link", "good", "bad"), ("paper", "band", "toy", "hit")
    ):
        bright, dark = sorted((_luminance(scheme[text]), _luminance(scheme[ground])), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground, scheme)
