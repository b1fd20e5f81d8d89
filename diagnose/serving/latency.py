"""Latency as each source saw it: time to first token, gaps between tokens, end to end, throughput, and
their parts.

A distribution is taken from one source and carries its name; a mean is never shown as a median, TPOT (one
value a request) never as ITL (one a token). The split exists only where the engine states its parts: a
queue, a prefill, iterations.
"""

import math
from statistics import stdev
from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.latency_split import itl_parts, itl_split, ttft_parts, ttft_split
from diagnose.serving.stats import bucket_quantile

STATS = ("mean", "p50", "p90", "p99")
DISAGREE = 0.10
"""Client and engine clock the same request from two ends of a connection; beyond 10 % the difference is
worth a line."""


def buckets(evidence: Evidence, metric: str) -> list[tuple[float, float]]:
    """Cumulative (upper bound, count) pairs of a histogram, sorted."""
    rows = [
        (math.inf if s.label("le") == "+Inf" else float(s.label("le") or "nan"), s.value)
        for s in evidence.samples
        if s.metric == metric and s.label("stat") == "bucket"
    ]
    return sorted(r for r in rows if not math.isnan(r[0]))


def from_client(evidence: Evidence, metric: str) -> dict[str, Any] | None:
    """A benchmark's distribution of a latency: its own statistics, else those computed from its rows."""
    out: dict[str, Any] = {stat: evidence.stat(metric, stat, "bench") for stat in STATS}
    if all(v is None for v in out.values()):
        return None
    n = evidence.stat(metric, "n", "bench")
    spread = evidence.stat(metric, "std", "bench") or _spread(evidence, metric)
    bins = client_bins(evidence, metric)
    return {
        **out, "count": int(n) if n else None, "max": evidence.stat(metric, "max", "bench"),
        **({"std": spread} if spread else {}), **({"histogram": bins} if bins else {}), "source": "client",
        "provenance": "measured",
    }  # fmt: skip


def client_bins(evidence: Evidence, metric: str) -> list[dict[str, Any]]:
    """The benchmark's own values as {low, high, count} in ms, in order; empty where it lists none."""
    rows = [
        (float(s.label("low") or 0), float(s.label("high") or 0), int(s.value))
        for s in evidence.samples
        if s.metric == metric and s.label("stat") == "bin"
    ]
    return [{"low": low, "high": high, "count": n} for low, high, n in sorted(rows)]


def engine_bins(rows: list[tuple[float, float]]) -> list[dict[str, Any]]:
    """Cumulative (upper bound, count) pairs as {low, high, count}, the empty ends left out; high None is the open last bucket."""
    bins: list[dict[str, Any]] = []
    below, low = 0.0, 0.0
    for bound, total in rows:
        bins.append(
            {"low": low, "high": None if math.isinf(bound) else bound, "count": int(max(0.0, total - below))}
        )
        below, low = max(below, total), bound
    filled = [i for i, b in enumerate(bins) if b["count"]]
    return bins[filled[0] : filled[-1] + 1] if filled else []


def _spread(evidence: Evidence, metric: str) -> float | None:
    """Standard deviation over the benchmark's requests, where it lists them."""
    rows = [v for r in evidence.requests if (v := getattr(r, metric, None)) is not None]
    return stdev(rows) if len(rows) >= 2 and metric in {"ttft_ms", "e2e_ms"} else None


def from_engine(evidence: Evidence, metric: str) -> dict[str, Any] | None:
    """An engine histogram as a distribution. Quantiles lie inside a bucket: `bounds` gives its edges."""
    rows = buckets(evidence, metric)
    count, total = evidence.stat(metric, "count"), evidence.stat(metric, "sum")
    if not count or total is None:
        return None
    out: dict[str, Any] = {
        "mean": total / count,
        "count": int(count),
        "source": "engine",
        "provenance": "measured",
    }
    bounds = {}
    for stat, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        found = bucket_quantile(rows, q)
        out[stat] = found[0] if found else None
        if found:
            bounds[stat] = [found[1], None if math.isinf(found[2]) else found[2]]
    bins = engine_bins(rows)
    return {**out, "bounds": bounds, **({"histogram": bins} if bins else {})}


def distributions(evidence: Evidence, metric: str) -> dict[str, dict[str, Any]]:
    """The same latency by source: client, engine, either or both."""
    found = {"client": from_client(evidence, metric), "engine": from_engine(evidence, metric)}
    return {k: v for k, v in found.items() if v is not None}


