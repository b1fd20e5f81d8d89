"""What engine settings and levels explain of a change of the served load: pool, slots, queue, batch."""

from dataclasses import dataclass

from diagnose.contract import Diagnosis
from diagnose.settle import say
from diagnose.settle.comparable import setting
from diagnose.settle.comparison import MetricChange
from diagnose.settle.serving_metrics import ITL, SERVING, TPOT, TTFT

GROWN = 1.10
"""A pool or cap that grew by a tenth is another setting, not rounding."""


@dataclass(frozen=True, slots=True)
class Served:
    """Sentences, and the limit that the change is put down to (None: nothing stated explains it)."""

    why: list[str]
    cause: str | None


def number(d: Diagnosis, part: str, key: str) -> float | None:
    """A number of the result's `kv` or `latency`, or a setting of the engine."""
    value = (d.kv if part == "kv" else d.latency if part == "latency" else None) or {}
    found = setting(d, key) if part == "setting" else value.get(key)
    try:
        return float(found) if found is not None else None
    except (TypeError, ValueError):
        return None


def limits_of(d: Diagnosis) -> set[str]:
    """Serving limits that the report of a run carries."""
    return {
        h.limit
        for h in d.hypotheses
        if h.status in ("supported", "possible") and (h.rule or "").startswith("serving-")
    }


def explain(before: Diagnosis, after: Diagnosis, metrics: list[MetricChange]) -> Served:
    """Why the served load changed, from what both sides state."""
    served = [m for m in metrics if m.metric in SERVING]
    if not served:
        return Served([], None)
    moved = any(m.verdict in ("improved", "regressed") for m in served)
    why: list[str] = []
    cause = None
    for key, part, label, unit, limit in (
        ("budget_tokens", "kv", "The KV pool", "tokens", "kv_capacity"),
        ("max_num_seqs", "setting", "The cap on concurrent sequences", "", "scheduling"),
        ("max_num_batched_tokens", "setting", "The token budget of an iteration", "tokens", "scheduling"),
    ):
        a, b = number(before, part, key), number(after, part, key)
        if not a or not b or 1 / GROWN < b / a < GROWN:
            continue
        bound = limit in limits_of(before) if b > a else limit in limits_of(after)
        text = f"{label} {'grew' if b > a else 'shrank'}, {a:,.0f} → {b:,.0f}{' ' + unit if unit else ''} ({b / a:.3g} ×)"
        levels = _levels(before, after)
        text += f"{': ' + levels if levels else ''}. "
        side = "before" if b > a else "after"
        if bound and moved:
            text += f"It limited the run {side}, so it is taken for the cause."
            cause = cause or limit
        elif moved:
            text += f"The {side}-report does not show it as the limit, so it is not taken for the cause."
        else:
            text += "Nothing moved: it did not bind."
        why.append(text)
    why += _tokens(metrics, cause)
    if moved and not why:
        why.append(_open(before, after))
    return Served(why, cause)


def _levels(before: Diagnosis, after: Diagnosis) -> str:
    parts = []
    for key, label in (("running_max", "running at most"), ("waiting_max", "waiting at most")):
        a, b = number(before, "kv", key), number(after, "kv", key)
        if a is not None and b is not None and a != b:
            parts.append(f"{label} {a:,.0f} → {b:,.0f}")
    return say.listed(parts)


def _tokens(metrics: list[MetricChange], cause: str | None) -> list[str]:
    """What TTFT and the gap between tokens say together: which side of the service moved."""
    by = {m.metric: m for m in metrics}
    gap, first = by.get(ITL) or by.get(TPOT), by.get(TTFT)
    if gap is None or first is None or {gap.verdict, first.verdict} != {"improved", "regressed"}:
        return []
    better, worse = (first, gap) if first.verdict == "improved" else (gap, first)
    names = {
        first.metric: "requests get their first token",
        gap.metric: f"tokens follow each other ({gap.metric})",
    }
    text = (
        f"{names[better.metric][0].upper()}{names[better.metric][1:]} faster, {names[worse.metric]} slower: "
    )
    if cause in ("kv_capacity", "scheduling") and worse is gap:
        return [
            text + "more sequences share a step, so the gap between tokens grows while the queue shrinks."
        ]
    return [
        text + "prefill (or the queue before it) and decode moved in opposite directions; look at them apart."
    ]


def _open(before: Diagnosis, after: Diagnosis) -> str:
    versions = setting(before, "engine_version"), setting(after, "engine_version")
    what = (
        f"engine version {versions[0]} → {versions[1]}"
        if all(versions) and versions[0] != versions[1]
        else "what was changed"
    )
    kernels = any(d.kernels for d in (before, after))
    ask = "" if kernels else "; a trace of both sides would say whether kernels, gaps or scheduling moved"
    return f"Neither pool, slots nor token budget is known to differ, so the benchmark alone cannot say how {what} did it{ask}."
