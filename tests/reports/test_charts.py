"""Specs are valid Vega-Lite and carry the numbers of the result."""

import math
from typing import Any

import altair as alt
import msgspec
import pytest

from diagnose import contract as c
from diagnose.reports.charts import attribution, counters, latency, memory, roofline, timeline, what_if
from diagnose.reports.charts.figure import Figure

MS = 1e6


def figures(d: c.Diagnosis) -> list[Figure]:
    single = [
        attribution.attribution_figure(d),
        attribution.devices_figure(d),
        roofline.roofline_figure(d),
        timeline.timeline_figure(d),
        timeline.steps_figure(d),
        latency.latency_figure(d),
        memory.memory_figure(d),
    ]
    return [f for f in single if f] + [
        *latency.distribution_figures(d),
        *latency.split_figures(d),
        *what_if.what_if_figures(d),
        *counters.counter_figures(d),
    ]


def data(figure: Figure, column: str) -> list[dict[str, Any]]:
    """Rows of the dataset that has this column."""
    return next(rows for rows in figure.spec["datasets"].values() if rows and column in rows[0])


def test_specs_are_valid_vega_lite(any_case: c.Diagnosis) -> None:
    drawn = figures(any_case)
    assert drawn
    for figure in drawn:
        chart = {**figure.spec, "$schema": alt.SCHEMA_URL}
        alt.Chart.from_dict(chart, validate=True)  # raises where the spec is not Vega-Lite
        for row in figure.table.rows:
            assert len(row) == len(figure.table.columns)


def test_attribution_bars_add_up_to_the_window_in_ms_per_step(case: Any) -> None:
    d = case("decode_unobserved")
    figure = attribution.attribution_figure(d)
    assert figure
    rows = data(figure, "fill")
    assert sum(r["value"] for r in rows) == pytest.approx(10.395, rel=1e-5)  # 7.41 + 1.65 + 0.66 + 0.675 ms
    assert [r["label"] for r in rows] == [
        "memory-bound",
        "kernel floor",
        "inefficient",
        "idle: device",
    ]  # fixed order
    assert rows[-1]["x2"] == pytest.approx(10.395, rel=1e-5)
    assert all(r["bucket"] != "unobserved" for r in rows)  # outside the step, told in words instead


def test_phases_share_one_scale_per_step(case: Any) -> None:
    from diagnose.contract import empty_attribution

    d = case("healthy")
    decode = {**empty_attribution(), "hbm": 400_000_000}
    d.phases.append(
        c.Phase(
            phase="decode",
            steps=40,
            wall_ns=400_000_000,
            tokens={},
            attribution_ns=decode,
            step_time_ns={},
            ideal_step_ns=None,
            efficiency=None,
            mfu=None,
            mbu=None,
            limit="hbm",
            confidence=0.5,
        )
    )
    figure = attribution.attribution_figure(d)
    assert figure
    rows = data(figure, "fill")
    by_row = {row: sum(r["value"] for r in rows if r["row"] == row) for row in {r["row"] for r in rows}}
    assert by_row == {
        "prefill × 10": pytest.approx(9.8),
        "decode × 40": pytest.approx(10.0),
    }  # 98 ms ÷ 10, 400 ms ÷ 40


def test_roofline_puts_a_kernel_where_its_numbers_say(case: Any) -> None:
    figure = roofline.roofline_figure(case("prefill_inefficient"))
    assert figure
    gemm = data(figure, "roof")[1]  # second longest: 48 × 84.48 µs
    # 2·8944·1024·2816 = 51.58 GFLOP in 84.48 µs; 2·(8944·1024 + 1024·2816 + 8944·2816) = 74.46 MB
    assert gemm["y"] == pytest.approx(610.6, rel=1e-3)
    assert gemm["x"] == pytest.approx(51.58e9 / 74.46e6, rel=1e-3)
    ridge = next(r for r in data(figure, "dtype") if r["dtype"] == "bf16")
    assert ridge["x"] == pytest.approx(720e12 / 3010e9)
    assert (
        "9.30 ms" in figure.note and "without arithmetic" in figure.note
    )  # the strided copy has bytes but no FLOPs
    assert [text.split(" · ")[1].split(":")[0] for _, text in figure.callouts] == ["inefficient"]


def test_roofline_sums_shapes_of_one_name_but_not_phases(case: Any) -> None:
    d = case("healthy")
    row = d.kernels[0]
    shape = msgspec.structs.replace(row, shape="other", time_ns=31_000_000)
    decode = msgspec.structs.replace(row, phase="decode", time_ns=1_000_000)
    d.kernels = [row, shape, decode]
    figure = roofline.roofline_figure(d)
    assert figure
    points = data(figure, "roof")
    assert [(p["phase"], p["ms"]) for p in points] == [("prefill", 124.0), ("decode", 1.0)]
    assert points[0]["y"] == pytest.approx(2 * 93e6 * 6.6e5 / 124e6 / 1e3, rel=1e-3)


