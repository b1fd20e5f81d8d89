"""Real exports against an independent reading of them: plain SQL through the standard library's sqlite3."""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diagnose.model.link import link
from diagnose.store import Store

Load = Callable[..., Store]
Make = Callable[..., Path]

pytestmark = pytest.mark.shared_traces

FASTVIDEO = "fastvideo_h100x2_textencoder_offload.sqlite"
BEFORE, AFTER = "diffusion_h100x2_before.sqlite", "diffusion_h100x2_after.sqlite"
RTX3060 = "rtx3060_graphmode_2025.5.2.sqlite"
ALL = (FASTVIDEO, BEFORE, AFTER, RTX3060)


def _plain(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        return database.execute(sql).fetchall()


@pytest.mark.parametrize("name", ALL)
def test_every_row_arrives(name: str, shared_export: Make, loaded: Load) -> None:
    path = shared_export(name)
    store = loaded(path)
    pairs = {
        "raw_kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
        "raw_gpu_copy": "CUPTI_ACTIVITY_KIND_MEMCPY",
        "raw_gpu_memset": "CUPTI_ACTIVITY_KIND_MEMSET",
        "raw_host_call": "CUPTI_ACTIVITY_KIND_RUNTIME",
        "raw_graph_run": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "sync": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    }
    have = {t for (t,) in _plain(path, "SELECT name FROM sqlite_master")}
    for ours, theirs in pairs.items():
        if theirs in have:
            has_device = ours not in ("raw_host_call", "sync")
            key = "deviceId" if has_device else "0"
            expected = _plain(
                path, f'SELECT {key}, count(*), sum("end" - start) FROM {theirs} GROUP BY 1 ORDER BY 1'
            )
            mine = "device_id" if has_device else "0"
            got = store.rows(
                f"SELECT {mine}, count(*), sum(dur_ns)::BIGINT FROM {ours} GROUP BY 1 ORDER BY 1"
            )
            assert got == expected, ours
        else:
            assert store.count(ours) == 0
    if "NVTX_EVENTS" in have:
        (ranges,) = _plain(path, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)")
        assert store.count("raw_op") + store.count("annotation") == ranges[0]


@pytest.mark.parametrize("name", ALL)
def test_hash_and_neighbours_unchanged(name: str, shared_export: Make, loaded: Load) -> None:
    path = shared_export(name)
    before = (hashlib.sha256(path.read_bytes()).hexdigest(), sorted(path.parent.iterdir()))
    store = loaded(path)
    assert store.scalar("SELECT sha256 FROM source") == before[0]
    assert (hashlib.sha256(path.read_bytes()).hexdigest(), sorted(path.parent.iterdir())) == before


def test_fastvideo_copies(shared_export: Make, loaded: Load) -> None:
    """Device 0: 25,475,252,224 B pinned host to device in 920.871 ms are 27.66 GB/s; window 969.4 ms."""
    path = shared_export(FASTVIDEO)
    store = loaded(path)
    (expected,) = _plain(
        path,
        'SELECT sum(bytes), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY '
        "WHERE deviceId = 0 AND copyKind = 1 AND srcKind = 1",
    )
    got = store.rows(
        "SELECT sum(bytes)::BIGINT, sum(dur_ns)::BIGINT FROM raw_gpu_copy WHERE device_id = 0 AND kind = "
        "'HtoD' AND src = 'pinned'"
    )
    assert got == [expected]
    nbytes, ns = expected
    assert nbytes / 1e9 == pytest.approx(25.5, abs=0.05)
    assert nbytes / ns == pytest.approx(27.7, abs=0.05)
    activities = " UNION ALL ".join(
        f'SELECT start AS s, "end" AS e FROM CUPTI_ACTIVITY_KIND_{t} WHERE deviceId = 0'
        for t in ("KERNEL", "MEMCPY", "MEMSET")
    )
    ((window,),) = _plain(path, f"SELECT max(e) - min(s) FROM ({activities})")
    assert window / 1e6 == pytest.approx(969.4, abs=0.1)
    mine = " UNION ALL ".join(
        f"SELECT start_ns AS s, start_ns + dur_ns AS e FROM {t} WHERE device_id = 0"
        for t in ("raw_kernel", "raw_gpu_copy", "raw_gpu_memset")
    )
    assert store.rows(f"SELECT max(e) - min(s) FROM ({mine})") == [(window,)]


def test_fastvideo_kernels_without_launch(shared_export: Make, loaded: Load) -> None:
    """1,810 of 3,442 kernels were launched before the file's window (process 48-bit mask, correlation)."""
    path = shared_export(FASTVIDEO)
    ((missing, total),) = _plain(
        path,
        """SELECT sum(r.correlationId IS NULL), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN (SELECT
        DISTINCT correlationId, globalTid & ~16777215 AS pid FROM CUPTI_ACTIVITY_KIND_RUNTIME) r ON
        r.correlationId = k.correlationId AND r.pid = k.globalPid""",
    )
    assert (missing, total) == (1810, 3442)
    store = loaded(path)
    link(store)
    assert store.rows("SELECT count(*) FILTER (link = 'no_launch'), count(*) FROM kernel") == [
        (missing, total)
    ]
    # Every launch is in the kernel's own process: device 0 and 1 belong to one process each.
    assert store.rows(
        "SELECT count(*) FROM (SELECT k.device_id FROM kernel k JOIN host_call c ON c.call_id = "
        "k.launch_id GROUP BY k.device_id HAVING count(DISTINCT c.process) > 1)"
    ) == [(0,)]


def test_fastvideo_operators(shared_export: Make, loaded: Load) -> None:
    path = shared_export(FASTVIDEO)
    ((views,),) = _plain(path, "SELECT count(*) FROM NVTX_EVENTS WHERE text LIKE 'aten::mm, op_id = %'")
    store = loaded(path)
    assert store.rows(
        "SELECT count(*) FROM raw_op JOIN name n USING (name_id) WHERE n.text = 'aten::mm'"
    ) == [(views,)]
    assert views > 0
    assert (
        store.scalar("SELECT count(*) FROM annotation WHERE text LIKE 'FSDP::pre_forward (encoder.block.%)'")
        > 0
    )
    assert store.scalar("SELECT count(*) FROM annotation WHERE text LIKE '%op_id%'") == 0


def test_graph_rows_and_their_note(shared_export: Make, loaded: Load) -> None:
    path = shared_export(RTX3060)
    store = loaded(path)
    expected = _plain(
        path,
        'SELECT "end" - start, graphId, correlationId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE ORDER BY start',
    )
    assert len(expected) == 2
    assert store.rows("SELECT dur_ns, graph_id, correlation FROM raw_graph_run ORDER BY start_ns") == expected
    message = store.scalar("SELECT message FROM ingest_note WHERE code = 'opaque-graphs'")
    assert "--cuda-graph-trace=node" in message
    assert store.rows("SELECT name, arch, sm_count, bandwidth_bytes_per_s FROM device") == [
        ("NVIDIA GeForce RTX 3060", "sm_86", 28, 360_048_000_000.0)
    ]


def test_nothing_private_of_the_capture_is_kept(shared_export: Make, loaded: Load) -> None:
    """The command, its arguments and folders are in the file's metadata; none is in any table."""
    path = shared_export(RTX3060)
    values = _plain(
        path,
        "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%COMMAND%' OR name LIKE '%DIRECTORY%' OR "
        "name LIKE '%DISPLAY_NAME%' "
        "UNION SELECT value FROM META_DATA_EXPORT WHERE name LIKE 'EXPORT_HOST' OR name LIKE "
        "'EXPORT_PARAM_INPUT_PATH%' "
        "UNION SELECT name FROM PROCESSES WHERE name LIKE '%/%'",
    )
    private = [v for (v,) in values if v and len(v) > 4]
    assert private
    store = loaded(path)
    for (table,) in store.rows("SELECT table_name FROM information_schema.tables"):
        text = str(store.rows(f'SELECT * FROM "{table}"'))
        assert not [v for v in private if v in text], table
