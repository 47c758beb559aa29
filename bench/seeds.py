"""Seeds by axis: every random draw names the things it may depend on, and depends on nothing else.

Initialisation and order depend on (data set, replicate), not on the method, so replicates of two methods pair up;
pairs and crops depend on the data set only; the tuner's draws on (protocol, data set, method, base, trial).
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text per value, whatever order it was built in."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_id(value: Any) -> str:
    """Hash of a JSON value, 16 hexadecimal digits, that serves as its id."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=8).hexdigest()


def seed_for(*axes: str | int) -> int:
    """Seed in [0, 2**63) made of names and numbers that a draw depends on; different lists give unrelated seeds."""
    digest = hashlib.blake2b(canonical_json(list(axes)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (code of others may draw from it)
    random.seed(seed)
