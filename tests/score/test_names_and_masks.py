"""Names, labels and masks mean the same however they are stored, in ``bench score`` and ``bench data features``."""

import json
import re
import tempfile
import unicodedata
import warnings
from pathlib import Path

import bench
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bench.errors import BadInput
from bench.scoring.embedding_set import EmbeddingSet
from bench.scoring.feature_files import import_features
from bench.scoring.files import read_embeddings
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

LABELS = np.repeat(np.arange(6), 5)
POINTS = (np.eye(6)[LABELS] + 0.6 * np.random.default_rng(0).normal(size=(30, 6))).astype(np.float32)
FORMS = {
    "text": np.array,
    "bytes": lambda texts: np.array([text.encode() for text in texts]),
    "objects": lambda texts: np.array(texts, object),
    "bytes and text": lambda texts: np.array([t.encode() if i % 3 else t for i, t in enumerate(texts)], object),
    "list": lambda texts: [t.encode() if i % 3 else t for i, t in enumerate(texts)],
    "StringDType": lambda texts: np.array(texts, np.dtypes.StringDType()),
    "spelled apart": lambda texts: np.array([unicodedata.normalize("NFD", text) for text in texts]),
}
"""Ways to store texts."""


def _table(labels):
    with warnings.catch_warnings(action="ignore"):
        return bench.score(POINTS, labels).table.drop(columns="unit")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["{}", "é {}"])
def test_labels_score_equally_however_they_are_stored(form, kind):
    labels = FORMS[form]([kind.format(label) for label in LABELS])
    pd.testing.assert_frame_equal(_table(labels), _table(LABELS), check_exact=True)
    classes = EmbeddingSet.of({"embeddings": POINTS, "labels": labels}).classes
    assert [unicodedata.normalize("NFC", name) for name in classes] == [kind.format(label) for label in range(6)]


def test_labels_whose_accents_are_spelled_apart_are_one_class():
    apart = np.array([unicodedata.normalize(("NFC", "NFD")[i % 2], f"café {label}") for i, label in enumerate(LABELS)])
    pd.testing.assert_frame_equal(_table(apart), _table(LABELS), check_exact=True)


def _import(folder, train, test):
    files = {"train": folder / "train.npz", "test": folder / "test.npz"}
    for path, arrays in zip(files.values(), (train, test)):
        np.savez(path, features=POINTS, **arrays)
    return import_features("mine", files, folder / "data", lambda *_: None)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["", "ids", "classes", "groups"]), st.booleans())
def test_what_two_splits_share_is_found_however_it_is_stored(seed, planted, numbered):
    rng = np.random.default_rng(seed)

    def stored(texts):
        return FORMS[("text", "bytes", "spelled apart")[rng.integers(3)]](list(texts))

    pool = {kind: rng.permutation([f"{start}{i}" for start in ("é ", "") for i in range(40)]) for kind in
            ("ids", "classes", "groups")}  # fmt: skip
    worlds = []
    for split in (slice(0, 40), slice(40, 80)):
        own = {kind: names[split].copy() for kind, names in pool.items()}
        if planted and worlds:
            own[planted][rng.integers(6)] = pool[planted][rng.integers(6)]
        world = {"ids": stored(own["ids"][:30]), "groups": stored(own["groups"][LABELS])}
        named = {"labels": LABELS, "class_names": stored(own["classes"][:6])}
        worlds.append(world | (named if numbered else {"labels": stored(own["classes"][LABELS])}))
    with tempfile.TemporaryDirectory() as folder:
        if planted:
            with pytest.raises(BadInput, match=f"1 {planted} in both"):
                _import(Path(folder), *worlds)
        else:
            assert "30 + 30 images" in _import(Path(folder), *worlds)[0]


