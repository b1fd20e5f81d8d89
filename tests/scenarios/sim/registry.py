"""Named scenarios: each draws a variant from a seed; the truth is computed, never declared."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sim.cpu import cpu_truth, write_cpu
from sim.engines import engines_truth, run_engines, write_engines
from sim.evidence import write_evidence
from sim.kineto import write_kineto
from sim.nsys import write_nsys
from sim.serving import Serve, Served, serve
from sim.serving_truth import serving_truth
from sim.steps import Run, simulate
from sim.sufficiency import DEVICE_LIMITS, judge_serving, judge_trace
from sim.truth import Truth, trace_truth
from sim.window import traced_world
from sim.world import World

EVIDENCE = frozenset({"metrics", "log", "bench", "config"})


@dataclass(frozen=True, slots=True)
class Variant:
    """A run and what of it is written down.

    `world` is a traced run of a few steps; `serve` a deployment (its trace, when wanted, is a window of it). `real` is the
    world without the profiler's distortion, when that differs: the truth is about the real run.
    """

    world: World | None = None
    serve: Serve | None = None
    real: World | None = None
    objective: str = "step_time"
    evidence: frozenset[str] = frozenset({"trace"})
    form: str = "kineto"  # kineto | nsys | cpu (operators only)
    schema: str = "2025"
    counters: bool = False
    gpu_info: bool = True
    only_ranks: tuple[int, ...] = ()  # write these ranks only
    config: bool = False  # write the model's config beside the trace
    engine: str = "vllm"
    iterations: bool = False  # the log has a line for each iteration
    shares: tuple[float, ...] = ()  # several engines, and the share of the load each gets


@dataclass(frozen=True, slots=True)
class Scenario:
    """A family of runs. `cases` are numbers of settled public cases it stands for; `meant` is only a hint for readers."""

    name: str
    meant: str
    build: Callable[[int], World | Variant]
    cases: tuple[int, ...] = ()
    tags: frozenset[str] = frozenset()

    def variant(self, seed: int) -> Variant:
        """The variant of a seed."""
        made = self.build(seed)
        return Variant(world=made) if isinstance(made, World) else made


@dataclass(slots=True)
class Generated:
    """The files of one variant and its truth."""

    scenario: str
    seed: int
    variant: Variant
    truth: Truth
    traces: list[Path] = field(default_factory=list)
    evidence: dict[str, list[Path]] = field(default_factory=dict)
    run: Run | None = None
    served: Served | None = None


SCENARIOS: dict[str, Scenario] = {}

Build = Callable[[int], World | Variant]


def scenario(
    name: str, meant: str, *, cases: tuple[int, ...] = (), tags: tuple[str, ...] = ()
) -> Callable[[Build], Build]:
    """Register a builder."""

    def add(build: Build) -> Build:
        SCENARIOS[name] = Scenario(name, meant, build, cases, frozenset(tags))
        return build

    return add


def load_all() -> dict[str, Scenario]:
    """All scenarios, with every family module imported."""
    from sim import families, families_edge, families_serving  # noqa: F401

    return SCENARIOS


def generate(name: str, seed: int, out_dir: Path, variant: Variant | None = None) -> Generated:
    """Write a variant's files into `out_dir` (made if needed) and return them with the computed truth."""
    out_dir.mkdir(parents=True, exist_ok=True)
    v = variant or load_all()[name].variant(seed)
    if v.form == "cpu":
        return _generate_cpu(name, seed, v, out_dir)
    if v.shares and v.serve is not None:
        return _generate_engines(name, seed, v, out_dir)
    served = serve(v.serve) if v.serve else None
    world = v.world
    if served is not None and v.serve is not None and world is None and "trace" in v.evidence:
        world = traced_world(served, v.engine)
    run = simulate(world) if world is not None else None
    if served is not None and v.serve is not None:
        truth, causes = serving_truth(v.serve, v.objective, served)
        truth.notes = [
            f"{k}: {g:.3f}" for k, g in sorted(causes.items(), key=lambda x: -x[1]) if abs(g) > 0.005
        ]
        judge_serving(truth, v.serve, served, v.evidence, world)
    else:
        assert run is not None and world is not None, "a variant needs a world or a deployment"
        truth = trace_truth(v.real, None) if v.real is not None else trace_truth(world, run)
        judge_trace(truth, run, config=v.config, ranks_written=len(v.only_ranks) or world.ranks, form=v.form)
    made = Generated(name, seed, v, truth, run=run, served=served)
    if run is not None and "trace" in v.evidence:
        made.traces = _write_traces(run, v, out_dir)
    if served is not None:
        made.evidence = write_evidence(
            served, v.evidence & EVIDENCE, out_dir, v.engine, iterations=v.iterations
        )
    elif v.config and world is not None and world.arch is not None:
        path = out_dir / "config.json"
        path.write_text(json.dumps(world.arch.config(), indent=1))
        made.evidence = {"config": [path]}
    (out_dir / "truth.json").write_text(json.dumps(asdict(truth), indent=1))
    return made


def _generate_engines(name: str, seed: int, v: Variant, out_dir: Path) -> Generated:
    assert v.serve is not None, "engines serve a load"
    runs = run_engines(v.serve, v.shares)
    truth = engines_truth(v.serve, v.shares)
    seen = "metrics" in v.evidence and truth.limit not in DEVICE_LIMITS
    truth.sufficient = seen and max(truth.gains.values()) >= 0.05
    made = Generated(name, seed, v, truth, served=runs[0])
    made.evidence = write_engines(runs, v.serve, v.evidence & EVIDENCE, out_dir)
    (out_dir / "truth.json").write_text(json.dumps(asdict(truth), indent=1))
    return made


def _generate_cpu(name: str, seed: int, v: Variant, out_dir: Path) -> Generated:
    assert v.world is not None, "a run on the CPU is a world"
    made = Generated(name, seed, v, cpu_truth(v.world), traces=[out_dir / "trace.json.gz"])
    write_cpu(v.world, made.traces[0])
    (out_dir / "truth.json").write_text(json.dumps(asdict(made.truth), indent=1))
    return made


def _write_traces(run: Run, v: Variant, out_dir: Path) -> list[Path]:
    world = run.world
    ranks = [r for r in run.ranks if not v.only_ranks or r.rank in v.only_ranks]
    if v.form == "nsys":
        path = out_dir / "trace.sqlite"
        write_nsys(world, ranks, path, v.schema, metrics=v.counters, gpu_info=v.gpu_info)
        return [path]
    out = []
    for rec in ranks:
        path = out_dir / ("trace.json.gz" if world.ranks == 1 else f"trace_rank{rec.rank}.json.gz")
        write_kineto(world, rec, path)
        out.append(path)
    return out


def again(v: Variant, n: int) -> Variant:
    """The same run repeated with other noise."""
    return replace(v, world=replace(v.world, again=n)) if v.world else v
