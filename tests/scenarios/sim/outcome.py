"""What an experiment's metric really becomes: the changed world run with new noise, read as the metric is defined."""

from dataclasses import replace

from sim.experiments import SERVING, TRACE
from sim.serving import Serve, serve
from sim.steps import Run, simulate
from sim.world import World

COMMUNICATION = ("communication time per step", "waiting in collectives per step")


def metric(run: Run, name: str, phase: str | None = None) -> float:
    """Value of a metric, in ms per step (of one phase, where given)."""
    steps = max(1, len(run.world.plans))
    if name in COMMUNICATION:
        slowest = max(sum(a.end - a.start for a in r.activities if a.role == "all_reduce") for r in run.ranks)
        return slowest / steps / 1e6
    return run.phase_time_ns(phase) / 1e6


def trace_ratio(
    world: World, change: str, name: str, phase: str | None = None, base: Run | None = None
) -> float | None:
    """After over before of a metric when the change is made; None when the change is not possible here."""
    if change not in TRACE:
        return None
    changed = TRACE[change](world)
    before = metric(base or simulate(world), name, phase)
    if before <= 0:
        return None
    return metric(simulate(replace(changed, again=world.again + 1)), name, phase) / before


def serving_ratio(s: Serve, change: str, name: str) -> float | None:
    """The same for a deployment and one of throughput, ttft, itl, e2e (throughput as tokens per second)."""
    if change not in SERVING:
        return None
    before, after = serve(s), serve(SERVING[change](s))
    if name == "throughput":
        return after.throughput / before.throughput
    return after.objective(name) / before.objective(name)
