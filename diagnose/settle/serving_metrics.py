"""What a benchmark or engine metrics let one compare: TTFT, ITL (or TPOT), end to end and throughput."""

from statistics import fmean
from typing import Any

from diagnose.settle.judge import Change
from diagnose.settle.noise import between_error
from diagnose.settle.side import Run, Side
from diagnose.settle.student import welch
from diagnose.settle.trace_metrics import Candidate, same

TTFT, ITL, TPOT, E2E, THROUGHPUT, REQUESTS = (
    "TTFT",
    "ITL",
    "TPOT",
    "end-to-end",
    "throughput",
    "request throughput",
)
SERVING = (TTFT, ITL, TPOT, E2E, THROUGHPUT, REQUESTS)
_LATENCIES = ((TTFT, "ttft_ms"), (ITL, "itl_ms"), (TPOT, "tpot_ms"), (E2E, "e2e_ms"))
_RATES = ((THROUGHPUT, "throughput_tok_s", "tok/s"), (REQUESTS, "requests_s", "req/s"))

ASSUMED = 0.025
"""Half of a 95 % interval where a file states no spread: two runs of one load agree within 2-3 % in what they report as a
total. A change must still be beyond the single-run floor, twice this."""


def serving_metrics(before: Side, after: Side) -> list[Candidate]:
    """Latencies (mean, else median) and rates that every run states, from the same kind of source on both sides.

    The noise: spread between repeats; with one run a side the standard error over its requests where their spread is
    known (requests share a queue, so this is a lower bound), else the floor alone.
    """
    out: list[Candidate] = []
    for metric, key in _LATENCIES:
        # A mean gap between tokens and time per output token are two readings of one thing: the direct one is enough.
        if metric == TPOT and any(c.metric == ITL for c in out):
            continue
        found = _latency(metric, key, before, after)
        if found is not None:
            out.append(found)
    for metric, key, unit in _RATES:
        if metric == REQUESTS and any(c.metric == THROUGHPUT for c in out):
            continue
        found = _rate(metric, key, unit, before, after)
        if found is not None:
            out.append(found)
    return out


def _entry(run: Run, key: str) -> dict[str, Any] | None:
    value = (run.d.latency or {}).get(key)
    return value if isinstance(value, dict) else None


def _latency(metric: str, key: str, before: Side, after: Side) -> Candidate | None:
    rows = [[_entry(r, key) for r in side.runs] for side in (before, after)]
    if not all(e for side in rows for e in side):
        return None
    entries = [[e for e in side if e] for side in rows]
    if len({e.get("source") for side in entries for e in side}) > 1:
        return None
    stat = next(
        (s for s in ("mean", "p50") if all(e.get(s) is not None for side in entries for e in side)), None
    )
    if stat is None:
        return None
    values = [[float(e[stat]) for e in side] for side in entries]
    errors = [_request_error(e, r) if stat == "mean" else None for e, r in ((entries[0][0], before.first), (entries[1][0], after.first))]  # fmt: skip
    note = "median" if stat == "p50" else ""
    return _make(metric, "ms", values, errors, before, after, note)


def _request_error(entry: dict[str, Any], run: Run) -> tuple[float, float] | None:
    n = entry.get("count") or (run.d.latency or {}).get("completed")
    spread = entry.get("std")
    if not spread or not n or n < 2:
        return None
    return float(spread) / float(n) ** 0.5, float(n) - 1


def _rate(metric: str, key: str, unit: str, before: Side, after: Side) -> Candidate | None:
    found = [[(r.d.latency or {}).get(key) for r in side.runs] for side in (before, after)]
    if not all(isinstance(v, int | float) and v > 0 for side in found for v in side):
        return None
    sources = {(r.d.latency or {}).get("throughput_source") for side in (before, after) for r in side.runs}
    if metric == THROUGHPUT and len(sources) > 1:
        return None
    values = [[float(v) for v in side if v is not None] for side in found]
    return _make(metric, unit, values, [None, None], before, after, "", higher=True)


def _make(
    metric: str, unit: str, values: list[list[float]], errors: list[tuple[float, float] | None], before: Side, after: Side, note: str,
    higher: bool = False,
) -> Candidate:  # fmt: skip
    a, b = fmean(values[0]), fmean(values[1])
    single = before.single or after.single
    spread = between_error(values[0]), between_error(values[1])
    se: float
    if spread[0] and spread[1]:
        (se, freedom), method = welch(*spread[0], *spread[1]), "runs"
    elif errors[0] and errors[1]:
        (se, freedom), method = welch(*errors[0], *errors[1]), "requests"
    else:
        se, freedom, method = ASSUMED * a / 1.96, 1e6, "assumed"
    change = Change(a, b, se, freedom, a, single, higher, same(before, after))
    samples = tuple(int((r.d.latency or {}).get("completed") or 0) for r in (before.first, after.first))
    return Candidate(metric, None, unit, change, method, (samples[0], samples[1]), True, note)
