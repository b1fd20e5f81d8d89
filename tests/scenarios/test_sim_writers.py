"""What the simulator writes: exports, metrics, logs and results say what happened, and nothing else."""

import gzip
import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sim.evidence import bench, scrape, sglang_log, step_at, vllm_log, write_evidence
from sim.nsys import SCHEMAS, write_nsys
from sim.pairs import planted, slower_kernel, world_of, write_pair
from sim.registry import EVIDENCE, generate, load_all
from sim.serving import Load, Serve, Served, serve
from sim.steps import simulate

KINDS = frozenset({"metrics", "log", "bench", "config"})


@pytest.fixture(scope="module")
def run() -> Served:
    return serve(
        Serve(load=Load(requests=80, concurrency=30, prompt=300, output=60), kv_tokens=6_400, seed=1)
    )


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
def test_nsys_rows_are_the_recording(schema: str, tmp_path: Path) -> None:
    w = load_all()["communication-tp"].variant(2).world
    assert w is not None
    done = simulate(w)
    path = tmp_path / "t.sqlite"
    write_nsys(w, done.ranks, path, schema, metrics=True)
    con = sqlite3.connect(path)
    rows = con.execute(
        "SELECT start, end, deviceId, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ).fetchall()
    kernels = [a for r in done.ranks for a in r.activities if a.kind == "kernel"]
    assert len(rows) == len(kernels)
    assert sum(e - s for s, e, *_ in rows) == sum(a.end - a.start for a in kernels)
    # Every kernel joins one API row of its own process.
    joined = con.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = "
                         "k.correlationId AND (r.globalTid & ~16777215) = k.globalPid").fetchone()[0]  # fmt: skip
    assert joined == len(kernels)
    assert (
        con.execute("SELECT count(DISTINCT deviceId) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
        == w.ranks
    )
    tables = {t for (t,) in con.execute("SELECT name FROM sqlite_master")}
    assert SCHEMAS[schema].meta in tables
    assert ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables) == SCHEMAS[schema].graph_trace


def test_opaque_graphs_hide_their_kernels(tmp_path: Path) -> None:
    w = replace(load_all()["nsys-opaque-graph"].variant(1).world)
    done = simulate(w)
    write_nsys(w, done.ranks, tmp_path / "t.sqlite", "2025")
    con = sqlite3.connect(tmp_path / "t.sqlite")
    spans = con.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE").fetchall()
    assert len(spans) == len(w.plans)
    assert con.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0] == 0
    inside = [a for a in done.ranks[0].activities if a.graph]
    assert min(s for s, _ in spans) - 1_000_000_000 == inside[0].start


def test_metrics_are_the_state_at_that_moment(run: Served) -> None:
    at = run.duration_s * 0.6
    families = {f.name: f for f in text_string_to_metric_families(scrape(run, at))}
    step = step_at(run, at)
    assert families["vllm:num_requests_running"].samples[0].value == step.running
    assert families["vllm:num_requests_waiting"].samples[0].value == step.waiting
    assert families["vllm:kv_cache_usage_perc"].samples[0].value == pytest.approx(
        step.used_blocks / run.blocks
    )
    ttft = {
        s.labels.get("le"): s.value
        for s in families["vllm:time_to_first_token_seconds"].samples
        if s.name.endswith("_bucket")
    }
    values = [(r.token_times[0] - r.arrival) / 1e9 for r in run.requests if r.token_times[0] <= at * 1e9]
    assert ttft["+Inf"] == len(values)
    assert ttft["1.0"] == sum(1 for v in values if v <= 1.0)
    assert list(ttft.values()) == sorted(ttft.values())


def test_counters_never_fall(run: Served) -> None:
    def total(at: float) -> float:
        families = {f.name: f for f in text_string_to_metric_families(scrape(run, at))}
        return families["vllm:generation_tokens"].samples[0].value

    values = [total(run.duration_s * x) for x in (0.2, 0.5, 0.8, 1.0)]
    assert values == sorted(values) and values[-1] == sum(r.output for r in run.requests)


def test_bench_figures_follow_from_its_own_details(run: Served) -> None:
    b = bench(run)
    assert b["completed"] == 80
    assert b["output_throughput"] == pytest.approx(b["total_output_tokens"] / b["duration"])
    assert b["mean_ttft_ms"] == pytest.approx(1e3 * sum(b["ttfts"]) / 80)
    flat = [v for x in b["itls"] for v in x]
    assert b["mean_itl_ms"] == pytest.approx(1e3 * sum(flat) / len(flat))
    assert [len(x) + 1 for x in b["itls"]] == b["output_lens"]


