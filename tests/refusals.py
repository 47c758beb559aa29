"""Errors that are read by people."""

import pytest


def one_line(error, call, *given, **options):
    """What the error of a call says, which must be one line."""
    with pytest.raises(error) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
