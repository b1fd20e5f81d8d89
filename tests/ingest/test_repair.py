"""Damage met in real files: each repaired where the intent is clear, none costing a neighbour."""

import json

import pytest

from diagnose.ingest.kineto.repair import Damage, clean

BEFORE = '{"ph": "X", "cat": "cpu_op", "name": "before", "pid": 7, "tid": 7, "ts": 1.5, "dur": 2, "args": {"External id": 1}}'
AFTER = BEFORE.replace("before", "after")


def event(name='"k"', ts="10.250", dur="3", args="{}", more=""):
    return f'{{"ph": "X", "cat": "kernel", "name": {name}, "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur}, "args": {args}{more}}}'


# (what, the event, name expected or None when it must be given up)
DEFECTS = [
    ("lone backslash", event(r'"C:\path\q"'), "C:\\path\\q"),
    ("backslash before the closing quote", event('"C:\\dir\\"'), "C:\\dir"),
    ("half an escape", event(r'"a\u12"'), "a\\u12"),
    ("newline in a name", event('"a\nb"'), "a\nb"),
    ("control bytes in a name", event('"a\x01\x1fb"'), "a\x01\x1fb"),
    ("quotes in a name", event('"foo("bar")"'), 'foo("bar")'),
    ("quotes, commas and braces in a name", event('"f({"a", "b"})"'), 'f({"a", "b"})'),
    ("quoted list", event(args='{"Process Group Ranks": "["[0, 1, 2]"]", "stream": 7}'), "k"),
    ("bare nan", event(args='{"est. achieved occupancy %": nan, "stream": 7}'), "k"),
    ("bare -inf", event(args='{"memory bandwidth (GB/s)": -inf, "stream": 7}'), "k"),
    ("bare Infinity and NaN", event(args='{"a": Infinity, "b": NaN, "stream": 7}'), "k"),
    ("bare N/A", event(args='{"a": N/A, "stream": 7}'), "k"),
    ("trailing comma", event(args='{"stream": 7,}'), "k"),
    ("duplicate key", event(args='{"stream": 3, "stream": 7}'), "k"),
    ("lone surrogate", event(r'"a\ud800b"'), "a?b"),
    ("a name that is no string", event("123"), "123"),
    ("args that are no object", event(args="null"), "k"),
    ("unfinished string", event('"abc'), None),
    ("no value", event(ts=""), None),
]


@pytest.mark.parametrize(("what", "text", "name"), DEFECTS, ids=[d[0] for d in DEFECTS])
def test_each_defect(what, text, name):
    damage = Damage()
    body = ", ".join([BEFORE, text, AFTER]).encode()
    result = clean(body, 1000, damage)
    got = json.loads(b"[" + result.body + b"]")
    if name is None:
        assert [e["name"] for e in got] == ["before", "after"]
        assert (damage.quarantined, damage.offsets) == (1, [1000 + len(BEFORE) + 2])
        return
    assert [e["name"] for e in got] == ["before", name, "after"]
    assert damage.quarantined == 0
    assert float(got[1]["ts"]) == 10.25 and int(got[1]["dur"]) == 3
    if '"stream"' in text:
        assert got[1]["args"]["stream"] == 7


def test_bad_utf8():
    damage = Damage()
    result = clean(
        b", ".join([BEFORE.encode(), event('"a@b"').encode().replace(b"@", b"\xff\xfe"), AFTER.encode()]),
        0,
        damage,
    )
    assert [e["name"] for e in json.loads(b"[" + result.body + b"]")] == ["before", "a\ufffd\ufffdb", "after"]
    assert (damage.repaired, damage.quarantined) == (1, 0)


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        ("0.-05", "-0.005"),
        ("-12.-345", "-12.345"),
        ("1712195495505582.988", "1712195495505582.988"),
        ('"42.5"', "42.5"),
        ("7e3", "7e3"),
    ],
)
def test_times_keep_every_digit(written, microseconds):
    """kineto prints -5 ns as 0.-05 (printf %03 of a negative number); an epoch in microseconds needs 19 digits."""
    result = clean(event(ts=written).encode(), 0, Damage())
    assert f'"ts":{microseconds},' in result.body.decode()


@pytest.mark.parametrize("written", ["nan", "NaN", '"N/A"', "null", "1e999x", "true", "99999999999999999999"])
def test_a_time_that_is_none_is_not_invented(written):
    result = clean(event(ts=written).encode(), 0, Damage())
    assert not result.body or b'"ts":null' in result.body


def test_a_missing_comma_between_events():
    damage = Damage()
    result = clean(f"{BEFORE} {AFTER}".encode(), 0, damage)
    assert [e["name"] for e in json.loads(b"[" + result.body + b"]")] == ["before", "after"]
    assert damage.quarantined == 0


def test_the_end_of_the_list_is_found():
    """What follows the last event is the tail, even where it looks like more events."""
    body = f'{BEFORE}, {event("nan")} ], "deviceProperties": [{{"name": "a", "id": 0}}, {{"name": "b"}}]}}'.encode()
    result = clean(body, 0, Damage())
    assert body[result.end : result.end + 2] == b"],"
    assert result.events == 2


def test_python_frames_are_counted_not_kept():
    frame = BEFORE.replace("cpu_op", "python_function")
    result = clean(f"{frame}, {AFTER}, {frame}".encode(), 0, Damage())
    assert (result.events, result.python_events) == (1, 2)


def test_many_brackets_do_not_overflow():
    damage = Damage()
    deep = event(args='{"x": ' + "[" * 200_000 + "]" * 200_000 + "}")
    result = clean(f"{BEFORE}, {deep}, {AFTER}".encode(), 0, damage)
    assert result.events == 2 and damage.quarantined == 1
