"""The traced window that the serving limits are judged on, read from a finished diagnosis."""

from diagnose.contract import Diagnosis, KernelRow, Phase
from diagnose.devices import Roofs
from diagnose.run.served_gaps import sampler_gap_share
from diagnose.serving.limit_types import threshold
from diagnose.serving.limit_window import PhaseTime, Window
from diagnose.serving.model_config import ModelConfig

KERNEL_BUCKETS = ("compute", "hbm", "floor", "inefficient", "unmodelled")
GROUPS = {
    "weights": ("gemm", "gemv", "splitk_epilogue"),
    "experts": ("moe_gemm",),
    "packed": ("gemm_lowp", "gemm_w4a16"),
    "kv": ("attn_decode", "attn_prefill", "mla", "attn_merge"),
}
"""Kernel families whose time answers to a larger batch in one way."""
RELIEF_OF_UNKNOWN = 0.5
"""A kernel of unknown nature may be at a roof: doubling that resource would free half of it."""


def served_window(
    d: Diagnosis, roofs: Roofs | None, model: ModelConfig | None, knee: float | None
) -> Window | None:
    """The window of the traced steps, None without steps of an engine. `knee`: tokens a step from which weights cost compute."""
    phases = [p for p in d.phases if p.phase not in ("other",) and p.steps]
    if not phases:
        return None
    plateau = roofs.plateau_bandwidth if roofs is not None else None
    rows = tuple(_phase(d, p, plateau) for p in phases)
    growth = None
    decode = next((r for r in rows if r.phase == "decode"), rows[0])
    if model is not None and model.experts and decode.tokens:
        growth = model.expected_experts(2 * decode.tokens) / model.expected_experts(decode.tokens)
    prompts = tuple(float(s.prefill_tokens + (s.decode_tokens or 0)) for s in d.steps if s.prefill_tokens)
    return Window(tuple(r for r in rows if r.ns > 0), knee, growth, prompt_steps=prompts)


def _phase(d: Diagnosis, p: Phase, plateau: float | None) -> PhaseTime:
    split = p.attribution_ns
    observed = float(p.wall_ns - split["unobserved"])
    relief = _relief(d, p.phase)
    if "hbm" in relief and plateau:
        relief["hbm"] *= _streaming(d.kernels, p.phase, plateau)
    asked = _sampler_gap(d, p, relief, observed) if observed else 0.0
    parts = _parts(d.kernels, p, split, observed) if observed else {}
    if asked:
        # its own law: a mask is built sequence by sequence, or once a step
        parts = {k: v for k, v in parts.items() if k != "idle_sync"} | {
            "idle_sync": max(0.0, parts.get("idle_sync", 0.0) - asked),
            "sampler_gap": asked,
        }  # fmt: skip
    unknown = 0.0
    if observed:
        unknown = (RELIEF_OF_UNKNOWN * split["unmodelled"] + split["idle_other"]) / observed
    total = sum(v or 0 for k, v in p.tokens.items() if k in ("prefill", "decode"))
    return PhaseTime(
        p.phase, observed, relief, unknown, parts, total / p.steps if total else None, p.steps, asked
    )


def _relief(d: Diagnosis, phase: str) -> dict[str, float]:
    """Share of the phase that each limit's relief frees, by the step rules: a claim a rule, of the device shown first (its
    number follows the phase) or of the run as a whole."""
    first = d.devices[0].id if d.devices else 0
    ids = {f"@{phase}", f"@{phase}#{first}"}
    by_rule: dict[str, tuple[str, float]] = {}
    for h in d.hypotheses:
        mine = h.rule is not None and h.id.removeprefix(h.rule) in ids and h.status != "not_assessed"
        if mine and h.rule is not None and h.score and h.score > by_rule.get(h.rule, ("", 0.0))[1]:
            by_rule[h.rule] = (h.limit, h.score)
    relief: dict[str, float] = {}
    for limit, score in by_rule.values():
        relief[limit] = relief.get(limit, 0.0) + score
    return relief


WAITS = {"idle_launch": "launch_overhead", "idle_sync": "host_sync", "idle_scheduling": "scheduling"}


def _sampler_gap(d: Diagnosis, p: Phase, relief: dict[str, float], observed: float) -> float:
    """Share of the phase idle between logits and sampler, where that is a cause in the run; taken out of the waits that the step
    rules count it under."""
    if (sampler_gap_share(d) or 0.0) < threshold("between_steps"):
        return 0.0
    mine = [s for s in d.steps if s.phase == p.phase]
    held: dict[str, float] = {}
    for s in mine:
        for bucket, ns in s.sampler_gap_ns.items():
            held[bucket] = held.get(bucket, 0.0) + ns / observed
    for bucket, share in held.items():
        if (limit := WAITS.get(bucket)) in relief and limit is not None:
            relief[limit] = max(0.0, relief[limit] - share)
    return sum(held.values())


def _streaming(kernels: list[KernelRow], phase: str, plateau: float) -> float:
    """Share of the memory-bound kernels' time that is bytes over the sustained rate. The rest (start, ramp, tail of each
    kernel) stays when the memory gets faster: H100 to H200 is worth less than its bandwidth says."""
    mine = [k for k in kernels if k.phase == phase and k.bound == "hbm"]
    whole = sum(k.time_ns for k in mine)
    moved = sum(k.time_ns * min(1.0, k.gbps * 1e9 / plateau if k.gbps else 1.0) for k in mine)
    return moved / whole if whole else 1.0


def _parts(kernels: list[KernelRow], p: Phase, split: dict[str, int], observed: float) -> dict[str, float]:
    """Shares of the phase's time by part: exclusive time of each bucket, divided over families as its kernels' time is."""
    out = {
        bucket: ns / observed
        for bucket, ns in split.items()
        if ns and bucket not in (*KERNEL_BUCKETS, "unobserved")
    }
    for bucket in KERNEL_BUCKETS:
        mine = [k for k in kernels if k.phase == p.phase and k.bound == bucket]
        whole = sum(k.time_ns for k in mine)
        for k in mine:
            kind = next((name for name, families in GROUPS.items() if k.family in families), "other")
            part = f"{bucket}:{kind}"
            out[part] = out.get(part, 0.0) + split[bucket] / observed * k.time_ns / whole
        if not whole and split[bucket]:
            out[f"{bucket}:other"] = split[bucket] / observed
    return out
