"""The step on other devices: what stays, what scales with a roof, and how sure that is."""

from __future__ import annotations

import re
from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import (
    ACCENT,
    BACKGROUND,
    FOREGROUND,
    Column,
    Figure,
    Swatch,
    Table,
    drawing,
    finish,
)
from diagnose.reports.numbers import sig3
from diagnose.reports.text import clean, sentence, shorten
from diagnose.reports.words import is_alone, phase_name

_KEPT = "#D9D9D9"
_DOUBT = "#56B4E9"
REMINDER = (
    "More bandwidth helps only the time spent at the memory roof: the same kernels gained 0–4 % in host-bound serving from "
    "1.43 × the bandwidth (H100 to H200, equal batch)"
)


def other_device_figures(d: Diagnosis) -> list[Figure]:
    """A figure a phase; rows are `{phase, device, device_here, step_ms_here, step_ms: [low, high], speedup, kept_ms, …}`."""
    by_phase: dict[str, list[dict[str, Any]]] = {}
    for row in d.what_if_devices:
        if isinstance(row.get("step_ms"), list) and isinstance(row.get("step_ms_here"), int | float):
            by_phase.setdefault(str(row.get("phase")), []).append(row)
    return [_figure(phase, rows, is_alone(d)) for phase, rows in by_phase.items()]


def _figure(phase: str, rows: list[dict[str, Any]], alone: bool) -> Figure:
    import polars as pl

    here = float(rows[0]["step_ms_here"])
    name_here = shorten(rows[0].get("device_here") or "this device", 34)
    kept = float(rows[0].get("kept_ms") or 0.0)
    bars: list[tuple[str, str, float, float]] = [
        (f"{name_here} (now)", _KEPT, 0.0, kept),
        (f"{name_here} (now)", ACCENT, kept, here),
    ]
    for row in rows:
        low, high = (float(v) for v in row["step_ms"])
        name = shorten(row.get("device"), 34)
        bars += [(name, _KEPT, 0.0, kept), (name, ACCENT, kept, low), (name, _DOUBT, low, high)]
    frame = pl.DataFrame(
        [bar for bar in bars if bar[3] > bar[2]], schema=["device", "fill", "x", "x2"], orient="row"
    ).with_columns(pl.col("x", "x2").round_sig_figs(5))
    height = 34 * (len(rows) + 1) + 52
    labels = pl.DataFrame(
        {
            "device": [f"{name_here} (now)", *(shorten(r.get("device"), 34) for r in rows)],
            "x": [here, *(float(r["step_ms"][1]) for r in rows)],
            "text": [sig3(here), *(_span(r["step_ms"]) for r in rows)],
        }
    )
    top = max(here, *(float(r["step_ms"][1]) for r in rows)) * 1.16
    with drawing() as alt:
        y = alt.Y("device:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=200))
        spec = finish(
            alt.layer(
                alt.Chart(frame)
                .mark_bar(stroke=BACKGROUND, height={"band": 0.65})
                .encode(
                    x=alt.X("x:Q", title="ms per step", scale=alt.Scale(domain=[0, top], nice=False)),
                    x2=alt.X2("x2:Q"),
                    y=y,
                    color=alt.Color("fill:N", scale=None, legend=None),
                ),
                alt.Chart(labels)
                .mark_text(align="left", dx=5, fontSize=11, color=FOREGROUND)
                .encode(x=alt.X("x:Q"), y=y, text="text:N"),
            ),
            height,
        )
    first = rows[0]
    subject = clean(phase_name(phase, alone))
    title = f"{subject[0].upper()}{subject[1:]} on {clean(first.get('device'))}: {sig3(here)} ms become {_span(first['step_ms'])} ms a step"
    if first.get("speedup"):
        title += f", {_span(first['speedup'])} ×"
    priced = any(r.get("tokens_per_price") for r in rows)
    columns = [
        Column("device", numeric=False), Column("step", "ms", "derived"), Column("speed-up", "×", "derived"), Column("kept", "ms", "derived"),
        Column("bandwidth", "×", "assumed"), Column("memory", "×", "assumed"), Column("throughput", "tokens/s", "derived"),
        *([Column("tokens a unit of price", "", "derived")] if priced else []),
    ]  # fmt: skip
    table = [
        [
            shorten(r.get("device"), 60), _span(r["step_ms"]), _span(r.get("speedup")), sig3(r.get("kept_ms")),
            sig3(r.get("bandwidth_ratio")), sig3(r.get("memory_ratio")), _span(r.get("tok_s")),
            *([_span(r.get("tokens_per_price"))] if priced else []),
        ]
        for r in rows
    ]  # fmt: skip
    conditions = "; ".join(dict.fromkeys(clean(c) for r in rows for c in r.get("conditions") or []))
    return Figure(
        id=f"other-device-{re.sub(r'[^a-z0-9]+', '-', phase.lower())}",
        title=title,
        alt=f"Bars of the step in ms. Now {sig3(here)}, of which {sig3(kept)} stay. "
        + " ".join(f"{clean(r.get('device'))}: {_span(r['step_ms'])}." for r in rows),
        height=height,
        spec=spec,
        table=Table(f"The {subject} step on other devices", columns, table),
        legend=[
            Swatch(_KEPT, "kept: gaps, floors, links, no cost model"),
            Swatch("var(--accent)", "scales with a roof, at best"),
            Swatch(_DOUBT, "may scale or not"),
        ],
        note=sentence(f"Holds for: {conditions}") + " " + sentence(REMINDER),
    )


def _span(pair: Any) -> str:
    """`7.1–7.4` of a [low, high] in either order."""
    if not isinstance(pair, list) or len(pair) != 2:
        return "unknown"
    low, high = sorted(float(v) for v in pair)
    return sig3(low) if sig3(low) == sig3(high) else f"{sig3(low)}–{sig3(high)}"
