"""Which events have a possible time, and where the run's clock starts."""

from dataclasses import dataclass

from diagnose.store.store import Store

DAY_NS = 86_400 * 10**9
WEEK_NS = 7 * DAY_NS
SPARE_NS = (
    10 * 10**9
)  # device work may reach beyond what the host recorded, not by this much and once its length

_USED = "kind IN ('op', 'call', 'kernel', 'copy', 'memset', 'annotation', 'gpu_annotation')"
_HOST = "kind IN ('op', 'call', 'annotation', 'python')"
_DEVICE = "kind IN ('kernel', 'copy', 'memset', 'gpu_annotation')"


@dataclass(frozen=True, slots=True)
class Sanity:
    """`dropped` events of use have no possible time; `origin` is the first start of the others, ns in the trace's clock.

    `clocks_apart`: most device events lie far from all host events, so the two clocks were not aligned.
    """

    dropped: int
    origin: int
    clocks_apart: bool


def make_sane(store: Store) -> Sanity:
    """Make the view `sane` over `event`: events with a possible time.

    Left out are a missing or negative duration; a start more than a week from the median start; a host event longer
    than a day; a device event longer than all host activity and 10 s (an hour where there is none), or as far from it.
    Profilers write overflown durations (ROCm, near 2^64 ns), zero start times and -1 for what never finished.
    """
    low, high = store.rows(f"SELECT min(ts), max(ts) FROM event WHERE {_USED}")[0]
    near = "ts IS NOT NULL"
    if low is not None and high - low > WEEK_NS:
        middle = store.scalar(f"SELECT quantile_disc(ts, 0.5) FROM event WHERE {_USED}")
        near = f"ts BETWEEN {middle - WEEK_NS} AND {middle + WEEK_NS}"
    host = f"({_HOST} AND dur BETWEEN 0 AND {DAY_NS})"
    first, last = store.rows(
        f"SELECT min(ts), max(ts + dur) FROM event WHERE kind <> 'python' AND {near} AND {host}"
    )[0]
    longest = DAY_NS // 24 if first is None else last - first + SPARE_NS
    device = f"({_DEVICE} AND dur BETWEEN 0 AND {longest})"
    apart = False
    if first is not None:
        beside = f"(ts BETWEEN {first - longest} AND {last + longest})"
        inside, outside = store.rows(
            f"SELECT count(*) FILTER ({beside}), count(*) FILTER (NOT {beside}) FROM event WHERE {near} AND {device}"
        )[0]
        apart = outside > inside
        if not apart:
            device = f"({device} AND {beside})"
    sane = f"({near} AND ({host} OR {device} OR kind IN ('memory', 'ignored') OR (kind IN ('sync', 'overhead') AND dur >= 0)))"
    store.con.execute(f"CREATE OR REPLACE VIEW sane AS SELECT * FROM event WHERE {sane}")
    total, kept, origin = store.rows(
        f"SELECT count(*), count(*) FILTER ({sane}), min(ts) FILTER ({sane}) FROM event WHERE {_USED}"
    )[0]
    return Sanity(total - kept, origin or 0, apart)
