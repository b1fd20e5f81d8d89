"""The decode ceiling: how many tokens a second a device could stream if it did nothing but read what a step
must read.

ceiling = batch x accepted tokens / (weight bytes / B(weights) + KV bytes / B(KV)); B is the sustained
bandwidth at that size. It holds only under conditions, each checked here; where one fails the number is
withheld and the reason given.
"""

from collections.abc import Callable
from typing import Any

from diagnose.serving.model_config import ModelConfig

Bandwidth = Callable[[float], float | None]


def decode_ceiling(model: ModelConfig, batch: int, context: float | None, bandwidth: Bandwidth, *,
tp: int = 1, ep: int = 1,
                   kv_dtype: str | None = None, knee: float | None = None, comm_ms: float | None = None,
                   accepted: float = 1.0, verified: int = 1) -> dict[str, Any]:  # fmt: skip
    """The ceiling at a batch and mean context, or why there is none.

    `bandwidth(bytes)` is the sustained rate in B/s for a read of that size; `knee` the tokens a step above
    which weights cost compute; `comm_ms` the collectives of a step (needed when tp > 1). `accepted` and
    `verified` are tokens kept and tokens verified a sequence and step under speculation: the step reads for
    the verified, the user gets the accepted. Returns {tok_s, step_ms, weight_bytes, kv_bytes, conditions:
    [{condition, holds, detail}]}; tok_s None when withheld.
    """
    conditions: list[dict[str, Any]] = []

    def condition(text: str, holds: bool | None, detail: str) -> None:
        conditions.append({"condition": text, "holds": holds, "detail": detail})

    tokens = batch * verified
    told = (
        f"mean KV tokens a sequence: {context:,.0f}" if context else "give it by metrics, log or annotation"
    )
    condition("context known", context is not None, told)
    weights = model.step_weight_bytes(tokens, tp=tp, ep=ep)
    unknown = model.quant.note if model.quant else None
    condition("weight size known", unknown is None, unknown or f"{weights / 1e9:.2f} GB a step and GPU")
    if knee is None:
        condition("below the knee", None, "the device's compute roof is not known")
    else:
        detail = f"{tokens} tokens a step; weights cost compute from about {knee:.0f}"
        condition("below the knee", tokens <= knee, detail)
    if tp > 1:
        detail = f"tp {tp} without a trace of its collectives"
        condition(
            "collectives known", comm_ms is not None, detail if comm_ms is None else "added to the step"
        )
    kv = model.kv_resident_bytes(int(context or 0), kv_dtype, tp) * batch
    rates = bandwidth(weights), bandwidth(kv) if kv else None
    detail = "sustained rate at this size" if rates[0] else "no memory roof for this device"
    condition("bandwidth known", rates[0] is not None, detail)
    out: dict[str, Any] = {
        "batch": batch, "context_tokens": context, "weight_bytes": weights, "kv_bytes": kv, "tok_s": None,
        "step_ms": None,
        "conditions": conditions, "provenance": "derived",
    }  # fmt: skip
    if any(c["holds"] is False for c in conditions) or not rates[0]:
        return out
    seconds = weights / rates[0] + (kv / rates[1] if kv and rates[1] else 0.0) + (comm_ms or 0.0) / 1e3
    out["step_ms"], out["tok_s"] = seconds * 1e3, batch * accepted / seconds
    return out
