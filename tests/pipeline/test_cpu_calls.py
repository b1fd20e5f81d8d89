"""Kernel rows of a trace without a GPU: an operator's time is in pieces, its calls are whole."""

import json

from diagnose import pipeline


def test_calls_are_counted_not_the_pieces_between_children(tmp_path):
    """linear [0, 100) us runs mm in [20, 60): 20 + 40 = 60 us in two pieces of its own, five times."""
    events = []
    for i in range(5):
        for name, start, length in (("aten::linear", 0, 100), ("aten::mm", 20, 40)):
            events.append({
                "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1000 * i + start, "dur": length,
                "args": {"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]},
            })  # fmt: skip
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    rows = {k.op: k for k in pipeline.run([path]).kernels}
    assert (rows["aten::linear"].count, rows["aten::linear"].time_ns) == (5, 5 * 60_000)
    assert (rows["aten::mm"].count, rows["aten::mm"].time_ns) == (5, 5 * 40_000)
    # All calls alike: no piece tells of a spread between calls.
    assert not rows["aten::mm"].se_ns
