"""Small helpers that rules share: typed evidence, and words for sizes."""

from diagnose.contract import Evidence
from diagnose.rules.base import Context, Threshold

RELIEF = 0.5
"""Share of a resource's time that goes when the resource is doubled: relief of compute, memory bandwidth or a link is
twice of it (nobody removes them), while overheads and waits can be removed. Limits are compared by what relief frees."""


def fact(
    metric: str,
    value: float | str | None,
    unit: str,
    *,
    threshold: Threshold | None = None,
    provenance: str = "measured",
    note: str | None = None,
    query: str | None = None,
) -> Evidence:
    """One typed fact, with the threshold it was held against."""
    return Evidence(
        metric=metric,
        value=value,
        unit=unit,
        threshold=None if threshold is None else threshold.value,
        direction=None if threshold is None else threshold.direction,
        provenance=provenance,
        note=note,
        query=query,
    )


def share_of(ns: float | None, context: Context) -> float:
    """Part of the phase's observed time."""
    return (ns or 0.0) / context.wall_ns if context.wall_ns else 0.0


def percent(value: float) -> str:
    """0.4567 -> '45.7 %'; three significant digits."""
    return f"{100 * value:.3g} %"


def ms(ns: float) -> str:
    """Nanoseconds in the unit that reads best."""
    if ns >= 1e9:
        return f"{ns / 1e9:.3g} s"
    if ns >= 1e6:
        return f"{ns / 1e6:.3g} ms"
    return f"{ns / 1e3:.3g} µs"


def of_run(ns: float, context: Context) -> str:
    """The share of the device's whole observed time, for what lies outside steps."""
    wall = context.facts.get("run_wall_ns") or context.wall_ns
    return f"{percent(ns / wall)} of the run" if wall else "none of the run"


def where(context: Context) -> str:
    """The phase in a sentence."""
    return {"other": "the run", "outside": "the time outside steps"}.get(context.phase, context.phase)


def shorten(name: str, limit: int = 60) -> str:
    """A long kernel name with its middle left out."""
    return name if len(name) <= limit else f"{name[: limit // 2]}…{name[-(limit // 2 - 1) :]}"


STACKS_DOUBT = (
    "Python stacks were recorded, which slows the host: repeat without stacks before trusting the size"
)
"""Said by every rule whose evidence is host time."""


def host_quality(context: Context) -> tuple[float, list[str]]:
    """How far host-side gaps can be trusted in this capture."""
    quality, doubts = 1.0, []
    if context.facts.get("python_stacks"):
        quality *= 0.85
        doubts.append(STACKS_DOUBT)
    if (context.facts.get("profiler_overhead_share") or 0) > 0.05:
        quality *= 0.8
        doubts.append("the profiler itself took more than 5 % of the window")
    if context.facts.get("rocm"):
        doubts.append("ROCm start times can be snapped to the previous end: small gaps are not evidence")
    return quality, doubts
