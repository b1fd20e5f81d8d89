"""Linear attention and state-space formulas."""

from diagnose.costs.ssm import linear_attention_decode_cost, linear_attention_prefill_cost


def test_decode_moves_the_state() -> None:
    """4 sequences, 16 heads, 128 × 128 fp32 state: read and written once, 4 FLOP an element."""
    c = linear_attention_decode_cost(4, 16, 128, 128)
    state = 4 * 16 * 128 * 128
    assert c.flops == 4 * state
    assert c.bytes_min == 2 * state * 4 + 4 * 16 * (4 * 128) * 2


def test_chunked_prefill_grows_linearly() -> None:
    one, two = (linear_attention_prefill_cost(t, 16, 128, 128) for t in (4096, 8192))
    assert two.flops == 2 * one.flops
    assert one.flops == 16 * 4096 * 64 * 256 + 4 * 16 * 4096 * 128 * 128


def test_causal_convolution(cost) -> None:
    c = cost("_C::causal_conv1d_update", ((32, 2048), "bf16"), ((2048, 4), "bf16"))
    assert c.flops == 2 * 4 * 32 * 2048
    assert c.bytes_min == 2 * 32 * 2048 * 2 + 2048 * 4 * 2
