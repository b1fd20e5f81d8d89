"""The small tables of an export: devices, copy kinds, metric names, session start, versions.

Only named rows of the metadata tables are read: the rest holds the host's name, the user, the command and its
environment, which never leave the file.
"""

import re
from dataclasses import dataclass

from diagnose.ingest.nsys.tables import Tables
from diagnose.store import Store

_SIDES = {0: "pageable", 1: "pinned", 2: "device", 3: "device", 4: "managed", 5: "device", 6: "managed"}
# CUpti_ActivityMemcpyKind; arrays are device memory, 11-13 are migrations of managed memory.
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 10: "PtoP",
    11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
# Names vary a little between releases and carry a unit suffix: matched by prefix.
_METRICS = (
    (r"SMs? Active\b", "sm_active"),
    (r"Tensor Active\b(?! /)", "tensor_active"),
    (r"DRAM Read (Bandwidth|Throughput)\b", "dram_read"),
    (r"DRAM Write (Bandwidth|Throughput)\b", "dram_write"),
    (r"GPC Clock Frequency\b", "gpc_clock"),
    (r"PCIe RX Throughput\b", "pcie_rx"),
    (r"PCIe TX Throughput\b", "pcie_tx"),
    (r"NVLink RX\b.*(User Data|Protocol Data|Bandwidth|Throughput)", "nvlink_rx"),
    (r"NVLink TX\b.*(User Data|Protocol Data|Bandwidth|Throughput)", "nvlink_tx"),
)


@dataclass(frozen=True, slots=True)
class Session:
    """When the capture began (None when not recorded) and what made and exported it."""

    epoch_ns: int | None
    product_version: str | None
    schema_version: str | None
    graph_mode: str | None


def read_session(tables: Tables) -> Session:
    """Session start, product and schema version, and the graph mode asked for at capture."""
    epoch = None
    if "utcEpochNs" in tables.columns("TARGET_INFO_SESSION_START_TIME"):
        rows = tables.fetch("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
        epoch = int(rows[0][0]) if rows and rows[0][0] is not None else None
    exported: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= tables.columns(table):
            exported = dict(
                tables.fetch(
                    table, ["name", "value"], "name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')"
                )
            )
            break
    mode = None
    if {"name", "value"} <= tables.columns("META_DATA_CAPTURE"):
        rows = tables.fetch("META_DATA_CAPTURE", ["value"], "name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'")
        mode = str(rows[0][0]).lower() if rows else None
    return Session(epoch, exported.get("EXPORT_PRODUCT_VERSION"), exported.get("EXPORT_SCHEMA_VERSION"), mode)


def write_device_map(store: Store, tables: Tables) -> None:
    """`nsys_device(process, cuda_id, device_id)`: a process may number its devices anew
    (CUDA_VISIBLE_DEVICES)."""
    store.con.execute(
        "CREATE OR REPLACE TABLE nsys_device(process BIGINT, cuda_id BIGINT, device_id INTEGER)"
    )
    if not {"gpuId", "cudaId", "pid"} <= tables.columns("TARGET_INFO_CUDA_DEVICE"):
        return
    rows = sorted(
        {
            (pid, cuda, gpu)
            for gpu, cuda, pid in tables.fetch("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
        }
    )
    one_gpu = {key: [g for p, c, g in rows if (p, c) == key] for key in {(p, c) for p, c, _ in rows}}
    # A device that maps to two GPUs (a reused process number) says nothing: keep the recorded number.
    kept = [(p, c, gpus[0]) for (p, c), gpus in sorted(one_gpu.items()) if len(gpus) == 1]
    if kept:
        store.con.executemany("INSERT INTO nsys_device VALUES (?, ?, ?)", kept)


def write_devices(store: Store, tables: Tables) -> None:
    """`device`: the GPUs the export describes and those with activity; needs the raw views."""
    raws = ("raw_kernel", "raw_gpu_copy", "raw_gpu_memset", "raw_graph_run")
    active = {row[0] for row in store.rows(" UNION ".join(f"SELECT device_id FROM {raw}" for raw in raws))}
    described: dict[int, tuple[str, str | None, int | None, int | None, float | None]] = {}
    have = tables.columns("TARGET_INFO_GPU")
    if {"id", "name"} <= have:
        wanted = [
            c
            for c in ("smCount", "totalMemory", "memoryBandwidth", "computeMajor", "computeMinor")
            if c in have
        ]
        for gpu, name, *values in tables.fetch("TARGET_INFO_GPU", ["id", "name", *wanted]):
            got = dict(zip(wanted, values, strict=True))
            major, minor = got.get("computeMajor"), got.get("computeMinor")
            arch = f"sm_{major}{minor}" if major is not None and minor is not None else None
            # The column's comment says bytes; real exports hold bytes per second (A100-40:
            # 1,555,200,000,000).
            bandwidth = got.get("memoryBandwidth")
            described[int(gpu)] = (
                str(name or ""), arch, got.get("smCount") or None, got.get("totalMemory") or None,
                float(bandwidth) if bandwidth else None,
            )  # fmt: skip
    rows = []
    for device in sorted(active | {d for d, facts in described.items() if facts[0]}):
        name, arch, sms, memory, bandwidth = described.get(device, ("", None, None, None, None))
        rows.append(
            {
                "device_id": device, "source_id": 0, "name": name, "arch": arch, "sm_count": sms,
                "memory_bytes": memory, "bandwidth_bytes_per_s": bandwidth, "active": device in active,
            }
        )  # fmt: skip
    store.insert("device", rows)


def write_copy_names(store: Store) -> None:
    """`nsys_copy_name`: kind, sides and a name (as Kineto writes it) for each combination of codes staged."""
    store.con.execute(
        "CREATE OR REPLACE TABLE nsys_copy_name(copy_kind BIGINT, src_kind BIGINT, dst_kind BIGINT, "
        "peer BOOLEAN, kind VARCHAR, src VARCHAR, dst VARCHAR, pageable BOOLEAN, text VARCHAR)"
    )
    for code, src_code, dst_code, peer in store.rows(
        "SELECT DISTINCT copy_kind, src_kind, dst_kind, (src_device <> dst_device) IS TRUE FROM nsys_copy "
        "ORDER BY ALL"
    ):
        kind = _COPY_KINDS.get(code, "other")
        if kind == "DtoD" and peer:
            kind = "PtoP"
        src, dst = _SIDES.get(src_code), _SIDES.get(dst_code)
        sides: dict[str, list[str | None]] = {
            "HtoD": [src],
            "DtoH": [dst],
            "DtoD": ["device"],
            "PtoP": ["device"],
        }
        hosts = sides.get(kind, [src, dst])
        pageable = True if "pageable" in hosts else None if None in hosts else False
        text = f"Memcpy {kind} ({(src or 'Unknown').title()} -> {(dst or 'Unknown').title()})"
        store.con.execute(
            "INSERT INTO nsys_copy_name VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [code, src_code, dst_code, peer, kind, src, dst, pageable, text],
        )


def metric_ids(tables: Tables) -> dict[tuple[int, int], str]:
    """(typeId, metricId) -> canonical metric, for those we keep; metric ids are not stable between
    exports."""
    if not {"typeId", "metricId", "metricName"} <= tables.columns("TARGET_INFO_GPU_METRICS"):
        return {}
    found = {}
    for type_id, metric_id, text in tables.fetch(
        "TARGET_INFO_GPU_METRICS", ["typeId", "metricId", "metricName"]
    ):
        for pattern, metric in _METRICS:
            if re.match(pattern, str(text or "")):
                found[int(type_id), int(metric_id)] = metric
                break
    return found
