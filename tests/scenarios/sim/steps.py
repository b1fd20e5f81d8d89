"""A run: the main loop of every rank, and the figures taken from its recording."""

from dataclasses import dataclass
from itertools import pairwise

from sim.arch import StepPlan
from sim.core import Activity, Host, Loop, Signal
from sim.loop import COMPUTE, OFFLOAD, Call, Note, OpEvent, Rank, Recording, _kernels, annotation
from sim.model import Kernel, Op
from sim.world import World


@dataclass(slots=True)
class Run:
    """What a world did."""

    world: World
    ranks: list[Recording]
    end_ns: int

    @property
    def step_time_ns(self) -> float:
        """Steady time per step on the slowest rank: from one step's end on the device to the next, the first left out."""
        return max(_period(r.step_device_ends[self.world.warm_up :]) for r in self.ranks)

    def phase_time_ns(self, phase: str | None) -> float:
        """Mean time per step of one phase (None: of all) on the slowest rank.

        A step lasts from the end of the one before it to its own end on the device. The first of a run has none before it:
        it gets its own span and the usual gap.
        """
        first = self.world.warm_up
        mine = [i for i, p in enumerate(self.world.plans) if i >= first and phase in (None, p.phase)]
        mine = mine or list(range(first, len(self.world.plans)))
        return max(sum(periods[i] for i in mine) / len(mine) for periods in map(_periods, self.ranks))

    @property
    def busy_ns(self) -> int:
        """Device time of rank 0 covered by at least one activity."""
        return union_ns([(a.start, a.end) for a in self.ranks[0].activities])


def _periods(r: Recording) -> list[float]:
    """Every step's time on the device of one rank, the gap before it included."""
    ends = r.step_device_ends
    starts = [min((a.start for a in r.activities if a.step == i), default=end) for i, end in enumerate(ends)]
    gaps = [max(0, starts[i] - ends[i - 1]) for i in range(1, len(ends))]
    usual = sum(gaps) / len(gaps) if gaps else 0.0
    return [ends[0] - starts[0] + usual, *(float(b - a) for a, b in pairwise(ends))]


def _period(ends: list[int]) -> float:
    return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else float(ends[-1])


