"""Attention over whole sequences and over paged caches: arithmetic written out, pairs checked by brute force."""

import pytest

from diagnose.costs.attention import attention_cost, causal_pairs, varlen_pairs, window_pairs
from diagnose.costs.mla import mla_decode_cost, mla_prefill_cost
from diagnose.costs.paged_attention import decode_attention_cost, step_attention


def brute(queries: int, keys: int, window: int | None = None, bottom_right: bool = True) -> int:
    total = 0
    for i in range(queries):
        seen = max(0, keys - queries + i + 1) if bottom_right else min(i + 1, keys)
        total += seen if window is None else min(window, seen)
    return total


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (3, 10), (10, 3), (128, 1000), (5, 5)])
def test_pairs(queries: int, keys: int) -> None:
    assert causal_pairs(queries, keys) == brute(queries, keys)
    assert causal_pairs(queries, keys, bottom_right=False) == brute(queries, keys, bottom_right=False)


@pytest.mark.parametrize("window", [1, 4, 5, 64, 10_000])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (3, 10), (64, 64), (128, 1000), (1, 300)])
def test_window_pairs(queries: int, keys: int, window: int) -> None:
    assert window_pairs(queries, keys, window) == brute(queries, keys, window)


def test_h100_qwen_flash_attention(cost) -> None:
    """16 × 16 heads × 559 × 64, causal: 4·256·64·(559·560/2) = 10.258 GFLOP (the half square is 10.239);
    Q, K, V, O: 4·16·16·559·64·2 B and a log-sum-exp of 4·256·559 B."""
    q = ((16, 16, 559, 64), "bf16", (572416, 35776, 64, 1))
    c = cost("aten::_scaled_dot_product_flash_attention", q, q, q, "0.", "True", "False", "0.125")
    assert c.flops == 4 * 256 * 64 * 559 * 560 / 2
    assert c.flops == pytest.approx(10.24e9, rel=0.002)
    assert c.bytes_min == 4 * 16 * 16 * 559 * 64 * 2 + 4 * 256 * 559
    assert (c.attention_length, c.head_dim) == (559, 64)
    inner = ((16, 559, 16, 64), "bf16", (572416, 64, 35776, 1))
    rest = (None, None, 559, 559, "0.", "True", "False", "0.125", None, None, None, None)
    assert cost("aten::_flash_attention_forward", inner, inner, inner, *rest).flops == c.flops


def test_grouped_queries_read_fewer_keys(cost) -> None:
    """32 query heads on 8 KV heads: same FLOPs as 32 on 32, a quarter of the K and V bytes."""
    q, kv = ((1, 32, 512, 128), "bf16"), ((1, 8, 512, 128), "bf16")
    grouped = cost("aten::_scaled_dot_product_flash_attention", q, kv, kv, 0.0, "False", "False", None)
    full = cost("aten::_scaled_dot_product_flash_attention", q, q, q, 0.0, "False", "False", None)
    assert grouped.flops == full.flops == 4 * 32 * 512 * 512 * 128
    assert full.bytes_min - grouped.bytes_min == 2 * 24 * 512 * 128 * 2


def test_mask_is_read_at_its_own_size(cost) -> None:
    q = ((2, 8, 64, 32), "fp16")
    mask = ((2, 8, 64, 64), "fp16", (4096, 0, 64, 1))  # expanded over heads
    args = ("True", 0.0, "False")
    bare = cost("aten::_scaled_dot_product_efficient_attention", q, q, q, None, *args)
    masked = cost("aten::_scaled_dot_product_efficient_attention", q, q, q, mask, *args)
    assert masked.bytes_min - bare.bytes_min == 2 * 64 * 64 * 2


def test_packed_sequences_are_exact_when_they_must_be_equal(cost, no_cost) -> None:
    """15 sequences, 15,360 tokens, none above 1,024: each is 1,024. 4·32·128·15·1024·1025/2 FLOP."""
    q, kv = ((15360, 32, 128), "bf16"), ((15360, 8, 128), "bf16")
    offsets = ((16,), "int32")
    tail = (0.0, "True", "False")
    c = cost("aten::_flash_attention_forward", q, kv, kv, offsets, offsets, 1024, 1024, *tail)
    assert c.flops == 4 * 32 * 128 * 15 * 1024 * 1025 / 2
    assert c.bytes_min == 2 * 15360 * 128 * (32 + 8 + 8 + 32)
    # one long sequence among short ones: lengths are unknown, no cost
    assert no_cost("aten::_flash_attention_forward", q, kv, kv, offsets, offsets, 8192, 8192, *tail)


