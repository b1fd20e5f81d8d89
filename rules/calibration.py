"""From a rule's stated confidence to how often such a claim was right in simulated runs with computed truth.

The map is monotone and was fitted on one set of seeds (`benchmarks/accuracy.py --set calibrate --fit`), so that it can be
reported on another. Kernel traces and serving evidence state confidence on scales of their own and have a map each.
"""

import json
from bisect import bisect_right
from functools import cache
from importlib import resources

CEILING = 0.985
"""Told at most: simulated runs leave out what nobody thought of."""

Knots = tuple[tuple[float, float], ...]


@cache
def knots(kind: str) -> Knots:
    """(stated, observed share right) at both edges of each pool of `kind` (trace, serving), rising; empty where none was
    fitted."""
    text = resources.files("diagnose.rules").joinpath("calibration.json").read_text(encoding="utf-8")
    pools = json.loads(text).get(kind, {}).get("pools", ())
    return tuple((edge, right) for least, most, right, _ in pools for edge in (least, most))


def calibrated(kind: str) -> bool:
    """Whether a map of this kind was fitted."""
    return bool(knots(kind))


def observed(stated: float, kind: str) -> float:
    """Share of such claims that were right (0..CEILING), linear between knots and from (0, 0); as stated without a map."""
    known = knots(kind)
    if not known:
        return stated
    at = bisect_right([k[0] for k in known], stated)
    if at == len(known):
        return min(CEILING, known[-1][1])
    (x0, y0), (x1, y1) = known[at - 1] if at else (0.0, 0.0), known[at]
    return min(CEILING, y0 + (y1 - y0) * (stated - x0) / (x1 - x0) if x1 > x0 else y1)


def beside(stated: float, first: float) -> float:
    """Confidence of a claim that is not the first one: what the first one leaves, by how near it comes (half is a tie)."""
    return min(1.0, 2 * stated) * max(0.0, 1.0 - first)
