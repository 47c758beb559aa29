"""One battery of tests: every value is declared, a new test is one file, and nothing is computed twice."""

import importlib.util

import pytest
import torch
from bench.protocols import declare, get_protocol
from bench.protocols.declare import run_battery
from bench.protocols.embeddings import Embeddings, Options, Quality
from bench.protocols.known_tests import BUILT_IN, known_groups, load_tests
from bench.protocols.metrics import METRICS, find_metric, known_metrics, metric_help, metric_requests, title_of
from bench.protocols.ranking import ScoreMatrix
from bench.protocols.rows import RETRIEVAL_CONFIDENCES

from .views import clustered


def _view(corrupted=False, **changes):
    """Embeddings that have everything a test can need; with a lone image, and classes of different sizes."""
    labels = torch.tensor([0] * 12 + [1] * 9 + [2] * 7 + [3] * 6 + [4] * 4 + [5] * 2 + [6])
    ids = tuple(f"image {i:02d}" for i in range(len(labels)))
    x = clustered(labels, noise=1.2 if corrupted else 0.6)
    g = torch.Generator().manual_seed(1)
    confidences = {name: torch.rand(len(labels), generator=g) for name in ("norm", "method", "random")}
    validation = Embeddings(labels=labels, ids=ids, scorers=_scorers(clustered(labels, seed=5)))
    people = torch.rand(len(labels), 4, generator=g)
    people = people / people.sum(1, keepdim=True)
    people[3] = torch.nan
    posterior = torch.rand(len(labels), 7, generator=g).double().softmax(1)
    quality = Quality(values=torch.rand(len(labels), generator=g), kind="crop", clean={"norm": confidences["method"]})
    given = {
        "labels": labels,
        "ids": ids,
        "scorers": _scorers(x),
        "own_scorers": ("cosine",),
        "confidences": confidences,
        "directions": lambda: x,
        "quality": quality if corrupted else None,
        "soft_labels": people,
        "posterior": lambda: posterior,
        "validation": validation,
        "candidates": lambda: ScoreMatrix(-torch.cdist(x, x), "l2"),
        "clean": not corrupted,
        "options": Options(held_out_threshold=True),
    }
    return Embeddings(**(given | changes))


def _scorers(x):
    return {"cosine": lambda: ScoreMatrix(x @ x.T, "cosine"), "mls": lambda: ScoreMatrix((x @ x.T) ** 3, "mls")}


def test_every_declared_metric_is_computed_by_the_tests_of_its_group():
    names = {
        row["metric"]
        for corrupted in (False, True)
        for row in run_battery(_view(corrupted), load_tests(known_groups()))
    }
    assert {find_metric(name).name for name in names} == set(METRICS)
    assert {metric.group for metric in METRICS.values()} | {"reranked"} == set(BUILT_IN)


def test_a_test_that_lacks_what_it_needs_is_left_out():
    lacking = dict.fromkeys(["directions", "soft_labels", "posterior", "candidates", "validation"])
    rows = run_battery(_view(confidences={}, own_scorers=(), **lacking), load_tests(known_groups()))
    groups = {find_metric(row["metric"]).group for row in rows}
    assert groups == {"retrieval", "map_at_1000", "verification", "risk", "open_set"}
    of_vectors = {"consistency", "posterior", "view_agreement"}
    assert {row["confidence"] for row in rows} == {"", *RETRIEVAL_CONFIDENCES} - of_vectors
    assert "threshold_val" not in {row["variant"] for row in rows}


class _Counting(ScoreMatrix):
    """A scorer that counts the queries it was asked to score."""

    def __init__(self, scores, name, asked):
        super().__init__(scores, name)
        self.asked = asked

    def matrix(self, queries, gallery):
        self.asked.append(len(queries))
        return super().matrix(queries, gallery)


def test_one_ranking_serves_every_test():
    asked, made = [], []
    x = clustered(_view().labels)

    def make():
        made.append(1)
        return _Counting(x @ x.T, "cosine", asked)

    view = _view(scorers={"cosine": make}, candidates=None)
    run_battery(view, load_tests(["retrieval", "filter_out", "risk", "discard", "retrieval_sets"]))
    assert made == [1]
    assert asked[0] == sum(asked) == len(view)


