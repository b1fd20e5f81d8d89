"""Memory bandwidth sets the pace: kernels stream weights, KV cache or activations near the sustained HBM roof.

Evidence: share of time in kernels near the memory roof for their size; split into weights, KV and the rest.

Refuted by: rates far below the roof (latency or inefficiency), working sets that fit the cache, idle gaps. Low-batch
decode is often bandwidth-bound, but only the measured rate says so.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact
from diagnose.rules.near_roof import Roof, assess_roof

THRESHOLDS = {
    "dram_share": Threshold(0.5, "of the claimed share", "above", "a kernel at 60 % of the sustained roof moves half of peak: less says its bytes came from cache"),
    "time_share": Threshold(0.25, "of time", "above", "below a quarter of the phase, halving this time saves less than noise-proof 12 %"),
    "cost_share": Threshold(0.5, "of kernel time", "above", "with most kernel time unmodelled the bound of the rest decides nothing"),
}  # fmt: skip


ROOF = Roof(
    "hbm", "streams memory near the sustained bandwidth", "memory", ("hbm_gbps", "GB/s"),
    ("dram_percent", "dram_share"), "DRAM read + write, sampled by the device",
)  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase in kernels near the memory roof."""
    ns, weights, kv = row["hbm_ns"] or 0, row["hbm_weights_ns"] or 0, row["hbm_kv_ns"] or 0
    split = [
        fact("of it streaming weights", 100 * weights / ns if ns else None, "%", provenance="derived"),
        fact("of it reading the KV cache", 100 * kv / ns if ns else None, "%", provenance="derived"),
    ]
    # FP8 weights gave 1.38-1.56x on weight-streaming products; nothing is promised for the rest.
    recover = ((1 - 1 / 1.38) * weights, (1 - 1 / 1.56) * weights + 0.4 * (ns - weights))
    return assess_roof(row, context, thresholds, ROOF, recover, split)


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
