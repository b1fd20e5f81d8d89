"""Attention over a paged KV cache: the lengths are in the engine step, not in the operator's arguments.

Decode (one query a sequence): FLOPs 4 · H_q · d · Σ context, bytes 2 · H_kv · d · e_kv · Σ context + queries
and outputs + block table: intensity about H_q / H_kv FLOP per byte at 16 bits. Prefill: causal pairs of the
step. Split-KV partials are a kernel of their own (attention_merge).
"""

from math import ceil

from diagnose.costs import dtypes
from diagnose.costs.attention import attention_cost, varlen_pairs, window_pairs
from diagnose.costs.op import OpCall, OpCost, StepInfo, Tensor
from diagnose.costs.registry import model


def decode_attention_cost(
    context_tokens: float,
    queries: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    *,
    dtype: str = "bf16",
    dtype_kv: str | None = None,
    block: int = 16,
    window: int | None = None,
    query_length: int = 1,
    shared_tokens: float = 0.0,
) -> OpCost:
    """Decode attention of `queries` sequences holding `context_tokens` KV tokens in all.

    `window`: at most that many keys a sequence (mean length assumed when sequences differ); `query_length` >
    1 under speculation; `shared_tokens`: prefix tokens that a cascade kernel reads once for the batch instead
    of once a sequence.
    """
    context = context_tokens
    if window is not None and queries:
        context = queries * min(window, context_tokens / queries)
    tables = 4.0 * ceil(context / block) + 4.0 * queries
    keys = max(0.0, context - shared_tokens)
    return attention_cost(
        context * query_length,
        queries * query_length,
        keys,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        dtype=dtype,
        dtype_kv=dtype_kv,
        extra_bytes=tables,
        role="attention_decode",
        shape=f"{queries} seqs {context:g} kv h{heads}/{kv_heads} d{head_dim}"
        + (f" window {window}" if window else ""),
    )


def step_attention(
    step: StepInfo | None,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    dtype: str,
    dtype_kv: str,
    window: int | None = None,
) -> OpCost | None:
    """Attention of one layer from the step's sums: prefill pairs, prefill KV and decode KV, added.

    None unless the step's tokens fit the operator's rows and the sums that it needs are known.
    """
    if step is None:
        return None
    prefill, decode = step.prefill_tokens or 0, step.decode_tokens or 0
    if prefill + decode == 0 or tokens < prefill + decode:
        return None
    pairs = keys = 0.0
    if prefill:
        length = prefill if step.prefill_context_tokens is None else step.prefill_context_tokens
        if window is None:
            if step.prefill_pairs is None:
                return None
            pairs, keys = step.prefill_pairs, length
        elif step.sequences == 1 and not decode:
            pairs, keys = window_pairs(prefill, length, window), min(length, window + prefill - 1)
        else:
            return None  # how the tokens fall on several sequences is not recorded
    if decode:
        if step.context_tokens is None:
            return None
        sequences = max(1, (step.sequences or decode) if not prefill else decode)
        context = float(step.context_tokens)
        if window is not None:
            context = sequences * min(window, context / sequences)
        pairs += context * max(1.0, decode / sequences)
        keys += context
    kind = "mixed" if prefill and decode else ("prefill" if prefill else "decode")
    return attention_cost(
        pairs,
        prefill + decode,
        keys,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        dtype=dtype,
        dtype_kv=dtype_kv,
        role="attention_decode" if kind == "decode" else "attention",
        length=keys / max(1, step.sequences or 1) if kind == "prefill" else None,
        shape=f"{kind} {prefill + decode} tokens {keys:g} kv h{heads}/{kv_heads} d{head_dim}",
    )


def _kv_dtype(call: OpCall, cache: Tensor | None, dtype: str) -> str:
    """Type of the cache: recorded, or from kernel names (an fp8 cache is stored as bytes)."""
    if cache is not None and cache.dtype in ("uint8", "fp8", "int8"):
        return "fp8"
    if any("QkvE4m3" in k or "KVCacheDataType)1" in k or "KVCacheDataType)2" in k for k in call.kernels):
        return "fp8"
    return cache.dtype if cache is not None and cache.dtype in dtypes.FLOATS else dtype


def _hidden_window(call: OpCall) -> bool:
    """The kernel masks a window whose size is in no argument, or may do so without its name saying it (Triton)."""
    return any("Sliding" in k or "kernel_unified_attention" in k for k in call.kernels)


def _window(call: OpCall) -> int | None:
    """Keys that a query sees, from the arguments `causal, window left, window right` of flash attention; None: all."""
    for i in range(len(call.scalars) - 2):
        left, right = call.integer(i + 1), call.integer(i + 2)
        if call.scalar(i).lower() in ("true", "false") and left is not None and right is not None:
            return left + 1 if left >= 0 else None
    return None


