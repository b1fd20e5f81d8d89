"""Writes recordings as `nsys export --type sqlite` does, in the table shapes of four product versions.

Tables and columns as public exports and the user guide show them; only columns that carry something are filled.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sim import rng
from sim.core import Activity
from sim.loop import Recording
from sim.world import World

COPY_KIND = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
VERSION_SUFFIX = {"cudaLaunchKernel": "_v7000", "cudaGraphLaunch": "_v10000", "cudaMemcpyAsync": "_v3020",
                  "cudaStreamSynchronize": "_v3020", "cudaEventSynchronize": "_v3020", "cudaStreamWaitEvent": "_v3020",
                  "cudaEventRecord": "_v3020"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schema:
    """What one product version's export holds."""

    version: str
    schema: str
    meta: str  # name of the export's meta-data table
    graph_trace: bool  # has a table for opaque graph replays
    graph_id: bool  # kernels carry the graph's id
    gpu_metrics: bool


SCHEMAS = {
    "2022": Schema("2022.4.2.50", "3.0.0", "EXPORT_META_DATA", False, False, False),
    "2023": Schema("2023.4.4.54", "3.7.2", "META_DATA_EXPORT", False, False, True),
    "2025": Schema("2025.5.2.266", "3.24.0", "META_DATA_EXPORT", True, True, True),
    "2026": Schema("2026.2.1.100", "3.25.0", "META_DATA_EXPORT", True, True, True),
}


def write_nsys(
    world: World,
    ranks: list[Recording],
    path: Path,
    schema: str = "2025",
    metrics: bool = False,
    gpu_info: bool = True,
) -> None:
    """One report of all ranks (a process and a device each). Needs an NVIDIA world."""
    s = SCHEMAS[schema]
    path.unlink(missing_ok=True)
    con = sqlite3.connect(path)
    try:
        _create(con, s)
        strings = _Strings()
        _meta(con, world, s, gpu_info)
        for rec in ranks:
            _rank(con, world, rec, strings, s)
        if metrics and s.gpu_metrics:
            _metrics(con, world, ranks)
        con.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, t) for t, i in strings.ids.items()])
        con.commit()
        con.execute("VACUUM")
    finally:
        con.close()


class _Strings:
    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids) + 1)


def _create(con: sqlite3.Connection, s: Schema) -> None:
    graph = ", graphId INTEGER" if s.graph_id else ""
    green = ", greenContextId INTEGER" if s.schema != "3.0.0" else ""
    kernel_tail = ", clusterX INTEGER, clusterY INTEGER, clusterZ INTEGER" if s.graph_id else ""
    statements = [
        "StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
        f"{s.meta} (name TEXT NOT NULL, value TEXT)",
        "META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT)",
        "TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT)",
        "ANALYSIS_DETAILS (globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL)",
        "CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL"
        f"{green}, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER "
        "NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT "
        "NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, "
        "staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, localMemoryTotal "
        f"INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER{graph}{kernel_tail})",
        "CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL"
        f"{green}, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, "
        "deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, dstDeviceId INTEGER, graphNodeId INTEGER)",
        "CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER)",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT "
        f"NULL{green}, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER)",
        "NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, "
        "text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, "
        "doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT)",
    ]  # fmt: skip
    if s.graph_trace:
        statements += [
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT "
            "NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL, "
            "graphExecId INTEGER NOT NULL)",
            "DIAGNOSTIC_EVENT (timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, severity INTEGER NOT NULL, "
            "text TEXT NOT NULL, globalPid INTEGER)",
        ]  # fmt: skip
    if s.gpu_metrics:
        statements += [
            "GPU_METRICS (timestamp INTEGER, typeId INTEGER NOT NULL, metricId INTEGER NOT NULL, value INTEGER NOT NULL)",
            "TARGET_INFO_GPU_METRICS (typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL, typeName TEXT NOT NULL, metricId INTEGER NOT NULL, "
            "metricName TEXT NOT NULL)",
        ]  # fmt: skip
    statements.append("TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER, l2CacheSize "
                      "INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, pwGpuId INTEGER, uuid TEXT, "
                      "chipName TEXT, cuDevice INTEGER, computeMajor INTEGER, computeMinor INTEGER)")  # fmt: skip
    for statement in statements:
        con.execute(f"CREATE TABLE {statement}")


