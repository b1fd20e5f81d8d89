"""Multi-head latent attention (DeepSeek): one latent vector of c = kv_lora_rank and r rotary values a token,
for all heads.

Absorbed decode works in latent space: scores over c + r, values over c: FLOPs 2 · H · Σ context · (2c + r).
Bytes (c + r) · e · Σ context (read once for all heads) + queries and outputs. Prefill expands keys and
values: FLOPs 2 · H · pairs · ((nope + rope) + v).
"""

from diagnose.costs import dtypes
from diagnose.costs.attention import FAMILIES, attention_cost
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model


def mla_decode_cost(
    context_tokens: float,
    queries: int,
    heads: int,
    kv_lora_rank: int = 512,
    rope: int = 64,
    *,
    dtype: str = "bf16",
    dtype_kv: str | None = None,
    bytes_per_token: float | None = None,
) -> OpCost:
    """Absorbed decode of `queries` query rows over `context_tokens` latent rows in all.

    `bytes_per_token` overrides (c + r) · e for stored formats with scales (fp8_ds_mla: 656).
    """
    c, r = kv_lora_rank, rope
    row = (c + r) * dtypes.size(dtype_kv or dtype) if bytes_per_token is None else bytes_per_token
    e = dtypes.size(dtype)
    return OpCost(
        2.0 * heads * context_tokens * (2 * c + r),
        row * context_tokens + queries * heads * (2 * c + r) * e,
        dtype,
        f"{queries} seqs {context_tokens:g} kv h{heads} c{c}+{r}",
        "attention_decode",
        families=FAMILIES | {"attn_merge"},
    )


def mla_prefill_cost(
    pairs: float,
    queries: float,
    keys: float,
    heads: int,
    nope: int = 128,
    rope: int = 64,
    value: int = 128,
    *,
    dtype: str = "bf16",
) -> OpCost:
    """Expanded prefill: every head has its own keys (nope + rope) and values."""
    return attention_cost(pairs, queries, keys, heads, heads, nope + rope, value, dtype=dtype)


def _cost(
    call: OpCall, rows: int, heads: int, c: int, r: int, dtype: str, cache: Tensor | None
) -> OpCost | None:
    step = call.step
    if step is None or step.context_tokens is None or step.prefill_tokens or not step.decode_tokens:
        return None
    if rows < step.decode_tokens:
        return None
    width = cache.dims[-1] * dtypes.size(cache.dtype) if cache is not None else None
    return mla_decode_cost(
        step.context_tokens, step.decode_tokens, heads, c, r, dtype=dtype, bytes_per_token=width
    )


@model("vllm::unified_mla_attention_with_output", "vllm::unified_mla_attention", by_step=True)
def vllm_mla(call: OpCall) -> OpCost | None:
    """q (tokens, H, nope + rope), latent (tokens, c), rotary key (tokens, 1, r). Decode steps only: the
    operator also holds the absorbed projections, which are kernels with an operator of their own."""
    q, latent, rotary = (call.tensor(i) for i in range(3))
    if q is None or latent is None or rotary is None or len(q.dims) != 3:
        return None
    return _cost(call, q.dims[0], q.dims[1], latent.dims[-1], rotary.dims[-1], q.dtype, None)


@model(
    "_flashmla_C::fwd_kvcache_mla", "sgl_kernel::fwd_kvcache_mla", "flash_mla::fwd_kvcache_mla", by_step=True
)
def flash_mla(call: OpCall) -> OpCost | None:
    """q (sequences, length, H, c + r), cache (blocks, block, 1, c + r), value width c."""
    q, cache = call.tensor(0), call.tensor(1)
    if q is None or cache is None or len(q.dims) != 4:
        return None
    c = next((v for i in range(2, 6) if (v := call.integer(i)) is not None and 64 <= v < q.dims[3]), None)
    if c is None:
        return None
    return _cost(call, q.dims[0] * q.dims[1], q.dims[2], c, q.dims[3] - c, q.dtype, cache)


@model(
    "_C::sm100_cutlass_mla_decode", "_C::cutlass_mla_decode", "sgl_kernel::cutlass_mla_decode", by_step=True
)
def cutlass_mla(call: OpCall) -> OpCost | None:
    """out (and lse), q_nope (sequences, H, c), q_pe (sequences, H, r), cache (blocks, block, c + r)."""
    threes = [t for t in call.tensors if len(t.dims) == 3]
    for nope in threes:
        for rotary in threes:
            cache = next((t for t in threes if t.dims[2] == nope.dims[2] + rotary.dims[2]), None)
            if cache is not None and nope.dims[:2] == rotary.dims[:2] and nope.dims[2] > rotary.dims[2]:
                return _cost(
                    call, nope.dims[0], nope.dims[1], nope.dims[2], rotary.dims[2], nope.dtype, cache
                )
    return None
