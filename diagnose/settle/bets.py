"""Which hypotheses of the before-report the change settles: only those whose resource was relieved are tested.

The change that was made need not be the experiment a hypothesis proposed. What is asked is what every hypothesis claims:
that relieving its resource makes the unit of work shorter (or the served load better).
"""

from diagnose.contract import Hypothesis
from diagnose.settle import say
from diagnose.settle.comparable import same_device
from diagnose.settle.comparison import BetOutcome, Comparison, Delta
from diagnose.settle.measure import SERVED, per_step_ms
from diagnose.settle.noise import estimate
from diagnose.settle.served import GROWN, number
from diagnose.settle.side import KERNELS, Side

BUCKETS = {
    "launch_overhead": ("idle_launch",), "host_sync": ("idle_sync",), "scheduling": ("idle_scheduling",), "copy": ("copy",),
    "communication": ("communication", "comm_wait"), "imbalance": ("comm_wait",), "hbm": ("hbm",), "compute": ("compute",),
    "kernel_inefficiency": ("inefficient",),
}  # fmt: skip
RELIEVED = 0.20
"""A resource whose time fell by less than a fifth was not what was changed."""
MIN_SHARE = 0.02
FOLLOWS = 0.5
"""The unit of work must get shorter by half of what was relieved for the claim to hold."""


def outcomes(c: Comparison, before: Side, after: Side) -> list[BetOutcome]:
    """The before-report's open hypotheses with what the after-runs say of them."""
    out = []
    deltas = {d.phase: d for d in [c.delta, *c.deltas] if d is not None}
    for h in before.first.d.hypotheses:
        if h.status not in ("supported", "possible") or h.experiment is None:
            continue
        if not same_device(before.first.d, after.first.d):
            verdict, reason = "not_tested", "another device: its prediction was for the one it was made on"
        elif h.experiment.metric in SERVED:
            verdict, reason = _of_load(h, before, after)
        else:
            phase = h.experiment.phase or h.phase
            delta = deltas.get(phase) or (deltas.get(None) if phase == "other" else None)
            verdict, reason = _of_steps(h, phase, delta, c)
        if verdict == "confirmed":
            reason += _predicted(h, before, after)
        out.append(BetOutcome(hypothesis=h.id, limit=h.limit, verdict=verdict, reason=reason))
    return out


def _of_steps(h: Hypothesis, phase: str | None, delta: Delta | None, c: Comparison) -> tuple[str, str]:
    """A limit of the traced steps: did its time fall, and did the step follow?"""
    if delta is None or delta.per == "token":
        return "not_tested", "the steps are not the same work on both sides"
    names = BUCKETS.get(h.limit, ())
    before_ns = sum(delta.buckets_before[n] for n in names)
    relieved = -sum(delta.buckets[n] for n in names)
    if not names or relieved < max(RELIEVED * before_ns, MIN_SHARE * delta.before_ns):
        return "not_tested", "the time it blames did not fall by much, so nothing was tried on it"
    if set(names) <= set(KERNELS) and -sum(delta.buckets[n] for n in KERNELS) < FOLLOWS * relieved:
        return "not_tested", "its kernels went to another class without getting shorter"
    head = next((m for m in c.metrics if m.headline and m.phase in (phase, None)), None)
    shown = f"the time it blames fell by {say.time(relieved)} per {delta.unit}, the whole by {say.time(-delta.total_ns)}"
    if head is None or head.verdict not in ("improved", "regressed", "no_change"):
        return "not_tested", f"{shown}, which is not beyond the noise"
    if head.verdict == "improved" and -delta.total_ns >= FOLLOWS * relieved:
        return "confirmed", shown
    if head.verdict == "improved":
        return "not_tested", f"{shown}: part of it came back elsewhere"
    return (
        "refuted",
        f"the time it blames fell by {say.time(relieved)} per {delta.unit}, and the whole did not get shorter",
    )


def _of_load(h: Hypothesis, before: Side, after: Side) -> tuple[str, str]:
    """A limit of the served load: was its setting enlarged, and did the metric its experiment watches follow?"""
    keys = {
        "kv_capacity": (("kv", "budget_tokens"),),
        "scheduling": (("setting", "max_num_seqs"), ("setting", "max_num_batched_tokens")),
    }
    grown = ((number(before.first.d, p, k), number(after.first.d, p, k)) for p, k in keys.get(h.limit, ()))
    x = h.experiment
    assert x is not None
    if not any(a and b and b / a >= GROWN for a, b in grown):
        return "not_tested", "what it says limits the load was not enlarged"
    base = estimate([per_step_ms(r.d, x.metric, None) for r in before.runs])
    measured = estimate([per_step_ms(r.d, x.metric, None) for r in after.runs])
    if base is None or measured is None:
        return "not_tested", f"{x.metric} was not measured on both sides"
    unit = x.prediction.unit
    shown = f"it was enlarged, and {x.metric} went from {base.value:.4g} to {measured.value:.4g} {unit}"
    rises = unit == "tok/s"
    if (measured.low > base.value) if rises else (measured.high < base.value):
        return "confirmed", shown
    return "refuted", f"{shown}: no gain beyond the noise"


def _predicted(h: Hypothesis, before: Side, after: Side) -> str:
    """Whether the result also lies in the interval that the hypothesis's own experiment predicted."""
    x = h.experiment
    assert x is not None
    measured = estimate([per_step_ms(r.d, x.metric, x.phase or h.phase, r.device) for r in after.runs])
    low, high = x.prediction.low, x.prediction.high
    if measured is None or low is None:
        return ""
    if measured.high < low or (high is not None and measured.low > high):
        return ""  # another change than the experiment's: its interval says nothing
    upper = f"–{high:.4g}" if high is not None else " or more"
    return f"; {measured.value:.4g} {x.prediction.unit} is inside the {low:.4g}{upper} of its own experiment"
