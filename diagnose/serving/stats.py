"""Quantiles of samples and of cumulative histogram buckets."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise


def quantile(values: Sequence[float], q: float) -> float:
    """Quantile with linear interpolation between order statistics (numpy's default). `values` must be
    sorted."""
    if not values:
        raise ValueError("quantile of nothing")
    at = (len(values) - 1) * q
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def summary(values: Iterable[float]) -> dict[str, float]:
    """mean, p50, p90, p99, min, max and n of samples; empty for none."""
    rows = sorted(values)
    if not rows:
        return {}
    return {
        "mean": sum(rows) / len(rows), "p50": quantile(rows, 0.5), "p90": quantile(rows, 0.9),
        "p99": quantile(rows, 0.99),
        "min": rows[0], "max": rows[-1], "n": float(len(rows)),
    }  # fmt: skip


BINS_A_DECADE = 20
LINEAR_BINS = 12


def histogram(values: Iterable[float]) -> list[tuple[float, float, int]]:
    """(low, high, count) bins of samples: twenty a decade, or twelve equal ones where the samples span less than half a decade.

    A sample lies in the bin with low <= sample < high, the largest one in the last. Bins between are kept when empty; a single
    value gives one bin without width.
    """
    rows = sorted(v for v in values if math.isfinite(v))
    if not rows:
        return []
    low, high = rows[0], rows[-1]
    if low == high:
        return [(low, high, len(rows))]
    if low > 0 and high / low > math.sqrt(10):
        first = math.floor(math.log10(low) * BINS_A_DECADE)
        last = math.ceil(math.log10(high) * BINS_A_DECADE)
        edges = [10 ** (i / BINS_A_DECADE) for i in range(first, max(last, first + 1) + 1)]
    else:
        edges = [low + (high - low) * i / LINEAR_BINS for i in range(LINEAR_BINS + 1)]
    counts = [0] * (len(edges) - 1)
    for value in rows:
        counts[min(max(bisect_right(edges, value) - 1, 0), len(counts) - 1)] += 1
    return [(a, b, n) for (a, b), n in zip(pairwise(edges), counts, strict=True)]


def bucket_quantile(buckets: Sequence[tuple[float, float]], q: float) -> tuple[float, float, float] | None:
    """(estimate, low, high) of a quantile from cumulative (upper bound, count) pairs, Prometheus' rule:
    linear inside the bucket that holds it. low and high are that bucket's edges: the true value lies
    between them. None when empty; in the open last bucket the estimate is its lower edge and high is
    infinite."""
    rows = sorted(buckets)
    total = rows[-1][1] if rows else 0.0
    if total <= 0:
        return None
    rank, below, low = q * total, 0.0, 0.0
    for bound, count in rows:
        if count >= rank and count > below:
            if math.isinf(bound):
                return low, low, math.inf
            return low + (bound - low) * (rank - below) / (count - below), low, bound
        below, low = max(below, count), bound if not math.isinf(bound) else low
    return None
