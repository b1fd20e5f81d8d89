"""Parts of a Diagnosis with everything a test does not care about filled in. Loaded by conftest.py."""

from typing import Any

from diagnose import contract as c


def attribution(**ns: int) -> c.Attribution:
    unknown = set(ns) - set(c.BUCKETS)
    assert not unknown, unknown
    return {**c.empty_attribution(), **ns}


def added(parts: list[c.Attribution]) -> c.Attribution:
    return {bucket: sum(part[bucket] for part in parts) for bucket in c.BUCKETS}


def device(attr: c.Attribution, *, id_: int = 0, rank: int | None = None, **extra: Any) -> c.Device:
    wall = sum(attr.values())
    roofs = [
        c.RoofRow(
            "hbm",
            "",
            3352.0,
            3010.0,
            "GB/s",
            "measured",
            note="2,100 GB/s at 16 MB",
            source="fit of public GEMM tables",
        ),
        c.RoofRow("compute", "bf16", 989.4, 720.0, "TFLOP/s", "measured"),
        c.RoofRow("compute", "fp32", 66.9, 60.2, "TFLOP/s", "assumed", note="peak × 0.90"),
        c.RoofRow("kernel_floor", "", None, 2.2, "µs", "assumed"),
    ]
    defaults: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "catalog_key": "h100-sxm",
        "roofs": roofs,
        "sm_count": 132,
        "memory_bytes": 85_018_279_936,
    }
    return c.Device(
        id=id_, rank=rank, window=c.Window(0, wall, wall), attribution_ns=attr, **{**defaults, **extra}
    )


def kernel(
    name: str, *, time_ns: int, count: int = 1, bound: str = "unmodelled", **extra: Any
) -> c.KernelRow:
    defaults: dict[str, Any] = dict.fromkeys(
        (
            "op",
            "role",
            "shape",
            "phase",
            "flops",
            "bytes",
            "tflops",
            "gbps",
            "intensity",
            "regime",
            "percent_of_roof",
            "reason",
            "cost_source",
        )
    )
    row: dict[str, Any] = {"family": "other", **defaults, **extra}
    flops, bytes_ = row["flops"], row["bytes"]
    if flops is not None:
        row["tflops"] = flops / time_ns / 1e3
    if bytes_ is not None:
        row["gbps"] = bytes_ / time_ns
    if flops and bytes_:
        row["intensity"] = flops / bytes_
    return c.KernelRow(name=name, count=count, time_ns=time_ns, bound=bound, **row)


def coverage(kernel_ns: int, cost_ns: int, **extra: Any) -> c.Coverage:
    values: dict[str, Any] = {
        "linked_to_op_ns": cost_ns,
        "in_graphs_ns": 0,
        "no_launch_ns": kernel_ns - cost_ns,
        "by_source_ns": {"shapes": cost_ns},
        **extra,
    }
    return c.Coverage(kernel_time_ns=kernel_ns, with_cost_ns=cost_ns, **values)


def phase(name: str, attr: c.Attribution, *, steps: int = 1, limit: str, **extra: Any) -> c.Phase:
    wall = sum(attr.values())
    values: dict[str, Any] = {
        "tokens": {"prefill": None, "decode": None, "accepted": None},
        "step_time_ns": {"p50": wall / steps, "p90": None, "p99": None},
        "ideal_step_ns": None,
        "efficiency": None,
        "mfu": None,
        "mbu": None,
        "confidence": None,
        **extra,
    }
    return c.Phase(phase=name, steps=steps, wall_ns=wall, attribution_ns=attr, limit=limit, **values)


def diagnosis(**parts: Any) -> c.Diagnosis:
    devices: list[c.Device] = parts.get("devices", [])
    values: dict[str, Any] = {
        "schema": c.SCHEMA,
        "tool_version": "0.1.0",
        "objective": "step_time",
        "devices": devices,
        "attribution_ns": added([d.attribution_ns for d in devices]) if devices else None,
        "coverage": None,
        "phases": [],
        "outside_steps": None,
        "kernels": [],
        "latency": None,
        "kv": None,
        "hypotheses": [],
        "data_quality": [],
        "source": [
            c.Source(
                "trace.json.gz", "kineto", sha256="ab" * 32, profiler="kineto", framework="pytorch 2.8.0"
            )
        ],
        **parts,
    }
    return c.Diagnosis(**values)
