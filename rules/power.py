"""The clock holds compute back: power or heat lowers it while the kernels run.

Evidence: the same kernels of the same shape slow down within the window, compute-bound ones together, memory-bound ones
not; or the sampled SM clock (nsys GPU metrics) sits well below the clock that the datasheet peak is quoted at.

Refuted by: stable kernel times, memory-bound kernels slowing as much (another cause), a clock at its nominal value.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, percent, share_of, where

THRESHOLDS = {
    "slowdown": Threshold(
        1.05,
        "x",
        "above",
        "identical GEMMs of one device scatter by 1-3 %; SageMaker and NVML guides act on 5 %",
    ),
    "kept": Threshold(
        0.5,
        "of the slowdown",
        "below",
        "memory-bound kernels must move less than half as much, or the cause is shared",
    ),
    "share": Threshold(0.03, "of time", "above", "one in thirty steps is within what two runs differ by"),
    "clock": Threshold(
        0.93,
        "of nominal",
        "below",
        "boost clocks under load sit within a few percent of nominal when power allows",
    ),
}


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Excess time of the compute-side kernels over their fast state."""
    if context.device_id == -1:
        return Assessment(
            status="not_assessed",
            missing=[
                "the CPU's frequency: a trace of the CPU cannot tell a lower clock from other load on the machine"
            ],
        )
    slow, memory = row["compute_slowdown"], row["memory_slowdown"]
    clock = context.facts.get("clock_share")
    excess = row["excess_ns"] or 0.0
    kept = thresholds["kept"].value
    drifts = (
        slow is not None
        and slow >= thresholds["slowdown"].value
        and (memory is None or (memory - 1) < kept * (slow - 1))
    )
    low_clock = clock is not None and clock < thresholds["clock"].value
    if clock is not None and low_clock:
        excess = max(excess, (1 - clock) * (row["compute_side_ns"] or 0))
    share = share_of(excess, context) if drifts or low_clock else 0.0
    evidence = [
        fact(
            "same compute kernels, late against fast",
            slow,
            "x",
            threshold=thresholds["slowdown"],
            provenance="derived",
        ),
        fact("same memory kernels, late against fast", memory, "x", provenance="derived"),
        fact(
            "SM clock while sampled against the one its peak is quoted at",
            clock,
            "of nominal",
            threshold=thresholds["clock"],
        ),
        fact("time above the fast state", 100 * share, "% of observed time", provenance="derived"),
    ]
    missing = (
        []
        if clock is not None
        else [
            "the SM clock: nsys --gpu-metrics-devices, or nvidia-smi --query-gpu=clocks.sm,power.draw during the run"
        ]
    )
    found = (drifts or low_clock) and share >= thresholds["share"].value
    return Assessment(
        status="supported"
        if found
        else ("refuted" if slow is not None or clock is not None else "not_assessed"),
        share=share,
        recover_ns=(0.5 * excess, excess) if found else (0.0, 0.0),
        statement=(
            f"{where(context)}: compute kernels run below their own best, worth {percent(share)} of the time, while memory kernels do not"
            if found
            else "the same kernels keep their speed through the window"
        ),
        evidence=evidence,
        missing=missing if found else [],
        parts=("compute",),
    )


RULE = Rule(
    id="clock-drift",
    limit="power",
    title="Power and clocks",
    phases=("*",),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="power.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("clock-lock",),
    required=(Need("cost", "operator shapes, to tell compute kernels from memory kernels"),),
    optional=(Need("counter", "GPU metrics with the SM clock (nsys --gpu-metrics-devices)"),),
    refuters=("kernel times are stable", "memory kernels slow as much", "the clock is at its nominal value"),
    cases=("power-capped H100 PCIe: 66 % of the datasheet's bf16 rate",),
)
