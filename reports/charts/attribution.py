"""Where the time went: one stacked bar a phase, milliseconds per step on one scale, buckets in their fixed
order."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.contract import Attribution, Diagnosis
from diagnose.reports.charts.figure import (
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
from diagnose.reports.numbers import percent, sig3, time_unit
from diagnose.reports.text import clean
from diagnose.reports.words import BUCKET, bucket_label, is_alone, phase_name

_LABEL_SHARE = 0.09  # a segment narrower than this share of the scale has no room for its number
_HIDDEN_SHARE = 0.03  # a shorter bar tells nothing; the text below the chart has it
_PER_STEP = "step"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label and the nanoseconds of each bucket, already per step where `per` says so."""

    label: str
    attribution: dict[str, float]
    per: str

    @property
    def total(self) -> float:
        """Length of the bar in nanoseconds."""
        return sum(self.attribution.values())

    @property
    def observed(self) -> float:
        """What every share is of, as in the rules: the bar without its unobserved time."""
        return self.total - self.attribution.get("unobserved", 0.0)

    def share(self, bucket: str) -> str:
        """A bucket's share of the observed time."""
        if bucket == "unobserved":
            return "not counted"
        return percent(self.attribution.get(bucket, 0.0) / self.observed if self.observed else None)


def phase_bars(d: Diagnosis) -> list[Bar]:
    """Bars per phase and step; without phases one bar a device over its window."""
    alone = is_alone(d)
    bars = [
        Bar(
            phase_name(p.phase, alone)
            + (f" × {p.steps:,}" if p.steps != 1 and not (alone and p.phase == "other") else ""),
            {b: ns / p.steps for b, ns in p.attribution_ns.items()},
            _PER_STEP,
        )
        for p in d.phases
        if p.steps > 0 and sum(p.attribution_ns.values()) > 0
    ]
    outside = _outside_bar(d, max((bar.total for bar in bars), default=0.0))
    return [*bars, *outside] or device_bars(d)


def _outside_bar(d: Diagnosis, scale: float) -> list[Bar]:
    """Observed time outside steps, spread over the steps so that it shares their scale; nothing when it is
    hidden.

    Unobserved time is left out: it is no work and no idleness, and would dwarf every step.
    """
    steps = sum(p.steps for p in d.phases)
    if not d.outside_steps or not steps:
        return []
    parts = {b: ns / steps for b, ns in d.outside_steps.attribution_ns.items() if b != "unobserved"}
    bar = Bar("outside steps", parts, _PER_STEP)
    return [bar] if bar.total >= _HIDDEN_SHARE * scale else []


def device_bars(d: Diagnosis) -> list[Bar]:
    """Bars per device over the whole window; with several results (ranks) the devices of each."""
    results = d.ranks if isinstance(d.ranks, list) and d.ranks else [d]
    bars = []
    for result in results:
        for device in result.devices:
            label = f"device {device.id}" if device.rank is None else f"rank {device.rank}"
            if device.rank is not None and len(result.devices) > 1:
                label += f", device {device.id}"
            bars.append(Bar(label, _floats(device.attribution_ns), "window"))
    return bars


def attribution_figure(d: Diagnosis) -> Figure | None:
    """The main bar chart; None without device time."""
    bars = phase_bars(d)
    return stacked(bars, "time", "Where the time went", _title(bars)) if bars else None


def attribution_figure_table(d: Diagnosis) -> Table | None:
    """The table of the main bar chart alone, for writers without charts."""
    bars = phase_bars(d)
    if not bars:
        return None
    unit = time_unit([bar.total for bar in bars])
    return _table(bars, _used(bars), unit.name, unit.scale, f"{unit.name} per {bars[0].per}")


def devices_figure(d: Diagnosis) -> Figure | None:
    """Devices or ranks side by side; None for a single device."""
    bars = device_bars(d)
    if len(bars) < 2:
        return None
    longest = max(bars, key=lambda bar: bar.total)
    shortest = min(bars, key=lambda bar: bar.total)
    unit = time_unit([longest.total])
    low, high = unit.text(shortest.total), unit.text(longest.total)
    span = f"Windows of {low} ({shortest.label}) to {high} {unit.name} ({longest.label})"
    windows = f"Every window is {high} {unit.name}" if low == high else span
    title = f"{windows}; {_largest_difference(bars)}"
    return stacked(bars, "devices", "Devices side by side", title)


def _floats(attribution: Attribution) -> dict[str, float]:
    return {bucket: float(ns) for bucket, ns in attribution.items()}


def _title(bars: list[Bar]) -> str:
    findings = []
    for bar in sorted(bars, key=lambda b: -b.total)[:2]:
        seen = (
            {b: ns for b, ns in bar.attribution.items() if b != "unobserved"}
            if bar.observed
            else bar.attribution
        )
        bucket, ns = max(seen.items(), key=lambda item: item[1])
        unit = time_unit([bar.total])
        name = bar.label.split(" × ")[0]
        of = f"{unit.text(bar.observed or bar.total)} {unit.name}" + (
            " observed" if 0 < bar.observed < bar.total else ""
        )
        findings.append(f"{name}: {unit.text(ns)} of {of} ({bar.share(bucket)}) {BUCKET[bucket].finding}")
    text = "; ".join(findings)
    return text[0].upper() + text[1:]


