"""Scaled dot-product attention over whole sequences: SDPA and flash, efficient, cuDNN attention.

FLOPs = 2 · heads · pairs · (d + d_v), where pairs are the query-key pairs computed: L_q · L_k, causal the
lower triangle (L · (L + 1) / 2 for L_q = L_k = L), windowed Σ min(W, keys seen). The exponentials are not
counted. Bytes: Q, K, V and the mask read once, O written once (and 4 bytes of log-sum-exp a query and head,
where kept). torch's flop counter does not halve causal attention; multiply-adds skipped by the kernel are not
counted here.
"""

from dataclasses import replace
from math import sqrt

from diagnose.costs import dtypes
from diagnose.costs.families import ATTENTION, math_dtype
from diagnose.costs.op import OpCall, OpCost, Part, Tensor
from diagnose.costs.registry import model

FAMILIES = ATTENTION | {"other"}


def causal_pairs(queries: int, keys: int, *, bottom_right: bool = True) -> float:
    """Query-key pairs of one sequence under a causal mask.

    bottom_right: the last query sees every key (cached or chunked prefill); otherwise query i sees keys 0..i
    (torch's `is_causal` when lengths differ).
    """
    if bottom_right:
        if queries > keys:  # the first queries see nothing
            return keys * (keys + 1) / 2
        return queries * keys - queries * (queries - 1) / 2
    full = max(0, queries - keys)
    ramp = min(queries, keys)
    return ramp * (ramp + 1) / 2 + full * keys


def window_pairs(queries: int, keys: int, window: int) -> float:
    """Causal pairs when a query sees only its last `window` keys, itself included: Σ min(window, keys
    seen)."""
    first = keys - queries + 1
    if first >= window:
        return float(queries * window)
    ramp_end = min(keys, window)  # keys seen by the last query still on the ramp
    ramp = ramp_end - max(first, 1) + 1
    ramp_pairs = (max(first, 1) + ramp_end) * ramp / 2
    return ramp_pairs + max(0, keys - ramp_end) * window


def attention_cost(
    pairs: float,
    queries: float,
    keys: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    *,
    dtype: str = "bf16",
    dtype_kv: str | None = None,
    dtype_out: str | None = None,
    math: str | None = None,
    extra_bytes: float = 0.0,
    lse: bool = False,
    shape: str = "",
    role: str = "attention",
    length: float | None = None,
) -> OpCost:
    """Attention from plain sums over a batch: `pairs` query-key pairs, `queries` query rows, `keys` key rows.

    `length` is the sequences' (mean) key length when whole sequences are attended to (prefill), else None.
    """
    dv = head_dim if value_dim is None else value_dim
    kv, out = dtypes.size(dtype_kv or dtype), dtypes.size(dtype_out or dtype)
    data = (
        heads * queries * head_dim * dtypes.size(dtype)
        + kv_heads * keys * (head_dim + dv) * kv
        + heads * queries * dv * out
        + (4.0 * heads * queries if lse else 0.0)
    )
    partials = heads * queries * (dv * 4 + 4)
    return OpCost(
        flops=2.0 * heads * pairs * (head_dim + dv),
        bytes_min=data + extra_bytes,
        dtype=math or dtype,
        shape=shape or f"q{queries:g} k{keys:g} h{heads}/{kv_heads} d{head_dim}",
        role=role,
        families=FAMILIES,
        attention_length=length,
        head_dim=head_dim,
        parts=(
            Part(
                r"combine|Combine|MergeStates|merge_attn|reduce_segments|_reduce_kernel|fmhaReduction",
                "attention_merge",
                2 * partials + heads * queries * dv * out,  # at least two splits read, one result written
                3 * heads * queries * dv,
                32 * partials,
                dtype="fp32",
            ),
        ),
    )


def _math(call: OpCall, dtype: str) -> str:
    named = {d for k in call.kernels if (d := math_dtype(k)) is not None}
    if dtype == "fp32":
        return "tf32" if "tf32" in named else "fp32"
    return dtype


