"""Step arithmetic: published numbers, and sums written out."""

from dataclasses import replace

import pytest

from diagnose.roles.numbers import StepNumbers
from diagnose.roles.step_cost import step_cost
from diagnose.serving.model_load import load_model
from diagnose.serving.step_ops import FlatRoofs

CHUNK_AND_DECODES = StepNumbers(
    rows=2048 + 64, heads_out=65, decode_sequences=64, decode_tokens=64, context=64 * 4096.0, prefill_sequences=1, prefill_tokens=2048,
    prefill_context=2048.0, prefill_pairs=2048 * 2049 / 2,
)  # fmt: skip


def test_the_step_roof_is_a_sum() -> None:
    """Llama-3-8B on H100, a 2,048-token chunk beside 64 decodes at 4k: max of the sums 42.8 ms, sum of maxima 54.3 ms.

    On sustained rates of 720 TFLOP/s and 3.0 TB/s (73 % and 90 % of the datasheet's 989.4 and 3.35).
    """
    cost = step_cost(load_model("meta-llama/Meta-Llama-3-8B"), CHUNK_AND_DECODES)
    assert cost is not None
    roof = cost.roof(FlatRoofs(3.0e12, 720e12))
    assert roof is not None
    assert roof.bound_ms == pytest.approx(42.8, abs=0.05)
    assert roof.sum_ms == pytest.approx(54.3, abs=0.05)


def test_flops_and_bytes_of_that_step() -> None:
    cost = step_cost(load_model("meta-llama/Meta-Llama-3-8B"), CHUNK_AND_DECODES)
    assert cost is not None
    layer = 4096 * 6144 + 4096 * 4096 + 4096 * 28672 + 14336 * 4096
    head = 4096 * 128256
    attention = 4 * 32 * 128 * (64 * 4096 + 2048 * 2049 / 2)
    assert cost.flops == 2 * 2112 * 32 * layer + 32 * attention + 2 * 65 * head
    assert cost.weight_bytes == 2 * (32 * layer + head) + 2112 * 4096 * 2
    token = 2 * 32 * 8 * 128 * 2
    assert cost.kv_read_bytes == (64 * 4096 + 2048) * token
    assert cost.kv_write_bytes == 2112 * token


def test_decode_on_two_ranks_halves_what_is_split() -> None:
    model = load_model("Qwen/Qwen3-8B")
    step = StepNumbers(rows=32, heads_out=32, decode_sequences=32, decode_tokens=32, context=32785.0)
    one, two = step_cost(model, step), step_cost(model, step, tp=2)
    assert one is not None and two is not None
    embedding = 32 * 4096 * 2
    assert two.weight_bytes - embedding == (one.weight_bytes - embedding) / 2
    assert two.kv_read_bytes == one.kv_read_bytes / 2 == 32785 * 2 * 36 * 8 * 128 * 2 / 2


def test_experts_and_windows_of_gpt_oss() -> None:
    """32 tokens: 24 layers touch 32 (1 - 0.875^32) experts; half of the layers read at most 128 keys a sequence."""
    step = StepNumbers(rows=32, heads_out=32, decode_sequences=32, decode_tokens=32, context=55086.0)
    cost = step_cost(load_model("openai/gpt-oss-20b"), step)
    assert cost is not None
    touched = 32 * (1 - 0.875**32)
    expert = (5760 * 2880 + 2880 * 2880) * 4.25 / 8 + 2 * (5760 + 2880)
    dense = 2 * (2880 * 5120 + 5120 + 4096 * 2880 + 2880 + 2880 * 32 + 32)
    assert cost.weight_bytes == pytest.approx(
        24 * (touched * expert + dense) + 2 * 201088 * 2880 + 32 * 2880 * 2, rel=1e-9
    )
    assert cost.kv_read_bytes == 12 * (55086 + 32 * 128) * 2 * 8 * 64 * 2


def test_unknown_numbers_give_no_cost() -> None:
    model = load_model("Qwen/Qwen3-8B")
    step = StepNumbers(rows=32, heads_out=32, decode_sequences=32, decode_tokens=32)
    assert step_cost(model, step) is None
    assert step_cost(model, replace(step, context=100.0, rows=None)) is None
