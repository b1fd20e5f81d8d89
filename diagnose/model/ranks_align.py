"""Which collective of one rank is which of another: order, checked by the ends, which all ranks reach
together.

A collective ends on all its ranks at nearly the same moment (measured on two H100s: within 25 us), however
late each began. So for two sequences of the same operation the right pairing is the shift at which most
differences of their ends are one constant: the skew of the two clocks. No clock is trusted for it; a clock
known to be common only decides between shifts that fit equally well.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

# Sequences whose ends, after the skew is taken out, scatter more than this are not of the same collectives.
TOLERANCE_NS = 200_000
# Ends of one collective scatter this much by themselves.
NATURAL_NS = 25_000
# A difference this far from the skew is not of one collective.
_NEAR_NS = 2 * NATURAL_NS
# Rounds of the search: samples a shift is rated on, the share of the best rating that stays in, and how many. A
# shift by one layer of a regular run misses only at the edges of steps, one in some hundred collectives, so that
# the last round counts them all.
_ROUNDS = ((64, 0.8, 256), (2048, 0.97, 16), (1 << 30, 0.998, 16))
_AS_CLOSE = 1.5
_MIN_OVERLAP = 0.3
_SEARCH = 2000
_REACH = 8  # how many lost events in a row a pairing may step over
_SMOOTH = 0.1  # weight of each new difference in the running skew: clocks drift by parts per million


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of indices in order, and the clocks.

    `skew_ns` is what to add to the first clock to get the second, `spread_ns` the median distance of the
    differences from it; `unique` says that no other shift fitted as well.
    """

    pairs: list[tuple[int, int]]
    skew_ns: float
    spread_ns: float
    unique: bool


@dataclass(frozen=True, slots=True)
class _Fit:
    """A shift (element i of the first with i + shift of the second).

    How many ends agree, on which skew, and how closely: half the distance between the quartiles of those.
    """

    shift: int
    agreeing: float
    skew: float
    spread: float


def align(
    first: Sequence[int], second: Sequence[int], prior_ns: float | None = None, common_clock: bool = False
) -> Alignment | None:
    """Pair two sequences of ends (ns, ascending), None when nothing fits.

    `prior_ns` is a skew already known from another sequence of the same two ranks; `common_clock` says that
    both were recorded against one clock, so that a skew near 0 is more likely than one of a whole step.
    """

    def unlikely(fit: _Fit) -> float:
        if prior_ns is not None:
            return abs(fit.skew - prior_ns)
        # Captures started by one signal hold the same collectives.
        return abs(fit.skew) if common_clock else abs(fit.shift)

    fits = [_fit(first, second, shift, _ROUNDS[0][0]) for shift in _candidates(first, second, prior_ns)]
    if prior_ns is not None:
        fits = [fit for fit in fits if abs(fit.skew - prior_ns) <= TOLERANCE_NS]
    for (_, share, kept), (samples, _, _) in pairwise(_ROUNDS):
        most = max((fit.agreeing for fit in fits), default=0.0)
        fits = sorted(
            (f for f in fits if f.agreeing >= share * most), key=lambda f: (-f.agreeing, unlikely(f))
        )
        fits = [_fit(first, second, fit.shift, samples) for fit in fits[:kept]]
    if not fits:
        return None
    most = max(fit.agreeing for fit in fits)
    equal = [fit for fit in fits if fit.agreeing >= _ROUNDS[-1][1] * most]
    # A shift by a whole step of a regular run agrees as often, but less closely.
    closest = min(fit.spread for fit in equal)
    equal = [fit for fit in equal if fit.spread <= _AS_CLOSE * closest + NATURAL_NS / 10]
    chosen = min(equal, key=lambda fit: (unlikely(fit), -fit.agreeing))
    pairs = _pair(first, second, chosen)
    if len(pairs) < max(1, _MIN_OVERLAP * min(len(first), len(second))):
        return None
    differences = [second[j] - first[i] for i, j in pairs]
    centre = median(differences)
    return Alignment(pairs, centre, median(abs(d - centre) for d in differences), len(equal) == 1)


def _candidates(first: Sequence[int], second: Sequence[int], prior_ns: float | None) -> list[int]:
    """Shifts to try."""
    a, b = len(first), len(second)
    if prior_ns is not None:
        found: set[int] = set()
        for i in {0, a // 4, a // 2, 3 * a // 4, a - 1}:
            at = bisect_left(second, first[i] + prior_ns)
            found |= {j - i for j in range(max(at - 2, 0), min(at + 2, b))}
        return sorted(found)
    overlap = max(1, int(_MIN_OVERLAP * min(a, b)))
    low, high = overlap - a, b - overlap
    return list(range(max(low, min(b - a, 0) - _SEARCH), min(high, max(b - a, 0) + _SEARCH) + 1))


def _fit(first: Sequence[int], second: Sequence[int], shift: int, samples: int) -> _Fit:
    """The most differences of ends that lie within twice the tolerance of each other, and their middle.

    A count, not an average: events lost midway displace the rest, and a short overlap must not win by being
    short.
    """
    start, stop = max(0, -shift), min(len(first), len(second) - shift)
    if stop <= start:
        return _Fit(shift, 0.0, 0.0, float(_NEAR_NS))
    stride = max(1, (stop - start) // samples)
    differences = sorted(second[i + shift] - first[i] for i in range(start, stop, stride))
    best, at, low = 0, 0, 0
    for high, value in enumerate(differences):
        while value - differences[low] > 2 * _NEAR_NS:
            low += 1
        if high - low + 1 > best:
            best, at = high - low + 1, low
    spread = differences[at + 3 * best // 4] - differences[at + best // 4]
    scale = (stop - start) / len(differences)
    return _Fit(shift, best * scale, differences[at + best // 2], spread / 2)


def _pair(first: Sequence[int], second: Sequence[int], fit: _Fit) -> list[tuple[int, int]]:
    """Walk both ways from a pair that agrees, stepping over lost events, following the skew as it drifts."""
    start, stop = max(0, -fit.shift), min(len(first), len(second) - fit.shift)
    anchor = min(range(start, stop), key=lambda i: abs(second[i + fit.shift] - first[i] - fit.skew))
    after = _walk(first, second, anchor, anchor + fit.shift, fit.skew, 1)
    before = _walk(first, second, anchor - 1, anchor + fit.shift - 1, fit.skew, -1)
    return before[::-1] + after


def _walk(
    first: Sequence[int], second: Sequence[int], i: int, j: int, skew: float, step: int
) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    while 0 <= i < len(first) and 0 <= j < len(second):
        off = second[j] - first[i] - skew
        if abs(off) > _NEAR_NS:
            resumed = _resume(first, second, i, j, skew, step)
            if resumed is None:
                # The one that is behind (ahead, when walking back) has no partner.
                i, j = (i + step, j) if off * step > 0 else (i, j + step)
                continue
            i, j = resumed
            off = second[j] - first[i] - skew
        pairs.append((i, j))
        skew += _SMOOTH * off
        i, j = i + step, j + step
    return pairs


def _resume(
    first: Sequence[int], second: Sequence[int], i: int, j: int, skew: float, step: int
) -> tuple[int, int] | None:
    """The nearest pair ahead that fits, when at most a few events were lost on one side."""
    for lost in range(1, _REACH + 1):
        for a, b in ((i, j + step * lost), (i + step * lost, j)):
            inside = 0 <= a < len(first) and 0 <= b < len(second)
            if inside and abs(second[b] - first[a] - skew) <= _NEAR_NS:
                return a, b
    return None
