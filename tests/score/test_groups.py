"""Groups, ignored images and unknown queries in files, in Python and in folders of photographs."""

import json
import warnings

import bench as package
import numpy as np
import pytest
from bench.commands.embed import groups_of
from bench.errors import UserError

G = np.random.default_rng(3)
LABELS = np.repeat(np.arange(20), 12)
BURSTS = np.arange(240) // 3
CENTRES = G.normal(size=(20, 160))
NOISE = G.normal(size=(240, 160))
POINTS = CENTRES[LABELS] + 0.6 * NOISE
SMALL = POINTS[:, :8]


def _scored(x, labels, **options):
    with warnings.catch_warnings(action="ignore"):
        table = package.score(x, labels, **options).table.drop(columns="unit")
    keys = ["scorer", "confidence", "variant", "metric", "fraction"]
    return table.set_index(keys)[["value", "n_queries", "n_lone"]].sort_index()


def test_ignored_images_are_as_if_they_were_not_there():
    ignore = G.random(240) < 0.2
    options = {"metrics": ["recall", "verification", "open_set", "nmi"]}
    found = _scored(SMALL, LABELS, ignore=ignore, **options)
    assert found.equals(_scored(SMALL[~ignore], LABELS[~ignore], **options))
    rows = package.score(SMALL, LABELS, ignore=ignore).queries["row"]
    assert rows.tolist() == np.flatnonzero(~ignore).tolist()  # those of the input


def test_rows_of_another_set_are_unknown_queries_of_the_open_set_test_alone(bench, tmp_path):
    known = LABELS < 14
    options = {"metrics": ["recall_at_1", "verification", "open_set"]}
    found = _scored(SMALL[known], LABELS[known], unknown=SMALL[~known], **options)
    together = _scored(SMALL, LABELS, is_query=np.ones(240), is_gallery=known, **options)
    alone = _scored(SMALL[known], LABELS[known], metrics=options["metrics"][:2])
    is_open = found.index.get_level_values("metric").str.startswith("open_set")
    drawn = found.index.get_level_values("confidence") == "random"  # by the names of the rows
    assert found[is_open & ~drawn].equals(together.loc[found[is_open & ~drawn].index])
    assert found[~is_open].equals(alone)
    assert found[is_open].index.get_level_values("variant").str.startswith("unknown_queries").all()
    with pytest.raises(ValueError, match="unknown: 4 dimensions, and the gallery has 8"):
        package.score(SMALL, LABELS, unknown=SMALL[:, :4])
    names = [f"class {label}" for label in range(20)]
    np.savez("mine.npz", embeddings=SMALL[known], labels=LABELS[known], class_names=names[:14])
    np.savez("other.npz", embeddings=SMALL[~known], labels=LABELS[~known] - 14, class_names=names[14:])
    code, out, _ = bench("score", "mine.npz", "--unknown", "other.npz")
    assert code == 0
    assert "72 unknown queries are added" in " ".join(out.split())
    assert "unknown queries,far=0.01" in out
    np.savez("all.npz", embeddings=SMALL, labels=LABELS, is_query=LABELS > 8, is_gallery=LABELS < 14)
    code, out, _ = bench("score", "all.npz")
    assert "72 of 132 queries are of classes that the gallery lacks" in " ".join(out.split())
    assert json.loads(bench("score", "all.npz", "--json")[1])["files"][0]["unknown"] == 72


ONES = np.ones(240, dtype=bool)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"groups": LABELS}, "no query has another image of its class and of another group in the gallery"),
        ({"groups": np.zeros(240, dtype=int)}, "groups are cameras, bursts or sessions, not classes"),
        ({"groups": BURSTS[1:]}, "groups must have the shape [240]"),
        ({"groups": np.where(ONES, np.nan, 0)}, "groups must be text or integers, not float64"),
        ({"ignore": ONES}, "ignore is True everywhere"),
        ({"ignore": LABELS > 0}, "labels are of one class only"),
        ({"ignore": BURSTS}, "ignore must be booleans"),
        ({"is_query": LABELS < 5, "is_gallery": LABELS > 9}, "all 60 queries are of classes that the gallery lacks"),
        ({"is_gallery": BURSTS < 2, "groups": np.minimum(BURSTS // 2, 1)}, "the gallery is one class and group"),
        ({"unknown": {"embeddings": SMALL[:, :4]}}, "other.npz: 4 dimensions, and the gallery has 8"),
        ({"unknown": {"embeddings": SMALL, "labels": LABELS}}, "240 of 240 rows are of classes that the gallery has"),
        ({"unknown": {"embeddings": 0 * SMALL}}, "other.npz: embeddings has 240 rows of zeros"),
        ({"unknown": {"embeddings": SMALL}, "confidence": SMALL[:, 0]}, "other.npz: confidence missing"),
        (
            {"unknown": {"embeddings": SMALL, "variance": SMALL**2}, "variance": SMALL[:, 0] ** 2},
            "other.npz: variance missing, or of other dimensions",
        ),
    ],
)
def test_bad_input_is_one_line(arrays, said, bench):
    other = arrays.get("unknown")
    np.savez("mine.npz", embeddings=SMALL, labels=LABELS, **{key: arrays[key] for key in arrays if key != "unknown"})
    np.savez("other.npz", **(other or {}))
    code, _, err = bench("score", "mine.npz", *(["--unknown", "other.npz"] if other else []))
    assert (code, err.count("\n"), said in err) == (2, 1, True)


def test_near_duplicates_of_bursts_are_named_unless_groups_say_so():
    def line(x, labels=LABELS, **options):
        return "near-duplicates" in package.score(x, labels, **options).summary()

    bursts = CENTRES[LABELS] + 0.6 * NOISE[BURSTS] + 0.3 * G.normal(size=(240, 160))
    assert line(bursts)
    assert not line(bursts, groups=BURSTS)
    assert not line(bursts, is_query=LABELS > 2)
    assert not line(POINTS)
    assert not line(NOISE)
    assert not line(POINTS[:, :8])
    # Where some images are sharper than others, each class has one pair of the sharpest.
    assert not line(CENTRES[LABELS] + np.exp(G.normal(size=(240, 1))) * 0.3 * NOISE)


def test_groups_of_photographs_are_in_their_names():
    names = ["a/0001_c1_f3.jpg", "b/0002_c3_f1.jpg"]
    assert groups_of(r"_c(\d+)_", names)["groups"].tolist() == ["1", "3"]
    assert groups_of(None, names) == {}
    for pattern, said in ((r"_d(\d)", "2 of 2 names"), (r"_c\d", "one pair of parentheses"), ("(", "no regular")):
        with pytest.raises(UserError, match=said):
            groups_of(pattern, names)
