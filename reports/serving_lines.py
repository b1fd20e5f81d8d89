"""A served run in a line each: latency, load, KV cache, and what is in reach."""

from __future__ import annotations

from diagnose.contract import Diagnosis
from diagnose.reports.numbers import count, duration, interval, percent, sig3
from diagnose.reports.serving import fact, stopped_by, whole


def latency_line(d: Diagnosis) -> str:
    """Latencies and throughput of the run in one line, '' without any."""
    latency = d.latency or {}
    parts = []
    for key, short in (("ttft_ms", "TTFT"), ("itl_ms", "ITL"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E")):
        stats = latency.get(key)
        if not isinstance(stats, dict) or (key == "tpot_ms" and latency.get("itl_ms")):
            continue
        named = [(q, stats.get(q)) for q in ("mean", "p50", "p99")]
        told = [f"{q} {duration(v * 1e6)}" for q, v in named if isinstance(v, int | float)]
        if told:
            parts.append(f"{short} {', '.join(told[-2:])}")
    rate = latency.get("throughput_tok_s")
    if isinstance(rate, int | float):
        parts.append(f"{sig3(rate)} tokens/s")
    return " · ".join(parts)


def kv_line(d: Diagnosis) -> str:
    """KV pool, how full it ran, what it holds; '' where nothing is known."""
    kv, parts = d.kv or {}, []
    if kv.get("budget_tokens"):
        parts.append(f"pool {count(kv['budget_tokens'])} tokens")
    if kv.get("bytes_per_token"):
        parts.append(f"{count(kv['bytes_per_token'])} B a token")
    if kv.get("peak_used_share") is not None:
        parts.append(f"most used {percent(kv['peak_used_share'])}")
    if kv.get("fits_at_resident"):
        parts.append(
            f"holds {count(whole(kv['fits_at_resident']))} sequences of {count(round(kv['tokens_per_sequence_resident']))} tokens"
        )
    return " · ".join(parts)


def load_line(d: Diagnosis) -> str:
    """Running, waiting and slots in one line; '' where nothing is known."""
    parts = []
    for name, label in (
        ("offered", "in flight"),
        ("running", "running"),
        ("waiting", "waiting"),
        ("slot_cap", "slots"),
    ):
        if (row := fact(d, name)) is not None:
            about = "about " if row.get("provenance") == "derived" else ""
            parts.append(f"{label} {about}{count(round(row['value']))}")
    return ", ".join(parts)


def outlook_line(d: Diagnosis) -> str:
    """Ceiling and useful batch in one line; '' where neither is known."""
    parts = []
    c, u = d.ceiling or {}, d.useful_batch or {}
    if c.get("tok_s") is not None:
        share = f" ({percent(c['achieved_share'])} reached)" if c.get("achieved_share") is not None else ""
        parts.append(f"decode ceiling {sig3(c['tok_s'])} tokens/s at batch {count(c.get('batch'))}{share}")
    if u.get("batch") is not None:
        parts.append(f"useful batch {count(u['batch'])}, stopped by {stopped_by(u)}")
    gain = u.get("gain_of_doubling")
    if isinstance(gain, list):
        parts.append(f"twice the batch: {interval(gain[0], gain[1], 'ratio')}")
    return " · ".join(parts)