def _largest_difference(bars: list[Bar]) -> str:
    def spread(bucket: str) -> float:
        values = [bar.attribution.get(bucket, 0.0) for bar in bars]
        return max(values) - min(values)

    bucket = max(BUCKET, key=spread)
    unit = time_unit([spread(bucket)])
    return f"they differ most in {bucket_label(bucket)} (by {unit.text(spread(bucket))} {unit.name})"


def stacked(bars: list[Bar], id_: str, name: str, title: str) -> Figure:
    """The figure of any list of bars that share one scale."""
    unit = time_unit([bar.total for bar in bars])
    used = _used(bars)
    scale = max(bar.total for bar in bars) / unit.scale
    parts = [part for bar in bars for part in _parts(bar, used, unit.scale)]
    numbers: Rows = [
        {**part, "number": sig3(part["value"]), "middle": (part["x"] + part["x2"]) / 2}
        for part in parts
        if part["x2"] - part["x"] >= _LABEL_SHARE * scale
    ]
    axis = f"{unit.name} per {bars[0].per}"
    height = 34 * len(bars) + 52
    with drawing() as alt:
        y = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=150))
        rectangles = (
            alt.Chart(alt.NamedData("parts"))
            .mark_bar(stroke=FOREGROUND, strokeWidth=0.7, height={"band": 0.72})
            .encode(
                x=alt.X("x:Q", title=axis, scale=alt.Scale(domain=[0, scale], nice=False)),
                x2=alt.X2("x2:Q"),
                y=y,
                color=alt.Color("fill:N", scale=None, legend=None),
                tooltip=[
                    alt.Tooltip("row:N", title="bar"),
                    alt.Tooltip("label:N", title="bucket"),
                    alt.Tooltip("value:Q", title=axis, format=".3~r"),
                    alt.Tooltip("share:Q", title="share", format=".1%"),
                ],
            )
        )
        layers = [rectangles]
        if numbers:
            layers.append(
                alt.Chart(alt.NamedData("numbers"))
                .mark_text(fontWeight=600, fontSize=11, stroke=None)
                .encode(
                    x=alt.X("middle:Q"),
                    y=y,
                    text=alt.Text("number:N"),
                    color=alt.Color("ink:N", scale=None, legend=None),
                )
            )
        spec = finish(alt.layer(*layers), height, parts=parts, numbers=numbers)
    return Figure(
        id=id_,
        title=title,
        alt=f"{name}. Stacked bars in {axis}. {_describe(bars)}",
        height=height,
        spec=spec,
        table=_table(bars, used, unit.name, unit.scale, axis),
        legend=bucket_legend(used),
    )


def _parts(bar: Bar, used: list[str], scale: float) -> Rows:
    """The buckets of one bar as stretches from `x` to `x2`, in units of `scale` nanoseconds."""
    parts: Rows = []
    end = 0.0
    total = sum(bar.attribution.get(bucket, 0.0) for bucket in used)
    for bucket in used:
        value = bar.attribution.get(bucket, 0.0)
        if value <= 0:
            continue
        start, end = end, end + value / scale
        style = BUCKET[bucket]
        parts.append({
            "row": clean(bar.label), "bucket": bucket, "value": significant(value / scale, 6),
            "x": significant(start, 6), "x2": significant(end, 6), "share": significant(value / total, 6),
            "fill": style.fill, "ink": style.ink, "label": style.label,
        })  # fmt: skip
    return parts


def _used(bars: list[Bar]) -> list[str]:
    """Buckets that any bar has time in, in the fixed order."""
    return [bucket for bucket in BUCKET if any(bar.attribution.get(bucket) for bar in bars)]


def bucket_legend(used: list[str]) -> list[Swatch]:
    """Legend entries of these buckets in the fixed order."""
    return [
        Swatch(BUCKET[b].color, BUCKET[b].label, hatch=b if BUCKET[b].hatched else None)
        for b in BUCKET
        if b in used
    ]


def _describe(bars: list[Bar]) -> str:
    sentences = []
    for bar in bars[:16]:
        unit = time_unit([bar.total])
        parts = sorted(((ns, b) for b, ns in bar.attribution.items() if ns > 0), reverse=True)[:4]
        listed = ", ".join(f"{bucket_label(b)} {unit.text(ns)}" for ns, b in parts)
        sentences.append(f"{clean(bar.label)}: {unit.text(bar.total)} {unit.name}, of which {listed}.")
    return " ".join(sentences)


def _table(bars: list[Bar], used: list[str], unit: str, scale: float, axis: str) -> Table:
    columns = [Column("bucket", numeric=False)]
    for bar in bars:
        columns += [Column(clean(bar.label), unit, "measured"), Column("share", "%", "measured")]
    rows = []
    for bucket in used:
        row = [bucket_label(bucket)]
        for bar in bars:
            ns = bar.attribution.get(bucket, 0.0)
            row += [sig3(ns / scale), bar.share(bucket).removesuffix(" %")]
        rows.append([*row, BUCKET[bucket].meaning])
    total = ["total"]
    for bar in bars:
        total += [sig3(bar.total / scale), "100"]
    columns.append(Column("meaning", numeric=False))
    total.append("every nanosecond of it is in exactly one bucket")
    return Table(f"Time by bucket, {axis}", columns, [*rows, total])
