"""Ranks: clocks, transfer against waiting, the late rank and why it is late.

The generated runs are simulated nanosecond by nanosecond here, so every expected number comes from the
simulation.
"""

import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from diagnose.ingest.raw import ensure_raw
from diagnose.model import attribution, bounds
from diagnose.model.link import link, public_views
from diagnose.model.ranks import Matching, match_collectives
from diagnose.model.ranks_summary import summarise
from diagnose.model.steps import build_steps
from diagnose.pipeline import Analysed, Options, finish, prepare
from diagnose.store import TABLES, Store

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "nsys"
MS = 1_000_000


# --- simulated ranks
# ------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A simulated rank: rows of its trace, in its own clock."""

    kernels: list[tuple[int, int, str, int]] = field(
        default_factory=list
    )  # start, duration, name, correlation
    calls: list[tuple[int, int, str, int, bool]] = field(default_factory=list)
    extra: dict[int, str] = field(default_factory=dict)  # kernel number -> JSON of the collective
    notes: list[tuple[int, int, str]] = field(default_factory=list)

    def store(self, rank: int, origin: int = 0, shift: int = 0) -> Store:
        """The rows as raw tables, all times moved by `shift`."""
        store = Store()
        ensure_raw(store)
        for table in TABLES:
            if table.stage == "ingest" and table.name != "host_call":
                store.con.execute(table.ddl())
        texts = sorted({k[2] for k in self.kernels} | {c[2] for c in self.calls})
        names = {text: i for i, text in enumerate(texts)}
        store.con.executemany("INSERT INTO name VALUES (?, ?)", [(i, t) for t, i in names.items()])
        store.insert("source", [{"source_id": 0, "path": f"r{rank}", "rank": rank, "origin_ns": origin}])
        store.insert("device", [{"device_id": 0, "source_id": 0, "name": "", "active": True}])
        signatures = {text: i for i, text in enumerate(sorted(set(self.extra.values())))}
        for text, i in signatures.items():
            store.insert("signature", [{"signature_id": i, "extra": text}])

        def fill(table: str, columns: dict[str, list[Any]]) -> None:
            types = dict(
                store.rows(
                    f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}'"
                )
            )
            store.insert_columns("filled", columns, {c: types[c] for c in columns})
            store.con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM filled")
            store.con.execute("DROP TABLE filled")

        count = len(self.kernels)
        fill("raw_kernel", {
            "source_id": [0] * count, "device_id": [0] * count, "stream": [7] * count,
            "start_ns": [k[0] + shift for k in self.kernels], "dur_ns": [k[1] for k in self.kernels],
            "name_id": [names[k[2]] for k in self.kernels], "correlation": [k[3] for k in self.kernels],
            "grid": ["[64,1,1]"] * count, "block": ["[128,1,1]"] * count,
            "signature_id": [signatures.get(self.extra.get(i, "")) for i in range(count)],
        })  # fmt: skip
        count = len(self.calls)
        fill("raw_host_call", {
            "source_id": [0] * count, "process": [1] * count, "thread": [1] * count,
            "start_ns": [c[0] + shift for c in self.calls], "dur_ns": [c[1] for c in self.calls],
            "name_id": [names[c[2]] for c in self.calls], "correlation": [c[3] for c in self.calls],
            "blocking": [c[4] for c in self.calls],
        })  # fmt: skip
        for i, (start, dur, text) in enumerate(self.notes):
            store.insert("annotation", [{
                "annotation_id": i, "source_id": 0, "origin": "user_annotation", "process": 1, "thread_or_stream": 1,
                "start_ns": start + shift, "dur_ns": dur, "text": text,
            }])  # fmt: skip
        return store


@dataclass
class Work:
    """What a rank does between two collectives, and how."""

    host_ns: int = 10_000  # host time a launch
    kernel_ns: int = 4_000
    kernels: tuple[str, ...] = ("gemm",) * 6
    names_ns: dict[str, int] = field(default_factory=dict)  # other durations by name
    stall: dict[int, int] = field(default_factory=dict)  # layer number -> host pause before it


TRANSFER = 30_000
LATENCY = 5_000