def throughput(evidence: Evidence) -> tuple[float | None, str | None]:
    """(output tokens a second, source): the client's figure, else the engine's counter over its time, else
    its gauge."""
    client = evidence.stat_value("output_tok_s", "bench")
    if client:
        return client, "client"
    rows = [s for s in evidence.samples if s.metric == "generation_tokens" and s.label("interval_s")]
    engines = {s.label("engine") for s in rows}
    spans = sum(float(s.label("interval_s") or 0) for s in rows) / max(1, len(engines))
    if spans > 0 and (tokens := sum(s.value for s in rows)) > 0:
        return tokens / spans, "engine counter"
    busy = [v for v in evidence.values("generation_tok_s") if v > 0]
    if busy:
        return sum(busy) / len(busy), "engine log, mean of busy lines"
    return None, None


def _disagreements(evidence: Evidence) -> list[dict[str, Any]]:
    """Means that client and engine state differently, and where the difference can sit."""
    where = {
        "ttft_ms": "connection, front end (HTTP, tokenising) or queueing before the engine's clock starts",
        "e2e_ms": "connection, front end, streaming and detokenising after the engine's last token",
        "itl_ms": "streaming and detokenising between engine and client, or several tokens a chunk",
        "tpot_ms": "streaming and detokenising between engine and client",
    }
    out = []
    for metric, text in where.items():
        both = distributions(evidence, metric)
        if len(both) < 2 or not both["client"]["mean"] or not both["engine"]["mean"]:
            continue
        client, engine = both["client"]["mean"], both["engine"]["mean"]
        if abs(client - engine) > DISAGREE * max(client, engine):
            side = (
                text if client > engine else "the engine's histogram covers other requests or another window"
            )
            out.append({"metric": metric, "client_mean": client, "engine_mean": engine,
            "difference": client - engine, "where": side})  # fmt: skip
    return out


def latency_report(
    evidence: Evidence, step_period_ms: float | None = None, gap_ms: float | None = None
) -> dict[str, Any] | None:
    """The `latency` entry of the JSON contract, None when no source states a latency or a throughput.

    `step_period_ms` and `gap_ms` are the trace's decode step period and gap between steps, for reconciling
    ITL.
    """
    by_metric = {
        m: distributions(evidence, m) for m in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")
    }
    rate, rate_source = throughput(evidence)
    if not any(by_metric.values()) and rate is None:
        return None
    out: dict[str, Any] = {}
    for metric, found in by_metric.items():
        out[metric] = found.get("client") or found.get("engine")
        if len(found) == 2:
            out.setdefault("engine", {})[metric] = found["engine"]
    out["throughput_tok_s"] = rate
    out["throughput_source"] = rate_source
    out["requests_s"] = evidence.stat_value("request_s", "bench")
    out["completed"] = evidence.stat_value("completed", "bench")
    out["failed"] = evidence.stat_value("failed", "bench")
    ttft, itl = ttft_split(evidence), itl_split(evidence, step_period_ms, gap_ms)
    out["split"] = {"ttft": ttft_parts(ttft), "itl": itl_parts(itl)}
    out["split_detail"] = {"ttft": ttft, "itl": itl}
    itl["rest_ms"] = _itl_rest(out, itl)
    out["disagreements"] = _disagreements(evidence)
    out["reconciliation"] = _reconcile(out, step_period_ms)
    out["provenance"] = "measured"
    return out


def _itl_rest(report: dict[str, Any], split: dict[str, Any]) -> float | None:
    """Mean gap that the reader saw less the parts known of the engine's iterations: streaming, detokenising, preemption.

    None where iterations do not give the parts, or there is no mean to hold them against.
    """
    seen = (report["itl_ms"] or report["tpot_ms"] or {}).get("mean")
    if split["source"] != "iteration lines" or seen is None:
        return None
    return float(seen) - sum(itl_parts(split).values())


def _reconcile(report: dict[str, Any], step_period_ms: float | None) -> dict[str, Any] | None:
    """The client's median gap beside the trace's step period: they agree when one step makes one token a
    stream."""
    itl = report["itl_ms"] or {}
    if step_period_ms is None or itl.get("p50") is None:
        return None
    ratio = itl["p50"] / step_period_ms
    if abs(ratio - 1) <= DISAGREE:
        reading = "the median gap between tokens is the traced decode step"
    elif ratio > 1:
        reading = (
            "tokens come slower than the traced steps: a lighter moment was traced, or time passes outside"
        )
    else:
        reading = (
            "tokens come faster than the traced steps: several tokens a step, or a heavier moment was traced"
        )
    return {"itl_p50_ms": itl["p50"], "step_period_ms": step_period_ms, "ratio": ratio, "reading": reading}
