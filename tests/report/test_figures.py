"""The numbers behind every figure equal independent computations, and every figure has labelled axes."""

import math
import re
from types import SimpleNamespace

import matplotlib.colors
import numpy as np
import pytest
import scipy
import torch
from bench.datasets.array_images import ArrayImages
from bench.errors import UnknownName, UserError
from bench.protocols.embeddings import row
from bench.protocols.structure import spectral_decay
from bench.report.figures import images, tested, theory, training
from bench.report.figures.registry import FIGURES, Source, draw_kind, kinds_of, write_automatic, write_kinds
from bench.report.figures.style import PALETTE, figure_style
from bench.report.frame import Results
from bench.store.files import file_sha256, sha256
from bench.store.records import Curve, Epoch, TestRecord
from bench.store.specs import Cell
from safetensors.torch import save_file

from tests import records

DIM, PER_CLASS, CLASSES = 6, 4, 10
COUNT = PER_CLASS * CLASSES
LABELS = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
IDS = tuple(f"tiny/{i}" for i in range(COUNT))


def _bessel_log_normaliser(k, dim):
    """log C(k) from SciPy's Bessel function."""
    nu = dim / 2 - 1
    return nu * np.log(k) - dim / 2 * np.log(2 * np.pi) - np.log(scipy.special.ive(nu, k)) - k


# Densities


def _nivmf(points, mode, k, exact):
    """Eq. 4 of EL-nivMF, or its exact form, written out in NumPy."""
    kt = np.linalg.norm(k * mode)
    stretched = points * k
    cosine = (stretched @ (k * mode)) / (np.linalg.norm(stretched, axis=-1) * kt)
    dim = len(k)
    log = _bessel_log_normaliser(kt, dim) + kt * cosine + np.log(k).sum()
    return np.exp(log - (dim * np.log(np.linalg.norm(stretched, axis=-1)) if exact else np.log(kt)))


def test_densities_on_the_sphere_are_those_of_the_equations():
    table = theory.sphere_table(41)
    mode, k = np.ones(3) / math.sqrt(3), np.array([20.0, 5.0, 50.0])
    for name, rows in table.groupby("distribution"):
        x, y = rows["x"].to_numpy()[:, None], rows["y"].to_numpy()[:, None]
        assert ((x**2 + y**2) <= 1 + 1e-12).all()
        right, up = np.array([-1, 1, 0]) / math.sqrt(2), np.array([-1, -1, 2]) / math.sqrt(6)
        points = x * right + y * up + np.sqrt(np.maximum(0, 1 - x**2 - y**2)) * mode
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
        if name == "vMF":
            wanted = 20 / (4 * math.pi * math.sinh(20)) * np.exp(20 * points @ mode)
        else:
            wanted = _nivmf(points, mode, k, exact=name == "nivMF, exact")
        np.testing.assert_allclose(rows["density"], wanted, rtol=1e-9)


def test_only_the_papers_form_does_not_integrate_to_one():
    integrals = {name: theory.sphere_integral(each) for name, each in theory.distributions(3).items()}
    assert integrals["vMF"] == pytest.approx(1, abs=1e-9)
    assert integrals["nivMF, exact"] == pytest.approx(1, abs=1e-9)
    mode, k = np.ones(3) / math.sqrt(3), np.array([20.0, 5.0, 50.0])

    def height(phi, z):
        flat = math.sqrt(1 - z * z)
        return _nivmf(np.array([flat * math.cos(phi), flat * math.sin(phi), z]), mode, k, exact=False)

    wanted, _ = scipy.integrate.dblquad(height, -1, 1, 0, 2 * math.pi, epsabs=1e-2)
    assert integrals["nivMF, Eq. 4"] == pytest.approx(wanted, rel=1e-3)


def test_densities_on_the_circle_are_those_of_the_equations():
    table = theory.circle_table()
    mode, k = np.ones(2) / math.sqrt(2), np.array([20.0, 5.0])
    for name, rows in table.groupby("distribution"):
        angle = np.deg2rad(rows["angle"].to_numpy())
        assert (np.diff(angle) > 0).all()
        points = np.stack([np.cos(angle + math.pi / 4), np.sin(angle + math.pi / 4)], 1)
        if name == "vMF":
            np.testing.assert_allclose(rows["density"], scipy.stats.vonmises(20).pdf(angle), rtol=1e-9)
        else:
            np.testing.assert_allclose(rows["density"], _nivmf(points, mode, k, name == "nivMF, exact"), rtol=1e-9)


