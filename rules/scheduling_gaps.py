"""The device idles between steps while the host schedules, samples, detokenises or prepares the next step.

Evidence: idle time in gaps that cross a step boundary or lie outside steps; whether it grows with the batch.

Refuted by: gaps inside steps (launching), gaps in a data loader (host input), blocking calls (host sync). Whether the
scheduler waits for memory, a batch limit or for requests, a kernel trace cannot show: engine metrics can.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, host_quality, ms, percent, share_of, where
from diagnose.rules.parts import gaps_seen

THRESHOLDS = {
    "idle_share": Threshold(0.08, "of time", "above", "vLLM 0.6 and RFC 6854: bubbles of 5-13 ms per step, 29-62 % of time; under 8 % little to win"),
    "gap_ms": Threshold(0.5, "ms", "above", "gap from the last kernel of a step to the first of the next in host-bound engines"),
}  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase idle at step boundaries, less the input pipeline."""
    idle = row["idle_ns"] or 0
    seen = share_of(idle, context)
    # Over a longer run each step has its gap, also the window's first.
    missing = idle * (gaps_seen(context.steps, context.unseen_gaps) - 1)
    share = (idle + missing) / (context.wall_ns + missing) if context.wall_ns else 0.0
    quality, doubts = host_quality(context)
    gap_ms = row["gap_median_ns"] / 1e6 if row["gap_median_ns"] is not None else None
    evidence = [
        fact("idle between or outside steps", 100 * seen, "% of observed time", note=ms(idle)),
        fact("median gap before a step", gap_ms, "ms", threshold=thresholds["gap_ms"]),
    ]
    if row["gap_batch_slope_us"] is not None and context.steps >= 5:
        evidence.append(fact("growth of the gap with the batch", row["gap_batch_slope_us"], "µs a sequence", provenance="derived",
                             note="host work per request when it grows"))  # fmt: skip
    strong = share >= thresholds["idle_share"].value
    if context.phase == "other" and not context.facts.get("has_engine_steps"):
        quality *= 0.7
        doubts.append("the trace has no engine steps, so step boundaries are not known")
    return Assessment(
        status="supported" if strong else "refuted",
        share=share,
        recover_ns=(0.6 * idle, float(idle)),
        quality=quality,
        statement=(
            f"{where(context)}: the device idles {percent(seen)} of the time between steps, waiting for the host"
            if strong
            else f"gaps between steps cost {where(context)} {percent(seen)}"
        ),
        evidence=evidence,
        missing=[] if context.facts.get("has_serving") else ["engine metrics (waiting, running, KV use) to tell host work from an empty queue or a full KV pool"],
        doubts=doubts,
        parts=("idle_scheduling",),
    )  # fmt: skip


RULE = Rule(
    id="scheduling-gaps",
    limit="scheduling",
    title="Scheduling between steps",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="scheduling_gaps.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("async-scheduling",),
    required=(Need("host_events", "a trace with CPU activity"),),
    optional=(Need("serving", "engine metrics beside the trace (--metrics)"),),
    refuters=("gaps lie inside steps", "the host sits in a blocking call", "a data loader covers the gap", "the queue is empty (demand)"),
    cases=("vLLM 0.6.0: scheduling and API server 62 % of the time", "vLLM RFC 6854: 5-13 ms bubble per decode step", "vLLM 6560: one CPU core at 100 %"),
)  # fmt: skip
