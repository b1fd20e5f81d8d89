"""Evidence beside the trace: latency, KV, memory, what-if and the limits that only it can show, added to a result."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from diagnose.contract import (
    Diagnosis,
    Note,
    Source,
)
from diagnose.devices import Roofs
from diagnose.run import predictions
from diagnose.run.judge import judge
from diagnose.run.no_trace import NO_TRACE
from diagnose.run.served_window import served_window
from diagnose.run.step_parts import decode_phase, step_parts
from diagnose.serving import evidence_types
from diagnose.serving.config_findings import config_findings
from diagnose.serving.evidence import read_evidence
from diagnose.serving.kv import check_pool, kv_report
from diagnose.serving.latency import latency_report
from diagnose.serving.limit_sketch import sketch
from diagnose.serving.memory import memory_report
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.parts import caps_from, computed_prompt, engines_of, parts_from_evidence, prompt_ms
from diagnose.serving.phase_ratio import phase_ratio
from diagnose.serving.representative import representative_report
from diagnose.serving.signals import Fact, Signals, derive_signals
from diagnose.serving.what_if import batch_curve

MORE_THAN_WHOLE = 1.1
"""A running sequence holds at most its whole length, and blocks round up by far less than a tenth."""


@dataclass(slots=True)
class Beside:
    """Everything read beside the trace."""

    evidence: evidence_types.Evidence
    model: ModelConfig | None
    tp: int
    pp: int
    ep: int
    files: list[tuple[Path, str]]


def read(
    metrics: list[Path],
    logs: list[Path],
    benches: list[Path],
    model: ModelConfig | None,
    tp: int | None,
    pp: int | None,
    ep: int | None,
    settings: list[Path] | None = None,
) -> Beside | None:
    """Read the evidence files; None when there are none and no model was given."""
    settings = settings or []
    if not (metrics or logs or benches or settings or model):
        return None
    evidence = read_evidence(metrics, logs, benches, settings)

    def size(given: int | None, key: str) -> int:
        if given is not None:
            return given
        text = evidence.setting(key)
        return int(text) if text and text.isdigit() else 1

    return Beside(
        evidence,
        model,
        size(tp, "tp"),
        size(pp, "pp"),
        size(ep, "ep"),
        [
            (path, kind)
            for paths, kind in (
                (metrics, "metrics"),
                (logs, "log"),
                (benches, "benchmark"),
                (settings, "settings"),
            )
            for path in paths
        ],
    )


def attach(
    d: Diagnosis,
    beside: Beside,
    objective: str,
    roofs: Roofs | None,
    slo_ttft_ms: float | None,
    slo_itl_ms: float | None,
) -> None:
    """Add what the evidence shows to `d`, and make it answer for `objective`."""
    e, model = beside.evidence, beside.model
    phase = decode_phase(d)
    step_ms = phase.step_time_ns["p50"] / 1e6 if phase and phase.step_time_ns["p50"] else None
    gaps = [s.gap_before_ns / 1e6 for s in d.steps if phase and s.phase == phase.phase and s.gap_before_ns]
    d.latency = latency_report(e, step_ms, median(gaps) if gaps else None)
    d.kv = kv_report(model, e, beside.tp, beside.pp)
    memory_bytes = next((x.memory_bytes for x in d.devices if x.memory_bytes), None)
    if roofs is not None and not d.devices:
        memory_bytes = roofs.spec.memory_bytes
        e.set("device", roofs.spec.name or roofs.spec.key, "user")
    d.memory = memory_report(model, e, memory_bytes, beside.tp, beside.pp, beside.ep)
    d.engine_config = [{"key": s.key, "value": s.value, "origin": s.origin} for s in e.settings]
    if model is not None:
        d.model = _model(model, beside)
    signals = derive_signals(e, _pool(d))
    parts = step_parts(d, roofs)
    if parts is None and model is not None and roofs is not None:
        parts = parts_from_evidence(model, e, signals, roofs, tp=beside.tp, ep=beside.ep)
    _one_number(d, signals)
    kv_dtype, engines = e.setting("kv_cache_dtype"), engines_of(e)
    d.load = {
        name: {"value": f.value, "unit": f.unit, "provenance": f.provenance, "text": f.text}
        for name in signals.known()
        if isinstance(f := getattr(signals, name), Fact)
    } or None
    if parts is not None:
        caps = caps_from(signals, slo_itl_ms, slo_ttft_ms, _prompt_ms(beside, roofs), engines)
        if caps.resident_tokens is None and parts.context:
            caps = replace(caps, resident_tokens=parts.context)
        d.what_if = batch_curve(parts, caps)
        d.useful_batch = predictions.useful(parts, caps)
    d.ceiling = predictions.ceiling(d, model, signals, roofs, beside.tp, beside.ep, kv_dtype, engines)
    d.quantization = predictions.quantisation(
        d, model, parts, roofs, signals, beside.tp, beside.ep, kv_dtype, computed_prompt(e)
    )
    ratio = phase_ratio(e)
    if ratio is not None and d.latency is not None:
        d.latency["prefill_decode_ratio"] = ratio
    if phase is not None:
        context = phase.context_tokens / phase.sequences if phase.context_tokens and phase.sequences else None
        d.representative = representative_report(
            e, batch=phase.sequences, context_per_sequence=context, step_ms=step_ms, steps=phase.steps
        )
    d.source += [_source(path, kind) for path, kind in beside.files]
    check = check_pool(model, e, beside.tp, beside.pp) if model else None
    for found in config_findings(e, signals, model, check):
        d.data_quality.append(
            Note(
                code=f"config-{found['code']}",
                severity="warning",
                message=f"{found['message']} ({found['evidence']}); {found['remedy']}",
            )
        )
    d.data_quality += [Note(code=n.code, severity=n.severity, message=n.message) for n in e.notes]
    if d.representative and d.representative.get("verdict") == "no":
        d.data_quality.append(
            Note(code="not-representative", severity="warning", message=str(d.representative["message"]))
        )
    if has_serving(e):
        drawn = sketch(model, e, signals, tp=beside.tp, pp=beside.pp, ep=beside.ep) if model else None
        judge(
            d, signals, objective, parts, served_window(d, roofs, model, parts.knee if parts else None), drawn
        )
    if d.representative and d.representative.get("verdict") == "no":
        d.verdict.could_not_tell.insert(
            0,
            f"whether these steps are the ones that were slow: {d.representative['message']}; trace the load in question",
        )
    if not d.devices:
        d.verdict.could_not_tell = list(dict.fromkeys([*d.verdict.could_not_tell, NO_TRACE]))


def _source(path: Path, kind: str) -> Source:
    """An evidence file with its size and hash; a folder of scrapes has neither."""
    if not path.is_file():
        return Source(path=path.name, format=kind)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Source(path=path.name, format=kind, sha256=digest, bytes=path.stat().st_size)


def _one_number(d: Diagnosis, signals: Signals) -> None:
    """Where the KV report and the signals state the same quantity, the signals' is kept: the limits are judged on it."""
    if d.kv is None:
        return
    for key, fact in (
        ("peak_used_share", signals.kv_peak), ("prefix_hit_rate", signals.prefix_hit), ("preemptions", signals.preemptions),
        ("tokens_per_sequence_resident", signals.resident_tokens), ("fits_at_resident", signals.fits),
        ("tokens_per_sequence_full", signals.full_tokens), ("fits_at_full_length", signals.fits_full),
    ):  # fmt: skip
        if fact is not None:
            d.kv[key] = fact.value
    if signals.kv_peak is not None:
        d.kv["peak_source"] = signals.kv_peak.text
    if signals.resident_tokens is not None:
        d.kv["resident_source"] = signals.resident_tokens.text
    held, full = signals.resident_tokens, signals.full_tokens
    if held is not None and full is not None and held.value > MORE_THAN_WHOLE * full.value:
        d.data_quality.append(Note(
            code="resident-above-full", severity="warning",
            message=f"running sequences seem to hold {held.value:,.0f} tokens each, more than the {full.value:,.0f} of a whole request: "
            "the pool also keeps cached prefixes, or the levels are of another load than the lengths",
        ))  # fmt: skip


