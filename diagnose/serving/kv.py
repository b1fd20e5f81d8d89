"""KV capacity as arithmetic a user can redo: pool in tokens, computed against logged, and the sequences
that fit.

pool tokens = pool bytes / bytes a token (whole blocks). Engines print the pool to two digits of GiB, so
computed and logged figures agree to that rounding. For windowed and hybrid models engines state tokens as
(sequences of max_model_len that fit) x max_model_len; the same is done here. Sequences that fit are given
at the tokens they were seen to hold; full length is the worst case only, since a sequence holds its full
length at its last token.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from diagnose.serving.evidence_types import Evidence, Sample
from diagnose.serving.model_config import ModelConfig

AGREE = 0.001
"""Computed and logged pools agree within 0.1 %: one unit of the last printed digit of 5 GiB."""
LOADED_SHARE = 0.5
"""Samples with at least this share of the run's peak running count as loaded; ramps at both ends do not."""


def pool_tokens(pool_bytes: float, bytes_per_token: float, block: int = 16) -> int:
    """Whole blocks of `block` tokens that a pool holds, in tokens."""
    return int(pool_bytes // (bytes_per_token * block)) * block


def pool_tokens_of(model: ModelConfig, pool_bytes: float, *, kv_dtype: str | None = None, tp: int = 1,
pp: int = 1,
                   max_model_len: int | None = None, block: int = 16) -> int:  # fmt: skip
    """Pool of a model in tokens the way the engine states it; windowed layers need `max_model_len`."""
    windowed = any(layer.window and layer.cached for layer in model.plan)
    if windowed and max_model_len:
        one = model.kv_resident_bytes(max_model_len, kv_dtype, tp, pp)
        return int(pool_bytes / one * max_model_len)
    return pool_tokens(pool_bytes, model.kv_bytes_per_token(kv_dtype, tp, pp), block)


def tokens_gained(memory_bytes: float, share: float, bytes_per_token: float) -> int:
    """Tokens that a further `share` of device memory adds to the pool."""
    return int(memory_bytes * share / bytes_per_token)


@dataclass(frozen=True, slots=True)
class PoolCheck:
    """Logged pool beside the computed one. `ratio` is computed / logged; `reading` says what a mismatch
    looks like."""

    logged: int | None
    computed: int | None
    ratio: float | None
    agrees: bool | None
    reading: str


def check_pool(model: ModelConfig, evidence: Evidence, tp: int = 1, pp: int = 1) -> PoolCheck:
    """Compute the pool from its bytes and the model, and compare with the engine's own count."""
    logged_text, size = evidence.setting("kv_pool_tokens"), evidence.setting("kv_pool_bytes")
    engines = int(float(evidence.setting("kv_engines") or 1))
    logged = int(float(logged_text)) if logged_text else None
    if size is None:
        return PoolCheck(
            logged, None, None, None, "the pool's bytes are not stated, so its tokens cannot be checked"
        )
    length = evidence.setting("max_model_len")
    block = int(float(evidence.setting("block_size") or 16))
    computed = engines * pool_tokens_of(
        model, float(size), kv_dtype=evidence.setting("kv_cache_dtype"), tp=tp, pp=pp,
        max_model_len=int(float(length)) if length else None, block=max(block, 1),
    )  # fmt: skip
    if not logged:
        return PoolCheck(
            None, computed, None, None, "computed from its bytes; the engine's own count is not there"
        )
    ratio = computed / logged
    rounding = 0.005 * 2**30 / float(size)
    if abs(ratio - 1) <= max(AGREE, rounding):
        return PoolCheck(logged, computed, ratio, True, "computed and logged pools agree")
    return PoolCheck(logged, computed, ratio, False, _reading(ratio, tp))


def _reading(ratio: float, tp: int) -> str:
    for factor, text in (
        (0.5, "the cache holds half the bytes assumed: an 8-bit KV cache, or twice the --tp given"),
        (2.0, "the cache holds twice the bytes assumed: a 16-bit KV cache, or half the --tp given"),
        (
            1 / max(tp, 1),
            f"the ratio is 1/{tp}: the log's bytes look like those of one GPU of a smaller --tp",
        ),
    ):
        if abs(ratio / factor - 1) < 0.03:
            return text
    return "computed and logged pools differ: another model, KV dtype, --tp or cache layout"


def engine_totals(evidence: Evidence, metric: str) -> list[tuple[float | None, float]]:
    """(time, sum over engines) of a level, in order; one origin only (metrics before log, as it is sampled
    finer)."""
    rows = [s for s in evidence.samples if s.metric == metric and s.label("stat") is None]
    for origin in ("metrics", "log"):
        chosen = [s for s in rows if s.origin == origin]
        if chosen:
            return _sum_by_time(chosen)
    return _sum_by_time(rows)


def _sum_by_time(rows: list[Sample]) -> list[tuple[float | None, float]]:
    engines = {s.label("engine") or s.label("dp_rank") for s in rows}
    if len(engines) < 2:
        return [(s.ts, s.value) for s in sorted(rows, key=lambda s: s.ts or 0.0)]
    latest: dict[str | None, float] = {}
    out: list[tuple[float | None, float]] = []
    for s in sorted(rows, key=lambda s: s.ts or 0.0):
        latest[s.label("engine") or s.label("dp_rank")] = s.value
        if len(latest) == len(engines):
            if out and out[-1][0] == s.ts:
                out.pop()
            out.append((s.ts, sum(latest.values())))
    return out


def paired(evidence: Evidence, *metrics: str) -> list[tuple[float, ...]]:
    """Values of several levels at the same time stamp, engine and origin, in order."""
    rows: dict[tuple[object, ...], dict[str, float]] = {}
    for s in evidence.samples:
        if s.metric in metrics and s.label("stat") is None and s.ts is not None:
            rows.setdefault((s.origin, s.label("engine"), s.label("iteration"), s.ts), {})[s.metric] = s.value
    whole = [(k, v) for k, v in rows.items() if len(v) == len(metrics)]
    whole.sort(key=lambda kv: float(kv[0][3]))  # type: ignore[arg-type]
    return [tuple(v[m] for m in metrics) for _, v in whole]


def resident_tokens(evidence: Evidence, pool: float | None) -> tuple[float, str] | None:
    """(mean tokens a running sequence holds, how it was found) under load; None where no source tells."""
    exact = paired(evidence, "used_tokens", "running")
    rows = [(used, run) for used, run in exact if run > 0]
    how = "tokens in use / running, as logged"
    if not rows and pool:
        engines = int(float(evidence.setting("kv_engines") or 1))
        rows = [
            (usage * pool / engines, run) for usage, run in paired(evidence, "kv_usage", "running") if run > 0
        ]
        how = "KV usage x pool / running"
    if not rows:
        return None
    peak = max(run for _, run in rows)
    loaded = [(used, run) for used, run in rows if run >= LOADED_SHARE * peak]
    mean = sum(u for u, _ in loaded) / sum(r for _, r in loaded)
    return (mean, how) if mean > 0 else None


def request_lengths(evidence: Evidence) -> tuple[float, float, str] | None:
    """(mean prompt tokens, mean output tokens, source): the benchmark's requests, its totals, then the
    engine's."""
    prompts = [r.prompt_tokens for r in evidence.requests if r.prompt_tokens is not None]
    outputs = [r.output_tokens for r in evidence.requests if r.output_tokens]
    if prompts and outputs:
        return fmean(prompts), fmean(outputs), "benchmark, per request"
    done, tokens_in = evidence.stat_value("completed"), evidence.stat_value("input_tokens")
    tokens_out = evidence.stat_value("output_tokens")
    if done and tokens_in and tokens_out:
        return tokens_in / done, tokens_out / done, "benchmark totals"
    sides = []
    for metric in ("prompt_len", "output_len"):
        total, count = evidence.stat(metric, "sum"), evidence.stat(metric, "count")
        mean = evidence.stat(metric, "mean")
        sides.append(mean if mean else total / count if total and count else None)
    if sides[0] and sides[1]:
        return sides[0], sides[1], "engine histograms"
    asked = evidence.setting("bench_input_len"), evidence.setting("bench_output_len")
    if asked[0] and asked[1]:
        return float(asked[0]), float(asked[1]), "lengths asked of the benchmark"
    return None


def kv_report(
    model: ModelConfig | None, evidence: Evidence, tp: int = 1, pp: int = 1
) -> dict[str, Any] | None:
    """The `kv` entry of the JSON contract; None when neither the model nor any KV evidence is there."""
    kv_dtype = evidence.setting("kv_cache_dtype")
    per_token = model.kv_bytes_per_token(kv_dtype, tp, pp) if model else None
    check = check_pool(model, evidence, tp, pp) if model else None
    text = evidence.setting("kv_pool_tokens")
    pool = int(float(text)) if text else (check.computed if check else None)
    usage = evidence.values("kv_usage")
    waiting = [v for _, v in engine_totals(evidence, "waiting")]
    running = [v for _, v in engine_totals(evidence, "running")]
    preempted = sum(s.value for s in evidence.samples if s.metric == "preemptions")
    told = any(s.metric == "preemptions" for s in evidence.samples) or bool(usage)
    if per_token is None and pool is None and not usage:
        return None
    resident, lengths = resident_tokens(evidence, pool), request_lengths(evidence)
    full = lengths[0] + lengths[1] if lengths else None
    hits = [v for _, v in engine_totals(evidence, "prefix_hit_rate")]
    out: dict[str, Any] = {
        "bytes_per_token": per_token, "kv_dtype": model.kv_dtype(kv_dtype) if model else kv_dtype,
        "budget_tokens": pool, "budget_bytes": float(evidence.setting("kv_pool_bytes") or 0) or None,
        "budget_tokens_computed": check.computed if check else None,
        "computed_vs_logged": check.ratio if check else None, "reading": check.reading if check else None,
        "peak_used_share": max(usage) if usage else None,
        "waiting_max": max(waiting) if waiting else None, "running_max": max(running) if running else None,
        "preemptions": preempted if told else None,
        "tokens_per_sequence_resident": resident[0] if resident else None,
        "tokens_per_sequence_full": full,
        "fits_at_resident": pool / resident[0] if pool and resident else None,
        "fits_at_full_length": pool / full if pool and full else None,
        "prefix_hit_rate": fmean(hits) if hits else None,
        "resident_source": resident[1] if resident else None,
        "length_source": lengths[2] if lengths else None,
        "provenance": "measured" if text else "derived",
    }  # fmt: skip
    return out
