"""Time attribution: every nanosecond of each device's window in exactly one bucket.

The stages are split so that bounds, which need each kernel's own time, can stand between cutting and labelling.
"""

from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

# Launch to start on an idle stream takes 2-10 us in the traces read (B200 eager median 10 us); beyond twice that,
# something else held the work back.
NORMAL_LAUNCH_NS = 20_000


def cut(store: Store) -> None:
    """Write `step_period`, `interval`, `piece` and `gap`."""
    store.con.execute(read_sql("diagnose.model", "step_period.sql"))
    store.con.execute(read_sql("diagnose.model", "pieces.sql"))


def label(store: Store) -> None:
    """Write `gap_piece` and the public `segment`. Needs `bound`; uses `collective` when the ranks stage wrote it."""
    store.con.execute("CREATE TABLE IF NOT EXISTS collective (kernel_id BIGINT, transfer_ns BIGINT)")
    has_host = bool(store.scalar("SELECT count(*) FROM (SELECT 1 FROM host_call LIMIT 1)"))
    sql = (
        read_sql("diagnose.model", "gaps.sql")
        .replace("$1", str(NORMAL_LAUNCH_NS))
        .replace("$2", str(has_host).lower())
    )
    store.con.execute(sql)
    store.con.execute(read_sql("diagnose.model", "segment.sql"))
