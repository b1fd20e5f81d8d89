"""Before and after: the same run twice with new luck, or with one known change planted in the second."""

from dataclasses import dataclass, replace
from pathlib import Path

from sim import rng
from sim.kineto import write_kineto
from sim.registry import load_all
from sim.steps import simulate
from sim.world import World

FAMILIES = (
    "hbm-decode",
    "launch-eager-decode",
    "scheduling-gap-decode",
    "compute-prefill",
    "host-sync-decode",
    "mixed-step",
)


@dataclass(slots=True)
class Pair:
    """Two sides of a comparison (several repeats a side), and the true change of the step time (after over before)."""

    before: list[Path]
    after: list[Path]
    true_ratio: float


def world_of(seed: int, steps: int = 12, family: str | None = None) -> World:
    """A run of enough steps to compare, of a family drawn by the seed."""
    name = family or rng.choice(FAMILIES, seed, 120)
    w = load_all()[name].variant(seed).world
    assert w is not None, "families of pairs are traced worlds"
    base = w.plans[0]
    plans = tuple(base.grown(i) if base.decode and not base.prefill else base for i in range(steps))
    return replace(w, plans=plans, run_device=0.006, run_host=0.02)


def write_pair(
    seed: int, out_dir: Path, change: World | None = None, repeats: int = 1, steps: int = 12
) -> Pair:
    """Traces of `repeats` runs a side; `change` is the after-side's world (the same world when None: a null pair)."""
    before = world_of(seed, steps)
    after = change or before
    sides: list[list[Path]] = []
    for side, world in (("before", before), ("after", after)):
        paths = []
        for i in range(repeats):
            again = i if side == "before" else 100 + i
            paths += _write(replace(world, again=again), out_dir / side / str(i))
        sides.append(paths)
    quiet = [
        simulate(replace(w, run_device=0.0, run_host=0.0, noise=0.0)).step_time_ns for w in (before, after)
    ]
    return Pair(sides[0], sides[1], quiet[1] / quiet[0])


def planted(seed: int, factor: float = 1.08, steps: int = 12) -> World:
    """The run with every host and device duration longer by a factor."""
    w = world_of(seed, steps)
    return replace(w, pace=w.pace * factor)


def slower_kernel(seed: int, role: str, factor: float = 1.10, steps: int = 12) -> World:
    """The run with the kernels of one role slower."""
    return replace(world_of(seed, steps), role_factor=((role, factor),))


def _write(world: World, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for rec in simulate(world).ranks:
        path = folder / ("trace.json.gz" if world.ranks == 1 else f"trace_rank{rec.rank}.json.gz")
        write_kineto(world, rec, path)
        out.append(path)
    return out
