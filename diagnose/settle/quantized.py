"""The quantisation view: what was made smaller, whether weights were the traffic at all, predicted against realised, side costs."""

import re
from typing import Any

from diagnose.contract import Diagnosis
from diagnose.serving import quant_predict
from diagnose.serving.quant import DTYPE_BYTES
from diagnose.settle import say
from diagnose.settle.align import ordinary
from diagnose.settle.comparable import model_name, precision, setting
from diagnose.settle.comparison import Difference, MetricChange, Unmatched
from diagnose.settle.evals import NOT_MEASURED
from diagnose.settle.kernel_changes import Scale
from diagnose.settle.kernels import Matched, Pair
from diagnose.settle.served import number
from diagnose.settle.side import Side
from diagnose.settle.trace_metrics import STEP_TIME, UNIT_TIME

PRODUCTS = ("gemm", "experts")
_SHAPE = re.compile(r"(\d+)x(\d+) \. (\d+)x(\d+)")
_NARROW = ("fp8", "int8", "int4", "fp4")


def view(
    before: Side, after: Side, matched: Matched, scales: dict[str, Scale], metrics: list[MetricChange], found: list[Difference],
    unmatched: list[Unmatched],
) -> dict[str, Any] | None:  # fmt: skip
    """The `quantization` entry; None when neither weights, activations nor the KV cache changed their format."""
    changed = [d for d in found if d.what in ("precision", "KV cache dtype")]
    added = [
        u
        for u in unmatched
        if u.kind == "kernel"
        and u.side == "after"
        and u.detail.split(" ")[0] in ("quantise", "quant", "dequant", "dequantise")
    ]
    a, b = before.first.d, after.first.d
    names = _format_of(a), _format_of(b)
    if not changed and not added and names[0] == names[1]:
        return None
    out: dict[str, Any] = {
        "before": precision(a) or names[0], "after": precision(b) or names[1],
        "kv_dtype": [_kv_dtype(a), _kv_dtype(b)], "weights": _weights(a, b), "phases": [], "kv": _kv(a, b),
        "quality": NOT_MEASURED,
    }  # fmt: skip
    for phase, scale in scales.items():
        row = _phase(phase, scale, before, after, matched, metrics)
        if row is not None:
            out["phases"].append(row)
    if not (out["phases"] or added or names[0] != names[1] or out["kv_dtype"][0] != out["kv_dtype"][1]):
        return None
    out["added_kernels"] = [
        {"phase": u.phase, "name": u.name, "work": u.detail, "ns_per_unit": u.ns_per_unit} for u in added
    ]
    out["message"] = _message(out)
    return out


def _format_of(d: Diagnosis) -> str | None:
    """The weight format that the engine states, or that the model's name carries."""
    stated = setting(d, "quantization")
    if stated and stated.lower() not in ("none", "false", "null"):
        return stated
    words = (model_name(d) or "").lower().replace("_", "-").split("-")
    return next(
        (w for w in words if w in ("fp8", "awq", "gptq", "int4", "int8", "w4a16", "w8a8", "nvfp4", "fp4")),
        None,
    )


def _kv_dtype(d: Diagnosis) -> str | None:
    value = (d.kv or {}).get("kv_dtype") or setting(d, "kv_cache_dtype")
    return str(value) if value else None


def _weights(a: Diagnosis, b: Diagnosis) -> dict[str, Any] | None:
    """Bytes of weights a device holds, as loaded (or computed from the config)."""
    sizes = []
    for d in (a, b):
        parts = (d.memory or {}).get("parts") or []
        size = next((p.get("bytes") for p in parts if p.get("name") == "weights"), None) or setting(
            d, "weight_bytes"
        )
        sizes.append(float(size) if size is not None else None)
    if sizes[0] is None and sizes[1] is None:
        return None
    ratio = sizes[1] / sizes[0] if sizes[0] and sizes[1] else None
    return {"bytes_before": sizes[0], "bytes_after": sizes[1], "ratio": ratio}


