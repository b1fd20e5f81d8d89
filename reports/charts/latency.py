"""Latency as the serving evidence gives it: percentiles, distributions where the source has them, and the
split."""

from __future__ import annotations

import math
from typing import Any

from diagnose.contract import Diagnosis
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
)
from diagnose.reports.numbers import count, percent, sig3
from diagnose.reports.text import clean
from diagnose.reports.words import words

METRICS = {
    "ttft_ms": "time to first token",
    "itl_ms": "inter-token latency",
    "tpot_ms": "time per output token",
    "e2e_ms": "end to end",
    "queue_ms": "queueing",
}
_QUANTILES = ("p25", "p50", "p75", "p90", "p95", "p99")
# Parts of a split have no bucket; Okabe-Ito in a fixed order, apart from the bucket colours only by context
# and label.
_PARTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def summaries(d: Diagnosis) -> list[tuple[str, dict[str, Any]]]:
    """(name, statistics in ms) of each latency metric that the result holds, in a fixed order."""
    latency = d.latency or {}
    return [(name, latency[key]) for key, name in METRICS.items() if isinstance(latency.get(key), dict)]


def latency_figure(d: Diagnosis) -> Figure | None:
    """Median, p90 and p99 of each metric on one logarithmic millisecond scale."""
    found = [(name, stats) for name, stats in summaries(d) if (_number(stats.get("p50")) or 0) > 0]
    if not found:
        return None
    points: Rows = [
        {"metric": name, "quantile": q, "value": value}
        for name, stats in found
        for q in _QUANTILES
        if (value := _number(stats.get(q))) is not None and value > 0
    ]
    values = {name: [p["value"] for p in points if p["metric"] == name] for name, _ in found}
    ranges: Rows = [{"metric": name, "low": min(v), "high": max(v)} for name, v in values.items()]
    height = 38 * len(found) + 52
    # Only the median and p99 are labelled, outwards: labels between them would lie on each other.
    labels = [p for p in points if p["quantile"] in ("p50", "p99")]
    least, most = min(p["value"] for p in points), max(p["value"] for p in points)
    with drawing() as alt:
        y = alt.Y("metric:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=140))
        x = log_axis(alt, alt.X, "value:Q", "milliseconds, log scale", least / 2.5, most * 2.5)
        dots = alt.Chart(alt.NamedData("points"))
        texts = alt.Chart(alt.NamedData("labels")).transform_calculate(
            label="datum.quantile + ' ' + format(datum.value, ',.3~r')"
        )
        spec = finish(
            alt.layer(
                alt.Chart(alt.NamedData("ranges"))
                .mark_rule(color=MUTED, strokeWidth=2)
                .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), y=y),
                dots.mark_circle(size=90, opacity=1, stroke=BACKGROUND, color=ACCENT).encode(
                    x=x,
                    y=y,
                    tooltip=[
                        alt.Tooltip("metric:N"),
                        alt.Tooltip("quantile:N"),
                        alt.Tooltip("value:Q", title="ms", format=".3~r"),
                    ],
                ),
                *(
                    texts.transform_filter(alt.datum.quantile == q)
                    .mark_text(align=align, dx=dx, fontSize=11, color=FOREGROUND)
                    .encode(x=x, y=y, text=alt.Text("label:N"))
                    for q, align, dx in (("p50", "right", -9), ("p99", "left", 9))
                ),
            ),
            height,
            points=points,
            labels=labels,
            ranges=ranges,
        )
    provenance = (d.latency or {}).get("provenance")
    columns = [Column("metric", numeric=False), Column("requests"), Column("mean", "ms", provenance)]
    known = [q for q in _QUANTILES if any(_number(stats.get(q)) is not None for _, stats in found)]
    columns += [Column(q, "ms", provenance) for q in known]
    rows = [
        [name, count(stats.get("count")), sig3(_number(stats.get("mean")))]
        + [sig3(_number(stats.get(q))) for q in known]
        for name, stats in found
    ]
    name, stats = found[0]
    title = f"Median {name} {sig3(_number(stats['p50']))} ms"
    if _number(stats.get("p99")):
        ratio = float(stats["p99"]) / float(stats["p50"])
        title += f"; p99 {sig3(_number(stats['p99']))} ms, {sig3(ratio)} × the median"
    return Figure(
        id="latency-chart",
        title=title,
        alt="Percentiles on a logarithmic scale. "
        + " ".join(
            f"{n}: p50 {sig3(_number(s.get('p50')))} ms, p99 {sig3(_number(s.get('p99')))} ms."
            for n, s in found
        ),
        height=height,
        spec=spec,
        table=Table("Latency percentiles", columns, rows),
    )


def distribution_figures(d: Diagnosis) -> list[Figure]:
    """A histogram of each metric whose source holds a distribution (`histogram`: low, high in ms, count)."""
    figures: list[Figure] = []
    for name, stats in summaries(d):
        bins = [b for b in stats.get("histogram") or [] if isinstance(b, dict)]
        closed = [b for b in bins if b.get("high") is not None]
        if len(closed) >= 2 and any(int(b["count"]) for b in closed):
            figures.append(_distribution(len(figures), name, stats, bins, closed))
    return figures


