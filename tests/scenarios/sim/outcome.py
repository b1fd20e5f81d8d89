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


WARM_UP = 6
"""Steps until a host that runs ahead of the device has settled to the pace of the slower of the two."""


def trace_outcome(
    world: World, change: str, name: str, phase: str | None = None, base: Run | None = None
) -> tuple[float, float] | None:
    """A metric before and after the change, in ms per step; None when the change is not possible here."""
    if change not in TRACE:
        return None
    changed = TRACE[change](world)
    before = metric(base or simulate(world), name, phase)
    if before <= 0:
        return None
    after = replace(changed, again=world.again + 1)
    if changed.async_scheduling and not world.async_scheduling:
        after = after.warmed_up(WARM_UP)
    return before, metric(simulate(after), name, phase)


def serving_ratio(s: Serve, change: str, name: str) -> float | None:
    """The same for a deployment and one of throughput, ttft, itl, e2e (throughput as tokens per second)."""
    if change not in SERVING:
        return None
    before, after = serve(s), serve(SERVING[change](s))
    if name == "throughput":
        return after.throughput / before.throughput
    return after.objective(name) / before.objective(name)
