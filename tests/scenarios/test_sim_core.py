"""The simulator itself: order, causality, determinism, and limiting cases by arithmetic."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from sim import rng
from sim.arch import ARCHS, Arch, StepPlan
from sim.hardware import DEVICES, Work, duration_ns
from sim.kineto import BASE_NS, FIRST_NS, document, write_kineto
from sim.registry import load_all
from sim.steps import simulate, union_ns
from sim.world import HostCosts, World

TINY = Arch("tiny", "llama", 2, 256, 4, 2, 64, 512, 1000)
QUIET = HostCosts(jitter=0.0)


def world(**changes: object) -> World:
    base = World(
        arch=TINY, plans=tuple(StepPlan(decode=(100, 200)) for _ in range(3)), host=QUIET, noise=0.0, seed=5
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["hbm-decode", "host-sync-decode", "copy-offload", "communication-tp", "graph-decode"]
)
def test_streams_in_order_and_causal(name: str) -> None:
    w = load_all()[name].build(11)
    for rec in simulate(w).ranks:
        calls = {c.correlation: c for c in rec.calls}
        by_stream = defaultdict(list)
        for a in rec.activities:
            call = calls[a.correlation]
            assert a.start >= call.start, "work cannot start before its launch call"
            assert a.end - a.start >= 1
            by_stream[a.stream].append(a)
        for activities in by_stream.values():
            for before, after in pairwise(activities):
                assert after.start >= before.end, "a stream runs one activity at a time, in order"
        for op in rec.ops:
            assert op.dur >= 0
        assert len(rec.step_device_ends) == len(w.plans)
        assert rec.step_device_ends == sorted(rec.step_device_ends)


def test_no_two_kernels_exceed_the_device() -> None:
    """Kernels on different streams overlap only while their blocks fit."""
    w = replace(world(), options=replace(world().options, tp=2), comm_stream=True)
    rec = simulate(w).ranks[0]
    points = sorted({a.start for a in rec.activities if a.engine == "compute"})
    for t in points:
        shares = [a.share for a in rec.activities if a.engine == "compute" and a.start <= t < a.end]
        assert sum(shares) <= 1.0 + 1e-9 or len(shares) == 1


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    build = load_all()["straggler-tp"].build
    for i in (0, 1):
        for rec in simulate(build(3)).ranks:
            write_kineto(build(3), rec, tmp_path / f"{i}_{rec.rank}.json.gz")
    assert (tmp_path / "0_0.json.gz").read_bytes() == (tmp_path / "1_0.json.gz").read_bytes()
    assert (tmp_path / "0_1.json.gz").read_bytes() == (tmp_path / "1_1.json.gz").read_bytes()
    assert (tmp_path / "0_0.json.gz").read_bytes() != (tmp_path / "0_1.json.gz").read_bytes()


def test_host_bound_step_is_the_sum_of_host_costs() -> None:
    """With kernels far below the host's cost per operator, each launched operator costs op + call, exactly."""
    host = replace(QUIET, op_ns=100_000.0, api_ns=10_000.0)
    one = simulate(world(host=host))
    two = simulate(world(host=replace(host, op_ns=150_000.0)))
    # Embedding; 2 layers of norm, qkv, rope, cache write, attention, o, norm, gate-up, activation, down; norm, logits,
    # cast, sample: 1 + 2 x 10 + 4 = 25 operators, 50 us more for each.
    assert two.step_time_ns - one.step_time_ns == pytest.approx(50_000 * 25, abs=3)


def test_device_bound_run_is_the_sum_of_durations_and_gaps() -> None:
    """A host that never waits leaves only kernels and the device's own gap between them."""
    w = world(
        arch=ARCHS["llama-3-8b"],
        plans=(StepPlan(decode=(4000,) * 32),),
        host=replace(QUIET, op_ns=100.0, api_ns=100.0),
    )
    acts = [a for a in simulate(w).ranks[0].activities if a.kind == "kernel"]
    assert acts[-1].end - acts[0].start == sum(a.duration_ns for a in acts) + 700 * (len(acts) - 1)


def test_doubling_bandwidth_saves_half_of_the_memory_time() -> None:
    """For a pure streaming kernel: t = floor + bytes / (0.92 x 3.35 TB/s)."""
    h = DEVICES["h100"]
    work = Work("stream", 0.0, 1e9)
    expected = 1e9 / (0.92 * 3.35e12) * 1e9
    assert duration_ns(h, work, h) == pytest.approx(1900 + expected, rel=1e-9)
    assert duration_ns(h.with_factor(memory=2.0), work, h) == pytest.approx(1900 + expected / 2, rel=1e-9)


def test_bad_kernels_are_not_repaired_by_hardware() -> None:
    h = DEVICES["h100"]
    work = Work("gemm", 2.0 * 4096**3, 3 * 4096**2 * 2.0, quality=0.25)
    slow = duration_ns(h, work, h)
    assert slow == pytest.approx(4 * duration_ns(h, replace(work, quality=1.0), h))
    assert duration_ns(h.with_factor(compute=2.0, memory=2.0), work, h) == slow