def test_timeline_merges_only_what_is_thinner_than_a_pixel() -> None:
    segment = c.TimelineSegment
    parts = [
        segment(0, 0, 100, "hbm", None, 0),
        segment(0, 100, 130, "idle_sync", "wait", 0),
        segment(0, 130, 150, "hbm", None, 0),
        segment(0, 150, 160, "copy", None, 0),
        segment(0, 200, 400, "compute", None, 0),
    ]
    merged = sorted(timeline._merged(parts, 100.0), key=lambda m: m["start"])
    assert [(m["start"], m["end"], m["bucket"]) for m in merged] == [
        (0, 100, "hbm"),
        (100, 160, "idle_sync"),
        (200, 400, "compute"),
    ]


def test_timeline_is_small_however_long_the_run(case: Any) -> None:
    d = case("launch_bound")
    d.timeline = [
        c.TimelineSegment(0, 1000 * i, 1000 * i + 900, ("hbm", "idle_launch")[i % 2], None, 0)
        for i in range(40_000)
    ]
    figure = timeline.timeline_figure(d)
    assert figure
    assert len(data(figure, "track")) <= 701


def test_unobserved_wait_is_the_longest_gap(case: Any) -> None:
    figure = timeline.timeline_figure(case("decode_unobserved"))
    assert figure
    assert figure.title == "Longest gap 463 ms of a 473 ms window: not observed (queued unseen)"
    assert figure.table.rows[0][:4] == ["0", "not observed", "queued unseen", "463"]


def test_ranks_side_by_side(case: Any) -> None:
    figure = attribution.devices_figure(case("eight_ranks"))
    assert figure
    rows = data(figure, "fill")
    waits = {r["row"]: r["value"] for r in rows if r["label"] == "waiting for a rank"}
    assert set(waits) == {f"rank {r}" for r in range(8)} - {"rank 5"}
    assert set(waits.values()) == {3.3}


def test_memory_waterfall_is_cumulative(case: Any) -> None:
    figure = memory.memory_figure(case("serving_only"))
    assert figure
    kv = next(r for r in data(figure, "part") if r["part"] == "KV pool")
    assert (kv["x"], kv["x2"]) == (pytest.approx(40.7), pytest.approx(71.5))  # 35.3 + 4.1 + 1.3, then + 30.8
    assert "30.8 GB of 85.0 GB (36.2 %)" in figure.title


def test_memory_takes_plain_byte_keys_too() -> None:
    assert memory.parts_of({"total_bytes": 9, "weights_bytes": 5, "kv_pool_bytes": 3.0, "note": "x"}) == [
        ("weights", 5.0, None),
        ("kv pool", 3.0, None),
    ]


def test_latency_histogram_has_density_not_counts(case: Any) -> None:
    d = case("serving_only")
    rows = data(latency.distribution_figures(d)[0], "density")
    # 0 to 3000 ms on a scale of ratios, the first bin drawn from half its end: 40 % over a doubling, 12 % over a tripling
    assert rows[0]["density"] == pytest.approx(40 / (20 * math.log10(2)), rel=1e-3)
    assert rows[3]["density"] == pytest.approx(12 / (20 * math.log10(3)), rel=1e-3)
    d.latency["ttft_ms"]["histogram"] = [
        {"low": 100, "high": 110, "count": 90},
        {"low": 110, "high": 150, "count": 10},
        {"low": 150, "high": None, "count": 100},
    ]
    figure = latency.distribution_figures(d)[0]
    rows = data(figure, "density")
    # linear: 45 % over 10 ms, 5 % over 40 ms: the wide tail is not drawn taller than it is; half lies in the open bucket
    assert [r["density"] for r in rows] == pytest.approx([4.5, 0.125])
    assert "100 lie beyond" in figure.note


def test_counters_are_thinned_by_means_not_by_picking() -> None:
    d = c.Diagnosis(
        schema=c.SCHEMA,
        tool_version="0",
        source=[],
        objective="step_time",
        devices=[],
        attribution_ns=None,
        coverage=None,
        phases=[],
        outside_steps=None,
        kernels=[],
        latency=None,
        kv=None,
        hypotheses=[],
        data_quality=[],
        verdict=c.Verdict(
            limit="inconclusive", phase=None, objective="step_time", confidence=None, summary=""
        ),
        counters=[
            {"device": 0, "metric": "m", "unit": "%", "points": [[t, 100.0 * (t % 2)] for t in range(6000)]}
        ],
    )
    figure = counters.counter_figures(d)[0]
    rows = data(figure, "metric")
    assert len(rows) <= 300
    assert {r["y"] for r in rows} == {50.0}  # alternating 0 and 100, twenty samples a point
