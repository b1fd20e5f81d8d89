"""From a change and its noise to a verdict: improved, regressed, no_change or inconclusive; all metrics judged together.

A change counts when it is beyond its noise after Holm's correction over the whole family of metrics (so that one false
verdict in the family stays below 5 %), and beyond a floor: with one run a side, what runs differ by anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from diagnose.settle.noise import SINGLE_RUN_FLOOR
from diagnose.settle.student import p_value, quantile

LEVEL = 0.95
HEADLINE = 3.0
"""Weight of a metric that decides the answer (step time, latencies, rates) against the parts that explain it."""
REPEATS_FLOOR = 0.01
"""With repeats the noise is measured; a change below 1 % is still not worth a verdict."""
NO_CHANGE = SINGLE_RUN_FLOOR
"""`no_change` is a claim: the interval must lie within this share of the value on either side."""

VERDICTS = ("improved", "regressed", "no_change", "inconclusive")


@dataclass(frozen=True, slots=True)
class Change:
    """A quantity before and after, in one unit.

    `se` is the standard error of the difference with `freedom` degrees of freedom, None when nothing measures it. `base`
    is what the floor is a share of (a part such as idle time is judged against the whole step). `single`: one run on at
    least one side. `higher_is_better` for rates. `same`: both sides are the same recording. `weight`: its part of the
    family's chance of error, larger for the metrics that the answer hangs on.
    """

    before: float
    after: float
    se: float | None
    freedom: float
    base: float
    single: bool = True
    higher_is_better: bool = False
    same: bool = False
    why_unknown: str = ""
    weight: float = 1.0

    @property
    def difference(self) -> float:
        """After less before."""
        return self.after - self.before

    @property
    def floor(self) -> float:
        """The smallest difference that is called a change."""
        return (SINGLE_RUN_FLOOR if self.single else REPEATS_FLOOR) * abs(self.base)

    @property
    def p(self) -> float:
        """Two-sided p-value of no difference; 1 where nothing measures the noise."""
        if self.se is None or self.difference == 0:
            return 1.0
        return p_value(self.difference / self.se if self.se else inf, self.freedom)

    def half_width(self) -> float | None:
        """Half of the 95 % interval by the measured noise alone."""
        return None if self.se is None else quantile(LEVEL, self.freedom) * self.se


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with the interval of the difference (None: unknown) and, where it is not plain, the reason."""

    verdict: str
    low: float | None
    high: float | None
    reason: str = ""


def holm(p: Sequence[float], alpha: float = 1 - LEVEL, weights: Sequence[float] | None = None) -> list[bool]:
    """Which hypotheses are rejected with family-wise error below `alpha` (Holm 1979; weighted as in Benjamini & Hochberg 1997)."""
    w = list(weights) if weights is not None else [1.0] * len(p)
    order = sorted(range(len(p)), key=lambda i: p[i] / w[i])
    rejected = [False] * len(p)
    left = sum(w)
    for i in order:
        if p[i] > alpha * w[i] / left:
            break
        rejected[i] = True
        left -= w[i]
    return rejected


def judge(changes: Sequence[Change]) -> list[Judged]:
    """Verdicts of one family of changes."""
    rejected = holm([c.p for c in changes], weights=[c.weight for c in changes])
    return [_judge(c, beyond) for c, beyond in zip(changes, rejected, strict=True)]


def _judge(c: Change, beyond: bool) -> Judged:
    if c.same and c.difference == 0:
        return Judged("no_change", 0.0, 0.0, "both sides are the same recording")
    noise = c.half_width()
    if noise is None:
        return Judged(
            "inconclusive", None, None, c.why_unknown or "nothing measures the noise of this metric"
        )
    shown = max(noise, c.floor) if c.single else noise
    low, high = c.difference - shown, c.difference + shown
    if beyond and abs(c.difference) >= c.floor:
        better = (c.difference > 0) == c.higher_is_better
        return Judged("improved" if better else "regressed", low, high)
    if abs(c.difference) + noise <= NO_CHANGE * abs(c.base):
        runs = "one run a side cannot tell a smaller one" if c.single else "the repeats bound it"
        # A part is judged by what it does to the whole.
        what = "no change beyond" if abs(c.base) <= abs(c.before) else "moves the whole by no more than"
        return Judged("no_change", low, high, f"{what} {100 * NO_CHANGE:.0f} %; {runs}")
    if beyond:
        return Judged(
            "inconclusive",
            low,
            high,
            f"below the {100 * c.floor / abs(c.base):.0f} % that one run a side can tell",
        )
    if noise < abs(c.difference):
        return Judged(
            "inconclusive", low, high, "beyond its own noise, but not when all metrics are judged together"
        )
    return Judged("inconclusive", low, high, "within its noise")


def overall(verdicts: Sequence[str]) -> str:
    """One word for a list of verdicts: mixed when some improved and some regressed."""
    found = set(verdicts)
    if {"improved", "regressed"} <= found:
        return "mixed"
    for word in ("improved", "regressed"):
        if word in found:
            return word
    return "no_change" if found == {"no_change"} else "inconclusive"
