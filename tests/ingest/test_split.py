"""Splitting: any layout, any chunk size, the same events; Python frames out, nothing else."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diagnose.ingest.kineto.python_events import drop_python
from diagnose.ingest.kineto.split import GROW_AFTER, Splitter
from diagnose.ingest.source import ByteSource

NASTY = st.sampled_from([
    "aten::mm", '"', "\\", "}, {", '"}, {"ph": "X"', "]}", "[", '","', "traceEvents", '"traceEvents": [', "a\nb\tc", "é中🦥",
    '"cat": "python_function"', "python_function", "</script>", "{{}}", "\\u0041", "x" * 300,
])  # fmt: skip
TEXT = st.lists(NASTY | st.text(max_size=12), max_size=3).map("".join)
ARGS = st.dictionaries(
    TEXT, st.recursive(st.none() | st.integers() | TEXT, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=2), max_leaves=6), max_size=3
)  # fmt: skip
CATS = st.sampled_from(["cpu_op", "kernel", "ac2g", "python_function", "python_function", "user_annotation"])


@st.composite
def an_event(draw):
    event = {
        "ph": "X",
        "cat": draw(CATS),
        "name": draw(TEXT),
        "pid": 1,
        "tid": 2,
        "ts": draw(st.integers(0, 10**6)),
        "dur": 1,
        "args": draw(ARGS),
    }
    if draw(st.booleans()):
        del event["cat"]  # metadata events have none
        event["ph"] = "M"
    if draw(st.booleans()):
        event = dict(reversed(event.items()))
    return event


LAYOUTS = {
    "native": lambda doc: json.dumps(doc, indent=2),
    "one line": json.dumps,
    "compact": lambda doc: json.dumps(doc, separators=(",", ":")),
    "unicode": lambda doc: json.dumps(doc, ensure_ascii=False),
    "spread": lambda doc: json.dumps(doc, separators=(" ,\r\n\t ", " : ")),
    "bare list": lambda doc: json.dumps(doc["traceEvents"], indent=1),
}


def split(path: Path, chunk_bytes: int, keep_python: bool = False):
    with ByteSource(path) as source:
        splitter = Splitter(source, chunk_bytes, keep_python)
        chunks = list(splitter)
        source.finish()
    events = [event for chunk in chunks for event in json.loads(b"[" + chunk.body + b"]")]
    assert sum(chunk.events for chunk in chunks) == len(events)
    return events, splitter.stream


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    events=st.lists(an_event(), max_size=30), layout=st.sampled_from(sorted(LAYOUTS)), chunk_bytes=st.integers(1, 3000),
    after=st.lists(st.dictionaries(TEXT, TEXT, max_size=2), max_size=4), keep=st.booleans(),
)  # fmt: skip
def test_same_events_at_every_chunk_size(tmp_path, events, layout, chunk_bytes, after, keep):
    path = tmp_path / "trace.json"
    document = {
        "schemaVersion": 1,
        "note": "}, {",
        "traceEvents": events,
        "deviceProperties": after,
        "traceName": "a ] b",
    }
    path.write_text(LAYOUTS[layout](document), encoding="utf-8")
    got, stream = split(path, chunk_bytes, keep)
    frames = [e for e in events if e.get("cat") == "python_function"]
    assert got == (events if keep else [e for e in events if e not in frames])
    assert (stream.events, stream.python_events) == (len(events), 0 if keep else len(frames))
    assert not stream.truncated and not stream.tail_cut
    assert (stream.damage.repaired, stream.damage.quarantined) == (0, 0)
    if layout != "bare list":
        tail = json.loads(b'{"traceEvents": []' + stream.tail)
        assert tail["deviceProperties"] == after and tail["traceName"] == "a ] b"


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    events=st.lists(an_event(), min_size=1, max_size=12),
    share=st.floats(0, 1),
    chunk_bytes=st.integers(1, 2000),
)
def test_a_cut_file_loses_only_what_was_cut(tmp_path, events, share, chunk_bytes):
    """All events that end before the cut arrive; at most the one that was cut is counted as unreadable."""
    path = tmp_path / "trace.json"
    pieces = [json.dumps(e) for e in events]
    text = '{"schemaVersion": 1, "traceEvents": [' + ", ".join(pieces) + "]}"
    start = text.index("[") + 1
    cut = start + int(share * (len(text) - 3 - start))
    path.write_text(text[:cut])
    whole, at = [], start
    for event, piece in zip(events, pieces, strict=True):
        at += len(piece)
        if at <= cut:
            whole.append(event)
        at += 2
    got, stream = split(path, chunk_bytes, keep_python=True)
    essence = [
        (e["name"], e["ts"], e.get("cat")) for e in got
    ]  # the last ones may come with their known fields only
    assert essence == [(e["name"], e["ts"], e.get("cat")) for e in whole]
    assert stream.truncated
    assert stream.damage.quarantined <= 1 and stream.damage.repaired == 0


def test_names_that_look_like_the_space_between_events():
    event = {"ph": "X", "cat": "cpu_op", "name": "", "pid": 1, "tid": 2, "ts": 0, "dur": 1, "args": {}}
    frame = {
        "args": {},
        "dur": 1,
        "ts": 0,
        "tid": 2,
        "pid": 1,
        "name": "}, {",
        "cat": "python_function",
        "ph": "X",
    }
    other = {"args": {}, "dur": 1, "ts": 0, "tid": 2, "pid": 1, "name": "}, {", "cat": "cpu_op", "ph": "X"}
    for events in (
        [event, frame, other],
        [other, frame, event],
        [frame, other, frame],
        [other, frame, other],
    ):
        kept, dropped = drop_python(json.dumps(events)[1:-1].encode())
        assert json.loads(b"[" + kept + b"]") == [e for e in events if e["cat"] != "python_function"]
        assert dropped == sum(e["cat"] == "python_function" for e in events)


@given(st.lists(an_event(), max_size=40))
@settings(max_examples=100, deadline=None)
def test_only_python_frames_are_dropped(events):
    """A wrong cut (braces in a string) must not parse: the splitter validates, and then reads the events one by one."""
    body = json.dumps(events)[1:-1].encode()
    kept, dropped = drop_python(body)
    try:
        left = json.loads(b"[" + kept + b"]")
    except ValueError:
        return
    assert left == [e for e in events if e.get("cat") != "python_function"]
    assert dropped == sum(e.get("cat") == "python_function" for e in events)


def test_an_operator_called_like_the_category_stays():
    event = {"ph": "X", "cat": "cpu_op", "name": "python_function", "ts": 1, "dur": 1}
    frame = {"ph": "X", "cat": "python_function", "name": "python_function", "ts": 1, "dur": 1}
    kept, dropped = drop_python(json.dumps([frame, event, frame, frame])[1:-1].encode())
    assert (json.loads(kept), dropped) == (event, 3)


def test_chunks_are_about_as_large_as_asked(tmp_path, make):
    """10 kB each until 16 of them are read, then 20 kB."""
    path = tmp_path / "t.json"
    path.write_text(make.text([make.op("aten::mm", i, 1, i) for i in range(1, 4000)]))
    with ByteSource(path) as source:
        sizes = [len(chunk.body) for chunk in Splitter(source, 10_000)]
    early, late = sizes[:GROW_AFTER], sizes[GROW_AFTER:-2]  # the last two hold what is left
    assert all(7_500 <= size <= 12_500 for size in early)
    assert len(late) > 5 and all(15_000 <= size <= 25_000 for size in late)


def test_an_event_too_large_is_left_out(tmp_path, make, monkeypatch):
    """The limit is 64 MB; here 4 kB, with an event of 50 kB between two others."""
    monkeypatch.setattr("diagnose.ingest.kineto.split.MAX_EVENT_BYTES", 4000)
    path = tmp_path / "t.json"
    path.write_text(
        make.text(
            [
                make.op("a", 1, 1, 1),
                make.op("b" * 50_000, 2, 1, 2),
                make.op("c", 3, 1, 3),
                make.op("d", 4, 1, 4),
            ]
        )
    )
    got, stream = split(path, 1000)
    assert [e["name"] for e in got] == ["a", "c", "d"]
    assert stream.damage.quarantined == 1


def test_full_load_is_the_same_at_every_chunk_size(load, make):
    events = []
    for i in range(12):
        events += [
            make.op("aten::mm", 100 * i, 50, 2 * i + 1),
            make.call("cudaLaunchKernel", 100 * i + 5, 5, i + 1, 2 * i + 1),
        ]
        events += [
            make.python("f", 100 * i, 90),
            make.device(f"k{i % 3}", 100 * i + 30, 20, i + 1, 2 * i + 1),
        ]
    text = make.text(events)
    query = "SELECT kernel_id, text, start_ns, dur_ns, op_id, launch_id, link FROM kernel JOIN name USING (name_id) ORDER BY kernel_id"
    results = []
    for size in (200, 1000, 1 << 20):
        store = load(text, linked=True, chunk_bytes=size)
        results.append(
            (
                store.rows(query),
                store.rows("FROM op ORDER BY op_id"),
                store.rows("FROM name ORDER BY name_id"),
            )
        )
    assert len(results[0][0]) == 12
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("lead", ["\ufeff", "\n\n  \t"])
def test_what_may_stand_before_the_json(load, make, lead):
    assert load(lead + make.text(make.small())).count("raw_kernel") == 1