def test_splits_of_the_same_images_share_what_depends_on_labels_alone():
    from dataclasses import replace

    view = _view()
    assert view.once("a", lambda: 1, shared=True) == 1
    assert view.once("b", lambda: 1) == 1
    other = replace(view, clean=False)
    assert (other.once("a", lambda: 2, shared=True), other.once("b", lambda: 2)) == (1, 2)


PLUGIN = '''"""How well the classes are aligned (Wang and Isola 2020)."""

from bench.protocols.declare import test
from bench.protocols.embeddings import Embeddings
from bench.protocols.metrics import Metric
from bench.protocols.rows import row

ALIGNMENT = Metric(name="alignment", title="alignment loss", group="alignment", of="embeddings", better="lower",
                   unit="number", high=4.0, source="Wang and Isola 2020")


@test(group="alignment", per="embeddings", needs=("directions",), metrics=(ALIGNMENT,))
def alignment(view: Embeddings):
    x, y = view.unit_vectors, view.labels
    same = (y[:, None] == y[None]) & ~y.new_ones(len(y), len(y)).bool().diagonal().diag()
    yield row("alignment", float((2 - 2 * x @ x.T)[same].mean()), n_queries=len(view))
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The module of a test file of one's own; it is forgotten afterwards."""
    path = tmp_path / "my_alignment.py"
    path.write_text(PLUGIN)
    spec = importlib.util.spec_from_file_location("my_alignment", path)
    module = importlib.util.module_from_spec(spec)
    load_tests(BUILT_IN)
    monkeypatch.setattr(declare, "_DECLARED", dict(declare._DECLARED))
    spec.loader.exec_module(module)
    return module


def test_a_new_test_of_embeddings_is_one_file_with_its_metrics(plugin):
    """Fault A9: it took seven edits, of the engine, the plan, the scoring, the tables, the help and the docs."""
    view = _view()
    rows = run_battery(view, load_tests(["alignment"]))
    x = view.unit_vectors
    same = (view.labels[:, None] == view.labels[None]).fill_diagonal_(False)
    assert [row["metric"] for row in rows] == ["alignment"]
    assert rows[0]["value"] == pytest.approx(float(torch.cdist(x, x).square()[same].mean()))
    metric = find_metric("alignment")
    assert (metric, title_of("alignment"), metric.sign) == (plugin.ALIGNMENT, "alignment loss", -1)
    assert "alignment" in known_groups()
    assert known_metrics()["alignment"] == plugin.ALIGNMENT
    assert metric_requests()["alignment"] == ("alignment",)
    assert "alignment" in metric_help()
    assert [test.module for test in load_tests(["alignment"])] == ["my_alignment"]


def test_a_metric_of_a_name_that_is_taken_is_refused(plugin):
    from bench.protocols.metrics import Metric

    taken = Metric(name="nmi", title="another NMI", group="mine")
    with pytest.raises(ValueError, match="of group 'mine', its test of group 'other'"):
        declare.test(group="other", per="embeddings", metrics=(taken,))
    declare.test(group="mine", per="embeddings", metrics=(taken,))(lambda view: ())
    with pytest.raises(ValueError, match="'nmi', which already exists"):
        find_metric("map_at_r")


def test_every_built_in_group_is_declared_where_the_registry_says():
    for group, module in BUILT_IN.items():
        tests = load_tests([group])
        assert len(tests) == 1
        assert tests[0].module == f"bench.protocols.{module}"
    assert {test.group for test in declare.declared_tests() if test.module.startswith("bench.")} == set(BUILT_IN)
    with pytest.raises(ValueError, match="unknown group of tests 'nmi'"):
        load_tests(["nmi"])


def test_the_plans_of_the_protocols_name_known_groups():
    for name in ("reality_check", "standardized"):
        for preset in get_protocol(name).presets.values():
            extra = {"map_at_1000", "clustering", "structure"} if name == "standardized" else set()
            assert set(preset.tests.groups) == set(BUILT_IN) - {"map_at_1000", "clustering", "structure"} | extra