def test_varlen_bounds() -> None:
    assert varlen_pairs(15 * 1024, 15, 1024, True) == 15 * 1024 * 1025 / 2
    assert varlen_pairs(15 * 1024, 15, 1024, False) == 15 * 1024 * 1024
    assert varlen_pairs(10, 2, 4, True) is None  # more tokens than fit
    near = varlen_pairs(1900, 2, 1000, False)  # true value between 2·950² and 1000² + 900²
    assert near is not None and 2 * 950**2 <= near <= 1900 * 1000
    assert varlen_pairs(1100, 2, 1000, False) is None


def test_decode_by_context() -> None:
    """32 sequences × 4,096 tokens, 32 q / 8 kv heads, d 128, bf16: 4·32·128·131,072 FLOP; KV 2·8·128·2·131,072 B = 537 MB."""
    c = decode_attention_cost(32 * 4096, 32, 32, 8, 128)
    assert c.flops == 4 * 32 * 128 * 131_072
    kv = 2 * 8 * 128 * 2 * 131_072
    assert kv == 536_870_912
    assert c.bytes_min == kv + 2 * 32 * 32 * 128 * 2 + 4 * 131_072 / 16 + 4 * 32
    assert c.flops / c.bytes_min == pytest.approx(4, rel=0.01)  # group size of 4 at 2 bytes
    fp8 = decode_attention_cost(32 * 4096, 32, 32, 8, 128, dtype_kv="fp8")
    assert c.bytes_min - fp8.bytes_min == kv / 2
    window = decode_attention_cost(32 * 4096, 32, 32, 8, 128, window=128)
    assert window.flops == 4 * 32 * 128 * 32 * 128


def test_shared_prefix_is_read_once() -> None:
    plain = decode_attention_cost(8 * 1000, 8, 32, 8, 128)
    cascade = decode_attention_cost(8 * 1000, 8, 32, 8, 128, shared_tokens=7 * 600)
    assert plain.flops == cascade.flops
    assert plain.bytes_min - cascade.bytes_min == 7 * 600 * 2 * 8 * 128 * 2


def test_step_attention_needs_fitting_tokens(step) -> None:
    decode = step(phase="decode", sequences=32, decode_tokens=32, context_tokens=32_785)
    c = step_attention(decode, 32, 32, 8, 128, 128, "bf16", "bf16")
    assert c is not None
    assert c.flops == 4 * 32 * 128 * 32_785
    assert c.bytes_min == 2 * 8 * 128 * 2 * 32_785 + 2 * 32 * 32 * 128 * 2
    prefill = step(phase="prefill", sequences=1, prefill_tokens=888, prefill_pairs=888 * 889 / 2)
    p = step_attention(prefill, 888, 8, 1, 64, 64, "fp8", "fp8")
    assert p is not None and p.flops == 4 * 8 * 64 * 888 * 889 / 2
    assert step_attention(prefill, 512, 8, 1, 64, 64, "fp8", "fp8") is None
    assert step_attention(None, 32, 32, 8, 128, 128, "bf16", "bf16") is None
    unknown = step(phase="decode", sequences=32, decode_tokens=32)
    assert step_attention(unknown, 32, 32, 8, 128, 128, "bf16", "bf16") is None


def test_vllm_unified_attention(cost, no_cost, step) -> None:
    q, kv = ((888, 8, 64), "fp8"), ((888, 1, 64), "bf16")
    prefill = step(sequences=1, prefill_tokens=888, decode_tokens=0, prefill_pairs=888 * 889 / 2)
    name = "vllm::unified_attention_with_output"
    full = ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",)
    c = cost(name, q, kv, kv, ((888, 8, 64), "bf16"), step=prefill, kernels=full)
    assert c.flops == 4 * 8 * 64 * 888 * 889 / 2
    sliding = (full[0].replace("Causal", "SlidingOrChunkedCausal"),)
    # a window of unknown size: charging the whole context would be wrong
    assert no_cost(name, q, kv, kv, ((888, 8, 64), "bf16"), step=prefill, kernels=sliding)
    assert no_cost(name, q, kv, kv, ((888, 8, 64), "bf16"), kernels=full)


def test_aiter_batch_prefill(cost) -> None:
    """SGLang on MI300X: 15 × 1,024 tokens from a pool of 835,874; the pool is not read, the 15,360 tokens are."""
    args = (
        ((15360, 32, 128), "bf16"), ((835874, 8, 128), "bf16"), ((835874, 8, 128), "bf16"), ((16,), "int32"),
        ((16,), "int32"), ((15616,), "int32"), 1024, 1024, "0.", "0.088", "0.", "False", "True", -1, -1, 0,
    )  # fmt: skip
    c = cost("aiter::mha_batch_prefill", *args)
    assert c.flops == 4 * 32 * 128 * 15 * 1024 * 1025 / 2
    assert c.bytes_min == 2 * 15360 * 128 * (32 + 8 + 8 + 32) + 4 * 15360 + 8 * 16


