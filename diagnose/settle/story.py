"""The answer in one word and one sentence, why, and what is taken for the cause."""

from diagnose.rules.verdict import words as limit_words
from diagnose.settle import say
from diagnose.settle.comparison import Comparison, Delta, KernelChange, MetricChange, OverallVerdict
from diagnose.settle.judge import overall
from diagnose.settle.served import explain
from diagnose.settle.side import Side
from diagnose.settle.trace_metrics import IDLE_TIME, KERNEL_TIME, UNIT_TIME

MIN_FINDING = 0.01
"""Changed kernels decide the verdict where no headline metric does, when together they move the unit by 1 % or more."""
_LIMIT = {
    "idle_launch": "launch_overhead", "idle_sync": "host_sync", "idle_scheduling": "scheduling", "communication": "communication",
    "comm_wait": "imbalance", "copy": "copy",
}  # fmt: skip
_MOST = 3


def tell(c: Comparison, before: Side, after: Side) -> OverallVerdict:
    """The overall verdict of a comparison whose other parts are filled in."""
    heads = [m for m in c.metrics if m.headline and m.verdict != "withheld"]
    word = overall([v for m in heads for v in (m.verdict, *_at_points(m))])
    found = flagged(c)
    decisive = _decisive(c, found) if word in ("no_change", "inconclusive") else None
    if decisive is not None:
        word = decisive
    withheld = [m for m in c.metrics if m.headline and m.verdict == "withheld"]
    if not heads and not withheld:
        summary = "Inconclusive: the two sides share no metric; " + (
            c.notes[0] if c.notes else "give the same kind of input on both"
        )
        return OverallVerdict(overall="inconclusive", summary=summary, why=[])
    summary = _summary(word, c, heads, withheld, found if decisive else [], before, after)
    served = explain(before.first.d, after.first.d, c.metrics)
    cause = _cause(c, word, found) or (served.cause if word in ("improved", "regressed", "mixed") else None)
    return OverallVerdict(overall=word, summary=summary, why=_why(c, found) + served.why, cause=cause)


def _at_points(m: MetricChange) -> list[str]:
    """Verdicts at single points of a load sweep that go against the sweep's own."""
    points = m.points or {}
    return [v for v in ("improved", "regressed") if points.get(v) and v != m.verdict]


def flagged(c: Comparison) -> list[KernelChange]:
    """Kernels with a verdict that moves the unit of work, largest impact first."""
    return [k for k in c.kernels if k.verdict in ("improved", "regressed") and not k.minor]


def _decisive(c: Comparison, found: list[KernelChange]) -> str | None:
    """The verdict that changed kernels carry by themselves: all in one direction and together worth it."""
    if not found or c.delta is None or len({k.verdict for k in found}) > 1:
        return None
    if any(KERNEL_TIME in d.withholds for d in c.comparability) or not c.delta.before_ns:
        return None  # the work itself is not the same
    moved = sum(k.impact_ns for k in found if k.phase == c.delta.phase or c.delta.phase is None)
    return found[0].verdict if abs(moved) >= MIN_FINDING * c.delta.before_ns else None


def _summary(
    word: str, c: Comparison, heads: list[MetricChange], withheld: list[MetricChange], decisive: list[KernelChange], before: Side, after: Side
) -> str:  # fmt: skip
    lead = {
        "improved": "Improved",
        "regressed": "Regressed",
        "mixed": "Mixed",
        "no_change": "No change",
        "inconclusive": "Inconclusive",
    }[word]
    if any(m.verdict in ("improved", "regressed") or _at_points(m) for m in heads):
        text = _moved(heads)
    elif decisive:
        text = [
            _kernels(decisive),
            *(
                f"{say.metric(m)}, {say.values(m)}, is within what one run a side can tell"
                for m in heads[:_MOST]
            ),
        ]
    elif word == "no_change":
        same = all(m.change_abs == 0 and m.low_abs == 0 for m in heads)
        text = [say.listed([f"{say.metric(m)} {say.values(m)}" for m in heads[:_MOST]])]
        text.append("both sides are the same recording" if same else "nothing moved by more than 5 %")
    else:
        text = [f"{say.metric(m)} {say.values(m)}{_within(m)}" for m in heads[:_MOST]]
        text += _window(c, before, after) if heads else []
    if withheld:
        names = say.listed([f"{say.metric(m)} {say.values(m)}" for m in withheld[:_MOST]])
        text.append(f"no verdict on {names}: {_short_reason(withheld[0])}")
    device = next((d for d in c.comparability if d.what == "device"), None)
    where = f" on another device ({device.before} → {device.after})" if device else ""
    return f"{lead}{where}: {'; '.join(text)}."


