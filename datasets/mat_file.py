"""Annotations in MATLAB files (version 5 to 7.2); light, since a process of its own reads each file."""

from __future__ import annotations

from .guarded import Answer


def read_annotations(path: str) -> Answer:
    """Read the variable ``annotations``, an array of structures, one per image.

    Returns:
        The structures in the order of the array: text or number by name of the field. Fields of another kind, or of
        several numbers, are left out.

    Raises:
        ValueError: If SciPy cannot read the file, or it has no such variable.
    """
    from scipy.io import loadmat

    held = loadmat(path, variable_names=["annotations"]).get("annotations")
    if held is None or held.dtype.names is None:
        raise ValueError("there is none")
    rows = [{name: structure[name] for name in held.dtype.names} for structure in held.reshape(-1)]
    return [
        {name: value.item() for name, value in row.items() if value.dtype.kind in "Ubiuf" and value.size == 1}
        for row in rows
    ], {}
