"""What the reading met, as rows of ingest_note: damage, loss and distortion, each in one line for a person."""

from typing import Any

from diagnose.ingest.kineto.head import Head
from diagnose.ingest.kineto.sane import Sanity
from diagnose.ingest.kineto.split import Stream
from diagnose.ingest.source import ByteSource
from diagnose.store.store import Store


def write_notes(store: Store, stream: Stream, source: ByteSource, head: Head, sanity: Sanity) -> None:
    """Fill ingest_note."""
    notes: list[dict[str, Any]] = []

    def note(code: str, severity: str, count: int, message: str) -> None:
        notes.append({"source_id": 0, "code": code, "severity": severity, "count": count, "message": message})

    damage = stream.damage
    if stream.truncated or source.damage:
        note("truncated", "warning", 1, _truncation(store, stream, source))
    elif stream.tail_cut:
        note(
            "truncated",
            "info",
            1,
            "the file ends inside the metadata after its last event: every event is used",
        )
    if damage.repaired:
        note(
            "repaired-events",
            "info",
            damage.repaired,
            f"{damage.repaired} events were not valid JSON and were repaired",
        )
    whole = damage.quarantined - stream.cut_event
    if whole > 0:
        where = ", ".join(str(offset) for offset in damage.offsets)
        share = 100 * whole / max(1, stream.events + whole)
        note(
            "unreadable-events", "warning", whole,
            f"{whole} events ({share:.2g} %) could not be read and are left out; the first at byte {where}",
        )  # fmt: skip
    if not head.intact:
        note(
            "damaged-metadata", "info", 1, "the trace's metadata is not valid JSON; what was readable is used"
        )
    if sanity.dropped:
        note(
            "impossible-times", "warning", sanity.dropped,
            f"{sanity.dropped} events with an impossible start or duration were left out",
        )  # fmt: skip
    if sanity.clocks_apart:
        note(
            "device-clock-apart", "error", 1,
            "device and host times lie far apart: their clocks were not aligned, so causes of gaps are not to be trusted",
        )  # fmt: skip
    if stream.python_events:
        share = 100 * stream.python_events / max(1, stream.events)
        note(
            "python-stacks", "warning", stream.python_events,
            f"Python stacks were recorded ({stream.python_events} frames, {share:.0f} % of the events): "
            "recording them slows the host, so host time is inflated",
        )  # fmt: skip
    for category, count in store.rows(
        "SELECT unknown, count(*) FROM event WHERE kind IS NULL GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5"
    ):
        note("unknown-category", "info", count, f"{count} events of category {category[:40]!r} are not used")
    _missing_device(store, note)
    store.insert("ingest_note", notes)


def _truncation(store: Store, stream: Stream, source: ByteSource) -> str:
    """Say where the file ends and what share of the device's work that loses, as far as the rest can tell."""
    what = source.damage or "the file ends inside the list of events"
    text = f"{what}: {stream.events} events before that are used"
    if source.unread:
        text += f"; {100 * source.unread:.1f} % of the file lies behind and is lost"
    launched, lost = store.rows(
        """
        WITH launch AS (
            SELECT h.correlation FROM raw_host_call h JOIN name n USING (name_id)
            WHERE regexp_matches(n.text, '(Launch|Memcpy|Memset)') AND h.correlation IS NOT NULL),
        seen AS (
            SELECT correlation FROM raw_kernel UNION SELECT correlation FROM raw_gpu_copy
            UNION SELECT correlation FROM raw_gpu_memset)
        SELECT count(*), count(*) FILTER (seen.correlation IS NULL) FROM launch LEFT JOIN seen USING (correlation)
        """
    )[0]
    if not store.scalar("SELECT count(*) FROM device WHERE active AND device_id >= 0"):
        return text + "; if the device's work was recorded, all of it is lost"
    if launched:
        text += f"; {100 * lost / launched:.1f} % of the device's work is lost as far as launches tell"
        text += f" ({lost} of {launched} have no device record)"
    return text + "; gaps on the device may be lost work"


def _missing_device(store: Store, note: Any) -> None:
    if store.scalar("SELECT count(*) FROM device WHERE active AND device_id >= 0"):
        return
    launches = store.scalar(
        "SELECT count(*) FROM raw_host_call h JOIN name n USING (name_id) WHERE regexp_matches(n.text, 'Launch')"
    )
    listed = store.scalar("SELECT count(*) FROM device WHERE device_id >= 0")
    if launches or listed:
        seen = f"{launches} launches on a GPU" if launches else "a GPU"
        note(
            "no-device-events", "error", launches or listed,
            f"the trace names {seen} and holds no device event: only operators' host time is shown; "
            "profile with ProfilerActivity.CUDA and let the profiler finish",
        )  # fmt: skip
