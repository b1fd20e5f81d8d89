"""From operators and kernels to rows of table `cost`."""

import json
from random import Random
from typing import Any

import pytest

from diagnose.costs.assign import assign_costs
from diagnose.costs.op import OpCall, parse_call
from diagnose.costs.registry import cost_of, modelled_names

GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
MM = (((64, 512), "bf16"), ((512, 1024), "bf16"))
MM_FLOPS = 2 * 64 * 512 * 1024
MM_BYTES = (64 * 512 + 512 * 1024 + 64 * 1024) * 2


def test_innermost_modelled_operator_owns_its_kernels(trace: Any, call: Any) -> None:
    """linear > matmul > mm: the product counts once, on mm's kernel; an addition beside it has its own operator."""
    trace.op(1, call("aten::linear", ((64, 512), "bf16"), ((1024, 512), "bf16")))
    trace.op(2, call("aten::matmul", *MM), 1)
    trace.op(3, call("aten::mm", *MM), 2)
    trace.op(4, call("aten::add", ((64, 1024), "bf16"), ((64, 1024), "bf16"), 1))
    trace.kernel(10, GEMM, 5000, 3)
    trace.kernel(11, ADD, 2000, 4)
    assign_costs(trace.store)
    rows = trace.costs()
    assert (rows[10]["flops"], rows[10]["bytes_min"], rows[10]["source"]) == (MM_FLOPS, MM_BYTES, "shape")
    assert (rows[10]["m"], rows[10]["n"], rows[10]["k"]) == (64, 1024, 512)
    assert rows[11]["bytes_min"] == 3 * 64 * 1024 * 2
    assert rows[10]["bytes_low"] < rows[10]["bytes_min"] < rows[10]["bytes_high"]


def test_kernels_of_one_operator_share_by_role(trace: Any, call: Any) -> None:
    trace.op(1, call("aten::mm", *MM))
    trace.kernel(10, GEMM, 5000, 1)
    trace.kernel(11, SPLIT, 2000, 1)
    assign_costs(trace.store)
    rows = trace.costs()
    assert rows[10]["flops"] == MM_FLOPS
    assert rows[11]["role"] == "split_k_sum"
    assert rows[11]["bytes_min"] == 64 * 1024 * (2 * 4 + 2)  # two fp32 partials at least, one bf16 result


def test_two_main_kernels_share_at_one_rate(trace: Any, call: Any) -> None:
    """FLOPs in proportion to time: 3 to 1."""
    trace.op(1, call("aten::mm", *MM))
    trace.kernel(10, GEMM, 6000, 1)
    trace.kernel(11, GEMM, 2000, 1)
    assign_costs(trace.store)
    rows = trace.costs()
    assert rows[10]["flops"] == MM_FLOPS * 0.75
    assert rows[11]["flops"] == MM_FLOPS * 0.25
    assert rows[10]["bytes_min"] + rows[11]["bytes_min"] == MM_BYTES


def test_a_parent_lends_its_cost_only_to_fitting_kernels(trace: Any, call: Any) -> None:
    """A vendor operator inside linear is unknown: its GEMM kernel takes the linear's cost, its fill kernel does not."""
    trace.op(1, call("aten::linear", ((64, 512), "bf16"), ((1024, 512), "bf16")))
    trace.op(2, OpCall("vendor::secret"), 1)
    trace.kernel(10, GEMM, 5000, 2)
    trace.kernel(11, "some_unknown_helper", 2000, 2)
    assign_costs(trace.store)
    rows = trace.costs()
    assert rows[10]["flops"] == MM_FLOPS
    assert 11 not in rows


def test_unknown_work_gets_no_row(trace: Any) -> None:
    trace.op(1, OpCall("vendor::secret"))
    trace.kernel(10, "secret_kernel", 5000, 1)
    assign_costs(trace.store)
    assert trace.costs() == {}