def _meta(con: sqlite3.Connection, world: World, s: Schema, gpu_info: bool) -> None:
    major, minor, micro = s.schema.split(".")
    con.executemany(
        f'INSERT INTO "{s.meta}" VALUES (?, ?)',
        [("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"), ("EXPORT_PRODUCT_VERSION", s.version), ("EXPORT_SCHEMA_VERSION", s.schema),
         ("EXPORT_SCHEMA_VERSION_MAJOR", major), ("EXPORT_SCHEMA_VERSION_MINOR", minor), ("EXPORT_SCHEMA_VERSION_MICRO", micro)],
    )  # fmt: skip
    mode = "Graph" if world.opaque_graphs else "Node"
    con.executemany(
        "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
        [
            ("CAPTURE_EVENT_TYPE", "Cuda"),
            ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", mode),
        ],
    )
    con.execute(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1759300000000000000, '2025-10-01T06:26:40', '2025-10-01T06:26:40')"
    )
    if gpu_info:
        d = world.device
        for i in range(world.ranks):
            con.execute("INSERT INTO TARGET_INFO_GPU VALUES (281474976710656, ?, ?, ?, 1, ?, ?, ?, ?, ?, 0, ?, 'GH100', ?, ?, ?)",
                        (i, d.name, f"0000:{i + 1:02d}:00.0", d.l2_bytes, d.memory_bytes, round(d.bandwidth), 1_830_000_000, d.sms,
                         f"gpu-{i}", i, *d.capability))  # fmt: skip


def _ids(rank: int) -> tuple[int, int]:
    pid = 4242 + rank
    global_pid = (1 << 48) + (pid << 24)
    return global_pid, global_pid + pid


def _rank(con: sqlite3.Connection, world: World, rec: Recording, strings: _Strings, s: Schema) -> None:
    pid, tid = _ids(rec.rank)
    base = 1_000_000_000
    runtime = [
        (
            c.start + base,
            c.start + c.dur + base,
            0,
            tid,
            c.correlation,
            strings(c.name + VERSION_SUFFIX.get(c.name, "")),
            0,
            None,
        )
        for c in rec.calls
    ]
    con.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?,?)", runtime)
    con.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, deviceId, contextId, streamId, correlationId, globalPid, syncType) "
        "VALUES (?,?,?,1,7,?,?,3)",
        [
            (c.start + base + 500, c.start + c.dur + base - 200, rec.rank, c.correlation, pid)
            for c in rec.calls
            if "Synchronize" in c.name
        ],
    )
    opaque = world.opaque_graphs
    kernels = [a for a in rec.activities if a.kind == "kernel" and not (opaque and a.graph)]
    columns = ("start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, "
               "gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, "
               "graphNodeId" + (", graphId" if s.graph_id else ""))  # fmt: skip
    marks = ",".join("?" * len(columns.split(",")))
    con.executemany(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES ({marks})",
        [_kernel(a, base, rec.rank, pid, strings, i, s.graph_id) for i, a in enumerate(kernels)],
    )
    con.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind, srcKind, "
        "dstKind) VALUES (?,?,?,1,?,?,?,?,?,?,?)",
        [(a.start + base, a.end + base, rec.rank, a.stream, a.correlation, pid, a.bytes, COPY_KIND[a.kind], *_sides(a))
         for a in rec.activities if a.kind in COPY_KIND],
    )  # fmt: skip
    if opaque and s.graph_trace:
        replays: dict[int, list[Activity]] = {}
        for a in rec.activities:
            if a.graph:
                replays.setdefault(a.correlation, []).append(a)
        con.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,1,0,?,?,?,?,?)",
            [(g[0].start + base, g[-1].end + base, rec.rank, g[0].stream, corr, pid, g[0].graph[0], g[0].graph[0] + 1)  # type: ignore[index]
             for corr, g in replays.items()],
        )  # fmt: skip
    ranges = [(n.start + base, n.start + n.dur + base, 59, n.text, tid) for n in rec.notes]
    ranges += [
        (o.start + base, o.start + o.dur + base, 59, _nvtx_text(o, world.profile.shapes, i), tid)
        for i, o in enumerate(rec.ops)
    ]
    con.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES (?,?,?,?,?,0)",
        ranges,
    )
    end = max(a.end for a in rec.activities) + base
    con.execute("INSERT INTO ANALYSIS_DETAILS VALUES (281474976710656, ?, 0, ?)", (end, end))