def _prompt_ms(beside: Beside, roofs: Roofs | None) -> float | None:
    """Least time to compute one mean prompt, prefix hits left out; None where the model, its roofs or its length are unknown."""
    if beside.model is None or roofs is None:
        return None
    return prompt_ms(beside.model, beside.evidence, roofs, tp=beside.tp, ep=beside.ep)


def has_serving(e: evidence_types.Evidence) -> bool:
    """Whether any source speaks of load, queue, KV or latency."""
    return bool(e.samples or e.requests)


def _model(model: ModelConfig, beside: Beside) -> dict[str, Any]:
    weights = (
        None if model.quant and model.quant.note else model.weight_bytes(beside.tp, beside.pp, beside.ep)
    )
    told: dict[str, Any] = {
        "name": model.name, "params": model.params, "params_active": round(model.params_active) if model.experts else None,
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads,
        "experts": model.experts or None, "experts_per_token": model.experts_per_token or None,
        "sliding_window": model.sliding_window, "dtype": model.dtype, "quantization": model.quant.label if model.quant else None,
        "weights_per_gpu_bytes": weights.total if weights else None, "tp": beside.tp, "pp": beside.pp, "ep": beside.ep,
    }  # fmt: skip
    return {**{k: v for k, v in told.items() if v is not None}, "provenance": "derived"}


def _pool(d: Diagnosis) -> float | None:
    value = (d.kv or {}).get("budget_tokens")
    return float(value) if value else None
