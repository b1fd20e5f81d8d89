"""The real pairs. Expected figures are those of the traces' own description or read from the files here."""

import csv
import sqlite3

import pytest

from diagnose import pipeline
from diagnose.settle.compare import compare
from diagnose.settle.story import flagged

pytestmark = pytest.mark.shared_traces


@pytest.fixture(scope="module")
def windows(shared):
    return [
        pipeline.run([shared / "nsys" / f"diffusion_h100x2_{side}.sqlite"]) for side in ("before", "after")
    ]


@pytest.fixture(scope="module")
def diffusion(windows):
    return compare([windows[0]], [windows[1]])


def flash_ms(path, device):
    """Mean duration and number of the flash attention calls of a device, by SQL on the file."""
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    return con.execute(
        """SELECT avg(k.end - k.start) / 1e6, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
        WHERE s.value LIKE '%flash_fwd_kernel%' AND k.deviceId = ?""",
        (device,),
    ).fetchone()


def test_diffusion_kernels_are_unchanged_and_idle_is_not(diffusion, shared):
    flash = next(k for k in diffusion.kernels if "flash_fwd" in k.name_after)
    for side, value in (("before", flash.call_ns_before), ("after", flash.call_ns_after)):
        mean, _ = flash_ms(shared / "nsys" / f"diffusion_h100x2_{side}.sqlite", 0)
        assert value / 1e6 == pytest.approx(mean, abs=0.001)
    assert (round(flash.call_ns_before / 1e6, 2), round(flash.call_ns_after / 1e6, 2)) == (4.00, 4.01)
    assert flash.verdict == "no_change"
    by = {m.metric: m for m in diffusion.metrics}
    assert by["kernels"].verdict == "no_change"
    # Idle on device 0 grows 26.0 -> 59.1 ms over 34 and 30 calls.
    assert by["idle"].before == pytest.approx(26.0 / 34, abs=0.002)
    assert by["idle"].after == pytest.approx(59.1 / 30, abs=0.002)


def test_diffusion_is_normalised_per_call_and_not_called_real(diffusion):
    assert (diffusion.delta.per, diffusion.delta.units_before, diffusion.delta.units_after) == (
        "call",
        34,
        30,
    )
    whole = next(m for m in diffusion.metrics if m.headline)
    assert (whole.before, whole.after) == (pytest.approx(8.82, abs=0.006), pytest.approx(9.98, abs=0.006))
    assert whole.change == pytest.approx(0.13, abs=0.003)
    assert diffusion.verdict.overall == "inconclusive"
    assert flagged(diffusion) == []
    idle = sum(ns for bucket, ns in diffusion.delta.buckets.items() if bucket.startswith("idle"))
    assert idle / diffusion.delta.total_ns > 1.0
    assert sum(r.change_ns for r in diffusion.delta.roles) == diffusion.delta.total_ns


def test_diffusion_either_way_round_is_never_a_flip(windows, diffusion):
    back = compare([windows[1]], [windows[0]])
    assert back.verdict.overall == diffusion.verdict.overall == "inconclusive"


def test_hardware_pair_by_shape_with_the_device_named(shared):
    runs = [
        pipeline.run([shared / "kineto" / f"hf_qwen1.5-0.5b_{d}_prefill.json.gz"]) for d in ("h100", "mi300x")
    ]
    result = compare([runs[0]], [runs[1]])
    device = next(d for d in result.comparability if d.what == "device")
    assert (device.before, device.after) == ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X VF")
    assert device.withholds == []
    assert "H100" in result.verdict.summary
    assert "MI300X" in result.verdict.summary
    shaped = {
        k.shape: k
        for k in result.kernels
        if k.matched_by == "shape" and k.role == "gemm" and k.op == "aten::mm"
    }
    product = shaped["8944x1024 . 1024x2816"]
    # 84.48 us on the H100 for one of them; the mean of its calls is close by, and the MI300X takes about a third longer.
    assert product.call_ns_before == pytest.approx(84_480, rel=0.02)
    assert product.change == pytest.approx(0.32, abs=0.02)
    assert product.renamed
    assert result.delta.per == "call"
    time = sum(k.calls_before * k.call_ns_before for k in result.kernels)
    assert (
        sum(k.calls_before * k.call_ns_before for k in result.kernels if k.matched_by == "shape")
        > 0.99 * time
    )


def bench_points(shared):
    rows = csv.DictReader(
        line for line in (shared / "serving" / "vllm_0.5.3_vs_0.5.5.csv").open() if not line.startswith("#")
    )
    points = {}
    for r in rows:
        points.setdefault((r["model"], r["qps"]), {})[r["engine"]] = {
            "model_id": r["model"], "request_rate": r["qps"], "num_prompts": 500, "completed": 500, "request_throughput": float(r["req_s"]),
            "output_throughput": float(r["out_tok_s"]), "mean_ttft_ms": float(r["mean_ttft_ms"]), "mean_tpot_ms": float(r["mean_tpot_ms"]),
            "std_tpot_ms": float(r["std_tpot_ms"]),
        }  # fmt: skip
    return points


def test_vllm_versions_point_by_point(shared, served):
    """TPOT better at all 14 points; TTFT worse below saturation, better at it."""
    saturated = {
        ("llama70B", "16"),
        ("llama70B", "inf"),
        ("mixtral8x7B", "16"),
        ("mixtral8x7B", "inf"),
        ("llama8B", "inf"),
    }
    points = bench_points(shared)
    assert len(points) == 14
    improved = 0
    for key, point in points.items():
        result = compare([served(point["0.5.3.post1"])], [served(point["0.5.5"])])
        by = {m.metric: m for m in result.metrics}
        assert by["TPOT"].change < 0
        assert by["TPOT"].verdict in ("improved", "inconclusive")
        improved += by["TPOT"].verdict == "improved"
        assert by["TTFT"].verdict == ("improved" if key in saturated else "regressed"), key
        assert [d for d in result.comparability if d.withholds] == []
    # At the lowest Mixtral load 40.13 -> 39.26 ms is less than the requests' own spread (28 ms over 500) can tell.
    assert improved == 13


def test_vllm_versions_as_a_sweep(shared, served):
    points = bench_points(shared)
    before = [served(p["0.5.3.post1"]) for p in points.values()]
    after = [served(p["0.5.5"]) for p in points.values()]
    result = compare(before, after)
    by = {m.metric: m for m in result.metrics}
    assert by["TPOT"].verdict == "improved"
    assert "better at 14 of 14 load points" in by["TPOT"].note
    assert by["TTFT"].points["regressed"] == 9
    assert by["TTFT"].points["improved"] == 5
    assert result.verdict.overall == "mixed"
    assert "worse at 9 of 14 points, better at 5" in result.verdict.summary
    assert result.verdict.cause is None
    assert len(result.points) == 3 * 14
