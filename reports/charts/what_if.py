"""What another batch would do: step time and tokens per second with their uncertainty, SLO and KV wall
marked."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import (
    ACCENT,
    FOREGROUND,
    MUTED,
    Column,
    Figure,
    Rows,
    Swatch,
    Table,
    drawing,
    finish,
    significant,
)
from diagnose.reports.numbers import count, percent, sig3
from diagnose.reports.text import clean

_CURVES = (
    ("step_ms", "step time", "ms per step"),
    ("itl_ms", "inter-token latency", "ms per token"),
    ("tok_s", "throughput", "tokens per second"),
)


def _value(row: dict[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def what_if_figures(d: Diagnosis) -> list[Figure]:
    """One figure a curve; rows are `{batch, step_ms, tok_s, *_low, *_high, kv_used_share, marks,
    slo_itl_ms}`."""
    rows = sorted((r for r in d.what_if if _value(r, "batch")), key=lambda r: float(r["batch"]))
    figures = []
    for key, name, unit in _CURVES:
        with_value = [r for r in rows if _value(r, key) is not None]
        if key == "itl_ms" and all(_value(r, key) == _value(r, "step_ms") for r in with_value):
            continue  # one token a step: the curve of the step time is this one
        if len(with_value) >= 2:
            figures.append(_figure(key, name, unit, with_value))
    return figures


def _marks(row: dict[str, Any]) -> str:
    """What lies at this batch, and which caps it is beyond: there the engine would not run it."""
    marks = [clean(m) for m in row.get("marks") or []]
    beyond = [clean(b) for b in row.get("beyond") or []]
    return ", ".join([*marks, *(f"beyond {b}" for b in beyond)])


def _figure(key: str, name: str, unit: str, rows: list[dict[str, Any]]) -> Figure:
    curve: Rows = [
        {
            "batch": float(r["batch"]),
            **{
                column: None if (v := _value(r, source)) is None else significant(v, 4)
                for column, source in (("y", key), ("low", f"{key}_low"), ("high", f"{key}_high"))
            },
        }
        for r in rows
    ]
    marks = [(float(r["batch"]), clean(m)) for r in rows for m in r.get("marks") or []]
    slo = (
        next((v for r in rows if (v := _value(r, "slo_itl_ms")) is not None), None)
        if key != "tok_s"
        else None
    )
    height = 260
    data: dict[str, Rows] = {"curve": curve}
    with drawing() as alt:
        x = alt.X("batch:Q", title="batch, sequences", scale=alt.Scale(type="log", base=2, nice=False))
        base = alt.Chart(alt.NamedData("curve"))
        layers: list[Any] = []
        if any(row["low"] is not None for row in curve):
            layers.append(
                base.mark_area(opacity=0.2, color=ACCENT).encode(
                    x=x, y=alt.Y("low:Q", title=unit), y2="high:Q"
                )
            )
        layers.append(
            base.mark_line(color=ACCENT, point={"filled": True, "size": 40, "color": ACCENT}).encode(
                x=x,
                y=alt.Y("y:Q", title=unit, scale=alt.Scale(zero=True)),
                tooltip=[
                    alt.Tooltip("batch:Q"),
                    alt.Tooltip("y:Q", title=unit, format=".3~r"),
                    alt.Tooltip("low:Q"),
                    alt.Tooltip("high:Q"),
                ],
            )
        )
        if marks:
            walls = alt.Chart(alt.NamedData("walls"))
            data["walls"] = [{"batch": b, "text": m, "slot": 18 + 14 * i} for i, (b, m) in enumerate(marks)]
            layers.append(walls.mark_rule(color=FOREGROUND, strokeDash=[4, 3]).encode(x=x))
            layers.append(
                walls.mark_text(align="right", dx=-4, fontSize=11, color=FOREGROUND).encode(
                    x=x, text=alt.Text("text:N"), y=alt.Y("slot:Q", scale=None)
                )
            )
        if slo is not None:
            line = alt.Chart(alt.NamedData("slo"))
            data["slo"] = [{"y": slo, "text": f"ITL SLO {sig3(slo)} ms"}]
            layers.append(line.mark_rule(color=MUTED, strokeDash=[2, 2]).encode(y=alt.Y("y:Q")))
            layers.append(
                line.mark_text(align="left", dy=-7, dx=4, fontSize=11, color=MUTED).encode(
                    y=alt.Y("y:Q"), x=alt.datum(float(rows[0]["batch"])), text="text:N"
                )
            )
        spec = finish(alt.layer(*layers), height, **data)
    first, last = rows[0], rows[-1]
    columns = [
        Column("batch"),
        Column(name, unit),
        Column("low", unit),
        Column("high", unit),
        Column("KV used", "%"),
        Column("mark", numeric=False),
    ]
    table = [
        [
            count(r["batch"]),
            sig3(_value(r, key)),
            sig3(_value(r, f"{key}_low")),
            sig3(_value(r, f"{key}_high")),
            percent(_value(r, "kv_used_share")).removesuffix(" %"),
            _marks(r),
        ]
        for r in rows
    ]
    return Figure(
        id=f"what-if-{key.replace('_', '-')}",
        title=f"{name[0].upper()}{name[1:]} goes from {sig3(_value(first, key))} "
        f"to {sig3(_value(last, key))} {unit} "
        f"between batch {count(first['batch'])} and {count(last['batch'])}",
        alt=f"Predicted {name} over batch. " + " ".join(f"{text} at batch {sig3(b)}." for b, text in marks),
        height=height,
        spec=spec,
        table=Table(f"Predicted {name} by batch", columns, table),
        legend=[Swatch("var(--accent)", f"predicted {name}, with its range", "line")],
    )
