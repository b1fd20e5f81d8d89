"""Linking: which call launched each device activity, which operator made that call, which operator encloses which.

Independent of the profiler. Reads the raw tables of `diagnose.ingest.raw`; writes `activity_base` (kernels, copies,
memsets and opaque graph replays under one key), `op_base` and `host_call`, and the public views over them.
"""

from diagnose.ingest.api import graph_launch_sql
from diagnose.ingest.raw import RAW, ensure_raw
from diagnose.model.link_nesting import nest
from diagnose.store.schema import Table
from diagnose.store.sqlfile import read_sql
from diagnose.store.store import Store

# What only linking needs.
_PASSING = (
    "link_op",
    "link_call",
    "link_nesting",
    "link_owner",
    "link_segment",
    "link_launch",
    "link_external",
)


def link(store: Store) -> None:
    """Build `op`, `kernel`, `gpu_copy`, `gpu_memset`, `graph_run`, `host_call` and `activity` from the raw tables.

    Ids are given by time, so the same trace always gets the same ids. `step_id` is NULL until a table
    `owner(kernel_id, step_id)` exists and `public_views` is called again.
    """
    ensure_raw(store)
    store.expect_rows(max(store.count(table.name) for table in RAW))
    store.con.execute("; ".join(map(_whole, RAW)))
    store.save("link_op", _sql("link_op"))
    store.save("link_call", _sql("link_call"))
    on_cpu = not any(
        store.scalar(f"SELECT 1 FROM {name} LIMIT 1")
        for name in ("raw_kernel", "raw_gpu_copy", "raw_gpu_memset", "raw_graph_run")
    )
    nest(store, with_segments=on_cpu)
    store.save("op_base", _sql("link_op_final"))
    store.con.execute(_sql("link_launch").replace("{graph_launch}", graph_launch_sql("n.text")))
    store.save("activity_base", _sql("link_cpu" if on_cpu else "link_activity"))
    store.save("host_call", _sql("link_call_final"))
    store.con.execute("; ".join(f"DROP VIEW link_{table.name}" for table in RAW))
    store.drop(*_PASSING, *(table.name for table in RAW))
    public_views(store)


def _whole(table: Table) -> str:
    """A view with every column of a raw table: an adapter may leave out those it knows nothing of."""
    empty = ", ".join(f'CAST(NULL AS {c.type}) AS "{c.name}"' for c in table.columns)
    return (
        f"CREATE OR REPLACE TEMP VIEW link_{table.name} AS SELECT * FROM {table.name} "
        f"UNION ALL BY NAME SELECT {empty} WHERE false"
    )


def public_views(store: Store) -> None:
    """(Re)make the public views. With a table `owner(kernel_id, step_id)` they carry the step that owns each activity."""
    if "owner" in store.names():
        rows = "(SELECT b.*, w.step_id FROM activity_base b LEFT JOIN owner w USING (kernel_id))"
    else:
        rows = "(SELECT b.*, CAST(NULL AS INTEGER) AS step_id FROM activity_base b)"
    store.con.execute(_sql("link_views").replace("{rows}", rows))


def _sql(name: str) -> str:
    return read_sql("diagnose.model", f"{name}.sql")
