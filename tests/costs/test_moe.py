"""Mixture of experts: expected experts, FLOPs by routed tokens, parts by kernel."""

from random import Random

import pytest

from diagnose.costs.moe import expert_gemm_cost, experts_touched, moe_cost
from diagnose.costs.share import share


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "expected"),
    [
        (1, 8, 2, 2.0),
        (4, 8, 2, 5.5),
        (16, 8, 2, 7.9),
        (1, 256, 8, 8.0),
        (32, 256, 8, 163.0),
        (128, 256, 8, 252.0),
    ],
)
def test_expected_experts(tokens: int, experts: int, k: int, expected: float) -> None:
    """Mixtral (2 of 8) and DeepSeek (8 of 256), rounded as published."""
    assert experts_touched(tokens, experts, k) == pytest.approx(expected, abs=0.5 if expected > 10 else 0.05)


def test_expected_experts_by_drawing() -> None:
    random = Random(7)
    draws = [len({e for _ in range(32) for e in random.sample(range(32), 4)}) for _ in range(2000)]
    assert experts_touched(32, 32, 4) == pytest.approx(sum(draws) / len(draws), abs=0.05)


def test_layer_of_mixtral() -> None:
    """64 tokens, 2 of 8, D 4096, I 14336, bf16: 6·64·2·4096·14336 FLOP; all 8 experts: 8·3·4096·14336·2 B of weights."""
    c = moe_cost(64, 8, 2, 4096, 14336)
    assert c.flops == 6 * 64 * 2 * 4096 * 14336
    touched = experts_touched(64, 8, 2)
    weights = touched * 3 * 4096 * 14336 * 2
    activations = 128 * (4096 + 2 * 14336) * 2 + 128 * (14336 + 4096) * 2
    assert c.bytes_min == pytest.approx(weights + activations, rel=1e-12)
    assert c.low < c.bytes_min < c.high


def test_packed_weights_and_fused_activation() -> None:
    """gpt-oss-20b gate and up: 32 tokens, 4 of 32, K 2880, N 5760, MXFP4 4.25 bits: the output is halved by SwiGLU."""
    c = expert_gemm_cost(32, 32, 4, 2880, 5760, weight="mxfp4", out_columns=2880, gathered=True)
    assert c.flops == 2 * 128 * 2880 * 5760
    one = 2880 * 5760 * 4.25 / 8
    assert c.bytes_min == pytest.approx(
        experts_touched(32, 32, 4) * one + 32 * 2880 * 2 + 128 * 2880 * 2, rel=1e-12
    )
    assert c.dtype == "bf16"


def test_fused_experts_operator(cost) -> None:
    kernels = (
        "void vllm::moe::moe_align_block_size_kernel<int>(...)", "fused_moe_kernel", "void vllm::act_and_mul_kernel<c10::BFloat16>",
        "fused_moe_kernel", "void vllm::moe::moe_sum_kernel<c10::BFloat16, 2>",
    )  # fmt: skip
    args = (
        ((64, 4096), "bf16"), ((8, 28672, 4096), "bf16"), ((8, 4096, 14336), "bf16"), ((64, 2), "fp32"), ((64, 2), "int32"),
        "silu",
    )  # fmt: skip
    c = cost("vllm::outplace_fused_experts", *args, kernels=kernels)
    assert c.flops == 6 * 64 * 2 * 4096 * 14336
    parts = share(c, kernels, (True,) * 5, (1.0, 10.0, 2.0, 5.0, 1.0))
    roles = [p.role if p else None for p in parts]
    assert roles == ["moe_sort", "moe_gate_up", "moe_activation", "moe_down", "moe_sum"]
    assert parts[1] is not None and parts[3] is not None
    assert parts[1].flops == 2 * 128 * 4096 * 28672
    assert parts[3].flops == 2 * 128 * 14336 * 4096


def test_router_and_sorting_count_their_tensors(cost) -> None:
    c = cost(
        "_moe_C::topk_softmax", ((64, 2), "fp32"), ((64, 2), "int32"), ((64, 2), "int32"), ((64, 8), "fp32")
    )
    assert c.bytes_min == 64 * 2 * 4 * 3 + 64 * 8 * 4


def test_experts_hidden_behind_a_layer_name_have_no_cost(no_cost) -> None:
    assert no_cost("vllm::moe_forward", ((888, 3072), "bf16"), ((888, 128), "bf16"), None)
