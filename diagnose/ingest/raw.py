"""What every ingest adapter writes: the raw tables, which `diagnose.model.link` turns into the public ones.

An adapter fills, in the store's connection, a table or a view of each name below (missing ones are created empty by
`ensure_raw`), plus the public tables of stage `ingest` that need no linking: `name`, `source`, `device`,
`signature`, `annotation`, `sync`, `profiler_overhead`, `memory_event`, `counter`, `ingest_note`.

Rules for all of them:

- times are integer nanoseconds from `source.origin_ns`, the first recorded event; durations are >= 0;
- the columns have exactly the names and types below; their order is free;
- no ids: `link` numbers kernels, copies, calls and operators by time, so that a diagnosis is reproducible;
- `thread` of calls, operators and annotations of one process are comparable numbers;
- a launch is the host call with the activity's `correlation` (and `process` where the activity has one).
"""

from diagnose.store.schema import BY_NAME, Table, make_table
from diagnose.store.store import Store

_ACTIVITY = (
    "source_id INTEGER - | trace it came from",
    "process BIGINT - | process whose calls can have launched it; NULL where the profiler does not say (Kineto)",
    "device_id INTEGER - | device it ran on; -1 is the CPU of a trace without a GPU",
    "stream BIGINT - | stream or queue",
    "start_ns BIGINT ns | start on the device",
    "dur_ns BIGINT ns | duration on the device",
    "correlation BIGINT - | key to the launch call, NULL where unknown",
    "external_id BIGINT - | Kineto external id, else NULL",
    "graph_id BIGINT - | graph it was replayed from, NULL where unknown",
    "graph_node_id BIGINT - | node of that graph, NULL where unknown",
)

RAW: tuple[Table, ...] = (
    make_table(
        "raw_kernel", "raw", "Kernels.", *_ACTIVITY,
        "name_id INTEGER - | kernel name", "grid VARCHAR - | '[x,y,z]' blocks, no spaces, NULL where unknown",
        "block VARCHAR - | '[x,y,z]' threads", "registers INTEGER - | per thread", "shared_mem INTEGER B | per block",
        "signature_id INTEGER - | key to signature: what the device event itself records (collectives), else NULL",
    ),
    make_table(
        "raw_gpu_copy", "raw", "Copies by the device.", *_ACTIVITY,
        "name_id INTEGER - | as recorded", "kind VARCHAR - | HtoD, DtoH, DtoD, PtoP, other",
        "bytes BIGINT B | bytes moved once", "src VARCHAR - | pageable, pinned, device, managed, NULL unknown",
        "dst VARCHAR - | as src", "pageable BOOLEAN - | a host side is pageable; NULL unknown",
    ),
    make_table(
        "raw_gpu_memset", "raw", "Memory sets by the device.", *_ACTIVITY,
        "name_id INTEGER - | as recorded", "bytes BIGINT B | bytes set",
    ),
    make_table("raw_graph_run", "raw", "Graph replays recorded as one opaque row.", *_ACTIVITY),
    make_table(
        "raw_host_call", "raw", "Runtime and driver API calls.",
        "source_id INTEGER - | trace", "process BIGINT - | process id", "thread BIGINT - | thread id",
        "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration", "name_id INTEGER - | API name without _vNNNN",
        "correlation BIGINT - | key to device activity", "external_id BIGINT - | Kineto external id, else NULL",
        "blocking BOOLEAN - | waits for the device by its nature; `diagnose.ingest.api.blocking_sql` decides by name",
    ),
    make_table(
        "raw_op", "raw", "Framework operators.",
        "source_id INTEGER - | trace", "process BIGINT - | process id", "thread BIGINT - | thread id",
        "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration", "name_id INTEGER - | operator name",
        "external_id BIGINT - | Kineto external id, else NULL",
        "signature_id INTEGER - | key to signature, NULL where nothing was recorded",
    ),
)  # fmt: skip

RAW_BY_NAME: dict[str, Table] = {t.name: t for t in RAW}


def ensure_raw(store: Store) -> None:
    """Create, empty, every raw table, and the dictionaries they point into, that the adapter has not written."""
    have = store.names()
    wanted = (*RAW, BY_NAME["name"], BY_NAME["signature"])
    store.con.execute("; ".join(table.ddl() for table in wanted if table.name not in have))