def _kv(a: Diagnosis, b: Diagnosis) -> dict[str, Any] | None:
    """KV budget before and after: what freed weights gave, and what a narrower cache gave."""
    tokens = [number(d, "kv", "budget_tokens") or 0.0 for d in (a, b)]
    if not all(tokens):
        return None
    each = [number(d, "kv", "bytes_per_token") or 0.0 for d in (a, b)]
    ratio = tokens[1] / tokens[0]
    text = f"the KV budget went from {tokens[0]:,.0f} to {tokens[1]:,.0f} tokens ({ratio:.3g} ×)"
    if all(each) and each[0] != each[1]:
        text += (
            f": a token takes {each[1] / each[0]:.3g} of the bytes, the rest is memory that the weights freed"
        )
    elif ratio > 1:
        text += ": memory that the weights freed; a token still takes the same bytes, so freed memory adds to the pool and does not double it"
    used = [(d.kv or {}).get("peak_used_share") for d in (a, b)]
    if used[0] is not None and used[0] < 0.7:
        text += f"; only {100 * used[0]:.0f} % of it was ever used before, so more of it gains nothing"
    return {
        "tokens_before": tokens[0],
        "tokens_after": tokens[1],
        "ratio": ratio,
        "bytes_per_token": each if all(each) else None,
        "text": text,
    }


def _phase(
    phase: str, scale: Scale, before: Side, after: Side, matched: Matched, metrics: list[MetricChange]
) -> dict[str, Any] | None:  # fmt: skip
    """Weight traffic, prediction and result of one phase; None where no product changed its format."""
    mine = [p for p in matched.pairs if p.before.phase == phase]
    products = [p for p in mine if p.before.word in PRODUCTS]
    changed = [p for p in products if p.before.weights != p.after.weights]
    if not changed:
        return None
    units = sum(scale.before), sum(scale.after)
    time = sum(p.before.time_ns for p in changed) / units[0], sum(p.after.time_ns for p in changed) / units[1]
    share = time[0] / scale.unit_ns
    streaming = sum(p.before.time_ns for p in changed if p.before.bound == "hbm") / units[0] / time[0]
    head = next(
        (
            m
            for m in metrics
            if m.headline and m.metric in (STEP_TIME, UNIT_TIME) and m.phase in (phase, None)
        ),
        None,
    )
    realised = None
    if head is not None and head.after:
        ends = [
            head.before / (head.before * (1 + c)) for c in (head.high, head.low) if c is not None and c > -1
        ]
        realised = {
            "speedup": head.before / head.after,
            "low": ends[0] if ends else None,
            "high": ends[-1] if ends else None,
        }
    predicted = _predict(phase, changed, scale, before, after)
    return {
        "phase": phase, "products_share": share, "streaming_share": streaming, "products_speedup": time[0] / time[1],
        "bytes_nominal": _nominal(changed), "bytes_encoded": _encoded(changed, units), "predicted": predicted, "realised": realised,
        "reading": _reading(share, streaming, predicted, realised), "crossover_tokens": _crossover(changed, before, after),
    }  # fmt: skip


def _nominal(changed: list[Pair]) -> dict[str, float] | None:
    """Weight bytes an element by dtype alone, of the product that takes most time."""
    top = max(changed, key=lambda p: p.before.time_ns)
    sizes = [DTYPE_BYTES.get(g.weights or "") for g in (top.before, top.after)]
    return (
        {"before": sizes[0], "after": sizes[1], "ratio": sizes[1] / sizes[0]}
        if sizes[0] and sizes[1]
        else None
    )


def _encoded(changed: list[Pair], units: tuple[float, float]) -> dict[str, float] | None:
    """Bytes that the products move per unit as encoded (packed weights, scales, activations), where both sides are known."""
    both = [p for p in changed if p.before.bytes and p.after.bytes]
    if not both:
        return None
    a, b = (
        sum(p.before.bytes or 0.0 for p in both) / units[0],
        sum(p.after.bytes or 0.0 for p in both) / units[1],
    )
    return {"before": a, "after": b, "ratio": b / a}


def method_of(after: Diagnosis, changed: list[Pair]) -> str | None:
    """The key of the measured ratios that the after-side's kernels and settings stand for."""
    stated = (setting(after, "quantization") or _format_of(after) or "").lower()
    names = " ".join(n for p in changed for n in p.after.names).lower()
    if "awq" in stated or "awq" in names:
        return "awq"
    if (
        "bitsandbytes" in stated
        or "igemmlt" in names
        or "int8_mixed" in " ".join(p.after.op or "" for p in changed)
    ):
        return "llm.int8"
    if "w4a8" in stated:
        return "w4a8"
    formats = {p.after.weights for p in changed}
    return next((d for d in _NARROW if d in formats), None)


