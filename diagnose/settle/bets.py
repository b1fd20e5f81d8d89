"""Which hypotheses of the before-report the change settles: a prediction is tested only where its resource moved."""

from diagnose.contract import Diagnosis, Hypothesis
from diagnose.settle.comparable import device_label
from diagnose.settle.comparison import BetOutcome, Comparison, Delta
from diagnose.settle.measure import SERVED, per_step_ms
from diagnose.settle.noise import estimate
from diagnose.settle.served import GROWN, number
from diagnose.settle.side import Side

BUCKETS = {
    "launch_overhead": ("idle_launch",), "host_sync": ("idle_sync",), "scheduling": ("idle_scheduling",), "copy": ("copy",),
    "communication": ("communication", "comm_wait"), "imbalance": ("comm_wait",), "hbm": ("hbm",), "compute": ("compute",),
    "kernel_inefficiency": ("inefficient",),
}  # fmt: skip
MOVED = 0.20
"""A resource that changed by less than a fifth of its own time was not what was changed."""
MIN_SHARE = 0.02


def outcomes(c: Comparison, before: Side, after: Side) -> list[BetOutcome]:
    """The before-report's open hypotheses with what the after-runs say of them."""
    out = []
    deltas = {d.phase: d for d in [c.delta, *c.deltas] if d is not None}
    for h in before.first.d.hypotheses:
        if h.status in ("supported", "possible") and h.experiment is not None:
            phase = h.experiment.phase or h.phase
            moved, why = _moved(
                h, deltas.get(phase) or (deltas.get(None) if phase == "other" else None), before, after
            )
            out.append(
                _settle(h, phase, before, after)
                if moved
                else BetOutcome(hypothesis=h.id, limit=h.limit, verdict="not_tested", reason=why)
            )
    return out


def far_device(a: Diagnosis, b: Diagnosis) -> bool:
    """Whether the two results are of different devices."""
    names = device_label(a), device_label(b)
    return None not in names and names[0] != names[1]


def _moved(h: Hypothesis, delta: Delta | None, before: Side, after: Side) -> tuple[bool, str]:
    a, b = before.first.d, after.first.d
    if far_device(a, b):
        return False, "another device: its prediction was for the one it was made on"
    if h.experiment is not None and h.experiment.metric in SERVED:
        keys = {
            "kv_capacity": (("kv", "budget_tokens"),),
            "scheduling": (("setting", "max_num_seqs"), ("setting", "max_num_batched_tokens")),
        }
        for part, key in keys.get(h.limit, ()):
            x, y = number(a, part, key), number(b, part, key)
            if x and y and y / x >= GROWN:
                return True, ""
        return False, "what it says limits the load was not enlarged"
    if delta is None or delta.per == "token":
        return False, "the steps are not the same work on both sides"
    names = BUCKETS.get(h.limit, ())
    before_ns = sum(delta.buckets_before[n] for n in names)
    change = sum(delta.buckets[n] for n in names)
    if not names or abs(change) < max(MOVED * before_ns, MIN_SHARE * delta.before_ns):
        return False, "the time it blames hardly moved, so nothing was tried on it"
    return True, ""


def _settle(h: Hypothesis, phase: str | None, before: Side, after: Side) -> BetOutcome:
    x = h.experiment
    assert x is not None
    measured = estimate([per_step_ms(r.d, x.metric, phase, r.device) for r in after.runs])
    base = estimate([per_step_ms(r.d, x.metric, phase, r.device) for r in before.runs])
    low, high = x.prediction.low, x.prediction.high
    if measured is None or low is None:
        return BetOutcome(
            hypothesis=h.id,
            limit=h.limit,
            verdict="not_tested",
            reason=f"the after-run has no {x.metric} to hold against the prediction",
        )
    unit = x.prediction.unit
    fits = measured.high >= low and (high is None or measured.low <= high)
    rival = x.under_runner_up
    other = (
        rival is not None
        and rival.low is not None
        and rival.high is not None
        and measured.meets(rival.low, rival.high)
    )
    now = f", from {base.value:.4g}" if base else ""
    upper = f"-{high:.4g}" if high is not None else " or more"
    shown = f"{x.metric} became {measured.value:.4g} {unit}{now}; it predicted {low:.4g}{upper}"
    if fits and not other:
        return BetOutcome(hypothesis=h.id, limit=h.limit, verdict="confirmed", reason=shown)
    if fits:
        return BetOutcome(
            hypothesis=h.id,
            limit=h.limit,
            verdict="not_tested",
            reason=f"{shown}, which the runner-up also allows",
        )
    # A smaller change of the same kind than the experiment's moves the metric part of the way: that refutes nothing.
    if base is not None and high is not None and measured.value < base.value and measured.value > high:
        return BetOutcome(
            hypothesis=h.id,
            limit=h.limit,
            verdict="not_tested",
            reason=f"{shown}: part of the way, as a smaller change would",
        )
    return BetOutcome(hypothesis=h.id, limit=h.limit, verdict="refuted", reason=shown)