@pytest.mark.parametrize("form", ["bytes in Parquet", "JSON in safetensors", "str() of bytes"])
def test_what_two_splits_share_is_found_in_other_files(tmp_path, form):
    names = [f"é {i}.jpg" for i in range(30)]
    files = {"train": tmp_path / "train.npz", "test": tmp_path / "test.npz"}
    np.savez(files["train"], features=POINTS, labels=LABELS, ids=names)
    said = "30 ids in both, such as é 0.jpg"
    if form == "bytes in Parquet":
        files["test"] = tmp_path / "test.parquet"
        columns = {"features": POINTS.tolist(), "labels": LABELS + 6, "ids": [name.encode() for name in names]}
        pd.DataFrame(columns).to_parquet(files["test"])
    elif form == "JSON in safetensors":
        files["test"] = tmp_path / "test.safetensors"
        save_file({"features": POINTS, "labels": LABELS + 6}, files["test"], {"ids": json.dumps(names)})
    else:
        np.savez(files["test"], features=POINTS, labels=LABELS + 6, ids=[str(name.encode()) for name in names])
        said = "ids are str() of bytes, such as b'"
    with pytest.raises(BadInput, match=re.escape(said)):
        import_features("mine", files, tmp_path / "data", lambda *_: None)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1] * 60 + [-1, 2, float("nan"), 0.5]), min_size=30, max_size=30),
    st.sampled_from(["?", "i1", "f4", "U3"]),
    st.sampled_from(["is_query", "is_gallery"]),
)
def test_masks_are_taken_or_refused_alike(values, dtype, key):
    with warnings.catch_warnings(action="ignore"):  # nan as an integer
        mask = np.array(values).astype(dtype)
    right = dtype != "U3" and bool(np.isin(mask, (0, 1)).all())
    chosen = {"is_query": np.ones(30, bool), "is_gallery": np.ones(30, bool), key: mask == 1 if right else mask}
    right = right and any(
        chosen["is_query"][q] and chosen["is_gallery"][g] and q != g and LABELS[q] == LABELS[g]
        for q in range(30)
        for g in range(30)
    )  # fmt: skip
    right = right and chosen["is_gallery"].sum() > 1
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for read in (
            lambda: getattr(EmbeddingSet.of({"embeddings": POINTS, "labels": LABELS, key: mask}), key),
            lambda: _import(Path(folder), {"labels": LABELS + 6}, {"labels": LABELS, key: mask}),
        ):
            try:
                found = read()
                said.append("")
            except BadInput as error:
                said.append(str(error).rpartition("test.npz: ")[2])
        assert said[0] == said[1]
        assert right == (not said[0])
        if right:
            found = load_file(Path(folder) / "data" / "mine" / "test.safetensors")[key]
            assert np.array_equal(found, chosen[key])


