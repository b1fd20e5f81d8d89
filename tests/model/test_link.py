"""Linking: launches, operators, nesting; on real traces against an independent computation."""

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import pytest

from diagnose.ingest import load
from diagnose.ingest.raw import ensure_raw
from diagnose.model.link import link, public_views
from diagnose.model.link_nesting import Nesting
from diagnose.store import BY_NAME, Store

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "kineto"
REAL = (
    "hf_bert-small_h100", "hf_vit_h100", "hf_qwen1.5-0.5b_h100_prefill", "hf_qwen1.5-0.5b_mi300x_prefill", "hf_owlv2_h100",
    "sglang_qwen3-8b_mi300x_decode_graph", "sglang_qwen3-8b_mi300x_decode_capture", "sglang_qwen3-8b_mi300x_prefill",
    "vllm_gptoss_b200_tp8_eager_prefill", "vllm_gptoss_mi300x_decode_fullgraph", "vllm_gptoss_mi300x_decode_capture",
)  # fmt: skip
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture
def store():
    with Store() as made:
        yield made


@pytest.fixture(params=REAL, scope="module")
def real(request):
    path = SHARED / f"{request.param}.json.gz"
    if not path.exists():
        pytest.skip(f"real traces are absent: {path}")
    with Store() as made:
        load(path, made)
        link(made)
        yield made, events_of(path)


@lru_cache(maxsize=1)
def events_of(path):
    return json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]


def ns(value):
    return int(Decimal(value) * 1000)


@pytest.mark.shared_traces
def test_links_agree_with_the_recorded_ids(real):
    """Kineto writes the operator on most activities and the call's correlation on all: both must be what link found."""
    made, events = real
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    expected = Counter()
    for event in events:
        if event.get("cat") not in GPU:
            continue
        launch = calls.get(event["args"]["correlation"])
        owner = ops.get(event["args"].get("External id"))
        if launch is not None and "GraphLaunch" in launch["name"]:
            how, owner = "graph", None
        elif owner is not None:
            how = "external_id"
        else:
            how = "no_launch" if launch is None else "none"
        expected[event["name"], how, launch and launch["name"], owner and owner["args"]["External id"]] += 1
    got = made.rows(
        """SELECT n.text, a.link, m.text, o.external_id FROM activity a JOIN name n USING (name_id)
        LEFT JOIN host_call c ON c.call_id = a.launch_id LEFT JOIN name m ON m.name_id = c.name_id
        LEFT JOIN op o ON o.op_id = a.op_id"""
    )
    # "launch": no recorded operator, yet one encloses the call on its thread; none of these traces has such a case
    assert Counter(got) == expected


@pytest.mark.shared_traces
def test_nesting_gives_every_nanosecond_once(real):
    made, events = real
    intervals = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            intervals[event["pid"], event["tid"]].append(
                (ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]))
            )
    for (process, thread), spans in intervals.items():
        covered, reached = 0, None
        for start, end in sorted(spans):
            covered += max(0, end - max(start, reached or start))
            reached = max(end, reached or end)
        got = made.rows(
            "SELECT sum(self_ns), sum(dur_ns) FILTER (parent_op_id IS NULL), min(self_ns) >= 0 FROM op WHERE process = ? AND thread = ?",
            process, thread,
        )  # fmt: skip
        assert got == [(covered, covered, True)]


@pytest.mark.shared_traces
def test_parents_enclose_and_are_the_nearest(real):
    """The parent is the operator with the latest start among those that enclose: found here by a scan backwards."""
    made, _ = real
    rows = made.rows(
        "SELECT op_id, parent_op_id, thread, start_ns, start_ns + dur_ns FROM op ORDER BY thread, op_id"
    )
    for index, (_, parent, thread, start, end) in enumerate(rows):
        expected = None
        for other, _, t, s, e in reversed(rows[max(0, index - 2000) : index]):
            if t != thread:
                break
            if s <= start and e >= end and e > start:
                expected = other
                break
        assert parent == expected


