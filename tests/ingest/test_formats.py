"""The layouts, units and vocabularies of six years of PyTorch profiler traces."""

import json

import pytest

BASE = 1_712_195_495_000_000_000  # ns


def test_an_epoch_in_microseconds_keeps_its_nanoseconds(load, make):
    """2024 traces: 1712195495505582.988 us does not fit a double (quarter-microsecond steps)."""
    text = make.text([make.device("k", "@1", "@2", 5), make.device("k", "@3", 1, 6)])
    text = (
        text.replace('"@1"', "1712195495505582.988")
        .replace('"@2"', "0.001")
        .replace('"@3"', "1712195495505583.001")
    )
    store = load(text)
    assert store.scalar("SELECT origin_ns FROM source") == 1_712_195_495_505_582_988
    assert store.rows("SELECT start_ns, dur_ns FROM raw_kernel ORDER BY 1") == [(0, 1), (13, 1000)]
    assert store.scalar("SELECT captured_at FROM source") == "2024-04-04T01:51:35Z"


def test_times_relative_to_a_base(load, make):
    store = load(make.text([make.device("k", 4909914679591.525, 5.527, 5)], baseTimeNanoseconds=BASE))
    assert store.scalar("SELECT origin_ns FROM source") == BASE + 4_909_914_679_591_525
    assert store.rows("SELECT start_ns, dur_ns FROM raw_kernel") == [(0, 5527)]


@pytest.mark.parametrize("where", ["before", "after"])
def test_metadata_on_either_side(load, make, where):
    facts = {
        "deviceProperties": [{"id": 0, "name": " NVIDIA B200 ", "totalGlobalMem": 191503138816, "computeMajor": 10, "computeMinor": 0, "numSms": 148, "warpSize": 32}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "baseTimeNanoseconds": BASE,
        "cupti_version": 28, "cuda_runtime_version": 12090, "cuda_driver_version": 13000,
    }  # fmt: skip
    events = {"traceEvents": make.small()}
    store = load(json.dumps({**facts, **events} if where == "before" else {**events, **facts}))
    assert store.rows("SELECT rank, world_size, origin_ns, profiler_version FROM source") == [
        (3, 8, BASE + 10_000, "CUPTI 28, CUDA runtime 12.9, CUDA driver 13.0")
    ]
    assert store.rows("SELECT name, arch, sm_count, memory_bytes, active FROM device") == [
        ("NVIDIA B200", "sm_100", 148, 191503138816, True)
    ]


def test_the_traces_of_2021(load, make):
    """Capital categories, whole microseconds, text for process and thread, `external id`, `Input dims`, async_cpu_to_gpu."""
    events = [
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": "5342", "tid": "5342", "ts": 1000, "dur": 30,
         "args": {"Device": 5342, "External id": 2, "Input dims": [[2, 3], [3, 4]], "Trace name": "PyTorch Profiler"}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 5342, "tid": "5342", "ts": 1010, "dur": 6,
         "args": {"cbid": 211, "correlation": 9, "external id": 2, "external ts": 1010}},
        {"ph": "X", "cat": "Kernel", "name": "sgemm", "pid": 0, "tid": "stream 7", "ts": 1020, "dur": 40,
         "args": {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 9, "external id": 2, "registers per thread": 32,
                  "grid": [1, 2, 3], "block": [4, 5, 6]}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": "stream 7", "ts": 1100, "dur": 4,
         "args": {"device": 0, "stream": 7, "correlation": 10, "bytes": 64}},
        {"ph": "s", "id": 9, "pid": 5342, "tid": 5342, "ts": 1010, "cat": "async_cpu_to_gpu", "name": "launch"},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 1000, "dur": 99},
    ]  # fmt: skip
    store = load(json.dumps({"traceEvents": events}), linked=True)
    assert store.rows(
        "SELECT text, stream, start_ns, dur_ns, grid, block, registers, link FROM kernel JOIN name USING (name_id)"
    ) == [("sgemm", 7, 20_000, 40_000, "[1,2,3]", "[4,5,6]", 32, "external_id")]
    assert store.rows("SELECT process, thread, input_dims FROM op") == [(5342, 5342, "[[2,3],[3,4]]")]
    assert store.rows("SELECT kind, bytes, src, dst, pageable, stream FROM gpu_copy") == [
        ("HtoD", 64, "pageable", "device", True, 7)
    ]