def simulate(
    works: list[Work], steps: int, layers: int, reduce: str = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
) -> list[Job]:
    """Ranks that launch kernels, meet in a collective after each layer, and wait for the device after each
    step.

    The host never waits inside a step; a collective starts when its rank is ready and ends, everywhere,
    TRANSFER after the last one started.
    """
    jobs = [Job() for _ in works]
    host = [0] * len(works)
    device = [0] * len(works)
    correlation = 0
    for step in range(steps):
        begin = list(host)
        for layer in range(layers):
            ready = []
            correlation += 100
            for r, work in enumerate(works):
                host[r] += work.stall.get(step * layers + layer, 0)
                for i, name in enumerate((*work.kernels, reduce)):
                    jobs[r].calls.append((host[r], work.host_ns, "cudaLaunchKernel", correlation + i, False))
                    host[r] += work.host_ns
                    start = max(device[r], host[r] + LATENCY)
                    if i < len(work.kernels):
                        dur = work.names_ns.get(name, work.kernel_ns)
                        jobs[r].kernels.append((start, dur, name, correlation + i))
                        device[r] = start + dur
                    else:
                        ready.append(start)
            end = max(ready) + TRANSFER
            for r, start in enumerate(ready):
                jobs[r].kernels.append((start, end - start, reduce, correlation + len(works[r].kernels)))
                device[r] = end
        for r in range(len(works)):
            correlation += 1
            jobs[r].calls.append((host[r], device[r] - host[r], "cudaStreamSynchronize", correlation, True))
            host[r] = device[r] + 1_000
            jobs[r].notes.append(
                (begin[r], host[r] - begin[r], f"execute_context_0(0)_generation_8({step + 8})")
            )
    return jobs


def expected_waits(jobs: list[Job], name: str = "AllReduce") -> list[list[int]]:
    """By collective, each rank's duration beyond the shortest."""
    durations = [[k[1] for k in job.kernels if name in k[2]] for job in jobs]
    return [[d - min(row) for d in row] for row in zip(*durations, strict=True)]


@pytest.fixture
def analyse() -> Iterator[Callable[[list[Store]], tuple[Matching | None, dict[str, Any] | None]]]:
    """Link, match, finish and summarise; stores are closed at the end."""
    opened: list[Store] = []

    def run(stores: list[Store], to_the_end: bool = True) -> tuple[Matching | None, dict[str, Any] | None]:
        opened.extend(stores)
        done = []
        for store in stores:
            link(store)
            bounds.write_families(store)
            if not to_the_end:
                continue
            outcome = build_steps(store, None, (0,))
            public_views(store)
            attribution.cut(store)
            done.append(Analysed(store, {0: None}, {0: ""}, outcome))
        matching = match_collectives(stores)
        for one in done:
            finish(one, Options())
        return matching, summarise(stores, matching) if matching and to_the_end else None

    yield run
    for store in opened:
        store.close()


def _buckets(store: Store) -> dict[str, int]:
    return dict(store.rows("SELECT bucket, sum(end_ns - start_ns)::BIGINT FROM segment GROUP BY bucket"))


def test_one_of_eight_is_slower_in_its_host_part(analyse: Callable[..., Any]) -> None:
    """Rank 3 takes 5 % longer to launch. Clocks are up to an hour apart, and known to differ."""
    works = [Work(host_ns=10_500 if r == 3 else 10_000) for r in range(8)]
    jobs = simulate(works, steps=6, layers=12)
    shifts = [0, 5, -2_000, 7 * MS, 3_600 * 10**9, -12 * MS, 1, 40]
    epoch = 1_700_000_000 * 10**9
    stores = [job.store(r, origin=epoch, shift=shifts[r]) for r, job in enumerate(jobs)]
    matching, summary = analyse(stores)
    waits = expected_waits(jobs)
    assert len(matching.groups) == len(waits) == 72
    assert {len(g.parts) for g in matching.groups} == {8}
    # Every other rank's collective time beyond the transfer is waiting; the late rank's is all transfer.
    for r, store in enumerate(stores):
        buckets = _buckets(store)
        assert buckets.get("communication", 0) == 72 * TRANSFER
        assert buckets.get("comm_wait", 0) == sum(row[r] for row in waits)
        window = store.scalar("SELECT max(start_ns + dur_ns) - min(start_ns) FROM activity")
        assert sum(buckets.values()) == window
    assert [row["skew_ns"] for row in summary["ranks"]] == shifts
    (note,) = [n["message"] for n in summary["notes"]]
    assert "rank 3 +7000.0 µs (± 0.0)" in note and "rank 2 -2.0 µs" in note
    late = summary["straggler"]
    assert late["label"] == "rank 3" and late["pattern"] == "steady"
    # Seven launches a layer at 500 ns more each; the first layer of a step starts together after the
    # synchronise.
    cost = sum(median(w for r, w in enumerate(row) if r != 3) for row in waits)
    assert late["cost_ns"] == cost and cost > 72 * 7 * 500 * 0.9
    assert late["share_of_wait"] == 1.0
    assert late["cause"]["bucket"] == "idle_launch" and late["cause"]["kind"] == "host"
    # What it spends more than the others before its collectives is what they wait.
    assert late["cause"]["ns"] == pytest.approx(cost, rel=0.05)
    assert summary["pipeline"] is None and summary["experts"] is None
    table = stores[0].dicts("SELECT * FROM collective ORDER BY group_id")
    assert {row["late_rank"] for row in table} == {3} and {row["ranks"] for row in table} == {8}
    assert [row["wait_ns"] for row in table] == [row[0] for row in waits]


