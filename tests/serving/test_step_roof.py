"""Step roofs as sums of per-operation maxima, decode ceilings and their conditions."""

import pytest

from diagnose.devices.catalog import by_key
from diagnose.devices.roofs import Roofs
from diagnose.serving.ceiling import decode_ceiling
from diagnose.serving.model_config import load_model
from diagnose.serving.step_ops import FlatRoofs, Op, causal_pairs, step_ops, step_roof

# H100 SXM: 0.9 of 3,352 GB/s and 0.8 of 989.4 TFLOP/s sustained
H100 = FlatRoofs(0.9 * 3352e9, 0.8 * 989.4e12)


def test_sum_of_maxima_is_not_the_maximum_of_sums():
    """Llama-3-8B, a chunk of 2,048 tokens beside 64 decodes at 4k: 54.3 ms, where the maximum of the sums
    says 42.8."""
    params, tokens = 8.03e9, 2048 + 64
    linear = Op("linear", "weights", 2 * params * tokens, 2 * params, "bf16")
    cache = Op("attention", "kv", 0.0, 64 * 4096 * 131_072, "bf16")
    roof = step_roof([linear, cache], H100)
    assert roof.bound_ms == pytest.approx(42.8, rel=2e-3)
    assert roof.sum_ms == pytest.approx(54.3, rel=2e-3)


def test_operations_of_a_mixed_step_by_hand():
    m = load_model("llama-3-8b")
    ops = {o.name: o for o in step_ops(m, decode_contexts=[4096] * 64, prefill_chunks=[(2048, 2048)])}
    tokens = 2112
    up = ops["gate_up"]
    assert (up.count, up.m, up.n, up.k) == (32, tokens, 28672, 4096)
    assert up.flops == 2 * tokens * 28672 * 4096
    assert up.bytes == 2 * (28672 * 4096 + tokens * (28672 + 4096))
    decode = ops["attention_decode"]
    assert decode.bytes * decode.count == 64 * 4096 * 131_072
    assert decode.flops == 2 * 32 * 256 * 64 * 4096  # q·k and p·v of 32 heads of 128
    prefill = ops["attention_prefill"]
    assert prefill.flops == 2 * 32 * 256 * 2048 * 2049 / 2  # causal
    head = ops["head"]
    assert (head.m, head.n) == (65, 128_256)  # one row a decode and one for the prompt
    # all projections together: 2 FLOPs a weight and token, the head for 65 rows only
    layers = m.params - 2 * 128_256 * 4096 - 65 * 4096
    flops = sum(o.flops * o.count for o in ops.values() if o.kind == "weights")
    assert flops == pytest.approx(2 * layers * tokens + 2 * 128_256 * 4096 * 65)


def test_causal_pairs_by_counting():
    for new, length, window in ((5, 5, None), (4, 10, None), (6, 9, 4), (3, 20, 8), (5, 6, 100)):
        want = sum(min(p, window or p) for p in range(length - new + 1, length + 1))
        assert causal_pairs(new, length, window) == want


def test_windowed_layers_read_their_window():
    m = load_model("gpt-oss-20b")
    ops = [o for o in step_ops(m, decode_contexts=[4096] * 32) if o.name == "attention_decode"]
    layer = 2 * 8 * 64 * 2
    assert sorted((o.count, o.bytes) for o in ops) == [(12, 32 * 128 * layer), (12, 32 * 4096 * layer)]


def test_experts_touched():
    m = load_model("gpt-oss-20b")
    op = next(o for o in step_ops(m, decode_contexts=[100] * 32) if o.name == "experts_gate_up")
    touched = 32 * (1 - (28 / 32) ** 32)
    one = 5760 * 2880 * 4.25 / 8
    rows = 32 * 4
    assert op.bytes == pytest.approx(touched * one + rows * (5760 + 2880) * 2)
    assert op.flops == 2 * rows * 5760 * 2880


def test_tensor_parallel_step_is_a_share():
    m = load_model("llama-3.1-70b")
    whole = sum(o.bytes * o.count for o in step_ops(m, decode_contexts=[2048] * 8) if o.kind == "kv")
    part = sum(o.bytes * o.count for o in step_ops(m, decode_contexts=[2048] * 8, tp=8) if o.kind == "kv")
    assert part == whole / 8


def test_decode_ceiling():
    """Llama-2-7B bf16 at batch 1 on A100 at 1,700 GB/s: 13.2 GB of weights, 128 tokens/s; 104.9 were
    measured."""
    m = load_model("llama-2-7b")
    got = decode_ceiling(m, 1, 100, lambda b: 1700e9)
    weights = 2 * (m.params - m.params_embedding) + 4096 * 2
    assert got["weight_bytes"] == weights
    assert got["tok_s"] == pytest.approx(1700e9 / (weights + 100 * 524_288))
    assert 104.9 < got["tok_s"] < 135


def test_ceiling_under_speculation():
    m = load_model("llama-2-7b")
    plain = decode_ceiling(m, 1, 100, lambda b: 1700e9)
    spec = decode_ceiling(m, 1, 100, lambda b: 1700e9, accepted=2.5, verified=4)
    assert spec["tok_s"] == pytest.approx(2.5 * plain["tok_s"], rel=1e-4)


@pytest.mark.parametrize(
    ("kw", "condition"),
    [
        ({"context": None}, "context known"),
        ({"context": 100, "batch": 400, "knee": 150}, "below the knee"),
        ({"context": 100, "tp": 4}, "collectives known"),
        ({"context": 100, "bandwidth": lambda b: None}, "bandwidth known"),
    ],
)
def test_ceiling_is_withheld(kw, condition):
    m = load_model("llama-2-7b")
    args = {"batch": 1, "bandwidth": lambda b: 1700e9, **kw}
    got = decode_ceiling(m, args.pop("batch"), args.pop("context"), args.pop("bandwidth"), **args)
    assert got["tok_s"] is None
    assert [c["condition"] for c in got["conditions"] if c["holds"] is False] == [condition]


def test_roof_is_none_where_unknown():
    class Dark:
        def memory_ns(self, nbytes, *, gemm=False):
            return None

        def compute_ns(self, flops, dtype, *, m=None, n=None, k=None, batch=1):
            return 1.0

    assert step_roof([Op("x", "kv", 1.0, 1.0, "bf16")], Dark()) is None


def test_works_with_the_device_roofs():
    m = load_model("llama-3-8b")
    roof = step_roof(step_ops(m, decode_contexts=[4096] * 30), Roofs(by_key("h100-sxm")))
    # 15 GB of weights and 16.1 GB of KV: 9.3 ms at the peak of 3,350 GB/s, more at what kernels sustain
    assert 9.3 < roof.sum_ms < 14
