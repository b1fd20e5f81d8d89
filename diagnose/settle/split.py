"""Where the change of time per unit of work comes from: buckets and roles that add up to it, to the nanosecond."""

from collections.abc import Mapping
from statistics import fmean

from diagnose.contract import BUCKETS
from diagnose.settle.align import Aligned, Totals, ordinary
from diagnose.settle.comparison import Delta, RoleChange
from diagnose.settle.kernels import COLLECTIVE, Group, Matched
from diagnose.settle.roles import COARSE, common_names
from diagnose.settle.side import IDLE, OBSERVED, Run, Side
from diagnose.settle.trace_metrics import window_totals
from diagnose.settle.unit import Unit

HOST_COPIES = "host copies"
"""The bucket `copy`; kernels that copy on the device have a role of that name."""

Means = tuple[dict[str, float], dict[str, float]]


def of_steps(found: Aligned, matched: Matched, before: Side, after: Side) -> Delta:
    """Per matched step."""
    sides = [_mean([t for run in side for t in run]) for side in (found.before, found.after)]
    calls = _calls(
        matched,
        found.phase,
        [r.step_count(found.phase) for r in before.runs],
        [r.step_count(found.phase) for r in after.runs],
    )
    return _delta("step", f"{found.phase} step", found.phase, (found.steps, found.steps), sides, calls)


def of_tokens(phase: str, before: Side, after: Side) -> Delta | None:
    """Per token of a phase whose steps are other work (another batch or chunk); None where tokens are unknown."""
    sides, units = [], []
    for side in (before, after):
        works = [w for run in side.runs for w in ordinary(run, phase)]
        tokens = [w.tokens for w in works]
        if not works or not all(tokens):
            return None
        total = sum(t for t in tokens if t)
        roles: dict[str, float] = {}
        for w in works:
            for role, ns in w.roles.items():
                roles[role] = roles.get(role, 0.0) + ns / total
        sides.append(({b: sum(w.buckets[b] for w in works) / total for b in OBSERVED}, roles))
        units.append(total)
    return _delta("token", f"{phase} token", phase, (units[0], units[1]), sides, {})


def of_windows(unit: Unit, matched: Matched, before: Side, after: Side) -> Delta:
    """Per call of the unit."""
    totals = window_totals(unit, before, after)
    calls = _calls(
        matched, unit.pair.before.phase, [float(n) for n in unit.before], [float(n) for n in unit.after]
    )
    return _delta(
        "call", unit.label, None, (sum(unit.before), sum(unit.after)), [_mean(t) for t in totals], calls
    )


def of_requests(before: Run, after: Run) -> Delta | None:
    """Per request, from a benchmark alone: time to the first token, and from there to the end. None without both."""
    parts = []
    for run in (before, after):
        latency = run.d.latency or {}
        ttft, e2e = (((latency.get(k) or {}).get("mean")) for k in ("ttft_ms", "e2e_ms"))
        if ttft is None or e2e is None:
            return None
        parts.append({"time to first token": ttft * 1e6, "first to last token": (e2e - ttft) * 1e6})
    counts = [int((r.d.latency or {}).get("completed") or 0) for r in (before, after)]
    values = exact(parts[0], parts[1])
    roles = [
        RoleChange(role=k, kind="request", before_ns=a, after_ns=b, change_ns=b - a)
        for k, (a, b) in values.items()
    ]
    return Delta(
        per="request", unit="request", phase=None, units_before=counts[0], units_after=counts[1],
        before_ns=sum(a for a, _ in values.values()), after_ns=sum(b for _, b in values.values()),
        total_ns=sum(r.change_ns for r in roles), buckets={}, roles=roles,
    )  # fmt: skip


def _mean(totals: list[Totals]) -> Means:
    roles = dict.fromkeys(r for t in totals for r in t.roles)
    return {b: fmean(t.buckets[b] for t in totals) for b in OBSERVED}, {
        r: fmean(t.roles.get(r, 0.0) for t in totals) for r in roles
    }


