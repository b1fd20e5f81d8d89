"""Hardware counters over the window, one figure a unit, a line a metric."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import Column, Figure, Rows, Swatch, Table, drawing, finish, significant
from diagnose.reports.numbers import count, sig3, time_unit
from diagnose.reports.text import clean, shorten

_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [12, 4])
_MAX_POINTS = 300
_HEIGHT = 220


def samples(d: Diagnosis) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """unit -> series -> (ns, value); rows are single samples (`ts_ns`, `value`) or series (`points`)."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    devices = {row.get("device") for row in d.counters}
    for row in d.counters:
        name = shorten(row.get("metric"), 60)
        if len(devices) > 1:
            name += f", device {clean(row.get('device'))}"
        series = found.setdefault(clean(row.get("unit") or ""), {}).setdefault(name, [])
        points: Any = row.get("points") or [(row.get("ts_ns"), row.get("value"))]
        series += [(int(ts), float(v)) for ts, v in points if ts is not None and v is not None]
    return found


def counter_figures(d: Diagnosis) -> list[Figure]:
    """A line chart for each unit; empty without counters."""
    figures: list[Figure] = []
    for unit, series in samples(d).items():
        drawn = {name: sorted(points) for name, points in series.items() if points}
        if drawn:
            few = dict(list(drawn.items())[: len(_LINES)])
            figures.append(_figure(len(figures), unit, few, len(drawn), _window(d, few)))
    return figures


def _window(d: Diagnosis, series: dict[str, list[tuple[int, float]]]) -> tuple[int, int]:
    """The timeline's window where there is one, so that both charts share their time axis; else the
    samples'."""
    if d.timeline:
        return min(s.start_ns for s in d.timeline), max(s.end_ns for s in d.timeline)
    return min(points[0][0] for points in series.values()), max(points[-1][0] for points in series.values())


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Means over equal runs of samples: a picked sample could hit or miss every peak."""
    every = max(1, len(points) // _MAX_POINTS)
    runs = (points[i : i + every] for i in range(0, len(points), every))
    return [(run[0][0], sum(value for _, value in run) / len(run)) for run in runs]


def _figure(
    index: int, unit: str, series: dict[str, list[tuple[int, float]]], available: int, window: tuple[int, int]
) -> Figure:
    """One unit's lines over the window."""
    start, end = window
    time = time_unit([end - start])
    domain = [0, max(end - start, 1) / time.scale]
    lines_of: dict[str, Rows] = {
        f"line{number}": [
            {"x": significant((ts - start) / time.scale, 5), "y": significant(value, 4), "metric": name, "stroke": _LINES[number]}
            for ts, value in _thinned(points)
        ]
        for number, (name, points) in enumerate(series.items())
    }  # fmt: skip
    labelled = unit or "value"
    with drawing() as alt:
        lines = []
        for number, rows in enumerate(lines_of):
            lines.append(
                alt.Chart(alt.NamedData(rows))
                .mark_line(color=_LINES[number], strokeDash=_DASHES[number], strokeWidth=1.6)
                .encode(
                    x=alt.X("x:Q", title=f"time, {time.name}", scale=alt.Scale(domain=domain, nice=False)),
                    y=alt.Y("y:Q", title=labelled, scale=alt.Scale(zero=True)),
                    tooltip=[
                        alt.Tooltip("metric:N"),
                        alt.Tooltip("x:Q", title=time.name),
                        alt.Tooltip("y:Q", title=labelled),
                    ],
                )
            )
        spec = finish(alt.layer(*lines), _HEIGHT, **lines_of)
    means = {name: sum(v for _, v in points) / len(points) for name, points in series.items()}
    top = max(means, key=means.__getitem__)
    return Figure(
        id=f"counters-{index}",
        title=f"{top} averages {sig3(means[top])} {unit}".strip(),
        alt="Counters over the window: "
        + ", ".join(f"{n} mean {sig3(m)} {unit}" for n, m in means.items())
        + ".",
        height=_HEIGHT,
        spec=spec,
        table=Table(
            "Counters over the window",
            [
                Column("metric", numeric=False),
                Column("samples"),
                Column("mean", unit, "measured"),
                Column("lowest", unit, "measured"),
                Column("highest", unit, "measured"),
            ],
            [
                [
                    name,
                    count(len(points)),
                    sig3(means[name]),
                    sig3(min(v for _, v in points)),
                    sig3(max(v for _, v in points)),
                ]
                for name, points in series.items()
            ],
        ),
        legend=[Swatch(_LINES[i], name, "line") for i, name in enumerate(series)],
        note=f"{len(series)} of {available} series are drawn." if available > len(series) else "",
    )
