"""Two test processes share two cores: one thread each, or they wait for one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
