"""Replays of published settings: whose pooling, clip and first stage, and every row of EL-nivMF, NIR and PER."""

import csv
from collections import defaultdict
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F
from bench.cli import main
from bench.methods.distributions import PointMass
from bench.methods.nir import NIR
from bench.methods.proxy_distance import ProxyDistance
from bench.planning.experiment import Experiment
from bench.planning.plan import build_plans
from bench.planning.published import published_settings
from bench.registry import Registry
from bench.site import Site

from tests.photographs import write_photographs
from tests.plans import planned

DATASETS = {"cub200": "CUB200", "cars196": "Cars196", "inshop_merged": "InShopMerged", "sop": "SOP"}
MODULES = {"inshop_merged": "inshop"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site whose data sets of photographs are all one small folder."""
    from bench.datasets.folder import Folder

    root = tmp_path_factory.mktemp("photos")
    write_photographs(root, 8, 2, (9, 9))

    def init(self, data_root=None, **options):
        self.__dict__.update(Folder(root, **options).__dict__)

    with pytest.MonkeyPatch.context() as patch:
        for name, cls in DATASETS.items():
            patch.setattr(f"bench.datasets.{MODULES.get(name, name)}.{cls}.__init__", init)
        yield Site(results="unused", data_root=str(root), weights="none")


def _build(site, methods, dataset="cub200", pins=(), **request):
    request = {"protocol": "reality_check", "preset": "per", "hparams": "published", "fidelity": "released"} | request
    pins = ("data.classes_per_batch=2", *pins)
    return build_plans(Experiment(methods=tuple(methods), datasets=(dataset,), set=pins, **request), site)


def _plans(site, methods, dataset="cub200", pins=(), **request):
    return _build(site, methods, dataset, pins, **request).plans


def _scripts(site, methods, pins=(), **request):
    return _plans(site, methods, pins=pins, protocol="standardized", preset="strict", **request)


def _rows():
    """Values by (row, data set), then stage and name, read from the file alone."""
    text = (files("bench.published") / "pe_revisited_best_hparams.csv").read_text()
    found = defaultdict(lambda: defaultdict(dict))
    for row in csv.DictReader(text.splitlines()):
        found[row["variant"], row["dataset"]][row["stage"]][row["hparam"]] = row["value"]
    return found


HEADS = {
    ("pfe", None): "pfe-{}",
    ("pfe", "vmf"): "pfe-vmf-{}",
    ("scf", None): "scl-{}",
    ("scf", "normal"): "scl-gmm-{}",
    ("dul_reg", None): "dul-reg-cont-{}",
    ("dul_reg", "vmf"): "dul-reg-vmf-cont-{}",
}


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize(("method", "distribution"), HEADS)
def test_a_head_stands_on_its_own_first_stage(site, method, distribution, dataset):
    """Every two-stage row of the file: the base has the row's scale and margin, and the row's rates and decay.

    A method's own distribution, None, is not named.
    """
    base = "arcface" if dataset in ("cub200", "cars196") else "cosface"
    row = _rows()[HEADS[method, distribution].format(base), dataset.removesuffix("_merged")]
    pins = [f"method.distribution={distribution}"] if distribution else []
    head = _plans(site, [method], dataset, pins)[-1]
    stage1 = head.base.template
    assert (head.cell.method, stage1.method) == (method, base)
    assert stage1.params.items() >= {name: float(row["stage1"][name]) for name in ("scale", "margin")}.items()
    for template in (stage1, head.template):
        assert template.optim.lr == float(row[""]["lr_embedder"])
        assert template.optim.lr_objective == float(row[""]["lr_classifier"])
        assert template.optim.gamma == float(row[""]["lr_gamma"])
        assert template.optim.epochs == (32 if base == "arcface" else 128)
    assert not any("method." in text for text in head.pinned.differences)


@pytest.mark.parametrize("order", [("arcface", "pfe", "scf"), ("scf", "pfe", "arcface")])
def test_the_base_keeps_a_row_of_its_own_and_first_stages_are_told_apart(site, order):
    plans = _plans(site, order)
    own = [plan for plan in plans if plan.cell.method == "arcface" and not plan.pinned.stage]
    assert [plan.requested for plan in own] == [True]
    assert own[0].template.params["scale"] == pytest.approx(46.37, abs=0.01)
    by_method = {plan.cell.method: plan for plan in plans if plan.requested}
    # PFE's first stage is ArcFace's own setting: one training serves both.
    assert by_method["pfe"].base.key == own[0].key
    stage = by_method["scf"].base
    assert stage.pinned.stage == "scf"
    assert stage.key in {plan.key for plan in plans} - {own[0].key}
    assert len({plan.key for plan in plans}) == len(plans) == 4
    for plan in plans:
        if plan.base is not None:
            assert plans.index(next(p for p in plans if p.key == plan.base.key)) < plans.index(plan)


def test_runs_pool_clip_and_leave_the_scale_as_the_public_code_of_each_paper(site):
    scripts = _scripts(site, ["nir", "proxy_anchor", "proxy_anchor_el_nivmf"])
    for plans, pooling, clip in (
        (scripts, "avg", 0),
        (_plans(site, ["cosface", "hib", "scf"], base="arcface"), "avg_max", 10),
    ):
        for template in (plan.template for plan in plans):
            assert (template.batches.pooling, template.batches.calibrate) == (pooling, False)
            assert template.optim.grad_clip == clip


def test_double_pooling_of_nir_is_a_row_of_its_own(site):
    rows = [item for item in published_settings(NIR, "cub200", "arcface") if item.network == "resnet50.tv_in1k/512"]
    assert {item.variant.endswith("double-pool"): item.data["pooling"] for item in rows} == {
        False: "avg",
        True: "avg_max",
    }
    plan = _scripts(site, ["nir"], pins=["data.pooling=avg_max"], dim=512)[0]
    assert plan.template.batches.pooling == "avg_max"
    assert "data.pooling" not in plan.pinned.differences


def test_the_released_form_and_nothing_else_leaves_the_features_of_photographs_as_they_are(site):
    def calibrated(**request):
        return {
            plan.template.batches.calibrate for plan in _plans(site, ["cosface", "pfe"], hparams="default", **request)
        }

    assert calibrated(fidelity="corrected") == {True}
    assert calibrated(fidelity="released") == {False}
    assert calibrated(fidelity="released", pins=["data.calibrate=true"]) == {True}
    plain, released = (
        _plans(site, ["cosface", "pfe"], hparams="default", fidelity=fidelity)[0]
        for fidelity in ("corrected", "released")
    )
    # CosFace has one form; its network differs, and so do its rows.
    assert (plain.template.form, released.template.form) == ("corrected", "corrected")
    assert released.pinned.values["data.calibrate"] is False
    assert "data.calibrate" not in plain.pinned.values


@pytest.mark.parametrize(
    ("request_", "difference"),
    [
        ({"preset": "strict"}, "preset strict instead of per"),
        ({"protocol": "standardized", "preset": "strict", "backbone": "bn_inception"},
         "protocol standardized instead of reality_check"),
        ({"fidelity": "corrected"}, "fidelity corrected instead of released"),
        ({"pins": ["optim.epochs=3"]}, "optim.epochs"),
        ({"pins": ["data.pooling=avg"]}, "data.pooling"),
        ({"pins": ["data.calibrate=true"]}, "data.calibrate"),
        ({"pins": ["optim.grad_clip=0"]}, "optim.grad_clip"),
        ({"pins": ["method.samples=2"]}, "method.samples"),
        ({"pins": ["data.upright=true"]}, "data.upright"),
        ({"tuning": {"folds": 2}}, "2 folds"),
        ({}, "random weights instead of ImageNet's"),
    ],
)  # fmt: skip
def test_a_replay_that_is_not_the_papers_says_so_in_a_line_and_in_every_table(site, request_, difference):
    built = _build(site, ["hib"], **request_)
    (plan,) = built.plans
    assert difference in plan.pinned.differences
    (line,) = [line for line in built.lines if "is not what its paper did" in line]
    assert line.startswith("hib on cub200 is not what its paper did: ")
    assert difference in line
    note = ", ".join(plan.pinned.differences)
    assert difference in note
    other = _build(site, ["hib"]).plans[0]
    assert (difference in other.pinned.differences) == (request_ == {})


def test_what_is_as_published_is_not_named(site):
    # Batches are those of the test's few classes and images, and there are no weights.
    expected = ("data.classes_per_batch", "random weights instead of ImageNet's")
    for plan in _plans(site, ["hib", "scf", "arcface"]):
        assert tuple(name for name in plan.pinned.differences if name != "data.images_per_class") == expected
    (plan,) = _scripts(site, ["nir"])
    assert plan.pinned.differences == expected
    assert not any("its paper" in line for line in _build(site, ["hib"], hparams="default").lines)


def _params(tmp_path, method, fidelity, *pins):
    [plan], _ = planned(tmp_path, method, protocol="standardized", fidelity=fidelity, set=pins)
    return plan.template.params


STARTS = {"normal": ("nir", "proxy_anchor", "proxy_nca")}
STARTS |= {"scaled": ("el_nivmf", "proxy_anchor_el_nivmf", "proxy_distance")}


@pytest.mark.parametrize(("method", "start"), [(name, start) for start, names in STARTS.items() for name in names])
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


METHODS = Registry("methods")


def test_published_proxy_nca_is_on_squared_distances_as_they_are():
    # It had half its scale.
    cls = METHODS.get("proxy_nca").load()
    (found,) = published_settings(cls, "cub200", "arcface")
    torch.manual_seed(0)
    objective = cls(cls.Params(**found.params)).objective(5, 8).double()
    points, labels = torch.randn(12, 8, dtype=torch.float64), torch.arange(12) % 5
    distance = torch.cdist(F.normalize(points, dim=1), F.normalize(objective.weight, dim=1)).square()
    terms = [distance[i, y] + torch.logsumexp(-torch.cat([distance[i, :y], distance[i, y + 1 :]]), 0)
             for i, y in enumerate(labels.tolist())]  # fmt: skip
    assert objective(PointMass(points), labels).item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-12)


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "inshop_merged", "sop"])
@pytest.mark.parametrize(
    "method", ["arcface", "cosface", "hib", "spe", "dsml", "vmf_loss", "vmf_fl", "multi_similarity"]
)
def test_every_data_set_of_per_has_a_published_setting(method, dataset):
    cls = METHODS.get(method).load()
    (found,) = published_settings(cls, dataset, "arcface")
    cls.Params(**found.params)
    assert found.source == "PER"


@pytest.mark.parametrize("method", ["hib", "vmf_loss", "spe"])
def test_scalars_learn_at_the_objectives_own_rate_and_decay_when_released(method):
    cls = METHODS.get(method).load()
    assert cls(cls.Params(**cls.defaults("released"))).objective(5, 8).learning_rates == {}
    assert {factor for _, factor in cls().objective(5, 8).learning_rates.values()} <= {0.1, 0.2}
    assert "log_scale" not in dict(cls(cls.Params(**cls.defaults("released"))).objective(5, 8).named_parameters())
