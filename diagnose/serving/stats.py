"""Quantiles of samples and of cumulative histogram buckets."""

import math
from collections.abc import Iterable, Sequence


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
