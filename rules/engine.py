"""The engine: run every rule on every phase, rank what they claim, and give each claim its experiment."""

from dataclasses import dataclass, replace
from typing import Any

import duckdb

from diagnose.contract import Experiment, Gain, Hypothesis, Interval, RunnerUpPrediction
from diagnose.rules.base import OUTSIDE, Assessment, Context, Need, Rule
from diagnose.rules.calibration import beside, observed
from diagnose.rules.common import RELIEF
from diagnose.rules.experiments import BY_ID, NOISE, Change, bucket_of
from diagnose.rules.host_pace import host_pace
from diagnose.rules.parts import kernel_counts, parts_by_phase, steady, unseen_gaps, whole_steps
from diagnose.rules.predict import floored, predict, predict_if
from diagnose.rules.situation import Situation
from diagnose.rules.weight_products import weight_products
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

# What a rewrite leaves alone still moves: another backend picks other products and layouts beside the kernels replaced.
BESIDE = (0.88, 1.03)

MIN_OUTSIDE = 0.02
"""Share of a device's observed time below which what lies outside steps is not assessed."""


@dataclass(slots=True)
class Claim:
    """One rule's answer for one phase of one device."""

    rule: Rule
    context: Context
    found: Assessment
    confidence: float | None = None
    runner_up: "Claim | None" = None

    @property
    def key(self) -> str:
        """Stable id of the hypothesis."""
        return f"{self.rule.id}@{self.context.phase}" + (
            f"#{self.context.device_id}" if self.context.device_id > 0 else ""
        )


def _sql(rule: Rule) -> str:
    return rule.sql if not rule.sql.endswith(".sql") else read_sql("diagnose.rules", rule.sql)


def _absent(need: Need, store: Store, facts: dict[str, Any]) -> bool:
    if need.what in facts:
        return not facts[need.what]
    try:
        return not store.scalar(f'SELECT count(*) FROM (SELECT 1 FROM "{need.what}" LIMIT 1)')
    except duckdb.Error:
        return True


