"""Real traces without a GPU, recorded by the project: every nanosecond of an operator is in exactly one kernel row."""

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "sample_traces").glob("cpu_*.json.gz"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_kernels_cover_the_operators_once(path, load):
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    spans = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            start = int(Decimal(event["ts"]) * 1000)
            spans[int(event["tid"])].append((start, start + int(Decimal(event["dur"]) * 1000)))
    covered = {}
    for thread, intervals in spans.items():
        total, reached = 0, 0
        for start, end in sorted(intervals):
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        covered[thread] = total
    store = load(path, linked=True)
    assert dict(store.rows("SELECT stream, sum(dur_ns) FROM kernel WHERE device_id = -1 GROUP BY 1")) == {
        t: n for t, n in covered.items() if n
    }
    overlaps = store.scalar(
        "SELECT count(*) FROM (SELECT start_ns < lag(start_ns + dur_ns) OVER (PARTITION BY stream ORDER BY start_ns) AS o FROM kernel) WHERE o"
    )
    assert overlaps == 0
    outside = store.scalar(
        "SELECT count(*) FROM kernel k JOIN op o USING (op_id) WHERE k.start_ns < o.start_ns OR k.start_ns + k.dur_ns > o.start_ns + o.dur_ns"
    )
    assert outside == 0
    assert (
        store.scalar(
            "SELECT count(*) FROM op o WHERE self_ns <> coalesce((SELECT sum(dur_ns) FROM kernel k WHERE k.op_id = o.op_id), 0)"
        )
        == 0
    )


def test_there_are_samples():
    assert SAMPLES
