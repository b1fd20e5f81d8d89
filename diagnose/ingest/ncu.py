"""Nsight Compute exports: measured DRAM bytes and executed FLOPs by kernel name and launch shape.

Times under Nsight Compute are those of serialised replays at fixed clocks: they are never taken. Read are
`ncu --csv` in both layouts (page raw: a column a metric; page details: a row a metric), tables that give kernels by
an id of their own, and `.ncu-rep` reports where NVIDIA's `ncu_report` module can be imported.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from diagnose.errors import InputError
from diagnose.store.schema import BY_NAME
from diagnose.store.store import Store

MAX_BYTES = 512 << 20
_REP_MAGIC = b"NVR\x00"
_SCALE = {
    "": 1.0, "byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9,
    "tb": 1e12, "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3, "inst": 1.0, "sector": 1.0, "ops": 1.0, "op": 1.0,
    "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
}  # fmt: skip
"""Units as ncu prints them, in bytes, seconds and counts (its prefixes are powers of ten)."""


def _scale(unit: str) -> float | None:
    """Factor of a unit, quotients such as Gbyte/second included; None for what is not known here."""
    top, slash, bottom = unit.strip().lower().partition("/")
    over, under = _SCALE.get(top), _SCALE.get(bottom) if slash else 1.0
    return None if over is None or under is None else over / under


# Instructions by the FLOPs one thread does in them; a fused multiply-add is two, the packed half ones do two lanes.
_SASS = {
    "dadd": 1, "dmul": 1, "dfma": 2, "fadd": 1, "fmul": 1, "ffma": 2, "hadd": 2, "hmul": 2, "hfma": 4,
}  # fmt: skip
_SASS_NAME = re.compile(r"^(sm|smsp)__sass_thread_inst_executed_op_([dfh])(add|mul|fma)_pred_on\.sum$")
_TENSOR = re.compile(r"^sm__ops_path_tensor_src_([a-z0-9]+)(_dst_[a-z0-9]+)?(_sparsity_o(?:n|ff))?\.sum$")
_HOW = "export it with `ncu --import REPORT --page raw --csv > FILE.csv`"


@dataclass(slots=True)
class Launch:
    """One profiled launch: metrics by ncu's name, scaled to bytes, seconds and counts."""

    name: str
    grid: str | None = None
    block: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def load_ncu(paths: Iterable[Path], store: Store) -> int:
    """Fill table `kernel_counter` from exports and reports; the number of kernels (name, grid, block) with a counter.

    Several launches of one kernel and shape give their median. InputError, one line, for what cannot be read.
    """
    store.con.execute(BY_NAME["kernel_counter"].ddl())
    values: dict[tuple[str, str | None, str | None], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for path in paths:
        found = 0
        for launch in read_launches(path):
            for metric, value in (
                ("dram_bytes", dram_bytes(launch.metrics)),
                ("flops", flops(launch.metrics)),
            ):
                if value is not None:
                    found += 1
                    values[launch.name, launch.grid, launch.block][metric].append(value)
        if not found:
            raise InputError(
                f"{path}: no DRAM or FLOP counters in it; profile with "
                "`ncu --metrics dram__bytes_read.sum,dram__bytes_write.sum` or `--set full`"
            )
    rows = [
        (name, grid, block, metric, median(v))
        for (name, grid, block), metrics in values.items()
        for metric, v in metrics.items()
    ]
    columns = list(zip(*rows, strict=True))
    store.con.execute(
        "INSERT INTO kernel_counter SELECT unnest(?::VARCHAR[]), unnest(?::VARCHAR[]), unnest(?::VARCHAR[]), "
        "unnest(?::VARCHAR[]), unnest(?::DOUBLE[])",
        [list(c) for c in columns],
    )
    return len(values)


def read_launches(path: Path) -> list[Launch]:
    """The launches of one file. InputError when it is missing, too large, or none of the known layouts."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give an Nsight Compute CSV export"
        ) from None
    if head.startswith(_REP_MAGIC) or path.suffix == ".ncu-rep":
        return _report(path)
    if size > MAX_BYTES:
        raise InputError(
            f"{path}: {size >> 20} MiB is too large for an Nsight Compute CSV; export fewer metrics or kernels"
        )
    if b"\x00" in head:
        raise InputError(f"{path}: binary, not an Nsight Compute CSV; {_HOW}")
    with path.open(encoding="utf-8", errors="replace", newline="") as text:
        try:
            return _table(path, csv.reader(_body(text)))
        except csv.Error as error:
            raise InputError(f"{path}: not a readable CSV ({error}); {_HOW}") from None


def _body(lines: Iterable[str]) -> Iterator[str]:
    """The lines without what ncu prints around the table."""
    for line in lines:
        if line.strip() and not line.startswith("=="):
            yield line.replace("\x00", "")


def _table(path: Path, rows: Iterator[list[str]]) -> list[Launch]:
    header = [cell.strip() for cell in next(rows, [])]
    if {"Kernel Name", "Metric Name", "Metric Value"} <= set(header):
        return _long(header, rows, "ID", "Kernel Name", "Metric Name", "Metric Value", "Metric Unit")
    if {"kernel_id", "metric_name", "value"} <= set(header):
        return _long(header, rows, "kernel_id", "kernel_id", "metric_name", "value", "unit")
    if any(_counts(h) for h in header):
        return _wide(header, rows)
    raise InputError(f"{path}: no columns of an Nsight Compute export in its first line; {_HOW}")


def _counts(metric: str) -> bool:
    return metric.startswith(("dram__", "sm__sass_thread_inst", "sm__ops_path_tensor"))


def _wide(header: list[str], rows: Iterator[list[str]]) -> list[Launch]:
    """A column a metric. The row after the header holds units (ncu); other tables start with values."""
    at = {name: i for i, name in enumerate(header)}
    metrics = [(i, h) for h, i in at.items() if _counts(h) or h.startswith("sm__inst_executed_pipe_tensor")]
    others = [i for h, i in at.items() if i < min(m[0] for m in metrics) and h not in ("ID", "Time")]
    scale: dict[int, float | None] = dict.fromkeys((i for i, _ in metrics), 1.0)
    out: list[Launch] = []
    for number, row in enumerate(rows):
        if len(row) < len(header):
            continue
        if number == 0 and all(_number(row[i]) is None for i, _ in metrics):
            scale = {i: _scale(row[i]) for i, _ in metrics}
            continue
        if "Kernel Name" in at:
            grid, block = (_dims(row[at[c]]) if c in at else None for c in ("Grid Size", "Block Size"))
            launch = Launch(row[at["Kernel Name"]], grid, block)
        else:  # a table of shapes: the columns before the counters name the row
            launch = Launch(", ".join(f"{header[i]}={row[i]}" for i in others))
        for i, metric in metrics:
            factor = scale[i]
            if factor is not None and (value := _number(row[i])) is not None:
                launch.metrics[metric] = value * factor
        out.append(launch)
    return out


def _long(header: list[str], rows: Iterator[list[str]], key: str, name: str, metric: str, value: str, unit: str) -> list[Launch]:  # fmt: skip
    """A row a metric; rows of one `key` are one launch."""
    at = {h: i for i, h in enumerate(header)}
    launches: dict[str, Launch] = {}
    for row in rows:
        if len(row) < len(header) or (number := _number(row[at[value]])) is None:
            continue
        launch = launches.get(row[at[key]])
        if launch is None:
            grid, block = (_dims(row[at[c]]) if c in at else None for c in ("Grid Size", "Block Size"))
            launch = launches[row[at[key]]] = Launch(row[at[name]], grid, block)
        said = row[at[unit]].strip().lower() if unit in at else ""
        section = (
            row[at["section"]] if "section" in at else row[at["Section Name"]] if "Section Name" in at else ""
        )
        label = row[at[metric]].strip()
        if label == "Memory Throughput":
            # Two metrics share the label: percent of peak, and bytes a second in the memory section.
            if said == "%" or (not said and "Memory" not in section):
                continue
            label, said = "throughput", said or "gbyte/second"
        elif label == "Duration":
            said = said or "usecond"
        if (factor := _scale(said)) is not None:
            launch.metrics[label] = number * factor
    return list(launches.values())


def _number(text: str) -> float | None:
    try:
        return float(text.strip().replace(",", ""))
    except ValueError:
        return None


def _dims(text: str) -> str | None:
    """'(132, 1, 1)' as '[132,1,1]'."""
    numbers = re.findall(r"\d+", text)
    return f"[{','.join(numbers)}]" if len(numbers) == 3 else None


def dram_bytes(metrics: dict[str, float]) -> float | None:
    """Bytes between L2 and device memory, both ways; None unless reads and writes are both known."""
    if (both := metrics.get("dram__bytes.sum")) is not None:
        return both
    read, write = metrics.get("dram__bytes_read.sum"), metrics.get("dram__bytes_write.sum")
    if read is not None and write is not None:
        return read + write
    read, write = metrics.get("dram__sectors_read.sum"), metrics.get("dram__sectors_write.sum")
    if read is not None and write is not None:
        return 32.0 * (read + write)
    rate, seconds = metrics.get("throughput"), metrics.get("Duration")
    return rate * seconds if rate is not None and seconds is not None else None


def flops(metrics: dict[str, float]) -> float | None:
    """Executed FLOPs: instructions of the plain pipes and operations of the tensor pipe.

    None where no such counter was taken, or the tensor pipe ran but only its instructions were counted (what one
    does differs by type and architecture).
    """
    plain: dict[str, float] = {}
    for name, value in metrics.items():
        if found := _SASS_NAME.match(name):  # per SM or per SM part: the same instructions
            op = found.group(2) + found.group(3)
            plain[op] = max(plain.get(op, 0.0), _SASS[op] * value)
    tensor = _tensor_ops(metrics)
    ran = any(v > 0 for k, v in metrics.items() if k.startswith("sm__inst_executed_pipe_tensor"))
    if (not plain and not tensor) or (ran and not tensor):
        return None
    return sum(plain.values()) + sum(tensor)


def _tensor_ops(metrics: dict[str, float]) -> list[float]:
    """Operations by source type: the type's total, else its sums by result type, else those by sparsity."""
    levels: dict[str, dict[tuple[bool, bool], float]] = defaultdict(lambda: defaultdict(float))
    for name, value in metrics.items():
        if found := _TENSOR.match(name):
            levels[found.group(1)][found.group(3) is not None, found.group(2) is not None] += value
    return [by[min(by)] for by in levels.values()]


def _report(path: Path) -> list[Launch]:
    """A .ncu-rep through NVIDIA's `ncu_report` module."""
    command = f"ncu --import {path.name} --page raw --csv > {path.stem}.csv"
    try:
        import ncu_report
    except ImportError:
        raise InputError(
            f"{path}: an Nsight Compute report is read only where its ncu_report module is installed; export it: `{command}`"
        ) from None
    try:
        context: Any = ncu_report.load_report(str(path))
        return [_action(a) for r in range(context.num_ranges()) for a in _actions(context.range_by_idx(r))]
    except Exception as error:  # the module raises types of its own
        first = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise InputError(f"{path}: ncu_report cannot read it ({first}); export it: `{command}`") from None


def _actions(found: Any) -> Iterator[Any]:
    for i in range(found.num_actions()):
        yield found.action_by_idx(i)


def _action(action: Any) -> Launch:
    def value(metric: str) -> float | None:
        found = action.metric_by_name(metric)
        return None if found is None else float(found.as_double())

    def dims(kind: str) -> str | None:
        sizes = [value(f"launch__{kind}_dim_{axis}") for axis in "xyz"]
        return None if None in sizes else "[" + ",".join(str(int(s or 0)) for s in sizes) + "]"

    full = getattr(action, "NameBase_DEMANGLED", None)
    launch = Launch(str(action.name() if full is None else action.name(full)), dims("grid"), dims("block"))
    for metric in action.metric_names():
        if _counts(metric) or metric.startswith("sm__inst_executed_pipe_tensor"):
            number = value(metric)
            if number is not None:
                launch.metrics[metric] = number
    return launch
