"""The scripts of examples/ run, on tiny data, and that of the paper."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
BENCH = Path(sys.executable).with_name("bench")
COLUMNS = ("dataset", "method", "base", "hparams", "trials", "pinned", "seed", "split", "scorer")
COLUMNS += ("confidence", "variant", "metric", "fraction", "value")


def _run(*command, cwd):
    return subprocess.check_output([str(part) for part in command], cwd=cwd, text=True)


@pytest.mark.slow
def test_scoring_embeddings_of_ones_own(tmp_path):
    text = _run(sys.executable, "-P", EXAMPLES / "score_embeddings.py", cwd=tmp_path)
    aurc = {line.split()[0]: float(line.split()[-1]) for line in text.splitlines() if " recall_at_1 " in line}
    assert aurc["oracle"] < aurc["given"] < aurc["random"]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "method"), [("own_method.py", "smoothed_softmax"), ("pml_loss.py", "pml_triplet")])
def test_a_method_of_ones_own_passes_bench_test(tmp_path, file, method):
    plugin = EXAMPLES / file
    text = _run(BENCH, "test", "--method", method, "--plugin", plugin, cwd=tmp_path)
    assert text.count("ok ") > 5
    assert "FAIL" not in text


def _metrics():
    pfe = ("pfe", "cosface", "method")
    made = (("cosface", "", "max_cosine", ""), (*pfe, ""), (*pfe, "swept=1"))
    for method, base, confidence, pinned in made:
        for seed in (0, 1):
            row = {"dataset": "toy", "method": method, "base": base, "seed": seed, "split": "test", "scorer": "cosine"}
            row |= {"hparams": "default", "trials": 0, "pinned": pinned}
            yield row | {"metric": "map_at_r", "value": 0.5 + 0.25 * seed - 0.25 * bool(pinned)}
            for fraction in (0.0, 0.5):
                curve = {"confidence": confidence, "variant": "query_only", "metric": "filter_out_map_at_r"}
                yield row | curve | {"fraction": fraction, "value": 0.5 + fraction / 2}


def test_reading_results(tmp_path):
    with (tmp_path / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(_metrics())
    text = _run(sys.executable, "-P", EXAMPLES / "read_results.py", tmp_path, cwd=tmp_path)
    # Two settings of a method are two rows.
    assert " ".join(text.split()).count("default 0 0.625 0.177 2 swept=1 0.375 0.177 2") == 1
    assert "by seed" in text
    assert text.count("0.750") == 5  # the second seed of two rows, and the ends of three curves


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    cells = json.loads((EXAMPLES / "first_hour.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)  # none is kept: they would go out of date
    shown = "\nprint(len(failed), len(results.verdicts), found.mean.shape, len(found.confidence['method']))"
    text = _run(sys.executable, "-P", "-c", "\n\n".join(code) + shown, cwd=tmp_path)
    failed, verdicts, *shape = text.splitlines()[-1].split(maxsplit=2)
    assert int(failed) > 0
    assert int(verdicts) > 0
    assert shape == ["(3, 64) 3"]
    assert (tmp_path / "results/notebook/report/report.html").exists()


@pytest.mark.slow
def test_drawing_the_reliability_of_a_confidence(tmp_path):
    asked = ("--method", "cosface", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "1")
    _run(BENCH, "run", *asked, "--set", "optim.epochs=1", "--results", "runs", cwd=tmp_path)
    text = _run(sys.executable, "-P", EXAMPLES / "reliability.py", "runs", cwd=tmp_path)
    assert text.startswith("ndigit_smoke, cosface, default, optim.epochs=1: 1200 queries")
    assert (tmp_path / "reliability.png").exists()


@pytest.mark.slow
def test_every_number_of_the_paper_is_one_row_of_the_records(tmp_path):
    _run(sys.executable, "-P", EXAMPLES.parent / "docs/paper/make.py", "--out", tmp_path, cwd=tmp_path)
    assert "$-0.5$ $[-0.6, -0.3]$" in (tmp_path / "numbers.tex").read_text()
    assert (tmp_path / "paper.pdf").exists() or not shutil.which("pdflatex")
