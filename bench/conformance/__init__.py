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

from .corruption_checks import CORRUPTION_CHECKS
from .dataset_checks import DATASET_CHECKS
from .embedding_test_checks import TEST_CHECKS
from .failure import ConformanceError
from .method_checks import CHECKS, build, check

__all__ = [
    "CHECKS",
    "CORRUPTION_CHECKS",
    "DATASET_CHECKS",
    "TEST_CHECKS",
    "ConformanceError",
    "build",
    "check",
]