def _size_mb(shape: str | None) -> float | None:
    """Size of the weight matrix in MB at two bytes an element."""
    found = _SHAPE.search(shape or "")
    return int(found[3]) * int(found[4]) * 2 / 1e6 if found else None


def _tokens(phase: str, side: Side) -> float | None:
    steps = ordinary(side.first, phase)
    known = [t for w in steps if (t := w.tokens or w.sequences)]
    if known:
        return sum(known) / len(known)
    return None


def _rows(changed: list[Pair]) -> float | None:
    """Rows of the product that takes most time: the tokens of a step where no annotation says."""
    found = _SHAPE.search(max(changed, key=lambda p: p.before.time_ns).before.shape or "")
    return float(found[1]) if found else None


def _predict(
    phase: str, changed: list[Pair], scale: Scale, before: Side, after: Side
) -> dict[str, Any] | None:
    device = next((x.catalog_key or x.name for x in before.first.d.devices), None)
    method = method_of(after.first.d, changed)
    tokens = _tokens(phase, before) or _rows(changed)
    if device is None or method is None or not tokens:
        return None
    units = sum(scale.before)
    shares = [(p.before.time_ns / units / scale.unit_ns, _size_mb(p.before.shape)) for p in changed]
    kind = (
        "decode"
        if phase == "decode"
        else "prefill"
        if phase in ("prefill", "encode")
        else "decode"
        if tokens <= 256
        else "prefill"
    )
    made = quant_predict.predict(method, device, tokens, shares, kind)
    return None if made is None else {**made, "method": method, "tokens": tokens}


def _crossover(changed: list[Pair], before: Side, after: Side) -> float | None:
    """Tokens a step from which the measured kernels of this format stop winning, for the largest matrix; None if unknown."""
    device = next((x.catalog_key or x.name for x in before.first.d.devices), None)
    method = method_of(after.first.d, changed)
    size = max((s for p in changed if (s := _size_mb(p.before.shape))), default=None)
    if device is None or method is None:
        return None
    for tokens in (2**i for i in range(15)):
        row = quant_predict.find_ratio(method, device, tokens, size)
        if row is not None and row.mid <= 1.0:
            return float(tokens)
    return None


def _reading(
    share: float, streaming: float, predicted: dict[str, Any] | None, realised: dict[str, Any] | None
) -> str:
    text = f"the products that changed were {100 * share:.0f} % of the time"
    text += (
        f", {100 * streaming:.0f} % of that near the memory roof"
        if streaming > 0
        else ", none of it near the memory roof: their bytes were not what limited them"
    )
    if realised is None:
        return text
    got = f"{realised['speedup']:.2f} ×"
    if predicted is None:
        return f"{text}; realised {got}; no measured kernels of this format on this device to predict from"
    low, high = predicted["low"], predicted["high"]
    where = (
        "within" if low <= realised["speedup"] <= high else "above" if realised["speedup"] > high else "below"
    )
    return f"{text}; realised {got}, {where} the predicted {low:.2f}–{high:.2f} ×"


def added_by_phase(view_: dict[str, Any]) -> dict[str, float]:
    """Time per unit that quantising and dequantising kernels add, by phase."""
    total: dict[str, float] = {}
    for k in view_["added_kernels"]:
        total[k["phase"]] = total.get(k["phase"], 0.0) + (k["ns_per_unit"] or 0.0)
    return total


def _unit(phase: str) -> str:
    return "unit" if phase == "other" else f"{phase} step"


def _message(out: dict[str, Any]) -> str:
    parts = [f"{out['before'] or 'unknown'} → {out['after'] or 'unknown'}"]
    parts += [
        f"{row['phase'] if row['phase'] != 'other' else 'window'}: {row['reading']}" for row in out["phases"]
    ]
    for phase, ns in added_by_phase(out).items():
        parts.append(f"quantising and dequantising kernels add {say.time(ns)} per {_unit(phase)}")
    if out["kv"]:
        parts.append(out["kv"]["text"])
    return "; ".join(parts)