def _moved(heads: list[MetricChange]) -> list[str]:
    """Metrics with a verdict in one breath, then the others by name."""
    by = {
        v: [m for m in heads if m.verdict == v]
        for v in ("improved", "regressed", "no_change", "inconclusive")
    }
    both = []
    for verdict, verb in (("improved", "better"), ("regressed", "worse")):
        if by[verdict]:
            both.append(f"{say.listed([f'{say.metric(m)} {say.values(m)}' for m in by[verdict]])} got {verb}")
    text = [", but ".join(both)] if both else []
    for verdict, phrase in (("no_change", "no change of"), ("inconclusive", "no verdict on")):
        plain = [m for m in by[verdict] if not _at_points(m)]
        if plain:
            text.append(f"{phrase} {say.listed([say.metric(m) for m in plain])}")
    for m in heads:
        if _at_points(m):
            points = m.points or {}
            n = sum(points.values())
            text.append(
                f"{say.metric(m)} depends on the load: worse at {points['regressed']} of {n} points, better at {points['improved']}"
            )
    return text


def _within(m: MetricChange) -> str:
    if m.low is None or m.high is None:
        return f", {m.reason}" if m.reason else ""
    text = {"within its noise": " is within its noise"}.get(
        m.reason or "", f": {m.reason}" if m.reason else ""
    )
    return f"{text} ({say.interval(m)})"


def _short_reason(m: MetricChange) -> str:
    """The reason of a withheld verdict up to its first stop: the rest stands with the differences."""
    return (m.reason or "").split(";")[0]


def _window(c: Comparison, before: Side, after: Side) -> list[str]:
    """What the parts of a window did, kernels first since only they can be judged, and why the rest cannot."""
    if not any(m.metric == UNIT_TIME and m.noise == "window" for m in c.metrics):
        return []
    out = []
    for name in (KERNEL_TIME, IDLE_TIME):
        for m in c.metrics:
            if m.metric == name and not m.headline and m.verdict != "withheld":
                word = {
                    "no_change": "are unchanged",
                    "improved": "got faster",
                    "regressed": "got slower",
                }.get(m.verdict, "")
                out.append(f"{say.metric(m)} {word or 'went'} {say.values(m)}")
    longest = max(sum(w.total for w in s.first.windows) for s in (before, after))
    return [*out, f"one window of {say.time(longest)} a side is too short to call it real"]


def _kernels(found: list[KernelChange]) -> str:
    parts = []
    for k in found[:_MOST]:
        what = " ".join(x for x in (say.role(k.role), k.shape) if x)
        speed = "slower" if k.verdict == "regressed" else "faster"
        if k.per == "call":
            pair = say.pair(k.call_ns_before, k.call_ns_after)
            parts.append(f"{what} got {speed}, {pair} a call ({say.pct(k.change)})")
        else:
            parts.append(f"{what} got {speed}, {say.signed_time(k.impact_ns)} per unit ({say.pct(k.change)})")
    more = f" and {len(found) - _MOST} more kernels" if len(found) > _MOST else ""
    return say.listed(parts) + more


def _by_role(found: list[KernelChange]) -> str:
    """Many changed kernels in a line: the relative change of their time by role, largest impact first."""
    before: dict[str, float] = {}
    moved: dict[str, float] = {}
    for k in found:
        before[k.role] = before.get(k.role, 0.0) + k.calls_before * k.call_ns_before
        moved[k.role] = moved.get(k.role, 0.0) + k.impact_ns
    names = sorted(moved, key=lambda r: -abs(moved[r]))
    parts = [f"{say.role(r)} {say.pct(moved[r] / before[r])}" for r in names if before[r]]
    return f"{len(found)} kernels changed: {say.listed(parts[:6])}"


