"""Pointwise work, normalisation, copies, gathers, reductions: bytes written out."""

import pytest

from diagnose.costs.norms import norm_cost
from diagnose.costs.rope_activation import gated_activation_cost, rope_cost


def test_broadcast_operand_counts_once(cost) -> None:
    """fp32 mul over 16×559×1024 with a 16×559×1 factor: 2 × 36.6 MB + 36 kB; 32.6 µs is 2.25 TB/s."""
    c = cost("aten::mul", ((16, 559, 1024), "fp32"), ((16, 559, 1), "fp32"))
    n = 16 * 559 * 1024
    assert c.bytes_min == 2 * n * 4 + 16 * 559 * 4
    assert c.flops == n
    assert not c.strided
    assert c.bytes_min / 32.6e-6 == pytest.approx(2.25e12, rel=0.01)


def test_expanded_operand_counts_its_memory(cost) -> None:
    c = cost("aten::add", ((64, 32), "bf16"), ((64, 32), "bf16", (0, 1)), 1)
    assert c.bytes_min == (64 * 32 + 32 + 64 * 32) * 2


def test_types_of_results(cost) -> None:
    """A comparison writes bytes; a Python number does not widen; integers divided give fp32; mixed widths promote."""
    n = 1000
    assert cost("aten::eq", ((n,), "int64"), 1).bytes_min == n * 8 + n
    assert cost("aten::mul", ((n,), "bf16"), ((), "fp64")).bytes_min == n * 2 + n * 2
    assert cost("aten::div", ((n,), "int32"), ((n,), "int32")).bytes_min == n * 12
    assert cost("aten::add", ((n,), "bf16"), ((n,), "fp32"), 1).bytes_min == n * (2 + 4 + 4)
    assert cost("aten::where", ((n,), "bool"), ((n,), "fp16"), ((n,), "fp16")).bytes_min == n * (
        1 + 2 + 2 + 2
    )


def test_in_place_reads_and_writes(cost) -> None:
    n = 4096
    assert cost("aten::mul_", ((n,), "fp32"), 2).bytes_min == n * 8
    assert cost("aten::add_", ((n,), "fp32"), ((n,), "fp16"), 1).bytes_min == n * (4 + 2 + 4)
    assert cost("aten::masked_fill_", ((64, 64), "bf16"), ((64, 1), "bool"), 0).bytes_min == 64 * 64 * 4 + 64
    assert cost("aten::silu", ((n,), "bf16")).bytes_min == n * 4


def test_permuted_copy_is_strided_and_its_upper_edge_grows(cost) -> None:
    """(16,16,559,64) gathered from (16,559,16,64) memory: 128-byte runs are whole sectors, so only the flag changes."""
    dims = (16, 16, 559, 64)
    dense, permuted = (572416, 35776, 64, 1), (572416, 64, 1024, 1)
    c = cost("aten::copy_", (dims, "bf16", dense), (dims, "bf16", permuted), "False")
    assert c.bytes_min == 2 * 16 * 16 * 559 * 64 * 2
    assert c.strided
    transposed = cost("aten::copy_", ((1024, 1024), "fp16"), ((1024, 1024), "fp16", (1, 1024)), "False")
    assert transposed.strided
    assert transposed.high == 1024 * 1024 * (2 + 32)  # one 32-byte sector an element of the source
    plain = cost("aten::copy_", ((1024, 1024), "fp16"), ((1024, 1024), "fp16"), "False")
    assert not plain.strided
    assert plain.high < transposed.high


def test_long_rows_with_gaps_are_not_strided(cost) -> None:
    c = cost("aten::copy_", ((888, 2880), "bf16"), ((888, 2880), "bf16", (3072, 1)), "False")
    assert not c.strided
    short = cost("aten::copy_", ((888, 64), "bf16"), ((888, 64), "bf16", (640, 1)), "False")
    assert short.strided


def test_conversion(cost) -> None:
    c = cost("aten::copy_", ((1000,), "fp32"), ((1000,), "bf16"), "False")
    assert (c.bytes_min, c.role, c.flops) == (6000, "cast", 0)
    assert cost("aten::_to_copy", ((1000,), "bf16"), 6).bytes_min == 6000


def test_cat_takes_its_type_from_the_kernel(cost, no_cost) -> None:
    lists = [(16, 16, 559, 32), (16, 16, 559, 32)]
    kernel = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>"
    c = cost("aten::cat", lists, -1, kernels=(kernel,))
    assert c.bytes_min == 2 * 2 * 16 * 16 * 559 * 32 * 2
    assert c.shape == "16x16x559x64"
    assert no_cost("aten::cat", lists, -1)


