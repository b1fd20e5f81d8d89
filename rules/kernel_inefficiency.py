"""Kernels are slow for their work: far from both roofs although there is enough to do, or too small to matter.

Evidence: time in kernels far from both sustained roofs, with the reason the trace shows; what a roof would allow; time
in kernels that only pay the kernel floor.

Refuted by: kernels near a roof, working sets in cache, kernels that overlap (rates judged jointly).
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, ms, percent, share_of, shorten, where

THRESHOLDS = {
    "recover_share": Threshold(0.12, "of time", "above", "less than that is within what a rewrite usually misses"),
    "cost_share": Threshold(0.5, "of kernel time", "above", "with most kernel time unmodelled nothing can be said of the rest"),
}  # fmt: skip

# Stock kernels of the same shapes reach 60-75 % of the sustained envelope: the realistic end of a better kernel.
STOCK = 0.65


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Time above the roof in inefficient kernels, and in kernels at the floor."""
    ns, floor = row["inefficient_ns"] or 0, row["floor_ns"] or 0
    ideal = row["inefficient_ideal_ns"] or 0.0
    busy = row["busy_ns"] or 0
    modelled = 1 - (row["unmodelled_ns"] or 0) / busy if busy else 0.0
    # With the kernels perfect, their ideal time stays; floor kernels go only when they are fused away.
    share = share_of(ns - ideal + floor, context)
    strong = share >= thresholds["recover_share"].value
    evidence = [
        fact("time far from both roofs", 100 * share_of(ns, context), "% of observed time", note=ms(ns)),
        fact("their distance: share of the nearer roof", row["inefficient_percent"], "%", provenance="derived"),
        fact("time above the roof", 100 * share_of(ns - ideal, context), "% of observed time", provenance="derived"),
        fact("time at the kernel floor", 100 * share_of(floor, context), "% of observed time", note=f"{row['floor_kernels']} kernels"),
    ]
    if row["top_inefficient"]:
        evidence.append(fact("most of it in", shorten(row["top_inefficient"]), "", note=ms(row["top_inefficient_ns"])))
    if row["top_reason"]:
        evidence.append(fact("most frequent reason", row["top_reason"], "", note=ms(row["top_reason_ns"])))
    return Assessment(
        status="supported" if strong else ("refuted" if modelled >= thresholds["cost_share"].value else "possible"),
        share=share,
        recover_ns=(max(0.0, ns - ideal / STOCK) * 0.5, ns - ideal + 0.5 * floor),
        quality=min(1.0, 0.4 + 0.6 * modelled),
        statement=(
            f"{where(context)}: {percent(share_of(ns, context))} of the time is in kernels far from both roofs"
            + (f" ({row['top_reason']})" if row["top_reason"] else "")
            if strong
            else f"inefficient kernels cost {where(context)} {percent(share)}"
        ),
        evidence=evidence,
        doubts=[] if modelled > 0.9 else [f"{percent(1 - modelled)} of kernel time has no bound"],
        parts=("inefficient", "floor"),
    )


RULE = Rule(
    id="slow-kernels",
    limit="kernel_inefficiency",
    title="Kernel inefficiency",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="kernel_time.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("better-kernels", "sm-clock"),
    required=(
        Need("cost", "operator shapes (record_shapes=True), or the model's config.json (--model) for graph-replayed kernels"),
        Need("roofs", "the device: --device KEY, or measure it with `diagnose calibrate`"),
    ),
    refuters=("kernels near a roof", "too little work for the device", "working set in cache"),
    cases=("LLM.int8: 36.2 to 9.9 tok/s from conversions around each product", "sampler sorting the whole vocabulary: 57.6 to 7.7 ms"),
)  # fmt: skip
