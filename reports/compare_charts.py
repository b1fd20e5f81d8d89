"""Charts of a comparison: every metric with its interval, time per unit on both sides, what moved, and the what-if curve."""

from __future__ import annotations

from typing import Any

from diagnose.reports.charts.attribution import Bar, stacked
from diagnose.reports.charts.figure import (
    ACCENT,
    FOREGROUND,
    MUTED,
    Column,
    Figure,
    Swatch,
    Table,
    drawing,
    finish,
)
from diagnose.reports.compare_tables import metric_table, role_table
from diagnose.reports.compare_view import VERDICT, delta_title, mark, role_label
from diagnose.reports.numbers import count, sig3, time_unit
from diagnose.reports.text import clean
from diagnose.reports.words import BUCKET
from diagnose.settle import say
from diagnose.settle.comparison import Comparison, Delta

# Page colours that keep their contrast in both schemes; the sign beside them says the same.
_INK = {
    "improved": "var(--good)",
    "regressed": "var(--bad)",
    "withheld": MUTED,
    "inconclusive": MUTED,
    "no_change": FOREGROUND,
}
_SHAPES = ["triangle-left", "triangle-right", "square", "circle", "diamond"]
_POINTS = ["before, measured", "after, measured"]
_FLOOR = 5.0
_WIDEST = 120.0
_PARTS = 12
_VISIBLE = 0.001  # of the unit; what is smaller is summed up in one bar


def metrics_figure(c: Comparison) -> Figure | None:
    """Relative change of every metric with its 95 % interval, worse to the right whatever the metric; None without metrics."""
    import polars as pl

    listed = sorted((m for m in c.metrics if m.change is not None), key=lambda m: not m.headline)
    if not listed:
        return None
    rows: list[dict[str, Any]] = []
    for m in listed:
        # A higher throughput is drawn to the left, so that right is worse in every row.
        sign = -100.0 if m.better == "higher" else 100.0
        ends = [None if v is None else sign * v for v in (m.low, m.high)]
        low, high = (None, None) if None in ends else sorted(e for e in ends if e is not None)
        value = sign * (m.change or 0.0)
        rows.append({
            "row": clean(say.metric(m)) + (" (higher is better)" if m.better == "higher" else ""), "x": _clip(value),
            "low": None if low is None else _clip(low), "high": None if high is None else _clip(high), "ink": _INK.get(m.verdict, MUTED),
            "label": f"{VERDICT[m.verdict][0]} {say.pct(m.change)}", "verdict": mark(m.verdict), "headline": m.headline,
        })  # fmt: skip
    frame = pl.DataFrame(rows, schema_overrides={"low": pl.Float64, "high": pl.Float64}).with_columns(
        pl.col("x", "low", "high").round(3)
    )
    reached = [abs(float(v)) for r in rows for v in (r["x"], r["low"], r["high"]) if v is not None]
    reach = max(8.0, *reached) * 1.1
    height = 30 * len(rows) + 56
    with drawing() as alt:
        x = alt.X(
            "x:Q", title="change, % (right: worse)", scale=alt.Scale(domain=[-reach, reach], nice=False)
        )
        y = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=210))
        base = alt.Chart(frame)
        ink = alt.Color("ink:N", scale=None, legend=None)
        band = alt.Chart(pl.DataFrame({"low": [-_FLOOR], "high": [_FLOOR]}))
        layers = [
            band.mark_rect(color=MUTED, opacity=0.14).encode(x=alt.X("low:Q", scale=alt.Scale(domain=[-reach, reach], nice=False)), x2="high:Q"),
            alt.Chart(pl.DataFrame({"zero": [0.0]})).mark_rule(color=FOREGROUND).encode(x="zero:Q"),
            base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3, opacity=0.55).encode(x="low:Q", x2="high:Q", y=y, color=ink),
            base.mark_point(filled=True, size=90, opacity=1).encode(
                x=x, y=y, color=ink, tooltip=[alt.Tooltip("row:N", title="metric"), alt.Tooltip("label:N", title="change"), "verdict:N"],
                shape=alt.Shape("verdict:N", scale=alt.Scale(domain=[mark(v) for v in _INK], range=_SHAPES), legend=None),
            ),
            base.mark_text(dy=-11, fontSize=11, fontWeight=600).encode(x=x, y=y, text="label:N", color=ink),
        ]  # fmt: skip
        spec = finish(alt.layer(*layers), height)
    used = dict.fromkeys(m.verdict for m in listed)
    legend = [Swatch(_INK[v], mark(v), "dot") for v in _INK if v in used]
    legend.append(Swatch("var(--grid)", "5 %: what one run a side cannot tell"))
    return Figure(
        id="metrics", title=_metrics_title(c), alt=_metrics_alt(c), height=height, spec=spec, table=metric_table(c), legend=legend,
        note="An interval that reaches beyond the axis is cut at its edge; the table has its ends." if max(reached) >= _WIDEST else "",
    )  # fmt: skip


