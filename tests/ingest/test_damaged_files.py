"""Whole files that are damaged, cut, hostile or no trace: used as far as they go, or one clear line."""

import gzip
import json
import re

import pytest

from diagnose.errors import InputError
from diagnose.ingest import load as load_any
from diagnose.ingest import source as source_module
from diagnose.store import Store


def many(make, count=200):
    events = []
    for i in range(count):
        events += [
            make.op("aten::mm", 100 * i, 50, i + 1),
            make.call("cudaLaunchKernel", 100 * i + 5, 5, i + 1, i + 1),
        ]
    return events + [make.device("k", 100 * i + 30, 20, i + 1, i + 1) for i in range(count)]


def test_one_bad_event_costs_only_itself(load, make, notes):
    events = many(make)
    text = make.text(events).replace(
        '"name": "aten::mm", "pid": 7, "tid": 7, "ts": 1000,', '"name": "a, "pid": 7, "tid": 7, "ts": ,'
    )
    store = load(text, chunk_bytes=4096)
    assert (store.count("raw_op"), store.count("raw_kernel")) == (199, 200)
    assert notes(store) == {"unreadable-events": 1}
    at = int(re.search(r"byte (\d+)", store.scalar("SELECT message FROM ingest_note"))[1])
    assert text[at:].startswith('{"ph": "X", "cat": "cpu_op", "name": "a, ')


def test_what_only_the_columnar_reader_rejects(load, make, notes):
    """Duplicate keys and a text where a number belongs pass a JSON parser; the chunk is cleaned and read again."""
    text = make.text(many(make, 20))
    text = text.replace('"correlation": 3,', '"correlation": 3, "correlation": 3,').replace(
        '"stream": 7, "device": 0', '"stream": "x", "device": 0', 1
    )
    store = load(text)
    assert store.count("raw_kernel") == 20
    assert "unreadable-events" not in notes(store)
    assert store.rows("SELECT stream, count(*) FROM raw_kernel GROUP BY 1") == [
        (7, 20)
    ]  # from tid where args say nothing


def test_a_bad_name_in_a_frame_is_no_damage(load, make, notes):
    """Frames are dropped unread: their corrupt names, the commonest damage, cost nothing."""
    events = [*many(make, 5), make.python("@@", 1, 2), make.python("@@", 2, 2)]
    store = load(make.text(events).replace("@@", "a\x01\\q\n"))
    assert store.count("raw_kernel") == 5
    assert notes(store) == {"python-stacks": 2}


def test_cut_at_97_percent(load, make, notes):
    text = make.text(many(make, 1000))
    cut = text[: int(0.97 * len(text))]
    kept = cut.count('"cat": "kernel"') - 1  # the last one is cut
    store = load(cut, chunk_bytes=100_000)
    assert store.count("raw_kernel") == kept < 1000
    assert notes(store)["truncated"] == 1
    message = store.scalar("SELECT message FROM ingest_note WHERE code = 'truncated'")
    assert f"{(1000 - kept) / 10:.1f} %" in message and f"{1000 - kept} of 1000" in message


