"""Writes a recording as the PyTorch profiler does (CUDA and ROCm forms)."""

import gzip
import json
from pathlib import Path

from sim.core import Activity
from sim.loop import Recording
from sim.world import World

BASE_NS = 1_759_276_800_000_000_000  # the profiler's base: start of a quarter, so that ts stays below 2**53
FIRST_NS = 2_000_000_000_000_000  # the recording's time 0 after that base


def _us(ns: int) -> float:
    return round(ns / 1000.0, 3)


def write_kineto(world: World, rec: Recording, path: Path) -> None:
    """One rank's trace, plain or gzip by the name's end."""
    text = json.dumps(document(world, rec), separators=(", ", ": "))
    if path.suffix == ".gz":
        with gzip.GzipFile(filename="", fileobj=path.open("wb"), mode="wb", mtime=0, compresslevel=6) as out:
            out.write(text.encode())
    else:
        path.write_text(text)


def document(world: World, rec: Recording) -> dict[str, object]:
    """The whole JSON object."""
    p, d = world.profile, world.device
    amd = d.vendor == "amd"
    skew = p.skew_ns[rec.rank] if rec.rank < len(p.skew_ns) else 0
    offset = FIRST_NS + skew
    pid, device = 4242 + rec.rank, rec.rank
    span = max(
        [a.end for a in rec.activities]
        + [c.start + c.dur for c in rec.calls]
        + [n.start + n.dur for n in rec.notes]
    )
    cut_head = round(span * p.drop_launches)
    cut_tail = span - round(span * p.cut_tail)

    def host_in(start: int, dur: int) -> bool:
        return start >= cut_head and start + dur <= cut_tail

    events: list[dict[str, object]] = []
    for n, note in enumerate(rec.notes):
        if host_in(note.start, note.dur):
            events.append(_x("user_annotation", note.text, pid, pid, note.start + offset, note.dur,
                             {"External id": 2_000_000 + n, "Record function id": 0, "Ev Idx": n}))  # fmt: skip
    for n, op in enumerate(rec.ops):
        if host_in(op.start, op.dur):
            events.append(
                _x(
                    "cpu_op",
                    op.op.name,
                    pid,
                    pid,
                    op.start + offset,
                    op.dur,
                    _op_args(op.op, op.external, n, p.shapes),
                )
            )
    if p.python:
        for n, op in enumerate(rec.ops):
            if host_in(op.start, op.dur):
                events.append(_x("python_function", f"model.py({n % 400}): forward", pid, pid, op.start + offset - 400, op.dur + 600,
                                 {"Python parent id": None, "Python id": n, "Ev Idx": 500_000 + n}))  # fmt: skip
    calls = {c.correlation for c in rec.calls if host_in(c.start, c.dur)}
    for c in rec.calls:
        if c.correlation not in calls:
            continue
        args: dict[str, object] = {"cid" if amd else "cbid": 211, "correlation": c.correlation}
        if c.external:
            args = {"External id": c.external, **args}
        events.append(_x("cuda_runtime", c.name, pid, pid, c.start + offset, c.dur, args))
        if p.flows:
            events.append(
                {
                    "ph": "s",
                    "id": c.correlation,
                    "pid": pid,
                    "tid": pid,
                    "ts": _us(c.start + offset),
                    "cat": "ac2g",
                    "name": "ac2g",
                }
            )
    for a in rec.activities:
        if a.start < cut_head or a.end > cut_tail:
            continue
        events.append(_activity(a, device, offset, amd, a.correlation in calls))
        if p.flows and a.correlation in calls:
            events.append({"ph": "f", "id": a.correlation, "pid": device, "tid": a.stream, "ts": _us(a.start + offset),
                           "cat": "ac2g", "name": "ac2g", "bp": "e"})  # fmt: skip
    first = min((e["ts"] for e in events), default=0.0)
    events += [
        {"name": "process_name", "ph": "M", "ts": first, "pid": pid, "tid": 0, "args": {"name": "python3"}},
        {"name": "process_labels", "ph": "M", "ts": first, "pid": pid, "tid": 0, "args": {"labels": "CPU"}},
        {"name": "process_labels", "ph": "M", "ts": first, "pid": device, "tid": 0, "args": {"labels": f"GPU {device}"}},
        {"ph": "X", "cat": "Trace", "ts": first, "dur": _us(span), "pid": "Spans", "tid": "PyTorch Profiler",
         "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
        {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": first},
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": _us(min(span, cut_tail) + offset)},
    ]  # fmt: skip
    out: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [_device(world, i) for i in range(world.ranks)],
    }
    if amd:
        out |= {"roctracer_version": 4.1, "hip_runtime_version": 70253211, "hip_driver_version": 70253211}
    else:
        out |= {"cupti_version": 26, "cuda_runtime_version": 12080, "cuda_driver_version": 12080}
    if world.ranks > 1:
        ranks = list(range(world.ranks))
        out["distributedInfo"] = {
            "backend": "nccl", "rank": rec.rank, "world_size": world.ranks, "pg_count": 1, "nccl_version": "2.27.5",
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": world.ranks, "ranks": ranks}],
        }  # fmt: skip
    out |= {"record_shapes": int(p.shapes), "with_stack": int(p.python), "trace_id": f"{world.seed:032X}", "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "/tmp/trace.json"}  # fmt: skip
    return out


def _x(
    cat: str, name: str, pid: int, tid: int, ts: int, dur: int, args: dict[str, object]
) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": _us(ts),
        "dur": _us(dur),
        "args": args,
    }


def _op_args(op: "object", external: int, index: int, shapes: bool) -> dict[str, object]:
    args: dict[str, object] = {"External id": external, "Record function id": 0}
    dims = list(op.dims)  # type: ignore[attr-defined]
    if shapes and dims:
        types = list(op.types) + [""] * (len(dims) - len(op.types))  # type: ignore[attr-defined]
        scalars = list(op.scalars) + [""] * (len(dims) - len(op.scalars))  # type: ignore[attr-defined]
        strides = [_strides(d) for d in dims]
        if op.name in ("aten::mm", "aten::matmul") and len(dims) == 2:  # type: ignore[attr-defined]
            strides[1] = [1, dims[1][0]]  # weights are stored transposed
        if op.strided and dims and len(dims[0]) == 2:  # type: ignore[attr-defined]
            strides[0] = [1, dims[0][0]]
        args |= {
            "Concrete Inputs": scalars,
            "Input type": types,
            "Input Strides": strides,
            "Input Dims": dims,
        }
    args["Ev Idx"] = index
    return args


def _strides(dims: object) -> list[object]:
    if not isinstance(dims, list) or (dims and isinstance(dims[0], list)):
        return [_strides(d) for d in dims] if isinstance(dims, list) else []
    out: list[object] = []
    step = 1
    for d in reversed(dims):
        out.insert(0, step)
        step *= max(1, d)
    return out


def _activity(a: Activity, device: int, offset: int, amd: bool, linked: bool) -> dict[str, object]:
    args: dict[str, object] = {"device": device, "stream": a.stream, "correlation": a.correlation}
    if a.external and linked:
        args = {"External id": a.external, **args}
    start, dur = a.start + offset, a.end - a.start
    if a.kind == "kernel":
        if amd:
            args["kind"] = "Dispatch Kernel"
            if a.graph is None:
                args |= {"grid": [a.grid * a.threads, 1, 1], "block": [a.threads, 1, 1]}
        else:
            args |= {"queued": 0, "context": 1, "registers per thread": 64, "shared memory": 0, "blocks per SM": a.grid / 132,
                     "warps per SM": a.grid * a.threads / 32 / 132, "grid": [a.grid, 1, 1], "block": [a.threads, 1, 1],
                     "est. achieved occupancy %": 50}  # fmt: skip
            if a.graph is not None:
                args |= {"graph id": a.graph[0], "graph node id": a.graph[1]}
        return _x("kernel", a.name, device, a.stream, start, dur, args)
    args |= {"bytes": a.bytes, "memory bandwidth (GB/s)": a.bytes / max(1, dur)}
    if amd:
        args["kind"] = a.kind
        side = "(Host -> Device)" if a.kind == "HtoD" else "(Device -> Host)"
        return _x("gpu_memcpy", f"Memcpy {a.kind} {side}", device, a.stream, start, dur, args)
    args["context"] = 1
    return _x("gpu_memcpy", a.name, device, a.stream, start, dur, args)


def _device(world: World, index: int) -> dict[str, object]:
    d = world.device
    out: dict[str, object] = {
        "id": index, "name": "" if world.profile.name_empty else d.name, "totalGlobalMem": d.memory_bytes, "computeMajor": d.capability[0],
        "computeMinor": d.capability[1], "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536,
        "warpSize": 64 if d.vendor == "amd" else 32, "sharedMemPerBlock": 65536 if d.vendor == "amd" else 49152, "numSms": d.sms,
    }  # fmt: skip
    if d.vendor == "amd":
        out["maxSharedMemoryPerMultiProcessor"] = 65536
    else:
        out |= {
            "regsPerMultiprocessor": 65536,
            "sharedMemPerBlockOptin": 232448,
            "sharedMemPerMultiprocessor": 233472,
        }
    return out
