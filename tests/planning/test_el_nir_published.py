"""Replays of EL-nivMF and NIR: where proxies start, and every row of their run scripts, worked out by hand."""

import pytest
from bench.cli import main
from bench.methods.nir import NIR
from bench.methods.proxy_distance import ProxyDistance
from bench.planning.published import published_settings
from bench.registry import Registry

from tests.plans import planned


def _params(tmp_path, method, fidelity, *pins):
    [plan], _ = planned(tmp_path, method, protocol="standardized", fidelity=fidelity, set=pins)
    return plan.template.params


@pytest.mark.parametrize(
    ("method", "start"),
    [
        ("nir", "normal"),
        ("proxy_anchor", "normal"),
        ("proxy_nca", "normal"),
        ("el_nivmf", "scaled"),
        ("proxy_anchor_el_nivmf", "scaled"),
        ("proxy_distance", "scaled"),
    ],
)
def test_proxies_start_where_the_public_code_starts_them(tmp_path, method, start, capsys):
    """They started as in the corrected form; the start is a parameter, so units and records keep it."""
    assert _params(tmp_path, method, "released")["start"] == start
    assert _params(tmp_path, method, "corrected")["start"] == "xavier"
    assert _params(tmp_path, method, "released", "method.start=xavier")["start"] == "xavier"
    capsys.readouterr()
    assert main(["show", method]) == 0
    shown = capsys.readouterr().out
    assert "  start = default xavier" in shown
    assert f"start {start}" in shown


def _setting(method, dataset, network, **kind):
    cls = Registry("methods").method(method)
    (found,) = (
        item
        for item in published_settings(cls, dataset, "cosface")
        if item.network == network
        and kind.items() <= item.kind.items()
        and "scripts" in item.source
        and "double" not in item.variant
    )
    return found


EL_ROWS = [
    # concentration, multiplier, omega, epochs, milestones, gamma, rates of proxies, concentrations, temperature
    ("cub200", 128, 6.0, 30.0, 3.0, 250, [25, 50], 0.3, 0.05, 0.2, 0.002),
    ("cub200", 512, 18.0, 50.0, 5.0, 250, [31], 0.1, 0.05, 0.2, 0.002),
    ("cars196", 128, 9.0, 12.0, 0.3, 300, [60, 80], 0.1, 0.075, 0.075, 0.002),
    ("cars196", 512, 22.0, 10.0, 0.1, 300, [105, 170], 0.2, 0.05, 0.2, 0.002),
]


@pytest.mark.parametrize("row", EL_ROWS, ids=[f"{r[0]}-{r[1]}" for r in EL_ROWS])
def test_rows_of_el_nivmf(row):
    dataset, dim, concentration, multiplier, omega, epochs, milestones, gamma, proxies, rate_k, rate_t = row
    found = _setting("proxy_anchor_el_nivmf", dataset, f"resnet50.tv_in1k/{dim}")
    assert found.released_only
    p = found.params
    wanted = (concentration, multiplier, omega, 5, 0.003, "class_means")
    assert (
        tuple(p[k] for k in ("concentration", "norm_multiplier", "omega", "samples", "temperature", "start")) == wanted
    )
    assert found.optim["lr_objective"] == pytest.approx(proxies)
    assert p["concentration_rate"] * found.optim["lr_objective"] == pytest.approx(rate_k)
    assert p["temperature_rate"] * found.optim["lr_objective"] == pytest.approx(rate_t)
    assert (found.optim["epochs"], found.optim["milestones"], found.optim["gamma"]) == (epochs, milestones, gamma)
    assert (found.optim["lr"], found.optim["weight_decay"], found.optim["optimizer"]) == (1e-5, 4e-4, "adam")
    assert (found.data["classes_per_batch"], found.data["images_per_class"]) == (32, 2)


DISTANCE_ROWS = [
    ("cosine", 10.0, 1 / 256, 1.0, "scaled"),
    ("l2", 200.0, 1.0, 1.0, "scaled"),
    ("nivmf", 10.0, 1 / 32, 1.0, "scaled"),
    ("el_vmf", 10.0, 1.0, 150.0, "class_means"),
    ("b_vmf", 10.0, 1.0, 150.0, "class_means"),
    ("kl_vmf", 10.0, 1.0, 150.0, "class_means"),
]


@pytest.mark.parametrize("row", DISTANCE_ROWS, ids=[r[0] for r in DISTANCE_ROWS])
def test_rows_of_figure_5(row):
    found = _setting("proxy_distance", "cub200", "resnet50.tv_in1k/512", distance=row[0])
    p = found.params
    assert (p["concentration"], p["temperature"], p["norm_multiplier"], p["start"]) == row[1:]
    assert found.optim["lr_objective"] == pytest.approx(0.05)
    assert p["concentration_rate"] * 0.05 == pytest.approx(0.5)
    assert p["temperature_rate"] * 0.05 == pytest.approx(0.005)
    assert (found.optim["epochs"], found.optim["schedule"], found.data["classes_per_batch"]) == (50, "constant", 53)
    ProxyDistance.Params(**p)


def test_row_of_el_nivmf_in_figure_5():
    found = _setting("el_nivmf", "cub200", "resnet50.tv_in1k/512")
    keys = ("concentration", "temperature", "norm_multiplier", "start", "samples")
    assert tuple(found.params[k] for k in keys) == (50.0, 1.0, 150.0, "class_means", 10)
    assert found.params["concentration_rate"] * found.optim["lr_objective"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("dataset", "omega", "flow_rate", "epochs", "warmup", "schedule", "centres"),
    [
        ("cub200", 0.0075, 50.0, 100, 1, "constant", 10),
        ("cars196", 0.01, 50.0, 100, 1, "constant", 10),
        ("sop", 0.3, 1.0, 300, 5, "multistep", 2),
    ],
)
@pytest.mark.parametrize("dim", [128, 512])
@pytest.mark.parametrize(
    ("base_loss", "scale", "margin"),
    [("proxy_anchor", 32.0, 0.1), ("proxy_nca", 32.0, 0.1), ("soft_triple", 20.0, 0.01)],
)
def test_rows_of_nir(dataset, dim, omega, flow_rate, epochs, warmup, schedule, centres, base_loss, scale, margin):
    found = _setting("nir", dataset, f"resnet50.tv_in1k/{dim}", base_loss=base_loss)
    assert found.released_only
    p = NIR.Params(**found.params)
    assert (p.omega, p.flow_rate, p.scale, p.margin) == (omega, flow_rate, scale, margin)
    assert (p.blocks, p.depth, p.width, p.start) == (5, 8, 128, "normal")
    if base_loss == "soft_triple":
        assert p.centres == centres  # two were hard-wired
    optim = found.optim
    assert (optim["epochs"], optim["head_epochs"], optim["schedule"]) == (epochs, warmup, schedule)
    assert optim.get("milestones", []) == ([140, 230] if schedule == "multistep" else [])
    assert (optim["lr_objective"], found.data["classes_per_batch"]) == (pytest.approx(0.04), 45)


@pytest.mark.parametrize("dataset", ["cub200", "cars196"])
def test_row_of_the_proxy_anchor_baseline(dataset):
    found = _setting("proxy_anchor", dataset, "resnet50.tv_in1k/128")
    assert found.params == {"scale": 32.0, "margin": 0.1, "start": "normal"}
    assert (found.optim["lr_objective"], found.optim["head_epochs"], found.optim["epochs"]) == (0.02, 0, 100)
