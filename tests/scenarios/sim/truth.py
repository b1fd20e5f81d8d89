"""What limits a run, found by relieving one resource at a time and running again with the same random numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sim.steps import Run, simulate
from sim.world import World

TIE = 0.05  # two limits whose gains differ by less than this share of the step both count


def _no_launch(w: World) -> World:
    """Launching costs almost nothing, as under a captured graph."""
    return w.with_host(op_ns=w.host.op_ns * 0.03, api_ns=w.host.api_ns * 0.1)


RELIEFS: dict[str, Callable[[World], World]] = {
    "compute": lambda w: replace(w, device=w.device.with_factor(compute=2.0)),
    "hbm": lambda w: replace(w, device=w.device.with_factor(memory=2.0)),
    # Launches stay: a faster kernel is relieved here, a cheaper launch below.
    "kernel_inefficiency": lambda w: w.with_options(
        gemm_quality=1.0, attention_quality=1.0, strided=1.0, chain=1.0 if w.options.fused else 0.2, sampler_sort=False,
        weights="marlin" if w.options.weights == "awq" else w.options.weights, kv_concat=False),
    "launch_overhead": _no_launch,
    "host_sync": lambda w: w.with_host(syncs=0, plan_ns=0.0, small_async=w.host.small_copies > 0),
    # A late rank whose lateness lies between steps is late by its own scheduling: both names are right.
    "scheduling": lambda w: replace(
        w.with_host(sched_ns=0.0, sched_per_seq_ns=0.0, detok_per_token_ns=0.0, logprob_ns=0.0, mask_ns=0.0, history_ns=0.0,
                    gc_every=0), straggler_pause_ns=0.0),
    "host_input": lambda w: w.with_host(loader_ns=0.0),
    "copy": lambda w: replace(w, device=w.device.with_factor(link=2.0)) if w.offload.bytes_per_layer else w,
    "communication": lambda w: replace(w, collective_speed=w.collective_speed * 2.0),
    "imbalance": lambda w: replace(w.with_host(gc_every=0 if w.ranks > 1 else w.host.gc_every), straggler=-1, straggler_factor=1.0,
                                   straggler_pause_ns=0.0),
    "power": lambda w: replace(w, clock=1.0),
}  # fmt: skip


@dataclass(slots=True)
class Truth:
    """Gains are shares of the objective's time saved: 0.4 means the step takes 60 % of what it took."""

    objective: str
    value: float
    unit: str
    gains: dict[str, float]
    limits: tuple[str, ...]
    runner_up: str | None = None
    paired_gain: float = 0.0  # of the two limits together, where neither helps alone
    sufficient: bool = True  # does the evidence written suffice to tell
    borderline: bool = False  # too near the edge of sufficiency to score
    notes: list[str] = field(default_factory=list)

    @property
    def limit(self) -> str:
        """The limit whose relief helps most."""
        return self.limits[0]


def changes_nothing(world: World, limit: str) -> bool:
    """Whether a relief cannot matter, so that the re-run is skipped."""
    return RELIEFS[limit](world) == world


def trace_truth(world: World, run: Run | None = None) -> Truth:
    """The limit of step time.

    Host and device run side by side: where they take equally long, relieving one alone gains little and both bind. Then
    pairs are relieved too, and a pair that gains far more than any single relief is the (double) limit.
    """
    base = (run or simulate(world)).step_time_ns
    gains = {
        limit: 0.0 if changes_nothing(world, limit) else 1.0 - simulate(relief(world)).step_time_ns / base
        for limit, relief in RELIEFS.items()
    }
    limits, runner_up = rank_gains(gains)
    truth = Truth("step_time", base, "ns", gains, limits, runner_up)
    if gains[limits[0]] < 0.2 if limits[0] in gains else True:
        _relieve_pairs(world, base, truth)
    return truth


def _relieve_pairs(world: World, base: float, truth: Truth) -> None:
    single = max(truth.gains.values())
    best, pair = 0.0, None
    for host in ("launch_overhead", "scheduling"):
        for device in ("hbm", "compute", "kernel_inefficiency"):
            if changes_nothing(world, host) or changes_nothing(world, device):
                continue
            gain = 1.0 - simulate(RELIEFS[host](RELIEFS[device](world))).step_time_ns / base
            if gain > best:
                best, pair = gain, (host, device)
    if pair is not None and best > 2 * single + TIE:
        truth.limits = tuple(sorted(pair, key=lambda k: -truth.gains[k]))
        truth.notes.append(f"both bind: together they gain {best:.3f}")
        truth.paired_gain = best


def rank_gains(gains: dict[str, float], tie: float = TIE) -> tuple[tuple[str, ...], str | None]:
    """Limits within `tie` of the best, best first, and the next one behind them."""
    ordered = sorted(gains, key=lambda k: -gains[k])
    best = gains[ordered[0]]
    limits = tuple(k for k in ordered if gains[k] >= best - tie and gains[k] > 0)
    rest = [k for k in ordered if k not in limits]
    return limits or ("inconclusive",), rest[0] if rest else None
