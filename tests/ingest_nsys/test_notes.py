"""What the export says about itself: opaque and missing graphs, diagnostics without anything private, no GPU
work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError
from diagnose.ingest.nsys.notes import sanitise
from diagnose.store import Store

Load = Callable[..., Store]
Make = Callable[..., Path]
Pack = tuple[Callable[[int], int], Callable[[int, int], int]]

NODE = "--cuda-graph-trace=node"


def _messages(store: Store, code: str) -> list[tuple[Any, ...]]:
    return store.rows("SELECT severity, count, message FROM ingest_note WHERE code = ?", code)


def _graph_launch(tid: int, correlation: int, start: int) -> dict[str, int]:
    return {"start": start, "end": start + 10, "globalTid": tid, "correlationId": correlation, "nameId": 50}


STRINGS = [{"id": 50, "value": "cudaGraphLaunch_v10000"}, {"id": 10, "value": "gemm"}]


def test_graph_mode(export: Make, loaded: Load, pack: Pack) -> None:
    """Two replays of 700 and 800 ns are device work of their own, and a note says how to see inside them."""
    pid, tid = pack
    run = {"deviceId": 0, "streamId": 7, "globalPid": pid(100), "graphId": 4, "graphExecId": 5}
    store = loaded(
        export(
            2025,
            StringIds=STRINGS,
            CUPTI_ACTIVITY_KIND_KERNEL=None,
            CUPTI_ACTIVITY_KIND_RUNTIME=[_graph_launch(tid(100, 101), c, 100 * c) for c in (10, 11)],
            CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[
                {**run, "start": 1200, "end": 1900, "correlationId": 10},
                {**run, "start": 2000, "end": 2800, "correlationId": 11},
            ],
        )
    )
    # The pinned copy at 300 is the first event of this run.
    assert store.rows(
        "SELECT device_id, start_ns, dur_ns, graph_id, correlation FROM raw_graph_run ORDER BY start_ns"
    ) == [
        (0, 900, 700, 4, 10),
        (0, 1700, 800, 4, 11),
    ]
    (note,) = _messages(store, "opaque-graphs")
    assert note[:2] == ("warning", 2)
    assert NODE in note[2] and "1.5 µs" in note[2]
    assert not _messages(store, "missing-graphs")


def test_graph_mode_before_2024_leaves_nothing(export: Make, loaded: Load, pack: Pack) -> None:
    """Exports of 2022 and 2023 have no table for replays: launches without device work are counted."""
    _, tid = pack
    launches = [_graph_launch(tid(100, 101), c, 100 * c) for c in (20, 21, 22)]
    store = loaded(export(2023, StringIds=STRINGS, CUPTI_ACTIVITY_KIND_RUNTIME=launches))
    (note,) = _messages(store, "missing-graphs")
    assert note[:2] == ("warning", 3)
    assert NODE in note[2]


def test_node_mode(export: Make, loaded: Load, pack: Pack) -> None:
    """Kernels of one replay carry their node and share the launch's correlation: nothing is missing."""
    pid, tid = pack
    node = {
        "deviceId": 0,
        "streamId": 7,
        "globalPid": pid(100),
        "demangledName": 10,
        "correlationId": 20,
        "graphId": 4,
    }
    store = loaded(
        export(
            2025,
            StringIds=STRINGS,
            CUPTI_ACTIVITY_KIND_RUNTIME=[_graph_launch(tid(100, 101), 20, 500)],
            CUPTI_ACTIVITY_KIND_KERNEL=[
                {**node, "start": 600, "end": 700, "graphNodeId": (4 << 32) + 1},
                {**node, "start": 700, "end": 760, "graphNodeId": (4 << 32) + 2},
            ],
        )
    )
    assert store.rows("SELECT graph_id, graph_node_id, correlation FROM raw_kernel ORDER BY start_ns") == [
        (4, (4 << 32) + 1, 20),
        (4, (4 << 32) + 2, 20),
    ]
    assert not _messages(store, "missing-graphs") and not _messages(store, "opaque-graphs")