def dense_attention(
    call: OpCall,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    *,
    causal: bool,
    heads_first: bool,
    bias: Tensor | None = None,
    bottom_right: bool = False,
    window: int | None = None,
    lse: bool = True,
) -> OpCost | None:
    """Four-dimensional attention: (batch, heads, length, d) when `heads_first`, else (batch, length, heads,
    d)."""
    if q is None or k is None or v is None or not len(q.dims) == len(k.dims) == len(v.dims):
        return None
    if len(q.dims) == 3:  # one batch dimension merged with heads
        batch, heads, kv_heads = q.dims[0], 1, 1
        queries, keys, d, dv = q.dims[1], k.dims[1], q.dims[2], v.dims[2]
        kv_batch = k.dims[0]
    elif len(q.dims) == 4:
        axis, length = (1, 2) if heads_first else (2, 1)
        batch, kv_batch, heads, kv_heads = q.dims[0], k.dims[0], q.dims[axis], k.dims[axis]
        queries, keys, d, dv = q.dims[length], k.dims[length], q.dims[3], v.dims[3]
    else:
        return None
    if q.dims[-1] != k.dims[-1] or kv_heads == 0 or heads % kv_heads or kv_batch not in (1, batch):
        return None
    if window is not None:
        pairs = window_pairs(queries, keys, window)
    elif causal:
        pairs = causal_pairs(queries, keys, bottom_right=bottom_right)
    else:
        pairs = float(queries * keys)
    out = batch * heads * queries * dv * dtypes.size(q.dtype)
    data = q.bytes + k.bytes + v.bytes + out + (4.0 * batch * heads * queries if lse else 0.0)
    cost = attention_cost(
        batch * pairs,
        batch * queries,
        batch * keys,
        heads,
        kv_heads,
        d,
        dv,
        dtype=q.dtype,
        math=_math(call, q.dtype),
    )
    mask = "causal" if causal else "full"
    groups = f" kv{kv_heads}" if kv_heads != heads else ""
    return replace(
        cost,
        bytes_min=data + (bias.bytes if bias is not None else 0.0),
        shape=f"{batch}x{heads}x{queries}x{d} k{keys}{groups} {mask}",
        attention_length=float(keys),
    )


@model("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_for_cpu")
def sdpa_flash(call: OpCall) -> OpCost | None:
    """query, key, value (batch, heads, length, d), dropout_p, is_causal, ... (the CPU form may carry a mask
    by name)."""
    q, k, v = (call.tensor(i) for i in range(3))
    return dense_attention(
        call, q, k, v, causal=call.flag(4), heads_first=True, bottom_right="_for_cpu" not in call.name
    )


@model("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")
def sdpa_efficient(call: OpCall) -> OpCost | None:
    """query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal."""
    q, k, v = (call.tensor(i) for i in range(3))
    return dense_attention(
        call, q, k, v, causal=call.flag(6), heads_first=True, bias=call.tensor(3), lse=call.flag(4)
    )


@model("aten::_scaled_dot_product_fused_attention_overrideable")
def sdpa_overrideable(call: OpCall) -> OpCost | None:
    """query, key, value, attn_bias, dropout_p, is_causal."""
    q, k, v = (call.tensor(i) for i in range(3))
    return dense_attention(call, q, k, v, causal=call.flag(5), heads_first=True, bias=call.tensor(3))


@model("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math")
def sdpa(call: OpCall) -> OpCost | None:
    """query, key, value, attn_mask, dropout_p, is_causal. Used where no child operator carries the work
    (CPU)."""
    q, k, v = (call.tensor(i) for i in range(3))
    return dense_attention(
        call, q, k, v, causal=call.flag(5), heads_first=True, bias=call.tensor(3), lse=False
    )


@model("aten::_flash_attention_forward", by_step=True)
def flash_forward(call: OpCall) -> OpCost | None:
    """query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, ...; varlen when cum_seq_q
    is there.

    Dense: (batch, length, heads, d). Varlen: (tokens, heads, d) with sequence offsets, of which only the
    count and the longest length are recorded.
    """
    q, k, v = (call.tensor(i) for i in range(3))
    if call.tensor(3) is None:
        return dense_attention(call, q, k, v, causal=call.flag(8), heads_first=False, bottom_right=True)
    return varlen_attention(
        call,
        q,
        k,
        v,
        offsets=call.tensor(3),
        longest_q=call.integer(5),
        longest_k=call.integer(6),
        causal=call.flag(8),
    )