@pytest.mark.shared_traces
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_qwen1.5-0.5b_h100_prefill", {"external_id": (1029, 31_760_058), "no_launch": (436, 13_672_640)}),
        (
            "sglang_qwen3-8b_mi300x_decode_graph",
            {"external_id": (8, 91_450), "graph": (544, 9_656_404), "none": (3, 17_583)},
        ),
    ],
)
def test_known_counts(name, expected, store):
    """1,465 kernels, 436 of them (13.67 of 45.43 ms) without a launch; 544 kernels under one graph launch."""
    path = SHARED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"real traces are absent: {path}")
    load(path, store)
    link(store)
    got = {
        how: (count, total)
        for how, count, total in store.rows("SELECT link, count(*), sum(dur_ns) FROM kernel GROUP BY link")
    }
    assert got == expected
    if "graph" in expected:
        assert store.scalar("SELECT count(DISTINCT launch_id) FROM kernel WHERE link = 'graph'") == 1


def table(store, name, **columns):
    store.insert_columns(
        name, {k: v for k, (_, v) in columns.items()}, {k: t for k, (t, _) in columns.items()}
    )


def kernels(store, process, correlation, external=None, start=None, **more):
    count = len(correlation)
    table(
        store, "raw_kernel",
        source_id=("INTEGER", [0] * count), process=("BIGINT", process), device_id=("INTEGER", [0] * count),
        stream=("BIGINT", [7] * count), start_ns=("BIGINT", start or [1000 + i for i in range(count)]),
        dur_ns=("BIGINT", [1] * count), correlation=("BIGINT", correlation), external_id=("BIGINT", external or [None] * count),
        name_id=("INTEGER", [1] * count), **more,
    )  # fmt: skip


def calls(store, names, process, thread, start, correlation, dur=None):
    count = len(names)
    table(store, "name", name_id=("INTEGER", [1, *range(2, count + 2)]), text=("VARCHAR", ["k", *names]))
    table(
        store, "raw_host_call",
        source_id=("INTEGER", [0] * count), process=("BIGINT", process), thread=("BIGINT", thread), start_ns=("BIGINT", start),
        dur_ns=("BIGINT", dur or [5] * count), name_id=("INTEGER", [*range(2, count + 2)]), correlation=("BIGINT", correlation),
    )  # fmt: skip


def ops(store, thread, start, dur, external=None, process=None):
    count = len(start)
    table(
        store, "raw_op",
        source_id=("INTEGER", [0] * count), process=("BIGINT", process or [1] * count), thread=("BIGINT", thread),
        start_ns=("BIGINT", start), dur_ns=("BIGINT", dur), name_id=("INTEGER", [1] * count),
        external_id=("BIGINT", external or [None] * count),
    )  # fmt: skip


def test_a_correlation_is_known_within_its_process_only(store):
    """Two processes use correlation 5: where the profiler names the process, each kernel finds its own launch."""
    calls(store, ["cudaLaunchKernel", "cuLaunchKernel"], [1, 2], [10, 20], [100, 200], [5, 5])
    kernels(store, [1, 2, 3], [5, 5, 5])
    link(store)
    got = store.rows(
        "SELECT c.process, k.link FROM kernel k LEFT JOIN host_call c ON c.call_id = k.launch_id ORDER BY kernel_id"
    )
    assert got == [(1, "none"), (2, "none"), (None, "no_launch")]


def test_of_calls_with_one_correlation_the_launching_one_counts(store):
    calls(store, ["cudaStreamIsCapturing", "cudaLaunchKernel"], [1, 1], [10, 10], [100, 110], [5, 5])
    kernels(store, [None], [5])
    link(store)
    assert store.rows(
        "SELECT n.text FROM kernel JOIN host_call ON call_id = launch_id JOIN name n ON n.name_id = host_call.name_id"
    ) == [("cudaLaunchKernel",)]


