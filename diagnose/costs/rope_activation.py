"""Rotary embedding and gated activations, as engines fuse them.

Rotary (q and k in place): 6 FLOP a rotated pair, bytes 2·T·(H_q + H_kv)·rot·e + T·rot·e (cosines and sines) +
8·T positions. Gated activation: reads gate and up, writes their product: 3·I·e a token, about 5 FLOP an
output.
"""

from diagnose.costs import dtypes
from diagnose.costs.common import streaming, text
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model


def rope_cost(
    tokens: int,
    heads: int,
    kv_heads: int,
    rotary_dim: int,
    dtype: str,
    *,
    position_bytes: int = 8,
    dtype_cache: str | None = None,
) -> OpCost:
    """Rotate q and k of `tokens` tokens in place."""
    e = dtypes.size(dtype)
    values = tokens * (heads + kv_heads) * rotary_dim
    table = tokens * rotary_dim * dtypes.size(dtype_cache or dtype)
    return OpCost(
        3.0 * values,
        2 * values * e + table + position_bytes * tokens,
        "fp32",
        f"{tokens} tokens h{heads}+{kv_heads} rot{rotary_dim}",
        "rope",
    )


@model(
    "_C::rotary_embedding",
    "sgl_kernel::rotary_embedding",
    "vllm::rotary_embedding",
    "_C::batched_rotary_embedding",
    "vllm::rocm_aiter_rotary_emb",
)
def rotary(call: OpCall) -> OpCost | None:
    """positions, query, key, head_size, cos_sin_cache (positions, rot_dim), is_neox: only the first rot_dim
    of each head turn."""
    positions, q, k, cache = call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(4)
    head = call.integer(3)
    if positions is None or q is None or cache is None or not head or not cache.dims:
        return None
    return _rotate(positions, q, k, cache, head)


def _rotate(positions: Tensor, q: Tensor, k: Tensor | None, cache: Tensor, head: int) -> OpCost | None:
    tokens = positions.numel
    width = q.numel // tokens if tokens else 0
    width_k = k.numel // tokens if k is not None and tokens else 0
    if width == 0 or width % head or width_k % head:
        return None
    rot = min(cache.dims[-1], head)
    return rope_cost(
        tokens,
        width // head,
        width_k // head,
        rot,
        q.dtype,
        dtype_cache=cache.dtype,
        position_bytes=int(dtypes.size(positions.dtype)),
    )


@model(
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
    "flashinfer::apply_rope_pos_ids_cos_sin_cache",
    "trtllm::flashinfer_apply_rope_with_cos_sin_cache_inplace",
)
def rotary_positions(call: OpCall) -> OpCost | None:
    """q (T, H, d), k (T, H_kv, d), q_rope, k_rope, cos_sin_cache, pos_ids: results may be the inputs
    themselves."""
    threes = [t for t in call.tensors if len(t.dims) == 3]
    caches = [t for t in call.tensors if len(t.dims) == 2 and t.dtype in dtypes.FLOATS]
    positions = [t for t in call.tensors if len(t.dims) == 1 and t.dtype in ("int64", "int32")]
    if len(threes) < 2 or not caches or not positions:
        return None
    return _rotate(positions[0], threes[0], threes[1], caches[-1], threes[0].dims[2])


@model("_C::fused_qk_norm_rope", "trtllm::fused_qk_norm_rope", "sgl_kernel::fused_qk_norm_rope")
def qk_norm_rope(call: OpCall) -> OpCost | None:
    """qkv (T, (H_q + 2 H_kv)·d) in place, num_heads_q, num_heads_k, num_heads_v, head_dim, ...: q and k are
    read and written."""
    qkv = call.tensor(0)
    heads, kv_heads, _, head = (call.integer(i) for i in range(1, 5))
    if qkv is None or not heads or not kv_heads or not head:
        return None
    tokens = qkv.dims[0]
    cost = rope_cost(tokens, heads, kv_heads, head, qkv.dtype)
    return OpCost(
        cost.flops + 4.0 * tokens * (heads + kv_heads) * head,
        cost.bytes_min,
        "fp32",
        cost.shape,
        "qk_norm_rope",
    )


def gated_activation_cost(tokens: int, intermediate: int, dtype: str, dtype_out: str | None = None) -> OpCost:
    """act(gate) · up: 2I read and I written a token."""
    e = dtypes.size(dtype)
    return OpCost(
        5.0 * tokens * intermediate,
        tokens * intermediate * (2 * e + dtypes.size(dtype_out or dtype)),
        "fp32",
        f"{tokens}x{intermediate}",
        "activation",
    )


_GATED = (
    "silu_and_mul",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "gelu_fast",
    "gelu_new",
    "gelu_quick",
    "mul_and_silu",
    "swigluoai_and_mul",
    "fatrelu_and_mul",
)


@model(
    *(f"{space}::{op}" for space in ("_C", "sgl_kernel", "flashinfer", "aiter", "sgl_hip") for op in _GATED),
    "_C::silu_and_mul_quant", "_C::silu_and_mul_nvfp4_quant", "aiter::scaled_silu_and_mul",
    "vllm::silu_and_mul",
)  # fmt: skip
def gated(call: OpCall) -> OpCost | None:
    """out (.., I), input (.., 2I) (and scales): each once."""
    wide = [t for t in call.tensors if len(t.dims) >= 2]
    if len(wide) < 2:
        return None
    out, x = wide[0], wide[1]
    if x.numel not in (out.numel, 2 * out.numel, 4 * out.numel):
        return None
    rest = [t for t in call.tensors if t is not out and t is not x]
    return streaming([x, *rest], [out], "activation", 5.0 * out.numel, dtype="fp32", shape=text(out.dims))
