"""A run without a GPU: operators execute on the thread that calls them, and the trace holds operators only."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from sim import rng
from sim.hardware import Device, duration_ns
from sim.kineto import BASE_NS, FIRST_NS, _op_args, _us, _x
from sim.model import Kernel, Op, step_kernels
from sim.truth import Truth, rank_gains
from sim.world import World

# A two-socket server's figures: eight channels of DDR5 a socket, AVX-512 or AMX in bf16, well below peak in PyTorch.
CPU = Device("cpu", "cpu", "cpu", 64, 512 << 30, 300e9, {"bf16": 12e12, "fp16": 12e12, "fp32": 4e12, "int8": 20e12}, 3e12, 1.0, 1.0,
             (0, 0), 0.7, 0.6, 1500.0, 2000.0, 4000.0, 1.0, 100 << 20)  # fmt: skip


def _operators(world: World, device: Device, overhead: float) -> Iterator[tuple[int, Kernel, int, int]]:
    """(step, kernel, overhead ns, work ns) in order."""
    assert world.arch is not None
    for step, plan in enumerate(world.plans):
        index = 0
        for group in step_kernels(world.arch, plan, world.options, "cpu"):
            for k in group:
                index += 1
                noise = rng.lognormal(world.noise, world.luck, 17, step, index)
                work = duration_ns(device, k.work, CPU) * noise
                yield (
                    step,
                    k,
                    round(overhead * rng.lognormal(world.host.jitter, world.luck, 18, step, index)),
                    round(work),
                )


def cpu_time_ns(world: World, device: Device = CPU, overhead: float | None = None) -> float:
    """Total of a run: nothing overlaps on one thread."""
    return float(
        sum(
            o + w
            for _, _, o, w in _operators(world, device, world.host.op_ns if overhead is None else overhead)
        )
    )


def cpu_truth(world: World) -> Truth:
    """The limit: matrix units, memory or the framework's own time per operator. Without roofs nobody can tell the first two."""
    base = cpu_time_ns(world)
    gains = {
        "compute": 1.0 - cpu_time_ns(world, CPU.with_factor(compute=2.0)) / base,
        "hbm": 1.0 - cpu_time_ns(world, CPU.with_factor(memory=2.0)) / base,
        "launch_overhead": 1.0 - cpu_time_ns(world, overhead=0.03 * world.host.op_ns) / base,
    }
    limits, runner_up = rank_gains(gains)
    truth = Truth("step_time", base / len(world.plans), "ns", gains, limits, runner_up)
    truth.sufficient = False
    truth.notes.append("the trace names no device and no roofs of the CPU are known")
    return truth


def write_cpu(world: World, path: Path) -> None:
    """Operators of one thread, nested, and a ProfilerStep annotation a step."""
    events: list[dict[str, object]] = []
    at, external, pid = FIRST_NS, 10, 4242
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for step, k, over, work in _operators(world, CPU, world.host.op_ns):
        starts.setdefault(step, at)
        at += over // 2
        chain: list[Op] = [k.op]
        while chain[0].parent is not None:
            chain.insert(0, chain[0].parent)
        total = over - over // 2 + work
        for depth, op in enumerate(chain):
            external += 1
            args = _op_args(op, external, external, world.profile.shapes)
            # An outer operator begins a little before the one it calls.
            events.append(_x("cpu_op", op.name, pid, pid, at + depth * 200, total - depth * 200, args))
        at += total
        ends[step] = at
    for step, start in starts.items():
        events.append(
            _x(
                "user_annotation",
                f"ProfilerStep#{step}",
                pid,
                pid,
                start,
                ends[step] - start,
                {"External id": 2_000_000 + step},
            )
        )
    events.append({"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": _us(at)})
    doc = {"schemaVersion": 1, "deviceProperties": [], "record_shapes": int(world.profile.shapes), "with_stack": 0,
           "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "/tmp/trace.json"}  # fmt: skip
    with gzip.GzipFile(filename="", fileobj=path.open("wb"), mode="wb", mtime=0, compresslevel=6) as out:
        out.write(json.dumps(doc, separators=(", ", ": ")).encode())
