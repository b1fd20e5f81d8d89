"""Where the device's memory goes: a waterfall from nothing to the whole device, the KV pool among its
parts."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import (
    BACKGROUND,
    FOREGROUND,
    MUTED,
    Column,
    Figure,
    Rows,
    Table,
    drawing,
    finish,
    significant,
)
from diagnose.reports.numbers import byte_size, percent, sig3
from diagnose.reports.text import shorten

_GB = 1e9
_KV = "#0072B2"
_PART = "#56B4E9"
_FREE = "#D9D9D9"


def parts_of(memory: dict[str, Any] | None) -> list[tuple[str, float, str | None]]:
    """(name, bytes, provenance) in order: from `parts`, else from every `*_bytes` key but the total."""
    if not memory:
        return []
    listed = memory.get("parts")
    if isinstance(listed, list):
        return [
            (str(p.get("name")), float(p["bytes"]), p.get("provenance"))
            for p in listed
            if isinstance(p, dict) and isinstance(p.get("bytes"), int | float)
        ]
    skip = {"total_bytes", "device_bytes"}
    return [
        (key.removesuffix("_bytes").replace("_", " "), float(value), memory.get("provenance"))
        for key, value in memory.items()
        if key.endswith("_bytes") and key not in skip and isinstance(value, int | float)
    ]


def memory_figure(d: Diagnosis) -> Figure | None:
    """The waterfall; None when the result holds no memory budget."""
    parts = [part for part in parts_of(d.memory) if part[1] > 0]
    if not parts:
        return None
    rows: Rows = []
    end = 0.0
    for name, size, _ in parts:
        start, end = end, end + size / _GB
        fill = _KV if "kv" in name.lower() else _FREE if name.lower() == "free" else _PART
        rows.append({
            "part": shorten(name, 40), "gb": significant(size / _GB, 5), "fill": fill, "x": significant(start, 5),
            "x2": significant(end, 5), "text": sig3(size / _GB),
        })  # fmt: skip
    total = (d.memory or {}).get("total_bytes")
    whole = float(total) if isinstance(total, int | float) and total else sum(size for _, size, _ in parts)
    height = 30 * len(parts) + 56
    top = max(whole, sum(size for _, size, _ in parts)) / _GB * 1.08
    with drawing() as alt:
        base = alt.Chart(alt.NamedData("parts"))
        y = alt.Y("part:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=150))
        spec = finish(
            alt.layer(
                base.mark_bar(stroke=BACKGROUND, height={"band": 0.7}).encode(
                    x=alt.X("x:Q", title="GB of device memory", scale=alt.Scale(domain=[0, top], nice=False)),
                    x2=alt.X2("x2:Q"),
                    y=y,
                    color=alt.Color("fill:N", scale=None, legend=None),
                    tooltip=[alt.Tooltip("part:N"), alt.Tooltip("gb:Q", title="GB", format=".3~r")],
                ),
                base.mark_text(align="left", dx=4, fontSize=11, color=FOREGROUND).encode(
                    x=alt.X("x2:Q"), y=y, text="text:N"
                ),
                alt.Chart(alt.NamedData("whole"))
                .mark_rule(color=MUTED, strokeDash=[5, 4])
                .encode(x=alt.X("x:Q")),
            ),
            height,
            parts=rows,
            whole=[{"x": whole / _GB}],
        )
    kv = sum(size for name, size, _ in parts if "kv" in name.lower())
    of = byte_size(whole) if total else f"{byte_size(whole)} that are known"
    if kv:
        title = f"The KV pool gets {byte_size(kv)} of {of} ({percent(kv / whole)})"
    else:
        name, size, _ = max(parts, key=lambda part: part[1])
        known = shorten(name, 40)
        title = f"{known[0].upper()}{known[1:]}: {byte_size(size)} of {of} ({percent(size / whole)}); KV pool unknown"
    return Figure(
        id="memory-chart",
        title=title,
        alt="Waterfall of device memory: "
        + ", ".join(f"{name} {byte_size(size)}" for name, size, _ in parts)
        + ".",
        height=height,
        spec=spec,
        table=Table(
            "Device memory",
            [
                Column("part", numeric=False),
                Column("size", "GB"),
                Column("share", "%"),
                Column("origin", numeric=False),
            ],
            [
                [
                    shorten(name, 60),
                    sig3(size / _GB),
                    percent(size / whole).removesuffix(" %"),
                    origin or "unknown",
                ]
                for name, size, origin in parts
            ],
        ),
        note=f"The dashed line is the whole device, {byte_size(whole)}."
        if total
        else "The device's size is unknown: it needs --device, or a trace. The dashed line is the sum of what is known.",
    )
