"""Two test processes share two cores: one thread each, or they wait for one another.

Many tests start the console script, and without bytecode on disk each start compiles torch and all the rest anew.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
