"""A traced window of a deployment: consecutive steps of it, run again on simulated hosts and streams."""

from sim.arch import StepPlan
from sim.serving import Served, StepRecord
from sim.world import Profile, World

STEPS = 6


def prefill_time_share(steps: list[StepRecord]) -> float:
    """Share of the steps' time in steps that compute prompt tokens."""
    return sum(s.dur for s in steps if s.plan_prefill) / max(1, sum(s.dur for s in steps))


def choose_window(run: Served, steps: int = STEPS) -> int:
    """First step of the window in the middle half whose mix of steps is nearest to the whole run's.

    Whoever captures a trace of a slow deployment wants it to be representative; a window is still only a few steps.
    """
    low, high = len(run.steps) // 4, max(len(run.steps) // 4 + 1, 3 * len(run.steps) // 4 - steps)
    whole = prefill_time_share(run.steps[low : high + steps])
    batch = sum(s.decode for s in run.steps[low:high]) / max(1, high - low)

    def distance(i: int) -> float:
        part = run.steps[i : i + steps]
        away = abs(sum(s.decode for s in part) / len(part) - batch) / max(1.0, batch)
        return abs(prefill_time_share(part) - whole) + 0.3 * away

    return min(range(low, high), key=lambda i: (distance(i), abs(i - (low + high) // 2)))


def traced_world(run: Served, engine: str = "vllm", steps: int = STEPS) -> World:
    """The world of a window: the same batches, contexts and chunks, the same host costs."""
    s = run.serve
    first = choose_window(run, steps)
    plans = tuple(
        StepPlan(x.plan_prefill, run.contexts[first + i])
        for i, x in enumerate(run.steps[first : first + steps])
    )
    return World(
        device=s.device,
        arch=s.arch,
        plans=plans,
        options=s.options,
        host=s.host,
        graphs=s.graphs,
        graph_max=s.graph_max,
        async_scheduling=s.async_scheduling,
        collective_speed=s.collective_speed,
        clock=s.clock,
        noise=s.noise,
        profile=Profile(engine="sglang" if engine == "sglang" else "vllm_detailed"),
        seed=s.seed,
    )
