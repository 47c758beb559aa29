"""Errors that are read by people, and memory that a file must not cost."""

import contextlib
import tracemalloc

import pytest


def one_line(error, call, *given, **options):
    """What the error of a call says, which must be one line."""
    with pytest.raises(error) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextlib.contextmanager
def within_memory(most):
    """Require that some work has so many bytes at most at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
