"""A sweep over loads on both sides: points paired by load, and each metric judged over the points.

Runs at different request rates (or models) are no repeats of each other. Paired by load, their ratios are: a metric that is
better at every point of a sweep is better, even where one point alone is within its noise.
"""

from math import exp, log
from statistics import fmean, stdev
from typing import Any

from diagnose.settle.comparable import LOAD, model_name, setting
from diagnose.settle.judge import Change, judge
from diagnose.settle.serving_metrics import serving_metrics
from diagnose.settle.side import Run, Side
from diagnose.settle.trace_metrics import Candidate

Key = tuple[str | None, ...]


def load_of(run: Run) -> Key:
    """Model and client's load of a run."""
    return (model_name(run.d), *(setting(run.d, key) for key in LOAD))


def label(key: Key) -> str:
    """A load in words: `llama8B, request rate 8`."""
    parts = [key[0] or ""]
    for name, value in zip(LOAD.values(), key[1:], strict=True):
        if value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(p for p in parts if p) or "the same load"


def points(before: Side, after: Side) -> list[tuple[str, Side, Side]] | None:
    """Pairs of sides by load when the runs of a side are a sweep; None when they are repeats, or do not pair up."""
    left: dict[Key, list[Run]] = {}
    right: dict[Key, list[Run]] = {}
    for runs, found in ((before.runs, left), (after.runs, right)):
        for run in runs:
            if run.d.latency is None or run.d.devices:
                return None
            found.setdefault(load_of(run), []).append(run)
    shared = [k for k in left if k in right]
    if len(left) < 2 or len(shared) < 2:
        return None
    return [(label(k), Side(left[k]), Side(right[k])) for k in shared]


def over_points(found: list[tuple[str, Side, Side]]) -> tuple[list[Candidate], list[dict[str, Any]]]:
    """Metrics over all points (geometric means, Student's t over log ratios), and the table of the points.

    The points are judged too, as one family: a metric that is better at one load and worse at another depends on the load.
    """
    by_metric: dict[str, list[Candidate]] = {}
    named: list[tuple[str, Candidate]] = []
    for name, before, after in found:
        for c in serving_metrics(before, after):
            by_metric.setdefault(c.metric, []).append(c)
            named.append((name, c))
    rows: list[dict[str, Any]] = []
    for (name, c), judged in zip(named, judge([c.change for _, c in named]), strict=True):
        change = c.change.difference / c.change.before
        rows.append({
            "load": name, "metric": c.metric, "unit": c.unit, "before": c.change.before, "after": c.change.after,
            "change": change, "verdict": judged.verdict,
        })  # fmt: skip
    return [_over(metric, cs, len(found)) for metric, cs in by_metric.items() if len(cs) >= 2], rows


def _over(metric: str, cs: list[Candidate], count: int) -> Candidate:
    ratios = [log(c.change.after / c.change.before) for c in cs]
    before = exp(fmean(log(c.change.before) for c in cs))
    after = before * exp(fmean(ratios))
    se = stdev(ratios) / len(ratios) ** 0.5 * after
    higher = cs[0].change.higher_is_better
    good = sum((r > 0) == higher for r in ratios if r)
    bad = sum((r > 0) != higher for r in ratios if r)
    single = any(c.change.single for c in cs)
    change = Change(
        before, after, se, len(ratios) - 1.0, before, single, higher, all(c.change.same for c in cs)
    )
    note = f"better at {good} of {len(cs)} load points, worse at {bad}; geometric means"
    return Candidate(metric, None, cs[0].unit, change, "load points", (count, count), True, note)