def _ratio_axis(alt: Any, title: str, low: float, high: float) -> Any:
    """A logarithmic axis from `low` to `high` with labels at 1, 2 and 5 of each decade, fewer where there are many decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    values = [v for k in decades for s in steps if low <= (v := s * 10.0**k) <= high]
    scale = alt.Scale(type="log", nice=False, domain=[low, high])
    return alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(values=values, format=",~g"))


def _distribution(
    index: int, name: str, stats: dict[str, Any], bins: list[dict[str, Any]], closed: list[dict[str, Any]]
) -> Figure:
    """Shares by the width of their bin, so that wide buckets do not look full. A scale of ratios where the bins span more than
    threefold; a first bin from 0 is then drawn from half its end."""
    import polars as pl

    total = sum(int(b["count"]) for b in bins)
    beyond = total - sum(int(b["count"]) for b in closed)
    lows = [float(b["low"]) or float(b["high"]) / 2 for b in closed]
    highs = [float(b["high"]) for b in closed]
    frame = pl.DataFrame(
        {"low": lows, "high": highs, "count": [int(b["count"]) for b in closed]},
    )
    wide = lows[0] > 0 and highs[-1] / lows[0] > 3
    if not wide:
        frame = frame.with_columns(low=pl.Series([float(b["low"]) for b in closed]))
    width = (pl.col("high") / pl.col("low")).log10() * 20 if wide else pl.col("high") - pl.col("low")
    frame = frame.with_columns(density=100 * pl.col("count") / total / width)
    tallest = max(closed, key=lambda b: int(b["count"]))
    what = "gaps" if name == METRICS["itl_ms"] else "requests"
    with drawing() as alt:
        x: Any = (
            _ratio_axis(alt, f"{name}, ms, log scale", lows[0], highs[-1])
            if wide
            else alt.X("low:Q", title=f"{name}, ms", scale=alt.Scale(zero=False, nice=False))
        )
        spec = finish(
            alt.Chart(frame.with_columns(pl.col("density").round_sig_figs(4)))
            .mark_rect(color=ACCENT, stroke=BACKGROUND)
            .encode(
                x=x,
                x2=alt.X2("high:Q"),
                y=alt.Y("density:Q", title=f"% of {what} per {'1.12 ×' if wide else 'ms'}"),
                y2=alt.datum(0),
                tooltip=[alt.Tooltip("low:Q"), alt.Tooltip("high:Q"), alt.Tooltip("count:Q")],
            ),
            200,
        )
    source = clean(stats.get("source"))
    return Figure(
        id=f"distribution-{index}",
        title=f"{name[0].upper()}{name[1:]}: {percent(int(tallest['count']) / total)} of {total:,} {what} "
        f"lie between {sig3(float(tallest['low']))} and {sig3(float(tallest['high']))} ms",
        alt=f"Histogram of {name} over {total} observations in {len(closed)} bins"
        + (f", as the {source} saw it." if source else "."),
        height=200,
        spec=spec,
        table=Table(
            f"Distribution of {name}",
            [Column("from", "ms"), Column("to", "ms"), Column("count", provenance="measured")],
            [[sig3(float(b["low"])), sig3(b.get("high"), "no end"), count(int(b["count"]))] for b in bins],
        ),
        note=f"{count(beyond)} lie beyond the last bucket, above {sig3(highs[-1])} ms." if beyond else "",
    )


def split_figures(d: Diagnosis) -> list[Figure]:
    """Where each metric's time goes: one bar a metric (`split`: metric -> part -> ms), each on its own
    scale."""
    split = (d.latency or {}).get("split")
    if not isinstance(split, dict):
        return []
    figures: list[Figure] = []
    for metric, parts in split.items():
        values = {
            clean(words(part)): v for part, ms in (parts or {}).items() if (v := _number(ms)) is not None
        }
        if sum(values.values()) > 0:
            figures.append(_split_figure(len(figures), clean(words(metric)).upper(), values))
    return figures


def _split_figure(index: int, metric: str, values: dict[str, float]) -> Figure:
    total = sum(values.values())
    colours = [_PARTS[i % len(_PARTS)] for i in range(len(values))]
    rows: Rows = []
    end = 0.0
    for colour, (part, ms) in zip(colours, values.items(), strict=True):
        start, end = end, end + ms
        rows.append({"part": part, "ms": ms, "fill": colour, "x": start, "x2": end, "row": metric})
    with drawing() as alt:
        spec = finish(
            alt.Chart(alt.NamedData("parts"))
            .mark_bar(stroke=BACKGROUND)
            .encode(
                x=alt.X("x:Q", title="milliseconds", scale=alt.Scale(domain=[0, total], nice=False)),
                x2=alt.X2("x2:Q"),
                y=alt.Y("row:N", title=None, axis=alt.Axis(ticks=False, domain=False)),
                color=alt.Color("fill:N", scale=None, legend=None),
                tooltip=[alt.Tooltip("part:N"), alt.Tooltip("ms:Q", format=".3~r")],
            ),
            92,
            parts=rows,
        )
    largest = max(values, key=values.__getitem__)
    return Figure(
        id=f"split-{index}",
        title=f"{metric}: {sig3(values[largest])} of {sig3(total)} ms "
        f"({percent(values[largest] / total)}) is {largest}",
        alt=f"Split of {metric}: " + ", ".join(f"{part} {sig3(ms)} ms" for part, ms in values.items()) + ".",
        height=92,
        spec=spec,
        table=Table(
            f"Split of {metric}",
            [Column("part", numeric=False), Column("time", "ms", "derived"), Column("share", "%", "derived")],
            [[part, sig3(ms), percent(ms / total).removesuffix(" %")] for part, ms in values.items()],
        ),
        legend=[Swatch(colour, part) for colour, part in zip(colours, values, strict=True)],
    )
