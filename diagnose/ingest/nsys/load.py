"""Nsight Systems into the store: `.nsys-rep` reports, `.sqlite` exports and `parquetdir` folders."""

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from diagnose.errors import InputError
from diagnose.ingest.api import blocking_sql
from diagnose.ingest.detect import detect
from diagnose.ingest.nsys import facts, notes, report
from diagnose.ingest.nsys.stage import STAGED, stage, stage_counters, stage_ranges, stage_strings
from diagnose.ingest.nsys.tables import ParquetTables, SqliteTables, Tables
from diagnose.ingest.raw import ensure_raw
from diagnose.ingest.source import Progress
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

LARGE_BYTES = 256 << 20  # from here on tables live in Parquet, not in memory
ADVICE = (
    "capture where the GPU is, with CUDA traced: `nsys profile -t cuda,nvtx --cuda-graph-trace=node COMMAND`"
)

_DEVICE_WORK = ("nsys_kernel", "nsys_copy", "nsys_memset", "nsys_graph")
_REPORT, _SQLITE, _PARQUET = "nsys-rep", "nsys-sqlite", "nsys-parquet"
_STEPS = 1000  # progress is told in thousandths
_CHUNK = 1 << 22


def load_nsys(path: Path, store: Store, *, nsys: str | None = None, progress: Progress | None = None) -> None:
    """Read an Nsight Systems report or export into the raw tables of `store` (see `diagnose.ingest.raw`).

    `path` is a `.nsys-rep` file, a SQLite export or a folder written by `nsys export -t parquetdir`, told
    apart by content; it is only read. `nsys` is the program to export a report with, searched for when None.
    `progress` is called with thousandths done and 1000, first for the export, then for the reading. Raises
    InputError for anything that is no such export, is damaged, or holds no GPU activity, and UsageError when
    `nsys` names no program.
    """

    def say(share: float) -> None:
        if progress:
            progress(int(share * _STEPS), _STEPS)

    kind = detect(path)
    if kind not in (_REPORT, _SQLITE, _PARQUET):
        raise InputError(
            f"{path}: no Nsight Systems report or export; give a .nsys-rep file or its SQLite export"
        )
    store.large = _size(path) > LARGE_BYTES
    with ThreadPoolExecutor(1) as pool:
        digest: Future[str] = pool.submit(content_hash, path)
        version = None
        exported = path
        if kind == _REPORT:
            version = report.producing_version(path)
            exported = report.export(path, digest.result(), nsys, say, store.folder)
            store.large = _size(exported) > LARGE_BYTES
        tables: Tables = ParquetTables(exported) if kind == _PARQUET else SqliteTables(exported, path)
        try:
            session = _load(tables, store, say)
            _write_source(store, path, kind, version or session.product_version, session, digest.result())
        finally:
            tables.close()


def _load(tables: Tables, store: Store, say: Callable[[float], None]) -> facts.Session:
    known = [item for item in STAGED if tables.columns(item.table)]
    if not known and not tables.columns("NVTX_EVENTS"):
        if any(tables.columns(table) for table in ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA")):
            raise _no_activity(tables)
        raise InputError(
            f"{tables.path}: no Nsight Systems export; give a .nsys-rep file or its `nsys export -t sqlite`"
        )
    stage_strings(store, tables)
    for done, item in enumerate(STAGED):
        say(done / (len(STAGED) + 5))
        stage(store, tables, item)
    if not any(store.count(view) for view in _DEVICE_WORK):
        raise _no_activity(tables)
    say(len(STAGED) / (len(STAGED) + 5))
    stage_ranges(store, tables)
    counters = stage_counters(store, tables, facts.metric_ids(tables))
    say((len(STAGED) + 4) / (len(STAGED) + 5))
    _write_raw(store, tables, counters > 0)
    session = facts.read_session(tables)
    notes.write_notes(store, tables, session)
    # Every string of the report, private ones too: nothing after this needs them.
    store.con.execute("DROP VIEW nsys_string")
    (store.folder / "nsys_string.parquet").unlink(missing_ok=True)
    say(1.0)
    return session


def _write_raw(store: Store, tables: Tables, counters: bool) -> None:
    """The raw views and the public tables of stage `ingest`, moved to the run's first event."""
    spans = " UNION ALL ".join(
        f"SELECT min(t0) AS t0, max(t1) AS t1 FROM {view}"
        for view in (*_DEVICE_WORK, "nsys_call", "nsys_range")
    )
    origin, last = store.rows(f"SELECT min(t0), max(t1) FROM ({spans})")[0]
    store.con.execute(f"CREATE OR REPLACE TABLE nsys_origin AS SELECT {origin}::BIGINT AS origin_ns")
    facts.write_device_map(store, tables)
    facts.write_copy_names(store)
    store.con.execute(
        read_sql("diagnose.ingest.nsys", "raw.sql")
        .replace("{origin}", str(origin))
        .replace("{last}", str(last))
        .replace("{blocking}", blocking_sql("c.name"))
    )
    for table, view in (
        ("annotation", "nsys_annotation"),
        ("sync", "nsys_wait"),
        ("profiler_overhead", "nsys_own_time"),
    ):
        store.save(table, f"SELECT * FROM {view}")
        store.con.execute(f"DROP VIEW {view}")
    if counters:
        # A clock above 10^5 is in Hz whatever the metric's name says; NVLink has several metrics a direction.
        store.save(
            "counter",
            f"""SELECT device_id, metric, t0 - {origin} AS ts_ns,
                sum(CASE WHEN metric = 'gpc_clock' AND value < 1e5 THEN value * 1e6 ELSE value END) AS value
            FROM nsys_counter GROUP BY ALL""",
        )
    facts.write_devices(store, tables)
    ensure_raw(store)


def _write_source(
    store: Store, path: Path, kind: str, version: str | None, session: facts.Session, digest: str
) -> None:
    origin = int(store.scalar("SELECT origin_ns FROM nsys_origin"))
    captured = None
    if session.epoch_ns is not None:
        seconds, rest = divmod(session.epoch_ns + origin, 1_000_000_000)
        captured = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).isoformat()
    torch = store.scalar("SELECT count(*) FROM name WHERE text LIKE 'aten::%'")
    store.insert(
        "source",
        [
            {
                "source_id": 0, "path": path.name, "format": kind, "sha256": digest, "profiler": "nsys",
                "profiler_version": version, "framework": "pytorch" if torch else None,
                "captured_at": captured,
                "origin_ns": (session.epoch_ns or 0) + origin, "bytes": _size(path),
            }
        ],
    )  # fmt: skip


def _no_activity(tables: Tables) -> InputError:
    said = [text for severity, text, _ in notes.diagnostics(tables) if severity != "info" and "CUDA" in text]
    quoted = f" (Nsight Systems reported: {said[0]})" if said else ""
    return InputError(f"{tables.path}: no GPU activity in it{quoted}; {ADVICE}")


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.parquet"))
    return path.stat().st_size


def content_hash(path: Path) -> str:
    """SHA-256 of a file; of a folder, of its Parquet files' names and hashes in order."""
    if path.is_dir():
        parts = [f"{file.name}:{content_hash(file)}" for file in sorted(path.glob("*.parquet"))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()