def test_gathers_do_not_traverse_the_table(cost) -> None:
    """8,944 rows of 1,024 bf16 from 151,936: twice the rows and the indices, not 311 MB of table."""
    c = cost("aten::embedding", ((151936, 1024), "bf16"), ((16, 559), "int64"), -1, "False", "False")
    assert c.bytes_min == 2 * 8944 * 1024 * 2 + 8944 * 8
    assert (
        cost("aten::index_select", ((151936, 1024), "bf16"), 0, ((8944,), "int64")).bytes_min == c.bytes_min
    )
    expanded = cost(
        "aten::gather", ((151936, 64), "bf16"), 0, ((100, 64), "int64", (1, 0)), "False", ((100, 64), "bf16")
    )
    assert expanded.bytes_min == 2 * 100 * 64 * 2 + 100 * 8


def test_fills_pads_and_ranges(cost) -> None:
    assert cost("aten::fill_", ((888, 3072), "bf16"), 0).bytes_min == 888 * 3072 * 2
    padded = cost("aten::constant_pad_nd", ((888, 2880), "bf16"), "[0, 192]", 0)
    assert padded.bytes_min == 888 * (2880 + 3072) * 2
    assert cost("aten::arange", 0, 559, 1, ((0,), "int64")).bytes_min == 559 * 8


def test_reductions(cost) -> None:
    mean = cost("aten::mean", ((16, 559, 1024), "fp32"), "[-1]", "True", None)
    assert mean.bytes_min == 16 * 559 * 1024 * 4 + 16 * 559 * 4
    assert cost("aten::argmax", ((15, 151936), "fp32"), -1, "False").bytes_min == 15 * 151936 * 4 + 15 * 8
    norm = cost("aten::linalg_vector_norm", ((4, 7, 9), "fp32"), 2, "[-1]", "True", None)
    assert norm.bytes_min == 4 * 7 * 9 * 4 + 4 * 7 * 4
    assert cost("aten::sum", ((10, 10), "fp32"), None).bytes_min == 404


def test_softmax(cost) -> None:
    """owlv2: 16 × 5185² bf16: 2·16·5185²·2 B, 5 FLOP an element; rows read twice show in the upper edge."""
    c = cost("aten::_softmax", ((16, 5185, 5185), "bf16"), -1, "False")
    n = 16 * 5185 * 5185
    assert (c.bytes_min, c.flops) == (4 * n, 5 * n)
    assert c.high > 6 * n
    assert cost("aten::_softmax", ((16, 32), "bf16"), -1, "True").bytes_min == 16 * 32 * 6


def test_norms(cost) -> None:
    """RMSNorm 2·T·D·e + D·e; with residual 4·T·D·e + D·e; LayerNorm two weight vectors; static fp8 out."""
    t, d = 888, 2880
    rms = cost("_C::rms_norm", ((t, d), "bf16"), ((t, d), "bf16"), ((d,), "bf16"), 1e-5)
    assert rms.bytes_min == 2 * t * d * 2 + d * 2 == norm_cost(t, d, "bf16").bytes_min
    add = cost("_C::fused_add_rms_norm", ((t, d), "bf16"), ((t, d), "bf16"), ((d,), "bf16"), 1e-5)
    assert add.bytes_min == 4 * t * d * 2 + d * 2 == norm_cost(t, d, "bf16", residual=True).bytes_min
    wide = ((t, d), "bf16")
    aiter = cost("aiter::add_rmsnorm", wide, wide, wide, wide, ((d,), "bf16"), 1e-6)
    assert aiter.bytes_min == add.bytes_min
    layer = cost(
        "aten::native_layer_norm", ((4, 197, 768), "bf16"), "[768]", ((768,), "bf16"), ((768,), "bf16"), 1e-12
    )
    assert layer.bytes_min == 2 * 4 * 197 * 768 * 2 + 2 * 768 * 2
    quant = cost("_C::rms_norm_static_fp8_quant", ((t, d), "fp8"), wide, ((d,), "bf16"), ((1,), "fp32"), 1e-5)
    assert quant.bytes_min == t * d * 3 + d * 2 + 4
    fused = cost(
        "_C::fused_add_rms_norm_static_fp8_quant",
        ((t, d), "fp8"),
        wide,
        wide,
        ((d,), "bf16"),
        ((1,), "fp32"),
        1e-5,
    )
    assert fused.bytes_min == t * d * (1 + 2 + 2 + 2) + d * 2 + 4


def test_rotary(cost) -> None:
    """15,360 tokens, 32 + 8 heads of 128: q and k read and written, a row of cosines and sines and a position each."""
    c = cost(
        "sgl_kernel::rotary_embedding", ((15360,), "int64"), ((15360, 4096), "bf16"), ((15360, 1024), "bf16"), 128,
        ((41216, 128), "bf16"), "True",
    )  # fmt: skip
    assert c.bytes_min == 2 * 15360 * 40 * 128 * 2 + 15360 * 128 * 2 + 8 * 15360
    assert c.bytes_min == rope_cost(15360, 32, 8, 128, "bf16").bytes_min
    assert c.flops == 3 * 15360 * 40 * 128


def test_gated_activation(cost) -> None:
    c = cost("sgl_kernel::silu_and_mul", ((15360, 12288), "bf16"), ((15360, 24576), "bf16"))
    assert c.bytes_min == 3 * 15360 * 12288 * 2 == gated_activation_cost(15360, 12288, "bf16").bytes_min


