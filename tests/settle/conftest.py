"""Results built by hand, a trace with one kernel slowed, serving files from published numbers, and the simulator."""

import bisect
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose import contract as c
from diagnose import pipeline

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS.parent / "sample_traces"
SHARED = TESTS.parents[1] / "shared" / "traces"

for folder in ("scenarios", "serving"):  # the simulator, and builders of engines' own files
    if str(TESTS / folder) not in sys.path:
        sys.path.insert(0, str(TESTS / folder))


def attribution(**ns: int) -> c.Attribution:
    return {**c.empty_attribution(), **ns}


def step(
    n: int, phase: str = "decode", *, sequences: int | None = 16, tokens: int | None = None, context: int | None = 32_000, device: int = 0,
    provenance: str | None = "vllm", roles: dict[str, int] | None = None, **buckets: int,
) -> c.StepRow:  # fmt: skip
    split = attribution(**buckets)
    number = sequences if tokens is None else tokens
    return c.StepRow(
        step_id=n, device=device, phase=phase, start_ns=n * 10_000_000, end_ns=n * 10_000_000 + sum(split.values()), gap_before_ns=0,
        sequences=sequences, prefill_tokens=number if phase == "prefill" else 0, decode_tokens=number if phase != "prefill" else 0,
        context_tokens=context, attribution_ns=split, provenance=provenance,
        role_ns=roles if roles is not None else {"gemm": sum(split[b] for b in ("compute", "hbm", "floor", "inefficient", "unmodelled"))},
    )  # fmt: skip


def kernel(name: str, *, count: int, time_ns: int, **extra: Any) -> c.KernelRow:
    keys = (
        "op",
        "role",
        "shape",
        "flops",
        "bytes",
        "tflops",
        "gbps",
        "intensity",
        "regime",
        "percent_of_roof",
        "reason",
        "cost_source",
    )
    row: dict[str, Any] = dict.fromkeys(keys)
    row |= {
        "family": "gemm",
        "phase": "decode",
        "bound": "hbm",
        "device": 0,
        "se_ns": 0.001 * time_ns / count,
        **extra,
    }
    return c.KernelRow(name=name, count=count, time_ns=time_ns, **row)


def result(
    steps: list[c.StepRow],
    kernels: list[c.KernelRow] | None = None,
    *,
    sha256: str | None = None,
    name: str = "NVIDIA H100 80GB HBM3",
    **parts: Any,
) -> c.Diagnosis:
    devices = []
    for id_ in sorted({s.device for s in steps}):
        total = {b: sum(s.attribution_ns[b] for s in steps if s.device == id_) for b in c.BUCKETS}
        wall = sum(total.values())
        devices.append(
            c.Device(
                id=id_,
                name=name,
                catalog_key="h100-sxm" if name in ("", "NVIDIA H100 80GB HBM3") else None,
                rank=None,
                window=c.Window(start_ns=0, end_ns=wall, wall_ns=wall),
                attribution_ns=total,
                roofs=[],
            )
        )
    phases = []
    for phase in dict.fromkeys(s.phase for s in steps):
        mine = [s for s in steps if s.phase == phase]
        total = {b: sum(s.attribution_ns[b] for s in mine) for b in c.BUCKETS}
        known = [s.sequences for s in mine if s.sequences is not None]
        phases.append(c.Phase(
            phase=phase, steps=len(mine), wall_ns=sum(total.values()), tokens={"prefill": None, "decode": None, "accepted": None},
            attribution_ns=total, step_time_ns={"p50": None, "p90": None, "p99": None}, ideal_step_ns=None, efficiency=None, mfu=None, mbu=None,
            limit="inconclusive", confidence=None, sequences=sum(known) / len(known) if known else None,
        ))  # fmt: skip
    values: dict[str, Any] = {
        "schema": c.SCHEMA, "tool_version": "0", "source": [c.Source(path="t.json", format="kineto", sha256=sha256, profiler="kineto")],
        "objective": "step_time", "devices": devices, "attribution_ns": None, "coverage": None, "phases": phases, "outside_steps": None,
        "kernels": kernels or [], "latency": None, "kv": None, "hypotheses": [], "data_quality": [],
        "verdict": c.Verdict(limit="inconclusive", phase=None, objective="step_time", confidence=None, summary=""),
        "steps": steps, "steps_total": len(steps), **parts,
    }  # fmt: skip
    return c.Diagnosis(**values)


