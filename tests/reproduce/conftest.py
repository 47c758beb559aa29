import pytest

from tests.datasets.conftest import releases  # noqa: F401 (a fixture)


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
