"""Linear attention and state-space layers: constant state a sequence, chunked or step by step.

Recurrent step (decode): state H · d_k · d_v read and written, FLOPs 2 multiply-adds a state element for
update and read-out: 4 · H · d_k · d_v a token. Chunked prefill with chunk C: within chunks 2 · H · T · C ·
(d_k + d_v) (causal half of two products), between chunks 4 · H · T · d_k · d_v.
"""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import every_tensor
from diagnose.costs.op import OpCall, OpCost
from diagnose.costs.registry import model


def linear_attention_decode_cost(
    sequences: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    *,
    dtype: str = "bf16",
    dtype_state: str = "fp32",
) -> OpCost:
    """One token a sequence: the state is read and written; q, k, v read, o written."""
    state = sequences * heads * key_dim * value_dim
    vectors = sequences * heads * (2 * key_dim + 2 * value_dim)
    return OpCost(
        4.0 * state,
        2 * state * dtypes.size(dtype_state) + vectors * dtypes.size(dtype),
        "fp32",
        f"{sequences} seqs h{heads} {key_dim}x{value_dim}",
        "linear_attention",
    )


def linear_attention_prefill_cost(
    tokens: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    *,
    chunk: int = 64,
    dtype: str = "bf16",
    dtype_state: str = "fp32",
) -> OpCost:
    """Chunked form; the states between chunks are written and read once."""
    within = 2.0 * heads * tokens * chunk * (key_dim + value_dim) / 2
    between = 4.0 * heads * tokens * key_dim * value_dim
    vectors = tokens * heads * (2 * key_dim + 2 * value_dim) * dtypes.size(dtype)
    states = 2 * (tokens / chunk) * heads * key_dim * value_dim * dtypes.size(dtype_state)
    return OpCost(
        within + between,
        vectors + states,
        dtype,
        f"{tokens} tokens h{heads} {key_dim}x{value_dim}",
        "linear_attention",
    )


@model(
    "_C::causal_conv1d_fwd",
    "_C::causal_conv1d_update",
    "sgl_kernel::causal_conv1d_fwd",
    "sgl_kernel::causal_conv1d_update",
)
def causal_conv1d(call: OpCall) -> OpCost | None:
    """x (channels, tokens) in place, weight (channels, width), ...: 2 · width FLOP an element; the state pool
    is not traversed."""
    wide = [t for t in call.tensors if len(t.dims) >= 2 and t.dtype in dtypes.FLOATS]
    if len(wide) < 2:
        return None
    x, weight = wide[0], wide[1]
    return OpCost(
        2.0 * weight.dims[-1] * x.numel,
        2 * x.bytes + weight.bytes,
        "fp32",
        f"{x.numel} x{weight.dims[-1]}",
        "causal_conv",
    )


@model("_C::selective_scan_fwd", "sgl_kernel::lightning_attention_decode")
def selective_scan(call: OpCall) -> OpCost | None:
    """selective_scan: u (d, tokens), delta, A (d, state), B, C, ...: 9 FLOP a state element and token
    (discretise, update, read out)."""
    if "lightning" in call.name:
        q, v = call.tensor(0), call.tensor(2)
        if q is None or v is None or len(q.dims) < 3:
            return None
        return linear_attention_decode_cost(q.dims[0], q.dims[1], q.dims[-1], v.dims[-1], dtype=q.dtype)
    u, a = call.tensor(0), call.tensor(2)
    if u is None or a is None or len(a.dims) < 2:
        return None
    cost = every_tensor(call, "selective_scan")
    if cost is None:
        return None
    return OpCost(
        9.0 * u.numel * prod(a.dims[1:]), cost.bytes_min + u.bytes, "fp32", cost.shape, "selective_scan"
    )
