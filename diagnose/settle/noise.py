"""How far a mean can be off: block bootstrap over steps, spread between runs, and a floor for single runs.

Steps of one run are not independent (a batch drains, clocks drift), so blocks of neighbours are resampled, not single
steps. One run a side also says nothing of what changes between runs: clocks, placement, neighbours.
"""

import random
from dataclasses import dataclass
from statistics import fmean, stdev

SINGLE_RUN_FLOOR = 0.05
"""Half-width, as a share of the mean, below which one run a side is never trusted. GPUs of one model differ by 5 % and
more in what they sustain (node-internal spread in public matmul benchmarks)."""

RESAMPLES = 1_000
LEVEL = 0.95

# Student's t, two-sided 95 %, by degrees of freedom; beyond the table the normal value is within 3 %.
_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 15: 2.131, 20: 2.086, 30: 2.042}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval. `method`: bootstrap, runs, floor, or single (one value, nothing to judge by)."""

    value: float
    low: float
    high: float
    method: str
    samples: int

    def meets(self, low: float, high: float) -> bool:
        """Whether the interval and [low, high] share a point."""
        return self.low <= high and low <= self.high


def t95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    return next((t for f, t in sorted(_T95.items()) if f >= freedom), 1.96)


def block_bootstrap(values: list[float], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean by a circular block bootstrap; block length n^(1/3) (Hall, Horowitz & Jing 1995).

    `values` in time order, at least two. Deterministic for a seed.
    """
    n = len(values)
    length = max(1, round(n ** (1 / 3)))
    draw = random.Random(seed)
    # Prefix sums of the doubled series make each block's sum one subtraction.
    prefix = [0.0]
    for value in values + values:
        prefix.append(prefix[-1] + value)
    blocks, rest = divmod(n, length)
    means = []
    for _ in range(RESAMPLES):
        total = 0.0
        for _ in range(blocks):
            at = draw.randrange(n)
            total += prefix[at + length] - prefix[at]
        if rest:
            at = draw.randrange(n)
            total += prefix[at + rest] - prefix[at]
        means.append(total / n)
    means.sort()
    cut = (1 - LEVEL) / 2
    return means[int(cut * RESAMPLES)], means[int((1 - cut) * RESAMPLES) - 1]


def block_length(n: int) -> int:
    """Steps that are resampled together: about n^(1/3) and even, so that two kinds of steps that alternate average out."""
    return 1 if n < 8 else 2 * max(1, round(n ** (1 / 3) / 2))


def mean_error(values: list[float]) -> tuple[float, float] | None:
    """(standard error of the mean, degrees of freedom) of values in time order; None below two.

    The variance that a circular block bootstrap of the mean converges to, in closed form: L/n times the variance of the
    n block means around the mean (Politis & Romano 1992), times k/(k - 1) for k = n/L blocks. For L = 1 it is s^2/n.
    """
    n = len(values)
    if n < 2:
        return None
    length = block_length(n)
    center = fmean(values)
    total = sum(values[i % n] for i in range(length))
    spread = 0.0
    for i in range(n):
        spread += (total / length - center) ** 2
        total += values[(i + length) % n] - values[i]
    blocks = n / length
    variance = spread / n * length / n * blocks / (blocks - 1)
    return max(0.0, variance) ** 0.5, blocks - 1


def between_error(means: list[float]) -> tuple[float, float] | None:
    """(standard error, degrees of freedom) of the mean over runs; None for a single run."""
    if len(means) < 2:
        return None
    return stdev(means) / len(means) ** 0.5, len(means) - 1.0


def estimate(runs: list[list[float]]) -> Estimate | None:
    """The mean of a metric over one or more runs, each a list of per-step values in time order; None without values.

    Several runs: Student's t over the runs' means. One run: bootstrap over its steps, at least SINGLE_RUN_FLOOR wide.
    """
    runs = [run for run in runs if run]
    if not runs:
        return None
    means = [fmean(run) for run in runs]
    value = fmean(means)
    if len(runs) >= 2:
        half = t95(len(runs) - 1) * stdev(means) / len(runs) ** 0.5
        return Estimate(value, value - half, value + half, "runs", len(runs))
    floor = SINGLE_RUN_FLOOR * abs(value)
    if len(runs[0]) < 4:
        return Estimate(value, value - floor, value + floor, "floor", len(runs[0]))
    low, high = block_bootstrap(runs[0])
    wide = Estimate(value, min(low, value - floor), max(high, value + floor), "bootstrap", len(runs[0]))
    return wide if high - low > 2 * floor else Estimate(value, wide.low, wide.high, "floor", len(runs[0]))
