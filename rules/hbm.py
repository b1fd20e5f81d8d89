"""Memory bandwidth sets the pace: kernels stream weights, KV cache or activations near the sustained HBM roof.

Evidence: share of time in kernels near the memory roof for their size; split into weights, KV and the rest.

Refuted by: rates far below the roof (latency or inefficiency), working sets that fit the cache, idle gaps. Low-batch
decode is often bandwidth-bound, but only the measured rate says so.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import RELIEF, fact, ms, percent, share_of, shorten, where

THRESHOLDS = {
    "dram_share": Threshold(0.5, "of the claimed share", "above", "a kernel at 60 % of the sustained roof moves half of peak: less says its bytes came from cache"),
    "time_share": Threshold(0.25, "of time", "above", "below a quarter of the phase, halving this time saves less than noise-proof 12 %"),
    "cost_share": Threshold(0.5, "of kernel time", "above", "with most kernel time unmodelled the bound of the rest decides nothing"),
}  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase in kernels near the memory roof."""
    ns = row["hbm_ns"] or 0
    time_share = share_of(ns, context)
    share = time_share * RELIEF
    busy = row["busy_ns"] or 0
    modelled = 1 - (row["unmodelled_ns"] or 0) / busy if busy else 0.0
    strong = time_share >= thresholds["time_share"].value
    weights, kv = row["hbm_weights_ns"] or 0, row["hbm_kv_ns"] or 0
    evidence = [
        fact("time near the memory roof", 100 * time_share, "% of observed time", note=ms(ns)),
        fact("their rate", row["hbm_gbps"], "GB/s", provenance="derived"),
        fact("their share of the sustained roof", row["hbm_percent"], "%", provenance="derived"),
        fact("of it streaming weights", 100 * weights / ns if ns else None, "%", provenance="derived"),
        fact("of it reading the KV cache", 100 * kv / ns if ns else None, "%", provenance="derived"),
    ]
    if row["top_hbm"]:
        evidence.append(fact("most of it in", shorten(row["top_hbm"]), ""))
    counter, quality = [], min(1.0, 0.4 + 0.6 * modelled)
    if row["dram_percent"] is not None:
        sampled = fact(
            "DRAM read + write, sampled by the device",
            row["dram_percent"],
            "% of peak",
            threshold=thresholds["dram_share"],
        )
        if strong and row["dram_percent"] < 100 * thresholds["dram_share"].value * time_share:
            counter.append(sampled)
            quality *= 0.6
        else:
            evidence.append(sampled)
    return Assessment(
        counter=counter,
        status="supported"
        if strong
        else ("refuted" if modelled >= thresholds["cost_share"].value else "possible"),
        share=share,
        # FP8 weights gave 1.38-1.56x on weight-streaming products; nothing is promised for the rest.
        recover_ns=((1 - 1 / 1.38) * weights, (1 - 1 / 1.56) * weights + 0.4 * (ns - weights)),
        quality=quality,
        statement=(
            f"{where(context)}: {percent(time_share)} of the time streams memory near the sustained bandwidth"
            if strong
            else f"only {percent(time_share)} of {where(context)} runs near the memory roof"
        ),
        evidence=evidence,
        doubts=[] if modelled > 0.9 else [f"{percent(1 - modelled)} of kernel time has no bound"],
        parts=("hbm",),
    )


RULE = Rule(
    id="hbm-bandwidth",
    limit="hbm",
    title="HBM bandwidth",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="kernel_time.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("quantise-weights", "sm-clock", "half-batch"),
    required=(
        Need("cost", "operator shapes (record_shapes=True), or the model's config.json (--model) for graph-replayed kernels"),
        Need("roofs", "the device: --device KEY, or measure it with `diagnose calibrate`"),
    ),
    refuters=("achieved bandwidth below half of sustained", "working set in cache", "large idle gaps"),
    cases=("gpt-fast Llama-2-7B batch 1: 69 % of peak bandwidth, int8 1.48x, int4 1.88x", "H100 to H200: memory-bound time x 0.70-0.75"),
)  # fmt: skip