def test_what_rocm_writes(load, make):
    """Numbers as text, no grid, no stream context, an empty device name, device numbers unlike those of the list."""
    mi300 = {
        "id": 0,
        "name": "",
        "totalGlobalMem": 206141652992,
        "computeMajor": 9,
        "computeMinor": 4,
        "warpSize": 64,
        "numSms": 304,
    }
    events = [
        make.op("aten::copy_", 10, 30, 1),
        make.call("hipMemcpyWithStream", 12, 20, 4, 1, bytes="616", src="0x7f", dst="0x7e", kind="HtoD"),
        make.device(
            "Memcpy HtoD (Host -> Device)",
            20,
            4,
            4,
            1,
            cat="gpu_memcpy",
            stream=0,
            gpu=9,
            bytes=616,
            kind="CopyHostToDevice",
        ),
        make.device("Cijk", 30, 4, 5, stream=3, gpu=9, kind="Dispatch Kernel"),
    ]
    store = load(
        make.text(events, deviceProperties=[mi300], roctracer_version=4.1, hip_runtime_version=60443483),
        linked=True,
    )
    assert store.rows("SELECT device_id, name, arch, sm_count, active FROM device ORDER BY 1") == [
        (0, "", "gfx942", 304, False), (9, "", "gfx942", 304, True),
    ]  # fmt: skip
    assert store.rows("SELECT kind, bytes, src, dst, pageable, stream FROM gpu_copy") == [
        ("HtoD", 616, None, "device", None, 0)
    ]
    assert store.rows("SELECT grid, block, link FROM kernel") == [(None, None, "no_launch")]
    assert store.rows("SELECT blocking FROM host_call") == [(True,)]
    assert store.scalar("SELECT profiler_version FROM source") == "roctracer 4.1, HIP runtime 6.4.43483"


def test_collectives_triton_and_graph_fields(load, make):
    nccl = {
        "Collective name": "_allgather_base",
        "dtype": "BFloat16",
        "In msg nelems": 25136,
        "Group size": 8,
    }
    events = [
        make.op("record_param_comms", 10, 30, 1, **nccl),
        make.op(
            "triton_poi_fused",
            50,
            30,
            2,
            kernel_backend="triton",
            kernel_file="/tmp/t_root/ab/cab.py",
            num_warps=4,
            kernel_kwargs="XBLOCK=8",
        ),
        make.device("ncclDevKernel", 60, 30, 5, 1, **nccl),
        make.device("replayed", 70, 30, 6, **{"graph id": 3, "graph node id": 77}),
    ]
    store = load(make.text(events), linked=True)
    extra = [
        json.loads(row[0])
        for row in store.rows("SELECT extra FROM op JOIN signature USING (signature_id) ORDER BY op_id")
    ]
    assert extra == [
        {
            "Collective name": "_allgather_base",
            "dtype": "BFloat16",
            "In msg nelems": "25136",
            "Group size": "8",
        },
        {"kernel_backend": "triton", "num_warps": "4", "kernel_kwargs": "XBLOCK=8", "kernel_file": "cab.py"},
    ]
    assert store.rows("SELECT extra IS NOT NULL, graph_id, graph_node_id FROM kernel LEFT JOIN signature USING (signature_id) ORDER BY kernel_id") == [
        (True, None, None), (False, 3, 77),
    ]  # fmt: skip