@model("aten::_efficient_attention_forward", by_step=True)
def efficient_forward(call: OpCall) -> OpCost | None:
    """query, key, value (batch, length, heads, d), bias, seqstart_q, seqstart_k, max_q, max_k, dropout_p,
    mask type (0 none, 1 causal from the top left, 2 causal from the bottom right)."""
    q, k, v = (call.tensor(i) for i in range(3))
    kind = call.integer(9) or 0
    if call.tensor(4) is not None:
        if q is None or k is None or v is None or not len(q.dims) == len(k.dims) == len(v.dims) == 4:
            return None
        flat = [Tensor((t.dims[0] * t.dims[1], *t.dims[2:]), t.dtype) for t in (q, k, v)]
        return varlen_attention(
            call,
            *flat,
            offsets=call.tensor(4),
            longest_q=call.integer(6),
            longest_k=call.integer(7),
            causal=kind > 0,
        )
    return dense_attention(
        call, q, k, v, causal=kind > 0, heads_first=False, bias=call.tensor(3), bottom_right=kind == 2
    )


UNEVEN = 1.2
"""Pairs of unequal sequences are known only between two bounds; beyond this ratio of the bounds the cost is
not given."""


def varlen_pairs(tokens: int, sequences: int, longest: int, causal: bool) -> float | None:
    """Pairs of `sequences` sequences with `tokens` tokens in all, none above `longest`: exact when they must
    be equal.

    Σ L² lies between tokens²/sequences (all equal) and tokens · longest. Within a ratio of 1.2 the geometric
    mean (at most 10 % off); else None.
    """
    if sequences <= 0 or longest <= 0 or tokens > sequences * longest:
        return None
    low, high = tokens * tokens / sequences, float(tokens * longest)
    if high > UNEVEN * low:
        return None
    squares = sqrt(low * high)
    return (squares + tokens) / 2 if causal else squares


def varlen_attention(
    call: OpCall,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    *,
    offsets: Tensor | None,
    longest_q: int | None,
    longest_k: int | None,
    causal: bool,
) -> OpCost | None:
    """Packed sequences (tokens, heads, d): the offsets' values are not recorded, so lengths come from their
    count."""
    if q is None or k is None or v is None or offsets is None or longest_q is None or len(q.dims) != 3:
        return None
    if len(k.dims) != 3 or q.dims[0] != k.dims[0] or longest_k not in (None, longest_q):
        return None  # keys beyond the queries (a cache): their lengths are not recorded
    tokens, heads, d = q.dims
    pairs = step_pairs(call, tokens, causal) or varlen_pairs(tokens, offsets.numel - 1, longest_q, causal)
    if pairs is None:
        return None
    return attention_cost(
        pairs,
        tokens,
        tokens,
        heads,
        k.dims[1],
        d,
        v.dims[2],
        dtype=q.dtype,
        math=_math(call, q.dtype),
        length=tokens / max(1, offsets.numel - 1),
        shape=f"{tokens} tokens x{offsets.numel - 1} h{heads}/{k.dims[1]} d{d}"
        + (" causal" if causal else ""),
    )


def step_pairs(call: OpCall, tokens: int, causal: bool) -> float | None:
    """Causal pairs from the engine step, when the step holds exactly these prefill tokens and nothing
    else."""
    step = call.step
    if (
        step is None
        or not causal
        or step.prefill_pairs is None
        or step.prefill_tokens != tokens
        or step.decode_tokens
    ):
        return None
    return step.prefill_pairs


@model("flash_attn::_flash_attn_forward", "flash_attn_3::fwd")
def flash_package(call: OpCall) -> OpCost | None:
    """flash-attn package: q, k, v (batch, length, heads, d), dropout_p, softmax_scale, causal, window_left,
    window_right."""
    q, k, v = (call.tensor(i) for i in range(3))
    left = call.integer(6)
    window = left + 1 if call.flag(5) and left is not None and left >= 0 else None
    return dense_attention(
        call, q, k, v, causal=call.flag(5), heads_first=False, bottom_right=True, window=window
    )