def _clip(value: float) -> float:
    return max(-_WIDEST, min(_WIDEST, value))


def _metrics_title(c: Comparison) -> str:
    heads = [m for m in c.metrics if m.headline] or c.metrics
    moved = sorted(heads, key=lambda m: (m.verdict not in ("improved", "regressed"), -abs(m.change or 0)))
    text = "; ".join(f"{say.metric(m)} {say.pct(m.change)}, {VERDICT[m.verdict][1]}" for m in moved[:3])
    return text[0].upper() + text[1:]


def _metrics_alt(c: Comparison) -> str:
    return " ".join(f"{clean(say.metric(m))}: {say.values(m)}, {VERDICT[m.verdict][1]}." for m in c.metrics)


def sides_figure(d: Delta, at: int) -> Figure | None:
    """Time per unit of both sides by bucket, on one scale; None without attributed time."""
    if not any(d.buckets_before.values()) and not any(d.buckets_after.values()):
        return None
    bars = [
        Bar("before", {b: float(v) for b, v in d.buckets_before.items()}, d.unit),
        Bar("after", {b: float(v) for b, v in d.buckets_after.items()}, d.unit),
    ]
    title = f"{say.pair(d.before_ns, d.after_ns)} per {d.unit} ({say.pct(d.total_ns / d.before_ns if d.before_ns else None)})"
    return stacked(bars, f"sides-{at}", f"Time per {d.unit} before and after", title)


def delta_figure(d: Delta, at: int) -> Figure | None:
    """What moved, part by part, largest first; None where nothing did."""
    import polars as pl

    moved = [r for r in d.roles if abs(r.change_ns) >= _VISIBLE * d.before_ns][:_PARTS] or [
        r for r in d.roles if r.change_ns
    ][:3]
    if not moved or not d.before_ns:
        return None
    unit = time_unit([r.change_ns for r in moved])
    rest = d.total_ns - sum(r.change_ns for r in moved)
    rows: list[dict[str, Any]] = [
        {
            "row": clean(role_label(r.role)),
            "x": r.change_ns / unit.scale,
            "fill": _fill(r.role, r.kind),
            "label": say.signed_time(r.change_ns),
        }
        for r in moved
    ]
    if abs(rest) >= _VISIBLE * d.before_ns:
        rows.append(
            {"row": "other parts", "x": rest / unit.scale, "fill": MUTED, "label": say.signed_time(rest)}
        )
    frame = pl.DataFrame(rows).with_columns(
        pl.col("x").round_sig_figs(6), side=pl.when(pl.col("x") >= 0).then(0.0).otherwise(0.0)
    )
    values = [float(r["x"]) for r in rows]
    span = max(0.0, *values) - min(0.0, *values)
    # Room for the label on whichever side a bar points to.
    low, high = min(0.0, *values) - 0.16 * span, max(0.0, *values) + 0.16 * span
    height = 26 * len(rows) + 52
    with drawing() as alt:
        x = alt.X(
            "x:Q",
            title=f"change, {unit.name} per {d.unit} (right: longer)",
            scale=alt.Scale(domain=[low, high], nice=False),
        )
        y = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=190))
        base = alt.Chart(frame)
        bars = base.mark_bar(stroke=FOREGROUND, strokeWidth=0.7, height={"band": 0.7}).encode(
            x=x, x2="side:Q", y=y, color=alt.Color("fill:N", scale=None, legend=None),
            tooltip=[alt.Tooltip("row:N", title="part"), alt.Tooltip("label:N", title="change")],
        )  # fmt: skip
        right = (
            base.transform_filter("datum.x >= 0")
            .mark_text(align="left", dx=5, fontSize=11, color=FOREGROUND)
            .encode(x=x, y=y, text="label:N")
        )
        left = (
            base.transform_filter("datum.x < 0")
            .mark_text(align="right", dx=-5, fontSize=11, color=FOREGROUND)
            .encode(x=x, y=y, text="label:N")
        )
        zero = alt.Chart(pl.DataFrame({"zero": [0.0]})).mark_rule(color=FOREGROUND).encode(x="zero:Q")
        spec = finish(alt.layer(bars, zero, right, left), height)
    alt_text = f"Change of time per {d.unit} by part. " + " ".join(f"{r['row']} {r['label']}." for r in rows)
    return Figure(
        id=f"delta-{at}", title=delta_title(d), alt=alt_text, height=height, spec=spec, table=role_table(d)
    )


