"""Device events that name no device: some profilers write -1, which here is the CPU of a trace without a GPU."""

from pathlib import Path

from diagnose.errors import InputError
from diagnose.ingest.kineto.head import Head
from diagnose.store.store import Store

_TABLES = ("raw_kernel", "raw_gpu_copy", "raw_gpu_memset")


def place_strays(store: Store, path: Path, head: Head, used: set[int]) -> set[int]:
    """Give events of a negative device to the only device that the trace knows (0 where it knows none); devices used.

    Among several devices nobody can tell whose they are: they are left out, and an ingest note says so. InputError when
    that leaves no device event.
    """
    strays = {number for number in used if number < 0}
    if not strays:
        return used
    known = {device.id for device in head.devices} | (used - strays)
    count = sum(store.scalar(f"SELECT count(*) FROM {table} WHERE device_id < 0") for table in _TABLES)
    if len(known) > 1 and used == strays:
        raise InputError(
            f"{path}: none of its {count} device events names its device, and the trace knows {len(known)}; "
            "capture again with one device visible (CUDA_VISIBLE_DEVICES)"
        )
    if len(known) > 1:
        what, severity = f"are left out: which of {len(known)} devices ran them is not known", "warning"
    else:
        what, severity = f"are taken for device {next(iter(known), 0)}", "info"
    for table in _TABLES:
        if len(known) > 1:
            store.save(table, f"SELECT * FROM {table} WHERE device_id >= 0")
        else:
            place = f"CASE WHEN device_id < 0 THEN {next(iter(known), 0)} ELSE device_id END"
            store.save(table, f"SELECT * REPLACE (CAST({place} AS INTEGER) AS device_id) FROM {table}")
    store.insert("ingest_note", [{
        "source_id": 0, "code": "no-device-number", "severity": severity, "count": count,
        "message": f"{count} device events name no device ({', '.join(map(str, sorted(strays)))}) and {what}",
    }])  # fmt: skip
    return (used - strays) | ({next(iter(known), 0)} if len(known) <= 1 else set())
