"""Trainings have the same bits on processors with other instruction sets; records say how their machine rounds."""

import json

import pytest
import torch
from bench.engine import environment

from tests.plans import planned

from .conftest import Cli

NARROWER = {"MKL": ("MKL_CBWR", "AVX2"), "torch": ("ATEN_CPU_CAPABILITY", "avx2")}
"""Settings under which libraries compute as on a processor without AVX-512: that of matrix products, and torch's own.

That of convolutions, oneDNN's, has no such setting: without AVX-512 it rounds differently."""

OTHER: dict[str, str] = {}
"""Methods that have other bits under one of these settings, and why."""

RUN = ("run", "--method", "all", "--dataset", "ndigit_smoke", "--hparams", "default", "--seeds", "2")


def _trained(root):
    records = [json.loads(path.read_text()) for path in sorted(root.rglob("train-*/record.json"))]
    return {(each["cell"][2], each["unit"]): each for each in records}


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory):
    folder = tmp_path_factory.mktemp("as_it_is")
    Cli(folder)(*RUN, "--results", folder / "runs")
    return _trained(folder / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("library", NARROWER)
def test_all_methods_train_to_the_same_bits(library, as_it_is, cli, tmp_path, monkeypatch):
    monkeypatch.setenv(*NARROWER[library])
    cli(*RUN, "--results", tmp_path / "runs")
    found = _trained(tmp_path / "runs")
    assert found.keys() == as_it_is.keys()
    assert len({method for method, _ in found}) > 25
    for (method, unit), record in found.items():
        usual = as_it_is[method, unit]
        for name in ("files", "history", "val_map_at_r"):
            assert record[name] == usual[name] or method in OTHER, (method, name)
        assert record["environment"]["rounding"] == usual["environment"]["rounding"] or method in OTHER, method


@pytest.mark.slow
def test_a_page_says_that_the_trainings_of_a_method_did_not_round_alike(cli, tmp_path, monkeypatch):
    small = ("run", "--method", "pfe", "--dataset", "ndigit_smoke", "--hparams", "default", "--set", "optim.epochs=1")
    cli(*small, "--seeds", "1")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    cli(*small, "--seeds", "2")
    runs = tmp_path / "results" / "runs"
    digests = {(each["cell"][2], each["environment"]["rounding"]) for each in _trained(runs).values()}
    assert len(digests) == 4  # two of the method, two of its base
    cli("report", "--out", tmp_path / "out")
    assert (
        "pfe (cosface) on ndigit_smoke: 2 roundings among its trainings" in (tmp_path / "out/report.html").read_text()
    )


def test_memory_that_is_too_small_for_the_probe_fails_no_training(tmp_path, monkeypatch):
    def too_large(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(environment, "_after_steps", too_large)
    [plan], site = planned(tmp_path, "cosface", seeds=1)
    (spec,) = plan.train_specs(plan.defaults(), 0, None).values()
    monkeypatch.setattr(environment, "_known", {})
    assert environment.rounding(spec, site, (1, 10, 26)) == ""
