"""Ranks side by side: who waits, for whom, and what the late rank did instead. Reads `segment`, so run it
last.

All members of one communicator leave its collectives together, so between the first and the last of them they
have the same time. What the late rank spends more than the others in a bucket of its own is therefore why
they wait.
"""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

from diagnose.model.ranks import Matching, Member
from diagnose.store import Store

# One rank causes most of the waiting: a majority that chance alone does not give two equal ranks.
STRAGGLER_SHARE = 0.6
# Below this share of the time, waiting is jitter: two ranks of a healthy run differ by as much.
NOTABLE_WAIT = 0.01
# Late in this share of the collectives: steadily slower. With most of the waiting in a few collectives: rare
# stalls.
STEADY = 0.6
RARE = 0.1
# The same kernels taking this much longer is clocks or power; less is how kernels scatter.
SLOWER = 1.02
# The longest waits that make up this share of the cost are its stalls; in fewer than PAUSES of the steps they are
# pauses of the process, not a slow host, which is late in every step.
STALLS = 0.8
PAUSES = 0.75
# Experts are uneven when the fullest rank's expert kernels take this much longer than the typical rank's.
UNEVEN = 1.10
_WAITING = frozenset({"communication", "comm_wait"})
_ON_DEVICE = frozenset({"compute", "hbm", "floor", "inefficient", "unmodelled"})
_EXPERTS = frozenset({"moe_gemm", "moe_aux"})

_WORK = """
SELECT bucket, sum(least(end_ns, $2) - greatest(start_ns, $1))::BIGINT FROM segment
WHERE device_id = $3 AND end_ns > $1 AND start_ns < $2 GROUP BY bucket
"""
_CAUSES = """
SELECT coalesce(cause, ''), sum(least(end_ns, $2) - greatest(start_ns, $1))::BIGINT FROM segment
WHERE device_id = $3 AND bucket = $4 AND end_ns > $1 AND start_ns < $2 GROUP BY 1
"""
_KERNELS = """
SELECT f.family, n.text, k.grid, count(*), sum(k.dur_ns)::BIGINT FROM kernel k
JOIN name n USING (name_id) JOIN name_family f USING (name_id)
WHERE k.device_id = $3 AND NOT f.is_comm AND k.start_ns >= $1 AND k.start_ns < $2 GROUP BY ALL
"""

