"""Writes of new keys and values into the cache: read what is new, write it in the cache's type; the pool is
not traversed."""

from diagnose.costs import dtypes
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model


def kv_write_cost(
    tokens: int, kv_heads: int, head_dim: int, dtype: str, dtype_kv: str | None = None, *, slot_bytes: int = 8
) -> OpCost:
    """Keys and values of `tokens` tokens: 2·T·H_kv·d·(e + e_kv) + slots."""
    values = 2 * tokens * kv_heads * head_dim
    data = values * (dtypes.size(dtype) + dtypes.size(dtype_kv or dtype)) + slot_bytes * tokens
    return OpCost(0.0, data, None, f"{tokens} tokens h{kv_heads} d{head_dim}", "kv_write")


def mla_write_cost(
    tokens: int, kv_lora_rank: int, rope: int, dtype: str, dtype_kv: str | None = None
) -> OpCost:
    """One latent row a token: T·(c + r)·(e + e_kv) + slots."""
    values = tokens * (kv_lora_rank + rope)
    data = values * (dtypes.size(dtype) + dtypes.size(dtype_kv or dtype)) + 8.0 * tokens
    return OpCost(0.0, data, None, f"{tokens} tokens c{kv_lora_rank}+{rope}", "kv_write")


def _cache_dtype(cache: Tensor | None, like: str) -> str:
    if cache is None:
        return like
    return "fp8" if cache.dtype == "uint8" else cache.dtype


@model(
    "_C_cache_ops::reshape_and_cache_flash",
    "_C_cache_ops::reshape_and_cache",
    "vllm::reshape_and_cache_flash",
)
def reshape_and_cache(call: OpCall) -> OpCost | None:
    """key (tokens, H_kv, d), value, key cache, value cache, slot mapping (one a token; padding tokens have
    none)."""
    key, value, cache, slots = call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(4)
    if key is None or value is None or slots is None or len(key.dims) != 3 or not key.dims[0]:
        return None
    tokens = min(
        slots.numel, key.dims[0]
    )  # keys may be padded to a graph size; slots say how many are written
    share = tokens / key.dims[0]
    kv = dtypes.size(_cache_dtype(cache, key.dtype))
    written = (key.numel + value.numel) * share
    data = (key.bytes + value.bytes) * share + written * kv + tokens * dtypes.size(slots.dtype)
    return OpCost(0.0, data, None, f"{tokens} tokens h{key.dims[1]} d{key.dims[2]}", "kv_write")


@model("sglang::store_cache", "sgl_kernel::store_kv_cache", "sgl_kernel::set_kv_buffer")
def store_cache(call: OpCall) -> OpCost | None:
    """k (tokens, H_kv·d), v, k cache, v cache, indices; the kernel moves raw bytes."""
    k, v, slots = call.tensor(0), call.tensor(1), call.tensor(4)
    if k is None or v is None or slots is None:
        return None
    data = 2 * (k.touched * dtypes.size(k.dtype) + v.touched * dtypes.size(v.dtype)) + slots.bytes
    return OpCost(0.0, data, None, f"{k.dims[0]} tokens x{k.numel // max(1, k.dims[0])}", "kv_write")


@model("_C_cache_ops::concat_and_cache_mla", "_C_cache_ops::concat_and_cache_mla_rope_fused")
def concat_and_cache_mla(call: OpCall) -> OpCost | None:
    """latent (tokens, c), rotary key (tokens, r), cache, slot mapping."""
    latent, rotary, cache, slots = (call.tensor(i) for i in range(4))
    if latent is None or rotary is None or slots is None or len(latent.dims) != 2:
        return None
    tokens = min(slots.numel, latent.dims[0])
    return mla_write_cost(
        tokens, latent.dims[1], rotary.dims[-1], latent.dtype, _cache_dtype(cache, latent.dtype)
    )


@model("vllm::unified_kv_cache_update")
def unified_update(call: OpCall) -> OpCost | None:
    """key, value (tokens, H_kv, d): used when the cache operator below is not recorded. The cache has the
    keys' type."""
    key, value = call.tensor(0), call.tensor(1)
    if key is None or value is None or len(key.dims) != 3:
        return None
    return kv_write_cost(key.dims[0], key.dims[1], key.dims[2], key.dtype)
