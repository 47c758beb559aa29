"""The commands ``bench`` and ``probembed``: they check whose package ``bench`` is, and run it.

Another distribution that installs a package of this name overwrites files of ours, so the check is outside of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def entry() -> None:
    """Run the command line and exit with its code, which is 2 if the package ``bench`` is another distribution's."""
    try:
        ours = version("probembed")
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        ours = ""
    try:
        found = getattr(import_module("bench"), "__version__", None)
    except Exception:
        found = None
    if found is None or (ours and found != ours):
        spec = find_spec("bench")
        place = ", ".join((spec and spec.submodule_search_locations) or ["not found"])
        sys.exit(
            f"probembed: the package `bench` ({place}) is not that of probembed {ours}: another distribution"
            " has the same name; install probembed into an environment of its own, or again after an update"
        )
    from bench.start import entry as run

    run()
