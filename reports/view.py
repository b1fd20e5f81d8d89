"""The page's content as plain texts and lists, ready for a template: wording and order, no evidence of its
own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from diagnose.contract import Diagnosis, Evidence, Experiment, Hypothesis, Phase
from diagnose.reports.charts.figure import Column
from diagnose.reports.numbers import (
    UNKNOWN,
    confidence,
    count,
    duration,
    interval,
    percent,
    quantity,
    time_unit,
)
from diagnose.reports.serving import setting
from diagnose.reports.text import clean, clean_lines, sentence
from diagnose.reports.words import DIRECTION, SEVERITY_ORDER, STATUS, is_alone, limit_name, phase_name, words


@dataclass(frozen=True, slots=True)
class Fact:
    """One entry of the facts line."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """One typed fact in words: metric, value with unit, what the claim wants, provenance, query and note."""

    metric: str
    value: str
    wanted: str
    provenance: str
    query: str
    note: str


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled interval on the strip of an experiment, in percent of the strip's width."""

    label: str
    text: str
    start: float
    width: float
    kind: str


@dataclass(frozen=True, slots=True)
class Trial:
    """An experiment in words."""

    change: str
    command: str
    metric: str
    now: str
    predicted: str
    runner_up: str
    under_runner_up: str
    refuted_if: str
    cost: str
    risk: str
    phase: str
    note: str
    strip: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Card:
    """A hypothesis in words."""

    id: str
    limit: str
    phase: str
    status: str
    status_word: str
    statement: str
    confidence: str
    meter: float
    objective: str
    gain: str
    scope: str
    rule: str
    evidence: list[EvidenceLine]
    counter: list[EvidenceLine]
    missing: list[str]
    trial: Trial | None


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """A phase's limit, its confidence, the runner-up and what separates the two."""

    phase: str
    limit: str
    confidence: str
    meter: float
    runner_up: str
    separated_by: str
    cells: list[str]


def facts(d: Diagnosis) -> list[Fact]:
    """The facts line in its fixed order; what the result does not hold is `unknown`, never left out."""
    steps = d.steps_total or sum(p.steps for p in d.phases)
    covered = UNKNOWN
    if d.coverage and d.coverage.kernel_time_ns:
        covered = percent(d.coverage.with_cost_ns / d.coverage.kernel_time_ns)
    return [
        Fact("device", _devices(d)),
        Fact("model", _model(d)),
        Fact("engine", _engine(d)),
        Fact("precision", _precision(d)),
        Fact("batch and context", _batch(d, is_alone(d))),
        Fact("steps analysed", count(steps) if steps else UNKNOWN),
        Fact(
            "profiler",
            _join(f"{s.profiler} {s.profiler_version or ''}".strip() for s in d.source if s.profiler),
        ),
        Fact("kernel time with a cost", covered),
        Fact("data-quality notes", count(len(d.data_quality))),
    ]


def _join(values: Any) -> str:
    seen = dict.fromkeys(clean(v) for v in values if v)
    return ", ".join(seen) or UNKNOWN


def _devices(d: Diagnosis) -> str:
    names: dict[str, int] = {}
    for device in d.devices:
        name = device.name.strip() or device.catalog_key or "unnamed device"
        names[name] = names.get(name, 0) + 1
    if not names and (told := setting(d, "device")):
        return told
    return ", ".join(f"{n} × {clean(name)}" if n > 1 else clean(name) for name, n in names.items()) or UNKNOWN


def _model(d: Diagnosis) -> str:
    model = d.model or {}
    name = clean(model.get("name") or model.get("id") or model.get("model_type") or "")
    return name or setting(d, "model") or UNKNOWN


def _engine(d: Diagnosis) -> str:
    """The serving engine and version that the evidence names, and the frameworks of the traces."""
    served = " ".join(x for x in (setting(d, "engine"), setting(d, "engine_version")) if x)
    client = setting(d, "bench_backend")
    if not served and client in {"vllm", "sglang", "tensorrt-llm"}:
        served = f"{client} (the client's setting)"
    frameworks = [s.framework for s in d.source if s.framework]
    named = [f for f in frameworks if not served or not f.startswith(setting(d, "engine") or " ")]
    return _join([served, *named])


def _precision(d: Diagnosis) -> str:
    """The model's dtype where it is known, else the dtypes of kernels that have one, longest first."""
    model = d.model or {}
    stated = next(
        (v for k in ("quantization", "dtype") if (v := setting(d, k)) not in {"", "none", "auto"}), ""
    )
    named = model.get("quantization") or stated or model.get("dtype") or model.get("torch_dtype")
    if named:
        return clean(named)
    time: dict[str, int] = {}
    for kernel in d.kernels:
        if kernel.dtype:
            time[kernel.dtype] = time.get(kernel.dtype, 0) + kernel.time_ns
    ranked = sorted(time, key=lambda dtype: -time[dtype])[:2]
    return f"{', '.join(clean(v) for v in ranked)} (from kernels)" if ranked else UNKNOWN


