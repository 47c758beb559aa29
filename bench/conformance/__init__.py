"""Conformance: what any method, data set, test or corruption must do, ours or a plug-in's; ``bench test`` runs it.

In a test file::

    from bench.conformance import CHECKS, check

    @pytest.mark.parametrize("name", CHECKS)
    def test_my_method(name):
        check(name, MyMethod)

:data:`DATASET_CHECKS` takes a data set that was opened (``MyDataset()``), :data:`TEST_CHECKS` a declared test of
embeddings (one of ``bench.protocols.known_tests.load_tests([group])``), :data:`CORRUPTION_CHECKS` a registered
corruption.
"""

from .corruptions import CORRUPTION_CHECKS
from .datasets import DATASET_CHECKS
from .failure import ConformanceError
from .methods import CHECKS, build, check
from .tests import TEST_CHECKS

__all__ = [
    "CHECKS",
    "CORRUPTION_CHECKS",
    "DATASET_CHECKS",
    "TEST_CHECKS",
    "ConformanceError",
    "build",
    "check",
]
