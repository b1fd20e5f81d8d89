"""Several ranks of one job, or several devices in one trace: matched collectives, the straggler, one result."""

from typing import Any

from diagnose.contract import Diagnosis, Note
from diagnose.model.ranks import Matching, match_collectives
from diagnose.model.ranks_summary import summarise
from diagnose.store import Store


def match(stores: list[Store], ranks: list[int] | None) -> Matching | None:
    """Match collectives over ranks and devices; writes `collective` into the stores. None where only one rank is there."""
    return match_collectives(stores, ranks)


def straggler_name(summary: dict[str, Any] | None) -> str | None:
    """The late rank in words, None when no rank is late."""
    found = (summary or {}).get("straggler")
    if not found:
        return None
    cause = found.get("cause") or {}
    why = " ".join(str(cause[k]) for k in ("bucket", "detail") if cause.get(k)).replace("_", " ")
    return f"{found['label']}, {why}" if why else str(found["label"])


def relief_share(
    stores: list[Store], matching: Matching | None, summary: dict[str, Any] | None
) -> float | None:
    """Share of the common span that goes when the last rank of each collective comes with the one before it.

    Two bounds. Waiting for the last rank ends when the second to last arrives. And no rank gets faster than its own host or
    device: a rank whose host runs ahead while it waits would meet its own pace next. None without matched collectives.
    """
    if matching is None or summary is None or not summary.get("span_ns"):
        return None
    span = float(summary["span_ns"])
    freed = 0.0
    for group in matching.groups:
        waits = sorted(part.dur_ns - group.transfer_ns for part in group.parts)
        if len(waits) > 1:
            freed += waits[1]
    share = min(1.0, freed / span)
    late = (summary.get("straggler") or {}).get("label")
    paces = [
        pace
        for index, member in enumerate(matching.members)
        if member.label != late and (pace := _own_pace_ns(stores[member.store], matching, index)) is not None
    ]
    return share if not paces else max(0.0, min(share, 1 - max(paces) / span))


def _own_pace_ns(store: Store, matching: Matching, member: int) -> float | None:
    """Host time a rank itself needs between the launches of its first and last matched collective: the span on its
    launching thread less what it spent blocked or in a full queue. None where launches are not in the trace."""
    mine = [part.kernel_id for group in matching.groups for part in group.parts if part.member == member]
    if len(mine) < 2:
        return None
    row = store.con.execute(
        """WITH launches AS (
            SELECT c.process, c.thread, c.start_ns FROM activity a JOIN host_call c ON c.call_id = a.launch_id
            WHERE a.kernel_id IN (?, ?)
        ), span AS (
            SELECT process, thread, min(start_ns) AS t0, max(start_ns) AS t1, count(*) AS n FROM launches GROUP BY ALL
        )
        SELECT s.t1 - s.t0, (
            SELECT coalesce(sum(least(w.end_ns, s.t1) - greatest(w.start_ns, s.t0)), 0)::BIGINT FROM host_wait w
            WHERE w.process = s.process AND w.thread = s.thread AND w.start_ns < s.t1 AND w.end_ns > s.t0)
        FROM span s WHERE s.n = 2""",
        [mine[0], mine[-1]],
    ).fetchone()
    return None if row is None else float(row[0] - row[1])


def summary_of(stores: list[Store], matching: Matching | None) -> dict[str, Any] | None:
    """The contract's `rank_summary`."""
    return summarise(stores, matching) if matching is not None else None


def notes_of(summary: dict[str, Any] | None) -> list[Note]:
    """Clock skew, what could not be matched and pairings that were a choice, as data-quality notes."""
    return [Note(**note) for note in (summary or {}).get("notes", [])]


def slowest(results: list[Diagnosis], summary: dict[str, Any] | None) -> int:
    """Index of the rank that decides the run: the straggler, else the longest observed window."""
    found = (summary or {}).get("straggler")
    if found:
        for index, d in enumerate(results):
            if found.get("rank") is not None and d.devices and d.devices[0].rank == found["rank"]:
                return index
    return max(range(len(results)), key=lambda i: (_observed(results[i]), -i))


def _observed(d: Diagnosis) -> int:
    return max((x.window.wall_ns - x.attribution_ns["unobserved"] for x in d.devices), default=0)


def combine(results: list[Diagnosis], summary: dict[str, Any] | None) -> Diagnosis:
    """The top level is the slowest rank; `ranks` holds all, in order; nothing is averaged."""
    chosen = slowest(results, summary)
    import msgspec

    top: Diagnosis = msgspec.structs.replace(results[chosen])
    top.ranks = results
    top.rank_summary = summary
    _judge_late_rank(top, results, chosen, summary)
    rank = top.devices[0].rank if top.devices else chosen
    top.data_quality = [
        *top.data_quality,
        *notes_of(summary),
        Note(
            code="ranks",
            severity="info",
            message=f"{len(results)} ranks were given; the page's top level is rank {rank}, which decides the run",
        ),
    ]
    if summary is None:
        top.data_quality.append(
            Note(
                code="ranks-unmatched",
                severity="warning",
                message="no collectives could be matched over the ranks: waiting and transfer stay together",
            )
        )
    return top


def _judge_late_rank(
    top: Diagnosis, results: list[Diagnosis], chosen: int, summary: dict[str, Any] | None
) -> None:
    """Where most other ranks spend more on waiting for the late one than on anything else, that is the run's limit.

    What keeps the late rank itself is the cause, and stays the runner-up.
    """
    late = straggler_name(summary)
    waiting = [d for i, d in enumerate(results) if i != chosen and d.verdict.limit == "imbalance"]
    if late is None or 2 * len(waiting) < len(results) - 1 or not waiting:
        return
    import msgspec

    told = waiting[0].verdict
    own = top.verdict
    claims = [h for h in waiting[0].hypotheses if h.limit == "imbalance" and h.status == "supported"]
    top.hypotheses = claims + top.hypotheses
    top.verdict = msgspec.structs.replace(
        told,
        summary=f"{told.summary}; on the late rank itself: {own.summary}",
        runner_up=own.limit if own.limit != "inconclusive" else told.runner_up,
        by_phase=own.by_phase,
        could_not_tell=list(dict.fromkeys(told.could_not_tell + own.could_not_tell)),
    )
