"""What the arithmetic says of the run beyond its limits: the decode ceiling, the batch worth running, what quantising would do."""

import re
from dataclasses import dataclass
from typing import Any

from diagnose.contract import Diagnosis, KernelRow, Phase
from diagnose.costs.families import KV_FAMILIES, WEIGHT_FAMILIES
from diagnose.devices import Roofs
from diagnose.run.step_parts import decode_phase, knee_tokens
from diagnose.serving.ceiling import decode_ceiling
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.quant import DTYPE_BYTES
from diagnose.serving.quant_predict import predict
from diagnose.serving.signals import Signals
from diagnose.serving.step_ops import math_dtype, step_ops, step_roof
from diagnose.serving.what_if import Caps, StepParts, crossover_batch, marginal_gain, useful_batch

_SHAPE = re.compile(r"(\d+)x(\d+) \. (\d+)x(\d+)")
PASSED = 1.1
"""Bandwidth curves and mean levels leave a tenth of doubt; beyond it a ceiling was not one."""
WIDE = {"bf16", "fp16", "fp32"}
# Stored bits of a weight: 4-bit formats with a 16-bit scale and a 4-bit zero point a group of 128 (AWQ), or 16-bit ones of 32.
_BITS = {"fp8": 8.0, "int8": 8.0, "awq": 4 + 20 / 128, "int4": 4 + 32 / 32}
_QUANTISED = ("attention", "mlp", "experts")
_METHODS = ("fp8", "int8", "int4", "awq", "w4a8", "llm.int8")
_Groups = list[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class _Step:
    """A phase's step: tokens in it, its products as (share of the step, MB of the matrix at two bytes an element), the share
    of KV reads, the share that nothing explains, and that of products whose size is unknown."""

    phase: str
    tokens: float
    products: _Groups
    kv_share: float
    open_share: float
    unsized: float = 0.0

    @property
    def kind(self) -> str:
        return "decode" if self.phase in {"decode", "mixed"} else "prefill"

    @property
    def products_share(self) -> float:
        return sum(share for share, _ in self.products)


def ceiling(
    d: Diagnosis, model: ModelConfig | None, signals: Signals, roofs: Roofs | None, tp: int, ep: int, kv_dtype: str | None,
    engines: int = 1,
) -> dict[str, Any] | None:  # fmt: skip
    """`decode_ceiling` at the traced decode steps, else at the level the server ran at; beside it what was achieved.

    None without a model or a batch. Rates are tokens a second of one engine.
    """
    phase = decode_phase(d)
    comm: float | None = None
    accepted, verified, told = 1.0, 1, True
    if phase is not None and phase.sequences and phase.steps:
        batch, source = max(1, round(phase.sequences)), "traced steps"
        context = phase.context_tokens / phase.sequences if phase.context_tokens else None
        comm = phase.attribution_ns["communication"] / phase.steps / 1e6
        made, kept = phase.tokens.get("decode"), phase.tokens.get("accepted")
        if made and kept:
            rows = phase.steps * phase.sequences
            accepted, verified = kept / rows, max(1, round(made / rows))
        tokens = kept or made or batch * phase.steps
        achieved = tokens / phase.wall_ns * 1e9 if phase.wall_ns else None
    elif signals.running is not None:
        batch, source = max(1, round(signals.running.value / engines)), "the server's level under load"
        context = signals.resident_tokens.value if signals.resident_tokens else None
        achieved = signals.output_tok_s.value / engines if signals.output_tok_s else None
        told = signals.spec_accept_len is None
    else:
        return None
    if model is None:
        return None
    knee = _knee(model, roofs) if roofs else None
    out = decode_ceiling(
        model, batch, context, roofs.bandwidth if roofs else _unknown, tp=tp, ep=ep, kv_dtype=kv_dtype, knee=knee,
        comm_ms=comm, accepted=accepted, verified=verified,
    )  # fmt: skip
    if not told:
        out["conditions"].append({
            "condition": "speculation known", "holds": False, "detail": "tokens verified a step are in no source: a trace tells",
        })  # fmt: skip
        out["tok_s"] = out["step_ms"] = None
    if phase is not None and not _fits(d):
        out["conditions"].append({
            "condition": "the model is the trace's", "holds": False, "detail": "the trace's products are none of its projections",
        })  # fmt: skip
        out["tok_s"] = out["step_ms"] = None
    share = achieved / out["tok_s"] if achieved and out["tok_s"] else None
    if share is not None and share > PASSED:
        # More than the least bytes allow was made: model, device, batch or context is not what ran.
        out["conditions"].append({
            "condition": "not passed by the run", "holds": False,
            "detail": f"{achieved:,.0f} tokens/s were made, {share:.2f} times it: check --model, --device, --tp and the batch",
        })  # fmt: skip
        out["tok_s"] = out["step_ms"] = share = None
    return {**out, "at": source, "achieved_tok_s": achieved, "achieved_share": share}


def _fits(d: Diagnosis) -> bool:
    """Whether nothing in the trace speaks against the model that was named."""
    return not any(
        n.code == "roles-contradicted" or (n.code == "roles-abstained" and n.severity == "warning")
        for n in d.data_quality
    )


def _unknown(nbytes: float) -> float | None:
    return None


def _knee(model: ModelConfig, roofs: Roofs) -> float | None:
    """Tokens a step from which some weights cost compute: the first of dense projections and experts, an expert seeing
    experts_per_token / experts of the tokens."""
    found = []
    spread = model.experts / model.experts_per_token if model.experts and model.experts_per_token else 1.0
    for components, factor in ((("attention", "mlp"), 1.0), (("experts",), spread)):
        rows = [t for t in model.tensors if t.component in components and t.k > 1]
        if rows:
            element = sum(model.tensor_bytes(t)[0] for t in rows) / sum(t.params for t in rows)
            knee = knee_tokens(roofs, math_dtype(model), element)
            found.append(None if knee is None else knee * factor)
    return None if not found or None in found else min(k for k in found if k is not None)


def useful(parts: StepParts, caps: Caps) -> dict[str, Any]:
    """The batch worth running and what stops it, with the marks it lies between and what twice the present batch gains."""
    low, high = marginal_gain(parts, parts.batch)
    least = caps.prefill_ms if caps.slo_ttft_ms is not None else None
    return {
        **useful_batch(parts, caps), "now": parts.batch, "kv_wall": caps.kv_wall(), "slots": caps.slots,
        "graph_max_batch": caps.graph_max_batch, "crossover": crossover_batch(parts), "slo_itl_ms": caps.slo_itl_ms,
        "slo_ttft_ms": caps.slo_ttft_ms, "prefill_least_ms": least, "gain_of_doubling": [low, high],
        "parts_ms": {
            "weights": parts.weights_ms, "kv": parts.kv_ms, "prefill": parts.prefill_ms, "floor": parts.floor_ms,
            "gap": parts.gap_ms, "communication": parts.comm_ms, "other": parts.other_ms,
        },
        "provenance": "derived",
    }  # fmt: skip


def quantisation(
    d: Diagnosis, model: ModelConfig | None, parts: StepParts | None, roofs: Roofs | None, signals: Signals,
    tp: int, ep: int, kv_dtype: str | None, prompt: float | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows {method, of, phase, low, mid, high, tokens, share, share_high, unmeasured_share, scope, sources, pool_tokens,
    provenance}.

    low to high is the factor on the phase's step time (below 1: slower), by the measured ratios of kernels of those sizes at
    that many tokens; a method nothing was measured for has no row. Only 16-bit weights and caches are asked about. `prompt`:
    mean tokens of a prompt to compute, for the prefill where no trace shows one.
    """
    device = _device(d, roofs)
    if device is None:
        return []
    model = model if _fits(d) else None
    rows: list[dict[str, Any]] = []
    wide = _is_wide(d, model)
    for step in _steps(d, model, parts, roofs, tp, ep, prompt):
        for method in _METHODS if wide else ():
            made = _predict(method, device, step, step.products, step.products_share)
            if made is not None:
                pool = _pool_after(method, model, signals, tp, ep, kv_dtype)
                rows.append({"method": method, "of": "weights", **made, "pool_tokens": pool})
        cache = model.kv_dtype(kv_dtype) if model else kv_dtype
        if step.kind == "decode" and step.kv_share and cache in {*WIDE, "bfloat16", "float16"}:
            made = _predict("fp8_kv", device, step, [(step.kv_share, None)], step.kv_share)
            if made is not None:
                pool = signals.pool_tokens.value * 2 if signals.pool_tokens else None
                rows.append({"method": "fp8_kv", "of": "KV cache", **made, "pool_tokens": pool})
    return rows


def _predict(method: str, device: str, step: _Step, groups: _Groups, share: float) -> dict[str, Any] | None:
    """`predict` at the share that is known, and at the share with all of the step that nothing explains on top."""
    made = predict(method, device, step.tokens, groups, step.kind)
    if made is None or not share:
        return None
    most = predict(
        method,
        device,
        step.tokens,
        [(s * (share + step.open_share) / share, mb) for s, mb in groups],
        step.kind,
    )
    assert most is not None
    if made["scope"] == "this step" and method != "fp8_kv":
        made["unmeasured_share"] += step.unsized
    return {
        "phase": step.phase, "tokens": step.tokens, "share": share, "share_high": share + step.open_share, **made,
        "low": min(made["low"], most["low"]), "mid": (made["mid"] + most["mid"]) / 2, "high": max(made["high"], most["high"]),
    }  # fmt: skip


def _device(d: Diagnosis, roofs: Roofs | None) -> str | None:
    found = next((x.catalog_key or x.name for x in d.devices), None)
    return found or (roofs.spec.key or roofs.spec.name if roofs else None)


def _is_wide(d: Diagnosis, model: ModelConfig | None) -> bool:
    """Whether the weights are still 16-bit: by the kernels that multiply, else by the model's config."""
    kinds = {k.dtype for k in d.kernels if k.family in WEIGHT_FAMILIES and k.dtype}
    packed = any(k.family in {"gemm_w4a16", "gemm_lowp"} for k in d.kernels)
    if kinds:
        return kinds <= WIDE and not packed and not (model and model.quant)
    return bool(model and not model.quant and model.dtype in WIDE)


def _steps(
    d: Diagnosis,
    model: ModelConfig | None,
    parts: StepParts | None,
    roofs: Roofs | None,
    tp: int,
    ep: int,
    prompt: float | None,
) -> list[_Step]:
    found = [step for p in d.phases if (step := _traced(d, p)) is not None]
    if found or model is None or model.experts:
        return found
    matrices = [
        (g.n * g.k * 2 / 1e6, float(g.n * g.k)) for i in range(model.layers) for g in model.layer_gemms(i, tp, ep)
        if g.role != "router"
    ]  # fmt: skip

    def groups(share: float, head: float) -> _Groups:
        whole = sum(elements for _, elements in matrices) + head
        return [(share * elements / whole, size) for size, elements in matrices]

    if parts is not None and parts.step_ms > 0:
        # Weights and KV have their least times; what nothing explains may be theirs too.
        shares = [ms / parts.step_ms for ms in (parts.weights_ms, parts.kv_ms, parts.other_ms)]
        head = float(model.head_gemm(tp).n * model.hidden)
        found.append(
            _Step("decode", parts.batch * parts.verified, groups(shares[0], head), shares[1], shares[2])
        )
    if prompt and roofs is not None:
        roof = step_roof(step_ops(model, prefill_chunks=[(max(1, round(prompt)),) * 2], tp=tp, ep=ep), roofs)
        if roof is not None and roof.sum_ms > 0:
            found.append(
                _Step(
                    "prefill",
                    prompt,
                    groups(roof.by_kind_ms.get("weights", 0.0) / roof.sum_ms, 0.0),
                    0.0,
                    0.0,
                )
            )
    return found


def _traced(d: Diagnosis, phase: Phase) -> _Step | None:
    mine = [k for k in d.kernels if k.phase == phase.phase]
    products = [
        k for k in mine if k.family in WEIGHT_FAMILIES and k.role != "head" and k.family != "splitk_epilogue"
    ]
    tokens = _tokens(phase, products)
    if (
        not products
        or tokens is None
        or phase.phase not in {"prefill", "decode", "mixed"}
        or not phase.wall_ns
    ):
        return None
    # Ratios depend on the matrix: a product of unknown size, or of many small experts, has none that was measured.
    sized = [k for k in products if k.family != "moe_gemm" and _megabytes(k.shape) is not None]
    groups: _Groups = [(k.time_ns / phase.wall_ns, _megabytes(k.shape)) for k in sized]
    rest = sum(k.time_ns for k in products) / phase.wall_ns - sum(share for share, _ in groups)
    kv = sum(k.time_ns for k in mine if k.family in KV_FAMILIES) / phase.wall_ns
    return _Step(phase.phase, tokens, groups, kv, 0.0, max(0.0, rest))


def _tokens(phase: Phase, products: list[KernelRow]) -> float | None:
    made = [phase.tokens.get(k) or 0 for k in ("prefill", "decode")]
    if sum(made) and phase.steps:
        return sum(made) / phase.steps
    if phase.phase == "decode" and phase.sequences:
        return phase.sequences
    longest = max(products, key=lambda k: k.time_ns, default=None)
    m = _SHAPE.search(longest.shape or "") if longest else None
    return float(m[1]) if m else None


def _megabytes(shape: str | None) -> float | None:
    m = _SHAPE.search(shape or "")
    return int(m[3]) * int(m[4]) * 2 / 1e6 if m else None


def _pool_after(
    method: str, model: ModelConfig | None, signals: Signals, tp: int, ep: int, kv_dtype: str | None
) -> float | None:
    """Tokens the KV pool would hold with the bytes that smaller weights leave; None where a part is unknown."""
    bits = _BITS.get(method)
    if bits is None or model is None or signals.pool_tokens is None:
        return None
    raw = sum(
        model.tensor_bytes(t, tp, ep)[1] for t in model.tensors if t.component in _QUANTISED and t.k > 1
    )
    per_token = model.kv_bytes_per_token(kv_dtype, tp)
    saved = raw * (1 - bits / 8 / DTYPE_BYTES[model.dtype])
    return signals.pool_tokens.value + saved / per_token if per_token else None