def test_every_other_record(load, make):
    events = [
        *make.small(),
        {"ph": "X", "cat": "user_annotation", "name": "execute_context_1(8)_generation_0(0)", "pid": 7, "tid": 8, "ts": 9, "dur": 50, "args": {}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "x", "pid": 0, "tid": 7, "ts": 39, "dur": 15, "args": {}},
        {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0, "ts": 12, "dur": 3, "args": {}},
        {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 1000007, "ts": 52, "dur": 4,
         "args": {"cuda_sync_kind": "Stream Sync", "stream": 7, "correlation": 12, "device": 0, "wait_on_stream": -1}},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 11,
         "args": {"Total Reserved": 100, "Total Allocated": 40, "Bytes": -8, "Device Id": 0, "Device Type": 1, "Addr": 1, "Ev Idx": 3}},
        {"ph": "X", "cat": "new_thing", "name": "x", "pid": 0, "tid": 7, "ts": 39, "dur": 15, "args": {}},
    ]  # fmt: skip
    store = load(make.text(events))
    assert store.rows("SELECT origin, process, thread_or_stream, start_ns, dur_ns, text FROM annotation ORDER BY annotation_id") == [
        ("user_annotation", 7, 8, 0, 50_000, "execute_context_1(8)_generation_0(0)"), ("gpu_user_annotation", 0, 7, 30_000, 15_000, "x"),
    ]  # fmt: skip
    assert store.rows("SELECT start_ns, dur_ns, kind FROM profiler_overhead") == [
        (3000, 3000, "Buffer Flush")
    ]
    assert store.rows(
        "SELECT device_id, stream, start_ns, dur_ns, kind, wait_on_stream, correlation FROM sync"
    ) == [(0, 7, 43_000, 4000, "Stream Sync", -1, 12)]
    assert store.rows(
        "SELECT ts_ns, bytes, total_allocated, total_reserved, device_type, device_id FROM memory_event"
    ) == [(2000, -8, 40, 100, 1, 0)]
    assert store.rows("SELECT count, message FROM ingest_note WHERE code = 'unknown-category'") == [
        (1, "1 events of category 'new_thing' are not used")
    ]


class TestImpossibleTimes:
    def dropped(self, store):
        return store.scalar("SELECT count FROM ingest_note WHERE code = 'impossible-times'")

    @pytest.mark.parametrize("dur", [18446744073709551.615, 9_000_000_000.0, -1, -0.5])
    def test_overflown_and_negative_durations(self, load, make, dur):
        """ROCm writes durations near 2^64 ns; -1 marks what never finished. The host saw 40 us: 2.5 hours cannot be."""
        store = load(make.text([*make.small(), make.device("bad", 45, dur, 12)]))
        assert store.rows("SELECT text FROM raw_kernel JOIN name USING (name_id)") == [("gemm",)]
        assert self.dropped(store) == 1

    def test_a_start_at_zero_does_not_move_the_origin(self, load, make):
        day = 86_400 * 10**6
        events = [make.op("a", 900 * day + i, 1, i + 1) for i in range(5)] + [
            make.device("ok", 900 * day + 3, 1, 8),
            make.device("zero", 0, 0, 9),
        ]
        store = load(make.text(events))
        assert store.scalar("SELECT origin_ns FROM source") == 900 * day * 1000
        assert store.count("raw_kernel") == 1 and self.dropped(store) == 1

    def test_a_start_at_zero_within_a_week(self, load, make):
        """Times since boot: zero is only hours away, yet as far from the host's 40 us as no launch can be."""
        hours = 2 * 3600 * 10**6
        events = [{**e, "ts": e["ts"] + hours} for e in make.small()]
        store = load(make.text([*events, make.device("zero", 0, 0, 9)]))
        assert store.scalar("SELECT origin_ns FROM source") == (hours + 10) * 1000
        assert store.count("raw_kernel") == 1 and self.dropped(store) == 1

    def test_clocks_that_were_not_aligned_are_said(self, load, make, notes):
        """All device events hours from the host: that is no damage of single events, and none is dropped."""
        hours = 2 * 3600 * 10**6
        store = load(
            make.text(
                [*make.small()[:4], make.device("k", hours, 5, 11, 2), make.device("k", hours + 9, 5, 12, 2)]
            )
        )
        assert store.count("raw_kernel") == 2 and self.dropped(store) is None
        assert notes(store)["device-clock-apart"] == 1

    def test_a_missing_time(self, load, make):
        events = [
            *make.small(),
            {k: v for k, v in make.device("x", 50, 1, 9).items() if k != "ts"},
            {k: v for k, v in make.device("y", 50, 1, 9).items() if k != "dur"},
        ]
        store = load(make.text(events))
        assert store.count("raw_kernel") == 1 and self.dropped(store) == 2

    def test_a_long_kernel_that_the_host_waited_for_stays(self, load, make):
        """30 s on the device, and a synchronize as long: nothing impossible about it."""
        events = [
            *make.small(),
            make.call("cudaDeviceSynchronize", 50, 30_000_000, 20),
            make.device("long", 60, 30_000_000, 12),
        ]
        store = load(make.text(events))
        assert store.count("raw_kernel") == 2 and self.dropped(store) is None

    def test_nan_and_n_a(self, load, make):
        text = make.text(
            [*make.small(), make.device("bad", "@", 1, 12), make.device("good", 50, 2, 13, note="@@")]
        )
        store = load(text.replace('"@"', "NaN").replace('"@@"', "N/A"))
        assert {r[0] for r in store.rows("SELECT text FROM raw_kernel JOIN name USING (name_id)")} == {
            "gemm",
            "good",
        }
        assert self.dropped(store) == 1