def test_equal_ranks_have_no_straggler(analyse: Callable[..., Any]) -> None:
    jobs = simulate([Work(), Work(), Work()], steps=3, layers=8)
    shifts = (0, 3 * MS, -5)
    matching, summary = analyse([job.store(r, shift=shifts[r]) for r, job in enumerate(jobs)])
    assert summary["straggler"] is None and summary["wait_ns"] == 0
    # These traces name no epoch: how they lie over each other is known, whether a clock is wrong is not.
    assert [row["skew_ns"] for row in summary["ranks"]] == [0, None, None]
    assert [row["offset_ns"] for row in summary["ranks"]] == [0, 3 * MS, -5]
    assert "rank 1 +3.000 ms" in summary["notes"][0]["message"]
    assert sum(g.transfer_ns for g in matching.groups) == 24 * TRANSFER


def test_taking_turns_is_no_straggler(analyse: Callable[..., Any]) -> None:
    """Each rank is late in every other layer by 200 us: it pauses for 400 where the other paused before."""
    works = [Work(stall={i: 400_000 if i else 200_000 for i in range(40) if i % 2 == r}) for r in range(2)]
    jobs = simulate(works, steps=1, layers=40)
    _, summary = analyse([job.store(r) for r, job in enumerate(jobs)])
    assert [row["late_in"] for row in summary["ranks"]] == [20, 20]
    assert summary["wait_ns"] == pytest.approx(40 * 200_000, rel=0.05) and summary["straggler"] is None


def test_a_rare_stall(analyse: Callable[..., Any]) -> None:
    """One pause of 30 ms on one rank: the others wait once, in one collective as long as the pause."""
    works = [Work(stall={50: 30 * MS}) if r == 1 else Work() for r in range(3)]
    jobs = simulate(works, steps=8, layers=12)
    _, summary = analyse([job.store(r) for r, job in enumerate(jobs)])
    late = summary["straggler"]
    assert (late["label"], late["pattern"]) == ("rank 1", "rare")
    assert late["cost_ns"] == pytest.approx(30 * MS, rel=0.01)
    assert late["cause"]["bucket"] == "idle_launch"
    # One wait in eight steps makes up the cost: the process paused.
    assert (late["stalls"], late["pauses"]) == (1, True)


@pytest.mark.parametrize(
    ("work", "pauses"),
    [
        # A pause before every step is a slow host; so is launching that is slow throughout; every third step pauses.
        (Work(stall={12 * step: 30 * MS for step in range(6)}), False),
        (Work(host_ns=10_500), False),
        (Work(stall={12 * step: 30 * MS for step in (2, 5)}), True),
    ],
)
def test_late_in_some_steps_only_is_a_pause(work: Work, pauses: bool, analyse: Callable[..., Any]) -> None:
    jobs = simulate([Work(), work, Work()], steps=6, layers=12)
    _, summary = analyse([job.store(r) for r, job in enumerate(jobs)])
    assert summary["straggler"]["label"] == "rank 1"
    assert summary["straggler"]["pauses"] is pauses


def test_a_slower_device(analyse: Callable[..., Any]) -> None:
    """The same kernels take 10 % longer on rank 0; device-bound, so launching does not matter."""
    names = ("gemm", "softmax", "rms_norm", "rotary_embedding", "gemm", "silu_and_mul")
    works = [Work(host_ns=500, kernel_ns=22_000 if r == 0 else 20_000, kernels=names) for r in range(4)]
    jobs = simulate(works, steps=3, layers=10)
    _, summary = analyse([job.store(r) for r, job in enumerate(jobs)])
    late = summary["straggler"]
    assert late["label"] == "rank 0"
    assert late["cause"]["kind"] == "slow_device"
    assert late["cause"]["detail"] == "the same kernels take 10.0 % longer"


