"""What the two roof rules share: how much of a phase runs near a sustained roof, and what samples of the device say to it."""

from dataclasses import dataclass

from diagnose.contract import Evidence
from diagnose.rules.base import Assessment, Context, Row, Threshold
from diagnose.rules.common import fact, ms, percent, share_of, shorten, where


@dataclass(frozen=True, slots=True)
class Roof:
    """One roof as `kernel_time.sql` names its columns (`bucket`_ns, ...) and as the reports word it.

    `sampled`: column of the device's own samples and threshold they are held against. `short` completes "runs near the".
    """

    bucket: str
    long: str
    short: str
    rate: tuple[str, str]
    sampled: tuple[str, str]
    sample_name: str


def assess_roof(
    row: Row,
    context: Context,
    thresholds: dict[str, Threshold],
    roof: Roof,
    recover_ns: tuple[float, float],
    more: list[Evidence],
) -> Assessment:
    """Share of the phase in kernels near the roof; `recover_ns` of it, `more` evidence of the rule's own."""
    ns = row[f"{roof.bucket}_ns"] or 0
    time_share = share_of(ns, context)
    busy = row["busy_ns"] or 0
    modelled = 1 - (row["unmodelled_ns"] or 0) / busy if busy else 0.0
    strong = time_share >= thresholds["time_share"].value
    column, unit = roof.rate
    evidence = [
        fact(f"time near the {roof.short} roof", 100 * time_share, "% of observed time", note=ms(ns)),
        fact("their rate", row[column], unit, provenance="derived"),
        fact("their share of the sustained roof", row[f"{roof.bucket}_percent"], "%", provenance="derived"),
        *more,
    ]
    if top := row[f"top_{roof.bucket}"]:
        evidence.append(fact("most of it in", shorten(top), ""))
    counter, quality = [], min(1.0, 0.4 + 0.6 * modelled)
    column, name = roof.sampled
    if row[column] is not None:
        sampled = fact(roof.sample_name, row[column], "% of peak", threshold=thresholds[name])
        if strong and row[column] < 100 * thresholds[name].value * time_share:
            counter.append(sampled)
            quality *= 0.6
        else:
            evidence.append(sampled)
    decided = modelled >= thresholds["cost_share"].value
    return Assessment(
        counter=counter,
        status="supported" if strong else "refuted" if decided else "possible",
        share=share_of(row[f"{roof.bucket}_relief_ns"], context),
        recover_ns=recover_ns,
        quality=quality,
        statement=(
            f"{where(context)}: {percent(time_share)} of the time {roof.long}"
            if strong
            else f"only {percent(time_share)} of {where(context)} runs near the {roof.short} roof"
        ),
        evidence=evidence,
        doubts=[] if modelled > 0.9 else [f"{percent(1 - modelled)} of kernel time has no bound"],
        parts=(roof.bucket,),
    )
