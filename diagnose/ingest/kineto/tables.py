"""From the Parquet parts of a Kineto trace to the raw tables that every adapter writes."""

from importlib.resources import files

from diagnose.ingest.api import blocking_sql
from diagnose.store.store import Store

_ID = "coalesce(try_cast({0} AS BIGINT), try_cast(regexp_extract({0}, '(\\d+)', 1) AS BIGINT))"
_THREAD = f"{_ID.format('pid')} AS process, {_ID.format('tid')} AS thread"
_TIMES = "ts - getvariable('origin') AS start_ns, dur AS dur_ns"
_SOURCE = "CAST(getvariable('source') AS INTEGER) AS source_id"
_DEVICE = f"CAST(coalesce(device, {_ID.format('pid')}) AS INTEGER)"
_STREAM = f"coalesce(stream, {_ID.format('tid')})"
_ACTIVITY = (
    f"{_SOURCE}, CAST(NULL AS BIGINT) AS process, {_DEVICE} AS device_id, {_STREAM} AS stream, {_TIMES}, "
    "correlation, external_id, graph_id, graph_node_id, name_id"
)


def make_tables(store: Store, source_id: int, origin: int, keep_python: bool) -> None:
    """Write the raw tables and the public tables of stage `ingest` that hold events."""
    con = store.con
    con.execute(f"SET VARIABLE source = {source_id}")
    con.execute(f"SET VARIABLE origin = {origin}")
    con.execute(files("diagnose.ingest.kineto").joinpath("tables.sql").read_text())
    con.execute(
        "CREATE OR REPLACE TEMP TABLE dictionary AS "
        f"SELECT name_id, text AS name, {blocking_sql('n.text')} AS blocking FROM name n"
    )
    named = "sane JOIN dictionary d ON d.name = coalesce(sane.name, '')"
    store.save(
        "raw_op",
        f"""SELECT {_SOURCE}, {_THREAD}, {_TIMES}, name_id, external_id, signature_id
            FROM {named} LEFT JOIN signature s ON s.hash = sane.signature WHERE kind = 'op'""",
    )
    store.save(
        "raw_host_call",
        f"""SELECT {_SOURCE}, {_THREAD}, {_TIMES}, name_id, correlation, external_id, blocking
            FROM {named} WHERE kind = 'call'""",
    )
    store.save(
        "raw_kernel",
        f"""SELECT {_ACTIVITY}, replace(grid, ' ', '') AS grid, replace(block, ' ', '') AS block, registers, shared_mem, signature_id
            FROM {named} LEFT JOIN signature s ON s.hash = sane.signature WHERE kind = 'kernel'""",
    )
    con.execute("ALTER TABLE signature DROP COLUMN hash")
    store.save("raw_gpu_copy", _copies(named))
    store.save("raw_gpu_memset", f"SELECT {_ACTIVITY}, bytes FROM {named} WHERE kind = 'memset'")
    store.save(
        "annotation",
        f"""SELECT row_number() OVER (ORDER BY ts, dur DESC, kind, tid, name) - 1 AS annotation_id, {_SOURCE},
               CASE kind WHEN 'annotation' THEN 'user_annotation' ELSE 'gpu_user_annotation' END AS origin,
               {_ID.format("pid")} AS process, {_ID.format("tid")} AS thread_or_stream, {_TIMES},
               coalesce(name, '') AS text
            FROM sane WHERE kind IN ('annotation', 'gpu_annotation')""",
    )
    store.save(
        "sync",
        f"""SELECT {_SOURCE}, {_DEVICE} AS device_id, {_STREAM} AS stream, {_TIMES},
               coalesce(sync_kind, name) AS kind, wait_on_stream, correlation FROM sane WHERE kind = 'sync'""",
    )
    store.save(
        "profiler_overhead", f"SELECT {_SOURCE}, {_TIMES}, name AS kind FROM sane WHERE kind = 'overhead'"
    )
    store.save(
        "memory_event",
        f"""SELECT {_SOURCE}, ts - getvariable('origin') AS ts_ns, alloc_bytes AS bytes, total_allocated,
               total_reserved, memory_device_type AS device_type, memory_device_id AS device_id
            FROM sane WHERE kind = 'memory' AND name = '[memory]'""",
    )
    # ROCm names the kernel in its launch call: launches without activity were captured into a graph, or outlast the trace.
    store.save(
        "captured_launch",
        f"""SELECT {_SOURCE}, {_THREAD}, {_TIMES}, correlation, launched AS kernel FROM sane
            WHERE kind = 'call' AND launched IS NOT NULL
                  AND correlation NOT IN (SELECT correlation FROM raw_kernel WHERE correlation IS NOT NULL)""",
    )
    if keep_python:
        store.save(
            "python_call",
            f"SELECT {_SOURCE}, {_THREAD}, {_TIMES}, name_id FROM {named} WHERE kind = 'python'",
        )


def _copies(named: str) -> str:
    """Kineto says kind and sides in the name: `Memcpy HtoD (Pageable -> Device)`; HIP's `Host` may be either."""
    side = "nullif(nullif(lower(regexp_extract(sane.name, '\\((\\w+) -> (\\w+)\\)', {0})), ''), 'unknown')"
    return f"""
        WITH copies AS (
            SELECT {_ACTIVITY}, bytes, {side.format(1)} AS a, {side.format(2)} AS b,
                regexp_extract(sane.name, '(HtoD|DtoH|DtoD|PtoP)', 1) AS kind_found,
                regexp_extract(sane.name, '(Host|Device)To(Host|Device)', ['f', 't']) AS old
            FROM {named} WHERE kind = 'copy')
        SELECT * EXCLUDE (a, b, kind_found, old),
            CASE WHEN kind_found <> '' THEN kind_found
                 WHEN old.f <> '' THEN left(old.f, 1) || 'to' || left(old.t, 1) ELSE 'other' END AS kind,
            nullif(a, 'host') AS src, nullif(b, 'host') AS dst,
            CASE WHEN 'pageable' IN (a, b) THEN true WHEN 'host' IN (a, b) OR a IS NULL THEN NULL ELSE false END
                AS pageable
        FROM copies"""
