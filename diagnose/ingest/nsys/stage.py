"""One pass over the export: the columns we need of each table, as Parquet in the store's private folder.

Schemas 3.0 (2022) to 3.28 (2026) add columns and tables: what is there is probed, what is missing becomes
NULL. Times stay the export's own here; `raw.py` moves them to the run's first event, which is only known at
the end of the pass.
"""

from dataclasses import dataclass

from diagnose.errors import InputError
from diagnose.ingest.nsys.tables import Tables, quoted
from diagnose.store import Store

# A thread or process is packed as 0xVVVVPPPPPPTTTTTT: virtual machine, process, thread.
PROCESS = "(({0} & 281474959933440) // 16777216)::BIGINT"
THREAD = "({0} & 16777215)::BIGINT"
# What torch's emit_nvtx appends to a range's name (torch/csrc/profiler/util.cpp, getNvtxStr): this order,
# each part optional. Names may hold commas and brackets, so the match is anchored at the end; the leftmost
# one is the whole.
_SUFFIX = (
    r"(?:, seq = -?\d+)?(?:, op_id = \d+)?"
    r"(?:, sizes = \[[-\d\[\], ]*\])?(?:, input_op_ids = \[[-\d(), ]*\])?$"
)
_OPERATOR = r"^[\w.]+(::[\w.<>~]+)+$|^autograd::engine::evaluate_function: [\w:.]+$"
# Push/pop and start/end ranges, and the same two imported from nvtxt files.
_RANGES = "59, 60, 70, 71"


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged table: `name` is the view made, `table` the export's, `needs` without which it is unusable.

    `columns` maps output column to (export columns in order of preference, SQL with {0} for the column,
    type).
    """

    name: str
    table: str
    needs: tuple[str, ...]
    columns: dict[str, tuple[tuple[str, ...], str, str]]
    where: str = ""


def _column(*names: str, sql: str = "{0}", type: str = "BIGINT") -> tuple[tuple[str, ...], str, str]:
    return names, sql, type


_SPAN = {"t0": _column("start"), "t1": _column("end")}
_DEVICE = {
    **_SPAN,
    "process": _column("globalPid", sql=PROCESS),
    "cuda_id": _column("deviceId"),
    "stream": _column("streamId"),
    "correlation": _column("correlationId", sql="nullif({0}, 0)"),
    "graph_node_id": _column("graphNodeId", sql="nullif({0}, 0)"),
    "graph_id": _column("graphId", sql="nullif({0}, 0)"),
}
_HOST = {
    **_SPAN,
    "process": _column("globalTid", sql=PROCESS),
    "thread": _column("globalTid", sql=THREAD),
    "string_id": _column("nameId"),
}
_NEEDS_DEVICE = ("start", "end", "deviceId", "streamId")

STAGED: tuple[Staged, ...] = (
    Staged(
        "nsys_kernel",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        _NEEDS_DEVICE,
        {
            **_DEVICE,
            "string_id": _column("demangledName", "shortName", "mangledName"),
            **{c: _column(c) for c in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")},
            "registers": _column("registersPerThread"),
            "static_shared": _column("staticSharedMemory"),
            "dynamic_shared": _column("dynamicSharedMemory"),
        },
    ),
    Staged(
        "nsys_copy",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        (*_NEEDS_DEVICE, "bytes", "copyKind"),
        {
            **_DEVICE,
            "bytes": _column("bytes"),
            "copy_kind": _column("copyKind"),
            "src_kind": _column("srcKind"),
            "dst_kind": _column("dstKind"),
            "src_device": _column("srcDeviceId"),
            "dst_device": _column("dstDeviceId"),
        },
    ),
    Staged(
        "nsys_memset",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        _NEEDS_DEVICE,
        {**_DEVICE, "bytes": _column("bytes")},
    ),
    Staged("nsys_graph", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _NEEDS_DEVICE, _DEVICE),
    Staged(
        "nsys_call",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        ("start", "end", "globalTid", "nameId"),
        {**_HOST, "correlation": _column("correlationId", sql="nullif({0}, 0)")},
    ),
    Staged(
        "nsys_sync",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        ("start", "end", "syncType"),
        {
            **_DEVICE,
            "sync_type": _column("syncType"),
            "event_id": _column("eventId"),
            "event_sync_id": _column("eventSyncId"),
        },
    ),
    Staged(
        "nsys_event",
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        ("streamId", "eventId", "eventSyncId"),
        {
            "process": _column("globalPid", sql=PROCESS),
            "stream": _column("streamId"),
            "event_id": _column("eventId"),
            "event_sync_id": _column("eventSyncId"),
        },
    ),
    Staged(
        "nsys_overhead",
        "PROFILER_OVERHEAD",
        ("start", "end"),
        {**_HOST, "overhead_type": _column("overheadType")},
    ),
    Staged(
        "nsys_cuda_overhead",
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        ("start", "end"),
        {**_HOST, "overhead_type": _column("overheadType")},
    ),
)


def stage(store: Store, tables: Tables, item: Staged) -> int:
    """Copy one table of the export; rows staged, 0 where the export lacks it.

    InputError when the table lacks a column without which it says nothing.
    """
    have = tables.columns(item.table)
    if not have:
        columns = ", ".join(f'NULL::{type_} AS "{out}"' for out, (_, _, type_) in item.columns.items())
        store.con.execute(f'CREATE OR REPLACE VIEW "{item.name}" AS SELECT {columns} WHERE false')
        return 0
    if missing := [c for c in item.needs if c not in have]:
        raise InputError(
            f"{tables.path}: table {item.table} has no column {', '.join(missing)}; "
            "repeat `nsys export -t sqlite` from the .nsys-rep file"
        )
    outputs: list[str] = []
    wanted: list[str] = []
    for out, (names, sql, type_) in item.columns.items():
        found = [n for n in names if n in have]
        wanted += [n for n in found if n not in wanted]
        value = sql.format(f"coalesce({quoted(found)})") if found else "NULL"
        outputs.append(f'({value})::{type_} AS "{out}"')
    return _stage(
        store, tables, item.name, item.table, wanted, f"SELECT {', '.join(outputs)} FROM scan", item.where
    )


def stage_strings(store: Store, tables: Tables) -> None:
    """Stage StringIds as `nsys_string(id, value)`. InputError when the export has none."""
    if not {"id", "value"} <= tables.columns("StringIds"):
        raise InputError(
            f"{tables.path}: no table StringIds, so nothing in it has a name; repeat `nsys export -t sqlite` "
            "from the .nsys-rep file, all tables"
        )
    _stage(
        store, tables, "nsys_string", "StringIds", ["id", "value"], "SELECT id::BIGINT AS id, value FROM scan"
    )


def stage_ranges(store: Store, tables: Tables) -> int:
    """Stage NVTX ranges as `nsys_range`, operators told from annotations; needs `nsys_string`. Rows staged.

    A range is an operator when torch's emit_nvtx wrote it (a suffix `, op_id = N`, `, seq = N` or `, sizes =
    …`) and its name is an operator's: `namespace::name`, an autograd node (has a sequence number) or
    `record_param_comms`. Other names with a suffix come from `record_function` and stay annotations, without
    the suffix.
    """
    have = tables.columns("NVTX_EVENTS")
    known: tuple[str, ...] = ("start", "end", "eventType", "globalTid", "text", "textId")
    wanted = [c for c in known if c in have]
    if not {"start", "end", "eventType", "globalTid"} <= have or not {"text", "textId"} & have:
        store.con.execute(
            "CREATE OR REPLACE VIEW nsys_range AS SELECT NULL::BIGINT t0, NULL::BIGINT t1, "
            "NULL::BIGINT event_type, NULL::BIGINT process, NULL::BIGINT thread, NULL::VARCHAR text, "
            "NULL::VARCHAR sizes, false is_op WHERE false"
        )
        return 0
    text = "nullif(text, '')" if "text" in have else "NULL"
    join = 'LEFT JOIN nsys_string s ON s.id = scan."textId"' if "textId" in have else ""
    registered = "s.value" if join else "NULL"
    maybe = " OR ".join(f"contains(whole, ', {part} = ')" for part in ("seq", "op_id", "sizes"))
    select = f"""
        WITH range AS NOT MATERIALIZED (
            SELECT "start", "end", "eventType", "globalTid", coalesce({text}, {registered}, '') AS whole
            FROM scan {join}
        ), split AS NOT MATERIALIZED (
            SELECT *, CASE WHEN {maybe} THEN regexp_extract(whole, '{_SUFFIX}') ELSE '' END AS suffix
            FROM range
        ), named AS NOT MATERIALIZED (
            SELECT *, left(whole, length(whole) - length(suffix)) AS text FROM split
        )
        SELECT "start"::BIGINT AS t0, "end"::BIGINT AS t1, "eventType"::BIGINT AS event_type,
               {PROCESS.format('"globalTid"')} AS process, {THREAD.format('"globalTid"')} AS thread, text,
               CASE WHEN contains(suffix, ', sizes = ')
                    THEN regexp_extract(suffix, ', sizes = (\\[[-\\d\\[\\], ]*\\])', 1) END AS sizes,
               CASE WHEN starts_with(text, 'aten::') THEN suffix <> '' OR regexp_matches(text, '^aten::\\w+$')
                    WHEN suffix = '' THEN false
                    WHEN contains(suffix, ', seq = ') OR text = 'record_param_comms' THEN true
                    ELSE regexp_matches(text, '{_OPERATOR}') END AS is_op
        FROM named
    """
    return _stage(store, tables, "nsys_range", "NVTX_EVENTS", wanted, select, f'"eventType" IN ({_RANGES})')


def stage_counters(store: Store, tables: Tables, metrics: dict[tuple[int, int], str]) -> int:
    """Stage GPU_METRICS samples of the wanted (typeId, metricId) pairs as `nsys_counter`. Rows staged."""
    needed = ["timestamp", "typeId", "metricId", "value"]
    if not metrics or not set(needed) <= tables.columns("GPU_METRICS"):
        return 0
    store.con.execute("CREATE OR REPLACE TABLE nsys_metric(type_id BIGINT, metric_id BIGINT, metric VARCHAR)")
    store.con.executemany(
        "INSERT INTO nsys_metric VALUES (?, ?, ?)", [(*key, m) for key, m in metrics.items()]
    )
    ids = ", ".join(str(i) for i in sorted({metric for _, metric in metrics}))
    # The low byte of typeId is the GPU (nsys recipes). Several metrics of one kind (NVLink) add up; a reading
    # below 0 is a wrapped counter.
    select = """
        SELECT timestamp::BIGINT AS t0, (typeId & 255)::INTEGER AS device_id, metric,
               greatest(scan.value::DOUBLE, 0) AS value
        FROM scan JOIN nsys_metric ON type_id = typeId AND metric_id = metricId
    """
    return _stage(store, tables, "nsys_counter", "GPU_METRICS", needed, select, f'"metricId" IN ({ids})')


def _stage(
    store: Store, tables: Tables, name: str, table: str, columns: list[str], select: str, where: str = ""
) -> int:
    file = store.folder / f"{name}.parquet"
    tables.copy(store, table, columns, select, file, where)
    store.con.execute(f"CREATE OR REPLACE VIEW \"{name}\" AS SELECT * FROM read_parquet('{file.as_posix()}')")
    return store.count(name)
