"""The engine loop on simulated hosts: schedule, prepare, launch a step, read the sampled tokens back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from sim import rng
from sim.arch import Arch, StepPlan
from sim.core import Activity, Collective, Gpu, Host, Loop, Signal
from sim.hardware import DEVICES, Device, collective_ns, copy_ns, duration_ns
from sim.model import Kernel, Op, Options, step_kernels
from sim.world import World

COMPUTE, COMM, OFFLOAD = 7, 13, 20
QUEUE_DEPTH = 1000  # launches a stream holds before the launch call blocks


@dataclass(slots=True)
class Call:
    """A runtime API call."""

    name: str
    start: int
    dur: int
    correlation: int
    external: int


@dataclass(slots=True)
class OpEvent:
    """An operator as the profiler records it."""

    op: Op
    start: int
    dur: int
    external: int


@dataclass(slots=True)
class Note:
    """A user annotation."""

    text: str
    start: int
    dur: int


@dataclass(slots=True)
class Recording:
    """All that happened on one rank."""

    rank: int
    calls: list[Call] = field(default_factory=list)
    ops: list[OpEvent] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    step_starts: list[int] = field(default_factory=list)
    step_device_ends: list[int] = field(default_factory=list)
    sync_calls: set[int] = field(default_factory=set)


@lru_cache(maxsize=256)
def _kernels(arch: Arch, plan: StepPlan, options: Options, vendor: str) -> tuple[tuple[Kernel, ...], ...]:
    return tuple(tuple(group) for group in step_kernels(arch, plan, options, vendor))


def annotation(world: World, plan: StepPlan) -> str | None:
    """The step annotation of the engine that runs."""
    pre, dec = plan.prefill, plan.decode
    new = sum(n for n, _ in pre)
    match world.profile.engine:
        case "vllm":
            return f"execute_context_{len(pre)}({new})_generation_{len(dec)}({len(dec)})"
        case "vllm_detailed":
            c = f"sq{new}sk{sum(c for _, c in pre)}sqsq{sum(n * n for n, _ in pre)}sqsk{sum(n * c for n, c in pre)}"
            g = f"sq{len(dec)}sk{sum(dec)}sqsq{len(dec)}sqsk{sum(dec)}"
            return f"execute_{plan.tokens}_context_{len(pre)}({c})_generation_{len(dec)}({g})"
        case "vllm_tokens":
            tail = f"({len(dec)}_{len(dec)})" if dec else "(0)"
            return (
                f"execute_context_{len(pre)}({new}_{sum(n * n for n, _ in pre)})_generation_{len(dec)}{tail}"
            )
        case "vllm_old":
            return f"execute_new_{len(pre)}_cached_{len(dec)}"
        case "sglang":
            kind = "MIXED" if pre and dec else "EXTEND" if pre else "DECODE"
            return f"step[{kind} bs={plan.sequences}" + (f" toks={plan.tokens}]" if pre else "]")
    return None


def api_names(vendor: str) -> dict[str, str]:
    """Runtime API spellings."""
    if vendor == "amd":
        return {"launch": "hipLaunchKernel", "graph": "hipGraphLaunch", "copy": "hipMemcpyAsync", "sync": "hipStreamSynchronize",
                "event": "hipEventRecord", "wait": "hipStreamWaitEvent"}  # fmt: skip
    return {"launch": "cudaLaunchKernel", "graph": "cudaGraphLaunch", "copy": "cudaMemcpyAsync", "sync": "cudaStreamSynchronize",
            "event": "cudaEventRecord", "wait": "cudaStreamWaitEvent"}  # fmt: skip


class Rank:
    """One rank's main thread and its device."""

    def __init__(
        self, loop: Loop, world: World, rank: int, shared: dict[tuple[int, int], Collective]
    ) -> None:
        self.loop, self.w, self.rank, self.shared = loop, world, rank, shared
        self.gpu = Gpu(loop)
        self.rec = Recording(rank)
        self.device: Device = world.device.with_factor(compute=world.clock)
        self.api = api_names(world.device.vendor)
        self.vendor = world.device.family
        self.correlation, self.external, self.draw = 1000 + rank, 100, 0
        self.step = -1
        slow = world.straggler == rank
        run_host = rng.lognormal(world.run_host, world.luck, 15)
        self.slow = (world.straggler_factor if slow else 1.0) / world.host.speed * run_host * world.pace
        self.device_luck = world.pace * rng.lognormal(world.run_device, world.luck, 16, rank)
        self.pause = world.straggler_pause_ns if slow else 0.0

    # -- host time ------------------------------------------------------------------------------------------------

    def cpu(self, ns: float) -> int:
        """A piece of host work with jitter. Draws are numbered inside a step, so that runs stay comparable."""
        self.draw += 1
        return round(
            ns
            * self.slow
            * rng.lognormal(self.w.host.jitter, self.w.luck, 11, self.rank, self.step, self.draw)
        )

    def noisy(self, ns: float, *key: int) -> int:
        """A device duration with noise addressed by what it is."""
        return max(
            1, round(ns * self.device_luck * rng.lognormal(self.w.noise, self.w.luck, 12, self.rank, *key))
        )

    def ids(self) -> tuple[int, int]:
        """A fresh correlation and external id."""
        self.correlation += 1
        self.external += 1
        return self.correlation, self.external

    def call(self, name: str, ns: float, correlation: int, external: int) -> Host:
        """An API call that does not wait."""
        start = self.loop.now
        yield self.cpu(ns)
        self.rec.calls.append(Call(name, start, self.loop.now - start, correlation, external))

    def synchronize(self, name: str, stream: int | None = COMPUTE, extra: float = 4_000.0) -> Host:
        """A blocking call: returns when the stream has drained."""
        start, correlation = self.loop.now, self.ids()[0]
        yield self.cpu(1_500.0)
        pending = self.gpu.last(stream)
        if pending is not None:
            yield pending
        yield self.cpu(extra)
        self.rec.sync_calls.add(correlation)
        self.rec.calls.append(Call(name, start, self.loop.now - start, correlation, 0))

    # -- device work ----------------------------------------------------------------------------------------------

    def activity(
        self, k: Kernel, index: int, correlation: int, external: int, gap: int, ready: int
    ) -> Activity:
        """The device side of a kernel."""
        w, coll, stream = self.w, None, COMPUTE
        if k.payload:
            key = (self.step, index)
            if key not in self.shared:
                base = collective_ns(w.device, w.ranks, k.payload, w.collective_speed)
                transfer = max(1, round(base * rng.lognormal(w.noise, w.luck, 13, *key)))
                self.shared[key] = Collective(self.loop, w.ranks, transfer)
            coll, ns, share = self.shared[key], 0, 0.05
            stream = COMM if w.comm_stream else COMPUTE
        else:
            ideal = duration_ns(self.device, k.work, DEVICES[w.device.key]) * self.scatter(k.role)
            ns = self.noisy(ideal, self.step, index)
            share = min(1.0, k.blocks / w.device.sms)
        a = Activity("kernel", k.name, stream, ns, "compute", share, ready, Signal(self.loop), correlation, external, gap,
                     k.blocks, k.threads, collective=coll, pdl=w.pdl and not k.payload, role=k.role, step=self.step)  # fmt: skip
        if ns and k.work.kind != "stream":
            a.tensor_share = min(1.0, k.work.flops / ns * 1e9 / DEVICES[w.device.key].tensor[k.work.dtype])
        if ns:
            a.dram_share = min(1.0, k.work.bytes / ns * 1e9 / w.device.bandwidth)
        return a

    def scatter(self, role: str) -> float:
        """How much slower than the plateau this kernel's implementation is on this shape: a property, not noise."""
        planted = dict(self.w.role_factor).get(role, 1.0)
        if not self.w.scatter:
            return planted
        return planted * (1.0 + self.w.scatter * rng.unit(self.w.seed, 14, *role.encode()))

    def eager(self, kernels: Iterator[tuple[int, Kernel]]) -> Host:
        """Launch kernel by kernel; kernels of one operator share its event, operators of one parent theirs."""
        host = self.w.host
        open_ops: list[tuple[Op, int, int]] = []

        def close(keep: int) -> None:
            while len(open_ops) > keep:
                op, start, external = open_ops.pop()
                self.rec.ops.append(OpEvent(op, start, self.loop.now - start, external))

        for index, k in kernels:
            chain: list[Op] = []
            node: Op | None = k.op
            while node is not None:
                chain.insert(0, node)
                node = node.parent
            same = 0
            while same < min(len(chain), len(open_ops)) and open_ops[same][0] is chain[same]:
                same += 1
            close(same)
            if same < len(chain):
                yield self.cpu(host.op_ns * 0.45)
                for op in chain[same:]:
                    open_ops.append((op, self.loop.now, self.ids()[1]))
                yield self.cpu(host.op_ns * 0.45)
            yield from self.launch(k, index, open_ops[-1][2])
            yield self.cpu(host.op_ns * 0.10)
        close(0)

    def launch(self, k: Kernel, index: int, external: int) -> Host:
        """One launch call; blocks while the stream's queue is full."""
        correlation = self.ids()[0]
        start = self.loop.now
        behind = len(self.gpu.activities) - QUEUE_DEPTH
        if behind >= 0 and self.gpu.activities[behind].end < 0:
            yield self.gpu.activities[behind].signal
        yield self.cpu(self.w.host.api_ns)
        now = self.loop.now
        self.rec.calls.append(Call(self.api["launch"], start, now - start, correlation, external))
        a = self.activity(k, index, correlation, external, 700, now + round(self.w.host.latency_ns))
        if self.w.comm_stream:
            self.order_streams(a)
        self.gpu.enqueue(a)

    def order_streams(self, a: Activity) -> None:
        """Collectives on their own stream still wait for, and hold up, the compute they depend on."""
        other = COMPUTE if a.stream == COMM else COMM
        newest = next((x for x in reversed(self.gpu.activities) if x.stream == other), None)
        if newest is not None:
            a.waits = (*a.waits, newest.signal)

    def replay(self, kernels: list[tuple[int, Kernel]], graph: int) -> Host:
        """One graph launch; its nodes share the correlation and follow each other closely."""
        host, (correlation, external) = self.w.host, self.ids()
        # A small graph costs a tenth of a large one's fixed part: piecewise graphs have a few dozen nodes.
        launch = host.graph_api_ns * min(1.0, 0.1 + len(kernels) / 100) + host.graph_node_ns * len(kernels)
        yield self.cpu(host.op_ns)
        yield from self.call(self.api["graph"], launch, correlation, external)
        ready = self.loop.now + round(host.latency_ns * 2)
        for node, (index, k) in enumerate(kernels):
            a = self.activity(k, index, correlation, 0, 450, ready)
            a.graph = (graph, node)
            self.gpu.enqueue(a)

    def copy(self, kind: str, size: float, *, pageable: bool = False, stream: int = COMPUTE, waits: tuple[Signal, ...] = (),
             index: int = 0) -> Host:  # fmt: skip
        """A copy through `aten::copy_`. Pageable ones hold the caller until done."""
        correlation, external = self.ids()
        yield self.cpu(3_000.0)
        start_op = self.loop.now
        yield self.cpu(2_000.0)
        start = self.loop.now
        yield self.cpu(3_500.0)
        shapes = [int(size // 4)]
        ns = self.noisy(copy_ns(self.device, size, pageable), self.step, 50_000 + index)
        side = "Pageable" if pageable else "Pinned"
        label = f"Memcpy HtoD ({side} -> Device)" if kind == "HtoD" else f"Memcpy DtoH (Device -> {side})"
        a = Activity(kind, label, stream, ns, "h2d" if kind == "HtoD" else "d2h", 1.0, self.loop.now + 2_000, Signal(self.loop),
                     correlation, external, 700, bytes=int(size), pageable=pageable, waits=waits, step=self.step)  # fmt: skip
        self.gpu.enqueue(a)
        if pageable:
            yield a.signal
            yield self.cpu(2_000.0)
            self.rec.sync_calls.add(correlation)
        self.rec.calls.append(Call(self.api["copy"], start, self.loop.now - start, correlation, external))
        op = Op("aten::copy_", (shapes, shapes, []), ("int", "int", "Scalar"))
        self.rec.ops.append(OpEvent(op, start_op, self.loop.now - start_op, external))

    def read_value(self, index: int, python_ns: float | None = None) -> Host:
        """`tensor.item()`: a few bytes back, wait for the stream, then Python that needs the value."""
        start = self.loop.now
        yield self.cpu(2_500.0)
        correlation, external = self.ids()
        begin = self.loop.now
        yield self.cpu(3_500.0)
        a = Activity("DtoH", "Memcpy DtoH (Device -> Pageable)", COMPUTE, self.noisy(1_600.0, self.step, 60_000 + index), "d2h", 1.0,
                     self.loop.now + 1_500, Signal(self.loop), correlation, external, 700, bytes=8, pageable=True, step=self.step)  # fmt: skip
        self.gpu.enqueue(a)
        self.rec.calls.append(Call(self.api["copy"], begin, self.loop.now - begin, correlation, external))
        yield from self.synchronize(self.api["sync"])
        inner = Op("aten::_local_scalar_dense", ([],), ("long int",))
        self.rec.ops.append(OpEvent(inner, begin, self.loop.now - begin, external))
        self.rec.ops.append(
            OpEvent(Op("aten::item", ([],), ("long int",)), start, self.loop.now - start, self.ids()[1])
        )
        yield self.cpu(self.w.host.sync_python_ns if python_ns is None else python_ns)
