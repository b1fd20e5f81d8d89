"""Roofline: a point per kernel name and phase, its area the time, against the peak and sustained roofs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from diagnose.contract import Device, Diagnosis, KernelRow
from diagnose.reports.charts.attribution import bucket_legend
from diagnose.reports.charts.figure import (
    ACCENT,
    BACKGROUND,
    FOREGROUND,
    MUTED,
    Column,
    Figure,
    Rows,
    Swatch,
    Table,
    drawing,
    finish,
    log_axis,
    significant,
)
from diagnose.reports.numbers import duration, percent, sig3, time_unit
from diagnose.reports.text import clean, shorten
from diagnose.reports.words import BUCKET, bucket_label, phase_name

_MAX_POINTS = 300  # more are unreadable; the rest is counted in the note and stays in the kernel table
_MAX_CALLOUTS = 6
# Kernels below this share of the time drawn would only stretch the axes by decades; the kernel table has
# them.
_DUST_SHARE = 0.0005
_CALLOUT_SHARE = 0.005  # of the time drawn; what is shorter is not worth a label
_CALLOUT_APART = 0.15  # decades
_HEIGHT = 400


@dataclass(slots=True)
class _Point:
    name: str
    phase: str
    time_ns: int
    flops: float
    bytes: float
    heaviest: KernelRow

    @property
    def tflops(self) -> float:
        return self.flops / self.time_ns / 1e3

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def roofline_figure(d: Diagnosis) -> Figure | None:
    """The roofline of the first device; None when no kernel has both FLOPs and bytes."""
    points, missing_ns = _points(d.kernels)
    if not points or not d.devices:
        return None
    device = d.devices[0]
    drawn_ns = sum(p.time_ns for p in points)
    shown = [p for p in points if p.time_ns >= _DUST_SHARE * drawn_ns][:_MAX_POINTS]
    dtypes = _dtypes(shown, device)
    roofs = _roof_lines(device, dtypes, shown)
    ridges = _ridges(device, dtypes)
    callouts = _callouts(shown)
    return Figure(
        id="roofline",
        title=_title(shown),
        alt=_alt(shown, roofs, ridges),
        height=_HEIGHT,
        spec=_spec(shown, roofs, ridges, callouts),
        table=_table(shown),
        legend=[
            *bucket_legend([p.heaviest.bound for p in shown]),
            *(
                [Swatch("var(--fg)", "sustained roof", "line"), Swatch("var(--muted)", "peak roof", "dash")]
                if roofs
                else []
            ),
            Swatch("var(--muted)", "area of a point: its time", "dot"),
        ],
        note=_note(points, shown, missing_ns, roofs),
        callouts=[
            (
                str(number),
                f"{shorten(p.name, 60)} · {bucket_label(p.heaviest.bound)}: {clean(p.heaviest.reason)}",
            )
            for number, p in enumerate(callouts, 1)
        ],
    )


def _points(kernels: list[KernelRow]) -> tuple[list[_Point], int]:
    """Rows summed by name and phase, longest first, and the time of rows that have no place on the chart."""
    grouped: dict[tuple[str, str | None], _Point] = {}
    missing_ns = 0
    for row in kernels:
        if not row.flops or not row.bytes or row.time_ns <= 0:
            missing_ns += row.time_ns
            continue
        point = grouped.get((row.name, row.phase))
        if point is None:
            grouped[row.name, row.phase] = _Point(
                row.name,
                phase_name(row.phase) if row.phase else "outside",
                row.time_ns,
                row.flops,
                row.bytes,
                row,
            )
            continue
        point.time_ns += row.time_ns
        point.flops += row.flops
        point.bytes += row.bytes
        if row.time_ns > point.heaviest.time_ns:
            point.heaviest = row
    return sorted(grouped.values(), key=lambda p: -p.time_ns), missing_ns


def _dtypes(points: list[_Point], device: Device) -> list[str]:
    """The (at most three) dtypes with a compute roof that carry most time on the chart."""
    known = [r.dtype for r in device.roofs if r.resource == "compute"]
    weight = dict.fromkeys(known, 0)
    for p in points:
        if p.heaviest.dtype in weight:
            weight[p.heaviest.dtype] += p.time_ns
    ranked = sorted(known, key=lambda dtype: -weight[dtype])
    return [dtype for dtype in ranked if weight[dtype]][:3] or ranked[:1]


def _rate(device: Device, resource: str, dtype: str, kind: str) -> float | None:
    for roof in device.roofs:
        if roof.resource == resource and roof.dtype == dtype:
            value: float | None = getattr(roof, kind)
            return value
    return None


def _bandwidth(device: Device, kind: str) -> float | None:
    rates = [getattr(r, kind) for r in device.roofs if r.resource == "hbm"]
    return next((rate for rate in rates if rate), None)


def _roof_lines(device: Device, dtypes: list[str], points: list[_Point]) -> list[dict[str, Any]]:
    """End points of each roof: the slanted bandwidth part to the ridge, then flat. x FLOP/B, y TFLOP/s."""
    low = min(p.intensity for p in points) / 2
    lines: list[dict[str, Any]] = []
    for kind in ("peak", "sustained"):
        bandwidth = _bandwidth(device, kind)
        for dtype in dtypes:
            compute = _rate(device, "compute", dtype, kind)
            if not bandwidth or not compute:
                continue
            ridge = 1e3 * compute / bandwidth
            high = max([p.intensity for p in points] + [ridge]) * 3
            name = f"{kind} {dtype}"
            tag = _roof_tag(device, dtype, kind)
            start = min(low, ridge / 10)
            lines += [
                {"line": name, "kind": kind, "x": start, "y": bandwidth * start / 1e3, "tag": ""},
                {"line": name, "kind": kind, "x": ridge, "y": compute, "tag": ""},
                {"line": name, "kind": kind, "x": high, "y": compute, "tag": tag},
            ]
    return lines


def _roof_tag(device: Device, dtype: str, kind: str) -> str:
    """One label for both lines of a dtype, on the upper one: the two are often too close for a label each."""
    peak, sustained = (_rate(device, "compute", dtype, k) for k in ("peak", "sustained"))
    if peak and sustained:
        return f"{dtype}: peak {sig3(peak)}, sustained {sig3(sustained)}" if kind == "peak" else ""
    return f"{dtype}: {kind} {sig3(peak or sustained)}"


def _ridges(device: Device, dtypes: list[str]) -> list[dict[str, Any]]:
    bandwidth = _bandwidth(device, "sustained")
    found = []
    for dtype in dtypes:
        compute = _rate(device, "compute", dtype, "sustained")
        if bandwidth and compute:
            ridge = 1e3 * compute / bandwidth
            found.append({"dtype": dtype, "x": ridge, "y": compute, "tag": f"ridge {dtype} {sig3(ridge)}"})
    return found


def _callouts(points: list[_Point]) -> list[_Point]:
    """The longest points that are far from their roof and say why."""
    total = sum(p.time_ns for p in points)
    picked: list[_Point] = []
    for p in points:
        told = p.heaviest.bound in {"inefficient", "floor"} and p.heaviest.reason
        if not told or p.time_ns < _CALLOUT_SHARE * total:
            continue
        # Two labels on one spot cannot be read: the longer point keeps it.
        if all(_distance(p, other) > _CALLOUT_APART for other in picked):
            picked.append(p)
    return picked[:_MAX_CALLOUTS]


def _distance(a: _Point, b: _Point) -> float:
    """Distance on the log-log chart in decades."""
    return math.hypot(math.log10(a.intensity / b.intensity), math.log10(a.tflops / b.tflops))


def _rows(points: list[_Point]) -> Rows:
    return [
        {
            "name": shorten(p.name, 90),
            "phase": p.phase,
            "x": significant(p.intensity, 4),
            "y": significant(p.tflops, 4),
            "ms": significant(p.time_ns / 1e6, 4),
            "bound": bucket_label(p.heaviest.bound),
            "fill": BUCKET[p.heaviest.bound].fill if p.heaviest.bound in BUCKET else MUTED,
            "why": shorten(p.heaviest.reason, 120),
            "roof": p.heaviest.percent_of_roof,
        }
        for p in points
    ]


def _spec(
    points: list[_Point], roofs: list[dict[str, Any]], ridges: list[dict[str, Any]], callouts: list[_Point]
) -> dict[str, Any]:
    tags: Rows = [{"x": p.intensity, "y": p.tflops, "tag": str(i)} for i, p in enumerate(callouts, 1)]
    with drawing() as alt:
        xs = [p.intensity for p in points] + [r["x"] for r in roofs]
        ys = [p.tflops for p in points] + [r["y"] for r in roofs]
        x = log_axis(
            alt,
            alt.X,
            "x:Q",
            "arithmetic intensity, FLOP per byte",
            min(xs) / 1.3,
            max(xs) * 1.1,
        )
        y = log_axis(alt, alt.Y, "y:Q", "achieved, TFLOP/s", min(ys) / 1.6, max(ys) * 2)
        layers = []
        if roofs:
            lines = alt.Chart(alt.NamedData("roofs"))
            for kind, dash, colour in (("peak", [5, 4], MUTED), ("sustained", [1, 0], FOREGROUND)):
                part = lines.transform_filter(alt.datum.kind == kind)
                layers += [
                    part.mark_line(strokeDash=dash, strokeWidth=1.5, color=colour).encode(
                        x=x, y=y, detail=alt.Detail("line:N")
                    ),
                    part.mark_text(align="right", dy=-6, fontSize=10, color=colour).encode(
                        x=x, y=y, text=alt.Text("tag:N")
                    ),
                ]
        if ridges:
            marks = alt.Chart(alt.NamedData("ridges"))
            layers += [
                marks.mark_point(shape="diamond", size=60, filled=True, color=FOREGROUND, opacity=1).encode(
                    x=x, y=y
                ),
                marks.mark_text(align="right", dx=-7, dy=-9, fontSize=10, color=FOREGROUND).encode(
                    x=x, y=y, text=alt.Text("tag:N")
                ),
            ]
        layers.append(
            alt.Chart(alt.NamedData("points"))
            .mark_circle(opacity=0.85, stroke=FOREGROUND, strokeWidth=0.6)
            .encode(
                x=x,
                y=y,
                size=alt.Size("ms:Q", legend=None, scale=alt.Scale(range=[25, 900], zero=True)),
                color=alt.Color("fill:N", scale=None, legend=None),
                tooltip=[
                    alt.Tooltip("name:N", title="kernel"),
                    alt.Tooltip("phase:N"),
                    alt.Tooltip("ms:Q", title="time, ms", format=".3~r"),
                    alt.Tooltip("y:Q", title="TFLOP/s", format=".3~r"),
                    alt.Tooltip("x:Q", title="FLOP/byte", format=".3~r"),
                    alt.Tooltip("roof:Q", title="% of roof", format=".3~r"),
                    alt.Tooltip("bound:N"),
                    alt.Tooltip("why:N", title="reason"),
                ],
            )
        )
        if callouts:
            layers += [
                alt.Chart(alt.NamedData("tags"))
                .mark_text(
                    fontWeight=700, fontSize=12, dx=14, dy=-10, color=ACCENT, stroke=BACKGROUND, strokeWidth=3
                )
                .encode(x=x, y=y, text=alt.Text("tag:N")),
                alt.Chart(alt.NamedData("tags"))
                .mark_text(fontWeight=700, fontSize=12, dx=14, dy=-10, color=ACCENT)
                .encode(x=x, y=y, text=alt.Text("tag:N")),
            ]
        return finish(
            alt.layer(*layers), _HEIGHT, roofs=roofs, ridges=ridges, points=_rows(points), tags=tags
        )


def _title(points: list[_Point]) -> str:
    total = sum(p.time_ns for p in points)
    at_roof = sum(p.time_ns for p in points if p.heaviest.bound in {"compute", "hbm"})
    rest = total - at_roof
    unit = time_unit([total])
    if rest <= 0:
        return f"All {unit.text(total)} {unit.name} of kernel time drawn here runs near a roof"
    worst = max((p for p in points if p.heaviest.bound not in {"compute", "hbm"}), key=lambda p: p.time_ns)
    label = worst.heaviest.op or worst.heaviest.role or worst.heaviest.family
    return (
        f"{unit.text(rest)} of {unit.text(total)} {unit.name} of kernel time drawn here "
        f"({percent(rest / total)}) runs far "
        f"from the roofs, most of it in {shorten(label, 40)}"
    )


def _alt(points: list[_Point], roofs: list[dict[str, Any]], ridges: list[dict[str, Any]]) -> str:
    top = "; ".join(
        f"{shorten(p.name, 60)} at {sig3(p.intensity)} FLOP per byte and {sig3(p.tflops)} TFLOP/s, "
        f"{bucket_label(p.heaviest.bound)}"
        for p in points[:3]
    )
    marks = ", ".join(str(r["tag"]) for r in ridges) or "no roof is known for this device"
    lines = len({r["line"] for r in roofs})
    return (
        f"Log-log roofline with {len(points)} kernels and {lines} roof lines; {marks} FLOP per byte. "
        f"The longest kernels: {top}."
    )


def _note(points: list[_Point], shown: list[_Point], missing_ns: int, roofs: list[dict[str, Any]]) -> str:
    notes = []
    if not roofs:
        notes.append("No roof is known for this device and these dtypes; give one with --device.")
    if len(points) > len(shown):
        rest = sum(p.time_ns for p in points) - sum(p.time_ns for p in shown)
        notes.append(
            f"The {len(shown)} longest of {len(points):,} points are drawn; the others take "
            f"{duration(rest)} together and "
            "are in the table of kernels."
        )
    if missing_ns:
        unit = time_unit([missing_ns])
        share = percent(missing_ns / (missing_ns + sum(p.time_ns for p in points)))
        notes.append(
            f"{unit.text(missing_ns)} {unit.name} ({share} of kernel time) are not drawn: kernels without a "
            f"cost model "
            "or without arithmetic."
        )
    return " ".join(notes)


def _table(points: list[_Point]) -> Table:
    unit = time_unit([p.time_ns for p in points])
    columns = [
        Column("kernel", numeric=False),
        Column("phase", numeric=False),
        Column("time", unit.name, "measured"),
        Column("intensity", "FLOP/B", "derived"),
        Column("achieved", "TFLOP/s", "derived"),
        Column("bound", numeric=False),
    ]
    rows = [
        [
            shorten(p.name, 60),
            p.phase,
            unit.text(p.time_ns),
            sig3(p.intensity),
            sig3(p.tflops),
            bucket_label(p.heaviest.bound),
        ]
        for p in points[:40]
    ]
    caption = "Points of the roofline" + (", the 40 longest" if len(points) > 40 else "")
    return Table(caption, columns, rows)
