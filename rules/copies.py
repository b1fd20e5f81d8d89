"""Copies between host and device hold the run up: nothing else runs meanwhile.

Evidence: time when only copies run, their bytes and rate against the link; pageable or pinned.

Refuted by: copies hidden behind kernels, copies within the device.
"""

from diagnose.rules.base import OUTSIDE, Assessment, Context, Row, Rule, Threshold
from diagnose.rules.common import RELIEF, fact, ms, percent, share_of, where

THRESHOLDS = {
    "time_share": Threshold(
        0.05, "of time", "above", "TraceLens flags copies above 5 % of the time per direction"
    ),
}


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the phase in which only copies run."""
    ns = row["exposed_ns"] or 0
    time_share = share_of(ns, context)
    share = time_share * RELIEF
    strong = time_share >= thresholds["time_share"].value
    direction = row["top_kind"] or ""
    rate = row["top_bytes"] / row["top_ns"] if row["top_ns"] else None
    link = context.facts.get({"HtoD": "link_h2d", "DtoH": "link_d2h"}.get(direction, ""))
    evidence = [
        fact("time when only copies run", 100 * time_share, "% of observed time", note=ms(ns)),
        fact(f"{direction} bytes" if direction else "bytes", (row["top_bytes"] or 0) / 1e9, "GB"),
        fact(f"{direction} rate" if direction else "rate", rate, "GB/s", note=f"link {link / 1e9:.0f} GB/s a direction" if link else None),
        fact("copies", row["copies"], "copies"),
        fact("pageable share of copied bytes", 100 * row["pageable_share"] if row["pageable_share"] is not None else None, "%"),
    ]  # fmt: skip
    doubts = []
    if rate is not None and link and rate < 0.6 * link / 1e9:
        doubts.append(
            f"the copies reach {100 * rate * 1e9 / link:.0f} % of the link: smaller or contended transfers, not the link's rate"
        )
    return Assessment(
        status="supported" if strong else "refuted",
        share=share,
        recover_ns=(0.75 * ns, float(ns)),
        statement=(
            f"{where(context)}: {percent(time_share)} of the time only copies run, mostly {direction}"
            if strong
            else f"copies cost {where(context)} {percent(time_share)}"
        ),
        evidence=evidence,
        doubts=doubts,
        parts=("copy",),
    )


RULE = Rule(
    id="exposed-copies",
    limit="copy",
    title="Copies between host and device",
    phases=("*", OUTSIDE),
    objectives=("step_time", "throughput", "ttft", "itl", "e2e"),
    sql="copies.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("keep-resident",),
    refuters=("copies overlap kernels", "copies stay on the device"),
    cases=("FSDP CPU offload: 95 % of the window copying 25.5 GB to the device",),
)
