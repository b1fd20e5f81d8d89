"""The batching view: what another batch gained and cost, and whether the what-if curve of the before-run foresaw it."""

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.devices import Roofs, resolve
from diagnose.errors import UsageError
from diagnose.run.step_parts import step_parts
from diagnose.serving.what_if import Caps, batch_curve, step_at
from diagnose.settle.align import ordinary
from diagnose.settle.comparable import far, setting
from diagnose.settle.comparison import MetricChange
from diagnose.settle.kernels import Matched
from diagnose.settle.quantized import PRODUCTS
from diagnose.settle.served import number
from diagnose.settle.serving_metrics import ITL, THROUGHPUT, TPOT, TTFT
from diagnose.settle.side import Side
from diagnose.settle.trace_metrics import STEP_TIME, TOKEN_TIME


def view(before: Side, after: Side, matched: Matched, metrics: list[MetricChange]) -> dict[str, Any] | None:
    """The `batching` entry; None when neither the batch nor a cap on it changed."""
    a, b = before.first.d, after.first.d
    phase = next((p for p in ("decode", "mixed") if all(s.first.steps_in(p) for s in (before, after))), None)
    batches = _batch(before, phase), _batch(after, phase)
    caps = [
        (number(a, "setting", k), number(b, "setting", k)) for k in ("max_num_seqs", "bench_max_concurrency")
    ]
    if not far(*batches) and not any(far(x, y) for x, y in caps):
        return None
    by = {(m.metric, m.phase): m for m in metrics} | {
        (m.metric, None): m for m in metrics if m.phase == phase
    }
    gap = by.get((ITL, None)) or by.get((TPOT, None)) or by.get((STEP_TIME, phase))
    rate = by.get((THROUGHPUT, None)) or by.get((TOKEN_TIME, phase))
    first = by.get((TTFT, None))
    out: dict[str, Any] = {
        "phase": phase, "batch": list(batches), "reuse": _reuse(before, after, matched, phase),
        "itl_change": gap.change if gap else None, "ttft_change": first.change if first else None,
        "throughput_change": _throughput(rate), "slots": [setting(a, "max_num_seqs"), setting(b, "max_num_seqs")],
        "waiting_max": [number(a, "kv", "waiting_max"), number(b, "kv", "waiting_max")],
        "kv_headroom": [_headroom(a), _headroom(b)], "knee": _knee(a, batches), "what_if": _what_if(a, batches[1], metrics, phase),
    }  # fmt: skip
    out["message"] = _message(out)
    return out


def _batch(side: Side, phase: str | None) -> float | None:
    if phase is not None:
        known = [float(w.sequences) for w in ordinary(side.first, phase) if w.sequences]
        if known:
            return sum(known) / len(known)
    return number(side.first.d, "kv", "running_max")


def _reuse(before: Side, after: Side, matched: Matched, phase: str | None) -> dict[str, float] | None:
    """Bytes of the products a token: weights are read once a step, so a larger batch shares them."""
    if phase is None:
        return None
    values = []
    for at, side in enumerate((before, after)):
        groups = [(p.before, p.after)[at] for p in matched.pairs] + (matched.only_before, matched.only_after)[
            at
        ]
        moved = sum(g.bytes or 0.0 for g in groups if g.phase == phase and g.word in PRODUCTS)
        tokens = sum(w.tokens or w.sequences or 0 for run in side.runs for w in run.steps_in(phase))
        values.append(moved / tokens if tokens else 0.0)
    return {"bytes_per_token_before": values[0], "bytes_per_token_after": values[1]} if all(values) else None


def _throughput(m: MetricChange | None) -> float | None:
    if m is None or not m.after:
        return None
    return m.change if m.metric == THROUGHPUT else m.before / m.after - 1


def _headroom(d: Diagnosis) -> float | None:
    used = (d.kv or {}).get("peak_used_share")
    return 1 - float(used) if used is not None else None


def _roofs(d: Diagnosis) -> Roofs | None:
    key = next((x.catalog_key for x in d.devices if x.catalog_key), None)
    try:
        return resolve(key) if key else None
    except UsageError:
        return None


def _knee(d: Diagnosis, batches: tuple[float | None, float | None]) -> dict[str, Any] | None:
    """Tokens a step from which products cost compute and no longer only their weights' bytes (ridge of the roofs)."""
    roofs = _roofs(d)
    dtype = next((k.dtype for k in d.kernels if k.family == "gemm" and k.dtype), "bf16")
    tokens = roofs.ridge(dtype) if roofs else None
    if tokens is None:
        return None
    share = [b / tokens if b else None for b in batches]
    return {"tokens": tokens, "dtype": dtype, "batch_over_knee": share, "provenance": "derived"}


def _what_if(
    d: Diagnosis, batch: float | None, metrics: list[MetricChange], phase: str | None
) -> dict[str, Any] | None:
    """The before-run's curve, its prediction at the after-batch, and what the step became."""
    parts = step_parts(d, _roofs(d))
    if parts is None or batch is None:
        return None
    low, high = step_at(parts, batch)
    real = next((m.after for m in metrics if m.metric == STEP_TIME and m.phase == phase), None)
    inside = None if real is None else low <= real <= high
    curve = batch_curve(
        parts, Caps(), sorted({parts.batch, batch, *(parts.batch * f for f in (0.5, 2.0, 4.0))})
    )
    rows = [
        {
            k: r[k]
            for k in ("batch", "step_ms", "step_ms_low", "step_ms_high", "tok_s", "tok_s_low", "tok_s_high")
        }
        for r in curve
    ]
    return {"batch": batch, "step_ms_low": low, "step_ms_high": high, "step_ms_measured": real, "inside": inside,
            "before": {"batch": parts.batch, "step_ms": parts.step_ms}, "curve": rows}  # fmt: skip


def _message(out: dict[str, Any]) -> str:
    a, b = out["batch"]
    text = []
    if a and b:
        text.append(f"the batch went from {a:,.3g} to {b:,.3g} sequences")
    reuse = out["reuse"]
    if reuse:
        x, y = reuse["bytes_per_token_before"], reuse["bytes_per_token_after"]
        text.append(f"products moved {x / 1e6:,.3g} MB a token before, {y / 1e6:,.3g} after")
    for key, word in (
        ("throughput_change", "throughput"),
        ("itl_change", "gap between tokens"),
        ("ttft_change", "TTFT"),
    ):
        if out[key] is not None:
            text.append(f"{word} {100 * out[key]:+.0f} %".replace("-", "−"))
    knee = out["knee"]
    if knee and knee["batch_over_knee"][1] is not None:
        share = knee["batch_over_knee"][1]
        text.append(
            f"at {100 * share:.0f} % of the knee ({knee['tokens']:.0f} tokens): more batch is still cheap for the products"
            if share < 0.5
            else f"at {share:.2g} × the knee ({knee['tokens']:.0f} tokens): a larger batch makes the products slower in proportion"
        )
    curve = out["what_if"]
    if curve and curve["inside"] is not None:
        word = "as the before-run predicted" if curve["inside"] else "against the before-run's prediction of"
        text.append(
            f"step {curve['step_ms_measured']:.3g} ms, {word} {curve['step_ms_low']:.3g}–{curve['step_ms_high']:.3g} ms"
        )
    return "; ".join(text)
