"""Functions of `import bench`, for scripts and notebooks."""

import os
import sys


def _one_thread() -> None:
    """In a forked child, whose pools of threads died with the parent's: a product that waits for them never ends."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_one_thread)
