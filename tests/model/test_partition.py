"""The invariant: every nanosecond of a device's window in exactly one bucket, on any trace.

Generated runs overlap streams, launch late or never, use several devices; the expected busy time per class comes from
counting nanoseconds one by one.
"""

import itertools
from collections import defaultdict

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

STEP = "execute_context_0(0)_generation_{n}({n})"

activity = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["kernel", "kernel", "kernel", "nccl", "HtoD", "DtoD"]),
        "start": st.integers(0, 300),
        "dur": st.integers(0, 60),
        "device": st.integers(0, 1),
        "stream": st.integers(1, 3),
        "launch": st.one_of(st.none(), st.tuples(st.integers(-20, 300), st.integers(0, 15))),
        "thread": st.integers(1, 2),
    }
)
blocking = st.tuples(st.integers(0, 280), st.integers(1, 60), st.integers(1, 2))
spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=4)


def effective(rows):
    """[start, end) per activity after programmatic dependent launch: not before the stream's earlier work has ended."""
    last = defaultdict(int)
    out = []
    for row in sorted(rows, key=lambda r: (r["start"], r["order"])):
        key = row["device"], row["stream"]
        end = row["start"] + row["dur"]
        start = max(row["start"], min(end, last[key])) if key in last else row["start"]
        last[key] = max(last[key], end)
        out.append((row, start, end))
    return out


def expected_busy(rows, device):
    """Nanoseconds by winning class, counted one by one."""
    mine = [(r, s, e) for r, s, e in effective(rows) if r["device"] == device]
    rank = {"kernel": 0, "DtoD": 0, "nccl": 1, "HtoD": 2}
    counted = defaultdict(int)
    for t in range(0, 400):
        running = [rank[r["kind"]] for r, s, e in mine if s <= t < e]
        if running:
            counted[min(running)] += 1
    return counted


# Shrinking rebuilds a store a try and takes minutes: a failing run prints its rows as they are.
@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=st.lists(activity, min_size=1, max_size=14),
    blocks=st.lists(blocking, max_size=3),
    steps=spans,
    stepped=st.booleans(),
)
def test_segments_partition_every_window(new_run, rows, blocks, steps, stepped):
    run = new_run()
    # Link numbers activities by time; equal starts keep the order in which kinds are numbered, so make starts unique.
    seen = set()
    for order, row in enumerate(rows):
        while (row["start"], row["device"]) in seen:
            row["start"] += 1
        seen.add((row["start"], row["device"]))
        row["order"] = order
        correlation = run.call(*row["launch"], thread=row["thread"]) if row["launch"] else None
        if row["kind"] in ("HtoD", "DtoD"):
            run.copy(
                row["start"],
                row["dur"],
                row["kind"],
                correlation=correlation,
                device=row["device"],
                stream=row["stream"],
            )
        else:
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if row["kind"] == "nccl" else "gemm"
            run.k(
                row["start"],
                row["dur"],
                correlation=correlation,
                name=name,
                device=row["device"],
                stream=row["stream"],
            )
    for start, dur, thread in blocks:
        run.call(start, dur, "cudaStreamSynchronize", thread=thread, blocking=True)
    if stepped:
        at = 0
        for offset, dur in steps:
            run.annotate(at + offset, dur, STEP.format(n=3))
            at += offset + dur
    run.build()
    for device in {r["device"] for r in rows}:
        mine = [(s, e) for r, s, e in effective(rows) if r["device"] == device]
        window = min(s for s, _ in mine), max(e for _, e in mine)
        segments = run.store.rows(
            "SELECT start_ns, end_ns, bucket FROM segment WHERE device_id = ? ORDER BY start_ns, end_ns",
            device,
        )
        # Contiguous from the first start to the last end: nothing twice, nothing missing.
        if window[1] > window[0]:
            assert (segments[0][0], segments[-1][1]) == window
        for (_, end, _), (start, _, _) in itertools.pairwise(segments):
            assert end == start
        busy = defaultdict(int)
        for start, end, bucket in segments:
            assert end > start
            cls = {"unmodelled": 0, "hbm": 0, "communication": 1, "copy": 2}.get(bucket)
            if cls is not None:
                busy[cls] += end - start
        assert busy == expected_busy(rows, device)
    # Steps and phases add up too: charged plus outside is everything.
    total = run.store.scalar("SELECT coalesce(sum(end_ns - start_ns), 0) FROM segment")
    by_step = run.store.scalar("SELECT coalesce(sum(wall_ns), 0) FROM step_time")
    outside = run.store.scalar(
        "SELECT coalesce(sum(end_ns - start_ns), 0) FROM segment WHERE step_id IS NULL"
    )
    by_phase = run.store.scalar("SELECT coalesce(sum(ns), 0) FROM phase_bucket")
    assert total == by_step + outside == by_phase
    run.store.close()


def test_overlapping_kernels_share_their_time(run):
    # Three kernels on three streams: A 0-10, B 0-10, C 3-10. 0-3 is A's and B's: 1 ns each and the remainder to A.
    # 3-10 is 7 ns for three: 2 each and the remainder 1 to the earliest, A. A 2 + 3 = 5, B 1 + 2 = 3, C 2.
    run.k(0, 10, launch=(-5, 1), stream=1)
    run.k(0, 10, launch=(-4, 1), stream=2)
    run.k(3, 7, launch=(-3, 1), stream=3)
    run.build()
    own = dict(run.store.rows("SELECT k.stream, s.own_ns FROM share s JOIN kernel k USING (kernel_id)"))
    assert own == {1: 5, 2: 3, 3: 2}


def test_programmatic_dependent_launch_starts_at_its_predecessors_end(run):
    # The second kernel begins 3 ns before the first ends, on one stream: 0-10 and 10-20.
    run.k(0, 10, launch=(-5, 1))
    run.k(7, 13, launch=(-4, 1))
    run.build()
    assert run.store.rows("SELECT own_ns FROM share ORDER BY kernel_id") == [(10,), (10,)]