def groups(d: Delta) -> list[tuple[str, int]]:
    """The delta in a few words: kernels together, then each kind of idle time, collectives and copies; largest first."""
    total: dict[str, int] = {}
    for r in d.roles:
        name = {"kernels": "kernels", "communication": "collectives"}.get(r.kind, say.role(r.role))
        total[name] = total.get(name, 0) + r.change_ns
    return sorted(((k, v) for k, v in total.items() if v), key=lambda x: -abs(x[1]))


def _why(c: Comparison, found: list[KernelChange]) -> list[str]:
    out = []
    withheld = {m.phase for m in c.metrics if m.headline and m.verdict == "withheld"}
    for d in [c.delta, *c.deltas]:
        if d is None or not d.total_ns or d.phase in withheld:
            continue
        parts = [
            f"{name} {say.signed_time(ns)}" for name, ns in groups(d)[:4] if abs(ns) >= 0.001 * d.before_ns
        ]
        if not parts:
            continue
        out.append(
            f"Per {d.unit}: {say.pair(d.before_ns, d.after_ns)} ({say.signed_time(d.total_ns)}), of which {say.listed(parts)}."
        )
    units = {d.phase: d.unit for d in [c.delta, *c.deltas] if d is not None}
    for phase in dict.fromkeys(k.phase for k in found):
        mine = [k for k in found if k.phase == phase]
        unit = units.get(phase) or units.get(None) or "unit"
        text = _by_role(mine) if len(mine) > _MOST else _kernels(mine)
        where = (
            f"{phase[0].upper()}{phase[1:]}: {text}"
            if phase and len(units) > 1
            else f"{text[0].upper()}{text[1:]}"
        )
        out.append(f"{where}; together {say.signed_time(sum(k.impact_ns for k in mine))} per {unit}.")
    if any(KERNEL_TIME in d.withholds for d in c.comparability):
        return out + _limit_lines(c)
    renamed = [k for k in c.kernels if k.renamed and not k.minor]
    if renamed and not any(d.what == "device" for d in c.comparability):
        names = say.listed([" ".join(x for x in (say.role(k.role), k.shape) if x) for k in renamed[:_MOST]])
        out.append(f"The same work by another kernel: {names}.")
    for side, word in (("after", "New"), ("before", "Gone")):
        alone = [
            u
            for u in c.unmatched
            if u.side == side
            and u.kind == "kernel"
            and (u.ns_per_unit or 0) >= 0.005 * (c.delta.before_ns if c.delta else 1)
        ]
        if alone:
            listed = say.listed([f"{u.detail} ({say.time(u.ns_per_unit or 0)})" for u in alone[:_MOST]])
            out.append(f"{word} on the {side} side: {listed}, per unit.")
    return out + _limit_lines(c)


def _limit_lines(c: Comparison) -> list[str]:
    out = []
    for limit in c.limits:
        if limit.before != limit.after:
            where = limit.phase or limit.objective.replace("_", " ")
            where = "the window" if where == "other" else where
            out.append(
                f"What limits {where}: {limit_words(limit.before)} before, {limit_words(limit.after)} after."
            )
    return out


def _cause(c: Comparison, word: str, found: list[KernelChange]) -> str | None:
    """The limit that the largest part of the change belongs to; None while the change itself is open."""
    if (
        word in ("inconclusive", "no_change")
        or c.delta is None
        or c.delta.per == "request"
        or not c.delta.total_ns
    ):
        return None
    kinds: dict[str, int] = {}
    for bucket, ns in c.delta.buckets.items():
        kinds[_LIMIT.get(bucket, "kernels")] = kinds.get(_LIMIT.get(bucket, "kernels"), 0) + ns
    sign = 1 if c.delta.total_ns > 0 else -1
    cause = max(kinds, key=lambda k: sign * kinds[k])
    if cause != "kernels":
        return cause
    if sign > 0:
        return "kernel_inefficiency"
    bounds: dict[str, float] = {}
    for k in found or c.kernels:
        if k.impact_ns < 0:
            bounds[k.bound_before] = bounds.get(k.bound_before, 0.0) - k.impact_ns
    top = max(bounds, key=lambda b: bounds[b]) if bounds else None
    return {"hbm": "hbm", "compute": "compute", "floor": "launch_overhead"}.get(
        top or "", "kernel_inefficiency"
    )