def test_copies_within_the_device_count_twice(trace: Any) -> None:
    rows = [(20, "DtoD", 1000), (21, "HtoD", 1000), (22, "DtoH", 1000)]
    for kernel_id, kind, size in rows:
        trace.store.insert("gpu_copy", [{"kernel_id": kernel_id, "kind": kind, "bytes": size}])
    trace.store.insert("gpu_memset", [{"kernel_id": 23, "bytes": 500}])
    assign_costs(trace.store)
    got = {k: (r["bytes_min"], r["source"], r["role"]) for k, r in trace.costs().items()}
    assert got == {
        20: (2000, "bytes", "copy_dtod"), 21: (1000, "bytes", "copy_htod"), 22: (1000, "bytes", "copy_dtoh"),
        23: (500, "bytes", "memset"),
    }  # fmt: skip


def test_unlinked_kernel_like_a_linked_one(trace: Any, call: Any) -> None:
    trace.op(1, call("aten::mm", *MM))
    trace.kernel(10, GEMM, 5000, 1, grid="[8,4,1]")
    trace.kernel(11, GEMM, 5200, grid="[8,4,1]")
    trace.kernel(12, GEMM, 5200, grid="[8,8,1]")  # another grid: other work
    trace.kernel(13, GEMM, 55_000, grid="[8,4,1]")  # ten times as long: another inner size
    assign_costs(trace.store)
    rows = trace.costs()
    assert (rows[11]["flops"], rows[11]["source"]) == (MM_FLOPS, "same_kernel")
    assert set(rows) == {10, 11}


