"""Order of candidate limits: by what their relief would gain in the objective, and how sure that is.

A candidate's confidence is the probability that no rival's relief frees more of the objective's time (ties within TIE count
as both), with every gain taken as a normal value inside its interval, times the quality of the evidence for its own.
"""

from math import erf, sqrt

from diagnose.serving.limit_types import Candidate

TIE = 0.05
"""Reliefs that differ by less than this share of the objective's time name both limits."""
WORTH = 0.05
"""A relief of less than this is no limit."""
SURE = 0.97
UNSAID = (0.02, 0.5)
"""A limit that evidence supports without a size: anything from nothing worth to half of the time."""
WIDTH = 1.3
"""An interval's half-width in standard deviations: intervals are meant to hold about nine of ten values."""


def middle(c: Candidate) -> float:
    """The middle of a candidate's relief."""
    low, high = c.relief or UNSAID
    return (low + high) / 2


def _sd(c: Candidate) -> float:
    low, high = c.relief or UNSAID
    return max(0.015, (high - low) / 2 / WIDTH)


def chance_first(c: Candidate, rivals: list[Candidate], unknown: float = 0.0) -> float:
    """Probability that `c` frees the most, or as much as the most. `unknown`: share of the time that could be another limit's."""
    p = 1.0
    for r in rivals:
        away = (middle(c) - middle(r) + TIE) / sqrt(_sd(c) ** 2 + _sd(r) ** 2)
        p *= 0.5 * (1 + erf(away / sqrt(2)))
    if unknown > 0:
        away = (middle(c) - unknown / 2 + TIE) / sqrt(_sd(c) ** 2 + (unknown / 2) ** 2)
        p *= 0.5 * (1 + erf(away / sqrt(2)))
    return p


def by_gain(found: list[Candidate], unknown: float = 0.0) -> None:
    """Set confidence and status of the supported candidates by the gain of their relief, in place."""
    live = [c for c in found if c.status == "supported"]
    qualities = {id(c): c.confidence for c in live}
    for c in live:
        rivals = [r for r in live if r is not c and r.limit != c.limit]
        c.confidence = round(min(SURE, qualities[id(c)] * chance_first(c, rivals, unknown)), 3)
        if c.relief is not None and middle(c) < WORTH:
            c.status = "possible"
            c.statement += f"; relieved, it would free about {max(0.0, middle(c)):.0%} of the time"