def _batch(d: Diagnosis, alone: bool) -> str:
    parts = []
    for p in d.phases:
        if p.sequences is None and p.context_tokens is None:
            continue
        batch = "batch unknown" if p.sequences is None else f"batch {count(p.sequences)}"
        context = (
            "context unknown" if p.context_tokens is None else f"{count(p.context_tokens)} context tokens"
        )
        parts.append(f"{phase_name(p.phase, alone)}: {batch}, {context}")
    load = d.load or {}
    if not parts and isinstance(running := load.get("running"), dict):
        held = load.get("resident_tokens")
        context = f", {count(round(held['value']))} KV tokens each" if isinstance(held, dict) else ""
        parts.append(f"{count(running['value'])} running under load{context}")
    return "; ".join(parts) or UNKNOWN


def evidence_line(e: Evidence) -> EvidenceLine:
    """A fact in words; the threshold is shown in the value's unit with the side that supports the claim."""
    wanted = ""
    if e.threshold is not None:
        side = DIRECTION.get(e.direction or "", e.direction or "threshold")
        wanted = f"supports when {side} {quantity(e.threshold, e.unit)}"
    value = (
        quantity(e.value, e.unit) if isinstance(e.value, int | float) else clean(quantity(e.value, e.unit))
    )
    return EvidenceLine(
        clean(words(e.metric)), value, clean(wanted), e.provenance, clean_lines(e.query), clean(e.note)
    )


def trial(x: Experiment, limit: str, alone: bool = False) -> Trial:
    """An experiment in words, with a strip that shows now, the prediction and the runner-up's on one
    scale."""
    unit = x.prediction.unit
    runner = x.under_runner_up
    return Trial(
        change=clean(x.change),
        command=clean_lines(x.command),
        metric=clean(words(x.metric)),
        now=quantity(x.baseline, unit) + (f" ({clean(x.baseline_note)})" if x.baseline_note else "")
        if x.baseline is not None
        else "",
        predicted=interval(x.prediction.low, x.prediction.high, unit),
        runner_up=limit_name(runner.limit) if runner else "",
        under_runner_up=interval(runner.low, runner.high, unit) if runner else "",
        refuted_if=sentence(x.refuted_if),
        cost=clean(x.cost),
        risk=clean(x.risk),
        phase=phase_name(x.phase, alone) if x.phase else "",
        note=clean(x.baseline_note),
        strip=_strip(x, limit),
    )


def _strip(x: Experiment, limit: str) -> list[Span]:
    """Intervals placed on a common scale; empty when an end is open (then the words say it)."""
    runner = x.under_runner_up
    ends: list[tuple[str, float | None, float | None, str]] = [
        (f"if {limit_name(limit)}", x.prediction.low, x.prediction.high, "predicted")
    ]
    if runner:
        ends.append((f"if {limit_name(runner.limit)}", runner.low, runner.high, "runner"))
    if x.baseline is not None:
        ends.append(("now", x.baseline, x.baseline, "now"))
    closed = [
        (label, low, high, kind) for label, low, high, kind in ends if low is not None and high is not None
    ]
    if len(closed) < 2 or closed[0][3] != "predicted":
        return []
    least = min(low for _, low, _, _ in closed)
    most = max(high for _, _, high, _ in closed)
    reach = (most - least) or 1.0
    unit = x.prediction.unit
    return [
        Span(
            label,
            quantity(low, unit) if kind == "now" else interval(low, high, unit),
            round(100 * (low - least) / reach, 2),
            round(max(100 * (high - low) / reach, 0.8), 2),
            kind,
        )
        for label, low, high, kind in closed
    ]


def card(h: Hypothesis, alone: bool = False) -> Card:
    """A hypothesis in words; `alone` as for `phase_name`."""
    gain = ""
    if h.gain:
        gain = f"{words(h.gain.metric)} {interval(h.gain.low, h.gain.high, h.gain.unit)}"
    return Card(
        id=clean(h.id),
        limit=limit_name(h.limit),
        phase=phase_name(h.phase, alone),
        status=h.status,
        status_word=STATUS.get(h.status, words(h.status)),
        statement=sentence(h.statement),
        confidence=confidence(h.confidence),
        meter=0.0 if h.confidence is None else 100 * h.confidence,
        objective=words(h.objective),
        gain=clean(gain),
        scope=clean(h.gain.scope) if h.gain else "",
        rule=clean(h.rule),
        evidence=[evidence_line(e) for e in h.evidence],
        counter=[evidence_line(e) for e in h.counter_evidence],
        missing=[sentence(m) for m in h.missing],
        trial=trial(h.experiment, h.limit, alone) if h.experiment else None,
    )


