"""A comparison as plain texts, lists and tables, ready for a page, Markdown or a terminal: wording and order only."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.reports.numbers import UNKNOWN, byte_size, count, duration, sig3
from diagnose.reports.text import clean, keep_units, sentence, shorten
from diagnose.reports.words import bucket_label, limit_name, words
from diagnose.settle import say
from diagnose.settle.comparison import Comparison, Delta, Difference, MetricChange, SideInfo
from diagnose.settle.quantized import added_by_phase

# Sign, word: a verdict is never told by colour alone.
VERDICT: dict[str, tuple[str, str]] = {
    "improved": ("▲", "improved"),
    "regressed": ("▼", "regressed"),
    "mixed": ("◆", "mixed"),
    "no_change": ("=", "no change"),
    "inconclusive": ("?", "inconclusive"),
    "withheld": ("⊘", "withheld"),
    "confirmed": ("▲", "confirmed"),
    "refuted": ("▼", "refuted"),
    "not_tested": ("?", "not tested"),
}
NOISE: dict[str, str] = {
    "steps": "paired steps",
    "runs": "spread between repeats",
    "requests": "spread of requests",
    "calls": "spread of calls",
    "load points": "spread over load points",
    "window": "bounded: one window a side",
    "assumed": "assumed: the file states no spread",
    "single": "unknown",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A metric in texts."""

    name: str
    verdict: str
    before: str
    after: str
    unit: str
    change: str
    interval: str
    noise: str
    samples: str
    reason: str
    headline: bool


def mark(verdict: str) -> str:
    """`▲ improved`, unbreakable."""
    sign, word = VERDICT.get(verdict, ("", words(verdict)))
    return f"{sign} {word}".strip().replace(" ", "\u00a0")


def files(side: SideInfo) -> str:
    """The inputs of a side."""
    return ", ".join(dict.fromkeys(clean(s.path) for run in side.source for s in run)) or UNKNOWN


def title_of(c: Comparison) -> str:
    """`before.json → after.json`."""
    return f"{shorten(files(c.before), 48)} → {shorten(files(c.after), 48)}"


def headline(c: Comparison) -> str:
    """The whole answer in one sentence."""
    return sentence(c.verdict.summary)


def headline_parts(c: Comparison) -> tuple[str, str]:
    """The answer's first clause, for a heading, and the rest of the sentence for the text under it."""
    first, _, rest = c.verdict.summary.partition("; ")
    return sentence(first), sentence(rest)


def rows(c: Comparison) -> list[Row]:
    """Metrics: what decides first, then the parts that explain it."""
    return [_row(m) for m in sorted(c.metrics, key=lambda m: not m.headline)]


def _row(m: MetricChange) -> Row:
    unit = m.unit.split(" per ")[0]
    low, high = say.pct(m.low), say.pct(m.high)
    note = f"{m.note}; " if m.note else ""
    # What the column already says is no reason.
    reason = m.reason or ""
    return Row(
        name=clean(say.metric(m)), verdict=m.verdict, before=sig3(m.before), after=sig3(m.after), unit=clean(unit), change=keep_units(say.pct(m.change)),
        interval=UNKNOWN if m.low is None else keep_units(f"{low} to {high}"), noise=NOISE.get(m.noise, m.noise), samples=_samples(m),
        reason=sentence(f"{note}{reason}".rstrip("; ")), headline=m.headline,
    )  # fmt: skip


def _samples(m: MetricChange) -> str:
    if not any(m.samples):
        return ""
    what = {"steps": "steps", "calls": "calls", "window": "units", "load points": "points"}.get(
        m.noise, "samples"
    )
    if m.noise in ("requests", "assumed"):
        what = "requests"
    a, b = (count(n) for n in m.samples)
    return f"{a} {what}" if a == b else f"{a} and {b} {what}"


def differences(c: Comparison) -> tuple[list[str], list[str]]:
    """(differences that withhold a verdict, differences that are only named), in words."""
    return [_difference(d) for d in c.comparability if d.withholds], [
        _difference(d) for d in c.comparability if not d.withholds
    ]