@pytest.mark.filterwarnings("ignore:labels are text")
def test_label_minus_one_is_noted_with_the_line_that_leaves_it_out(tmp_path):
    line = "5 rows have the label -1, which counts as a class; if it means none, leave them out: "
    for labels, how in ((LABELS - 1, ">= 0"), ((LABELS - 1).astype(str), "!= '-1'")):
        with pytest.warns(UserWarning, match=f"{line}is_query = is_gallery = labels {how}"):
            bench.score(POINTS, labels, metrics="recall_at_1")
    mask = LABELS > 0
    with warnings.catch_warnings(action="error"):
        bench.score(POINTS, LABELS - 1, is_query=mask, is_gallery=mask, metrics="recall_at_1")
    said = _import(tmp_path, {"labels": LABELS - 1}, {"labels": LABELS + 9})
    assert f"train: {line}keep = labels >= 0" in said
    with pytest.raises(BadInput, match="1 classes in both, such as -1; -1, if it means no class, is left out"):
        _import(tmp_path, {"labels": LABELS - 1}, {"labels": np.where(LABELS, LABELS + 9, -1)})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"embeddings": torch.tensor(POINTS).to_sparse()}, "embeddings is no plain tensor: can't convert Sparse"),
        ({"embeddings": torch.empty(30, 6, device="meta")}, "embeddings is no plain tensor: Cannot copy out of meta"),
        ({"embeddings": torch.tensor(POINTS).cfloat().conj()}, "must be numbers, not complex numbers"),
        ({"embeddings": list(torch.tensor(POINTS).requires_grad_())}, "embeddings is not an array: Can't call numpy"),
        ({"embeddings": np.ma.array(POINTS, mask=POINTS > 1.9)}, "embeddings is a masked array with 2 masked rows"),
        ({"embeddings": [np.ma.array(row, mask=row > 1.9) for row in POINTS]}, "with 2 masked rows, first row"),
        ({"labels": np.ma.array(LABELS, mask=LABELS == 3)}, "masked array with 5 masked rows, first row 15"),
        ({"is_query": [True] * 29 + [None]}, "be booleans, not Python objects, such as NoneType in row 29"),
        ({"labels": [*LABELS[:29], None]}, "Python objects, such as NoneType in row 29, they must be integers"),
        ({"labels": np.where(LABELS == 2, np.nan, LABELS)}, "float64 numbers, they must be integers: row 10"),
        ({"labels": np.where(LABELS == 2, 2.5, LABELS)}, "they must be integers: row 10 has 2.5"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_array_is_refused_with_the_line_that_makes_one(changed, said):
    with pytest.raises(BadInput, match=re.escape(said)):
        bench.score(**{"embeddings": POINTS, "labels": LABELS} | changed)


def test_quantised_tensors_are_refused_and_a_mask_of_nothing_is_no_mask():
    with warnings.catch_warnings(action="ignore"):  # torch is about to drop them
        quantised = torch.quantize_per_tensor(torch.tensor(POINTS), 0.1, 0, torch.qint8)
    with pytest.raises(BadInput, match="embeddings is no plain tensor: "):
        bench.score(quantised, LABELS)
    pd.testing.assert_frame_equal(bench.score(np.ma.array(POINTS), LABELS).table, bench.score(POINTS, LABELS).table)


TEXTS = [f"é {i}" for i in range(30)]
BYTES = [text.encode() for text in TEXTS]
COLUMNS = {
    "text one after another": ({"ids": TEXTS}, {"ids": "DELTA_LENGTH_BYTE_ARRAY"}),
    "bytes one after another": ({"ids": BYTES}, {"ids": "DELTA_LENGTH_BYTE_ARRAY"}),
    "bytes": ({"ids": BYTES}, {}),
    "large bytes": ({"ids": pa.array(BYTES, pa.large_binary())}, {}),
    "bytes of one length": ({"ids": pa.array([text[:4].encode().ljust(5) for text in TEXTS], pa.binary(5))}, {}),
    "tensor": ({"embeddings": pa.FixedShapeTensorArray.from_numpy_ndarray(POINTS)}, {}),
    "flat tensor": ({"embeddings": pa.FixedShapeTensorArray.from_numpy_ndarray(POINTS[:, None])}, {}),
    "lists in lists": ({"embeddings": [[row] for row in POINTS.tolist()]}, {}),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_parquet_by_other_writers(tmp_path, name):
    changed, encoding = COLUMNS[name]

    columns = pa.table({"embeddings": POINTS.tolist(), "labels": LABELS, **changed})
    pq.write_table(columns, tmp_path / "x.parquet", use_dictionary=not encoding, column_encoding=encoding or None)
    found = EmbeddingSet.of(read_embeddings(tmp_path / "x.parquet")[0])
    assert np.array_equal(found.embeddings[:], POINTS.astype(float))
    if "ids" in changed:
        assert [item.strip() for item in found.ids] == [f"é {i}"[: 4 if "length" in name else 9] for i in range(30)]


def test_views_in_a_column_of_tensors_are_views(tmp_path):

    views = np.stack([POINTS, POINTS + 1], 1)
    for first, path in ((0, tmp_path / "train.parquet"), (6, tmp_path / "test.parquet")):
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(views) if first else views.tolist()
        pq.write_table(pa.table({"features": column, "labels": LABELS + first}), path)
    files = {split: tmp_path / f"{split}.parquet" for split in ("train", "test")}
    assert "2 views" in import_features("mine", files, tmp_path / "data", lambda *_: None)[0]
    for split in files:
        found = load_file(tmp_path / "data" / "mine" / f"{split}.safetensors")["features"]
        assert np.array_equal(found, views)
