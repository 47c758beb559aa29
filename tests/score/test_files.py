"""Files: every format gives the same table, and a bad file gives one line and exit code 2."""

import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import bench as package
import numpy as np
import pandas as pd
import pytest
import torch
from bench.errors import BadInput
from bench.scoring.embedding_set import EmbeddingSet
from bench.scoring.files import read_embeddings, write_embeddings
from bench.store.records import COLUMNS

from tests.refusals import within_memory

CONSOLE = Path(sys.executable).with_name("bench")
SUFFIXES = (".npz", ".safetensors", ".parquet")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_table_of_the_arrays(arrays, bench, tmp_path, suffix):
    arrays["is_query"] = arrays["labels"] < 6
    write_embeddings(tmp_path / f"set{suffix}", arrays)
    code, out, err = bench("score", f"set{suffix}", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    expected = package.score(**arrays).table.drop(columns="method")
    assert [row["value"] for row in found["rows"]] == [None if v != v else v for v in expected["value"]]
    assert set(found["rows"][0]) == set(COLUMNS)
    assert {row["method"] for row in found["rows"]} == {"set"}
    assert found["files"][0]["queries"] == 35


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_back(arrays, tmp_path, suffix):
    count = len(arrays["labels"])
    arrays |= {
        "variance": np.random.default_rng(0).uniform(0.1, 1, (count, 6)),
        "is_gallery": np.arange(count) > 2,
        "ids": np.array([f"é\n/{i}.png" for i in range(count)]),
        "normalize": np.array(False),
    }
    write_embeddings(tmp_path / f"set{suffix}", arrays)
    found, others = read_embeddings(tmp_path / f"set{suffix}")
    assert others == []
    assert set(found) == set(arrays)
    for key, value in arrays.items():
        assert np.array_equal(found[key], value), key


def test_parquet_may_have_a_column_per_dimension(arrays, tmp_path):
    frame = pd.DataFrame({f"embeddings_{i}": arrays["embeddings"][:, i] for i in (3, 1, 0, 2, 4, 5)})
    frame.assign(labels=arrays["labels"], path="x.jpg").to_parquet(tmp_path / "wide.parquet")
    found, others = read_embeddings(tmp_path / "wide.parquet")
    assert np.array_equal(found["embeddings"], arrays["embeddings"])
    assert others == ["path"]


@pytest.mark.slow
def test_the_real_command_prints_a_table(arrays, tmp_path):
    np.savez_compressed(tmp_path / "mine.npz", **arrays)
    command = [CONSOLE, "score", "mine.npz", "--metrics", "recall,map_at_r,verification"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("n_lone", "MAP@R", "oracle", "confidence 'given'", "held out"):
        assert text in done.stdout


@pytest.mark.slow
def test_errors_versus_discard_are_printed_and_written_on_request(arrays, bench, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays)
    code, out, _ = bench("score", "mine.npz", "--metrics", "discard", "--out", "out")
    lines = [line.split() for line in out.splitlines() if "threshold refit" in line]
    assert (code, {line[0] for line in lines}) == (0, {"given", "norm", "random"})
    frame = pd.read_csv(tmp_path / "out" / "metrics.csv", keep_default_na=False)
    given = frame[(frame["confidence"] == "given") & (frame["variant"] == "threshold_refit")]
    values = dict(zip(zip(given["metric"], given["fraction"]), given["value"].astype(float)))
    printed = next(line for line in lines if line[0] == "given")[-4:]
    rates = [f"{100 * values['edc_fnmr', share]:.2f}" for share in ("0.0", "0.1", "0.2")]
    assert printed == [*rates, f"{values['edc_pauc', '']:.4f}"]
    curves = pd.read_csv(tmp_path / "out" / "curves.csv")
    assert sorted(set(curves[curves["curve"] == "edc_fnmr"]["x"])) == [0.0, 0.1, 0.2]


@pytest.mark.slow
def test_metrics_that_differ_in_their_variants_share_a_table(arrays, bench, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays)
    code, out, _ = bench("score", "mine.npz", "--metrics", "open_set,confidence_correlation", "--out", "out")
    frame = pd.read_csv(tmp_path / "out" / "metrics.csv", keep_default_na=False)
    chosen = frame[(frame["metric"] == "open_set_tar") & (frame["confidence"] == "margin")]
    value = dict(zip(chosen["variant"], chosen["value"].astype(float)))["far=0.1"]
    assert code == 0
    assert ["margin", "far=0.1", "-", "-", f"{100 * value:.2f}", "-"] in [line.split() for line in out.splitlines()]


@pytest.mark.slow
def test_tables_and_figures_are_written(arrays, bench, tmp_path):
    write_embeddings(tmp_path / "mine.npz", arrays)
    assert bench("score", "mine.npz", "--out", "out")[0] == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {"filter_out_map_at_r.svg", "risk_coverage.svg"}
    assert written == {"metrics.csv", "curves.csv", "scores.html"} | figures
    assert all(ElementTree.parse(tmp_path / "out" / name).getroot().tag.endswith("}svg") for name in figures)
    page = (tmp_path / "out" / "scores.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == 2
    assert "confidence &#x27;given&#x27;: without its least confident half" in page
    assert "http" not in page
    assert list(pd.read_csv(tmp_path / "out" / "metrics.csv", keep_default_na=False).columns) == list(COLUMNS)
    curves = pd.read_csv(tmp_path / "out" / "curves.csv")
    risk = curves[(curves["curve"] == "risk_coverage") & (curves["confidence"] == "given")]
    recall = package.score(arrays["embeddings"], arrays["labels"], metrics=["recall_at_1"]).table["value"].iloc[0]
    assert risk["value"].iloc[-1] == pytest.approx(1 - recall)
    assert risk["x"].iloc[-1] == 1.0


def test_what_is_not_read_is_said(arrays, bench, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays, paths=np.array(["a"]))
    code, _, err = bench("score", "mine.npz", "--metrics", "map_at_r")
    assert (code, err) == (0, "bench: note: mine.npz: not read: paths\n")


def _npz(change):
    def make(path, arrays):
        np.savez(path, **{key: value for key, value in {**arrays, **change(arrays)}.items() if value is not None})

    return "bad.npz", make


def _bytes(name, change):
    def make(path, arrays):
        write_embeddings(path, arrays)
        path.write_bytes(change(path.read_bytes()))

    return name, make


def _claiming(shape, compression=zipfile.ZIP_STORED, size=None):
    """The header of an array claims a shape, and with a size the directory of the zip claims that, too."""

    def make(path, arrays):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("embeddings.npy", header.getvalue() + bytes(400))
            labels = io.BytesIO()
            np.save(labels, arrays["labels"])
            archive.writestr("labels.npy", labels.getvalue())
            archive.infolist()[0].file_size = size or archive.infolist()[0].file_size

    return "bad.npz", make


def _safetensors(dtype, shape, size, held):
    """A file that claims some bytes and holds others."""

    def make(path, arrays):
        text = json.dumps({"embeddings": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(held))

    return "bad.safetensors", make


def _long_header(path, arrays):
    path.write_bytes(struct.pack("<Q", 10**10) + b"{}")


class _Trap:
    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


_bare = "bad.npz", lambda path, arrays: np.savez(path, arrays["embeddings"], arrays["labels"])


def _pickled(path, arrays):
    np.savez(path, embeddings=np.array([_Trap()] * 3, dtype=object), labels=[0, 1, 1])


def _renamed(old, new):
    return _npz(lambda a: {new: a[old], old: None})


def _parquet(change):
    def make(path, arrays):
        columns = {"embeddings": arrays["embeddings"].tolist(), "labels": arrays["labels"]}
        pd.DataFrame(columns | change(columns)).to_parquet(path)

    return "bad.parquet", make


def _with(array, place, value):
    changed = np.array(array, dtype=np.float64)
    changed[place] = value
    return changed


BAD = {
    "no such file": (("bad.npz", lambda path, arrays: None), "no such file"),
    "empty": (("bad.npz", lambda path, arrays: path.touch()), "is empty"),
    "unknown suffix": (("bad.csv", lambda path, arrays: path.write_text("1,2")), "known: .npz, .safetensors, .parquet"),
    "no embeddings": (_npz(lambda a: {"embeddings": None}), "embeddings missing"),
    "no labels": (_npz(lambda a: {"labels": None}), "labels missing"),
    "nan": (_npz(lambda a: {"embeddings": _with(a["embeddings"], (3, 1), np.nan)}), "infinite), first in row 3; drop"),
    "inf": (_npz(lambda a: {"confidence": _with(a["confidence"], 3, np.inf)}), "holds 1 values that are not"),
    "flat": (_npz(lambda a: {"embeddings": a["embeddings"][:, 0]}), "must have the shape [N, D], not [41]"),
    "no rows": (_npz(lambda a: {"embeddings": a["embeddings"][:0]}), "not [0, 6]"),
    "short labels": (_npz(lambda a: {"labels": a["labels"][:-1]}), "labels must have the shape [41]"),
    "wide confidence": (_npz(lambda a: {"confidence": a["embeddings"]}), "confidence must have the shape [41]"),
    "variance of another space": (_npz(lambda a: {"variance": np.ones((41, 5))}), "[41] or [41, 6], not [41, 5]"),
    "negative variance": (_npz(lambda a: {"variance": _with(a["quality"], 2, -1)}), "variance must be positive; 1 val"),
    "zero variance": (_npz(lambda a: {"variance": _with(a["quality"], 2, 0)}), "variance must be positive"),
    "negative concentration": (_npz(lambda a: {"concentration": _with(a["quality"], 2, -1)}), "not be negative"),
    "two spreads": (_npz(lambda a: {"variance": a["quality"], "concentration": a["quality"]}), "give one"),
    "one class": (_npz(lambda a: {"labels": np.zeros(41, int)}), "one class only"),
    "every image its own class": (_npz(lambda a: {"labels": np.arange(41)}), "there is nothing to find"),
    "float labels": (_npz(lambda a: {"labels": a["labels"] + 0.0}), "labels.astype(int)"),
    "boolean labels": (_npz(lambda a: {"labels": a["labels"] > 3}), "labels are booleans"),
    "object labels": (_npz(lambda a: {"labels": a["labels"].astype(object)}), "pickled Python objects"),
    "pickles": (("bad.npz", _pickled), "never read"),
    "a pickle of its own": (("bad.npz", lambda p, a: p.write_bytes(pickle.dumps(_Trap()))), "not a whole .npz file"),
    "complex": (_npz(lambda a: {"embeddings": a["embeddings"] * 1j}), "complex numbers"),
    "mask of numbers": (_npz(lambda a: {"is_query": np.arange(41)}), "row 2 has 2; is_query == 1 makes booleans"),
    "mask of -1": (_npz(lambda a: {"is_query": np.where(np.arange(41) < 3, 1, -1)}), "row 3 has -1"),
    "mask of nan": (_npz(lambda a: {"is_gallery": _with(np.ones(41), 4, np.nan)}), "is_gallery must be booleans, or 0"),
    "mask of text": (_npz(lambda a: {"is_query": np.full(41, "True")}), "not text: is_query == 'True'"),
    "labels of Latin-1": (_npz(lambda a: {"labels": np.full(41, b"\xe9")}), "first in row 0, '\\udce9': bytes of"),
    "ids of Latin-1": (_npz(lambda a: {"ids": np.array([b"%d\xe9" % i for i in range(41)])}), "ids, 'latin-1'"),
    "bfloat16": (_npz(lambda a: {"embeddings": np.ones((41, 6), "V2")}), "(as NumPy saves bfloat16)"),
    "float8": (_npz(lambda a: {"embeddings": np.ones((41, 6), "V1")}), "(as NumPy saves float8): embeddings.astype"),
    "float4": (_safetensors("F4", [2, 2], 2, 2), "F4 numbers, which are not read"),
    "no query": (_npz(lambda a: {"is_query": np.zeros(41, int)}), "is_query is False everywhere"),
    "no gallery": (_npz(lambda a: {"is_gallery": np.zeros(41, bool)}), "is_gallery leaves 0 images"),
    "repeated ids": (_npz(lambda a: {"ids": a["labels"]}), "ids repeat"),
    "float ids": (_npz(lambda a: {"ids": a["quality"]}), "ids must be text or integers"),
    "normalize of every row": (_npz(lambda a: {"normalize": a["labels"] > 1}), "one boolean"),
    "zero embedding": (_npz(lambda a: {"embeddings": _with(a["embeddings"], 4, 0)}), "rows of zeros, first in row 4"),
    "huge embedding": (_npz(lambda a: {"embeddings": _with(a["embeddings"], 4, 1e308)}), "float64, first in row 4"),
    "mistyped key": (_renamed("confidence", "confidences"), "did you mean 'confidence'"),
    "truncated npz": (_bytes("bad.npz", lambda raw: raw[: len(raw) // 2]), "truncated or damaged"),
    "corrupt npz": (_bytes("bad.npz", lambda raw: raw[:300] + bytes(50) + raw[350:]), "damaged"),
    "an npz that is text": (("bad.npz", lambda p, a: p.write_text("embeddings")), "not a whole .npz file"),
    "an npz of text": (("bad.npz", lambda p, a: zipfile.ZipFile(p, "w").writestr("labels.npy", "x")), "not a NumPy"),
    "npz claims 10 GB": (_claiming((2_500_000, 1000)), "claims 10.0 GB of data and the file holds 400 bytes"),
    "packed npz claims 10 GB": (_claiming((2_500_000, 1000), zipfile.ZIP_DEFLATED), "claims 10.0 GB"),
    "npz claims 10 GB everywhere": (_claiming((2_500_000, 1000), size=10**10 + 128), "claims 10.0 GB"),
    "npz claims less than nothing": (_claiming((-100, 1)), "damaged"),
    "safetensors claims 10 GB": (_safetensors("F32", [2_500_000, 1000], 10**10, 400), "truncated or damaged"),
    "safetensors header of 10 GB": (("bad.safetensors", _long_header), "truncated or damaged"),
    "truncated safetensors": (_bytes("bad.safetensors", lambda raw: raw[:-100]), "truncated or damaged"),
    "truncated parquet": (_bytes("bad.parquet", lambda raw: raw[:-100]), "truncated or damaged"),
    "corrupt parquet": (_bytes("bad.parquet", lambda raw: raw[:4] + bytes(300) + raw[304:]), "damaged"),
    "ragged parquet": (_parquet(lambda c: {"embeddings": [[1.0], *c["embeddings"][1:]]}), "2 different lengths"),
    "empty cells": (_parquet(lambda c: {"labels": [None, *c["labels"][1:]]}), "1 empty cells, first in row 0"),
    "text in parquet": (_parquet(lambda c: {"quality": [f"c{label}" for label in c["labels"]]}), "not text"),
    "logarithms": (_renamed("confidence", "log_variance"), "call its exponential, np.exp(log_variance), variance"),
    "bare": (_bare, "arrays named embeddings [N, D] and labels [N]; not read: arr_0, arr_1"),
    "pt": (("bad.pt", lambda p, a: p.touch()), "embeddings=torch.load('bad.pt').numpy(), labels=labels)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_line(arrays, refused, tmp_path, name):
    (file, make), message = BAD[name]
    make(tmp_path / file, arrays)
    err = refused("score", file)
    assert err.startswith(f"bench: {file}: ")
    assert err.count(file) == 1 + err.count(f"({file!r})")
    assert message in err
    assert not Path("unpickled").exists()


@pytest.mark.parametrize("name", [name for name in BAD if "10 GB" in name])
def test_what_a_file_claims_is_not_allocated(arrays, tmp_path, name):
    (file, make), _ = BAD[name]
    make(tmp_path / file, arrays)
    with within_memory(50e6), pytest.raises(BadInput):
        read_embeddings(tmp_path / file)


def test_text_labels_are_numbered_and_that_is_said(arrays, bench, tmp_path):
    names = np.array([f"class {label}" for label in arrays["labels"]])
    np.savez(tmp_path / "numbers.npz", **arrays)
    np.savez(tmp_path / "texts.npz", **arrays | {"labels": names})
    np.savez(tmp_path / "others.npz", **arrays | {"labels": np.char.replace(names, "class 1", "else")})
    count = len(np.unique(names))
    said = f"bench: note: texts.npz: labels are text: {count} classes are numbered in alphabetical order\n"
    code, out, err = bench("score", "texts.npz", "--json")
    assert (code, err) == (0, said)
    values = [row["value"] for row in json.loads(out)["rows"]]
    assert values == [row["value"] for row in json.loads(bench("score", "numbers.npz", "--json")[1])["rows"]]
    code, _, err = bench("score", "texts.npz", "others.npz")
    assert code == 2
    assert "labels differ: 'class 1" in err


def test_parquet_without_pyarrow_says_what_to_do(arrays, refused, tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "`uv sync --inexact --extra parquet`" in refused("score", "a.parquet")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_what_numpy_lacks_is_read_and_half_is_kept(arrays, tmp_path, dtype):
    import torch
    from safetensors.torch import save_file as save_torch

    x = torch.from_numpy(arrays["embeddings"]).to(getattr(torch, dtype))
    save_torch({"embeddings": x, "labels": torch.from_numpy(arrays["labels"])}, tmp_path / "b.safetensors")
    found, _ = read_embeddings(tmp_path / "b.safetensors")
    assert np.array_equal(found["embeddings"], x.double().numpy())
    assert (found["embeddings"].dtype == np.float16) == (dtype == "float16")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for same in (x, found["embeddings"].astype(getattr(ml_dtypes, dtype, dtype))):
        assert EmbeddingSet.of(arrays | {"embeddings": same}).digest() == EmbeddingSet.of(arrays | found).digest()


@pytest.mark.parametrize("name", ["a.npy", "a.pt", "a.csv"])
def test_the_line_that_converts_a_file_runs_as_it_is(arrays, bench, tmp_path, name):
    (tmp_path / "sub").mkdir()
    x, labels = arrays["embeddings"], np.array([f"class {label}" for label in arrays["labels"]])
    np.save("sub/a.npy", x)
    torch.save(torch.from_numpy(x), "sub/a.pt")
    pd.DataFrame(x).assign(label=labels).to_csv("sub/a.csv", index=False)
    code, _, err = bench("score", f"sub/{name}")
    assert code == 2
    exec(err.partition("convert it: ")[2], {"np": np, "pd": pd, "torch": torch, "labels": labels})
    assert bench("score", "x.npz", "--metrics", "recall_at_1")[0] == 0