# A results folder that is written here


class _Store:
    """A results folder of tests with random embeddings; nothing was trained."""

    def __init__(self, root):
        self.root = root

    def unit_dir(self, cell, kind, unit):
        return self.root / f"{cell.method}-{kind}-{unit}"

    def trained(self, cell, unit):
        if unit.startswith("lost"):
            return None
        seed = int(unit[-1])
        epochs = 3 + seed
        history = tuple(Epoch(epoch=e + 1, loss=1.0, val_map_at_r=0.1 * e + 0.01 * seed) for e in range(epochs))
        # A unit of its own name belongs to a protocol that holds nothing out.
        return SimpleNamespace(
            history=history,
            best_epoch=epochs,
            spec=SimpleNamespace(view={}, folds=4 if unit.startswith("train") else 1, base=None),
            environment=SimpleNamespace(seconds=10.0 + seed, device="cpu", threads=1),
        )

    def studies(self, dataset="*"):
        return iter(())


def _arrays(seed, roles=False):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, DIM, generator=generator)
    raw = centres[LABELS] + 0.9 * torch.randn(COUNT, DIM, generator=generator)
    # Some images twice, which ties their neighbours.
    raw[1] = raw[5]
    arrays = {"labels": LABELS.clone(), "clean.loc": raw, "clean.confidence.norm": raw.norm(dim=1)}
    arrays["clean.confidence.method"] = torch.rand(COUNT, generator=generator)
    if roles:
        arrays |= {"queries": torch.arange(0, COUNT, 2), "gallery": torch.arange(1, COUNT, 2)}
    return arrays


def _test(store, method, seed, probabilistic, arrays, unit=None, train="train"):
    cell = Cell("p", "tiny", method)
    unit = unit or f"{method}{seed}"
    folder = store.unit_dir(cell, "test", unit)
    folder.mkdir(parents=True)
    path = folder / "embeddings.safetensors"
    if arrays is not None:
        save_file(arrays, path, {"distribution": "point", "ids": "\n".join(IDS)})
    files = {path.name: file_sha256(path) if path.exists() else "lost"}
    columns = records.columns(protocol="p", preset="", dataset="tiny", method=method, dim=DIM, seed=seed, backbone="")
    own = "method" if probabilistic else "norm"
    role = records.role(default_confidence=own, probabilistic=probabilistic, train=unit)
    rows = []
    for split in ("test", "test_crop"):
        for confidence in ("norm", "method", "random", "oracle"):
            for variant in ("query_only", "query_and_gallery"):
                for metric in ("filter_out_map_at_r", "filter_out_recall_at_1"):
                    for fraction in (0.0, 0.5):
                        keys = {"scorer": "cosine", "confidence": confidence, "variant": variant}
                        rows.append({**row(metric, 0.5, fraction=fraction, **keys), "split": split})
    rows.append({**row("map_at_r", 0.5 + (0.1 + 0.02 * seed) * probabilistic, scorer="cosine"), "split": "test"})
    return TestRecord.model_construct(
        unit=unit,
        cell=cell,
        spec=SimpleNamespace(train=(f"{train}{seed}",)),
        files={} if unit.startswith("concatenated") else files,
        columns=columns,
        role=role,
        rows=tuple(rows),
        curves={"crop": Curve(severity=(0.1, 0.4), rank={own: (0.4, 0.6)})},
        finished=1.0,
    )


class _Images:
    """A data set of noise."""

    def test(self):
        pixels = torch.randint(0, 255, (COUNT, 1, 4, 6), generator=torch.Generator().manual_seed(0)).byte()
        return ArrayImages(pixels, LABELS, IDS, [f"c{i}" for i in range(CLASSES)], mean=(0.5,), std=(1.0,))


def _source(store, tests, dataset=lambda name, view: _Images()):
    return Source(SimpleNamespace(store=store, dataset=dataset), Results(tuple(tests)))


