"""Named scenarios: each draws a world from a seed; the truth is computed, never declared."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sim.kineto import write_kineto
from sim.steps import simulate
from sim.truth import Truth, trace_truth
from sim.world import World


@dataclass(frozen=True, slots=True)
class Scenario:
    """A family of runs. `cases` are numbers of settled public cases it stands for; `meant` is only a hint for readers."""

    name: str
    meant: str
    build: Callable[[int], World]
    cases: tuple[int, ...] = ()
    tags: frozenset[str] = frozenset()


@dataclass(slots=True)
class Generated:
    """The files of one variant and its truth."""

    scenario: str
    seed: int
    truth: Truth
    traces: list[Path] = field(default_factory=list)
    evidence: dict[str, list[Path]] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str, meant: str, *, cases: tuple[int, ...] = (), tags: tuple[str, ...] = ()
) -> Callable[[Callable[[int], World]], Callable[[int], World]]:
    """Register a builder."""

    def add(build: Callable[[int], World]) -> Callable[[int], World]:
        SCENARIOS[name] = Scenario(name, meant, build, cases, frozenset(tags))
        return build

    return add


def generate(name: str, seed: int, out_dir: Path) -> Generated:
    """Write a variant's files into `out_dir` (made if needed) and return them with the computed truth."""
    out_dir.mkdir(parents=True, exist_ok=True)
    world = SCENARIOS[name].build(seed)
    run = simulate(world)
    truth = trace_truth(world, run)
    made = Generated(name, seed, truth)
    for rec in run.ranks:
        path = out_dir / ("trace.json.gz" if world.ranks == 1 else f"trace_rank{rec.rank}.json.gz")
        write_kineto(world, rec, path)
        made.traces.append(path)
    (out_dir / "truth.json").write_text(json.dumps(asdict(truth), indent=1))
    return made


def load_all() -> dict[str, Scenario]:
    """All scenarios, with every family module imported."""
    import sim.families  # noqa: F401

    return SCENARIOS