@pytest.mark.parametrize(
    ("device", "work", "measured_ns"),
    [
        # Public kernel tables: N=6144 K=4096 bf16 at M=1: 16.1 us on H200, 38.2 us on A100.
        ("h200", Work("gemm", 2 * 6144 * 4096, 6144 * 4096 * 2), 16_100),
        ("a100", Work("gemm", 2 * 6144 * 4096, 6144 * 4096 * 2), 38_200),
        # 8192 x 8192 bf16 on H100: 46-54 us for M = 1 to 128, about 87 us at M = 512.
        ("h100", Work("gemm", 2 * 64 * 8192**2, 8192**2 * 2 + 64 * 8192 * 4), 50_000),
        ("h100", Work("gemm", 2 * 512 * 8192**2, 8192**2 * 2 + 512 * 8192 * 4), 87_000),
        # Decode attention on H200, 32 query and 8 KV heads of 128: 13.6 us for 1 x 1k, 135.5 us for 32 x 4k.
        ("h200", Work("attn_decode", 4 * 32 * 128 * 1024, 2 * 8 * 128 * 2 * 1024), 13_600),
        ("h200", Work("attn_decode", 4 * 32 * 128 * 131072, 2 * 8 * 128 * 2 * 131072), 135_500),
    ],
)
def test_physics_near_published_measurements(device: str, work: Work, measured_ns: float) -> None:
    assert duration_ns(DEVICES[device], work, DEVICES[device]) == pytest.approx(measured_ns, rel=0.12)


def test_collectives_end_together_after_the_last_arrival() -> None:
    w = load_all()["straggler-tp"].build(4)
    ranks = simulate(w).ranks
    rows = [[a for a in r.activities if a.role == "all_reduce"] for r in ranks]
    assert len({len(r) for r in rows}) == 1 and rows[0]
    for group in zip(*rows, strict=True):
        assert len({a.end for a in group}) == 1
        assert max(a.start for a in group) < group[0].end


def test_a_value_read_drains_the_queue() -> None:
    """After `.item()` returns, everything launched before has finished."""
    w = load_all()["host-sync-decode"].build(2)
    rec = simulate(w).ranks[0]
    for note in (o for o in rec.ops if o.op.name == "aten::item"):
        before = [a for a in rec.activities if a.ready_at < note.start]
        assert all(a.end <= note.start + note.dur for a in before)


def test_kineto_times_and_links() -> None:
    w = world()
    rec = simulate(w).ranks[0]
    doc = json.loads(json.dumps(document(w, rec)))
    assert doc["baseTimeNanoseconds"] == BASE_NS
    events = [e for e in doc["traceEvents"] if e.get("cat") == "kernel"]
    calls = {e["args"]["correlation"]: e for e in doc["traceEvents"] if e.get("cat") == "cuda_runtime"}
    ops = {e["args"]["External id"]: e for e in doc["traceEvents"] if e.get("cat") == "cpu_op"}
    kernels = [a for a in rec.activities if a.kind == "kernel"]
    assert len(events) == len(kernels)
    for e, a in zip(events, kernels, strict=True):
        assert round(e["ts"] * 1000) == a.start + FIRST_NS
        assert round(e["dur"] * 1000) == a.end - a.start
        call, op = calls[e["args"]["correlation"]], ops[e["args"]["External id"]]
        assert op["ts"] <= call["ts"] and call["ts"] + call["dur"] <= op["ts"] + op["dur"] + 1e-6


def test_a_whole_trace_keeps_everything() -> None:
    """Without a cut nothing is lost at the edges: annotations, operators, calls, activities."""
    w = load_all()["hbm-decode"].variant(3).world
    rec = simulate(w).ranks[0]
    events = document(w, rec)["traceEvents"]
    count = {
        c: sum(1 for e in events if e.get("cat") == c) for c in ("user_annotation", "cpu_op", "cuda_runtime")
    }
    assert count == {
        "user_annotation": len(rec.notes),
        "cpu_op": len(rec.ops),
        "cuda_runtime": len(rec.calls),
    }
    assert len(rec.notes) == len(w.plans)
    cut = document(w.with_profile(cut_tail=0.3), rec)["traceEvents"]
    assert (
        0
        < sum(1 for e in cut if e.get("cat") == "kernel")
        < sum(1 for e in events if e.get("cat") == "kernel")
    )


def test_gzip_is_readable(tmp_path: Path) -> None:
    w = world()
    write_kineto(w, simulate(w).ranks[0], tmp_path / "t.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["schemaVersion"] == 1


def test_union() -> None:
    assert union_ns([(0, 10), (5, 12), (20, 21)]) == 13


def test_draws_are_addressed_not_ordered() -> None:
    assert rng.normal(1, 2, 3) == rng.normal(1, 2, 3) != rng.normal(1, 2, 4)
    mean = sum(rng.lognormal(0.3, 7, i) for i in range(4000)) / 4000
    assert mean == pytest.approx(1.0, abs=0.02)
