"""The limit of a deployment for an objective: relieve one thing, serve the same requests again."""

from collections.abc import Callable
from dataclasses import replace

from sim.serving import Serve, Served, relieved, serve
from sim.truth import TIE, Truth, rank_gains

Relief = Callable[[Serve], Serve]

_QUALITY = {
    "gemm_quality": 1.0,
    "attention_quality": 1.0,
    "strided": 1.0,
    "fused": True,
    "sampler_sort": False,
}


def _kernels(s: Serve) -> Serve:
    weights = "marlin" if s.options.weights == "awq" else s.options.weights
    return replace(s, options=replace(s.options, weights=weights, **_QUALITY))  # type: ignore[arg-type]


def _load(s: Serve) -> Serve:
    if s.load.concurrency:
        n = 2 * s.load.concurrency
        return relieved(s, load_concurrency=n, load_requests=s.load.requests * 2)
    return relieved(s, load_rate=2 * s.load.rate, load_requests=s.load.requests * 2)


# Several causes share the limit `scheduling`; the one that helps most stands for it.
RELIEFS: dict[str, tuple[str, Relief]] = {
    "compute": ("compute", lambda s: replace(s, device=s.device.with_factor(compute=2.0))),
    "hbm": ("hbm", lambda s: replace(s, device=s.device.with_factor(memory=2.0))),
    "kv_pool": ("kv_capacity", lambda s: replace(s, kv_tokens=2 * s.kv_tokens)),
    "slot_cap": ("scheduling", lambda s: replace(s, max_seqs=2 * s.max_seqs)),
    "token_budget": ("scheduling", lambda s: replace(s, token_budget=2 * s.token_budget)),
    "conservative": ("scheduling", lambda s: replace(s, reserve=0.0, hold=0.0)),
    "prefill_interference": ("scheduling", lambda s: s if s.chunked else replace(s, chunked=True, token_budget=512)),
    "front_end": ("scheduling", lambda s: replace(s, front_ns=0.0)),
    "host_between_steps": ("scheduling", lambda s: relieved(
        s, async_scheduling=True, host_sched_ns=0.0, host_sched_per_seq_ns=0.0, host_detok_per_token_ns=0.0,
        host_mask_ns=0.0)),
    "launching": ("launch_overhead", lambda s: relieved(
        s, graphs=True, graph_max=1 << 20, host_op_ns=s.host.op_ns * 0.03, host_api_ns=s.host.api_ns * 0.1)),
    "syncs": ("host_sync", lambda s: relieved(s, host_syncs=0)),
    "kernels": ("kernel_inefficiency", _kernels),
    "collectives": ("communication", lambda s: replace(s, collective_speed=2.0 * s.collective_speed)),
    "clocks": ("power", lambda s: replace(s, clock=1.0)),
    "load": ("demand", _load),
}  # fmt: skip


def needed(s: Serve, run: Served, cause: str, objective: str) -> bool:
    """Whether a relief can matter at all (saves re-runs that are certain to change nothing)."""
    peak_used = max(x.used_blocks for x in run.steps) / run.blocks
    checks = {
        "kv_pool": peak_used > 0.85,
        "slot_cap": max(x.running for x in run.steps) >= s.max_seqs,
        "token_budget": any(x.waiting or x.plan_prefill for x in run.steps),
        "collectives": s.options.tp > 1,
        "clocks": s.clock != 1.0,
        "load": objective == "throughput",
    }
    return checks.get(cause, True) and RELIEFS[cause][1](s) != s


def serving_truth(s: Serve, objective: str, run: Served | None = None) -> tuple[Truth, dict[str, float]]:
    """The truth for an objective and the gain of every single cause."""
    run = run or serve(s)
    base = run.objective(objective)
    causes = {}
    for cause, (_, relief) in RELIEFS.items():
        causes[cause] = (
            1.0 - serve(relief(s)).objective(objective) / base if needed(s, run, cause, objective) else 0.0
        )
    gains: dict[str, float] = {}
    for cause, gain in causes.items():
        limit = RELIEFS[cause][0]
        gains[limit] = max(gains.get(limit, 0.0), gain)
    limits, runner_up = rank_gains(gains)
    if objective == "throughput" and "demand" not in limits and gains["demand"] >= 0.75 * max(gains.values()):
        # A closed loop in which nobody waits: more clients help nearly as much as the fastest device would.
        limits = (*limits, "demand")
    truth_pair = 0.0
    if objective != "itl" and needed(s, run, "kv_pool", objective) and needed(s, run, "slot_cap", objective):
        # Cap and pool bind together: doubling one alone leaves the other in the way.
        both = RELIEFS["kv_pool"][1](RELIEFS["slot_cap"][1](s))
        truth_pair = 1.0 - serve(both).objective(objective) / base
        if truth_pair > max(gains.values()) + TIE and truth_pair > 2 * max(
            gains["kv_capacity"], gains["scheduling"]
        ):
            runner_up = limits[0]
            limits = ("kv_capacity", "scheduling")
        else:
            truth_pair = 0.0
    value = run.steady_throughput if objective == "throughput" else base
    unit = "tok/s" if objective == "throughput" else "ms"
    return Truth(objective, value, unit, gains, limits, runner_up, paired_gain=truth_pair), causes