def test_mla_decode() -> None:
    """DeepSeek, 128 heads, c 512, r 64: 2·128·1088 FLOP and 576·2 B a context token: 242 FLOP/B."""
    c = mla_decode_cost(100_000, 25, 128)
    assert c.flops == 2 * 128 * 1088 * 100_000
    assert c.bytes_min == 1152 * 100_000 + 25 * 128 * 1088 * 2
    assert pytest.approx(241.8, abs=0.1) == 2 * 128 * 1088 / 1152
    stored = mla_decode_cost(100_000, 25, 128, bytes_per_token=656)
    assert c.bytes_min - stored.bytes_min == (1152 - 656) * 100_000


def test_mla_prefill() -> None:
    c = mla_prefill_cost(1000, 50, 50, 16)
    assert c.flops == 2 * 16 * 1000 * (192 + 128)


def test_mla_operators_in_a_decode_step(cost, no_cost, step) -> None:
    decode = step(sequences=4, decode_tokens=4, context_tokens=4000, prefill_tokens=0)
    args = (((4, 1, 128, 576), "bf16"), ((100, 64, 1, 576), "bf16"), 512)
    c = cost("_flashmla_C::fwd_kvcache_mla", *args, step=decode)
    assert c.flops == 2 * 128 * 4000 * 1088
    assert no_cost("_flashmla_C::fwd_kvcache_mla", *args)
    out, nope, rope, cache = (
        ((4, 128, 512), "bf16"),
        ((4, 128, 512), "bf16"),
        ((4, 128, 64), "bf16"),
        ((100, 64, 576), "bf16"),
    )
    assert cost("sgl_kernel::cutlass_mla_decode", out, nope, rope, cache, step=decode).flops == c.flops


def test_plain_numbers_equal_shapes(cost) -> None:
    q = ((2, 4, 64, 32), "bf16")
    shaped = cost("aten::_scaled_dot_product_fused_attention_overrideable", q, q, q, None, 0.0, "False")
    plain = attention_cost(2 * 64 * 64, 2 * 64, 2 * 64, 4, 4, 32, lse=True)
    assert (shaped.flops, shaped.bytes_min) == (plain.flops, plain.bytes_min)


def test_window_of_flash_attention_arguments(cost, no_cost, step) -> None:
    """causal, window left, window right follow one another in flash attention's arguments; -1 is no window."""
    decode = step(sequences=4, decode_tokens=4, prefill_tokens=0, context_tokens=4000)
    q, cache = ((4, 32, 128), "bf16"), ((900, 16, 8, 128), "bf16")
    head = (q, cache, cache, ((4, 32, 128), "bf16"), ((5,), "int32"), ((5,), "int32"), None, None)
    name = "_vllm_fa2_C::varlen_fwd"
    table = ((4, 64), "int32")
    full = cost(name, *head, table, None, 1, 1000, 0.0, 0.088, "False", "True", -1, -1, 0.0, step=decode)
    assert full.flops == 4 * 32 * 128 * 4000
    window = cost(name, *head, table, None, 1, 1000, 0.0, 0.088, "False", "True", 127, 0, 0.0, step=decode)
    assert window.flops == 4 * 32 * 128 * 4 * 128
    prefill = step(sequences=1, prefill_tokens=300, decode_tokens=0, prefill_pairs=300 * 301 / 2)
    q300 = ((300, 32, 128), "bf16")
    tail = (table, None, 1, 300, 0.0, 0.088, "False", "True", 127, 0, 0.0)
    one = cost(name, q300, *head[1:], *tail, step=prefill)
    assert one.flops == 4 * 32 * 128 * brute(300, 300, 128)
    several = step(sequences=3, prefill_tokens=300, decode_tokens=0, prefill_pairs=20_000)
    assert no_cost(name, q300, *head[1:], *tail, step=several)


def test_triton_attention_may_hide_a_window(no_cost, step) -> None:
    decode = step(sequences=4, decode_tokens=4, prefill_tokens=0, context_tokens=4000)
    q, kv = ((4, 32, 128), "bf16"), ((4, 8, 128), "bf16")
    name = "vllm::unified_attention_with_output"
    assert no_cost(
        name, q, kv, kv, q, step=decode, kernels=("kernel_unified_attention_3d", "reduce_segments")
    )