@pytest.fixture
def source(tmp_path):
    store = _Store(tmp_path)
    tests = [_test(store, method, seed, method == "noisy", _arrays(10 * place + seed))
             for place, method in enumerate(("plain", "noisy")) for seed in (0, 1)]  # fmt: skip
    return _source(store, tests)


# Spectra


def test_spectra_are_those_of_numpy_and_give_the_spectral_decay(source):
    table = tested.spectra_table(source, "tiny", pytest.fail)
    assert set(zip(table["method"], table["seed"])) == {("plain", 0), ("plain", 1), ("noisy", 0), ("noisy", 1)}
    for place, method in enumerate(("plain", "noisy")):
        for seed in (0, 1):
            raw = _arrays(10 * place + seed)["clean.loc"].double().numpy()
            unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
            values = np.linalg.svd(unit, compute_uv=False)[1:]
            rows = table[(table["method"] == method) & (table["seed"] == seed)]
            np.testing.assert_allclose(rows["singular_value"], values / values.sum(), rtol=1e-9)
            assert rows["number"].tolist() == list(range(2, DIM + 1))
            decay = scipy.stats.entropy(np.full(DIM - 1, 1 / (DIM - 1)), rows["singular_value"])
            assert rows["spectral_decay"].unique() == pytest.approx([decay], rel=1e-12)
            assert spectral_decay(torch.from_numpy(unit)) == pytest.approx(decay, rel=1e-12)


# Answers


def _right(raw, queries, gallery):
    """Recall@1 by brute force: share of right ones among the nearest."""
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    labels, found = LABELS.numpy(), []
    for q in queries:
        others = [g for g in gallery if g != q]
        cosines = unit[others] @ unit[q]
        nearest = np.flatnonzero(cosines > cosines.max() - 1e-12)
        found.append(np.mean([labels[others[n]] == labels[q] for n in nearest]))
    return np.array(found)


def test_a_tested_model_answers_by_the_nearest_neighbours_of_the_gallery(tmp_path):
    store = _Store(tmp_path)
    source = _source(store, [_test(store, "plain", 0, False, _arrays(3, roles=True))])
    (model,) = tested.models_of(source, "tiny", pytest.fail)
    raw = _arrays(3)["clean.loc"].double().numpy()
    np.testing.assert_allclose(model.right, _right(raw, range(0, COUNT, 2), range(1, COUNT, 2)))


# Images


