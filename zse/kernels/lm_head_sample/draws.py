"""The random number of a draw: a hash of (seed, step), so an answer with a seed repeats anywhere.

It is computed on the CPU and passed to the kernels, which makes it the same for every backend.
"""

from __future__ import annotations

import hashlib

_SINGLE_BITS = 24
"""Bits that a float32 holds exactly."""


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that depends on the seed and the step alone."""
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def uniform_single(seed: int, step: int) -> float:
    """Return ``uniform`` rounded down to what a float32 holds; never 1.0, as rounding up may be."""
    return int(uniform(seed, step) * 2**_SINGLE_BITS) * 2.0**-_SINGLE_BITS