def test_ranks_merged_into_one_file_are_refused(load, make):
    """Two processes' devices under one number would look like one device with twice the work."""
    from diagnose.errors import InputError

    events = [make.device("k", 10, 5, 1), {**make.device("k", 12, 5, 2), "pid": "[TP01] 0"}]
    with pytest.raises(InputError, match="2 ranks merged"):
        load(make.text(events))


class TestWithoutGpu:
    def test_self_intervals_are_the_kernels(self, load, make):
        """a 0-100 us holds b 10-40 (holding c 20-30) and d 50-100, so a runs 0-10 and 40-50, b 10-20 and 30-40."""
        events = [
            make.op("a", 1000, 100, 1),
            make.op("b", 1010, 30, 2),
            make.op("c", 1020, 10, 3),
            make.op("d", 1050, 50, 4),
        ]
        store = load(make.text(events), linked=True)
        got = store.rows(
            "SELECT text, start_ns, dur_ns, device_id, stream, link FROM kernel JOIN name USING (name_id) ORDER BY kernel_id"
        )
        us = 1000
        assert got == [
            ("a", 0, 10 * us, -1, 7, "external_id"), ("b", 10 * us, 10 * us, -1, 7, "external_id"), ("c", 20 * us, 10 * us, -1, 7, "external_id"),
            ("b", 30 * us, 10 * us, -1, 7, "external_id"), ("a", 40 * us, 10 * us, -1, 7, "external_id"), ("d", 50 * us, 50 * us, -1, 7, "external_id"),
        ]  # fmt: skip
        assert store.rows("SELECT device_id, name, active FROM device") == [(-1, "cpu", True)]
        assert store.rows(
            "SELECT text FROM kernel JOIN op USING (op_id) JOIN name ON name.name_id = op.name_id ORDER BY kernel_id"
        ) == [(r[0],) for r in got]

    def test_threads_are_streams(self, load, make):
        events = [
            make.op("a", 10, 100, 1, tid=1),
            make.op("b", 20, 30, 2, tid=2),
            make.op("c", 20, 30, 3, tid=1),
        ]
        store = load(make.text(events), linked=True)
        assert store.rows("SELECT stream, sum(dur_ns) FROM kernel GROUP BY 1 ORDER BY 1") == [
            (1, 100_000),
            (2, 30_000),
        ]

    def test_a_gpu_named_but_unrecorded_is_said(self, load, make, notes):
        events = [make.op("a", 10, 100, 1), make.call("cudaLaunchKernel", 20, 5, 4, 1)]
        assert notes(load(make.text(events)))["no-device-events"] == 1
        assert "no-device-events" not in notes(load(make.text([make.op("a", 10, 100, 1)])))
