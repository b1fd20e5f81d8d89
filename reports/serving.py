"""A served run in words and tables: load and queue, KV cache, the decode ceiling, the batch worth running, quantising."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import Column, Table
from diagnose.reports.numbers import UNKNOWN, byte_size, count, duration, interval, percent, quantity, sig3
from diagnose.reports.text import clean, sentence
from diagnose.reports.words import PROVENANCE, words

# Rows of the load table in reading order: the name in `load`, and how it is called.
_LOAD = {
    "offered": "requests in flight, client",
    "open_rate": "arrival rate offered",
    "running": "running, median",
    "running_peak": "running, most",
    "slot_cap": "slots",
    "waiting": "waiting, median",
    "waiting_peak": "waiting, most",
    "waiting_share": "samples with a queue",
    "queue_ms": "time in the queue, mean",
    "queue_share": "queue of the first token",
    "token_budget": "token budget of an iteration",
    "at_budget_share": "iterations at the budget",
    "kv_usage": "KV pool in use, median",
    "kv_peak": "KV pool in use, most",
    "preemptions": "preemptions",
    "prefix_hit": "prefix cache hits",
    "engine_spread": "busiest engine over the mean",
    "host_over_device": "host over device time a step",
    "forward_share": "time in the forward pass",
    "front_end_share": "first token outside the engine",
    "interference_share": "prefill in the token gap",
    "graph_max_batch": "largest captured batch",
    "spec_accept_len": "tokens kept a verification",
}
_STOP = {
    "kv_wall": "the KV pool",
    "slots": "the slots",
    "slo_itl": "the inter-token target",
    None: "nothing that is known",
}
_METHOD = {
    "fp8": "FP8 weights",
    "int8": "INT8 weights",
    "int4": "INT4 weights",
    "awq": "AWQ 4-bit weights",
    "w4a8": "W4A8",
    "llm.int8": "LLM.int8()",
    "fp8_kv": "FP8 KV cache",
}


def is_served(d: Diagnosis) -> bool:
    """Whether the result holds serving evidence."""
    return bool(d.latency or d.load)


def setting(d: Diagnosis, key: str) -> str:
    """An engine setting's value, the user's first, then the log's, a settings file's, the metrics', the benchmark's."""
    rank = {"user": 0, "log": 1, "settings": 2, "metrics": 3, "bench": 4}
    rows = sorted(
        (r for r in d.engine_config if r.get("key") == key), key=lambda r: rank.get(str(r.get("origin")), 9)
    )
    return clean(rows[0].get("value")) if rows else ""


def fact(d: Diagnosis, name: str) -> dict[str, Any] | None:
    """A fact of the load with a number, None where it is not known."""
    row = (d.load or {}).get(name)
    return row if isinstance(row, dict) and isinstance(row.get("value"), int | float) else None


def _amount(row: dict[str, Any]) -> str:
    unit = clean(row.get("unit"))
    if unit in {"requests", "samples", "tokens", "events"}:
        return count(row["value"])
    return quantity(row["value"], {"x": "ratio"}.get(unit, unit))


def _sign(row: dict[str, Any]) -> str:
    provenance = str(row.get("provenance"))
    return PROVENANCE[provenance][0] if provenance in PROVENANCE else ""


def load_table(d: Diagnosis) -> Table | None:
    """Load, queue and scheduling as the sources state them, each with how it was found."""
    rows = [
        [label, _amount(row), f"{_sign(row)} {clean(row.get('text'))}".strip()]
        for name, label in _LOAD.items()
        if (row := fact(d, name)) is not None
    ]
    columns = [
        Column("what", numeric=False),
        Column("value"),
        Column("how it was found", numeric=False),
    ]
    return Table("Load, queue and scheduling", columns, rows) if rows else None


def kv_table(d: Diagnosis) -> Table | None:
    """The KV cache: bytes a token, pool against its arithmetic, what it was seen to hold, and what fits."""
    kv = d.kv or {}
    if not kv:
        return None
    rows: list[list[str]] = []

    def add(label: str, text: str | None, note: Any = "") -> None:
        if text and text != UNKNOWN:
            rows.append([label, text, clean(note)])

    def number(key: str) -> float | None:
        value = kv.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    add(
        "bytes a token",
        f"{count(number('bytes_per_token'))} B" if number("bytes_per_token") else None,
        "a GPU, all caching layers",
    )
    add("kept as", clean(kv.get("kv_dtype")))
    pool = number("budget_tokens")
    add(
        "pool",
        f"{count(pool)} tokens" if pool else None,
        byte_size(number("budget_bytes")) + " a GPU" if number("budget_bytes") else "",
    )
    computed = number("budget_tokens_computed")
    add("pool, computed", f"{count(computed)} tokens" if computed else None, kv.get("reading"))
    add("most in use", percent(number("peak_used_share")), kv.get("peak_source"))
    add("preempted", count(number("preemptions")))
    resident = number("tokens_per_sequence_resident")
    add(
        "a running sequence holds",
        f"{count(round(resident))} tokens" if resident else None,
        str(kv.get("resident_source") or "").rsplit(": ", 1)[-1],
    )
    add(
        "sequences that fit at that",
        count(whole(number("fits_at_resident"))) if resident else None,
        "pool ÷ tokens a sequence holds",
    )
    full = number("tokens_per_sequence_full")
    add(
        "a sequence at its full length",
        f"{count(round(full))} tokens" if full else None,
        kv.get("length_source"),
    )
    add(
        "sequences that fit at full length",
        count(whole(number("fits_at_full_length"))) if full else None,
        "the worst case only",
    )
    add("prefix cache hits", percent(number("prefix_hit_rate")))
    columns = [
        Column("what", numeric=False),
        Column("value", "", kv.get("provenance")),
        Column("note", numeric=False),
    ]
    return Table("KV cache", columns, rows) if rows else None


def whole(value: float | None) -> float | None:
    """Sequences as a whole number."""
    return None if value is None else float(round(value))


def ratio_remarks(d: Diagnosis) -> list[str]:
    """Prefill against decode, in tokens and in time, and what each side would gain."""
    ratio = (d.latency or {}).get("prefill_decode_ratio")
    if not isinstance(ratio, dict):
        return []
    lines = []
    tokens = ratio.get("tokens")
    if isinstance(tokens, dict):
        computed = tokens.get("computed_prompt")
        of = (
            f", {count(round(computed))} of them computed"
            if computed is not None and computed < tokens["prompt"]
            else ""
        )
        lines.append(
            f"Prefill to decode in tokens: {count(round(tokens['prompt']))} prompt{of} to {count(round(tokens['output']))} output, "
            f"{sig3(tokens['ratio'])} : 1 ({clean(tokens.get('source'))})."
        )
    time = ratio.get("time")
    if isinstance(time, dict) and isinstance(time.get("prefill_share"), int | float):
        lines.append(
            f"In time ({clean(time.get('source'))}): prefill {percent(time['prefill_share'])}, decode {percent(time['decode_share'])}. "
            f"Halving prefill's work would free {percent(time['prefill_share'] / 2)} of it, halving decode's "
            f"{percent(time['decode_share'] / 2)}{_limits(d)}."
        )
    return lines


def _limits(d: Diagnosis) -> str:
    told = [
        f"{p.phase} by {words(p.limit)}"
        for p in d.phases
        if p.phase in {"prefill", "decode"} and p.limit != "inconclusive"
    ]
    return f"; the trace limits {' and '.join(told)}" if told else ""


def ceiling_text(d: Diagnosis) -> str:
    """The decode ceiling in a sentence, or which condition withholds it; '' where nothing was asked."""
    c = d.ceiling
    if not c:
        return ""
    if c.get("tok_s") is None:
        failed = [r for r in c.get("conditions") or [] if r.get("holds") is False] or [
            r for r in c.get("conditions") or [] if r.get("holds") is None
        ]
        why = "; ".join(f"not {clean(r.get('condition'))} ({clean(r.get('detail'))})" for r in failed)
        return sentence(f"No decode ceiling is given: {why or 'a condition is not known'}")
    context = (
        ""
        if c.get("context_tokens") is None
        else f" and {count(round(c['context_tokens']))} tokens of context"
    )
    text = (
        f"At batch {count(c.get('batch'))}{context} ({clean(c.get('at'))}) a step must read {byte_size(c.get('weight_bytes'))} of weights and "
        f"{byte_size(c.get('kv_bytes'))} of KV: at least {sig3(c.get('step_ms'))} ms, a ceiling of {sig3(c['tok_s'])} tokens/s"
    )
    if c.get("achieved_tok_s") is not None:
        text += f"; {sig3(c['achieved_tok_s'])} were made ({percent(c.get('achieved_share'))} of it)"
    return sentence(text)


def ceiling_table(d: Diagnosis) -> Table | None:
    """The conditions under which the ceiling holds."""
    conditions = (d.ceiling or {}).get("conditions") or []
    rows = [
        [
            clean(c.get("condition")),
            {True: "yes", False: "no"}.get(c.get("holds"), UNKNOWN),
            clean(c.get("detail")),
        ]
        for c in conditions
    ]
    columns = [
        Column("condition", numeric=False),
        Column("holds", numeric=False),
        Column("detail", numeric=False),
    ]
    return Table("Conditions of the decode ceiling", columns, rows) if rows else None


def stopped_by(useful: dict[str, Any]) -> str:
    """What stops the useful batch, in words."""
    code = useful.get("stopped_by")
    return _STOP.get(code) or clean(words(str(code)))


def batch_remarks(d: Diagnosis) -> list[str]:
    """The batch worth running: what stops it, what more would gain, and what the targets say."""
    u = d.useful_batch
    if not u:
        return []
    lines = []
    gain = u.get("gain_of_doubling")
    now = f"now {count(u['now'])}" if isinstance(u.get("now"), int | float) else ""
    if u.get("batch") is None and u.get("stopped_by") is None:
        text = f"Nothing that is known stops the batch ({now}): slots and the KV pool are in the server's log or metrics"
        lines.append(sentence(text))
    elif u.get("batch") is None:
        lines.append(
            f"No batch meets the inter-token target of {sig3(u.get('slo_itl_ms'))} ms for certain ({now})."
        )
    else:
        best = u.get("batch_at_best")
        at_best = f", {count(best)} at best" if best is not None and best != u["batch"] else ""
        lines.append(
            sentence(f"Useful batch: {count(u['batch'])}{at_best}, stopped by {stopped_by(u)}; {now}")
        )
    if isinstance(gain, list):
        text = f"Twice the present batch makes {interval(gain[0], gain[1], 'ratio')} the tokens a second"
        if u.get("flattens_at"):
            text += f"; from batch {count(u['flattens_at'])} on twice the batch gains less than a tenth"
        lines.append(sentence(text))
    marks = [
        ("the KV pool holds", whole(u.get("kv_wall"))), ("slots", u.get("slots")), ("captured graphs reach", u.get("graph_max_batch")),
        ("KV reads equal weight reads at", whole(u.get("crossover"))),
    ]  # fmt: skip
    known = [f"{label} {count(value)}" for label, value in marks if value]
    if known:
        lines.append(sentence("In sequences: " + ", ".join(known)))
    if u.get("slo_ttft_ms") is not None:
        least = u.get("prefill_least_ms")
        told = (
            f"computing a mean prompt takes at least {duration(least * 1e6)}; queueing comes on top and is not predicted"
            if isinstance(least, int | float)
            else "the prompt's least time is unknown: it needs --model, --device and the prompt lengths"
        )
        lines.append(sentence(f"First token within {duration(u['slo_ttft_ms'] * 1e6)}: {told}"))
    return lines


def quantisation_table(d: Diagnosis) -> Table | None:
    """What quantising would do to each phase's step, from measured kernel ratios; below 1 is slower."""
    pools = any(r.get("pool_tokens") for r in d.quantization)
    columns = [
        Column("change", numeric=False), Column("phase", numeric=False), Column("step, times as fast", "×", "derived"),
        Column("tokens a step"), Column("share of the step it changes", "%", "derived"),
        *([Column("KV pool then", "tokens", "derived")] if pools else []),
    ]  # fmt: skip
    rows = [
        [
            _METHOD.get(str(r.get("method")), clean(r.get("method"))), clean(r.get("phase")),
            interval(r.get("low"), r.get("high"), "").removeprefix("about "), count(round(float(r.get("tokens") or 0))),
            _shares(r), *([count(round(r["pool_tokens"])) if r.get("pool_tokens") else UNKNOWN] if pools else []),
        ]
        for r in d.quantization
    ]  # fmt: skip
    return Table("What quantising would do", columns, rows) if rows else None


def quantisation_remarks(d: Diagnosis) -> list[str]:
    """Where the ratios were measured, and what part of a step nothing was measured for."""
    lines = []
    for method in dict.fromkeys(str(r.get("method")) for r in d.quantization):
        rows = [r for r in d.quantization if r.get("method") == method]
        sources = dict.fromkeys(clean(s) for r in rows for s in r.get("sources") or [])
        left = max((float(r.get("unmeasured_share") or 0.0) for r in rows), default=0.0)
        more = f" (and {len(sources) - 1} more classes of size)" if len(sources) > 1 else ""
        text = f"{_METHOD.get(method, clean(method))}: {next(iter(sources), 'source not stated')}{more}"
        if left >= 0.005:
            text += f"; nothing measured for {percent(left)} of the step, kept as it is"
        lines.append(sentence(text))
    return lines


def _shares(row: dict[str, Any]) -> str:
    low, high = row.get("share"), row.get("share_high")
    if not isinstance(low, int | float):
        return UNKNOWN
    first = percent(low).removesuffix(" %")
    last = percent(high).removesuffix(" %") if isinstance(high, int | float) else first
    return first if first == last else f"{first}–{last}"