def test_cut_before_the_device_events(load, make, notes):
    text = make.text(many(make, 100), deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    store = load(text[: text.index('"cat": "kernel"') - 10])
    assert store.count("raw_op") == 100
    assert notes(store)["no-device-events"] == 100
    assert "all of it is lost" in store.scalar("SELECT message FROM ingest_note WHERE code = 'truncated'")


def test_gzip_cut_short(load, make, notes):
    text = make.text(many(make, 2000))
    packed = gzip.compress(text.encode())
    store = load(packed[: int(0.9 * len(packed))])
    assert 0 < store.count("raw_op") <= 2000
    assert "cut short" in store.scalar("SELECT message FROM ingest_note WHERE code = 'truncated'")


def test_gzip_corrupt_in_the_middle(load, make):
    """Everything before the damage is used, and the share of the file behind it stated."""
    text = make.text(many(make, 4000))
    packed = bytearray(gzip.compress(text.encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 400] = bytes(400)
    store = load(bytes(packed), chunk_bytes=200_000)
    assert 1000 < store.count("raw_op") <= 4000
    message = store.scalar("SELECT message FROM ingest_note WHERE code = 'truncated'")
    share = float(re.search(r"([\d.]+) % of the file lies behind", message)[1])
    assert 30 < share < 100


def test_gzip_of_several_members_and_padding(load, make, notes):
    text = make.text(many(make, 50)).encode()
    store = load(gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + bytes(512))
    assert store.count("raw_kernel") == 50 and notes(store) == {}


def test_metadata_that_is_not_json(load, make, notes):
    """Quotes in the log arrays break the head; devices and the clock's base are still found."""
    head = '{"INFO": ["he said "no""], "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "numSms": 108}], "baseTimeNanoseconds": 1000000000000000000, '
    text = head + make.text(make.small())[1:]
    store = load(text)
    assert store.rows("SELECT name, sm_count, active FROM device") == [("NVIDIA A100", 108, True)]
    assert store.scalar("SELECT origin_ns FROM source") == 10**18 + 10_000
    assert notes(store) == {"damaged-metadata": 1, "python-stacks": 1}


def test_metadata_after_the_events_cut(load, make, notes):
    text = make.text(make.small())
    store = load(text[:-8])
    assert store.count("raw_kernel") == 1
    assert "every event is used" in store.scalar("SELECT message FROM ingest_note WHERE code = 'truncated'")


def test_a_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "RATIO_FROM", 10**6)
    monkeypatch.setattr(source_module, "MAX_RATIO", 100)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000))
    with Store() as store, pytest.raises(InputError, match="inflates to more than"):
        load_any(path, store)


REJECTED = {
    "empty": (b"", "empty"),
    "only spaces": (b"  \n ", "neither JSON nor"),
    "text": (b"hello", "neither JSON nor"),
    "binary": (bytes(range(256)), "neither JSON nor"),
    "other json": (b'{"a": [1, 2]}', "no profiler trace"),
    "json list": (b"[1, 2, 3]", "no profiler trace"),
    "json null": (b"null", "JSON, but no profiler trace"),
    "json text": (b'"hello"\n', "JSON, but no profiler trace"),
    "json number": (b"12.5", "JSON, but no profiler trace"),
    "list of other objects": (b'[{"a": 1}]', "no profiler trace"),
    "cut in the head": (b'{"schemaVersion": 1, "deviceProp', "cut or damaged before any event"),
    "no events": (b'{"traceEvents": []}', "no event"),
    "empty list": (b"[]", "no profiler trace"),
    "events without work": (b'{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}', "neither device events nor operators"),
    "only metadata": (b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 1, "args": {"name": "python"}}]}', "neither device events nor operators"),
    "only Python frames": (b'{"traceEvents": [{"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}', "only Python frames"),
    "gzip of nothing": (gzip.compress(b""), "nothing in it"),
    "gzip header only": (gzip.compress(b"x" * 1000)[:10], "gzip"),
    "gzip broken at once": (gzip.compress(b"x")[:10] + b"\xff" * 40, "gzip"),
    "zip": (b"PK\x03\x04rest", "zip-compressed"),
    "zstd": (b"\x28\xb5\x2f\xfdrest", "zstd-compressed"),
    "brackets": (b"[" * 2_000_000, "neither JSON nor"),
    "events of brackets": (b'{"traceEvents": [' + b"[" * 2_000_000, "ends inside its list of events"),
}  # fmt: skip


@pytest.mark.parametrize("what", REJECTED)
def test_one_clear_line(what, tmp_path):
    content, words = REJECTED[what]
    path = tmp_path / "input.json"
    path.write_bytes(content)
    with Store() as store, pytest.raises(InputError) as caught:
        load_any(path, store)
    message = str(caught.value)
    assert words in message and "\n" not in message and message.startswith(str(path))


@pytest.mark.parametrize("dur", ["NaN", "-5", '"x"', "1e15"])
def test_durations_that_cannot_be_are_named_as_the_reason(dur, tmp_path, make):
    events = [make.device("k", 100 + 10 * i, 77, i) for i in range(3)]
    events += [make.op("aten::mm", 99 + 10 * i, 77) for i in range(3)]
    path = tmp_path / "input.json"
    path.write_text(make.text(events).replace('"dur": 77', f'"dur": {dur}'))
    with (
        Store() as store,
        pytest.raises(InputError, match="none of its 6 events has a possible start and duration"),
    ):
        load_any(path, store)