@pytest.mark.slow
def test_images_are_shown_in_the_order_of_their_confidence(source):
    drawings = list(images.draw(source, "tiny", pytest.fail))
    assert [d.stem for d in drawings] == [
        "images_tiny",
        "images_tiny_classes_00_noisy",
        "images_tiny_mistakes_00_noisy",
        "images_tiny_classes_01_plain",
        "images_tiny_mistakes_01_plain",
    ]
    sheet = drawings[0].frame
    for method, place, confidence in (("plain", 0, "norm"), ("noisy", 1, "method")):
        rows = sheet[sheet["method"] == method]
        assert (rows["seed"] == 0).all()
        assert (rows["confidence"] == confidence).all()  # a probabilistic method's own, else the norm
        values = _arrays(10 * place)[f"clean.confidence.{confidence}"].numpy()
        order = np.argsort(values, kind="stable")
        assert rows["id"].tolist() == [IDS[order[p - 1]] for p in rows["place"]]
        np.testing.assert_allclose(rows["value"], np.sort(values)[rows["place"] - 1])
        assert {1, 2, 3, 4, COUNT - 3, COUNT - 2, COUNT - 1, COUNT} <= set(rows["place"])
    for number, rows in drawings[1].frame.groupby("class"):
        assert len(rows) == PER_CLASS
        assert {IDS.index(name) // PER_CLASS for name in rows["id"]} == {number}
        assert rows["value"].is_monotonic_increasing


def test_a_sheet_shows_the_pixels_of_its_images(source):
    drawing = next(iter(images.draw(source, "tiny", pytest.fail)))
    pixels = _Images().test().pixels
    shown = [axis.get_images()[0].get_array() for axis in drawing.figure.axes if axis.get_images()]
    wanted = [pixels[IDS.index(name), 0].numpy() for name in drawing.frame["id"]]
    assert len(shown) == len(wanted)
    assert all(np.array_equal(a, b) for a, b in zip(shown, wanted))


def test_the_worst_mistakes_are_the_most_confident_wrong_queries_with_their_neighbours(tmp_path):
    store, arrays = _Store(tmp_path), _arrays(3)
    arrays["clean.loc"] += 0.01 * torch.rand(COUNT, DIM, generator=torch.Generator().manual_seed(0))  # no image twice
    source = _source(store, [_test(store, "noisy", 0, True, arrays)])
    (model,) = tested.models_of(source, "tiny", pytest.fail)
    table = images.mistakes(model, [f"c{number}" for number in range(CLASSES)])
    unit = torch.nn.functional.normalize(arrays["clean.loc"].double(), dim=1).numpy()
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    labels, values = LABELS.numpy(), arrays["clean.confidence.method"].numpy()
    wrong = labels[cosines.argmax(1)] != labels
    order = sorted(np.flatnonzero(wrong), key=lambda query: -values[query])[: images.MISTAKES]
    assert table[table["place"] == 0]["row"].tolist() == order
    assert len(order) > 2
    for number, query in enumerate(order, 1):
        near = table[(table["query"] == number) & (table["place"] > 0)]
        assert near["row"].tolist() == np.argsort(-cosines[query], kind="stable")[: images.NEIGHBOURS].tolist()
        assert near["right"].tolist() == (labels[near["row"]] == labels[query]).tolist()
        assert not near["right"].iloc[0]
    with figure_style():
        figure = images.mistakes_figure(table, _Images().test(), "d, m")
    assert len([axis for axis in figure.axes if axis.get_images()]) == len(table)


# Convergence


def test_intervals_over_seeds_are_students(source):
    table = training.convergence_table(source, "tiny", pytest.fail)
    rows = table[(table["label"] == "plain") & (table["seed"] == 1)].set_index("epoch")
    assert rows["seeds"].tolist() == [2, 2, 2, 1]  # one seed trained an epoch longer
    values = [0.1, 0.11]
    low, high = scipy.stats.t.interval(0.95, 1, np.mean(values), np.std(values, ddof=1) / math.sqrt(2))
    assert (rows["mean"][2], rows["ci95_low"][2], rows["ci95_high"][2]) == pytest.approx((0.105, low, high))
    with figure_style():
        figure = training.convergence_figure(table, "tiny")
    lines = figure.axes[0].get_lines()
    assert [len(line.get_xdata()) for line in lines] == [3, 3]  # as far as all seeds went


def test_classes_that_have_trained_do_not_validate(tmp_path):
    store = _Store(tmp_path)
    tests = [_test(store, "plain", 0, False, _arrays(0)), _test(store, "other", 0, False, _arrays(1), train="whole")]
    source = _source(store, tests)
    with figure_style():
        drawn = {drawing.stem: drawing for drawing in training.draw_convergence(source, "tiny", pytest.fail)}
    assert set(drawn) == {"convergence_tiny", "convergence_tiny_on_training_classes"}
    shown = drawn["convergence_tiny_on_training_classes"]
    assert shown.figure.axes[0].get_ylabel() == "MAP@R, some training classes, %"
    assert set(shown.frame["method"]) == {"other"}


# All of them


SLOW = ("images", "pictures", "densities")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FIGURES if name != "sweeps"]
)
def test_every_figure_has_numbers_and_labelled_axes(name, source):
    with figure_style():
        drawings = list(draw_kind(name, source, pytest.fail))
        assert drawings
        for drawing in drawings:
            assert len(drawing.frame)
            assert re.fullmatch(r"[A-Za-z0-9_.-]+", drawing.stem)
            labelled = [axis for axis in drawing.figure.axes if axis.get_visible() and axis.axison]
            assert labelled
            assert any(axis.get_xlabel() for axis in labelled)
            assert any(axis.get_ylabel() for axis in labelled)
            drawing.figure.draw_without_rendering()