def _nvtx_text(event: object, shapes: bool, index: int) -> str:
    """As `torch.autograd.profiler.emit_nvtx` builds it: name, op_id and the sizes of tensor arguments."""
    op = event.op  # type: ignore[attr-defined]
    text = f"{op.name}, op_id = {index + 1}"
    if shapes and op.dims:
        sizes = ", ".join(str(d if not (d and isinstance(d[0], list)) else []) for d in op.dims)
        text += f", sizes = [{sizes}]"
    return text


def _kernel(
    a: Activity, base: int, device: int, pid: int, strings: _Strings, grid_id: int, graph_id: bool
) -> tuple[object, ...]:
    node = (a.graph[0] << 32) + a.graph[1] if a.graph else None
    short = a.name.split("<")[0].split("(")[0].split("::")[-1].split(" ")[-1]
    row = (a.start + base, a.end + base, device, 1, a.stream, a.correlation, pid, strings(a.name), strings(short), 64, a.grid, 1, 1,
           a.threads, 1, 1, 0, 0, 0, 0, grid_id, node)  # fmt: skip
    return (*row, a.graph[0] if a.graph else None) if graph_id else row


def _sides(a: Activity) -> tuple[int, int]:
    host = 0 if a.pageable else 1
    return (host, 2) if a.kind == "HtoD" else (2, host) if a.kind == "DtoH" else (2, 2)


def _metrics(con: sqlite3.Connection, world: World, ranks: list[Recording]) -> None:
    """Sampled counters, 10 kHz: share of each sample that kernels cover, and what those kernels moved and computed."""
    names = {1: "SMs Active [Throughput %]", 2: "Tensor Active [Throughput %]", 3: "DRAM Read Bandwidth [Throughput %]",
             4: "DRAM Write Bandwidth [Throughput %]", 5: "GPC Clock Frequency [MHz]"}  # fmt: skip
    for rec in ranks:
        type_id = 0x1000 + rec.rank
        con.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 0, 'General Metrics for NVIDIA GH100', ?, ?)",
                        [(type_id, i, n) for i, n in names.items()])  # fmt: skip
        kernels = sorted((a for a in rec.activities if a.kind == "kernel"), key=lambda a: a.start)
        end, step, at, first = max(a.end for a in rec.activities), 100_000, 0, 0
        rows = []
        while at < end:
            sums = [0.0, 0.0, 0.0]
            while first < len(kernels) and kernels[first].end <= at:
                first += 1
            for a in kernels[first:]:
                if a.start >= at + step:
                    break
                part = (min(a.end, at + step) - max(a.start, at)) / step
                sums[0] += part
                sums[1] += part * a.tensor_share
                sums[2] += part * a.dram_share
            clock = round(1.83e9 * world.clock * rng.uniform(0.995, 1.005, world.seed, 90, rec.rank, at))
            values = (sums[0], sums[1], sums[2] * 0.93, sums[2] * 0.07)
            rows += [
                (at + 1_000_000_000, type_id, i + 1, min(100, round(100 * v))) for i, v in enumerate(values)
            ]
            rows.append((at + 1_000_000_000, type_id, 5, clock))
            at += step
        con.executemany("INSERT INTO GPU_METRICS VALUES (?,?,?,?)", rows)
