"""The arithmetic units set the pace: kernels run near the sustained compute roof of their dtype and shape.

Evidence: share of time in kernels near the compute roof; their achieved rate.

Refuted by: rates far below the roof on the compute side of the ridge (inefficient kernels, not a limit), or kernels near
the memory roof. Prefill is not compute-bound by law: only the measured rate says so.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import RELIEF, fact, ms, percent, share_of, shorten, where

THRESHOLDS = {
    "tensor_share": Threshold(0.4, "of the claimed share", "above", "near the compute roof the pipes are active for most of the time; fp32 work does not use them"),
    "time_share": Threshold(0.25, "of time", "above", "below a quarter of the phase, halving this time saves less than noise-proof 12 %"),
    "cost_share": Threshold(0.5, "of kernel time", "above", "with most kernel time unmodelled the bound of the rest decides nothing"),
}  # fmt: skip


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase in kernels near the compute roof."""
    ns = row["compute_ns"] or 0
    time_share = share_of(ns, context)
    share = time_share * RELIEF
    busy = row["busy_ns"] or 0
    modelled = 1 - (row["unmodelled_ns"] or 0) / busy if busy else 0.0
    strong = time_share >= thresholds["time_share"].value
    evidence = [
        fact("time near the compute roof", 100 * time_share, "% of observed time", note=ms(ns)),
        fact("their rate", row["compute_tflops"], "TFLOP/s", provenance="derived"),
        fact("their share of the sustained roof", row["compute_percent"], "%", provenance="derived"),
    ]
    if row["top_compute"]:
        evidence.append(fact("most of it in", shorten(row["top_compute"]), ""))
    counter, quality = [], min(1.0, 0.4 + 0.6 * modelled)
    if row["tensor_percent"] is not None:
        sampled = fact(
            "tensor pipes active, sampled by the device",
            row["tensor_percent"],
            "% of peak",
            threshold=thresholds["tensor_share"],
        )
        if strong and row["tensor_percent"] < 100 * thresholds["tensor_share"].value * time_share:
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
        # Lower precision or fewer FLOPs: published fp8 GEMM gains 1.15-1.6x at large M.
        recover_ns=((1 - 1 / 1.15) * ns, (1 - 1 / 1.6) * ns),
        quality=quality,
        statement=(
            f"{where(context)}: {percent(time_share)} of the time runs near the sustained compute roof"
            if strong
            else f"only {percent(time_share)} of {where(context)} runs near the compute roof"
        ),
        evidence=evidence,
        doubts=[] if modelled > 0.9 else [f"{percent(1 - modelled)} of kernel time has no bound"],
        parts=("compute",),
    )


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