def _calls(
    matched: Matched, phase: str, before: list[float], after: list[float]
) -> dict[str, tuple[float, float]]:
    """Calls per unit by role (or family), of both sides."""
    out: dict[str, list[float]] = {}
    groups: list[tuple[int, Group]] = [(0, p.before) for p in matched.pairs] + [
        (1, p.after) for p in matched.pairs
    ]
    groups += [(0, g) for g in matched.only_before] + [(1, g) for g in matched.only_after]
    units = sum(before), sum(after)
    for side, group in groups:
        if group.phase == phase and units[side]:
            row = out.setdefault(group.role or group.family, [0.0, 0.0])
            row[side] += sum(r.count for r in group.runs) / units[side]
    return {role: (a, b) for role, (a, b) in out.items()}


def _delta(
    per: str, unit: str, phase: str | None, units: tuple[int, int], sides: list[Means], calls: Mapping[str, tuple[float, float]]
) -> Delta:  # fmt: skip
    (buckets_a, roles_a), (buckets_b, roles_b) = sides
    names = common_names(set(roles_a), set(roles_b))
    parts: list[dict[str, float]] = [{}, {}]
    for at, (buckets, roles) in enumerate(sides):
        for role, ns in roles.items():
            parts[at][names[role]] = parts[at].get(names[role], 0.0) + ns
        # Where the roles do not cover the kernels' time (an older result), the rest has a name of its own.
        parts[at] |= {HOST_COPIES: buckets["copy"], **{b: buckets[b] for b in IDLE}}
        rest = sum(buckets.values()) - sum(parts[at].values())
        if abs(rest) > 0.5:
            parts[at]["other kernels"] = rest
    counted: dict[str, list[float]] = {}
    for role, (a, b) in calls.items():
        row = counted.setdefault(names.get(role, role), [0.0, 0.0])
        row[0], row[1] = row[0] + a, row[1] + b
    before_ns, after_ns = round(sum(buckets_a.values())), round(sum(buckets_b.values()))
    whole = exact(buckets_a, buckets_b, before_ns, after_ns)
    values = exact(parts[0], parts[1], before_ns, after_ns)
    rows = []
    for role, (a, b) in values.items():
        if a == 0 and b == 0:
            continue
        number = counted.get(role)
        rows.append(
            RoleChange(
                role=role,
                kind=_kind(role),
                before_ns=a,
                after_ns=b,
                change_ns=b - a,
                calls_before=number[0] if number else None,
                calls_after=number[1] if number else None,
            )
        )
    rows.sort(key=lambda r: (-abs(r.change_ns), -max(r.before_ns, r.after_ns), r.role))
    return Delta(
        per=per, unit=unit, phase=phase, units_before=units[0], units_after=units[1], before_ns=before_ns, after_ns=after_ns,
        total_ns=after_ns - before_ns, buckets={k: whole[k][1] - whole[k][0] if k in whole else 0 for k in BUCKETS}, roles=rows,
        buckets_before={k: whole[k][0] if k in whole else 0 for k in BUCKETS},
        buckets_after={k: whole[k][1] if k in whole else 0 for k in BUCKETS},
    )  # fmt: skip


def _kind(role: str) -> str:
    if role in IDLE:
        return "idle"
    if role == HOST_COPIES:
        return "copy"
    return "communication" if COARSE.get(role) == COLLECTIVE or role == COLLECTIVE else "kernels"


def exact(
    before: Mapping[str, float], after: Mapping[str, float], total_before: int | None = None, total_after: int | None = None
) -> dict[str, tuple[int, int]]:  # fmt: skip
    """Both sides' parts as whole numbers that add up to the rounded totals: what rounding leaves goes to the largest part."""
    out: list[dict[str, int]] = []
    for values, total in ((before, total_before), (after, total_after)):
        whole = {k: round(v) for k, v in values.items()}
        target = round(sum(values.values())) if total is None else total
        if whole:
            largest = max(whole, key=lambda k: abs(values[k]))
            whole[largest] += target - sum(whole.values())
        out.append(whole)
    return {k: (out[0].get(k, 0), out[1].get(k, 0)) for k in dict.fromkeys([*before, *after])}
