"""Nsight Compute exports: both CSV layouts, public tables, reports; and what they change in table `cost`."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError
from diagnose.ingest.ncu import dram_bytes, flops, load_ncu, read_launches
from diagnose.roles.counters import apply_counters, normal
from diagnose.store import Store

RAW = """==PROF== Connected to process 12 (python)
==PROF== Disconnected
"ID","Process ID","Process Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum","sm__inst_executed_pipe_tensor.sum","sm__sass_thread_inst_executed_op_ffma_pred_on.sum","sm__sass_thread_inst_executed_op_fadd_pred_on.sum"
"","","","","","","","","","","Mbyte","Kbyte","inst","inst","inst"
"0","12","python","void gemv<float, (int)4, (bool)1>(float *)","1","7","(128, 1, 1)","(512, 1, 1)","0","9.0","67.1","12.5","0","1,000","10"
"1","12","python","void gemv<float, (int)4, (bool)1>(float *)","1","7","(128, 1, 1)","(512, 1, 1)","0","9.0","67.3","12.5","0","1,000","10"
"2","12","python","nvjet_tst_64x8","1","7","(128, 1, 1)","(140, 1, 1)","0","9.0","10","0","5,000","0","0"
"""  # noqa: E501

DETAILS = """"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","python","host","void add(float *)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","us","10.0"
"0","12","python","host","void add(float *)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Memory Throughput","%","81.2"
"0","12","python","host","void add(float *)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","Memory Workload Analysis","Memory Throughput","Gbyte/s","2,000"
"""  # noqa: E501


def write(tmp_path: Path, text: str, name: str = "counters.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_raw_page(tmp_path: Path) -> None:
    with Store() as store:
        assert load_ncu([write(tmp_path, RAW)], store) == 2
        rows = store.rows("SELECT name, grid, block, metric, value FROM kernel_counter ORDER BY ALL")
    # the median of two launches; units as the second line says; tensor instructions alone are no FLOPs
    assert rows == [
        ("nvjet_tst_64x8", "[140,1,1]", "[128,1,1]", "dram_bytes", 10e6),
        (
            "void gemv<float, (int)4, (bool)1>(float *)",
            "[512,1,1]",
            "[128,1,1]",
            "dram_bytes",
            pytest.approx(67.2e6 + 12.5e3),
        ),
        ("void gemv<float, (int)4, (bool)1>(float *)", "[512,1,1]", "[128,1,1]", "flops", 2010.0),
    ]


def test_details_page_multiplies_rate_and_duration(tmp_path: Path) -> None:
    (launch,) = read_launches(write(tmp_path, DETAILS))
    assert (launch.name, launch.grid) == ("void add(float *)", "[64,1,1]")
    assert dram_bytes(launch.metrics) == pytest.approx(2000e9 * 10e-6)
    assert flops(launch.metrics) is None


def test_flops_of_pipes() -> None:
    sass = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
    assert flops({sass.format("ffma"): 100, sass.format("fmul"): 3, sass.format("dadd"): 2}) == 205
    assert flops({sass.format("hfma"): 10, sass.format("hadd"): 1}) == 42  # packed pairs
    # per SM or per part of one: the same instructions
    assert flops({sass.format("ffma"): 100, sass.format("ffma").replace("sm__", "smsp__"): 100}) == 200
    tensor = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
    both = {
        tensor: 8192.0,
        "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum": 8192.0,
        "sm__inst_executed_pipe_tensor.sum": 1.0,
    }
    assert flops(both) == 8192
    assert flops({sass.format("ffma"): 100, "sm__inst_executed_pipe_tensor.sum": 1.0}) is None
    assert flops({}) is None


def test_reads_alone_are_no_traffic() -> None:
    assert dram_bytes({"dram__bytes_read.sum": 1.0}) is None
    assert dram_bytes({"dram__sectors_read.sum": 10.0, "dram__sectors_write.sum": 2.0}) == 384


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no columns of an Nsight Compute export"),
        ("a,b\n1,2\n", "no columns of an Nsight Compute export"),
        (
            '"ID","Kernel Name","Metric Name","Metric Value"\n"0","k","Registers","32"\n',
            "no DRAM or FLOP counters",
        ),
        ("\x00\x01binary", "binary"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, why: str) -> None:
    with Store() as store, pytest.raises(InputError, match=why) as error:
        load_ncu([write(tmp_path, text)], store)
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_launches(tmp_path / "none.csv")


def test_a_report_without_the_module_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(InputError, match=r"ncu --import run\.ncu-rep --page raw --csv > run\.csv"):
        read_launches(write(tmp_path, "x", "run.ncu-rep"))


def test_a_report_through_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that NVIDIA documents: ranges, actions, metrics by name."""
    values = {
        "launch__grid_dim_x": 4.0,
        "launch__grid_dim_y": 2.0,
        "launch__grid_dim_z": 1.0,
        "dram__bytes.sum": 123.0,
    }

    class Metric:
        def __init__(self, value: float) -> None:
            self.value = value

        def as_double(self) -> float:
            return self.value

    class Action:
        NameBase_DEMANGLED = 1

        def name(self, base: int = 0) -> str:
            return "void k<1>(int)" if base else "k"

        def metric_names(self) -> list[str]:
            return list(values)

        def metric_by_name(self, name: str) -> Metric | None:
            return Metric(values[name]) if name in values else None

    class Range:
        def num_actions(self) -> int:
            return 1

        def action_by_idx(self, _: int) -> Action:
            return Action()

    class Context:
        def num_ranges(self) -> int:
            return 1

        def range_by_idx(self, _: int) -> Range:
            return Range()

    module = types.ModuleType("ncu_report")
    module.load_report = lambda _: Context()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    (launch,) = read_launches(write(tmp_path, "x", "run.ncu-rep"))
    assert (launch.name, launch.grid, launch.block) == ("void k<1>(int)", "[4,2,1]", None)
    assert launch.metrics == {"dram__bytes.sum": 123.0}


