"""Exports built by code in the schemas of four years, and a real nsys where one can be had."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diagnose.ingest.nsys import load_nsys
from diagnose.store import Store

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces" / "nsys"

Rows = dict[str, list[dict[str, Any]]]

_ACTIVITY = "start end deviceId contextId {green} streamId correlationId globalPid"
_KERNEL = (
    _ACTIVITY
    + " demangledName shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ"
    " blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal "
    "gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"
)
_KERNEL_2025 = (
    " qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ "
    "clusterSchedulingPolicy "
    "maxPotentialClusterSize maxActiveClusters"
)
_COPY = (
    _ACTIVITY
    + " bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId "
    "migrationCause graphNodeId virtualAddress"
)
_NVTX = (
    "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value "
    "int64Value "
    "doubleValue uint32Value int32Value floatValue jsonTextId jsonText"
)
_GPU = "vmId id name totalMemory memoryBandwidth clockRate smCount chipName computeMajor computeMinor"
_TEXT = {
    "text",
    "value",
    "name",
    "metricName",
    "typeName",
    "chipName",
    "jsonText",
    "binaryData",
    "utcTime",
    "localTime",
}


def schema(year: int) -> dict[str, str]:
    """Table -> columns of an export of that year; green contexts from 2023 on, node tables and graph ids from
    2025 on."""
    green = "" if year < 2023 else "greenContextId"
    tables = {
        "StringIds": "id value",
        "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL + (_KERNEL_2025 if year >= 2025 else ""),
        "CUPTI_ACTIVITY_KIND_MEMCPY": _COPY + (" copyCount" if year >= 2025 else ""),
        "CUPTI_ACTIVITY_KIND_MEMSET": _ACTIVITY + " value bytes graphNodeId memKind",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _ACTIVITY + " syncType eventId",
        "NVTX_EVENTS": _NVTX + (" binaryData" if year >= 2026 else ""),
        "PROFILER_OVERHEAD": "start end globalTid nameId "
        + ("overheadType" if year >= 2025 else "returnValue"),
        "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime"
        + (" systemClockNs" if year >= 2026 else ""),
        "TARGET_INFO_GPU": _GPU,
        "META_DATA_CAPTURE": "name value",
        "EXPORT_META_DATA" if year < 2023 else "META_DATA_EXPORT": "name value",
    }
    if year >= 2023:
        tables["GPU_METRICS"] = "timestamp typeId metricId value"
        tables["TARGET_INFO_GPU_METRICS"] = "typeId sourceId typeName metricId metricName"
    if year >= 2025:
        tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"] = (
            _ACTIVITY + " deprecatedSyncType syncType eventId eventSyncId"
        )
        tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = (
            "timestamp deviceId contextId greenContextId streamId correlationId globalPid eventId eventSyncId"
        )
        tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = _ACTIVITY + " graphId graphExecId"
        tables["CUPTI_ACTIVITY_KIND_OVERHEAD"] = (
            "start end eventClass globalTid correlationId nameId overheadType"
        )
        tables["TARGET_INFO_CUDA_DEVICE"] = "gpuId cudaId pid"
        tables["DIAGNOSTIC_EVENT"] = "timestamp timestampType source severity text globalPid"
    if year >= 2026:
        tables["CUPTI_ACTIVITY_KIND_KERNEL"] += " sharedMemoryRequestedPercentage tensorSizeMinusOneElements"
    return {name: columns.format(green=green) for name, columns in tables.items()}


def build(path: Path, year: int, rows: Rows) -> Path:
    """Write a SQLite export. Like nsys itself (lazily), only tables with rows are made; an empty list forces
    one."""
    with closing(sqlite3.connect(path)) as database:
        for table, columns in schema(year).items():
            if table not in rows:
                continue
            names = columns.split()
            typed = ", ".join(
                f'"{c}" {"TEXT" if c in _TEXT and (table, c) != ("GPU_METRICS", "value") else "INTEGER"}'
                for c in names
            )
            database.execute(f'CREATE TABLE "{table}" ({typed})')
            for row in rows[table]:
                given = {k: v for k, v in row.items() if k in names}
                marks = ", ".join("?" for _ in given)
                fields = ", ".join(f'"{k}"' for k in given)
                database.execute(f'INSERT INTO "{table}" ({fields}) VALUES ({marks})', list(given.values()))
        database.commit()
    return path


VM = 1 << 48


def pid_of(process: int) -> int:
    """globalPid as nsys packs it."""
    return VM | process << 24


def tid_of(process: int, thread: int) -> int:
    """globalTid as nsys packs it."""
    return VM | process << 24 | thread


def two_processes(year: int) -> Rows:
    """Two ranks of one job in one report. Both processes use correlation 7 and call their GPU device 0 and 1.

    Process 100 launches `gemm` (1,000 to 1,500 ns on device 0) at 400 to 450, process 200 launches `gemm`
    (2,000 to 2,600 on device 1) at 1,800 to 1,900. Both inside `aten::mm`. Process 100 also copies 4,096 B
    from pinned memory (300 to 340) and sets 64 B (350 to 352). Times are from the session's start; the first
    event is at 100.
    """
    strings = ["void gemm<float>(float*)", "gemm", "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020",
               "cudaStreamSynchronize_v3020", "cudaMemsetAsync_v3020", "decode step"]  # fmt: skip
    ids = {text: 10 + i for i, text in enumerate(strings)}
    op_text = "aten::mm, seq = 12, op_id = 34, sizes = [[1, 4096], [4096, 4096]]"
    kernel = {"contextId": 1, "demangledName": ids[strings[0]], "shortName": ids["gemm"],
        "registersPerThread": 32,
              "gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1,
                  "staticSharedMemory": 1024,
              "dynamicSharedMemory": 48, "correlationId": 7}  # fmt: skip
    device = {"contextId": 1, "streamId": 7, "deviceId": 0, "globalPid": pid_of(100)}

    def call(process: int, start: int, end: int, correlation: int, name: str) -> dict[str, Any]:
        return {"start": start, "end": end, "globalTid": tid_of(process, process + 1),
            "correlationId": correlation,
                "nameId": ids[name]}  # fmt: skip

    return {
        "StringIds": [{"id": i, "value": text} for text, i in ids.items()],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            {**kernel, "start": 1000, "end": 1500, "deviceId": 0, "streamId": 7, "globalPid": pid_of(100)},
            {**kernel, "start": 2000, "end": 2600, "deviceId": 1, "streamId": 15, "globalPid": pid_of(200)},
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            {**device, "start": 300, "end": 340, "correlationId": 5, "bytes": 4096, "copyKind": 1,
                "srcKind": 1, "dstKind": 2},
        ],
        "CUPTI_ACTIVITY_KIND_MEMSET": [{**device, "start": 350, "end": 352, "correlationId": 6, "bytes": 64}],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(100, 100, 150, 5, "cudaMemcpyAsync_v3020"),
            call(100, 160, 170, 6, "cudaMemsetAsync_v3020"),
            call(100, 400, 450, 7, "cudaLaunchKernel_v7000"),
            call(100, 460, 1600, 8, "cudaStreamSynchronize_v3020"),
            call(200, 1800, 1900, 7, "cudaLaunchKernel_v7000"),
        ],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            {**device, "start": 470, "end": 1590, "correlationId": 8, "syncType": 3,
                "eventId": (1 << 32) - 1},
        ],
        "NVTX_EVENTS": [
            {"start": 380, "end": 455, "eventType": 59, "text": op_text, "globalTid": tid_of(100, 101),
                "domainId": 0},
            {"start": 1700, "end": 1950, "eventType": 59, "text": "aten::mm, op_id = 3",
                "globalTid": tid_of(200, 201)},
            {"start": 370, "end": 1650, "eventType": 59, "textId": ids["decode step"],
                "globalTid": tid_of(100, 101)},
            {"start": 90, "eventType": 75, "text": "a domain", "globalTid": tid_of(100, 101), "domainId": 3},
        ],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000}],
        "META_DATA_CAPTURE": [
            {"name": "PROCESS_0:COMMAND", "value": "secret-command"},
            {"name": "DEVICE_DISPLAY_NAME", "value": "secret-host"},
        ],
        "EXPORT_META_DATA" if year < 2023 else "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_VERSION", "value": f"{year}.4.1.86"},
            {"name": "EXPORT_USER", "value": "secret-user"},
        ],
    }  # fmt: skip


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """`export(year, **tables)`: the two-process export of a year, with tables replaced (None leaves one
    out)."""

    def make(year: int = 2026, name: str = "run.sqlite", **tables: list[dict[str, Any]] | None) -> Path:
        rows = two_processes(year)
        for table, values in tables.items():
            rows.pop(table, None)
            if values is not None:
                rows[table] = values
        return build(tmp_path / name, year, rows)

    return make


@pytest.fixture
def loaded() -> Iterator[Callable[..., Store]]:
    """`loaded(path)`: a store with that export read into it, closed at the end."""
    stores: list[Store] = []

    def make(path: Path, **options: Any) -> Store:
        store = Store()
        stores.append(store)
        load_nsys(path, store, **options)
        return store

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def pack() -> tuple[Callable[[int], int], Callable[[int, int], int]]:
    """(globalPid of a process, globalTid of a process and thread)."""
    return pid_of, tid_of


@pytest.fixture
def shared_export() -> Callable[[str], Path]:
    """A real export by its file name; skips where the shared traces are absent."""

    def find(name: str) -> Path:
        path = TRACES / name
        if not path.exists():
            pytest.skip(f"no shared trace {name}")
        return path

    return find


@pytest.fixture(scope="session")
def nsys() -> Path:
    """A real nsys 2023.4, unpacked by `.ci/nsys.sh`; skips where that is impossible."""
    done = subprocess.run(["bash", str(ROOT / ".ci" / "nsys.sh")], env={**os.environ,
        "PYTHON": sys.executable}, capture_output=True,
                          text=True, timeout=580, check=False)  # fmt: skip
    last = (done.stdout.strip().splitlines() or ["the script said nothing"])[-1]
    if done.returncode != 0 or not last.startswith("/"):
        pytest.skip(last)
    return Path(last)


SCRIPT = """
import time
try:
    import nvtx
except ImportError:
    raise SystemExit(0)
for i in range(3):
    with nvtx.annotate(f"step {i}"):
        with nvtx.annotate(f"aten::mm, op_id = {i}, sizes = [[1, 8], [8, 8]]"):
            time.sleep(0.002)
"""


@pytest.fixture(scope="session")
def report_file(nsys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real report of a CPU script with NVTX ranges, captured in an empty environment."""
    folder = tmp_path_factory.mktemp("report")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    packages = nsys.parents[5] / "python"
    command = [str(nsys), "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o",
        str(folder / "cpu"), "-f", "true",
               sys.executable, str(script)]  # fmt: skip
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(packages)}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=120, check=False)
    path = folder / "cpu.nsys-rep"
    if not path.exists():
        pytest.skip(f"nsys captured nothing here (exit {done.returncode})")
    return path


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exports of reports go to a cache of this test's own, and no nsys of the machine is found by chance."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'nothing'}{os.pathsep}{os.environ['PATH']}")
    return cache
