"""The arithmetic units set the pace: kernels run near the sustained compute roof of their dtype and shape.

Evidence: share of time in kernels near the compute roof; their achieved rate.

Refuted by: rates far below the roof on the compute side of the ridge (inefficient kernels, not a limit), or kernels near
the memory roof. Prefill is not compute-bound by law: only the measured rate says so.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.near_roof import Roof, assess_roof

THRESHOLDS = {
    "tensor_share": Threshold(0.4, "of the claimed share", "above", "near the compute roof the pipes are active for most of the time; fp32 work does not use them"),
    "time_share": Threshold(0.25, "of time", "above", "below a quarter of the phase, halving this time saves less than noise-proof 12 %"),
    "cost_share": Threshold(0.5, "of kernel time", "above", "with most kernel time unmodelled the bound of the rest decides nothing"),
}  # fmt: skip


ROOF = Roof(
    "compute", "runs near the sustained compute roof", "compute", ("compute_tflops", "TFLOP/s"),
    ("tensor_percent", "tensor_share"), "tensor pipes active, sampled by the device",
)  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase in kernels near the compute roof."""
    ns = row["compute_ns"] or 0
    # Lower precision or fewer FLOPs: published fp8 GEMM gains 1.15-1.6x at large M.
    return assess_roof(row, context, thresholds, ROOF, ((1 - 1 / 1.15) * ns, (1 - 1 / 1.6) * ns), [])


RULE = Rule(
    id="compute-roof",
    limit="compute",
    title="Compute",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="kernel_time.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("sm-clock", "quantise-weights"),
    required=(
        Need("cost", "operator shapes (record_shapes=True), or the model's config.json (--model) for graph-replayed kernels"),
        Need("roofs", "the device: --device KEY, or measure it with `diagnose calibrate`"),
    ),
    refuters=("achieved rate far below the roof", "near the memory roof instead", "grid smaller than the device"),
    cases=("AWQ at batch 256: half the speed of FP16, dequantisation on a compute-bound product", "H100 to H200 unchanged from M = 1024"),
)  # fmt: skip