def cards(d: Diagnosis) -> list[Card]:
    """Every hypothesis in order; an id that comes twice (one rule, two phases) gets a number, so that links
    stay unique."""
    seen: dict[str, int] = {}
    made = []
    for h in d.hypotheses:
        seen[h.id] = seen.get(h.id, 0) + 1
        one = card(h, is_alone(d))
        made.append(replace(one, id=f"{one.id}-{seen[h.id]}") if seen[h.id] > 1 else one)
    return made


def first_trial(d: Diagnosis) -> Hypothesis | None:
    """The hypothesis whose experiment to try first: the verdict's own, else the first one not ruled out with
    one."""
    if d.verdict.limit == "inconclusive":
        return None  # what is missing comes first; an experiment on a guess is wasted
    open_ = [h for h in d.hypotheses if h.experiment and h.status in {"supported", "possible"}]
    own = [h for h in open_ if h.limit == d.verdict.limit and h.phase == d.verdict.phase]
    return next(iter(own or open_), None)


def phase_lines(d: Diagnosis) -> list[PhaseLine]:
    """Limits by phase with the runner-up, what separates the two, and the numbers of the table."""
    unit = time_unit([_step_ns(p) for p in d.phases])
    return [
        PhaseLine(
            phase=phase_name(p.phase, is_alone(d)),
            limit=limit_name(p.limit),
            confidence=confidence(p.confidence),
            meter=0.0 if p.confidence is None else 100 * p.confidence,
            runner_up=limit_name(p.runner_up) if p.runner_up else "none",
            separated_by=_separated(d, p),
            cells=[
                count(p.steps),
                unit.text(_step_ns(p)),
                unit.text(p.step_time_ns.get("p90")),
                unit.text(p.ideal_step_ns),
                *(percent(v).removesuffix(" %") for v in (p.efficiency, p.mfu, p.mbu)),
                count(p.sequences),
                count(p.context_tokens),
            ],
        )
        for p in d.phases
    ]


def phase_columns(d: Diagnosis) -> list[Column]:
    """Columns of `PhaseLine.cells`."""
    unit = time_unit([_step_ns(p) for p in d.phases]).name
    return [
        Column("steps"),
        Column("step, p50", unit, "measured"),
        Column("step, p90", unit, "measured"),
        Column("ideal step", unit, "derived"),
        Column("efficiency", "%", "derived"),
        Column("MFU", "%", "derived"),
        Column("MBU", "%", "derived"),
        Column("sequences"),
        Column("context", "tokens"),
    ]


def _step_ns(p: Phase) -> float:
    median = p.step_time_ns.get("p50")
    return median if median is not None else p.wall_ns / max(p.steps, 1)


def _separated(d: Diagnosis, p: Phase) -> str:
    """What would tell the limit from its runner-up: the experiment of that limit's hypothesis."""
    for h in d.hypotheses:
        x = h.experiment
        if h.limit == p.limit and h.phase in {p.phase, None} and x and x.under_runner_up:
            unit = x.prediction.unit
            return (
                f"{clean(x.change)}: {words(x.metric)} "
                f"{interval(x.prediction.low, x.prediction.high, unit)} if "
                f"{limit_name(p.limit)}, {interval(x.under_runner_up.low, x.under_runner_up.high, unit)} if "
                f"{limit_name(x.under_runner_up.limit)}"
            )
    return ""


def outside_text(d: Diagnosis) -> str:
    """One sentence on device time that no step owns."""
    o = d.outside_steps
    if o is None or o.wall_ns <= 0 or not d.phases:
        return ""
    from diagnose.reports.words import bucket_label

    parts = sorted(((ns, b) for b, ns in o.attribution_ns.items() if ns > 0), reverse=True)[:4]
    listed = ", ".join(f"{bucket_label(b)} {duration(ns)}" for ns, b in parts)
    text = f"Outside every step: {duration(o.wall_ns)} ({listed})."
    if o.attribution_ns.get("unobserved"):
        text += " Unobserved time is not in the bars and counts for no verdict."
    return text


def notes(d: Diagnosis) -> list[tuple[str, str, str]]:
    """(severity, code, message) of each data-quality note, worst first."""
    ranked = sorted(d.data_quality, key=lambda n: SEVERITY_ORDER.get(n.severity, 9))
    return [(n.severity, clean(words(n.code)), sentence(n.message)) for n in ranked]
