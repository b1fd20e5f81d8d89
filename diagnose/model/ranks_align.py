"""Which collective of one rank is which of another: order, checked by the ends, which all ranks reach
together.

A collective ends on all its ranks at nearly the same moment (measured on two H100s: within 25 us), however
late each began. So for two sequences of the same operation the right pairing is the shift at which the
differences of their ends are one constant: the skew of the two clocks. No clock is trusted for it; a clock
known to be common only decides between shifts that fit equally well.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# Sequences whose ends, after the skew is taken out, scatter more than this are not of the same collectives.
TOLERANCE_NS = 200_000
# Two shifts whose spread differs by less than this factor fit equally well.
EQUALLY_GOOD = 2.0
# Ends of one collective scatter this much by themselves.
NATURAL_NS = 25_000
_MIN_OVERLAP = 0.3
_COARSE, _FINE, _KEPT = 64, 2048, 16
_SEARCH = 2000
_REACH = 8  # how many lost events in a row a pairing may step over
_SMOOTH = 0.1  # weight of each new difference in the running skew: clocks drift by parts per million


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of indices, the skew (add it to the first clock to get the second), its spread, and whether it
    was unique."""

    pairs: list[tuple[int, int]]
    skew_ns: float
    spread_ns: float
    unique: bool


def align(
    first: Sequence[int], second: Sequence[int], prior_ns: float | None = None, common_clock: bool = False
) -> Alignment | None:
    """Pair two sequences of ends (ns, ascending), None when nothing fits.

    `prior_ns` is a skew already known from another sequence of the same two ranks; `common_clock` says that
    both were recorded against one clock, so that a skew near 0 is more likely than one of a whole step.
    """
    shifts = _candidates(first, second, prior_ns)
    rated = sorted((_spread(first, second, s, _COARSE, prior_ns), s) for s in shifts)[:_KEPT]
    fine = sorted(
        (_spread(first, second, s, _FINE, prior_ns), s) for (spread, _), s in rated if spread < float("inf")
    )
    if not fine:
        return None
    limit = max(fine[0][0][0] * EQUALLY_GOOD, NATURAL_NS / 10)
    equal = [(spread, skew, s) for (spread, skew), s in fine if spread <= limit]
    if prior_ns is not None:
        chosen = min(equal, key=lambda e: (abs(e[1] - prior_ns), e[0]))
    elif common_clock:
        chosen = min(equal, key=lambda e: (abs(e[1]), e[0]))
    elif len(first) == len(second) and any(s == 0 for _, _, s in equal):
        # Captures started by one signal hold the same collectives.
        chosen = next(e for e in equal if e[2] == 0)
    else:
        chosen = min(equal, key=lambda e: (e[0], abs(e[2])))
    spread, skew, shift = chosen
    pairs = _pair(first, second, shift, skew, max(3 * NATURAL_NS, 6 * spread))
    if len(pairs) < max(1, _MIN_OVERLAP * min(len(first), len(second))):
        return None
    differences = [second[j] - first[i] for i, j in pairs]
    centre = median(differences)
    return Alignment(pairs, centre, median(abs(d - centre) for d in differences), len(equal) == 1)


def _candidates(first: Sequence[int], second: Sequence[int], prior_ns: float | None) -> list[int]:
    """Shifts to try: element i of the first with i + shift of the second."""
    a, b = len(first), len(second)
    if prior_ns is not None:
        found: set[int] = set()
        for i in {0, a // 2, a - 1}:
            at = bisect_left(second, first[i] + prior_ns)
            found |= {j - i for j in range(max(at - 2, 0), min(at + 2, b))}
        return sorted(found)
    overlap = max(1, int(_MIN_OVERLAP * min(a, b)))
    low, high = overlap - a, b - overlap
    middle = (b - a) // 2
    return list(range(max(low, min(middle, 0) - _SEARCH), min(high, max(middle, 0) + _SEARCH) + 1))


def _spread(
    first: Sequence[int], second: Sequence[int], shift: int, most: int, prior_ns: float | None
) -> tuple[float, float]:
    """(mean distance of the differences from their median, the median), over at most `most` consecutive-ish
    pairs.

    The mean, each distance capped, sees what a median would not: a shift by one layer fits all but the steps'
    edges.
    """
    start, stop = max(0, -shift), min(len(first), len(second) - shift)
    if stop <= start:
        return float("inf"), 0.0
    stride = max(1, (stop - start) // most)
    differences = [second[i + shift] - first[i] for i in range(start, stop, stride)]
    centre = median(differences)
    if prior_ns is not None and abs(centre - prior_ns) > TOLERANCE_NS:
        return float("inf"), centre
    cap = 25 * TOLERANCE_NS
    return sum(min(abs(d - centre), cap) for d in differences) / len(differences), centre


def _pair(
    first: Sequence[int], second: Sequence[int], shift: int, skew: float, tolerance: float
) -> list[tuple[int, int]]:
    """Walk both sequences, stepping over events that one of them lost, following the skew as it drifts."""
    pairs: list[tuple[int, int]] = []
    i, j = max(0, -shift), max(0, shift)
    while i < len(first) and j < len(second):
        off = second[j] - first[i] - skew
        if abs(off) <= tolerance:
            pairs.append((i, j))
            skew += _SMOOTH * off
            i, j = i + 1, j + 1
            continue
        step = _resume(first, second, i, j, skew, tolerance)
        if step is None:
            i, j = (i + 1, j) if off > 0 else (i, j + 1)
        else:
            i, j = step
    return pairs


def _resume(
    first: Sequence[int], second: Sequence[int], i: int, j: int, skew: float, tolerance: float
) -> tuple[int, int] | None:
    """The nearest pair ahead that fits, when at most a few events were lost on one side."""
    for lost in range(1, _REACH + 1):
        for a, b in ((i, j + lost), (i + lost, j)):
            if a < len(first) and b < len(second) and abs(second[b] - first[a] - skew) <= tolerance:
                return a, b
    return None