def union_ns(spans: list[tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, edge = 0, -1
    for start, end in sorted(spans):
        total += max(0, end - max(start, edge))
        edge = max(edge, end)
    return total


def simulate(world: World) -> Run:
    """Run every rank to the end."""
    loop, shared = Loop(), {}
    ranks = [Rank(loop, world, r, shared) for r in range(world.ranks)]
    for rank in ranks:
        loop.spawn(_main(rank))
    end = loop.run()
    for rank in ranks:
        rank.rec.activities = rank.gpu.activities
        rank.rec.ops.sort(key=lambda o: (o.start, -o.dur))
    return Run(world, [r.rec for r in ranks], end)


def _main(r: Rank) -> Host:
    w, host = r.w, r.w.host
    pending: tuple[Activity, StepPlan] | None = None
    for step, plan in enumerate(w.plans):
        r.step, r.draw = step, 0
        r.rec.step_starts.append(r.loop.now)
        if host.loader_ns:
            start = r.loop.now
            yield r.cpu(host.loader_ns)
            r.rec.notes.append(
                Note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, r.loop.now - start)
            )
        yield r.cpu(host.sched_ns + host.sched_per_seq_ns * plan.sequences)
        if r.pause:
            yield r.cpu(r.pause)
        if host.gc_every and step % host.gc_every == host.gc_every - 1 and r.rank == max(w.straggler, 0):
            yield r.cpu(host.gc_ns)
        start = r.loop.now
        yield from _forward(r, plan)
        out = yield from _tokens_back(r, plan)
        if not w.async_scheduling:
            yield from r.synchronize(r.api["sync"])
        text = annotation(w, plan) or (f"ProfilerStep#{step + 6}" if w.profile.engine == "hf" else None)
        if text:
            r.rec.notes.append(Note(text, start, r.loop.now - start))
        ready = (out, plan) if not w.async_scheduling else pending
        pending = (out, plan)
        if ready is not None:
            yield from _process(r, *ready)
    if w.async_scheduling and pending is not None:
        yield from _process(r, *pending)
    last = r.gpu.last(None)
    if last is not None:
        yield last
    ends = [0] * len(w.plans)
    for a in r.gpu.activities:
        ends[a.step] = max(ends[a.step], a.end)
    r.rec.step_device_ends = ends


def _process(r: Rank, out: Activity, plan: StepPlan) -> Host:
    """Wait for a step's tokens, then detokenise and update the requests."""
    if r.w.async_scheduling:
        start, correlation = r.loop.now, r.ids()[0]
        yield out.signal
        yield r.cpu(3_000.0)
        r.rec.sync_calls.add(correlation)
        r.rec.calls.append(
            Call(r.api["sync"].replace("Stream", "Event"), start, r.loop.now - start, correlation, 0)
        )
    h = r.w.host
    yield r.cpu((h.detok_per_token_ns + h.logprob_ns) * plan.sequences)
    if h.history_ns:
        start = r.loop.now
        yield r.cpu(h.history_ns * plan.context)
        op = Op(h.history_op, ([[plan.sequences, plan.context]],), ("TensorList",))
        r.rec.ops.append(OpEvent(op, start, r.loop.now - start, r.ids()[1]))


def _tokens_back(r: Rank, plan: StepPlan) -> "Host":
    """Copy the sampled tokens (and log-probabilities) to pinned memory."""
    before = len(r.gpu.activities)
    yield from r.copy("DtoH", (8.0 + r.w.host.logprob_bytes) * plan.sequences, index=900)
    return r.gpu.activities[before]


def _forward(r: Rank, plan: StepPlan) -> Host:
    w, host = r.w, r.w.host
    yield r.cpu(host.prep_ns * 0.5)
    for i, size in enumerate(
        (8 * plan.tokens, 8 * plan.tokens, 4 * sum(-(-c // 16) for c in plan.decode) + 64)
    ):
        yield from r.copy("HtoD", size, index=i)
    if host.plan_ns:
        yield from r.read_value(99, host.plan_ns)
    yield r.cpu(host.prep_ns * 0.5)
    groups = _kernels(w.arch, plan, w.options, r.vendor)
    if host.mask_ns:
        yield from _masked(r, plan, groups)
        return
    indexed, at = [], 0
    for group in groups:
        indexed.append([(at + i, k) for i, k in enumerate(group)])
        at += len(group)
    layers = len(groups) - 2
    sync_at = {1 + (i * layers) // host.syncs for i in range(host.syncs)} if host.syncs else set()
    ahead: dict[int, tuple[Signal, ...]] = {}
    if w.offload.bytes_per_layer and w.offload.overlap:
        ahead[1] = yield from _fetch(r, 1)
    graphs = w.graphs and not plan.prefill and len(plan.decode) <= w.graph_max
    if graphs and not (host.syncs or w.offload.bytes_per_layer or w.piecewise or host.small_copies):
        yield from r.replay([pair for group in indexed for pair in group], graph=1)
        return
    for g, group in enumerate(indexed):
        inside = 1 <= g <= layers
        if inside and w.offload.bytes_per_layer:
            if w.offload.overlap:
                if g + 1 <= layers:
                    ahead[g + 1] = yield from _fetch(r, g + 1)
                yield from r.call(r.api["wait"], 1_500.0, *r.ids())
            else:
                yield from r.copy(
                    "HtoD", w.offload.bytes_per_layer, pageable=w.offload.pageable, index=100 + g
                )
        if inside:
            for i in range(host.small_copies):
                yield from r.copy("HtoD", 4096.0, pageable=not host.small_async, index=2000 + g * 64 + i)
        before = len(r.gpu.activities)
        if graphs and w.piecewise and inside:
            yield from _piecewise(r, group, g)
        elif graphs:
            yield from r.replay(group, graph=g)
        else:
            yield from r.eager(iter(group))
        for a in r.gpu.activities[before:]:
            if a.start < 0 and g in ahead:
                a.waits = (*a.waits, *ahead[g])
        if g in sync_at:
            yield from r.read_value(g)


def _masked(r: Rank, plan: StepPlan, groups: tuple[tuple[Kernel, ...], ...]) -> Host:
    """The model up to its logits, the grammar's mask built on the host and copied, then the sampler."""
    indexed = list(enumerate(k for group in groups for k in group))
    cut = next(i for i, k in indexed if k.role == "lm_head") + 1
    if r.w.graphs and not plan.prefill and len(plan.decode) <= r.w.graph_max:
        yield from r.replay(indexed[:cut], graph=1)
    else:
        yield from r.eager(iter(indexed[:cut]))
    # The mask needs the tokens sampled so far, and is built on the host.
    yield from r.synchronize(r.api["sync"])
    yield r.cpu(r.w.host.mask_ns * plan.sequences)
    yield from r.copy("HtoD", plan.sequences * r.w.arch.vocab / 8, index=901)
    yield from r.eager(iter(indexed[cut:]))


def _piecewise(r: Rank, group: list[tuple[int, Kernel]], graph: int) -> Host:
    """A graph, the attention kernels launched one by one, another graph."""
    cut = [i for i, (_, k) in enumerate(group) if k.role.startswith("attention")]
    yield from r.replay(group[: cut[0]], graph=2 * graph)
    yield from r.eager(iter(group[cut[0] : cut[-1] + 1]))
    yield from r.replay(group[cut[-1] + 1 :], graph=2 * graph + 1)


def _fetch(r: Rank, layer: int) -> "Host":
    """Start copying a layer's weights on the side stream."""
    before = len(r.gpu.activities)
    yield from r.copy("HtoD", r.w.offload.bytes_per_layer, stream=OFFLOAD, index=100 + layer)
    return (r.gpu.activities[before].signal,)


__all__ = ["COMPUTE", "Run", "simulate", "union_ns"]
