"""The window in time: what each device did, which step it belonged to, and the longest gaps with their
causes."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis, TimelineSegment
from diagnose.reports.charts.attribution import bucket_legend
from diagnose.reports.charts.figure import (
    BACKGROUND,
    FOREGROUND,
    Column,
    Figure,
    Rows,
    Swatch,
    Table,
    drawing,
    finish,
    significant,
)
from diagnose.reports.numbers import count, duration, percent, sig3, time_unit
from diagnose.reports.text import shorten
from diagnose.reports.words import BUCKET, bucket_label, is_alone, phase_name, words

# A stretch shorter than this part of the window is thinner than a pixel: such neighbours are drawn as one.
_BINS = 700
_MAX_STEPS = 400
_LABEL_SHARE = 0.07
_GAPS = 12


def _merged(segments: list[TimelineSegment], width_ns: float) -> list[dict[str, Any]]:
    """Stretches to draw: long ones as they are, runs of short ones within one bin as their largest bucket.

    A long stretch is at least a bin wide, so a bin's short stretches never lie on both sides of one.
    """
    drawn: list[dict[str, Any]] = []
    bins: dict[tuple[int, int], dict[str, Any]] = {}
    for s in segments:
        length = s.end_ns - s.start_ns
        if length >= width_ns:
            drawn.append(
                {
                    "device": s.device,
                    "start": s.start_ns,
                    "end": s.end_ns,
                    "bucket": s.bucket,
                    "cause": s.cause,
                }
            )
            continue
        key = (s.device, int(s.start_ns // width_ns))
        group = bins.setdefault(key, {"device": s.device, "start": s.start_ns, "end": s.end_ns, "sums": {}})
        group["end"] = max(group["end"], s.end_ns)
        group["sums"][s.bucket, s.cause] = group["sums"].get((s.bucket, s.cause), 0) + length
    for group in bins.values():
        (bucket, cause), _ = max(group.pop("sums").items(), key=lambda item: item[1])
        drawn.append({**group, "bucket": bucket, "cause": cause})
    return drawn


def timeline_figure(d: Diagnosis) -> Figure | None:
    """Device tracks over steps; None when the result has no timeline."""
    if not d.timeline:
        return None
    start = min(s.start_ns for s in d.timeline)
    wall = max(max(s.end_ns for s in d.timeline) - start, 1)
    unit = time_unit([wall])
    devices = sorted({s.device for s in d.timeline})
    merged = _merged(d.timeline, wall / _BINS)

    def x(ns: int) -> float:
        return significant((ns - start) / unit.scale, 7)

    def track(device: int) -> str:
        return "device" if len(devices) == 1 else f"device {device}"

    tracks = [track(device) for device in devices]
    stretches: Rows = [
        {
            "track": track(m["device"]),
            "x": x(m["start"]),
            "x2": x(m["end"]),
            "fill": BUCKET[m["bucket"]].fill,
            "label": bucket_label(m["bucket"]),
            "cause": shorten(words(m["cause"]), 60),
        }
        for m in merged
    ]
    steps = [s for s in d.steps if s.device in devices and s.end_ns > s.start_ns][:_MAX_STEPS]
    limit = _LABEL_SHARE * wall
    alone = is_alone(d)
    boxes: Rows = [
        {
            "track": f"steps {s.device}" if len(devices) > 1 else "steps",
            "x": x(s.start_ns),
            "x2": x(s.end_ns),
            "text": _step_label(s.phase, s.sequences, alone) if s.end_ns - s.start_ns >= limit else "",
            "phase": phase_name(s.phase, alone),
            "batch": count(s.sequences),
            "context": count(s.context_tokens),
        }
        for s in steps
    ]
    if steps:
        tracks = (
            [t for device in devices for t in (track(device), f"steps {device}")]
            if len(devices) > 1
            else ["device", "steps"]
        )
    height = 36 * len(tracks) + 56
    axis = f"time, {unit.name}"
    with drawing() as alt:
        y = alt.Y(
            "track:N",
            sort=tracks,
            title=None,
            axis=alt.Axis(ticks=False, domain=False),
            scale=alt.Scale(domain=tracks),
        )
        xs = alt.X("x:Q", title=axis, scale=alt.Scale(domain=[0, wall / unit.scale], nice=False))
        layers = [
            alt.Chart(alt.NamedData("stretches"))
            .mark_bar(height={"band": 0.85})
            .encode(
                x=xs,
                x2=alt.X2("x2:Q"),
                y=y,
                color=alt.Color("fill:N", scale=None, legend=None),
                tooltip=[
                    alt.Tooltip("label:N", title="bucket"),
                    alt.Tooltip("cause:N"),
                    alt.Tooltip("x:Q", title=f"from, {unit.name}", format=".4~r"),
                    alt.Tooltip("x2:Q", title=f"to, {unit.name}", format=".4~r"),
                ],
            )
        ]
        if steps:
            base = alt.Chart(alt.NamedData("boxes"))
            layers.append(
                base.mark_bar(fill=BACKGROUND, stroke=FOREGROUND, strokeWidth=1, height={"band": 0.6}).encode(
                    x=xs,
                    x2=alt.X2("x2:Q"),
                    y=y,
                    tooltip=[
                        alt.Tooltip("phase:N"),
                        alt.Tooltip("batch:N", title="sequences"),
                        alt.Tooltip("context:N", title="context tokens"),
                        alt.Tooltip("x:Q", title=f"from, {unit.name}", format=".4~r"),
                        alt.Tooltip("x2:Q", title=f"to, {unit.name}", format=".4~r"),
                    ],
                )
            )
            layers.append(
                base.transform_calculate(middle="(datum.x + datum.x2) / 2")
                .mark_text(fontSize=11, color=FOREGROUND)
                .encode(x=alt.X("middle:Q"), y=y, text=alt.Text("text:N"))
            )
        spec = finish(alt.layer(*layers), height, stretches=stretches, boxes=boxes)
    gaps = _gaps(d.timeline)
    note = ""
    if d.steps_total > len(steps):
        note = f"{len(steps):,} of {d.steps_total:,} steps are drawn."
    if len(merged) < len(d.timeline):
        note += " Stretches thinner than a pixel are drawn as the largest bucket among them."
    return Figure(
        id="timeline",
        title=_title(gaps, wall),
        alt=_alt(d, devices, gaps, wall),
        height=height,
        spec=spec,
        table=_gap_table(gaps, start),
        legend=[
            *bucket_legend([m["bucket"] for m in merged]),
            *([Swatch("var(--bg)", "a step", "box")] if steps else []),
        ],
        note=note.strip(),
    )


def _step_label(phase: str, sequences: int | None, alone: bool) -> str:
    name = phase_name(phase, alone)
    return name if sequences is None else f"{name}, batch {sequences:,}"


def _gaps(segments: list[TimelineSegment]) -> list[TimelineSegment]:
    """Idle and unobserved stretches, longest first."""
    idle = [s for s in segments if s.bucket.startswith("idle_") or s.bucket == "unobserved"]
    return sorted(idle, key=lambda s: s.start_ns - s.end_ns)


def _title(gaps: list[TimelineSegment], wall: int) -> str:
    if not gaps:
        return f"The device is busy through the whole {duration(wall)} window"
    longest = gaps[0]
    label = bucket_label(longest.bucket)
    cause = shorten(words(longest.cause), 60)
    told = f" ({cause})" if cause and cause not in label else ""
    return f"Longest gap {duration(longest.end_ns - longest.start_ns)} of a {duration(wall)} window: {label}{told}"


def _alt(d: Diagnosis, devices: list[int], gaps: list[TimelineSegment], wall: int) -> str:
    by_bucket: dict[str, int] = {}
    for gap in gaps:
        by_bucket[gap.bucket] = by_bucket.get(gap.bucket, 0) + gap.end_ns - gap.start_ns
    listed = ", ".join(
        f"{bucket_label(b)} {duration(ns)}" for b, ns in sorted(by_bucket.items(), key=lambda i: -i[1])
    )
    return (
        f"Timeline of {len(devices)} device{'s' if len(devices) > 1 else ''} over {duration(wall)} with "
        f"{count(d.steps_total)} steps. Gaps: {listed or 'none'}."
    )


def _gap_table(gaps: list[TimelineSegment], start: int) -> Table:
    shown = gaps[:_GAPS]
    length = time_unit([g.end_ns - g.start_ns for g in shown])
    at = time_unit([g.start_ns - start for g in shown])
    columns = [
        Column("device"),
        Column("bucket", numeric=False),
        Column("cause", numeric=False),
        Column("length", length.name, "measured"),
        Column("starts at", at.name, "measured"),
        Column("step"),
    ]
    rows = [
        [
            str(g.device),
            bucket_label(g.bucket),
            shorten(words(g.cause), 60) or "not named",
            length.text(g.end_ns - g.start_ns),
            at.text(g.start_ns - start),
            "outside" if g.step_id is None else str(g.step_id),
        ]
        for g in shown
    ]
    return Table(f"The {len(shown)} longest gaps" if shown else "No gaps", columns, rows)


def steps_figure(d: Diagnosis) -> Figure | None:
    """Device time per step, stacked by bucket, in order of the steps; None for fewer than three steps."""
    steps = [s for s in d.steps if s.device == d.steps[0].device] if d.steps else []
    if len(steps) < 3:
        return None
    steps = steps[:_MAX_STEPS]
    unit = time_unit([sum(s.attribution_ns.values()) for s in steps])
    used = [b for b in BUCKET if any(s.attribution_ns.get(b) for s in steps)]
    parts: Rows = []
    for index, step in enumerate(steps):
        end = 0.0
        about = {"step": index, "phase": phase_name(step.phase), "batch": count(step.sequences)}
        for bucket in used:
            value = step.attribution_ns.get(bucket, 0) / unit.scale
            if value > 0:
                start, end = end, end + value
                parts.append({
                    **about, "value": significant(value, 5), "y": significant(start, 5), "y2": significant(end, 5),
                    "fill": BUCKET[bucket].fill, "label": BUCKET[bucket].label,
                })  # fmt: skip
    batches: Rows = [
        {"step": i, "sequences": s.sequences} for i, s in enumerate(steps) if s.sequences is not None
    ]
    totals = [sum(s.attribution_ns.values()) for s in steps]
    slowest = max(range(len(steps)), key=totals.__getitem__)
    middle = sorted(totals)[len(totals) // 2]
    axis = f"{unit.name} per step, gap before it included"
    height = 240
    with drawing() as alt:
        chart = (
            alt.Chart(alt.NamedData("parts"))
            .mark_bar(stroke=FOREGROUND, strokeWidth=0.6 if len(steps) < 80 else 0)
            .encode(
                x=alt.X("step:O", title="step, in order", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
                y=alt.Y("y:Q", title=f"{unit.name} per step"),
                y2=alt.Y2("y2:Q"),
                color=alt.Color("fill:N", scale=None, legend=None),
                tooltip=[
                    alt.Tooltip("step:O"),
                    alt.Tooltip("phase:N"),
                    alt.Tooltip("batch:N", title="sequences"),
                    alt.Tooltip("label:N", title="bucket"),
                    alt.Tooltip("value:Q", title=unit.name, format=".3~r"),
                ],
            )
        )
        if batches:
            line = (
                alt.Chart(alt.NamedData("batches"))
                .mark_line(
                    color=FOREGROUND,
                    strokeDash=[4, 3],
                    point={"color": FOREGROUND, "size": 25, "filled": True},
                )
                .encode(
                    x=alt.X("step:O"),
                    y=alt.Y(
                        "sequences:Q",
                        title="sequences",
                        scale=alt.Scale(zero=True),
                        axis=alt.Axis(grid=False, tickMinStep=1),
                    ),
                )
            )
            chart = alt.layer(chart, line).resolve_scale(y="independent")
        spec = finish(chart, height, parts=parts, batches=batches)
    columns = [
        Column("step"),
        Column("phase", numeric=False),
        Column("sequences"),
        Column("context", "tokens"),
        Column("time", unit.name, "measured"),
        Column("largest bucket", numeric=False),
    ]
    rows = []
    for index, step in enumerate(steps):
        bucket = max(step.attribution_ns, key=step.attribution_ns.__getitem__)
        share = step.attribution_ns[bucket] / max(totals[index], 1)
        rows.append(
            [
                str(index),
                phase_name(step.phase),
                count(step.sequences),
                count(step.context_tokens),
                sig3(totals[index] / unit.scale),
                f"{bucket_label(bucket)} {percent(share)}",
            ]
        )
    return Figure(
        id="steps",
        title=_steps_title(totals, middle, slowest),
        alt=f"Stacked bars of {len(steps)} steps in order, {axis}. Middle {duration(middle)}, "
        f"shortest {duration(min(totals))}, longest {duration(max(totals))}.",
        height=height,
        spec=spec,
        table=Table("Steps in order", columns, rows),
        legend=[
            *bucket_legend(used),
            *([Swatch("var(--fg)", "sequences in the batch, right axis", "dash")] if batches else []),
        ],
        note=f"{len(steps):,} of {d.steps_total:,} steps are drawn." if d.steps_total > len(steps) else "",
    )


def _steps_title(totals: list[int], middle: int, slowest: int) -> str:
    if duration(min(totals)) == duration(max(totals)):
        return f"All {len(totals):,} steps take {duration(middle)}"
    slow = duration(totals[slowest])
    return f"The median step takes {duration(middle)}; the slowest, step {slowest}, takes {slow}"
