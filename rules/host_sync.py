"""The device runs dry because the host waits for it: a blocking call inside the step, then nothing queued.

Evidence: idle time while the launching thread sits in a blocking call, or has just come out of one that drained the
queue; which call, how often.

Refuted by: the device stays busy while the host waits (a long wait is then only waiting for work).
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, host_quality, ms, percent, share_of, where

THRESHOLDS = {
    "idle_share": Threshold(0.08, "of time", "above", "nsys-ai flags sync density above 20 % of the span; idle after it counts here, so less is enough"),
}  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase idle in or right after blocking calls."""
    idle = row["idle_ns"] or 0
    share = share_of(idle, context)
    quality, doubts = host_quality(context)
    strong = share >= thresholds["idle_share"].value
    evidence = [
        fact("idle in or right after blocking calls", 100 * share, "% of observed time", note=ms(idle)),
        fact("gaps of that kind", row["gaps"], "gaps", note=f"{row['gaps'] / context.steps:.1f} a step" if context.steps and row["gaps"] else None),
    ]  # fmt: skip
    if row["top_cause"]:
        evidence.append(fact("most of it", row["top_cause"], "", note=ms(row["top_ns"])))
    return Assessment(
        status="supported" if strong else "refuted",
        share=share,
        recover_ns=(0.65 * idle, float(idle)),
        quality=quality,
        statement=(
            f"{where(context)}: the device idles {percent(share)} of the time because the host waits for it and lets the queue run dry"
            if strong
            else f"blocking calls cost {where(context)} {percent(share)}"
        ),
        evidence=evidence,
        doubts=doubts,
        parts=("idle_sync",),
    )


RULE = Rule(
    id="host-sync",
    limit="host_sync",
    title="Host synchronisation",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="host_sync.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("remove-sync", "async-scheduling"),
    required=(Need("host_events", "a trace with CPU activity"),),
    refuters=("the device is busy during the wait", "the gap starts before the call"),
    cases=("vllm-omni .item() per step", "FlashInfer plan() copying to the host each decode step", "1,018 synchronous copies on an RTX 4090"),
)  # fmt: skip
