"""Metrics of a finished result, per step: what experiments predict and comparisons compare."""

from diagnose.contract import Diagnosis, StepRow

STEP_TIME = "step time"
COMMUNICATION = "communication time per step"
WAITING = "waiting in collectives per step"
INPUT = "time per batch"

# What experiments on the served load watch: (part of `latency`, its statistic; None for a plain number).
SERVED = {
    "output throughput": ("throughput_tok_s", None),
    "mean TTFT": ("ttft_ms", "mean"),
    "mean ITL": ("itl_ms", "mean"),
    "mean end-to-end latency": ("e2e_ms", "mean"),
}

_BUCKETS = {COMMUNICATION: ("communication", "comm_wait"), WAITING: ("comm_wait",)}


def per_step_ms(d: Diagnosis, metric: str, phase: str | None, device: int | None = None) -> list[float]:
    """The metric's value for every step of `phase` on the deciding device, in time order; milliseconds.

    Metrics of the served load (`SERVED`) give the run's one value in their own unit. `phase` 'outside' (or None) gives one
    value: the whole observed window over the steps in it, the time per batch when input preparation lies between steps.
    Unobserved time never counts.
    """
    if metric in SERVED:
        value = served(d, metric)
        return [] if value is None else [value]
    if phase in (None, "outside"):
        found = next((x for x in d.devices if x.id == deciding_device(d)), None)
        steps = sum(p.steps for p in d.phases) // max(1, len(d.devices))
        if found is None or not steps:
            return []
        observed = found.window.wall_ns - found.attribution_ns["unobserved"]
        waits = (
            d.outside_steps.attribution_ns["idle_scheduling"]
            if d.outside_steps and len(d.devices) == 1
            else 0
        )
        # The wait before the first batch lies before the window: n batches show n - 1 waits.
        return [((observed - waits) / steps + waits / max(1, steps - 1)) / 1e6]
    chosen = device if device is not None else deciding_device(d)
    rows = [s for s in d.steps if s.phase == phase and s.device == chosen]
    first = min((s for s in d.steps if s.device == chosen), key=lambda s: s.start_ns, default=None)
    if rows and rows[0] is first and any(s.attribution_ns["idle_scheduling"] for s in rows[1:]):
        # The gap before the window's first step lies outside the window: that step is not whole.
        rows = rows[1:]
    return [_value(row, metric) for row in rows]


def _value(row: StepRow, metric: str) -> float:
    split = row.attribution_ns
    if metric in _BUCKETS:
        return sum(split[b] for b in _BUCKETS[metric]) / 1e6
    return (sum(split.values()) - split["unobserved"]) / 1e6


def served(d: Diagnosis, metric: str) -> float | None:
    """A metric of the served load; mean TPOT stands in where no mean gap between tokens is stated."""
    part, stat = SERVED[metric]
    latency = d.latency or {}
    entry = latency.get(part) or (latency.get("tpot_ms") if part == "itl_ms" else None)
    value = entry if stat is None else (entry or {}).get(stat)
    return float(value) if isinstance(value, int | float) else None


def deciding_device(d: Diagnosis) -> int | None:
    """The device with the longest observed window, as the verdict chooses it."""
    if not d.devices:
        return None
    best = max(d.devices, key=lambda x: (x.window.wall_ns - x.attribution_ns["unobserved"], -x.id))
    return best.id