@pytest.mark.parametrize("share", [0.05, 0.6])
def test_gzip_cut_before_the_work_is_named_as_the_reason(share, tmp_path, make):
    """Events come in the order of the file: annotations first, which alone are nothing to diagnose."""
    before = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"step {i * 7919 % 10007}",
            "pid": 1,
            "tid": 1,
            "ts": i,
            "dur": 1,
        }
        for i in range(9000)
    ]
    packed = gzip.compress(make.text([*before, *make.small()]).encode())
    path = tmp_path / "input.json.gz"
    path.write_bytes(packed[: int(share * len(packed))])
    with (
        Store() as store,
        pytest.raises(InputError, match="gzip stream is cut short, before any operator or device event"),
    ):
        load_any(path, store)


def test_gzip_cut_in_its_first_block(tmp_path):
    path = tmp_path / "input.json.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 500)[:40])
    with Store() as store, pytest.raises(InputError, match="cut short, before any event"):
        load_any(path, store)


def test_events_without_a_device_number_belong_to_the_only_device(load, make, notes):
    events = [make.device("k", 100 + 10 * i, 5, i, gpu=-1) for i in range(4)]
    events.append(make.device("copy", 200, 5, 9, cat="gpu_memcpy", gpu=-1))
    store = load(
        make.text([*events, make.op("aten::mm", 1, 2)], deviceProperties=[{"id": 3, "name": "NVIDIA H100"}])
    )
    assert store.rows(
        "SELECT DISTINCT device_id FROM raw_kernel UNION SELECT device_id FROM raw_gpu_copy"
    ) == [(3,)]
    assert store.rows("SELECT device_id, active FROM device") == [(3, True)]
    assert notes(store)["no-device-number"] == 5
    assert "no-device-events" not in notes(store)


def test_events_without_a_device_number_among_several_are_left_out(load, make, notes):
    two = [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "NVIDIA H100"}]
    events = [make.device("k", 100, 5, 1, gpu=-1), make.device("k", 110, 5, 2, gpu=1)]
    store = load(make.text(events, deviceProperties=two))
    assert store.rows("SELECT device_id, correlation FROM raw_kernel") == [(1, 2)]
    assert notes(store)["no-device-number"] == 1
    with pytest.raises(
        InputError, match="none of its 1 device events names its device, and the trace knows 2"
    ):
        load(make.text(events[:1], deviceProperties=two))


def test_not_a_file(tmp_path):
    with Store() as store:
        with pytest.raises(InputError, match="no such file"):
            load_any(tmp_path / "absent.json", store)
        with pytest.raises(InputError, match="folder"):
            load_any(tmp_path, store)
        with pytest.raises(InputError, match="not a regular file"):
            load_any(type(tmp_path)("/dev/null"), store)


def test_no_input_file_is_opened_for_writing(load, make, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(make.text(make.small()))
    path.chmod(0o400)
    before = path.stat()
    load(path)
    after = path.stat()
    assert (before.st_mtime_ns, before.st_size, before.st_mode) == (
        after.st_mtime_ns,
        after.st_size,
        after.st_mode,
    )


def test_names_of_any_kind_stay_data(load, make):
    names = ["<script>alert(1)</script>", "'; DROP TABLE name; --", "a\x00b", "\u202e", "", "x" * 100_000]
    store = load(make.text([make.op(name, i, 1, i + 1) for i, name in enumerate(names)]), linked=True)
    got = {row[0] for row in store.rows("SELECT text FROM op JOIN name USING (name_id)")}
    assert set(names) - {"a\x00b"} <= got
    assert store.count("op") == len(names)


def test_nothing_private_is_kept(load, make):
    """User metadata, paths and the trace's own path are not stored."""
    secret = "/home/someone/secret"
    event = make.op(
        "triton_poi", 1, 1, 1, kernel_file=f"{secret}/c1/abc.py", kernel_backend="triton", kernel_hash="abc"
    )
    store = load(
        make.text([event], metadata={"started_by": secret}, hostname=secret).replace("/tmp/x.json", secret)
    )
    tables = [row[0] for row in store.rows("SELECT table_name FROM information_schema.tables")]
    dump = json.dumps([store.rows(f'FROM "{t}"') for t in tables], default=str)
    assert "secret" not in dump and "someone" not in dump and "abc.py" in dump
