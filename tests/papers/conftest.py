"""Records of tests by a few numbers, and files of claims by their text."""

from __future__ import annotations

import pytest
from bench.papers.claims import read_ledger
from bench.report.frame import collect
from bench.site import Site

from tests import records
from tests.datasets.conftest import releases  # noqa: F401 (a fixture)

HEAD = """
[paper.p]
title = "A paper"
venue = "somewhere"
read = "text"
"""

CLAIM = """
[[claim]]
id = "{id}"
paper = "p"
place = "Table 1"
says = "DUL-cls is better."
datasets = ["cub200"]
metric = "map_at_r"
direction = "{direction}"
a = {{ {a} }}
b = [{b}]
{more}
"""


def claim(id="one", direction="higher", a='method = "dul_cls"', b='{ method = "cosface" }', more=""):
    """A claim as TOML."""
    return CLAIM.format(id=id, direction=direction, a=a, b=b, more=more)


def record(method, seed, values, **columns):
    """A test record: values of rows by (metric, other columns of the row)."""
    place = {"dataset": "ndigit", "backbone": "convnet", "dim": 64} | columns
    own = records.columns(**place, method=method, seed=seed)
    plain = {"split": "test", "scorer": "cosine", "confidence": "", "variant": "", "fraction": None}
    plain |= {"n_queries": 9, "n_lone": 0}
    rows = (plain | dict(place) | {"metric": name, "value": value} for (name, *place), value in values.items())
    role = records.role(default_confidence="method")
    return records.of_test(own, rows, records.spec_of(own, protocol=""), role=role)


def runs(method, values, metric="map_at_r", place=(), **columns):
    """Records of a method, one for each seed: a list of values, or a dictionary by seed."""
    by_seed = values if isinstance(values, dict) else dict(enumerate(values))
    return [record(method, seed, {(metric, *place): value}, **columns) for seed, value in by_seed.items()]


@pytest.fixture(scope="session")
def site():
    """One for all tests: reading the names of all methods takes a while."""
    return Site(results="runs")


@pytest.fixture
def ledger(tmp_path, site):
    """Read a file of claims from its text."""

    def read(*claims):
        path = tmp_path / "claims.toml"
        path.write_text(HEAD + "".join(claims))
        return read_ledger(path, site)

    return read


@pytest.fixture
def results():
    return lambda *parts: collect(records.Folder(*(each for part in parts for each in part)))


@pytest.fixture
def layouts(releases):  # noqa: F811
    """Tiny copies of the papers' data sets in their official layouts: data roots by name."""
    inshop = releases.inshop()
    return {
        "cub200": releases.cub(),
        "cars196": releases.cars(),
        "sop": releases.sop(),
        "inshop_merged": inshop,
        "inshop": inshop,
    }
