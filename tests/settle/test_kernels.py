"""The same kernel is found by what it does; a renamed one is the same work done differently."""

import pytest

from diagnose.settle.compare import compare
from diagnose.settle.kernels import match
from diagnose.settle.roles import common_names, without_context
from diagnose.settle.side import sides


def matched(build, before, after):
    steps = [build.step(i, hbm=5_000_000) for i in range(4)]
    return match(*sides([build.result(steps, before)], [build.result(steps, after)]))


def test_shape_before_name(build):
    before = [
        build.kernel("gemm_a", count=4, time_ns=400, role="gemm", op="aten::mm", shape="16x8 . 8x32"),
        build.kernel("gemm_a", count=4, time_ns=800, role="gemm", op="aten::mm", shape="16x8 . 8x64"),
    ]
    after = [
        build.kernel("gemm_b", count=4, time_ns=900, role="gemm", op="aten::mm", shape="16x8 . 8x64"),
        build.kernel("gemm_a", count=4, time_ns=500, role="gemm", op="aten::mm", shape="16x8 . 8x32"),
    ]
    found = matched(build, before, after)
    assert {(p.before.shape, p.after.name, p.renamed, p.by) for p in found.pairs} == {
        ("16x8 . 8x32", "gemm_a", False, "shape"), ("16x8 . 8x64", "gemm_b", True, "shape"),
    }  # fmt: skip


def test_another_operator_on_the_same_shape_is_the_same_work(build):
    found = matched(
        build,
        [
            build.kernel(
                "nvjet", count=4, time_ns=400, role="gemm", op="aten::mm", shape="16x8 . 8x32", dtype="bf16"
            )
        ],
        [
            build.kernel(
                "cutlass",
                count=4,
                time_ns=250,
                role="gemm",
                op="_C::cutlass_scaled_mm",
                shape="16x8 . 8x32",
                dtype="fp8",
                family="gemm_lowp",
            ),
            build.kernel(
                "scaled_fp8_quant", count=4, time_ns=40, role="quantise", shape="16x8", family="quant"
            ),
        ],
    )
    (pair,) = found.pairs
    assert pair.renamed
    assert [g.word for g in found.only_after] == ["quantise"]


def test_kernels_without_shapes_go_by_name_then_by_role(build):
    before = [
        build.kernel("k1", count=4, time_ns=400, family="attn_decode"),
        build.kernel("old", count=4, time_ns=300, family="norm"),
    ]
    after = [
        build.kernel("k1", count=4, time_ns=410, family="attn_decode"),
        build.kernel("new", count=8, time_ns=280, family="norm"),
    ]
    found = matched(build, before, after)
    assert {(p.before.name, p.after.name, p.by) for p in found.pairs} == {
        ("k1", "k1", "name"),
        ("old", "new", "role"),
    }


def test_unlinked_calls_of_a_kernel_belong_to_its_operator(build):
    rows = [
        build.kernel("k", count=3, time_ns=300, role="gemm", op="aten::mm", shape="8x8 . 8x8"),
        build.kernel("k", count=1, time_ns=100, role="gemm", op=None, shape="8x8 . 8x8"),
    ]
    (pair,) = matched(build, rows, rows).pairs
    assert pair.before.runs[0].count == 4


def test_decode_attention_is_one_kernel_while_its_context_grows(build):
    shapes = [f"16x32x1x128 k{n} kv8 full" for n in (2048, 2049, 2050)]
    rows = [build.kernel("attn", count=2, time_ns=200, role="attention", op="o", shape=s) for s in shapes]
    (pair,) = matched(build, rows, rows).pairs
    assert pair.before.runs[0].count == 6
    assert without_context("decode 32 tokens 32785 kv h32/8 d128") == "decode 32 tokens * kv h32/8 d128"


def test_weight_only_products_are_the_work_of_their_wide_twins(build):
    found = matched(
        build,
        [build.kernel("mm", count=4, time_ns=400, role="gemm", op="aten::mm", shape="16x8 . 8x32", dtype="bf16")],
        [
            build.kernel(
                "int4mm", count=4, time_ns=250, role="gemm_w4a16", op="q::mm", shape="16x8 . 8x32 int4 g128", dtype="bf16", family="gemm_w4a16"
            )
        ],
    )  # fmt: skip
    (pair,) = found.pairs
    assert (pair.by, pair.before.weights, pair.after.weights) == ("shape", "bf16", "int4")


def test_roles_speak_alike():
    assert common_names({"gemm", "attn_decode"}, {"qkv", "o", "attention_decode"}) == {
        "gemm": "gemm", "qkv": "gemm", "o": "gemm", "attn_decode": "attention", "attention_decode": "attention",
    }  # fmt: skip
    assert common_names({"qkv", "o"}, {"qkv", "o"}) == {"qkv": "qkv", "o": "o"}


def test_kernels_of_one_side_are_listed_with_their_time_per_step(build):
    steps = [build.step(i, hbm=5_000_000) for i in range(4)]
    extra = build.kernel("dequant", count=8, time_ns=2_000_000, role="dequant", shape="4x4", family="quant")
    base = build.kernel("k", count=4, time_ns=16_000_000, role="gemm", shape="8x8 . 8x8")
    result = compare([build.result(steps, [base])], [build.result(steps, [base, extra])])
    (alone,) = result.unmatched
    assert (alone.side, alone.kind, alone.name) == ("after", "kernel", "dequant")
    assert alone.ns_per_unit == pytest.approx(500_000)


def test_another_number_of_layers_is_another_model(build):
    def run(layers):
        steps = [build.step(i, hbm=layers * 100_000) for i in range(4)]
        rows = [
            build.kernel(
                "g", count=16 * layers, time_ns=layers * 200_000, role="gemm", op="o", shape="16x8 . 8x8"
            ),
            build.kernel(
                "a",
                count=4 * layers,
                time_ns=layers * 200_000,
                role="attention",
                op="a",
                shape="16x1",
                family="attn_decode",
            ),
        ]
        return build.result(steps, rows)

    result = compare([run(32)], [run(16)])
    (found,) = [d for d in result.comparability if d.withholds]
    assert "attention calls" in found.what
    assert result.metrics[0].verdict == "withheld"
