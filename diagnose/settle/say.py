"""Numbers and names in the sentences of a comparison."""

from math import floor, isfinite, log10

from diagnose.settle.comparison import MetricChange

_BUCKETS = {
    "idle_launch": "idle waiting for launches",
    "idle_sync": "idle while the host was blocked",
    "idle_scheduling": "idle between steps",
    "idle_device": "idle on the device side",
    "idle_other": "idle of unknown cause",
}


def sig(value: float) -> str:
    """Three significant digits without an exponent."""
    if not value or not isfinite(value):
        return "0" if value == 0 else "unknown"
    digits = 2 - floor(log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}" if abs(rounded) < 1e15 else f"{rounded:.2e}"


def pct(share: float | None) -> str:
    """A relative change with its sign, to the tenth of a percent below 10 %: 0.131 -> '+13 %'."""
    if share is None:
        return "unknown"
    if share == 0:
        return "0 %"
    value = abs(100 * share)
    if value < 0.005:
        return "0 %"
    text = f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
    return f"{'+' if share > 0 else '−'}{text} %"


def time(ns: float) -> str:
    """A duration in the unit that reads best."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= scale:
            return f"{sig(ns / scale)} {unit}"
    return f"{sig(ns)} ns"


def pair(before_ns: float, after_ns: float) -> str:
    """Two durations in one unit: `82.2 → 90.4 µs`."""
    largest = max(abs(before_ns), abs(after_ns))
    unit, scale = next(
        ((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if largest >= s), ("ns", 1.0)
    )
    return f"{sig(before_ns / scale)} → {sig(after_ns / scale)} {unit}"


def signed_time(ns: float) -> str:
    """A duration with its sign."""
    return f"{'+' if ns >= 0 else '−'}{time(abs(ns))}"


def role(name: str) -> str:
    """A role or bucket for people."""
    return _BUCKETS.get(name, name.replace("_", " "))


def metric(m: MetricChange) -> str:
    """`decode step time`, `TTFT`."""
    if m.metric == "time per call":
        return f"time per {m.unit.removeprefix('ms per ')}"
    if m.metric == "step time" and m.phase:
        return f"{m.phase} step time" if m.phase != "other" else "step time"
    return f"{m.phase} {m.metric}" if m.phase and m.phase != "other" else m.metric


def values(m: MetricChange) -> str:
    """`8.82 → 9.98 ms (+13.1 %)`."""
    unit = m.unit.split(" per ")[0]
    return f"{sig(m.before)} → {sig(m.after)} {unit} ({pct(m.change)})"


def interval(m: MetricChange) -> str:
    """The 95 % interval of the relative change in words, empty where unknown."""
    return "" if m.low is None or m.high is None else f"{pct(m.low)} to {pct(m.high)}"


def listed(parts: list[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
