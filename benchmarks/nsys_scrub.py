"""An nsys SQLite export without environment, host, user, process list or command lines."""

import sqlite3
from pathlib import Path

# What a diagnosis reads; whatever else an export holds may name somebody and stays behind.
KEEP_PREFIXES = ("CUPTI_ACTIVITY_KIND_", "CUDA_GRAPH", "ENUM_", "GPU_METRICS", "CUDA_GPU_MEMORY")
KEEP = frozenset({
    "StringIds", "NVTX_EVENTS", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_GPU_METRICS",
    "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD",
    "META_DATA_CAPTURE", "META_DATA_EXPORT", "CUBLAS_EVENTS",
})  # fmt: skip
# Of the two tables of settings only these names stay.
META_KEPT = ("%CUDA_GRAPH_TRACE%", "CAPTURE_EVENT_TYPE", "%COLLECT_%", "%VERSION%")
STRING_COLUMNS = frozenset({"nameId", "textId", "demangledName", "shortName", "mangledName", "jsonTextId"})


def scrub(source: Path, target: Path) -> None:
    """Copy the tables worth keeping of `source` into a new `target`, with the strings they use. Overwrites `target`."""
    target.unlink(missing_ok=True)
    db = sqlite3.connect(target, isolation_level=None)
    try:
        db.execute("ATTACH DATABASE ? AS old", (str(source),))
        tables = [row[0] for row in db.execute("SELECT name FROM old.sqlite_master WHERE type = 'table'")]
        kept = [name for name in tables if name in KEEP or name.startswith(KEEP_PREFIXES)]
        db.execute("BEGIN")
        for table in kept:
            db.execute(f'CREATE TABLE "{table}" AS SELECT * FROM old."{table}"')
        for table in {"META_DATA_CAPTURE", "META_DATA_EXPORT"} & set(kept):
            wanted = " OR ".join("name LIKE ?" for _ in META_KEPT)
            db.execute(f'DELETE FROM "{table}" WHERE NOT ({wanted})', META_KEPT)
        if "DIAGNOSTIC_EVENT" in kept:
            db.execute("DELETE FROM DIAGNOSTIC_EVENT WHERE text LIKE '%/%'")
        if "StringIds" in kept:
            _drop_unused_strings(db, kept)
        db.execute("COMMIT")
        db.execute("DETACH DATABASE old")
        db.execute("VACUUM")
    finally:
        db.close()


def _drop_unused_strings(db: sqlite3.Connection, kept: list[str]) -> None:
    """StringIds also holds paths of libraries and call stacks: keep the strings that kept rows refer to."""
    db.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table in kept:
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        for column in STRING_COLUMNS.intersection(columns):
            db.execute(
                f'INSERT OR IGNORE INTO used SELECT DISTINCT "{column}" FROM "{table}" WHERE "{column}" >= 0'
            )
    db.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM used)")
