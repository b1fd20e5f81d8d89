"""Metrics of a finished result, per step: what experiments predict and comparisons compare."""

from diagnose.contract import Diagnosis, StepRow

STEP_TIME = "step time"
COMMUNICATION = "communication time per step"
WAITING = "waiting in collectives per step"
INPUT = "time per batch"

_BUCKETS = {COMMUNICATION: ("communication", "comm_wait"), WAITING: ("comm_wait",)}


def per_step_ms(d: Diagnosis, metric: str, phase: str | None, device: int | None = None) -> list[float]:
    """The metric's value for every step of `phase` on the deciding device, in time order; milliseconds.

    `phase` 'outside' (or None) gives one value: the whole observed window over the steps in it, the time per batch when
    input preparation lies between steps. Unobserved time never counts.
    """
    if phase in (None, "outside"):
        found = next((x for x in d.devices if x.id == deciding_device(d)), None)
        steps = sum(p.steps for p in d.phases) // max(1, len(d.devices))
        if found is None or not steps:
            return []
        return [(found.window.wall_ns - found.attribution_ns["unobserved"]) / steps / 1e6]
    chosen = device if device is not None else deciding_device(d)
    rows = [s for s in d.steps if s.phase == phase and s.device == chosen]
    return [_value(row, metric) for row in rows]


def _value(row: StepRow, metric: str) -> float:
    split = row.attribution_ns
    if metric in _BUCKETS:
        return sum(split[b] for b in _BUCKETS[metric]) / 1e6
    return (sum(split.values()) - split["unobserved"]) / 1e6


def deciding_device(d: Diagnosis) -> int | None:
    """The device with the longest observed window, as the verdict chooses it."""
    if not d.devices:
        return None
    best = max(d.devices, key=lambda x: (x.window.wall_ns - x.attribution_ns["unobserved"], -x.id))
    return best.id
