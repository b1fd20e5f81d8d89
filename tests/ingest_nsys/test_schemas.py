"""The same run in the schemas of four years gives the same tables; every expected value is arithmetic on the
rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.model.link import link
from diagnose.store import Store

Load = Callable[..., Store]
Make = Callable[..., Path]
Pack = tuple[Callable[[int], int], Callable[[int, int], int]]

YEARS = (2022, 2023, 2025, 2026)
# The first event is the call at 100, so every time moves by 100.
ORIGIN = 100


@pytest.mark.parametrize("year", YEARS)
def test_device_work(year: int, export: Make, loaded: Load) -> None:
    store = loaded(export(year))
    assert store.rows(
        """SELECT k.process, device_id, stream, start_ns, dur_ns, correlation, n.text, grid, block, registers,
        shared_mem FROM raw_kernel k JOIN name n USING (name_id) ORDER BY start_ns"""
    ) == [
        (100, 0, 7, 1000 - ORIGIN, 500, 7, "void gemm<float>(float*)", "[4,2,1]", "[128,1,1]", 32, 1024 + 48),
        (
            200,
            1,
            15,
            2000 - ORIGIN,
            600,
            7,
            "void gemm<float>(float*)",
            "[4,2,1]",
            "[128,1,1]",
            32,
            1024 + 48,
        ),
    ]
    assert store.rows(
        """SELECT start_ns, dur_ns, kind, bytes, src, dst, pageable, n.text FROM raw_gpu_copy JOIN name n
        USING (name_id)"""
    ) == [(300 - ORIGIN, 40, "HtoD", 4096, "pinned", "device", False, "Memcpy HtoD (Pinned -> Device)")]
    assert store.rows("SELECT start_ns, dur_ns, bytes FROM raw_gpu_memset") == [(350 - ORIGIN, 2, 64)]
    assert store.count("raw_graph_run") == 0


@pytest.mark.parametrize("year", YEARS)
def test_host_side(year: int, export: Make, loaded: Load) -> None:
    store = loaded(export(year))
    calls = store.rows(
        "SELECT process, thread, start_ns, dur_ns, n.text, blocking FROM raw_host_call JOIN name n USING "
        "(name_id) ORDER BY start_ns"
    )
    assert calls == [
        (100, 101, 0, 50, "cudaMemcpyAsync", False),
        (100, 101, 60, 10, "cudaMemsetAsync", False),
        (100, 101, 300, 50, "cudaLaunchKernel", False),
        (100, 101, 360, 1140, "cudaStreamSynchronize", True),
        (200, 201, 1700, 100, "cudaLaunchKernel", False),
    ]
    assert store.rows(
        """SELECT process, thread, start_ns, dur_ns, n.text, s.input_dims FROM raw_op JOIN name n USING
        (name_id) LEFT JOIN signature s USING (signature_id) ORDER BY start_ns"""
    ) == [
        (100, 101, 280, 75, "aten::mm", "[[1,4096],[4096,4096]]"),
        (200, 201, 1600, 250, "aten::mm", None),
    ]
    # Domain creation (type 75) is no range; the registered text of the step is looked up.
    assert store.rows("SELECT process, thread_or_stream, start_ns, dur_ns, text, origin FROM annotation") == [
        (100, 101, 270, 1280, "decode step", "nvtx")
    ]
    assert store.rows("SELECT device_id, stream, start_ns, dur_ns, kind FROM sync") == [
        (0, 7, 370, 1120, "Stream Sync")
    ]


@pytest.mark.parametrize("year", YEARS)
def test_source(year: int, export: Make, loaded: Load) -> None:
    path = export(year)
    store = loaded(path)
    row = store.dicts("SELECT * FROM source")[0]
    assert (row["path"], row["format"], row["profiler"]) == ("run.sqlite", "nsys-sqlite", "nsys")
    assert row["profiler_version"] == f"{year}.4.1.86"
    assert row["origin_ns"] == 1_700_000_000_000_000_000 + ORIGIN
    # 1.7e9 s after the epoch is 2023-11-14 22:13:20 UTC.
    assert row["captured_at"].startswith("2023-11-14T22:13:20")
    assert row["bytes"] == path.stat().st_size


def test_launches_are_joined_by_correlation_and_process(export: Make, loaded: Load) -> None:
    """Both processes use correlation 7: joined on it alone, both kernels would get the first launch."""
    store = loaded(export())
    link(store)
    assert store.rows(
        """SELECT k.device_id, c.process, c.start_ns, n.text FROM kernel k JOIN host_call c ON c.call_id =
        k.launch_id JOIN op o ON o.op_id = k.op_id JOIN name n ON n.name_id = o.name_id ORDER BY
        k.device_id"""
    ) == [(0, 100, 300, "aten::mm"), (1, 200, 1700, "aten::mm")]


def test_names_are_numbered_by_text(export: Make, loaded: Load) -> None:
    store = loaded(export())
    texts = [t for (t,) in store.rows("SELECT text FROM name ORDER BY name_id")]
    assert texts == sorted(texts)
    assert len(texts) == len(set(texts))


def test_kernel_name_falls_back(export: Make, loaded: Load, pack: Pack) -> None:
    pid, _ = pack
    kernel = {"start": 10, "end": 20, "deviceId": 0, "streamId": 7, "globalPid": pid(100), "shortName": 11}
    store = loaded(
        export(CUPTI_ACTIVITY_KIND_KERNEL=[{**kernel}, {**kernel, "start": 30, "end": 35, "shortName": 999}])
    )
    assert store.rows("SELECT n.text FROM raw_kernel JOIN name n USING (name_id) ORDER BY start_ns") == [
        ("gemm",),
        ("",),
    ]


def test_negative_times_and_ends_before_starts(export: Make, loaded: Load, pack: Pack) -> None:
    """Records from before the session have negative times: the earliest becomes 0. Durations are never
    negative."""
    pid, tid = pack
    call = {"globalTid": tid(100, 101), "nameId": 12, "correlationId": 7}
    kernel = {"deviceId": 0, "streamId": 7, "globalPid": pid(100), "demangledName": 10, "correlationId": 7}
    store = loaded(
        export(
            CUPTI_ACTIVITY_KIND_RUNTIME=[{**call, "start": -500, "end": -450}],
            CUPTI_ACTIVITY_KIND_KERNEL=[{**kernel, "start": 40, "end": 30}],
        )
    )
    assert store.rows("SELECT start_ns FROM raw_host_call") == [(0,)]
    assert store.rows("SELECT start_ns, dur_ns FROM raw_kernel") == [(540, 0)]


def test_open_ranges_last_to_the_last_event(export: Make, loaded: Load, pack: Pack) -> None:
    _, tid = pack
    store = loaded(
        export(
            NVTX_EVENTS=[
                {"start": 150, "end": None, "eventType": 59, "text": "serve", "globalTid": tid(100, 101)}
            ]
        )
    )
    # The last recorded end is the second kernel's, 2,600.
    assert store.rows("SELECT start_ns, dur_ns FROM annotation") == [(50, 2600 - 150)]
    assert store.rows("SELECT count FROM ingest_note WHERE code = 'open-ranges'") == [(1,)]


def test_devices_of_a_process_are_mapped(export: Make, loaded: Load) -> None:
    """Process 200 saw GPU 3 as its device 1 (CUDA_VISIBLE_DEVICES); process 100 is not described and keeps
    its number."""
    gpu = {"name": "NVIDIA H100 80GB HBM3", "smCount": 132, "totalMemory": 85_000_000_000,
        "computeMajor": 9, "computeMinor": 0,
           "memoryBandwidth": 3_352_000_000_000}  # fmt: skip
    store = loaded(
        export(
            2025,
            TARGET_INFO_CUDA_DEVICE=[{"gpuId": 3, "cudaId": 1, "pid": 200}],
            TARGET_INFO_GPU=[{**gpu, "id": 0}, {**gpu, "id": 3}, {**gpu, "id": 5}],
        )
    )
    assert store.rows("SELECT process, device_id FROM raw_kernel ORDER BY start_ns") == [(100, 0), (200, 3)]
    assert store.rows(
        "SELECT device_id, arch, sm_count, memory_bytes, bandwidth_bytes_per_s, active FROM device ORDER "
        "BY device_id"
    ) == [(d, "sm_90", 132, 85_000_000_000, 3.352e12, d in (0, 3)) for d in (0, 3, 5)]


def test_devices_without_description(export: Make, loaded: Load) -> None:
    store = loaded(export(2026))
    assert store.rows("SELECT device_id, name, sm_count, active FROM device ORDER BY device_id") == [
        (0, "", None, True),
        (1, "", None, True),
    ]


def test_copy_kinds(export: Make, loaded: Load, pack: Pack) -> None:
    """CUpti_ActivityMemcpyKind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, 9 HtoH; memory kinds 0 pageable … 4
    managed."""
    pid, _ = pack
    base = {"deviceId": 0, "streamId": 7, "globalPid": pid(100), "bytes": 8}
    rows = [(1, 0, 2), (2, 2, 0), (2, 2, 1), (8, 2, 2), (10, 2, 2), (9, 0, 1), (1, None, 2), (11, 4, 2)]
    copies = [
        {**base, "start": 1000 + 10 * i, "end": 1005 + 10 * i, "copyKind": k, "srcKind": s, "dstKind": d}
        for i, (k, s, d) in enumerate(rows)
    ]
    copies.append({**copies[3], "start": 2000, "end": 2001, "srcDeviceId": 0, "dstDeviceId": 1})
    store = loaded(export(CUPTI_ACTIVITY_KIND_MEMCPY=copies))
    assert store.rows("SELECT kind, src, dst, pageable FROM raw_gpu_copy ORDER BY start_ns") == [
        ("HtoD", "pageable", "device", True),
        ("DtoH", "device", "pageable", True),
        ("DtoH", "device", "pinned", False),
        ("DtoD", "device", "device", False),
        ("PtoP", "device", "device", False),
        ("other", "pageable", "pinned", True),
        ("HtoD", None, "device", None),
        ("HtoD", "managed", "device", False),
        ("PtoP", "device", "device", False),
    ]


def test_counters(export: Make, loaded: Load) -> None:
    """Metric ids are looked up by name; the GPU is the low byte of typeId; NVLink's parts add up; below 0 is
    0."""
    type_a, type_b = 0x1F00_0000_0000 + 0, 0x1F00_0000_0000 + 1
    names = ["SMs Active [Throughput %]", "Tensor Active [Throughput %]",
        "DRAM Read Bandwidth [Throughput %]",
             "GPC Clock Frequency [MHz]", "NVLink RX Responses User Data [Throughput %]",
             "NVLink RX Requests User Data [Throughput %]", "SM Issue [Throughput %]"]  # fmt: skip
    described = [
        {"typeId": t, "metricId": 40 + i, "metricName": text, "sourceId": 1, "typeName": "GPU Metrics"}
        for t in (type_a, type_b)
        for i, text in enumerate(names)
    ]
    samples = [(200, type_a, 40, 55), (200, type_a, 41, -1), (200, type_b, 42, 80), (200, type_a, 43,
        1_700_000_000),
               (300, type_a, 43, 1410), (200, type_a, 44, 3), (200, type_a, 45, 4), (200, type_a, 46,
                   99)]  # fmt: skip
    store = loaded(
        export(
            2023,
            TARGET_INFO_GPU_METRICS=described,
            GPU_METRICS=[{"timestamp": t, "typeId": k, "metricId": m, "value": v} for t, k, m, v in samples],
        )
    )
    assert store.rows("SELECT device_id, metric, ts_ns, value FROM counter ORDER BY ALL") == [
        (0, "gpc_clock", 100, 1.7e9),
        (0, "gpc_clock", 200, 1410e6),
        (0, "nvlink_rx", 100, 7.0),
        (0, "sm_active", 100, 55.0),
        (0, "tensor_active", 100, 0.0),
        (1, "dram_read", 100, 80.0),
    ]


def test_overhead_of_the_profiler_and_of_cuda(export: Make, loaded: Load, pack: Pack) -> None:
    """Type 3 (buffer flush) is the profiler's; type 8 (launch queue full) is the program's, and a note."""
    _, tid = pack
    rows = [
        {"start": 200 + i, "end": 250 + i, "globalTid": tid(100, 101), "overheadType": t}
        for i, t in enumerate((3, 8, 8))
    ]
    store = loaded(export(2025, CUPTI_ACTIVITY_KIND_OVERHEAD=rows))
    assert store.rows("SELECT start_ns, dur_ns, kind FROM profiler_overhead") == [(100, 50, "Buffer flush")]
    assert store.rows(
        "SELECT count, message LIKE '%0.1 µs in all%' FROM ingest_note WHERE code = 'launch-queue-full'"
    ) == [(2, True)]


def test_stream_wait_names_the_stream_waited_for(export: Make, loaded: Load, pack: Pack) -> None:
    pid, _ = pack
    none = (1 << 32) - 1
    base = {"deviceId": 0, "globalPid": pid(100)}
    store = loaded(
        export(
            2025,
            CUPTI_ACTIVITY_KIND_CUDA_EVENT=[
                {**base, "timestamp": 500, "streamId": 7, "eventId": 44, "eventSyncId": 9}
            ],
            CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=[
                {
                    **base,
                    "start": 600,
                    "end": 610,
                    "streamId": 20,
                    "syncType": 2,
                    "eventId": 44,
                    "eventSyncId": 9,
                },
                {
                    **base,
                    "start": 620,
                    "end": 630,
                    "streamId": none,
                    "syncType": 1,
                    "eventId": 44,
                    "eventSyncId": 9,
                },
            ],
        )
    )
    assert store.rows("SELECT stream, kind, wait_on_stream FROM sync ORDER BY start_ns") == [
        (20, "Stream Wait Event", 7),
        (None, "Event Sync", None),
    ]