def run_rules(
    store: Store, rules: list[Rule], facts: dict[str, Any], objective: str, steps: dict[tuple[int, str], int]
) -> tuple[list[Claim], list[str]]:
    """Every rule on every phase and device. Returns the claims and one line for each rule that failed."""
    claims: list[Claim] = []
    failed: list[str] = []
    parts = parts_by_phase(store)
    whole: dict[int, dict[str, float]] = {}
    for (device, _), mine in parts.items():
        run_parts = whole.setdefault(device, {})
        for part, ns in mine.items():
            run_parts[part] = run_parts.get(part, 0.0) + ns
    paces, products = host_pace(store), weight_products(store)
    unseen, whole_counts, kernels = unseen_gaps(store), whole_steps(store), kernel_counts(store)
    contexts = [
        Context(
            phase=phase or OUTSIDE,
            device_id=device,
            objective=objective,
            wall_ns=int(sum(mine.values())),
            steps=steps.get((device, phase or OUTSIDE), 0),
            parts_ns=mine,
            host=paces.get((device, phase or OUTSIDE)),
            products=products.get((device, phase or OUTSIDE), ()),
            unseen_gaps=unseen.get((device, phase or OUTSIDE), 0),
            kernels=kernels.get((device, phase or OUTSIDE), 0),
            whole_steps=whole_counts.get((device, phase or OUTSIDE), 0.0),
            facts=facts
            | facts.get("devices", {}).get(device, {})
            | {
                "run_wall_ns": sum(whole[device].values()),
                "run_parts_ns": whole[device],
                "run_steps": sum(n for (d, _), n in steps.items() if d == device),
            },
        )
        for (device, phase), mine in sorted(parts.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        # A few microseconds outside steps are the edges of the trace, no phase of their own.
        if sum(mine.values()) > (0 if phase is not None else MIN_OUTSIDE * sum(whole[device].values()))
    ]
    run = Context("run", -2, objective, 0, 0, {}, facts)
    answers: dict[tuple[str, str, int], dict[str, Any]] = {}
    for rule in rules:
        for context in [run] if rule.phases == ("run",) else contexts:
            if rule.phases != ("run",) and not _applies(rule, context):
                continue
            missing = [need.capture for need in rule.required if _absent(need, store, context.facts)]
            if missing:
                claims.append(Claim(rule, context, Assessment(status="not_assessed", missing=missing)))
                continue
            try:
                # Rules that ask the same question of a phase share its answer.
                asked = (_sql(rule), context.phase, context.device_id)
                if asked not in answers:
                    answers[asked] = _answer(store, *asked)
                row = dict(answers[asked])
                claims.append(Claim(rule, context, rule.assess(row, context, rule.thresholds)))
            except Exception as error:  # one broken rule must not take the others down
                line = (
                    f"rule {rule.id} failed and was left out: {type(error).__name__}: {error}".splitlines()[0]
                )
                if line not in failed:
                    failed.append(line)
    _rank(claims)
    return claims, failed


def _answer(store: Store, sql: str, phase: str, device: int) -> dict[str, Any]:
    """The first row of a rule's query by column name; all None when there is none."""
    given = {"phase": None if phase == OUTSIDE else phase, "device": device}
    cursor = store.con.execute(sql, {k: v for k, v in given.items() if f"${k}" in sql})
    names = [d[0] for d in cursor.description]
    values = cursor.fetchone()
    return dict(zip(names, values, strict=True)) if values is not None else dict.fromkeys(names)


def _applies(rule: Rule, context: Context) -> bool:
    if context.phase == OUTSIDE:
        # Time outside steps is the engine's when there are steps: gaps and copies are assessed there too.
        return OUTSIDE in rule.phases or rule.limit == "scheduling"
    return "*" in rule.phases or context.phase in rule.phases


def unknown_share(context: Context) -> float:
    """What relief of a limit nobody could see might free: kernels without a bound (as for a resource), idle of no cause."""
    if not context.wall_ns:
        return 0.0
    parts = context.parts_ns.items()
    kernels = sum(ns for p, ns in parts if p.split(":")[0] == "unmodelled")
    idle = sum(ns for p, ns in parts if p.split(":")[0] == "idle_other")
    return (RELIEF * kernels + idle) / context.wall_ns


def _rank(claims: list[Claim]) -> None:
    """Confidence of each claim, and its runner-up: the best other limit of the same phase and device."""
    groups: dict[tuple[int, str], list[Claim]] = {}
    for claim in claims:
        groups.setdefault((claim.context.device_id, claim.context.phase), []).append(claim)
    for group in groups.values():
        _hold_to_host(group)
        assessed = sorted(
            (c for c in group if c.found.status in ("supported", "possible", "refuted")),
            key=lambda c: -c.found.share,
        )
        for claim in assessed:
            rivals = [c for c in assessed if c.rule.limit != claim.rule.limit]
            claim.runner_up = next(iter(rivals), None)
            best = rivals[0].found.share if rivals else 0.0
            claim.confidence = confidence(
                claim.found.share,
                best,
                unknown_share(claim.context),
                claim.found.quality,
                claim.context.steps,
            )
        # Stated confidence is how the rules weigh; what is told is how often such first claims were right.
        told = observed(assessed[0].confidence or 0.0, "trace") if assessed else 0.0
        for claim in assessed[1:]:
            claim.confidence = round(beside(claim.confidence or 0.0, told), 3)
        if assessed:
            assessed[0].confidence = round(told, 3)


ON_DEVICE = frozenset({"compute", "hbm", "kernel_inefficiency", "communication", "copy", "power"})
ON_HOST = frozenset({"launch_overhead", "scheduling", "host_sync"})
MIN_HELD = 0.10
"""Share of a phase that a host limit must free before the device's limits are held to the host's pace: below it both bind."""
STACK_COST = 2.0
"""Factor by which Python stacks may slow the host. Assumed, not measured: a claim that this factor would undo is a question."""


def _hold_to_host(group: list[Claim]) -> None:
    """Relief of the device frees no more than the host's own pace leaves, and host time that stacks inflate is no claim.

    Where both set the pace alike, holding one against the other would leave nothing: then the two bind together.
    """
    context = group[0].context
    if context.host is None:
        return
    stacks = bool(context.facts.get("python_stacks"))
    busy = context.host.busy_share / (STACK_COST if stacks else 1.0)
    room = max(0.0, 1.0 - busy)
    device = [c for c in group if c.rule.limit in ON_DEVICE]
    host = [c for c in group if c.rule.limit in ON_HOST and c.found.status == "supported"]
    lead = max((c.found.share for c in host), default=0.0)
    if lead > room and lead >= MIN_HELD:
        for claim in device:
            claim.found.later = claim.found.share
            claim.found.share = min(claim.found.share, room)
    if stacks:
        inflated = context.host.busy_share - busy
        strongest = max((c.found.share for c in device), default=0.0)
        for claim in host:
            if claim.found.share - inflated < strongest:
                claim.found.status = "possible"
                claim.found.instead = "what recording Python stacks costs the host"
                claim.found.missing = [
                    "the same run without Python stacks (with_stack=False): they slow the host, and without them it may keep ahead"
                ]


def confidence(share: float, rival: float, unknown: float, quality: float, steps: int) -> float:
    """How likely this limit is the first one, before calibration.

    Half at a tie, rising with the margin over the best rival or over the time whose nature is unknown, whichever is
    larger; scaled by the evidence's quality; a single step or window has no repetition behind it.
    """
    if share <= 0:
        return 0.0
    against = max(rival, unknown)
    raw = 0.5 + 0.45 * (share - against) / share if share >= against else 0.5 * share / against
    repeated = 1.0 if steps >= 3 else 0.93
    return round(max(0.01, min(0.97, raw * quality * repeated)), 3)


def hypothesis(claim: Claim, engine: str) -> Hypothesis:
    """The claim as the contract's hypothesis, with its experiment."""
    found, context = claim.found, claim.context
    outside = context.phase == OUTSIDE
    per_step = context.facts.get("run_steps", 0) if outside else context.whole_steps or context.steps
    gain = None
    wall = context.facts.get("run_wall_ns") if context.phase == OUTSIDE else context.wall_ns
    if found.status in ("supported", "possible") and wall:
        gain = Gain(
            metric="step time" if context.steps else "run",
            low=round(100 * found.recover_ns[0] / wall, 1),
            high=round(100 * found.recover_ns[1] / wall, 1),
            unit="% less",
            scope=f"{context.phase} step" if context.steps else context.phase,
        )
    return Hypothesis(
        id=claim.key,
        limit=claim.rule.limit,
        phase=None if context.phase in (OUTSIDE, "run") else context.phase,
        objective=context.objective,
        status=found.status,
        confidence=claim.confidence,
        gain=gain,
        statement=found.statement or f"{claim.rule.title}: not assessed",
        evidence=found.evidence,
        counter_evidence=found.counter,
        missing=found.missing + found.doubts,
        experiment=choose_experiment(claim, engine, per_step or 1)
        if found.status in ("supported", "possible")
        else None,
        rule=claim.rule.id,
        score=round(found.share, 4),
    )


def choose_experiment(claim: Claim, engine: str, per_step: float) -> Experiment | None:
    """The first of the rule's experiments whose intervals under this limit and under the runner-up do not overlap.

    Where none separates them, the one that comes nearest, and it says so.
    """
    best: tuple[float, Experiment] | None = None
    for name in claim.found.experiments or claim.rule.experiments:
        change = BY_ID[name]
        mine, other, baseline = _intervals(claim, change)
        if baseline <= 0:
            continue
        distance = max(mine[0] - other[1], other[0] - mine[1]) / baseline
        made = _experiment(claim, change, mine, other, baseline, engine, per_step, distance > 0)
        if distance > 0:
            return made
        if best is None or distance > best[0]:
            best = (distance, made)
    return best[1] if best else None


def _intervals(claim: Claim, change: Change) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Predicted (low, high) ns of the metric under this limit and under the runner-up, and its value now."""
    now, claimed = _situation(claim), claim.found.parts
    rival = claim.runner_up.found.parts if claim.runner_up else ()
    if change.scope_claimed:
        kept = {p: ns for p, ns in now.parts_ns.items() if bucket_of(p) in claimed}
        now = replace(now, parts_ns=kept)
    held = sum(ns for p, ns in now.parts_ns.items() if bucket_of(p) in claimed)
    total = now.total_ns
    if change.uses_recoverable and held:
        # The rule measured what this change can save in this run: better than any table of factors.
        low, high = claim.found.recover_ns
        saved = (max(0.0, total - high) * BESIDE[0], max(0.0, total - low) * BESIDE[1])
        mine = floored(saved, now, change)
    else:
        mine = predict(now, change)
    return mine, predict_if(now, change, claimed, rival), total


def _situation(claim: Claim) -> Situation:
    """What predictions for a claim read: the phase's steady state, or the whole run's where the time lies outside steps."""
    context = claim.context
    if context.phase == OUTSIDE:
        # Time outside steps is felt as time per batch of the whole run.
        return Situation(_per_batch(context.facts["run_parts_ns"], context.facts.get("run_steps", 0)))
    return Situation(
        steady(context.parts_ns, context.steps, context.unseen_gaps),
        host=context.host,
        products=context.products,
        device=context.facts.get("device_key") or "",
        ranks=context.facts.get("group_size"),
        kernels=context.kernels,
        phase=context.phase,
        fp8=bool(context.facts.get("fp8", True)),
    )


def _per_batch(parts: dict[str, float], steps: int) -> dict[str, float]:
    """The run's parts with as many waits for input as batches: the first wait lies before the window."""
    if steps < 2:
        return parts
    return {p: ns * steps / (steps - 1) if p == "idle_input" else ns for p, ns in parts.items()}


def _experiment(
    claim: Claim,
    change: Change,
    mine: tuple[float, float],
    other: tuple[float, float],
    baseline: float,
    engine: str,
    per_step: float,
    separates: bool,
) -> Experiment:
    def scaled(value: float) -> float:
        return round(value / per_step / 1e6, 4)

    rival = claim.runner_up.rule.limit if claim.runner_up else "nothing this change touches"

    def plain(limit: str) -> str:
        return (
            limit.replace("_", " ")
            .replace("hbm", "HBM bandwidth")
            .replace("kernel inefficiency", "inefficient kernels")
        )

    if separates:
        bound = f"above {scaled(mine[1]):.4g}" if mine[1] < other[0] else f"below {scaled(mine[0]):.4g}"
        refuted = f"the {change.metric} is {bound} ms (with {plain(rival)} it would be {scaled(other[0]):.4g}-{scaled(other[1]):.4g} ms)"
    else:
        refuted = f"the {change.metric} leaves {scaled(mine[0]):.4g}-{scaled(mine[1]):.4g} ms; too near to {plain(rival)} for one run a side: repeat both"
    return Experiment(
        change=change.change,
        command=change.command(engine),
        metric=change.metric,
        prediction=Interval(low=scaled(mine[0]), high=scaled(mine[1]), unit="ms"),
        under_runner_up=RunnerUpPrediction(limit=rival, low=scaled(other[0]), high=scaled(other[1])),
        refuted_if=refuted,
        cost=change.cost,
        risk=change.risk,
        baseline=scaled(baseline),
        phase=claim.context.phase,
        baseline_note=_baseline_note(claim, change),
    )


def _baseline_note(claim: Claim, change: Change) -> str | None:
    """What a metric per step counts beyond the window, so that it does not read as another number for the same thing."""
    context = claim.context
    gaps = context.unseen_gaps and context.parts_ns.get("idle_scheduling")
    if context.phase == OUTSIDE or change.scope_claimed:
        return None
    if gaps:
        return "with the gap before every step"
    return (
        "a step cut by the window's edge counted in part"
        if context.whole_steps not in (0, context.steps)
        else None
    )


__all__ = ["NOISE", "Claim", "choose_experiment", "confidence", "hypothesis", "run_rules", "unknown_share"]
