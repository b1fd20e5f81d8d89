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