@pytest.fixture(scope="session")
def build() -> Any:
    """`build.step`, `build.kernel`, `build.result`: parts of a result with what a test does not care about filled in."""

    class Build:
        pass

    made = Build()
    made.step, made.kernel, made.result, made.attribution = step, kernel, result, attribution
    return made


def slow(source: Path, target: Path, pick: Callable[[dict[str, Any]], bool], factor: float) -> int:
    """A trace with the chosen kernels longer by `factor` and everything after them later by as much. How many there were.

    Time itself is stretched inside those kernels, for host and device alike: order, gaps and launches stay as they were.
    """
    doc = json.loads(gzip.decompress(source.read_bytes()))
    chosen = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in doc["traceEvents"] if e.get("cat") == "kernel" and pick(e)
    )
    starts, ends = [a for a, _ in chosen], [b for _, b in chosen]
    added = [0.0]
    for a, b in chosen:
        added.append(added[-1] + (b - a) * (factor - 1))

    def moved(t: float) -> float:
        i = bisect.bisect_right(ends, t)
        inside = (t - starts[i]) * (factor - 1) if i < len(chosen) and starts[i] < t else 0.0
        return t + added[i] + inside

    for e in doc["traceEvents"]:
        if "ts" in e:
            start, end = e["ts"], e["ts"] + e.get("dur", 0.0)
            e["ts"] = moved(start)
            if "dur" in e:
                e["dur"] = moved(end) - e["ts"]
    target.write_bytes(gzip.compress(json.dumps(doc).encode(), mtime=0))
    return len(chosen)


@pytest.fixture(scope="session")
def decode_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A generated decode trace, and the same with its gate-and-up product 10 % slower."""
    before = SAMPLES / "generated_h100_decode_hbm.json.gz"
    after = tmp_path_factory.mktemp("slow") / "slow.json.gz"
    events = json.loads(gzip.decompress(before.read_bytes()))["traceEvents"]
    wanted = {
        e["args"]["External id"]
        for e in events
        if e.get("cat") == "cpu_op" and e["args"].get("Input Dims") == [[16, 4096], [4096, 28672]]
    }
    # 32 layers, one such product a layer and step; the trace has 3 steps.
    assert slow(before, after, lambda e: e["args"].get("External id") in wanted, 1.10) == 96
    return before, after


@pytest.fixture(scope="session")
def decode_results(decode_pair: tuple[Path, Path]) -> tuple[c.Diagnosis, c.Diagnosis]:
    return pipeline.run([decode_pair[0]]), pipeline.run([decode_pair[1]])


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., c.Diagnosis]:
    """traced(world) -> its diagnosis, through a written trace and the whole pipeline."""
    folder = tmp_path_factory.mktemp("traced")
    done = iter(range(10_000))

    def run(world: Any) -> c.Diagnosis:
        from sim.kineto import write_kineto
        from sim.steps import simulate

        path = folder / f"{next(done)}.json"
        write_kineto(world, simulate(world).ranks[0], path)
        return pipeline.run([path])

    return run


@pytest.fixture
def served(tmp_path: Path) -> Callable[..., c.Diagnosis]:
    """served(bench={...}, log="...") -> the diagnosis of a run folder with such files."""
    done = iter(range(10_000))

    def run(bench: dict[str, Any] | None = None, log: str | None = None) -> c.Diagnosis:
        folder = tmp_path / f"run{next(done)}"
        folder.mkdir()
        if bench is not None:
            base = {"backend": "vllm", "request_throughput": 1.0, "output_throughput": 1.0}
            (folder / "bench.json").write_text(json.dumps({**base, **bench}))
        if log is not None:
            (folder / "server.log").write_text(log)
        return pipeline.run([folder])

    return run


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.exists():
        pytest.skip("the real traces are not beside this checkout")
    return SHARED
