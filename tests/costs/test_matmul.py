"""Dense products: arithmetic written out."""

import pytest

from diagnose.costs.matmul import gemm_cost, solve
from diagnose.costs.op import Tensor


def test_h100_qwen_gate_projection(cost) -> None:
    """(8944,1024)·(1024,2816) bf16: 2·8944·1024·2816 = 51.58 GFLOP; (8944·1024 + 1024·2816 + 8944·2816)·2 = 74.46 MB."""
    c = cost("aten::mm", ((8944, 1024), "bf16"), ((1024, 2816), "bf16", (1, 1024)))
    assert c.flops == 2 * 8944 * 1024 * 2816 == 51_581_550_592
    assert c.bytes_min == (8944 * 1024 + 1024 * 2816 + 8944 * 2816) * 2 == 74_457_088
    assert (c.dtype, c.m, c.n, c.k, c.batch) == ("bf16", 8944, 2816, 1024, 1)
    assert c.flops / 84.48e-6 == pytest.approx(610.7e12, rel=0.001)


def test_linear_and_addmm_agree_and_bias_is_read_once(cost) -> None:
    linear = cost("aten::linear", ((4, 141, 512), "bf16"), ((2048, 512), "bf16"), ((2048,), "bf16"))
    addmm = cost("aten::addmm", ((2048,), "bf16"), ((564, 512), "bf16"), ((512, 2048), "bf16"), 1, 1)
    assert linear.flops == addmm.flops == 2 * 564 * 512 * 2048
    assert linear.bytes_min == addmm.bytes_min == (564 * 512 + 512 * 2048 + 564 * 2048 + 2048) * 2
    without = cost("aten::addmm", ((2048,), "bf16"), ((564, 512), "bf16"), ((512, 2048), "bf16"), 0, 1)
    assert addmm.bytes_min - without.bytes_min == 2048 * 2


def test_batched_expanded_operand_is_read_once(cost) -> None:
    """16 batches whose second operand is expanded (stride 0): its 64·128 elements are read once, not 16 times."""
    expanded = cost("aten::bmm", ((16, 32, 64), "fp16"), ((16, 64, 128), "fp16", (0, 128, 1)))
    assert expanded.flops == 2 * 16 * 32 * 64 * 128
    assert expanded.bytes_min == (16 * 32 * 64 + 64 * 128 + 16 * 32 * 128) * 2
    assert expanded.batch == 16


def test_baddbmm_reads_its_addend_unless_beta_is_zero(cost) -> None:
    args = (((2, 3, 5), "fp32"), ((2, 3, 4), "fp32"), ((2, 4, 5), "fp32"))
    product = (2 * 3 * 4 + 2 * 4 * 5 + 2 * 3 * 5) * 4
    assert cost("aten::baddbmm", *args, 1, 1).bytes_min == product + 2 * 3 * 5 * 4
    assert cost("aten::baddbmm", *args, 0, 1).bytes_min == product


def test_matmul_broadcasts(cost) -> None:
    folded = cost("aten::matmul", ((2, 7, 11), "bf16"), ((11, 13), "bf16"))
    assert (folded.flops, folded.m) == (2 * 14 * 11 * 13, 14)
    batched = cost("aten::matmul", ((3, 1, 7, 11), "bf16"), ((5, 11, 13), "bf16"))
    assert batched.flops == 2 * 15 * 7 * 11 * 13
    vector = cost("aten::mv", ((64, 32), "fp32"), ((32,), "fp32"))
    assert (vector.flops, vector.bytes_min) == (2 * 64 * 32, (64 * 32 + 32 + 64) * 4)


def test_fp32_runs_in_tf32_only_when_a_kernel_says_so(cost) -> None:
    args = (((256, 128), "fp32"), ((128, 64), "fp32"))
    assert cost("aten::mm", *args).dtype == "fp32"
    assert cost("aten::mm", *args, kernels=("ampere_sgemm_128x64_nn",)).dtype == "fp32"
    assert cost("aten::mm", *args, kernels=("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n",)).dtype == "tf32"


def test_mismatched_arguments_have_no_cost(no_cost) -> None:
    assert no_cost("aten::mm", ((4, 5), "bf16"), ((6, 7), "bf16"))
    assert no_cost("aten::mm", ((4, 5), "bf16"))
    assert no_cost("aten::linear", ((4, 5), "bf16"), ((7, 6), "bf16"))
    assert no_cost("aten::mm")


def test_custom_gemm_operators_by_shape(cost) -> None:
    """wvSplitK takes weight (N,K) then activation (M,K); dsv3_fused_a_gemm takes the result first."""
    skinny = cost("_rocm_C::wvSplitK", ((4096, 1024), "bf16"), ((2, 1024), "bf16"), 304)
    assert skinny.flops == 2 * 4096 * 1024 * 2
    assert skinny.bytes_min == (4096 * 1024 + 2 * 1024 + 2 * 4096) * 2
    fused = cost(
        "_C::dsv3_fused_a_gemm", ((8, 2112), "bf16"), ((8, 7168), "bf16"), ((7168, 2112), "bf16", (1, 7168))
    )
    assert fused.flops == 2 * 8 * 7168 * 2112
    assert fused.bytes_min == (8 * 2112 + 8 * 7168 + 7168 * 2112) * 2


def test_solve_refuses_what_fits_no_product() -> None:
    assert solve([Tensor((4, 5), "bf16"), Tensor((6, 7), "bf16"), Tensor((4, 7), "bf16")]) is None


def test_llama2_7b_layer_on_a6000() -> None:
    """Roofline survey's table for LLaMA-2-7B, sequence 2048, batch 1, fp16: GOP, MB and intensity of each product.

    q, k, v, o: 2·2048·4096² = 68.72 G; (2048·4096·2 + 4096²)·2 = 67.11 MB; 1024 FLOP/B.
    gate, up, down: 2·2048·4096·11008 = 184.7 G; (2048·(4096 + 11008) + 4096·11008)·2 = 152.0 MB; 1215.
    qk and sv: 32 heads of 2048·128·2048: 34.36 G; (2·2048·128 + 2048²)·32·2 = 302.0 MB; 113.8.
    decode q: 2·4096² = 33.55 M; (4096·2 + 4096²)·2 = 33.57 MB; 1.00.
    """
    rows = [
        (gemm_cost(2048, 4096, 4096, "fp16"), 68.72e9, 67.11e6, 1024),
        (gemm_cost(2048, 11008, 4096, "fp16"), 184.7e9, 152.0e6, 1215),
        (gemm_cost(2048, 4096, 11008, "fp16"), 184.7e9, 152.0e6, 1215),
        (gemm_cost(2048, 2048, 128, "fp16", batch=32), 34.36e9, 302.0e6, 113.8),
        (gemm_cost(2048, 128, 2048, "fp16", batch=32), 34.36e9, 302.0e6, 113.8),
        (gemm_cost(1, 4096, 4096, "fp16"), 33.55e6, 33.57e6, 1.00),
    ]
    ridge = 154.84e12 / 768e9  # A6000: 201.6 FLOP/B
    for c, flops, data, intensity in rows:
        assert c.flops == pytest.approx(flops, rel=5e-4)
        assert c.bytes_min == pytest.approx(data, rel=5e-4)
        assert c.flops / c.bytes_min == pytest.approx(intensity, rel=1e-3)
    assert [c.flops / c.bytes_min > ridge for c, *_ in rows] == [True, True, True, False, False, False]