def test_logs_carry_pool_and_running(run: Served) -> None:
    text = vllm_log(run, every_s=0.5)
    assert f"GPU KV cache size: {run.blocks * 16:,} tokens" in text
    running = [int(x) for x in re.findall(r"Running: (\d+) reqs", text)]
    assert max(running) <= max(s.running for s in run.steps) and max(running) > 0
    assert f"max_total_num_tokens={run.blocks * 16}" in sglang_log(run)
    queue = [int(x) for x in re.findall(r"Prefill batch.*#queue-req: (\d+)", sglang_log(run))]
    assert queue == [s.waiting for s in run.steps if s.plan_prefill]


def test_all_kinds_are_written(run: Served, tmp_path: Path) -> None:
    paths = write_evidence(run, KINDS, tmp_path)
    assert set(paths) == KINDS == EVIDENCE
    assert all(p.exists() for group in paths.values() for p in group)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 32


@pytest.mark.parametrize("name", ["graph-decode", "serve-prefill-heavy", "nsys-decode"])
def test_generate_is_deterministic(name: str, tmp_path: Path) -> None:
    one, two = generate(name, 7, tmp_path / "a"), generate(name, 7, tmp_path / "b")
    assert one.truth == two.truth
    files = [
        sorted(p.relative_to(tmp_path / f) for p in (tmp_path / f).rglob("*") if p.is_file()) for f in "ab"
    ]
    assert files[0] == files[1]
    for path in files[0]:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path
    assert generate(name, 8, tmp_path / "c").truth.value != one.truth.value


@pytest.mark.parametrize("name", sorted(n for n, s in load_all().items() if "tie" not in s.tags))
def test_every_scenario_builds(name: str) -> None:
    v = load_all()[name].variant(5)
    assert (v.world is None) != (v.serve is None)
    if v.world is not None:
        assert v.world.plans and v.world.arch is not None


def test_sufficiency_of_evidence(tmp_path: Path) -> None:
    """What was left out decides whether the question can be answered."""
    assert not generate("nsys-opaque-graph", 1, tmp_path / "a").truth.sufficient
    assert not generate("graph-no-model", 1, tmp_path / "b").truth.sufficient
    assert generate("graph-with-model", 1, tmp_path / "c").truth.sufficient
    assert not generate("serve-bench-only", 2, tmp_path / "e").truth.sufficient


def test_every_settled_case_of_a_trace_or_metrics_has_a_scenario() -> None:
    """Numbers of the public cases: 5, 11, 12, 14, 18, 26, 31, 35 and 38 do not exist; 23 is an architecture's arithmetic."""
    have = {c for s in load_all().values() for c in s.cases}
    wanted = {
        1,
        2,
        3,
        4,
        6,
        7,
        8,
        9,
        10,
        13,
        15,
        16,
        17,
        19,
        20,
        21,
        22,
        24,
        25,
        27,
        28,
        29,
        30,
        32,
        33,
        34,
        36,
        37,
        39,
    }
    assert wanted <= have


def test_cpu_trace_holds_operators_only(tmp_path: Path) -> None:
    made = generate("cpu-only", 1, tmp_path)
    doc = json.loads(gzip.decompress(made.traces[0].read_bytes()))
    assert {e["cat"] for e in doc["traceEvents"] if "cat" in e} == {"cpu_op", "user_annotation"}
    ops = [e for e in doc["traceEvents"] if e.get("cat") == "cpu_op"]
    # On one thread operators nest or follow each other, never overlap otherwise.
    open_ends: list[float] = []
    for e in sorted(ops, key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and open_ends[-1] <= e["ts"] + 2e-3:
            open_ends.pop()
        assert not open_ends or e["ts"] + e["dur"] <= open_ends[-1] + 2e-3
        open_ends.append(e["ts"] + e["dur"])
    assert not made.truth.sufficient


def test_pairs_differ_by_luck_or_by_what_was_planted(tmp_path: Path) -> None:
    null = write_pair(3, tmp_path / "null", steps=4)
    assert null.true_ratio == 1.0
    assert null.before[0].read_bytes() != null.after[0].read_bytes()
    slow = write_pair(3, tmp_path / "slow", planted(3, 1.08, steps=4), steps=4)
    # Times are rounded to nanoseconds, and a few fixed latencies do not stretch.
    assert slow.true_ratio == pytest.approx(1.08, abs=0.01)
    kernel = slower_kernel(3, "gate_up", 1.5, steps=4)
    one, two = (
        simulate(replace(w, noise=0.0, run_device=0.0)).ranks[0].activities for w in (world_of(3, 4), kernel)
    )
    for a, b in zip(one, two, strict=True):
        assert b.duration_ns == pytest.approx(a.duration_ns * (1.5 if a.role == "gate_up" else 1.0), abs=1)