def test_innermost_operator_of_the_launching_thread(store):
    """No external ids (nsys): thread 10 is inside b inside a at 120, thread 20 inside c only."""
    ops(store, [10, 10, 20], [100, 110, 100], [100, 20, 100])
    calls(store, ["cudaLaunchKernel", "cuLaunchKernel"], [1, 1], [10, 20], [120, 120], [5, 6])
    kernels(store, [1, 1], [5, 6])
    link(store)
    got = store.rows(
        "SELECT o.thread, o.start_ns, k.link FROM kernel k JOIN op o USING (op_id) ORDER BY kernel_id"
    )
    assert got == [(10, 110, "launch"), (20, 100, "launch")]
    assert store.rows("SELECT start_ns, parent_op_id IS NOT NULL FROM op ORDER BY op_id") == [
        (100, False),
        (110, True),
        (100, False),
    ]


def test_an_external_id_that_does_not_enclose_the_launch_is_not_believed(store):
    """External id 9 names an operator over before the launch: the one around the launch is taken."""
    ops(store, [10, 10], [0, 100], [50, 100], external=[9, 8])
    calls(store, ["cudaLaunchKernel"], [1], [10], [120], [5])
    kernels(store, [None], [5], external=[9])
    link(store)
    assert store.rows("SELECT o.external_id, k.link FROM kernel k JOIN op o USING (op_id)") == [(8, "launch")]


def test_an_external_id_serves_where_the_call_was_not_recorded(store):
    ops(store, [10], [0], [50], external=[9])
    kernels(store, [None, None], [None, None], external=[9, 9], start=[60, -10])
    link(store)
    # the second kernel ran before its operator began: the id must be another's
    assert store.rows("SELECT start_ns, link FROM kernel ORDER BY start_ns") == [
        (-10, "no_launch"),
        (60, "external_id"),
    ]


@pytest.mark.parametrize(
    "api", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_ptsz"]
)
def test_replayed_kernels_belong_to_the_replay(store, api):
    ops(store, [10], [0], [500], external=[9])
    calls(store, [api], [1], [10], [120], [5])
    kernels(store, [None, None], [5, 5], external=[9, None])
    link(store)
    assert store.rows("SELECT link, op_id, launch_id FROM kernel") == [("graph", None, 0)] * 2
    assert store.scalar("SELECT op_id FROM host_call") == 0


def test_grid_counts_blocks_whatever_the_launch_counted(store):
    """hipExtModuleLaunchKernel takes threads: 491520 threads in blocks of 256 are 1920 blocks (24 x 80 tiles)."""
    calls(store, ["hipExtModuleLaunchKernel", "hipModuleLaunchKernel"], [1, 1], [10, 10], [1, 2], [5, 6])
    kernels(
        store,
        [None] * 2,
        [5, 6],
        grid=("VARCHAR", ["[491520,2,1]"] * 2),
        block=("VARCHAR", ["[256,1,1]"] * 2),
    )
    link(store)
    assert store.rows("SELECT grid FROM kernel ORDER BY kernel_id") == [("[1920,2,1]",), ("[491520,2,1]",)]


def copies(store, rows):
    count = len(rows)
    table(
        store, "raw_gpu_copy",
        source_id=("INTEGER", [0] * count), device_id=("INTEGER", [0] * count), stream=("BIGINT", [7] * count),
        start_ns=("BIGINT", [1000 + i for i in range(count)]), dur_ns=("BIGINT", [1] * count), name_id=("INTEGER", [1] * count),
        correlation=("BIGINT", [r[0] for r in rows]), kind=("VARCHAR", [r[1] for r in rows]),
        pageable=("BOOLEAN", [r[2] for r in rows]), bytes=("BIGINT", [1] * count),
    )  # fmt: skip