Kernels = dict[tuple[str, str, str | None], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Span:
    """A member's time between the first and the last common collective, in its own clock."""

    start_ns: int
    end_ns: int


def summarise(stores: list[Store], matching: Matching) -> dict[str, Any]:
    """The contract's `rank_summary`: a row a rank, the straggler and its cause, pipeline bubbles, expert
    imbalance.

    Keys: `ranks` (label, rank, device, collectives, matched, transfer_ns, wait_ns, wait_share,
    caused_wait_ns, late_in, skew_ns, offset_ns, skew_spread_ns, work_ns by bucket), `collectives`, `span_ns`,
    `wait_ns` (of all ranks), `straggler` (None, or label, pattern, share_of_wait, cost_ns, cause, `stalls`: its
    longest waits that make up most of the cost, and `pauses`: they lie in some of its steps only),
    `pipeline`, `experts`, `notes`. Times in ns.
    """
    members = matching.members
    spans = _spans(matching)
    cost, late_in, caused = _blame(matching)
    rows = []
    work: dict[int, dict[str, int]] = {}
    for index, member in enumerate(members):
        parts = [(g, p) for g in matching.groups for p in g.parts if p.member == index]
        wait = sum(p.dur_ns - g.transfer_ns for g, p in parts)
        span = spans.get(index)
        if span is not None:
            work[index] = _sums(stores[member.store], _WORK, span, member)
        wall = span.end_ns - span.start_ns if span else 0
        rows.append(
            {
                "label": member.label, "rank": member.rank, "device": member.device,
                "collectives": matching.total[index], "matched": len(parts),
                "transfer_ns": sum(g.transfer_ns for g, _ in parts), "wait_ns": wait,
                "wait_share": wait / wall if wall else None,
                "caused_wait_ns": caused[index], "late_in": late_in[index],
                "skew_ns": _whole(matching.skew_ns.get(index)),
                "offset_ns": _whole(matching.shift_ns.get(index)),
                "skew_spread_ns": _whole(matching.spread_ns.get(index)),
                "work_ns": work.get(index),
            }
        )  # fmt: skip
    span_ns = max((s.end_ns - s.start_ns for s in spans.values()), default=0)
    straggler = _straggler(stores, matching, spans, work, cost, late_in, span_ns)
    return {
        "ranks": rows,
        "collectives": len(matching.groups),
        "span_ns": span_ns,
        "wait_ns": sum(int(r["wait_ns"]) for r in rows),  # type: ignore[call-overload]
        "straggler": straggler,
        "pipeline": _pipeline(matching, span_ns),
        "experts": _experts(stores, members, spans, span_ns),
        "notes": _notes(matching),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _spans(matching: Matching) -> dict[int, _Span]:
    """From the first to the last collective of the largest set of members, both ends included as ends."""
    widest = max((len(g.parts) for g in matching.groups), default=0)
    spans: dict[int, _Span] = {}
    for group in matching.groups:
        if len(group.parts) < widest:
            continue
        for part in group.parts:
            known = spans.get(part.member)
            spans[part.member] = _Span(known.start_ns if known else part.end_ns, part.end_ns)
    return spans


def _blame(matching: Matching) -> tuple[dict[int, float], dict[int, int], dict[int, int]]:
    """By late member: how long a typical other rank waited for it, in how many collectives, and all waiting
    caused."""
    cost: dict[int, float] = defaultdict(float)
    late_in: dict[int, int] = defaultdict(int)
    caused: dict[int, int] = defaultdict(int)
    for group in matching.groups:
        late = group.late
        waits = [p.dur_ns - group.transfer_ns for p in group.parts if p.member != late]
        cost[late] += median(waits)
        caused[late] += sum(waits)
        late_in[late] += 1
    return cost, late_in, caused


def _straggler(
    stores: list[Store], matching: Matching, spans: dict[int, _Span], work: dict[int, dict[str, int]],
    cost: dict[int, float], late_in: dict[int, int], span_ns: int,
) -> dict[str, Any] | None:  # fmt: skip
    if not cost or not span_ns:
        return None
    who = max(cost, key=lambda m: (cost[m], -m))
    share = cost[who] / total if (total := sum(cost.values())) else 0.0
    if share < STRAGGLER_SHARE or cost[who] < NOTABLE_WAIT * span_ns:
        return None
    mine = [g for g in matching.groups if any(p.member == who for p in g.parts)]
    waits = sorted(
        (
            median([p.dur_ns - g.transfer_ns for p in g.parts if p.member != who])
            for g in mine
            if g.late == who
        ),
        reverse=True,
    )
    few = waits[: max(1, int(RARE * len(mine)))]
    steady = late_in[who] >= STEADY * len(mine)
    pattern = (
        "rare" if sum(few) >= 0.8 * cost[who] and len(mine) >= 1 / RARE else "steady" if steady else "mixed"
    )
    member = matching.members[who]
    peers = {p.member for g in mine for p in g.parts} - {who}
    cause = _cause(stores, matching.members, spans, work, who, sorted(peers))
    typical = median(
        [
            sum(p.dur_ns - g.transfer_ns for g in matching.groups for p in g.parts if p.member == m)
            for m in peers
        ]
    )
    return {
        "label": member.label, "rank": member.rank, "device": member.device, "pattern": pattern,
        "share_of_wait": share, "cost_ns": round(cost[who]), "cost_share": cost[who] / span_ns,
        "typical_wait_ns": round(typical), "late_in": late_in[who], "of": len(mine), "cause": cause,
        "stalls": (stalls := _stalls(waits, cost[who])), "pauses": 0 < stalls < PAUSES * _steps(stores[member.store], member),
    }  # fmt: skip


def _stalls(waits: list[float], cost: float) -> int:
    """How many of the waits, longest first, make up most of the cost."""
    held = 0.0
    for count, wait in enumerate(waits, 1):
        held += wait
        if held >= STALLS * cost:
            return count
    return len(waits)


def _steps(store: Store, member: Member) -> int:
    return int(store.scalar("SELECT count(*) FROM step WHERE device_id = ?", member.device) or 0)


def _cause(
    stores: list[Store], members: list[Member], spans: dict[int, _Span], work: dict[int, dict[str, int]],
    who: int, peers: list[int],
) -> dict[str, Any] | None:  # fmt: skip
    """The bucket in which the late rank spends most more than its peers, with what stands behind it."""
    peers = [p for p in peers if p in work]
    if who not in work or not peers:
        return None
    buckets = sorted({b for m in (who, *peers) for b in work[m]} - _WAITING)
    excess = {b: round(work[who].get(b, 0) - median([work[p].get(b, 0) for p in peers])) for b in buckets}
    busy = sum(v for b, v in excess.items() if b in _ON_DEVICE)
    rest = {b: v for b, v in excess.items() if b not in _ON_DEVICE}
    top = max(rest, key=lambda b: (rest[b], b), default=None)
    found: dict[str, Any] = {"excess_ns": excess, "detail": None}
    if busy > 0 and (top is None or busy >= rest[top]):
        kernels = {m: _kernels(stores, members[m], spans[m]) for m in (who, *peers)}
        found["bucket"] = max((b for b in excess if b in _ON_DEVICE), key=lambda b: (excess[b], b))
        found["ns"] = busy
        found.update(_device_cause(kernels, who, peers))
        return found
    if top is None or rest[top] <= 0:
        return None
    causes = {m: _sums(stores[members[m].store], _CAUSES, spans[m], members[m], top) for m in (who, *peers)}
    more = {c: causes[who][c] - median([causes[p].get(c, 0) for p in peers]) for c in causes[who]}
    detail = max(more, key=lambda c: (more[c], c), default="")
    found.update(
        {
            "bucket": top,
            "ns": rest[top],
            "kind": "host" if top.startswith("idle") else top,
            "detail": detail or None,
        }
    )
    return found


def _device_cause(kernels: dict[int, Kernels], who: int, peers: list[int]) -> dict[str, Any]:
    """Whether the late rank runs the same kernels slower, or more of one family."""
    families: dict[str, float] = defaultdict(float)
    same = mine = 0.0
    for key in {k for m in (who, *peers) for k in kernels[m]}:
        count, ns = kernels[who].get(key, (0, 0))
        typical = median([kernels[p].get(key, (0, 0))[1] for p in peers])
        families[key[0]] += ns - typical
        if count and count == median([kernels[p].get(key, (0, 0))[0] for p in peers]):
            same += typical
            mine += ns
    family = max(families, key=lambda f: (families[f], f))
    total = sum(v for v in families.values() if v > 0)
    experts = sum(v for f, v in families.items() if f in _EXPERTS)
    if experts >= STRAGGLER_SHARE * total:
        return {"kind": "experts", "detail": f"expert kernels take {experts / 1e6:.3f} ms more"}
    slower = mine / same if same else 0.0
    spread = sum(1 for v in families.values() if v > 0)
    if (
        slower >= SLOWER
        and mine - same >= STRAGGLER_SHARE * total
        and (spread > 1 or families[family] < total)
    ):
        return {"kind": "slow_device", "detail": f"the same kernels take {100 * (slower - 1):.1f} % longer"}
    return {"kind": "more_work", "detail": f"{family} kernels take {families[family] / 1e6:.3f} ms more"}


def _kernels(stores: list[Store], member: Member, span: _Span) -> Kernels:
    rows = stores[member.store].rows(_KERNELS, span.start_ns, span.end_ns, member.device)
    return {(family, text, grid): (count, ns) for family, text, grid, count, ns in rows}


def _sums(store: Store, sql: str, span: _Span, member: Member, *more: Any) -> dict[str, int]:
    return {key: int(ns) for key, ns in store.rows(sql, span.start_ns, span.end_ns, member.device, *more)}


def _pipeline(matching: Matching, span_ns: int) -> list[dict[str, Any]] | None:
    """Waiting of receivers for the stage before (bubbles), and of senders for the stage after, by member."""
    receive: dict[int, int] = defaultdict(int)
    send: dict[int, int] = defaultdict(int)
    count: dict[int, int] = defaultdict(int)
    for group in (g for g in matching.groups if g.key.startswith("p2p ")):
        target = group.key.split()[1].split("->")[1]
        for part in group.parts:
            is_receiver = str(matching.members[part.member].rank) == target
            (receive if is_receiver else send)[part.member] += part.dur_ns - group.transfer_ns
            count[part.member] += 1
    if not count:
        return None
    return [
        {
            "label": matching.members[m].label, "rank": matching.members[m].rank, "transfers": count[m],
            "receive_wait_ns": receive[m], "send_wait_ns": send[m],
            "receive_wait_share": receive[m] / span_ns if span_ns else None,
        }
        for m in sorted(count, key=lambda m: matching.members[m].rank)
    ]  # fmt: skip


def _experts(
    stores: list[Store], members: list[Member], spans: dict[int, _Span], span_ns: int
) -> dict[str, Any] | None:
    """Ranks whose expert kernels take longer than the typical rank's; None without experts or when they are
    even."""
    times = {
        m: sum(
            ns for (family, _, _), (_, ns) in _kernels(stores, members[m], span).items() if family in _EXPERTS
        )
        for m, span in spans.items()
    }
    if len(times) < 2 or not (typical := median(times.values())):
        return None
    fullest = max(times, key=lambda m: (times[m], -m))
    more = times[fullest] - typical
    if times[fullest] < UNEVEN * typical or more < NOTABLE_WAIT * span_ns:
        return None
    return {
        "label": members[fullest].label, "rank": members[fullest].rank, "ratio": times[fullest] / typical,
        "more_ns": round(more), "by_rank_ns": {members[m].label: times[m] for m in sorted(times)},
    }  # fmt: skip


def _notes(matching: Matching) -> list[dict[str, str]]:
    """Skew, what could not be matched, and pairings that were a choice."""
    notes = []
    members = matching.members
    first = members[0].label
    tied = [m for m in matching.skew_ns if m]
    if tied:
        said = ", ".join(
            f"{members[m].label} {matching.skew_ns[m] / 1e3:+.1f} µs (± {matching.spread_ns[m] / 1e3:.1f})"
            for m in tied
        )
        notes.append(
            _note(
                "rank-skew", "info", f"clocks against {first}, from the ends of matched collectives: {said}"
            )
        )
    loose = [m for m in matching.shift_ns if m not in matching.skew_ns]
    if loose:
        said = ", ".join(
            f"{members[m].label} {matching.shift_ns[m] / 1e6:+.3f} ms (± {matching.spread_ns[m] / 1e3:.1f} µs)"
            for m in loose
        )
        notes.append(
            _note(
                "rank-skew",
                "info",
                f"traces without a common epoch, laid over {first} by the ends of matched collectives: {said}",
            )
        )
    matched: dict[int, int] = defaultdict(int)
    for group in matching.groups:
        for part in group.parts:
            matched[part.member] += 1
    lost = [m for m in range(len(members)) if matching.total[m] and matched[m] < 0.9 * matching.total[m]]
    if lost:
        said = ", ".join(f"{members[m].label} {matched[m]} of {matching.total[m]}" for m in lost)
        notes.append(
            _note(
                "ranks-unmatched",
                "warning",
                f"collectives matched over ranks: {said}; the rest stays communication",
            )
        )
    if matching.ambiguous:
        said = ", ".join(members[m].label for m in sorted(matching.ambiguous))
        notes.append(
            _note(
                "ranks-ambiguous", "warning",
                f"the collectives of {said} fit those of the other ranks at several shifts; the "
                f"likeliest was taken",
            )
        )  # fmt: skip
    return notes


def _note(code: str, severity: str, message: str) -> dict[str, str]:
    return {"code": code, "severity": severity, "message": message}
