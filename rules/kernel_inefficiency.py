"""Kernels are slow for their work: far from both roofs although there is enough to do, unfused, or too small.

Evidence: time in kernels far from both sustained roofs, with the reason the trace shows; chains of passes over memory
that one fused kernel would do in about one pass, even where each pass runs near the memory roof; time in kernels that
only pay the kernel floor.

Refuted by: kernels near a roof that do necessary work, working sets in cache, kernels that overlap (rates judged jointly).
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, ms, percent, share_of, shorten, where

THRESHOLDS = {
    "recover_share": Threshold(0.12, "of time", "above", "less than that is within what a rewrite usually misses"),
    "cost_share": Threshold(0.5, "of kernel time", "above", "with most kernel time unmodelled nothing can be said of the rest"),
}  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Time above the roof in inefficient kernels, in passes that fusing removes, and in kernels at the floor."""
    ns, floor = row["inefficient_ns"] or 0, row["floor_ns"] or 0
    busy = row["busy_ns"] or 0
    modelled = 1 - (row["unmodelled_ns"] or 0) / busy if busy else 0.0
    # A kernel outside chains can at best become perfect; a chain can be fused; a kernel that only unpacks for a product can
    # go into it; of lone kernels at the floor about half go into a neighbour, the rest stays a kernel of its own.
    alone = row["alone_above_ns"] or 0.0
    fuse_high, fuse_low = row["fuse_high_ns"] or 0.0, row["fuse_low_ns"] or 0.0
    floor_alone = row["floor_alone_ns"] or 0
    fuse_best, unpack = max(fuse_high, row["fuse_best_ns"] or 0.0), row["unpack_ns"] or 0.0
    append = row["append_ns"] or 0.0
    # A product that reads packed weights itself also moves fewer bytes than one that reads them unpacked.
    with_product = min(0.5 * (row["hbm_weights_ns"] or 0.0), 0.4 * unpack)
    recover = (
        0.5 * alone + 0.8 * fuse_low + 0.7 * (unpack + append),
        alone + fuse_best + 0.5 * floor_alone + unpack + append + with_product,
    )
    share = share_of(alone + fuse_high + 0.5 * floor_alone + unpack + append, context)
    strong = share >= thresholds["recover_share"].value
    evidence = [
        fact("time far from both roofs", 100 * share_of(ns, context), "% of observed time", note=ms(ns)),
        fact("their distance: share of the nearer roof", row["inefficient_percent"], "%", provenance="derived"),
        fact("time in unfused chains of passes", 100 * share_of(row["chain_ns"], context), "% of observed time",
             note=f"{row['chains']} chains, {row['chain_kernels']} kernels" if row["chains"] else None),
        fact("time only unpacking weights or results for a product", 100 * share_of(unpack, context), "% of observed time"),
        fact("time copying a growing tensor to append to it", 100 * share_of(append, context), "% of observed time"),
        fact("time a better kernel or fusing could free at most", 100 * share, "% of observed time", provenance="derived"),
        fact("time at the kernel floor", 100 * share_of(floor, context), "% of observed time", note=f"{row['floor_kernels']} kernels"),
    ]  # fmt: skip
    if row["top_inefficient"]:
        evidence.append(
            fact("most of it in", shorten(row["top_inefficient"]), "", note=ms(row["top_inefficient_ns"]))
        )
    if row["top_reason"]:
        evidence.append(fact("most frequent reason", row["top_reason"], "", note=ms(row["top_reason_ns"])))
    return Assessment(
        status="supported"
        if strong
        else ("refuted" if modelled >= thresholds["cost_share"].value else "possible"),
        share=share,
        recover_ns=recover,
        quality=min(1.0, 0.4 + 0.6 * modelled),
        statement=_statement(row, context, strong, share, ns),
        evidence=evidence,
        doubts=[] if modelled > 0.9 else [f"{percent(1 - modelled)} of kernel time has no bound"],
        parts=("inefficient", "floor"),
    )


def _statement(row: Row, context: Context, strong: bool, share: float, ns: float) -> str:
    if not strong:
        return f"better or fused kernels could free at most {percent(share)} of {where(context)}"
    parts = []
    if ns:
        why = f" ({row['top_reason']})" if row["top_reason"] else ""
        parts.append(f"{percent(share_of(ns, context))} of the time is in kernels far from both roofs{why}")
    if share_of(row["chain_ns"], context) > 0.1:
        also = "some of it among " if ns else ""
        parts.append(
            f"{also}{percent(share_of(row['chain_ns'], context))} in unfused chains of passes over memory"
        )
    if share_of(row["unpack_ns"], context) > 0.1:
        parts.append(
            f"{percent(share_of(row['unpack_ns'], context))} only unpacks weights or results for products"
        )
    if share_of(row["append_ns"], context) > 0.1:
        parts.append(
            f"{percent(share_of(row['append_ns'], context))} copies growing tensors to append to them (a cache without room)"
        )
    if not parts:
        parts.append(
            f"{percent(share_of(row['floor_ns'], context))} is in kernels too small to fill the device"
        )
    return f"{where(context)}: " + "; ".join(parts)


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