def _difference(d: Difference) -> str:
    text = f"{d.what}: {d.before} → {d.after}"
    if d.note:
        text += f" ({d.note})"
    if d.withholds:
        text += f". No verdict on {say.listed(d.withholds[:4])}{' and more' if len(d.withholds) > 4 else ''}"
    return sentence(clean(text))


def deltas(c: Comparison) -> list[Delta]:
    """All splits, the main one first."""
    return [d for d in [c.delta, *c.deltas] if d is not None]


def delta_title(d: Delta) -> str:
    """The finding of a split: the part that moved most, against the whole."""
    moved = [r for r in d.roles if r.change_ns]
    whole = f"{say.pair(d.before_ns, d.after_ns)} per {d.unit}"
    if not moved:
        return f"Nothing moved: {whole}"
    top = moved[0]
    return (
        f"{role_label(top.role)}: {say.signed_time(top.change_ns)} of {say.signed_time(d.total_ns)} ({whole})"
    )


_ROLES = {
    "attn_prefill": "attention", "attn_decode": "attention, decode", "attn_merge": "attention, merge", "copy_cat": "copy, cast, concatenate",
    "nccl": "collectives", "custom_comm": "collectives", "copy_dtod": "device copies", "gemm": "matrix products", "gemm_lowp": "low-precision products",
    "gemm_w4a16": "weight-only products", "moe_gemm": "expert products", "kv_write": "KV cache writes",
}  # fmt: skip


def role_label(role: str) -> str:
    """A role, or a kind of idle time, as the charts call it."""
    return bucket_label(role) if role.startswith("idle_") else _ROLES.get(role, role.replace("_", " "))


def limit_lines(c: Comparison) -> list[str]:
    """What limited each phase before and after."""
    out = []
    for x in c.limits:
        where = x.phase or words(x.objective)
        where = "the window" if where == "other" else where
        same = x.before == x.after
        out.append(
            sentence(
                f"{where}: {limit_name(x.before)}"
                + (" on both sides" if same else f" before, {limit_name(x.after)} after")
            )
        )
    return out


def bet_lines(c: Comparison) -> list[tuple[str, str, str]]:
    """(verdict, hypothesis, reason) of each hypothesis of the before-report."""
    order = {"confirmed": 0, "refuted": 1, "not_tested": 2}
    return [
        (b.verdict, clean(f"{limit_name(b.limit)} ({b.hypothesis})"), sentence(b.reason))
        for b in sorted(c.hypotheses, key=lambda b: order.get(b.verdict, 3))
    ]


def quant_lines(c: Comparison) -> list[str]:
    """The quantisation view in sentences."""
    q = c.quantization
    if not q:
        return []
    out = [
        f"{row['phase'] if row['phase'] != 'other' else 'window'}: {row['reading']}" for row in q["phases"]
    ]
    weights = q["weights"]
    if weights and weights["bytes_before"] and weights["bytes_after"]:
        out.append(
            f"weights held: {byte_size(weights['bytes_before'])} → {byte_size(weights['bytes_after'])} ({weights['ratio']:.2f} ×)"
        )
    for phase, ns in added_by_phase(q).items():
        mine = [k for k in q["added_kernels"] if k["phase"] == phase]
        names = ", ".join(f"{k['work']} {duration(k['ns_per_unit'])}" for k in mine[:4])
        where = "window" if phase == "other" else phase
        out.append(
            f"{where}: added quantising and dequantising kernels take {duration(ns)} per unit ({names})"
        )
    if q["kv"]:
        out.append(q["kv"]["text"])
    if not q["phases"]:
        out.append(
            "no trace shows both formats' products, so what the smaller weights did to them is not known"
        )
    out.append(f"quality: {q['quality']}")
    return [sentence(clean(line)) for line in out]


def notes(c: Comparison) -> list[str]:
    """Remarks on how the comparison was made."""
    return [sentence(clean(n)) for n in c.notes]