def test_uneven_experts(analyse: Callable[..., Any]) -> None:
    """Rank 2 got more tokens: its expert kernels take 60 us, the others' 40; the rest is equal."""
    names = ("gemm", "fused_moe_kernel", "rms_norm")
    works = [
        Work(
            host_ns=500,
            kernel_ns=20_000,
            kernels=names,
            names_ns={"fused_moe_kernel": 60_000 if r == 2 else 40_000},
        )
        for r in range(4)
    ]
    jobs = simulate(works, steps=3, layers=10)
    _, summary = analyse([job.store(r) for r, job in enumerate(jobs)])
    assert summary["straggler"]["label"] == "rank 2"
    assert summary["straggler"]["cause"]["kind"] == "experts"
    experts = summary["experts"]
    assert experts["label"] == "rank 2" and experts["ratio"] == pytest.approx(60 / 40)
    # The first layer's kernels run before the first collective, where the comparison starts: 29 layers of 30.
    assert experts["more_ns"] == 29 * 20_000


def test_more_of_one_kind_of_work(analyse: Callable[..., Any]) -> None:
    works = [
        Work(host_ns=500, kernel_ns=20_000, kernels=("gemm",) * 3 + ("flash_fwd_kernel",) * (2 if r else 1))
        for r in (0, 1)
    ]
    jobs = simulate(works, steps=2, layers=10)
    _, summary = analyse([job.store(r) for r, job in enumerate(jobs)])
    cause = summary["straggler"]["cause"]
    assert summary["straggler"]["label"] == "rank 1" and cause["kind"] == "more_work"
    assert cause["detail"].startswith("attn_prefill kernels take 0.380 ms more")  # 19 layers x 20 us


def test_one_rank_alone_has_nothing_to_match(analyse: Callable[..., Any]) -> None:
    (job, _) = simulate([Work(), Work()], steps=1, layers=3)
    store = job.store(0)
    matching, summary = analyse([store])
    assert matching is None and summary is None
    assert "comm_wait" not in _buckets(store)


def test_communicators_without_names_are_told_apart(analyse: Callable[..., Any]) -> None:
    """Two tensor-parallel pairs that do not wait for each other: 0 with 1, 2 with 3."""
    noise = random.Random(4)
    stalls = {i: noise.randrange(2 * MS) for i in range(60)}
    left = simulate([Work(), Work(host_ns=10_300)], steps=2, layers=30)
    right = simulate([Work(stall=stalls), Work(stall=stalls, host_ns=10_300)], steps=2, layers=30)
    matching, _ = analyse([job.store(r, shift=r * 1_000_003) for r, job in enumerate((*left, *right))], False)
    assert {tuple(sorted(p.member for p in g.parts)) for g in matching.groups} == {(0, 1), (2, 3)}
    assert len(matching.groups) == 120


def test_named_communicators_are_never_mixed(analyse: Callable[..., Any]) -> None:
    """The trace names the ranks of each group: the same operation of two groups stays apart even in
    lockstep."""
    jobs = simulate([Work(), Work(), Work(), Work()], steps=1, layers=10)
    for r, job in enumerate(jobs):
        group = "[0, 1]" if r < 2 else "[2, 3]"
        for i, kernel in enumerate(job.kernels):
            if "AllReduce" in kernel[2]:
                job.extra[i] = (
                    f'{{"Collective name": "allreduce", "Process Group Ranks": "{group}", "In msg nelems": "4096"}}'
                )
    matching, _ = analyse([job.store(r) for r, job in enumerate(jobs)], False)
    assert {tuple(sorted(p.member for p in g.parts)) for g in matching.groups} == {(0, 1), (2, 3)}
    assert len(matching.groups) == 20