def test_diagnostics_are_quoted_without_anything_private(export: Make, loaded: Load) -> None:
    events = [
        (1, 1, "Profiling has started."),
        (2, 2, "Dropped 1234 CUPTI records of /home/alice/run/server.py on alice@gpu-box-7 (10.1.2.3)"),
        (3, 2, "Dropped 1234 CUPTI records of /home/alice/run/server.py on alice@gpu-box-7 (10.1.2.3)"),
        (4, 1, "Not all NVTX events might have been collected."),
        (5, 3, "Command: python serve.py --token hunter2"),
    ]
    rows = [{"timestamp": t, "severity": s, "text": text, "source": 1} for t, s, text in events]
    store = loaded(export(2025, DIAGNOSTIC_EVENT=rows))
    found = _messages(store, "profiler-diagnostic")
    assert [(severity, count) for severity, count, _ in found] == [
        ("warning", 2),
        ("warning", 1),
        ("error", 1),
    ]
    assert "Dropped 1234 CUPTI records" in found[0][2]
    assert "Not all NVTX events" in found[1][2]
    everything = " ".join(message for _, _, message in found)
    for private in ("alice", "gpu-box-7", "server.py", "10.1.2.3", "hunter2", "serve.py", "home"):
        assert private not in everything


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("lost 5 events\x1b[31m<script>", "lost 5 events [31m<script>"),
        ("see C:\\Users\\bob\\log.txt for more", "see <path> for more"),
        ('process "my server" lost data', "process <name> lost data"),
        ("TOKEN=abc events lost", "<setting> events lost"),
        ("https://intranet.example/x lost", "<address> lost"),
        ("driver version 535.104.05 lost", "driver version 535.104.05 lost"),
        ("Hostname : box9", "Hostname: <withheld>"),
    ],
)
def test_sanitise(text: str, kept: str) -> None:
    assert sanitise(text) == kept


def test_sanitise_is_one_short_line() -> None:
    line = sanitise("dropped\nevents " + "x" * 500)
    assert "\n" not in line and len(line) == 200


def test_nothing_private_is_kept(export: Make, loaded: Load) -> None:
    """Host, user, command and the strings nothing refers to are in no table of the store, and in no file of
    its folder."""
    strings = [
        {"id": i, "value": t} for i, t in ((10, "k"), (12, "cudaLaunchKernel"), (99, "secret-thread-name"))
    ]
    store = loaded(export(StringIds=strings))
    tables = [t for (t,) in store.rows("SELECT table_name FROM information_schema.tables")]
    assert "nsys_string" not in tables
    for table in tables:
        assert "secret" not in str(store.rows(f'SELECT * FROM "{table}"')), table
    for file in store.folder.rglob("*"):
        assert b"secret" not in file.read_bytes(), file.name


def test_no_gpu_activity(export: Make, loaded: Load) -> None:
    none = dict.fromkeys(
        ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
    )
    with pytest.raises(InputError, match=r"no GPU activity.*-t cuda,nvtx") as caught:
        loaded(export(**none))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    # A report without even API calls or ranges says the same.
    with pytest.raises(InputError, match="no GPU activity"):
        loaded(export(name="b.sqlite", **none, CUPTI_ACTIVITY_KIND_RUNTIME=None, NVTX_EVENTS=None,
                      CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=None))  # type: ignore[arg-type]  # fmt: skip


def test_no_gpu_activity_quotes_the_reason(export: Make, loaded: Load) -> None:
    rows = [{"timestamp": 1, "severity": 3, "text": "CUDA profiling is not supported by this driver"}]
    with pytest.raises(InputError, match="CUDA profiling is not supported by this driver"):
        loaded(
            export(
                2025, CUPTI_ACTIVITY_KIND_KERNEL=[], CUPTI_ACTIVITY_KIND_MEMCPY=None,
                    CUPTI_ACTIVITY_KIND_MEMSET=None,
                DIAGNOSTIC_EVENT=rows,
            )
        )  # fmt: skip


def test_no_api_calls(export: Make, loaded: Load) -> None:
    store = loaded(export(CUPTI_ACTIVITY_KIND_RUNTIME=None))
    assert store.count("raw_host_call") == 0
    (note,) = _messages(store, "no-api-calls")
    assert note[0] == "warning"


def test_one_device_number_in_two_processes(export: Make, loaded: Load, pack: Pack) -> None:
    pid, _ = pack
    kernel = {"deviceId": 0, "streamId": 7, "demangledName": 10, "start": 500, "end": 600}
    kernels = [{**kernel, "globalPid": pid(p)} for p in (100, 200)]
    store = loaded(export(2025, CUPTI_ACTIVITY_KIND_KERNEL=kernels))
    (note,) = _messages(store, "shared-device-number")
    assert note[:2] == ("warning", 2)
    described = [{"gpuId": g, "cudaId": 0, "pid": p} for g, p in ((0, 100), (1, 200))]
    store = loaded(
        export(2025, name="b.sqlite", CUPTI_ACTIVITY_KIND_KERNEL=kernels, TARGET_INFO_CUDA_DEVICE=described)
    )
    assert not _messages(store, "shared-device-number")
    assert store.rows("SELECT DISTINCT device_id FROM raw_kernel ORDER BY 1") == [(0,), (1,)]
