"""This rank waits in collectives for another one that is late.

Evidence: waiting split from transfer by matching collectives over ranks; which rank is late.

Refuted by: equal durations on all ranks near the link's rate.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, ms, percent, share_of, where

THRESHOLDS = {
    "wait_share": Threshold(
        0.05, "of time", "above", "a straggler of 5 % shows as that much waiting on every other rank"
    ),
}


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase spent waiting for a late rank."""
    ns = row["wait_ns"] or 0
    waiting = share_of(ns, context)
    strong = waiting >= thresholds["wait_share"].value
    # Without the last rank the one before it sets the pace: only the time between the two is freed.
    freed = context.facts.get("imbalance_relief")
    share = waiting if freed is None else min(waiting, freed)
    ns = share * context.wall_ns
    late = context.facts.get("straggler")
    return Assessment(
        status="supported" if strong else "refuted",
        share=share,
        # At most all waiting goes; the lead of the rank before the last is known to what its steps differ by.
        recover_ns=(0.85 * ns, float(row["wait_ns"] or 0)),
        statement=(
            f"{where(context)}: {percent(waiting)} of the time waits in collectives for a late rank"
            + (f" ({late})" if late else "")
            if strong
            else f"waiting for other ranks costs {where(context)} {percent(waiting)}"
        ),
        evidence=[
            fact("waiting in collectives", 100 * waiting, "% of observed time", note=ms(row["wait_ns"] or 0)),
            fact(
                "of it between the last rank and the one before",
                100 * share,
                "% of observed time",
                provenance="derived",
            ),
            fact("collectives matched", row["matched"], "calls"),
            fact("late rank", late, ""),
        ],
        parts=("comm_wait",),
        # A stall in some steps only is a pause of the process (garbage collection); one in each is a slow host.
        experiments=("gc-freeze",) if context.facts.get("straggler_pauses") else ("straggler-swap",),
    )


RULE = Rule(
    id="late-rank",
    limit="imbalance",
    title="Imbalance between ranks",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="communication.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("straggler-swap", "gc-freeze"),
    required=(Need("collective", "the traces of all ranks in one call"),),
    refuters=("equal durations on all ranks",),
    cases=("Python garbage collection on one rank: the others spin in a collective",),
)
