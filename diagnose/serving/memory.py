"""The device memory budget as a waterfall: what the engine may use, what took it, what is left for the KV
pool.

budget = device memory x gpu_memory_utilization; KV pool = budget - weights - peak activations - memory
outside the framework (vLLM profiles the last two). Parts a source states are measured; the weights are also
computed from the config; what the stated parts leave over is shown as one derived row, never spread over
the others.
"""

import re
from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.model_config import ModelConfig

WEIGHT_TOLERANCE = 0.05
"""Loaders pad vocabularies and keep small buffers; beyond 5 % the config is not the model that was loaded."""


def _number(evidence: Evidence, key: str) -> float | None:
    text = evidence.setting(key)
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _graphs_within(evidence: Evidence) -> bool:
    """Whether the engine counts captured graphs against its budget: vLLM does from 0.12; SGLang's fraction is of weights and
    pool alone."""
    m = re.match(r"0\.(\d+)\.", evidence.setting("engine_version") or "")
    return evidence.setting("engine") == "vllm" and m is not None and int(m[1]) >= 12


def memory_report(model: ModelConfig | None, evidence: Evidence, device_bytes: float | None = None,
tp: int = 1,
                  pp: int = 1, ep: int = 1) -> dict[str, Any] | None:  # fmt: skip
    """The `memory` entry: rows {component, bytes, provenance, note}, in order from the device's memory down
    to the pool.

    None when neither a device size, nor a pool, nor weights are known.
    """
    device = _number(evidence, "device_memory_bytes") or device_bytes
    origin = "measured" if _number(evidence, "device_memory_bytes") else "assumed"
    share = _number(evidence, "gpu_memory_utilization") or _number(evidence, "mem_fraction_static")
    loaded = _number(evidence, "weight_bytes")
    computed = (
        model.weight_bytes(tp, pp, ep).total if model and not (model.quant and model.quant.note) else None
    )
    pool = _number(evidence, "kv_pool_bytes")
    if device is None and pool is None and loaded is None and computed is None:
        return None
    parts: list[dict[str, Any]] = []
    notes: list[str] = []

    def part(name: str, size: float | None, provenance: str, note: str = "") -> None:
        if size is not None:
            parts.append({"name": name, "bytes": size, "provenance": provenance, "note": note or None})

    budget = device * share if device and share else None
    sglang = evidence.setting("engine") == "sglang"
    weights = loaded if loaded is not None else computed
    part("weights", weights, "measured" if loaded is not None else "derived")
    activations = _number(evidence, "activation_bytes")
    outside = _number(evidence, "non_torch_bytes")
    graphs = _number(evidence, "graph_bytes")
    part("activations, peak", activations, "measured")
    part("outside the framework", outside, "measured")
    part("KV pool", pool, "measured")
    within = _graphs_within(evidence)
    if budget is not None and weights is not None and pool is not None:
        rest = (
            budget - weights - (activations or 0) - (outside or 0) - pool - ((graphs or 0) if within else 0)
        )
        known = activations is not None or sglang
        label = "rest of the budget" if known else "activations and memory outside the framework"
        if rest > 0:
            part(label, rest, "derived", "budget less the parts that are stated")
        elif rest < -0.02 * budget:
            notes.append(
                "the stated parts exceed the budget: the log's figures are of different processes or starts"
            )
    part(
        "captured graphs",
        graphs,
        "measured",
        "inside the budget" if within else "outside the budget: it comes on top",
    )
    if budget is not None and device is not None:
        note = f"1 - {share:g} of device memory" + (
            ", less the captured graphs" if graphs and not within else ""
        )
        part(
            "kept out of the engine's budget",
            device - budget - ((graphs or 0) if not within else 0),
            "derived",
            note,
        )
    ratio = None
    if loaded and computed:
        ratio = loaded / computed
        if abs(ratio - 1) > WEIGHT_TOLERANCE:
            notes.append(
                f"the engine loaded {loaded / 2**30:.2f} GiB of weights a GPU, the config "
                f"gives {computed / 2**30:.2f}: "
                "another precision, --tp, or a draft or vision model beside it"
            )
    return {
        "total_bytes": device, "total_provenance": origin if device else None, "parts": parts,
        "budget_bytes": budget, "utilization": share, "weights_loaded_over_computed": ratio,
        "free_after_start_bytes": _number(evidence, "free_memory_bytes"), "notes": notes,
    }  # fmt: skip
