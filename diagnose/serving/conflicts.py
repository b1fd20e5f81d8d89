"""Where two sources state the same thing differently: each disagreement becomes a note, none is averaged
away."""

from collections import defaultdict

from diagnose.serving.evidence_types import Evidence

NoteRow = tuple[str, str, str]
POOL_TOLERANCE = 0.02
"""The log prints the pool in whole blocks and GiB to two digits; beyond 2 % two figures are two servers."""
RATE_TOLERANCE = 0.15
"""Client and engine count over slightly different windows; beyond 15 % they saw different loads."""
_NUMERIC = {"kv_pool_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "tp", "weight_bytes"}
_TEXT = {"model", "dtype", "kv_cache_dtype", "quantization", "engine", "enforce_eager"}


def _plain(text: str) -> str:
    return text.lower().rsplit("/", 1)[-1].removeprefix("torch.")


def _shown(key: str, value: str) -> str:
    return f"{float(value) / 2**30:.2f} GiB" if key.endswith("_bytes") else value


def find_conflicts(e: Evidence) -> list[NoteRow]:
    """(code, message, severity) of each disagreement between log, metrics, benchmark and the user."""
    notes: list[NoteRow] = []
    by_key: dict[str, dict[str, str]] = defaultdict(dict)
    for s in e.settings:
        by_key[s.key][s.origin] = s.value
    from_blocks = e.setting("kv_pool_from_blocks") == "true"
    for key, rows in by_key.items():
        if len(rows) < 2 or not (key in _NUMERIC or key in _TEXT):
            continue
        items = list(rows.items())
        if key in _NUMERIC:
            try:
                values = [float(v) for v in rows.values()]
            except ValueError:
                continue
            low, high = min(values), max(values)
            slack = POOL_TOLERANCE if key in {"kv_pool_tokens", "weight_bytes"} else 0.0
            if high <= low * (1 + slack):
                continue
            if key == "kv_pool_tokens" and from_blocks:
                text = ", ".join(f"{o} {float(v):,.0f}" for o, v in items)
                why = "blocks times block size falls short for latent or windowed caches"
                notes.append(("pool-from-blocks", f"KV pool: {text} tokens; {why}", "info"))
                continue
        elif len({_plain(v) for v in rows.values()} - {"auto", "none"}) < 2:
            continue
        text = ", ".join(f"{o} says {_shown(key, v)}" for o, v in items)
        notes.append(
            (
                "evidence-conflict",
                f"sources disagree on {key.replace('_', ' ')}: {text}; are they of the same server?",
                "warning",
            )
        )
    notes += _rates(e)
    return notes


def _rates(e: Evidence) -> list[NoteRow]:
    """Output tokens as the client counts them against the engine's counter over the same time."""
    duration = e.stat_value("duration_s")
    client = e.stat_value("output_tokens")
    rows = [
        s
        for s in e.samples
        if s.metric == "generation_tokens" and s.origin == "metrics" and s.label("interval_s")
    ]
    if not (duration and client and rows):
        return []
    engine = sum(s.value for s in rows)
    times = [s.ts for s in rows if s.ts is not None]
    first = (
        min(t - float(s.label("interval_s") or 0) for s, t in zip(rows, times, strict=False))
        if times
        else 0.0
    )
    covered = max(times) - first if times else 0.0
    if covered < duration * 0.9:
        return [
            (
                "metrics-part",
                f"metrics cover {covered:.0f} s of a {duration:.0f} s benchmark; levels may miss its ramps",
                "info",
            )
        ]
    if engine and abs(client / engine - 1) > RATE_TOLERANCE:
        text = f"the client counted {client:,.0f} output tokens, the engine {engine:,.0f} in the scraped time"
        return [("evidence-conflict", f"{text}: other clients, or another window", "warning")]
    return []