@model("vllm::unified_attention_with_output", "vllm::unified_attention", by_step=True)
def vllm_unified(call: OpCall) -> OpCost | None:
    """query (tokens, H, d), key and value (tokens, H_kv, d) of the new tokens; the cache hides behind the
    layer's name."""
    q, k, v = (call.tensor(i) for i in range(3))
    if q is None or k is None or v is None or len(q.dims) != 3 or len(k.dims) != 3 or _hidden_window(call):
        return None
    heads, d = q.dims[1:]
    kv = _kv_dtype(call, None, k.dtype)
    return step_attention(call.step, q.dims[0], heads, k.dims[1], d, v.dims[2], q.dtype, kv)


@model("aiter::mha_batch_prefill", "aiter::mha_varlen_fwd", "aiter::flash_attn_varlen_func", by_step=True)
def aiter_batch_prefill(call: OpCall) -> OpCost | None:
    """q (tokens, H, d), k and v (pool or tokens, H_kv, d), sequence offsets, KV offsets, KV page indices,
    longest q, longest k, dropout, scale, soft cap, zero_tensors, causal, window left, window right."""
    q, k, v, offsets = (call.tensor(i) for i in range(4))
    if q is None or k is None or v is None or offsets is None or len(q.dims) != 3 or len(k.dims) != 3:
        return None
    tokens, heads, d = q.dims
    integers = [n for i in range(4, 9) if call.tensor(i) is None and (n := call.integer(i)) is not None]
    if len(integers) < 2 or len(v.dims) != 3:
        return None
    longest_q, longest_k = integers[0], integers[1]
    window = call.integer(13) if call.name == "aiter::mha_batch_prefill" else -1
    causal = call.flag(12) if call.name == "aiter::mha_batch_prefill" else True
    if longest_k != longest_q or window not in (-1, None):
        return (
            step_attention(call.step, tokens, heads, k.dims[1], d, v.dims[2], q.dtype, k.dtype)
            if causal
            else None
        )
    pairs = varlen_pairs(tokens, offsets.numel - 1, longest_q, causal)
    if pairs is None:
        return step_attention(call.step, tokens, heads, k.dims[1], d, v.dims[2], q.dtype, k.dtype)
    return attention_cost(
        pairs,
        tokens,
        tokens,
        heads,
        k.dims[1],
        d,
        v.dims[2],
        dtype=q.dtype,
        dtype_kv=k.dtype,
        length=tokens / max(1, offsets.numel - 1),
        extra_bytes=4.0 * tokens + 8.0 * offsets.numel,
        shape=f"{tokens} tokens x{offsets.numel - 1} h{heads}/{k.dims[1]} d{d}"
        + (" causal" if causal else ""),
    )


@model(
    "_C::paged_attention_v1",
    "_C::paged_attention_v2",
    "_rocm_C::paged_attention",
    "vllm::paged_attention_rocm",
    by_step=True,
)
def vllm_paged(call: OpCall) -> OpCost | None:
    """out, [partials], query (sequences, H, d), key cache, value cache, num_kv_heads, scale, block table,
    lengths, ..."""
    threes = [t for t in call.tensors if len(t.dims) == 3 and t.dtype in ("bf16", "fp16", "fp32")]
    caches = [t for t in call.tensors if len(t.dims) in (4, 5)]
    tables = [
        i
        for i in range(len(call.dims))
        if (t := call.tensor(i)) is not None and t.dtype == "int32" and len(t.dims) == 2
    ]
    if not threes or not caches or not tables:
        return None
    q, cache = threes[0], max(caches, key=lambda t: t.bytes)
    kv_heads = next(
        (v for i in range(len(call.scalars)) if (v := call.integer(i)) is not None and v >= 1), None
    )
    if kv_heads is None or q.dims[1] % kv_heads:
        return None
    return step_attention(
        call.step,
        q.dims[0],
        q.dims[1],
        kv_heads,
        q.dims[2],
        q.dims[2],
        q.dtype,
        _kv_dtype(call, cache, q.dtype),
    )


@model(
    "_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd", "sgl_kernel::fwd", "aiter::paged_attention_ragged",
    "flashinfer::batch_decode",
    "aiter::paged_attention_rocm", "trtllm::attn_custom_op_inplace", "sglang::unified_attention_with_output",
    by_step=True,
)  # fmt: skip
def flash_paged(call: OpCall) -> OpCost | None:
    """q (tokens, H, d) and a cache (blocks, block, H_kv, d) or packed keys (tokens, H_kv, d)."""
    q = next((t for t in call.tensors if len(t.dims) == 3 and t.dtype in dtypes.FLOATS), None)
    if q is None or _hidden_window(call):
        return None
    tokens, heads, d = q.dims
    caches = [
        t
        for t in call.tensors
        if t is not q and len(t.dims) in (3, 4) and t.dims[-1] == d and t.dims[-2] != heads
    ]
    caches += [t for t in call.tensors if t is not q and len(t.dims) == 4 and t.dims[-1] == d]
    if not caches or heads % caches[0].dims[-2]:
        return None
    cache = caches[0]
    kv = _kv_dtype(call, cache, q.dtype)
    return step_attention(call.step, tokens, heads, cache.dims[-2], d, d, q.dtype, kv, _window(call))
