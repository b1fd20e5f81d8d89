"""Random numbers addressed by key instead of by order, so that a relieved re-run meets the same noise.

Two runs that differ in one resource launch different kernels at different times; drawing from one sequence would give
them different luck. Here every draw names what it is for: (seed, purpose, indices).
"""

from math import exp, log
from statistics import NormalDist
from typing import Any

_MASK = (1 << 64) - 1
_NORMAL = NormalDist()


def mix(*key: int) -> int:
    """A 64-bit hash of integers (splitmix64's finaliser after each part)."""
    h = 0x9E3779B97F4A7C15
    for part in key:
        h = (h + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
        h ^= h >> 31
    return h


def unit(*key: int) -> float:
    """Uniform in the open interval (0, 1)."""
    return ((mix(*key) >> 11) + 0.5) / (1 << 53)


def normal(*key: int) -> float:
    """Standard normal."""
    return _NORMAL.inv_cdf(unit(*key))


def lognormal(sigma: float, *key: int) -> float:
    """A factor with mean 1 and relative spread about `sigma`."""
    if sigma <= 0:
        return 1.0
    return exp(sigma * normal(*key) - sigma * sigma / 2)


def exponential(mean: float, *key: int) -> float:
    """Exponential with the given mean."""
    return -mean * log(unit(*key))


def uniform(low: float, high: float, *key: int) -> float:
    """Uniform between two bounds."""
    return low + (high - low) * unit(*key)


def integer(low: int, high: int, *key: int) -> int:
    """An integer between two bounds, both included."""
    return low + mix(*key) % (high - low + 1)


def choice(items: "tuple[Any, ...] | list[Any]", *key: int) -> "Any":
    """One of the items."""
    return items[mix(*key) % len(items)]