def test_names_of_two_profilers_agree() -> None:
    assert normal("void k<(int)7, (bool)1, A<float> >(float *)") == normal(
        "void k<7, true, A<float>>(float*)"
    )
    assert normal("void k<2ul, 3u>(x)") == normal("void k<(unsigned long)2, (unsigned int)3>(x)")
    assert normal("void k<1>(int)") != normal("void k<2>(int)")


def test_counters_override_bytes_by_name_and_grid(trace: Any, make: Any, tmp_path: Path) -> None:
    known = make.item("o", name="nvjet_tst_64x8", fields={"grid": "[140,1,1]"})
    open_ = make.item("o", name="void gemv<float, 4, true>(float*)", fields={"grid": "[512,1,1]"})
    other = make.item("o", name="nvjet_tst_64x8", fields={"grid": "[280,1,1]"})
    ids = trace.step(0, [known, open_, other])
    for i in (0, 2):
        trace.store.insert(
            "cost",
            [
                {
                    "kernel_id": ids[i],
                    "flops": 5e9,
                    "bytes_min": 1.0,
                    "dtype": "bf16",
                    "role": "gemm",
                    "source": "shape",
                }
            ],
        )
    load_ncu([write(tmp_path, RAW)], trace.store)
    ((code, severity, count, text),) = apply_counters(trace.store)
    assert (code, severity, count) == ("counters", "info", 2)
    assert "2 of 2 measured" in text
    costs = trace.costs()
    first, second, third = (costs[i] for i in ids)
    assert (first["source"], first["bytes_min"], first["bytes_low"], first["flops"]) == (
        "counter",
        10e6,
        10e6,
        5e9,
    )
    assert (second["source"], second["flops"], second["bytes_min"]) == (
        "counter",
        2010.0,
        pytest.approx(67.2e6 + 12.5e3),
    )
    assert (third["source"], third["bytes_min"]) == ("shape", 1.0)


def test_counters_of_another_program(trace: Any, make: Any, tmp_path: Path) -> None:
    trace.step(0, [make.item("o", fields={"grid": "[140,1,1]"})])
    load_ncu([write(tmp_path, RAW)], trace.store)
    assert apply_counters(trace.store)[0][0] == "counters-unmatched"
    assert trace.costs() == {}


@pytest.mark.shared_traces
def test_measured_linears(shared: Path) -> None:
    """1,381 fp32 linears on A100: the two anchors to the byte, and the table's own count of FLOPs."""
    launches = read_launches(shared / "measured" / "a100_linear1381_ncu.csv")
    assert len(launches) == 1381
    by_shape = {x.name: x.metrics for x in launches}
    assert dram_bytes(by_shape["N=1, cin=4096, cout=4096"]) == 67_142_912
    assert dram_bytes(by_shape["N=1, cin=8192, cout=4096"]) == 134_270_336
    first = by_shape["N=256, cin=512, cout=1536"]
    assert flops(first) == 2 * 201_326_592 + 1_572_864 + 1_179_648


@pytest.mark.shared_traces
def test_measured_decode(shared: Path) -> None:
    """Rates and durations only: 345.14 GB/s over 6.75 us."""
    launches = read_launches(shared / "measured" / "rtx5090_decode_ncu_metrics.csv")
    assert len(launches) == 20
    assert dram_bytes(launches[0].metrics) == pytest.approx(345.14e9 * 6.75e-6)