def test_neighbours_settle_what_a_grid_leaves_open(trace: Any, call: Any) -> None:
    """Two products with one kernel and grid but another K, each between its own neighbours."""
    long_k = (((64, 4096), "bf16"), ((4096, 1024), "bf16"))
    for i in range(3):
        trace.op(10 * i + 1, call("aten::mm", *MM))
        trace.op(10 * i + 2, call("aten::mm", *long_k))
    order = [("before", None), (GEMM, 1), ("between", None), (GEMM, 2), ("after", None)]
    kernel_id = 0
    for linked in (True, True, True, False):
        for name, op in order:
            # the fourth pass was launched outside the trace
            owner = 10 * (kernel_id // 5) + op if linked and op is not None else None
            trace.kernel(kernel_id, name, 5000, owner, grid="[8,4,1]")
            kernel_id += 1
    assign_costs(trace.store)
    rows = trace.costs()
    assert (rows[16]["flops"], rows[16]["source"]) == (MM_FLOPS, "same_sequence")
    assert (rows[18]["flops"], rows[18]["source"]) == (2 * 64 * 4096 * 1024, "same_sequence")


def test_ambiguous_neighbours_are_left_alone(trace: Any, call: Any) -> None:
    other = (((64, 600), "bf16"), ((600, 1024), "bf16"))
    for i, args in enumerate((MM, other)):
        trace.op(i, call("aten::mm", *args))
        trace.kernel(10 * i + 1, "left", 3000)
        trace.kernel(10 * i + 2, GEMM, 5000, i)
        trace.kernel(10 * i + 3, "right", 3000)
    for i, name in enumerate(("left", GEMM, "right")):
        trace.kernel(40 + i, name, 5000)
    assign_costs(trace.store)
    assert set(trace.costs()) == {2, 12}


def test_decode_attention_is_never_matched_by_grid(trace: Any, call: Any, step: Any) -> None:
    """Its grid is the same at any context length."""
    q, kv = ((4, 32, 128), "bf16"), ((4, 8, 128), "bf16")
    trace.store.insert(
        "step",
        [{"step_id": 0, "sequences": 4, "decode_tokens": 4, "prefill_tokens": 0, "context_tokens": 4000}],
    )
    trace.op(1, call("vllm::unified_attention_with_output", q, kv, kv, q))
    trace.kernel(10, "void flash::flash_fwd_splitkv_kernel<128>", 9000, 1, step_id=0)
    trace.kernel(11, "void flash::flash_fwd_splitkv_kernel<128>", 9000)
    assign_costs(trace.store)
    rows = trace.costs()
    assert (rows[10]["flops"], rows[10]["source"]) == (4 * 32 * 128 * 4000, "step")
    assert 11 not in rows


def test_sizes_without_types_take_the_kernels(trace: Any) -> None:
    """NVTX ranges record sizes only; the kernel's name says bf16."""
    trace.op(1, OpCall("aten::mm", ((64, 512), (512, 1024))))
    trace.kernel(10, GEMM, 5000, 1)
    assign_costs(trace.store)
    row = trace.costs()[10]
    assert (row["flops"], row["bytes_min"], row["dtype"]) == (MM_FLOPS, MM_BYTES, "bf16")


def test_cpu_subtree_shares_the_outermost_cost(trace: Any, call: Any) -> None:
    """linear and its children share one product by self time; a view outside moves nothing."""
    trace.op(1, call("aten::linear", ((64, 512), "bf16"), ((1024, 512), "bf16")))
    trace.op(2, call("aten::addmm", ((1024,), "bf16"), *MM, 1, 1), 1)
    trace.op(3, call("aten::t", ((1024, 512), "bf16")), 1)
    trace.op(4, call("aten::slice", ((1024, 512), "bf16"), 0, 0, 5, 1))
    for kernel_id, (op, name, ns) in enumerate(
        [(1, "aten::linear", 1000), (2, "aten::addmm", 8000), (3, "aten::t", 1000), (4, "aten::slice", 500)]
    ):
        trace.kernel(kernel_id, name, ns, op, device_id=-1, grid=None, block=None)
    assign_costs(trace.store)
    rows = trace.costs()
    assert [rows[i]["flops"] for i in range(3)] == pytest.approx(
        [0.1 * MM_FLOPS, 0.8 * MM_FLOPS, 0.1 * MM_FLOPS]
    )
    assert sum(rows[i]["bytes_min"] for i in range(3)) == pytest.approx(MM_BYTES)
    assert (rows[3]["flops"], rows[3]["bytes_min"], rows[3]["role"]) == (0, 0, "view")


def test_damaged_signatures_never_raise(trace: Any) -> None:
    for i, text in enumerate(("", "[", "null", '"[a, b, ...]"', "[[1, null], {}]", "[[[]]]", "[1e400]")):
        call = parse_call("aten::mm", text, text, text, text, text)
        assert cost_of(call) is None
        trace.store.insert(
            "signature", [{"signature_id": i, "input_dims": text, "input_dtypes": text, "extra": text}]
        )
        trace.store.insert("op", [{"op_id": i, "name_id": trace.name("aten::mm"), "signature_id": i}])
        trace.kernel(i, GEMM, 10, i)
    assign_costs(trace.store)
    assert trace.costs() == {}


def test_random_arguments_give_a_finite_cost_or_none() -> None:
    """Every registered operator on arguments of any shape and type: never an exception, never a negative number."""
    random = Random(11)
    types = [
        "c10::BFloat16",
        "float",
        "long int",
        "int",
        "unsigned char",
        "c10::Float8_e4m3fn",
        "bool",
        "Scalar",
        "",
        "TensorList",
    ]
    for name in sorted(modelled_names()):
        for _ in range(25):
            count = random.randint(0, 9)
            dims = [
                [random.choice((0, 1, 2, 3, 64, 128)) for _ in range(random.randint(0, 5))]
                for _ in range(count)
            ]
            strides = [[random.choice((0, 1, 2, 64)) for _ in d] for d in dims]
            scalars = [
                random.choice(("", "1", "-1", "0", "[1, 2]", "[-1]", "True", "0.5", "x"))
                for _ in range(count)
            ]
            call = parse_call(
                name,
                json.dumps(dims),
                json.dumps([random.choice(types) for _ in dims]),
                json.dumps(strides),
                json.dumps(scalars),
            )
            cost = cost_of(call)
            if cost is not None:
                assert 0 <= cost.flops < 1e18
                assert 0 <= cost.bytes_min < 1e18
                assert cost.low <= cost.bytes_min <= cost.high or cost.bytes_min == 0
