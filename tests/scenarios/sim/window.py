"""A traced window of a deployment: a few of its steps, run on simulated hosts."""

from sim.arch import StepPlan
from sim.serving import Served
from sim.world import Profile, World


def traced_world(run: Served, engine: str = "vllm", steps: int = 4) -> World:
    """The world of a few decode steps from the middle of the run, at that moment's batch and contexts."""
    s = run.serve
    middle = len(run.steps) // 2
    at = min(run.contexts_at, key=lambda i: abs(i - middle))
    base = StepPlan(decode=run.contexts_at[at])
    plans = [base.grown(i) for i in range(steps)]
    # A chunk that rides along in every other step is part of the window when the deployment mixes them.
    mixed = [x for x in run.steps[max(0, middle - 50) : middle + 50] if x.plan_prefill and x.decode]
    if mixed and len(mixed) > 10:
        plans[1] = StepPlan(mixed[len(mixed) // 2].plan_prefill, plans[1].decode)
    graphs = s.graphs and len(base.decode) <= s.graph_max
    form = "sglang" if engine == "sglang" else "vllm_detailed"
    return World(
        device=s.device,
        arch=s.arch,
        plans=tuple(plans),
        options=s.options,
        host=s.host,
        graphs=graphs,
        async_scheduling=s.async_scheduling,
        collective_speed=s.collective_speed,
        clock=s.clock,
        noise=s.noise,
        profile=Profile(engine=form),
        seed=s.seed,
    )