def test_kv_writes_leave_the_pool_alone(cost) -> None:
    c = cost(
        "_C_cache_ops::reshape_and_cache_flash", ((888, 1, 64), "bf16", (640, 64, 1)), ((888, 1, 64), "bf16"),
        ((4213816, 16, 1, 64), "uint8"), ((4213816, 16, 1, 64), "uint8"), ((888,), "int64"),
    )  # fmt: skip
    assert c.bytes_min == 2 * 888 * 64 * (2 + 1) + 8 * 888
    store = cost(
        "sglang::store_cache", ((15360, 1024), "bf16"), ((15360, 1024), "bf16", (6144, 1)), ((835874, 1024), "bf16"),
        ((835874, 1024), "bf16"), ((15360,), "int64"), 2048, 0,
    )  # fmt: skip
    assert store.bytes_min == 2 * 2 * 15360 * 1024 * 2 + 15360 * 8
    latent = cost(
        "_C_cache_ops::concat_and_cache_mla",
        ((32, 512), "bf16"),
        ((32, 64), "bf16"),
        ((100, 64, 576), "bf16"),
        ((32,), "int64"),
    )
    assert latent.bytes_min == 32 * 576 * 4 + 8 * 32


def test_quantising(cost) -> None:
    c = cost(
        "_C::static_scaled_fp8_quant", ((888, 512), "fp8"), ((888, 512), "bf16", (640, 1)), ((1,), "fp32")
    )
    assert c.bytes_min == 888 * 512 * 3 + 4
    dynamic = cost("_C::dynamic_scaled_fp8_quant", ((888, 512), "fp8"), ((888, 512), "bf16"), ((1,), "fp32"))
    assert dynamic.bytes_min == 888 * 512 * 5 + 4  # the scale needs a first pass over the input


def test_sampling_reads_the_vocabulary(cost) -> None:
    c = cost("aten::topk", ((32, 151936), "fp32"), 50, -1, "True", "True")
    assert c.bytes_min == 32 * 151936 * 4 + 32 * 50 * 12
    assert c.high > 4 * c.bytes_min
    sort = cost("aten::sort", ((32, 151936), "fp32"), -1, "True")
    assert sort.bytes_min == 32 * 151936 * (4 + 4 + 8)


def test_inductor(cost) -> None:
    """Pointers once, at most one element an iteration: a gather from 201,088 × 2,880 touches 98,304 of it."""
    padded = cost(
        "triton_poi_fused_constant_pad_nd_moe_forward_0", ((32, 2880), "bf16"), ((32, 3072), "bf16"), 98304
    )
    assert padded.bytes_min == (32 * 2880 + 32 * 3072) * 2
    gathered = cost(
        "triton_poi_fused_embedding_0",
        ((32,), "int64"),
        ((201088, 2880), "bf16"),
        ((32, 2880), "bf16"),
        92160,
    )
    assert gathered.bytes_min == 32 * 8 + 2 * 92160 * 2
    cast = cost("triton_poi_fused__to_copy_1", ((131072, 64), "fp32"), ((131072, 64), "bf16"), 8388608)
    assert cast.bytes_min == 8388608 * 6
    reduction = cost("triton_red_fused_mean_0", ((64, 4096), "bf16"), ((64,), "fp32"), 64, 4096)
    assert reduction.bytes_min == 64 * 4096 * 2 + 64 * 4
    product = cost("triton_tem_fused_mm_0", ((64, 128), "bf16"), ((128, 256), "bf16"), ((64, 256), "bf16"))
    assert product.flops == 2 * 64 * 128 * 256


def test_layout_kernels_of_a_convolution(cost) -> None:
    """ViT patches: NCHW to NHWC of input then weight, the convolution, and back; each pays for what it converts."""
    from diagnose.costs.share import share

    kernels = (
        "nchwToNhwcKernel",
        "nchwToNhwcKernel",
        "cutlass_tensorop_bf16_s16816fprop_optimized",
        "nhwcToNchwKernel",
    )
    c = cost(
        "aten::cudnn_convolution", ((4, 3, 224, 224), "bf16"), ((768, 3, 16, 16), "bf16"), "[0, 0]", "[16, 16]", "[1, 1]", 1,
        "False", "False", "True", kernels=kernels,
    )  # fmt: skip
    assert c.flops == 2 * 4 * 14 * 14 * 768 * 3 * 16 * 16
    parts = share(c, kernels, (True,) * 4, (10.0, 10.0, 98.0, 2.0))
    data = [4 * 3 * 224 * 224 * 2, 768 * 3 * 256 * 2, 4 * 768 * 196 * 2]
    got = [p.bytes_min if p else None for p in parts]
    assert got == [2 * data[0], 2 * data[1], sum(data), 2 * data[2]]
    assert parts[2] is not None and parts[2].flops == c.flops
