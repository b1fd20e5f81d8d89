"""The order of trust, and what is said about it in data quality."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.costs.assign import assign_costs
from diagnose.errors import InputError, UsageError
from diagnose.roles.supplement import supplement


def nvtx_op(trace: Any, op_id: int, name: str, dims: list[list[int]]) -> None:
    """An operator as an NVTX range records it: sizes, no types."""
    trace.store.insert("signature", [{"signature_id": op_id, "input_dims": json.dumps(dims)}])
    trace.store.insert("op", [{"op_id": op_id, "name_id": trace.name(name), "signature_id": op_id}])


def test_element_types_from_the_kernel_else_from_the_model(trace: Any, make: Any, model: Any) -> None:
    nvtx_op(trace, 1, "aten::mm", [[64, 256], [256, 512]])
    nvtx_op(trace, 2, "aten::mm", [[64, 256], [256, 512]])
    half = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
    ids = trace.step(0, [make.item("o", name=half, fields={"op_id": 1, "link": "launch"}),
                         make.item("o", name="gemm_kernel", fields={"op_id": 2, "link": "launch"})])  # fmt: skip
    assign_costs(trace.store)
    assert list(trace.costs()) == ids[:1]
    assign_costs(trace.store, element="bf16")
    costs = trace.costs()
    assert [costs[i]["dtype"] for i in ids] == ["fp16", "bf16"]
    assert costs[ids[1]]["bytes_min"] == 2 * (64 * 256 + 256 * 512 + 64 * 512)
    supplement(trace.store, model())
    notes = dict(trace.store.rows("SELECT code, message FROM ingest_note"))
    assert "2 kernels take theirs from the kernel's name, else from a model (bf16)" in notes["untyped-shapes"]


def test_counters_win_over_roles(
    trace: Any, make: Any, model: Any, decode: dict[str, Any], tmp_path: Path
) -> None:
    items = make.step([make.dense(i == 0) for i in range(4)])
    for item in items:
        if item.what == "gate_up":
            item.fields["grid"] = "[224,1,1]"
    ids = trace.step(0, items, **decode)
    path = tmp_path / "counters.csv"
    path.write_text(
        f'"ID","Kernel Name","Grid Size","dram__bytes.sum"\n"","","","Mbyte"\n"0","{make.names["gate_up"]}","(224, 1, 1)","240"\n'
    )
    supplement(trace.store, model(), ncu=[path])
    costs = trace.costs()
    measured = costs[ids[9]]
    assert (measured["source"], measured["bytes_min"], measured["role"]) == ("counter", 240e6, "gate_up")
    assert measured["flops"] == 2 * 8 * 28672 * 4096
    assert costs[ids[2]]["source"] == "role"
    assert [r[0] for r in trace.store.rows("SELECT code FROM ingest_note ORDER BY 1")] == [
        "counters",
        "roles",
    ]


def test_ranks_that_do_not_divide_the_heads(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    with pytest.raises(UsageError, match="--tp 3 does not divide"):
        supplement(trace.store, model(), tp=3)


def test_a_capture_that_cannot_be_read(trace: Any, make: Any, decode: dict[str, Any], tmp_path: Path) -> None:
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    path = tmp_path / "capture.json"
    path.write_text("{")
    with pytest.raises(InputError):
        supplement(trace.store, None, capture=path)


def test_nothing_asked_for_changes_nothing(trace: Any, make: Any, decode: dict[str, Any]) -> None:
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    supplement(trace.store, None)
    assert trace.costs() == {}
    assert trace.store.count("ingest_note") == 0
