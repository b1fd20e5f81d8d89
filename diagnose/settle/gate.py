"""`--fail-on`: what of a comparison makes a check fail."""

import re
from dataclasses import dataclass

from diagnose.errors import UsageError
from diagnose.settle.comparison import Comparison, MetricChange

_METRICS = {
    "ttft": ("TTFT",), "itl": ("ITL", "TPOT"), "tpot": ("TPOT", "ITL"), "e2e": ("end-to-end",), "end-to-end": ("end-to-end",),
    "throughput": ("throughput", "request throughput"), "step": ("step time", "time per call"), "step time": ("step time", "time per call"),
    "kernels": ("kernels",), "idle": ("idle",), "token": ("time per token",),
}  # fmt: skip
_FORM = re.compile(r"^(?P<metric>[a-z0-9 \-]+):(?P<limit>\d+(?:\.\d+)?)\s*%?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gate:
    """A check: `regressed` (any regression), or a metric with the worsening it may have, as a share."""

    metric: str | None = None
    limit: float = 0.0


def parse_gate(text: str) -> Gate:
    """`regressed` or `METRIC:PERCENT`. UsageError names what is possible."""
    if text.strip().lower() == "regressed":
        return Gate()
    found = _FORM.match(text.strip())
    name = found["metric"].lower().strip() if found else ""
    if found is None or name not in _METRICS:
        raise UsageError(
            f"--fail-on {text!r} is neither `regressed` nor METRIC:PERCENT with a metric of {', '.join(_METRICS)} (e.g. ITL:5%)"
        )
    return Gate(name, float(found["limit"]) / 100)


def failures(gate: Gate, c: Comparison) -> list[str]:
    """Why the check fails, a line each; empty when it passes. UsageError when the metric was not measured.

    `regressed`: the overall verdict is regressed or mixed, or any metric regressed. `METRIC:PERCENT`: it got worse by more
    than the limit and the change is beyond its noise (its interval excludes no change, or it has a regressed verdict).
    """
    if gate.metric is None:
        lines = [_line(m) for m in c.metrics if m.verdict == "regressed"]
        if not lines and c.verdict.overall in ("regressed", "mixed"):
            lines = [c.verdict.summary]
        return lines
    names = _METRICS[gate.metric]
    mine = next(
        ([m for m in c.metrics if m.metric == n] for n in names if any(m.metric == n for m in c.metrics)), []
    )
    if not mine:
        have = ", ".join(dict.fromkeys(m.metric for m in c.metrics)) or "nothing"
        raise UsageError(f"--fail-on {gate.metric}: no such metric on both sides; measured: {have}")
    return [_line(m) for m in mine if _worse(m) > gate.limit and _beyond(m)]


def _worse(m: MetricChange) -> float:
    change = m.change or 0.0
    return -change if m.better == "higher" else change


def _beyond(m: MetricChange) -> bool:
    if m.verdict in ("regressed", "withheld"):
        return m.verdict == "regressed"
    ends = (m.low, m.high)
    return all(e is not None for e in ends) and (
        min(e for e in ends if e is not None) > 0 or max(e for e in ends if e is not None) < 0
    )


def _line(m: MetricChange) -> str:
    where = f"{m.phase} " if m.phase and m.phase != "other" else ""
    return f"{where}{m.metric} {m.before:.4g} -> {m.after:.4g} {m.unit} ({100 * (m.change or 0):+.1f} %)"
