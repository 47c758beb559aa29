"""Records made by hand: what a test does not name is the usual."""

from bench.protocols import Tests
from bench.protocols.rows import row
from bench.store.folder import Store
from bench.store.records import Columns, Environment, RescoreRecord, Role, TestRecord, TrainRecord
from bench.store.specs import Cell, Pinned, RescoreSpec, TestSpec

ENVIRONMENT = Environment(
    bench="", torch="", python="", machine="", device="cpu", threads=1, seconds=0.0, peak_memory_mib=0
)


def role(**given):
    usual = {"primary_scorer": "cosine", "default_confidence": "norm", "probabilistic": False, "trainings": 0}
    return Role(**{**usual, "train": "", "base_train": "", **given})


def columns(**given):
    usual = {"protocol": "reality_check", "preset": "strict", "dataset": "d", "method": "m", "base": "", "seed": 0}
    usual |= {"fidelity": "corrected", "hparams": "default", "trials": 0, "pinned": Pinned(), "ensemble": ""}
    return Columns(**{**usual, "backbone": "net", "dim": 8, **given})


def spec_of(columns, **given):
    """Specification of a test; tests of different columns have different ids."""
    shared = {name: getattr(columns, name) for name in ("preset", "ensemble", "hparams", "trials", "pinned")}
    usual = {"versions": {"engine": str(columns)}, "protocol": columns.protocol, "train": (), "tuning_trainings": 0}
    return TestSpec(**{**usual, "tests": Tests(), "scorers": (), "soft_labels": "", **shared, **given})


def of_test(columns, rows=(), spec=None, **given):
    """Record of a test."""
    spec = spec or spec_of(columns)
    usual = {"unit": spec.id, "cell": Cell(columns.protocol, columns.dataset, columns.method), "role": role()}
    usual |= {"files": {}, "setting": {}, "manifests": {}, "corruptions": {}, "curves": {}, "finished": 0.0}
    return TestRecord(**{**usual, "environment": ENVIRONMENT, **given}, spec=spec, columns=columns, rows=tuple(rows))


def rescored(test, *rows, **arrays):
    """Record of a rescoring of a test."""
    spec = RescoreSpec(test=test.unit, versions={"engine": 9}, groups=("retrieval",), arrays=arrays, options=())
    usual = {"cell": test.cell, "environment": test.environment, "finished": test.finished + 1}
    return RescoreRecord(**usual, unit=spec.id, spec=spec, rows=rows, compared=0, largest_difference=None, left_out=())


def of_training(spec, value=0.0, **given):
    """Record of a training."""
    usual = {"files": {}, "num_classes": 3, "channels": 1, "manifests": {}, "history": (), "best_epoch": 1}
    usual |= {"selection_value": value, "val_map_at_r": value, "environment": ENVIRONMENT}
    return TrainRecord(**{**usual, **given}, unit=spec.id, cell=spec.cell, spec=spec)


def map_at_r(value, **given):
    """Row of MAP@R on clean test images."""
    return {"split": "test", **row("map_at_r", value, **given)}


def stored(root, made):
    """Results folder with some records."""
    store = Store(root)
    store.mark("reality_check", 1)
    for record in made:
        store.write(record)
    return store


class Folder:
    """Stands for a results folder with some records, and counts how often they are read."""

    def __init__(self, *records):
        self.records, self.reads = records, 0

    def tests(self):
        self.reads += 1
        yield from self.records

    def rescorings(self):
        return iter(())
