"""Load a Kineto trace into a store: raw tables, devices, source and what the reading met."""

from datetime import UTC, datetime
from pathlib import Path

from diagnose.errors import InputError
from diagnose.ingest.kineto.head import Head, read_head
from diagnose.ingest.kineto.notes import write_notes
from diagnose.ingest.kineto.parts import Parts
from diagnose.ingest.kineto.repair import Damage
from diagnose.ingest.kineto.sane import Sanity, make_sane
from diagnose.ingest.kineto.split import CHUNK_BYTES, Splitter, Stream
from diagnose.ingest.kineto.strays import place_strays
from diagnose.ingest.kineto.tables import make_tables
from diagnose.ingest.raw import ensure_raw
from diagnose.ingest.source import ByteSource, Progress
from diagnose.store.store import Store

LARGE_BYTES = 256 << 20  # from here on tables live in Parquet, not in memory
_EPOCH_NS = 10**18  # a clock beyond this (2001) is absolute


def load_kineto(
    path: Path,
    store: Store,
    *,
    python: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress | None = None,
) -> None:
    """Read `path` once and write the tables of stage `ingest`.

    `python` also stores the Python frames (table python_call). Raises InputError with one line when nothing in the
    file can be diagnosed.
    """
    parts = Parts(store)
    with ByteSource(path, progress) as source:
        splitter = Splitter(source, chunk_bytes, keep_python=python)
        parts.write(splitter)
        source.finish()
    stream = splitter.stream
    stream.damage.merge(parts.damage)
    if source.corrupt and stream.damage.first is not None:
        # The inflater noticed late: from the first damaged event on, what looks like events may be none.
        source.unread = 1 - stream.damage.first / source.produced
        stream.events = parts.drop_from(stream.damage.first)
        stream.damage = Damage()
    store.large = source.produced > LARGE_BYTES
    if not parts.written:
        raise InputError(f"{path}: {_without_work(stream, source, Sanity(0, 0, False))}")
    store.con.execute(f"CREATE OR REPLACE VIEW event AS SELECT * FROM read_parquet('{parts.pattern}')")
    sanity = make_sane(store)
    make_tables(store, 0, sanity.origin, python)
    ensure_raw(store)
    _require_work(store, path, stream, source, sanity)
    head = read_head(stream.head, stream.tail)
    _write_devices(store, path, head)
    _write_source(store, path, source, head, sanity.origin)
    write_notes(store, stream, source, head, sanity)
    store.con.execute("DROP VIEW sane; DROP VIEW event; DROP TABLE IF EXISTS dictionary")
    parts.remove()


def _require_work(store: Store, path: Path, stream: Stream, source: ByteSource, sanity: Sanity) -> None:
    counts = [store.count(t) for t in ("raw_kernel", "raw_gpu_copy", "raw_gpu_memset", "raw_op")]
    if not any(counts):
        raise InputError(f"{path}: {_without_work(stream, source, sanity)}")
    merged = store.scalar(
        "SELECT max(n) FROM (SELECT count(DISTINCT pid) AS n FROM sane WHERE kind = 'kernel' AND device IS NOT NULL "
        "GROUP BY device)"
    )
    if merged and merged > 1:
        raise InputError(f"{path}: {merged} ranks merged into one file; give each rank's own trace instead")


def _without_work(stream: Stream, source: ByteSource, sanity: Sanity) -> str:
    """Why nothing can be diagnosed: what was lost comes before what was never recorded."""
    if source.damage or stream.truncated:
        return (
            f"{source.damage or 'the file ends inside its list of events'}, before any operator or device event; "
            "copy or capture it again"
        )
    if sanity.dropped:
        return (
            f"none of its {sanity.dropped} events has a possible start and duration (missing, negative or out of range); "
            "let the profiler stop before the trace is written, and capture again"
        )
    if stream.damage.quarantined:
        return f"none of its events can be read ({stream.damage.quarantined} are damaged); copy or capture it again"
    if not stream.events:
        return "no event in it; capture again, with work between the profiler's start and stop"
    if stream.python_events == stream.events:
        return "only Python frames in it; profile with activities CPU and CUDA around the inference"
    return (
        "neither device events nor operators in it; profile with activities CPU and CUDA around the inference"
    )


def _write_devices(store: Store, path: Path, head: Head) -> None:
    """Devices the head lists, and those only activity names (ROCm numbers them otherwise in its activity)."""
    store.con.execute(
        "CREATE OR REPLACE TABLE device (device_id INTEGER, source_id INTEGER, name VARCHAR, arch VARCHAR, "
        "sm_count INTEGER, memory_bytes BIGINT, bandwidth_bytes_per_s DOUBLE, active BOOLEAN)"
    )
    used = {
        row[0]
        for row in store.rows(
            "SELECT DISTINCT device_id FROM raw_kernel UNION SELECT DISTINCT device_id FROM raw_gpu_copy "
            "UNION SELECT DISTINCT device_id FROM raw_gpu_memset"
        )
        if row[0] is not None
    }
    used = place_strays(store, path, head, used)
    listed = {d.id: d for d in head.devices}
    kinds = {(d.name, d.arch, d.sm_count, d.memory_bytes) for d in head.devices}
    for number in sorted(used | set(listed)):
        entry = listed.get(number) or (head.devices[0] if len(kinds) == 1 else None)
        facts = (
            (entry.name, entry.arch, entry.sm_count, entry.memory_bytes) if entry else ("", None, None, None)
        )
        store.con.execute(
            "INSERT INTO device VALUES (?, 0, ?, ?, ?, ?, NULL, ?)", [number, *facts, number in used]
        )
    if not used:
        store.con.execute("INSERT INTO device VALUES (-1, 0, 'cpu', NULL, NULL, NULL, NULL, true)")


def _write_source(store: Store, path: Path, source: ByteSource, head: Head, origin: int) -> None:
    origin_ns = head.base_ns + origin
    captured = None
    if origin_ns > _EPOCH_NS:
        captured = datetime.fromtimestamp(origin_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    engine = store.scalar(
        "SELECT CASE WHEN count(*) FILTER (text LIKE 'vllm::%') > 0 THEN 'pytorch, vllm' "
        "WHEN count(*) FILTER (text LIKE 'sgl_kernel::%' OR text LIKE 'sglang::%') > 0 THEN 'pytorch, sglang' "
        "ELSE 'pytorch' END FROM name"
    )
    row = {
        "source_id": 0, "path": path.name, "format": "kineto", "sha256": source.sha256, "profiler": "kineto",
        "profiler_version": head.versions, "framework": engine, "captured_at": captured, "rank": head.rank,
        "world_size": head.world_size, "origin_ns": origin_ns, "bytes": source.produced,
    }  # fmt: skip
    store.insert("source", [row])
