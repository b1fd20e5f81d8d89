"""Quantised products: packed weights, scales and zero points in bytes; the narrow type's rate for FLOPs."""

import pytest

from diagnose.costs.scaled_matmul import grouped_gemm_cost, scale_bytes
from diagnose.costs.weight_only import packed_weight_bytes, weight_only_cost


def test_scaled_mm_blockwise(cost) -> None:
    """fp8 1×128 and 128×128 scales: M·K/128 + K·N/16384 fp32 values."""
    m, k, n = 512, 7168, 4096
    args = (((m, k), "fp8"), ((k, n), "fp8", (1, k)), ((m, k // 128), "fp32"), ((k // 128, n // 128), "fp32"))
    c = cost("aten::_scaled_mm", *args, None, None, 15, "False")
    assert c.flops == 2 * m * n * k
    assert c.dtype == "fp8"
    assert c.bytes_min == m * k + k * n + m * n * 2 + scale_bytes("blockwise", m, n, k)
    assert scale_bytes("blockwise", m, n, k) == 4 * (m * 56 + 56 * 32)


def test_scale_kinds() -> None:
    assert scale_bytes("tensorwise", 5, 6, 7) == 8
    assert scale_bytes("rowwise", 5, 6, 7) == 44
    assert scale_bytes("mx", 32, 64, 128) == (32 * 128 + 128 * 64) / 32
    assert scale_bytes("nvfp4", 32, 64, 128) == (32 * 128 + 128 * 64) / 16 + 4
    with pytest.raises(ValueError, match="unknown"):
        scale_bytes("none", 1, 1, 1)


def test_int_mm(cost) -> None:
    c = cost("aten::_int_mm", ((64, 128), "int8"), ((128, 256), "int8"))
    assert (c.flops, c.dtype) == (2 * 64 * 128 * 256, "int8")
    assert c.bytes_min == 64 * 128 + 128 * 256 + 64 * 256 * 4


@pytest.mark.parametrize(
    "name",
    [
        "_C::cutlass_scaled_mm",
        "sgl_kernel::fp8_scaled_mm",
        "aiter::gemm_a8w8",
        "vllm::w8a8_triton_block_scaled_mm_func",
    ],
)
def test_engine_fp8_operators(cost, name: str) -> None:
    """With or without the result among the arguments, weight (K,N) or (N,K): same FLOPs; rowwise scales are read."""
    m, k, n = 96, 512, 1024
    weight = ((k, n), "fp8", (1, k)) if name.startswith("_C") or "scaled_mm" in name else ((n, k), "fp8")
    out = [((m, n), "bf16")] if name.startswith("_C") else []
    c = cost(name, *out, ((m, k), "fp8"), weight, ((m, 1), "fp32"), ((n, 1), "fp32"), None)
    assert c.flops == 2 * m * n * k
    assert c.dtype == "fp8"
    assert c.bytes_min == m * k + k * n + m * n * 2 + 4 * (m + n)


def test_fp4_is_two_values_a_byte(cost) -> None:
    m, k, n = 64, 1024, 2048
    scales = (((m, k // 16), "fp8"), ((n, k // 16), "fp8"))
    c = cost(
        "_C::cutlass_scaled_fp4_mm",
        ((m, n), "bf16"),
        ((m, k // 2), "uint8"),
        ((n, k // 2), "uint8"),
        *scales,
        ((), "fp32"),
    )
    assert c.flops == 2 * m * n * k
    assert c.dtype == "fp4"
    assert c.bytes_min == (m * k + n * k) / 2 + (m * k + n * k) / 16 + m * n * 2


def test_bits_a_weight() -> None:
    """g 128: 4.125 bits symmetric, 4.156 with zeros; g 32: 4.5 and 4.625; one scale a column: 4 bits and 16/K."""
    n, k = 4096, 8192
    assert packed_weight_bytes(n, k, "gptq") * 8 / (n * k) == 4.125
    assert packed_weight_bytes(n, k, "awq") * 8 / (n * k) == 4.15625
    assert packed_weight_bytes(n, k, "gptq", 32) * 8 / (n * k) == 4.5
    assert packed_weight_bytes(n, k, "awq", 32) * 8 / (n * k) == 4.625
    assert packed_weight_bytes(n, k, "gptq", -1) * 8 / (n * k) == 4 + 16 / k
    assert packed_weight_bytes(n, k, "mxfp4") * 8 / (n * k) == 4.25
    assert packed_weight_bytes(n, k, "nvfp4") * 8 / (n * k) == 4.5
    assert packed_weight_bytes(n, k, "gptq", act_order=True) - packed_weight_bytes(n, k, "gptq") == 4 * k


def test_marlin(cost) -> None:
    """(16,4096) bf16 · packed (4096,11008): marlin tiles the weight as (K/16, N·2) int32, scales (K/128, N)."""
    m, k, n = 16, 4096, 11008
    args = (
        ((m, k), "bf16"), None, ((k // 16, n * 2), "int32"), None, ((k // 128, n), "bf16"), None, None, ((0,), "int32"), ((0,), "int32"),
        ((n // 64 * 16,), "int32"), 1, m, n, k, "True", "False", "True", "False",
    )  # fmt: skip
    c = cost("_C::marlin_gemm", *args)
    assert c.flops == 2 * m * n * k
    assert c.dtype == "bf16"
    assert c.bytes_min == m * k * 2 + n * k / 2 + (k / 128) * n * 2 + m * n * 2
    assert c.bytes_min == weight_only_cost(m, n, k, "gptq").bytes_min


def test_awq_and_gptq(cost) -> None:
    m, k, n = 4, 4096, 12288
    awq = cost(
        "_C::awq_gemm",
        ((m, k), "fp16"),
        ((k, n // 8), "int32"),
        ((k // 128, n), "fp16"),
        ((k // 128, n // 8), "int32"),
        8,
    )
    assert awq.bytes_min == weight_only_cost(m, n, k, "awq", activation="fp16").bytes_min
    gptq = cost(
        "_C::gptq_gemm", ((m, k), "fp16"), ((k // 8, n), "int32"), ((k // 128, n // 8), "int32"), ((k // 128, n), "fp16"),
        ((k,), "int32"), "True", 4,
    )  # fmt: skip
    assert gptq.flops == awq.flops == 2 * m * n * k
    assert (
        gptq.bytes_min == weight_only_cost(m, n, k, "gptq_asym", activation="fp16", act_order=True).bytes_min
    )


def test_torch_int8_and_int4_packed(cost) -> None:
    eight = cost(
        "aten::_weight_int8pack_mm", ((1, 4096), "bf16"), ((11008, 4096), "int8"), ((11008,), "bf16")
    )
    assert eight.flops == 2 * 4096 * 11008
    assert eight.bytes_min == 4096 * 2 + 11008 * 4096 + 11008 * 2 + 11008 * 2
    packed = ((4096 // 8, 4096 // 128, 32, 4), "int32")  # N/8, K/(8·16), 32, 4: half a byte a weight
    four = cost("aten::_weight_int4pack_mm", ((1, 4096), "bf16"), packed, 32, ((128, 4096, 2), "bf16"))
    assert four.flops == 2 * 4096 * 4096
    assert four.bytes_min == 4096 * 2 + 4096 * 4096 / 2 + 128 * 4096 * 2 * 2 + 4096 * 2


def test_bitsandbytes(cost) -> None:
    k, n = 4096, 11008
    args = (
        ((1, 1, k), "bf16"),
        ((n * k // 2, 1), "uint8"),
        f"[{n}, {k}]",
        ((n * k // 64,), "fp32"),
        ((16,), "fp32"),
        64,
    )
    c = cost("bitsandbytes::gemv_4bit", *args)
    assert c.flops == 2 * n * k
    assert c.bytes_min == k * 2 + n * k / 2 + n * k / 64 * 4 + n * 2


def test_unreadable_packing_has_no_cost(no_cost) -> None:
    assert no_cost(
        "_C::marlin_gemm", ((16, 4096), "bf16"), None, ((1000, 77), "int32"), ((32, 11008), "bf16")
    )


def test_grouped() -> None:
    c = grouped_gemm_cost(512, 1024, 2048, 8, "bf16", "fp8", "bf16")
    assert c.flops == 2 * 512 * 1024 * 2048
    assert c.bytes_min == 512 * (2048 + 1024) * 2 + 8 * 1024 * 2048
