"""Every event of every real trace, against a reading with the standard library."""

import hashlib
from collections import Counter
from decimal import Decimal

import pytest

pytestmark = pytest.mark.shared_traces

CATEGORIES = {
    "raw_op": ("cpu_op",), "raw_host_call": ("cuda_runtime", "cuda_driver"), "raw_kernel": ("kernel",),
    "raw_gpu_copy": ("gpu_memcpy",), "raw_gpu_memset": ("gpu_memset",),
}  # fmt: skip


def nanoseconds(value):
    exact = Decimal(value) * 1000
    assert exact == int(exact)
    return int(exact)


def test_every_event_arrives_with_its_exact_time(real, load, events_of):
    document, events = events_of(real)
    store = load(real)
    base = int(document.get("baseTimeNanoseconds", 0))
    origin = store.scalar("SELECT origin_ns FROM source")
    used = [e for e in events if e.get("cat") in {c for cats in CATEGORIES.values() for c in cats}]
    annotations = [e for e in events if e.get("cat") in ("user_annotation", "gpu_user_annotation")]
    assert origin == base + min(nanoseconds(e["ts"]) for e in used + annotations)
    for table, categories in CATEGORIES.items():
        expected = Counter(
            (
                e["name"],
                base + nanoseconds(e["ts"]),
                nanoseconds(e["dur"]),
                e["args"].get("correlation"),
                e["args"].get("External id"),
            )
            for e in events
            if e.get("cat") in categories
        )
        correlation = "NULL" if table == "raw_op" else "correlation"
        got = Counter(
            store.rows(
                f"SELECT text, start_ns + {origin}, dur_ns, {correlation}, external_id FROM {table} JOIN name USING (name_id)"
            )
        )
        assert got == expected, table
    got = Counter(store.rows(f"SELECT text, start_ns + {origin}, dur_ns FROM annotation"))
    assert got == Counter(
        (e["name"], base + nanoseconds(e["ts"]), nanoseconds(e["dur"])) for e in annotations
    )


def test_arguments_survive(real, load, events_of):
    _, events = events_of(real)
    store = load(real)

    def compact(value):
        return None if value is None else str(value).replace(" ", "")

    shapes = Counter(
        str(e["args"]["Input Dims"]).replace(" ", "")
        for e in events
        if e.get("cat") == "cpu_op" and "Input Dims" in e["args"]
    )
    got = store.rows(
        "SELECT input_dims, count(*) FROM raw_op JOIN signature USING (signature_id) WHERE input_dims IS NOT NULL GROUP BY ALL"
    )
    assert dict(got) == dict(shapes)
    grids = Counter(
        (
            compact(e["args"].get("grid")),
            compact(e["args"].get("block")),
            e["args"].get("registers per thread"),
            e["args"]["stream"],
        )
        for e in events
        if e.get("cat") == "kernel"
    )
    assert Counter(store.rows("SELECT grid, block, registers, stream FROM raw_kernel")) == grids
    copied = Counter((e["args"]["bytes"], e["name"]) for e in events if e.get("cat") == "gpu_memcpy")
    assert Counter(store.rows("SELECT bytes, text FROM raw_gpu_copy JOIN name USING (name_id)")) == copied
    memory = [e["args"]["Bytes"] for e in events if e["name"] == "[memory]"]
    assert store.rows("SELECT count(*), coalesce(sum(bytes), 0) FROM memory_event") == [
        (len(memory), sum(memory))
    ]


def test_frames_are_counted_and_the_file_is_left_alone(real, load, events_of, notes):
    before = hashlib.sha256(real.read_bytes()).hexdigest()
    _, events = events_of(real)
    store = load(real)
    frames = sum(e.get("cat") == "python_function" for e in events)
    assert notes(store) == {"python-stacks": frames}
    assert (
        store.scalar("SELECT sha256 FROM source") == before == hashlib.sha256(real.read_bytes()).hexdigest()
    )


def test_devices(real, load, events_of):
    document, events = events_of(real)
    store = load(real)
    active = {e["args"]["device"] for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")}
    listed = document["deviceProperties"]
    rows = store.dicts("FROM device ORDER BY device_id")
    assert {r["device_id"] for r in rows if r["active"]} == active
    assert {r["device_id"] for r in rows} == active | {d["id"] for d in listed}
    # ROCm numbers the device of its activity unlike its list; all entries are one model, so the facts hold for it too
    for row in rows:
        facts = (row["name"], row["memory_bytes"], row["sm_count"])
        assert facts == (listed[0]["name"], listed[0]["totalGlobalMem"], listed[0]["numSms"])


def test_python_frames_on_request(real_named, load, events_of):
    path = real_named("hf_bert-small_h100")
    _, events = events_of(path)
    store = load(path, python=True)
    frames = [e for e in events if e.get("cat") == "python_function"]
    got = store.rows("SELECT count(*), sum(dur_ns) FROM python_call")
    assert got == [(len(frames), sum(nanoseconds(e["dur"]) for e in frames))]