@pytest.mark.parametrize("named", [True, False])
def test_pipeline_stages(named: bool, analyse: Callable[..., Any]) -> None:
    """Stage 0 computes 400 us and sends, stage 1 receives and computes 300 us: it waits 100 us a microbatch.

    Peers are in the trace (torch) or only the kind is, from the range around the launch (NCCL's own NVTX).
    """
    stages = [Job(), Job()]
    free = [0, 0]
    received = 0
    noise = random.Random(6)
    waits = []
    for batch in range(40):
        c = 10 * batch
        jitter = noise.randrange(40_000)
        done = free[0] + 400_000 + jitter
        stages[0].kernels.append((free[0], 400_000 + jitter, "gemm", c))
        # The send starts when computed; the receive is posted when the stage is free; both end together.
        end = max(done, free[1]) + 10_000
        waits.append((end - free[1]) - min(end - done, end - free[1]))
        for stage, start, kind, peer in ((0, done, "send", 1), (1, free[1], "recv", 0)):
            job = stages[stage]
            job.extra[len(job.kernels)] = (
                f'{{"Collective name": "{kind}", "{"Dst" if kind == "send" else "Src"} Rank": "{peer}"}}'
                if named
                else "{}"
            )
            job.kernels.append((start, end - start, "ncclDevKernel_SendRecv", c + 1))
            job.calls.append((start - 8_000, 4_000, "cuLaunchKernelEx", c + 1, False))
            if not named:
                job.notes.append((start - 9_000, 6_000, f"nccl{kind.title()}"))
        free[0] = end
        received = end
        stages[1].kernels.append((received, 300_000, "gemm", c + 2))
        free[1] = received + 300_000
    matching, summary = analyse([job.store(r, shift=r * 777) for r, job in enumerate(stages)])
    assert len(matching.groups) == 40
    first, second = summary["pipeline"]
    assert (first["label"], second["label"]) == ("rank 0", "rank 1")
    assert second["receive_wait_ns"] == sum(waits) > 39 * 100_000
    assert first["receive_wait_ns"] == 0 and second["transfers"] == 40


def test_collectives_at_the_edges_stay_whole(analyse: Callable[..., Any]) -> None:
    """Rank 1's capture began five collectives later: those five are communication on rank 0, and it is
    said."""
    jobs = simulate([Work(), Work(host_ns=10_400)], steps=3, layers=5)
    cut = sorted(k[0] + k[1] for k in jobs[1].kernels if "AllReduce" in k[2])[4]
    jobs[1].kernels = [k for k in jobs[1].kernels if k[0] >= cut]
    stores = [job.store(r) for r, job in enumerate(jobs)]
    matching, summary = analyse(stores)
    assert len(matching.groups) == 10
    lost = sum(k[1] for k in jobs[0].kernels if "AllReduce" in k[2] and k[0] + k[1] <= cut)
    assert _buckets(stores[0])["communication"] == lost + 10 * TRANSFER
    (note,) = [n for n in summary["notes"] if n["code"] == "ranks-unmatched"]
    assert "rank 0 10 of 15" in note["message"]


# --- real
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.shared_traces
@pytest.mark.parametrize(
    ("name", "shortest_ms"), [("diffusion_h100x2_before", 5.8), ("diffusion_h100x2_after", 5.5)]
)
def test_two_devices_of_one_report(name: str, shortest_ms: float) -> None:
    """NCCL of two H100s: the shorter of each pair, paired by order in plain SQL, adds up to 5.8 and 5.5
    ms."""
    path = TRACES / f"{name}.sqlite"
    if not path.exists():
        pytest.skip(f"no shared trace {name}")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        rows = database.execute(
            """SELECT deviceId, "end" - start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id =
            k.shortName WHERE s.value LIKE 'nccl%' ORDER BY start"""
        ).fetchall()
    by_device: dict[int, list[int]] = defaultdict(list)
    for device, ns in rows:
        by_device[device].append(ns)
    shortest = [min(pair) for pair in zip(by_device[0], by_device[1], strict=True)]
    assert sum(shortest) / MS == pytest.approx(shortest_ms, abs=0.05)
    analysed = prepare(path, Options())
    with analysed.store as store:
        matching = match_collectives([store])
        assert matching is not None
        assert sum(g.transfer_ns for g in matching.groups) == sum(shortest)
        assert len(matching.groups) == len(shortest)
        # Within one report the clocks agree to the ends' own scatter.
        assert abs(matching.skew_ns[1]) < 25_000
        finish(analysed, Options())
        for device in (0, 1):
            buckets = dict(
                store.rows(
                    "SELECT bucket, sum(end_ns - start_ns)::BIGINT FROM segment WHERE device_id = ? GROUP BY bucket",
                    device,
                )
            )
            waiting = sum(by_device[device]) - sum(shortest)
            assert (buckets["communication"], buckets["comm_wait"]) == (sum(shortest), waiting)
            # NCCL time is mostly waiting on at least one device.
        assert max(sum(by_device[d]) for d in (0, 1)) > 2 * sum(shortest)
        summary = summarise([store], matching)
        assert [row["label"] for row in summary["ranks"]] == ["device 0", "device 1"]
        assert summary["wait_ns"] == sum(map(sum, by_device.values())) - 2 * sum(shortest)
