"""Collectives hold the run up: nothing else runs while they do.

Evidence: time when only collectives run; with all ranks, what of it is transfer and what is waiting for a late rank.

Refuted by: collectives hidden behind kernels; durations that differ between ranks with equal ends (waiting, not
transfer). With one rank the two cannot be told apart, and confidence is capped.
"""

from diagnose.rules.base import Assessment, Context, Row, Rule, Threshold
from diagnose.rules.common import RELIEF, fact, ms, percent, share_of, where

THRESHOLDS = {
    "scatter": Threshold(
        0.3,
        "of their time",
        "below",
        "a transfer repeats itself: matched ones of one size scatter by less than 2 x; waiting spreads to whole steps",
    ),
    "link_share": Threshold(
        0.3,
        "of the link",
        "above",
        "busbw of 80 % of the link is bandwidth-bound; ranks of one job reach a third of it on payloads that fill it",
    ),
    "time_share": Threshold(
        0.10, "of time", "above", "nsys-ai flags NCCL above 20 % of a capture, TraceLens overlap below 70 %"
    ),
}
SINGLE_RANK_CAP = 0.6
# Shortest all-reduce by ranks, µs: NCCL on NVLink (measured, 8, 4 and 2 GPUs); others by the line through them.
FLOOR_US = {2: 5.9, 4: 9.3, 8: 15.5}


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase in which only collectives run, waiting split off where it is known."""
    ns = row["exposed_ns"] or 0
    time_share = share_of(ns, context)
    share = time_share * RELIEF
    strong = time_share >= thresholds["time_share"].value
    matched = bool(row["matched"])
    evidence = [
        fact("time when only collectives run", 100 * time_share, "% of observed time", note=ms(ns)),
        fact("collectives", row["collectives"], "calls"),
        fact("median duration", row["median_ns"] / 1e3 if row["median_ns"] else None, "µs"),
    ]
    missing, doubts, quality, counter = [], [], 1.0, []
    scatter = row["long_share"]
    uneven = not matched and scatter is not None and scatter >= thresholds["scatter"].value
    explained = matched or _transfer_explains(row, context, thresholds["link_share"].value)
    waits = uneven or not explained
    if row["payload_gbps"] is not None:
        evidence.append(fact("payload over their time", row["payload_gbps"], "GB/s", provenance="derived"))
    if uneven:
        counter.append(
            fact(
                "time in collectives over four times the usual one",
                scatter,
                "of their time",
                threshold=thresholds["scatter"],
                note="a transfer repeats itself, waiting does not",
            )
        )
    if strong and not explained and not uneven:
        counter.append(
            fact(
                "payload over their time",
                row["payload_gbps"],
                "GB/s",
                threshold=thresholds["link_share"],
                note="the link would be done sooner: the rest may be waiting for another rank",
            )
        )
    if not matched and strong:
        quality = SINGLE_RANK_CAP
        missing.append(
            "the traces of all ranks: with one rank, transfer cannot be told from waiting for a late rank"
        )
        doubts.append("one rank's trace: this may be waiting for another rank")
    return Assessment(
        counter=counter,
        # One rank's collectives that are uneven, or longer than their payload needs, may be waiting for another rank: not a
        # claim, a question.
        status=("possible" if waits else "supported") if strong else "refuted",
        share=share,
        recover_ns=(0.45 * ns, float(ns)),
        quality=quality,
        statement=(
            f"{where(context)}: {percent(time_share)} of the time only collectives run"
            if strong
            else f"exposed collectives cost {where(context)} {percent(time_share)}"
        ),
        evidence=evidence,
        missing=missing,
        doubts=doubts,
        parts=("communication",),
        instead="waiting for another rank",
    )


def _transfer_explains(row: Row, context: Context, share: float) -> bool:
    """Whether payload and link alone make one rank's collectives as long as they are: a ring moves 2 (n - 1) / n of the
    payload, or the call is about as short as an empty one. False where ranks or link are unknown."""
    ranks, link = context.facts.get("group_size"), context.facts.get("link_peer")
    if not ranks or ranks < 2:
        return False
    floor_us = FLOOR_US.get(ranks, 2.4 + 1.64 * ranks)
    if row["median_ns"] is not None and row["median_ns"] <= 2e3 * floor_us:
        return True
    payload = row["payload_gbps"]
    return bool(payload and link and payload * 2 * (ranks - 1) / ranks >= share * link / 1e9)


RULE = Rule(
    id="exposed-communication",
    limit="communication",
    title="Communication",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="communication.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("local-collective",),
    refuters=("collectives overlap kernels", "durations differ between ranks while ends agree"),
    cases=("4 x V100: NCCL all-reduce 84 % of GPU time", "FP8 slower at TP2: all-reduce 71 % of the time"),
)