@pytest.mark.slow
def test_a_report_has_the_figures_that_need_records_and_pictures_of_images_at_hand(source, tmp_path):
    written = {path.stem for path in write_automatic(source, tmp_path / "out", pytest.fail)}
    assert written == {
        *(f"{name}_tiny_{images}" for name in ("filter_out", "risk_coverage") for images in ("clean", "crop")),
        "confidence_crop_tiny",
        "images_tiny",
        "images_tiny_mistakes_01_plain",
    }


def test_a_report_says_in_one_line_a_kind_why_a_figure_is_missing(tmp_path):
    store, tests, notes = _Store(tmp_path), [], []
    for seed in range(3):
        test = _test(store, "only", seed, False, None, train="lost")
        rows = tuple(row for row in test.rows if row["metric"] == "map_at_r")
        tests.append(test.model_copy(update={"rows": rows, "curves": {}}))
    assert write_automatic(_source(store, tests, None), tmp_path / "out", notes.append) == []
    assert "filter_out: tiny, clean: no filter-out curves" in notes
    assert "confidence: tiny: no test on crops, and no corruption at several severities" in notes
    kinds = [note.split(":")[0] for note in notes]
    assert sorted(kinds) == ["confidence", "filter_out", "pictures", "risk_coverage"]


@pytest.mark.slow
def test_what_is_missing_is_said_in_one_line(tmp_path):
    def absent(name, view):
        raise UserError("tiny is not in data/")

    store = _Store(tmp_path)
    old = {name: value for name, value in _arrays(0).items() if "confidence" not in name}
    tests = [
        _test(store, "whole", 0, False, _arrays(1)),
        _test(store, "old", 0, False, old),
        _test(store, "gone", 0, False, None),
        _test(store, "both", 0, False, None, unit="concatenated0"),
        _test(store, "lost", 0, False, _arrays(1), train="lost"),
        _test(store, "torn", 0, False, _arrays(1)).model_copy(update={"files": {"embeddings.safetensors": ""}}),
        _test(store, "other", 0, False, None).model_copy(update={"files": {"embeddings.safetensors": sha256(b"text")}}),
        _test(store, "folder", 0, False, None),
    ]
    (store.unit_dir(tests[-2].cell, "test", "other0") / "embeddings.safetensors").write_bytes(b"text")
    (store.unit_dir(tests[-1].cell, "test", "folder0") / "embeddings.safetensors").mkdir()
    source = _source(store, tests, absent)
    notes = []
    drawn = write_kinds(kinds_of(["spectra", "images", "convergence"]), source, tmp_path / "out", notes.append)
    assert {path.stem for path in drawn} == {"spectra_tiny", "convergence_tiny"}
    assert not [note for note in notes if "\n" in note]
    text = "\n".join(notes)
    for line in (
        "spectra: tiny, gone, seed 0: its embeddings are damaged, or gone as in an archive; ",
        "spectra: tiny, torn, seed 0: its embeddings are damaged, ",
        "spectra: tiny, folder, seed 0: its embeddings are damaged, ",
        "spectra: tiny, other, seed 0: .* is no array file of a test: ",
        "spectra: tiny, both, seed 0: no embeddings are kept of models side by side",
        "images: tiny, whole: no images to show: tiny is not in data/",
        "images: tiny, lost: its training has no record",
        "convergence: tiny, lost, seed 0: its training has no record",
    ):
        assert re.search(line, text), (line, text)


def test_an_unknown_figure_is_named():
    with pytest.raises(UnknownName, match="did you mean 'densities'"):
        kinds_of(["density"])
    assert kinds_of(["all"]) == list(FIGURES)


def test_the_help_names_every_figure():
    import inspect

    from bench.commands.results import report

    text = inspect.signature(report, eval_str=True).parameters["figures"].annotation.__metadata__[0].help
    assert set(FIGURES) <= set(re.findall(r"\w+", text))


# Colours


def _seen(rgb, matrix):
    """A colour as a colour-blind person sees it (Machado et al. 2009, severity 1), linear in RGB."""
    values = np.asarray(rgb)
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.clip(matrix @ linear, 0, 1)


PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)


@pytest.mark.parametrize("matrix", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["usual", "protanopia", "deuteranopia"])
def test_the_first_colours_differ_for_everybody(matrix):
    seen = [_seen(matplotlib.colors.to_rgb(name), matrix) for name in PALETTE]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(apart) > 0.1
