"""Settings that explain a slow deploy by themselves, as findings beside the limits: each with its evidence
and remedy.

A finding is not a limit: captured graphs may be off while the pool is the limit. Those that cannot be
weighed without a trace say so.
"""

from statistics import fmean
from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import PoolCheck, engine_totals
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.signals import Signals

FALLBACK_BACKENDS = ("xformers", "torch_sdpa", "sdpa", "torch_native", "naive", "pallas_fallback")
"""Attention backends engines fall back to when their own kernels refuse the model or the device."""
COLD_RATIO = 0.5
"""First third of a run hits the prefix cache less than half as often as its last third: it started cold."""
DEFAULT_SHARE = 0.90
"""vLLM's own share of device memory (0.90, 0.92 from 0.33); below it memory was held back."""
FREE_AFTER_START = 10 * 2**30
"""SGLang's guide: 5-8 GB free after start-up is right, 10-20 GB means the pool was made too small."""


def config_findings(
    evidence: Evidence, signals: Signals, model: ModelConfig | None = None, check: PoolCheck | None = None
) -> list[dict[str, Any]]:
    """Findings as {code, message, evidence, remedy}, most telling first."""
    out: list[dict[str, Any]] = []

    def finding(code: str, message: str, seen: str, remedy: str) -> None:
        out.append({"code": code, "message": message, "evidence": seen, "remedy": remedy})

    engine = signals.engine or "the engine"
    graphless = evidence.setting("graph_mode") in {"NONE", "none"}
    if signals.eager or graphless:
        finding(
            "eager", "captured graphs are switched off: every kernel of a step is launched by the host",
            "enforce_eager = true" if signals.eager else "cudagraph_mode = NONE", _say(engine, "drop --enforce-eager", "drop --disable-cuda-graph"),
        )  # fmt: skip
    if (
        signals.graph_max_batch
        and signals.running_peak
        and signals.running_peak.value > signals.graph_max_batch.value
    ):
        finding(
            "batch-above-graphs",
            f"batches up to {signals.running_peak.value:.0f} run, graphs are captured up to "
            f"{signals.graph_max_batch.value:.0f}: larger steps run without them",
            "running against the largest captured batch",
            _say(engine, "raise the largest cudagraph capture size", "raise --cuda-graph-max-bs"),
        )  # fmt: skip
    elif signals.graph_share and signals.graph_share.value < 0.5 and not (signals.eager or graphless):
        finding(
            "graphs-unused",
            f"only {signals.graph_share.value:.0%} of decode batches replayed a captured graph",
            "cuda graph: False in batch lines",
            "raise the largest captured batch, or look for what disables graphs",
        )  # fmt: skip
    if signals.backend and signals.backend.lower().replace(" ", "_") in FALLBACK_BACKENDS:
        finding(
            "backend-fallback", f"attention runs on {signals.backend}, a fallback", "start-up log",
            "install or name the engine's own attention backend for this device",
        )  # fmt: skip
    if model and model.mla and check and check.ratio:
        full = model.kv_bytes_materialised() / model.kv_bytes_per_token()
        if 0.8 * full <= check.ratio <= 1.2 * full:
            finding(
                "latent-cache-unused",
                f"the pool holds {check.ratio:.1f} times fewer tokens than a latent cache: full K and V",
                "logged pool against the model's latent cache",
                "use a version or backend with a latent (MLA) cache",
            )  # fmt: skip
    _cache(evidence, finding)
    _pool(evidence, signals, finding)
    free = evidence.setting("free_memory_bytes")
    if (
        free
        and float(free) >= FREE_AFTER_START
        and (signals.kv_full_share and signals.kv_full_share.value > 0.5)
    ):
        finding(
            "memory-left",
            f"{float(free) / 2**30:.0f} GiB of device memory are free after start-up while the pool is full",
            "available_gpu_mem", "raise --mem-fraction-static",
        )  # fmt: skip
    if evidence.setting("cpu_offload_gb") not in {None, "0", "0.0"}:
        finding(
            "weights-offloaded",
            "weights are streamed from host memory",
            "cpu_offload_gb",
            "drop --cpu-offload-gb",
        )
    if evidence.setting("chunked_prefill") == "false" and signals.itl_tail and signals.itl_tail.value >= 3:
        finding(
            "unchunked-prefill", "prompts are prefilled whole, in front of running decodes",
            "chunked_prefill = false",
            "enable chunked prefill",
        )  # fmt: skip
    return out


def _pool(evidence: Evidence, signals: Signals, finding: Any) -> None:
    """Settings that keep the pool small, where the pool was full for most of the loaded run."""
    if not (signals.kv_full_share and signals.kv_full_share.value > 0.5):
        return
    share = evidence.setting("gpu_memory_utilization")
    if share and share.replace(".", "", 1).isdigit() and float(share) < DEFAULT_SHARE:
        finding(
            "memory-share-low", f"the engine may use {float(share):.0%} of the device's memory, and its KV pool is full",
            f"gpu_memory_utilization = {share}", "raise --gpu-memory-utilization where nothing else uses the device",
        )  # fmt: skip
    dtype = evidence.setting("kv_cache_dtype")
    if dtype in {"auto", "bf16", "bfloat16", "fp16", "float16", "half"}:
        finding(
            "kv-cache-16-bit", "the KV cache is kept in the model's dtype, and its pool is full",
            f"kv_cache_dtype = {dtype}",
            "an 8-bit KV cache (--kv-cache-dtype fp8) holds twice the tokens where the model's quality allows it",
        )  # fmt: skip


def _say(engine: str, vllm: str, sglang: str) -> str:
    return sglang if engine == "sglang" else vllm


def _cache(evidence: Evidence, finding: Any) -> None:
    if evidence.setting("prefix_caching") == "false":
        finding(
            "prefix-cache-off",
            "the prefix cache is off",
            "prefix_caching = false",
            "enable it where prompts share a start",
        )
        return
    hits = [v for _, v in engine_totals(evidence, "prefix_hit_rate")]
    if len(hits) >= 9:
        third = len(hits) // 3
        early, late = fmean(hits[:third]), fmean(hits[-third:])
        if late >= 0.1 and early < COLD_RATIO * late:
            finding(
                "prefix-cache-cold",
                f"the prefix cache was cold: hits {early:.0%} in the first third, {late:.0%} in the last",
                "prefix hit rate over the run", "compare after warm-up, or exclude the first part of the run",
            )  # fmt: skip
