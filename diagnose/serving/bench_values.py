"""A benchmark's own per-request or per-token values as statistics and a histogram."""

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.stats import histogram, summary

SAME_MEAN = 0.02
"""A mean and the values it was taken from agree within rounding; 2 % apart they are of different things."""


def add_values(
    out: Evidence, metric: str, values: list[float], stated: set[tuple[str, str]] | None = None
) -> None:
    """Statistics of `values` that are not in `stated` (metric, stat), with `computed = true`, and their histogram as rows
    `stat = bin` between labels `low` and `high`.

    Nothing is added where the file's mean is not the mean of these values: they are then of something else (chunks of several
    tokens).
    """
    found = summary(values)
    mean = out.stat(metric, "mean", "bench")
    if not found or (mean and abs(found["mean"] / mean - 1) > SAME_MEAN):
        return
    for stat, value in found.items():
        if (metric, stat) not in (stated or set()):
            out.add(metric, value, "bench", stat=stat, computed="true")
    for low, high, count in histogram(values):
        out.add(metric, count, "bench", stat="bin", low=f"{low:.6g}", high=f"{high:.6g}")