def test_copies_of_pageable_memory_block(store):
    names = ["cudaMemcpyAsync"] * 4 + ["cudaMemcpy"]
    calls(store, [f"{name}" for name in names], [1] * 5, [10] * 5, [1, 2, 3, 4, 5], [5, 6, 7, 8, 9])
    copies(
        store,
        [(5, "HtoD", True), (6, "HtoD", False), (7, "HtoD", None), (8, "DtoD", False), (9, "DtoD", False)],
    )
    store.con.execute("ALTER TABLE raw_host_call ADD COLUMN blocking BOOLEAN")
    store.con.execute("UPDATE raw_host_call SET blocking = correlation = 9")
    link(store)
    # cudaMemcpy within the device does not wait for the host side (CUDA runtime, API synchronisation behaviour)
    assert store.rows("SELECT blocking FROM host_call ORDER BY call_id") == [
        (True,),
        (False,),
        (False,),
        (False,),
        (False,),
    ]


def test_overlapping_operators_still_sum(store):
    """b starts in a and ends after it: 0-100 and 50-150. a keeps 50 ns, b counts to 100; one note."""
    made = Nesting(2)
    made.run(iter([[(0, 0, 1, 1, 0, 100_000), (0, 1, 1, 1, 50_000, 150_000)]]), with_segments=True)
    assert list(made.self_ns) == [50_000, 50_000]
    assert made.segments == [(0, 0, 50_000), (1, 50_000, 100_000)]
    assert made.overhanging == 1


def test_rounding_of_microseconds_is_no_overhang(store):
    """Start and duration cut to microseconds: a child may seem to end 1 us after its parent, next to a sibling."""
    made = Nesting(3)
    made.run(iter([[(0, 0, 1, 1, 0, 10_000), (0, 1, 1, 1, 2_000, 11_000), (0, 2, 1, 1, 10_000, 12_000)]]))
    assert list(made.parent) == [-1, 0, -1]
    assert list(made.self_ns) == [2_000, 8_000, 2_000]
    assert made.overhanging == 0


def test_the_step_shows_once_an_owner_is_known(store):
    kernels(store, [None, None], [5, 6])
    link(store)
    assert store.rows("SELECT step_id FROM kernel") == [(None,), (None,)]
    store.con.execute("CREATE TABLE owner AS SELECT 1::BIGINT AS kernel_id, 4::INTEGER AS step_id")
    public_views(store)
    assert store.rows("SELECT kernel_id, step_id FROM kernel ORDER BY ALL") == [(0, None), (1, 4)]
    assert store.rows("SELECT kernel_id, step_id FROM activity ORDER BY ALL") == [(0, None), (1, 4)]


def test_views_have_the_columns_of_the_schema(store):
    ensure_raw(store)
    kernels(store, [None], [5])
    store.ensure_tables()
    for name in ("kernel", "gpu_copy", "gpu_memset", "graph_run", "activity", "op", "host_call"):
        store.con.execute(f"DROP TABLE {name}")
    link(store)
    for name in ("kernel", "gpu_copy", "gpu_memset", "graph_run", "activity", "op", "host_call"):
        got = {row[0]: row[1] for row in store.rows(f"DESCRIBE {name}")}
        assert got == {c.name: c.type for c in BY_NAME[name].columns}, name


def test_nothing_of_the_linking_stays_behind(store):
    kernels(store, [None], [5])
    link(store)
    names = {row[0] for row in store.rows("SELECT table_name FROM information_schema.tables")}
    assert not {n for n in names if n.startswith(("link_", "raw_"))}
    assert not list(store.folder.iterdir())


@pytest.mark.parametrize("large", [False, True])
def test_large_runs_live_in_parquet_and_say_the_same(store, large):
    store.large = large
    ops(store, [10, 10], [100, 110], [100, 20], external=[1, 2])
    calls(store, ["cudaLaunchKernel"], [1], [10], [120], [5])
    kernels(store, [None], [5], external=[2])
    link(store)
    assert store.rows("SELECT kernel_id, launch_id, op_id, link FROM kernel") == [(0, 0, 1, "external_id")]
    assert store.rows("SELECT op_id, parent_op_id, self_ns FROM op ORDER BY op_id") == [
        (0, None, 80),
        (1, 0, 20),
    ]
    assert bool(list(store.folder.glob("*.parquet"))) is large
