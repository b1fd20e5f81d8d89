"""The device idles inside steps because the host has not launched the next kernel yet.

Evidence: idle time inside steps while the launching thread runs Python, the dispatcher or the launch call itself; short
kernels in great number; work that starts as soon as it is launched (no queue).

Refuted by: kernels replayed from a graph, work queued long before it starts, gaps that follow a blocking call (host
sync) or sit at step boundaries (scheduling).
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, host_quality, ms, percent, share_of, where

THRESHOLDS = {
    "idle_share": Threshold(
        0.10, "of time", "above", "TraceLens and nsys-ai flag idle above 15 %; below 10 % other limits lead"
    ),
    "queue_us": Threshold(
        15.0, "µs", "below", "launch-to-start of an idle stream is 2-10 µs in real traces; a queue adds tens"
    ),
    "graph_share": Threshold(0.9, "of kernels", "above", "kernels of a graph replay need no launch each"),
}


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase idle for launching; the gain leaves a dispatch gap per kernel."""
    idle = row["idle_launch_ns"] or 0
    share = share_of(idle, context)
    quality, doubts = host_quality(context)
    queue_us = row["queue_median_ns"] / 1e3 if row["queue_median_ns"] is not None else None
    evidence = [
        fact("idle while launching", 100 * share, "% of observed time", threshold=None, note=ms(idle)),
        fact("launches", row["launches"], "calls"),
        fact("median time from launch to start", queue_us, "µs", threshold=thresholds["queue_us"]),
        fact("median kernel", row["kernel_median_ns"] / 1e3 if row["kernel_median_ns"] else None, "µs"),
        fact("time inside launch calls while the device idled", 100 * (row["launch_call_ns"] or 0) / idle if idle else None, "% of it",
             note="the rest is Python and dispatcher between calls"),
    ]  # fmt: skip
    counter = []
    if queue_us is not None and queue_us > thresholds["queue_us"].value:
        counter.append(
            fact(
                "median time from launch to start",
                queue_us,
                "µs",
                note="work waits in a queue: the device is behind, not the host",
            )
        )
    if (row["graph_share"] or 0) > thresholds["graph_share"].value:
        counter.append(
            fact(
                "kernels replayed from a graph",
                100 * row["graph_share"],
                "%",
                note="these need no launch each",
            )
        )
    strong = share >= thresholds["idle_share"].value
    return Assessment(
        status="supported" if strong else "refuted",
        share=share,
        # Piecewise graphs leave a quarter; full graphs leave nothing (see experiment).
        recover_ns=(0.75 * idle, float(idle)),
        quality=quality * (0.8 if counter else 1.0),
        statement=(
            f"{where(context)}: the device idles {percent(share)} of the time because kernels are not launched fast enough"
            if strong
            else f"launching costs {where(context)} only {percent(share)} of its time"
        ),
        evidence=evidence,
        counter=counter,
        doubts=doubts,
        parts=("idle_launch",),
    )


RULE = Rule(
    id="launch-gaps",
    limit="launch_overhead",
    title="Launch overhead",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="launch_gaps.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("cuda-graphs", "sm-clock"),
    required=(Need("host_events", "a trace with CPU activity (torch profiler activities=[CPU, CUDA]; nsys -t cuda,nvtx)"),),
    refuters=("graph replay covers the kernels", "queue of tens of µs", "gaps follow blocking calls", "gaps sit at step boundaries"),
    cases=("gpt-fast 25.5 to 107 tok/s with compile and graphs", "vLLM --enforce-eager 11.2 to 45.9 tok/s", "xllm graph executor +54 % at concurrency 1, +8 % at 30"),
)  # fmt: skip