def _fill(role: str, kind: str) -> str:
    if role in BUCKET:
        return BUCKET[role].color
    return {"communication": BUCKET["communication"].color, "copy": BUCKET["copy"].color}.get(kind, ACCENT)


def what_if_figure(c: Comparison) -> Figure | None:
    """The before-run's curve of step time over batch with both measured points; None without one."""
    import polars as pl

    w = (c.batching or {}).get("what_if")
    if not w or len(w["curve"]) < 2:
        return None
    curve = pl.DataFrame(w["curve"]).with_columns(pl.exclude("batch").round_sig_figs(5))
    points = [{"batch": w["before"]["batch"], "y": w["before"]["step_ms"], "what": "before, measured"}]
    if w["step_ms_measured"] is not None:
        points.append({"batch": w["batch"], "y": w["step_ms_measured"], "what": "after, measured"})
    height = 260
    with drawing() as alt:
        x = alt.X(
            "batch:Q", title="batch, sequences", scale=alt.Scale(type="log", base=2, nice=False, padding=24)
        )
        base = alt.Chart(curve)
        dots = alt.Chart(pl.DataFrame(points))
        layers = [
            base.mark_area(opacity=0.2, color=ACCENT).encode(x=x, y=alt.Y("step_ms_low:Q", title="ms per step"), y2="step_ms_high:Q"),
            base.mark_line(color=ACCENT).encode(x=x, y="step_ms:Q"),
            dots.mark_point(filled=True, size=110, color=FOREGROUND, opacity=1).encode(
                x=x, y="y:Q", tooltip=["what:N", "batch:Q", "y:Q"],
                shape=alt.Shape("what:N", scale=alt.Scale(domain=_POINTS, range=["circle", "diamond"]), legend=None),
            ),
            dots.mark_text(align="left", dx=9, dy=-7, fontSize=11, color=FOREGROUND).encode(x=x, y="y:Q", text="what:N"),
        ]  # fmt: skip
        spec = finish(alt.layer(*layers), height)
    table = [
        [
            sig3(r["batch"]),
            sig3(r["step_ms"]),
            sig3(r["step_ms_low"]),
            sig3(r["step_ms_high"]),
            sig3(r["tok_s"]),
        ]
        for r in w["curve"]
    ]
    columns = [
        Column("batch"),
        *(
            Column(n, u, "derived")
            for n, u in (("step", "ms"), ("low", "ms"), ("high", "ms"), ("throughput", "tokens/s"))
        ),
    ]
    real = w["step_ms_measured"]
    found = (
        "was not measured"
        if real is None
        else f"is {sig3(real)} ms, {'inside' if w['inside'] else 'outside'} the predicted {sig3(w['step_ms_low'])}–{sig3(w['step_ms_high'])} ms"
    )
    title = f"The step at batch {count(w['batch'])} {found}"
    return Figure(
        id="batch-curve", title=title, alt=f"Step time over batch as predicted from the before-run. {title}.", height=height, spec=spec,
        table=Table("Predicted step time by batch", columns, table), legend=[Swatch("var(--accent)", "predicted from the before-run, with its range", "line")],
    )  # fmt: skip
