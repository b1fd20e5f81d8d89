"""From claims to the run's answer: what limits it, how sure, what was ruled out and what could not be told."""

from dataclasses import dataclass
from typing import Any

from diagnose.contract import Hypothesis, Phase, Verdict
from diagnose.rules.base import OUTSIDE
from diagnose.rules.calibration import calibrated, observed
from diagnose.rules.common import ms, percent
from diagnose.rules.engine import Claim, hypothesis, unknown_share

# A limit that would free less than this share of the run is not worth a headline.
MIN_SHARE = 0.05
# What comes next is named down to what two runs differ by.
MIN_NEXT = 0.03
# One step of the smallest model served is longer: less is no capture of inference.
MIN_OBSERVED_NS = 500_000
# When more of the time than the best claim explains is of unknown nature, the claim may be beaten by what nobody saw.
MIN_UNKNOWN = 0.05
KERNEL_LIMITS = frozenset({"compute", "hbm", "kernel_inefficiency"})


@dataclass(frozen=True, slots=True)
class Ranked:
    """A limit over the whole run: the time its relief frees on the deciding device, now and (`later_ns`) once the host no
    longer sets the pace, and its best claim."""

    limit: str
    ns: float
    later_ns: float
    best: Claim
    confidence: float


def deciding_device(claims: list[Claim]) -> int | None:
    """The device whose observed time is longest: a straggler decides the run, an idle one does not."""
    walls: dict[int, int] = {}
    for claim in claims:
        if claim.context.phase != "run":
            walls.setdefault(claim.context.device_id, 0)
    for device in walls:
        walls[device] = sum(
            {c.context.phase: c.context.wall_ns for c in claims if c.context.device_id == device}.values()
        )
    return max(walls, key=lambda d: (walls[d], -d)) if walls else None


def rank_limits(claims: list[Claim], device: int | None) -> tuple[list[Ranked], float, float]:
    """Limits by the time they hold on `device`; also the observed time and the time of unknown nature."""
    mine = [c for c in claims if c.context.device_id == device]
    contexts = {c.context.phase: c.context for c in mine}
    wall = float(sum(c.wall_ns for c in contexts.values()))
    unknown = sum(unknown_share(c) * c.wall_ns for c in contexts.values())
    held: dict[str, float] = {}
    later: dict[str, float] = {}
    best: dict[str, Claim] = {}
    for claim in mine:
        if claim.found.status == "not_assessed":
            continue
        ns = claim.found.share * claim.context.wall_ns
        limit = claim.rule.limit
        held[limit] = held.get(limit, 0.0) + ns
        later[limit] = later.get(limit, 0.0) + max(ns, claim.found.later * claim.context.wall_ns)
        if limit not in best or ns > best[limit].found.share * best[limit].context.wall_ns:
            best[limit] = claim
    ranked = [
        Ranked(limit, ns, later[limit], best[limit], best[limit].confidence or 0.0)
        for limit, ns in held.items()
    ]
    ranked.sort(key=lambda r: (-r.ns, r.limit))
    return ranked, wall, unknown


def verdict(
    claims: list[Claim],
    phases: list[Phase],
    objective: str,
    facts: dict[str, Any],
    requests: list[str],
    device: int | None,
) -> Verdict:
    """The run's verdict; fills each phase's limit, confidence and runner-up. `requests`: captures that would settle it."""
    for phase in phases:
        _phase_limit(phase, claims, device)
    ranked, wall, unknown = rank_limits(claims, device)
    supported = [
        r for r in ranked if r.best.found.status == "supported" and wall and r.ns / wall >= MIN_SHARE
    ]
    rejected = [c for c in claims if c.context.device_id == device and c.found.status == "refuted"]
    ruled_out = _ruled_out(rejected, {r.limit for r in supported})
    could_not = _could_not(claims, device, wall, unknown, requests)
    if facts.get("graph_capture"):
        why = "the trace records the capture of graphs, not serving"
        return _inconclusive([], phases, objective, wall, 0.0, ruled_out, could_not, requests, why)
    if facts.get("no_device_events"):
        why = "a GPU was used, but the trace holds none of its work: what is left is host time"
        return _inconclusive([], phases, objective, wall, 0.0, ruled_out, could_not, requests, why)
    if facts.get("clocks_apart"):
        why = "host and device clocks of the trace disagree"
        return _inconclusive([], phases, objective, wall, 0.0, ruled_out, could_not, requests, why)
    if wall < MIN_OBSERVED_NS:
        why = f"the observed window of {ms(wall)} is too short for a verdict"
        if facts.get("opaque_graphs"):
            why += ", and graph replays in it hide their kernels"
        return _inconclusive([], phases, objective, wall, 0.0, ruled_out, could_not, requests, why)
    open_claims = [r for r in ranked if r.best.found.status == "possible" and r.best.found.missing]
    if (
        open_claims
        and open_claims[0].ns >= max((r.ns for r in supported), default=0.0)
        and open_claims[0].ns > 0.1 * wall
    ):
        leading = open_claims[0]
        why = f"{leading.best.found.statement}, which may be {words(leading.limit)} or {leading.best.found.instead}"
        return _inconclusive(
            supported,
            phases,
            objective,
            wall,
            0.0,
            ruled_out,
            could_not,
            requests,
            why,
            leading.best.found.missing,
        )
    if not supported or _may_be_beaten(supported[0], ranked, unknown, wall):
        return _inconclusive(
            supported, phases, objective, wall, _dark(claims, device), ruled_out, could_not, requests
        )
    first = supported[0]
    second = _second(first, ranked, wall)
    if second is not None:
        # The experiment has to tell the two limits that are named, over phases too.
        first.best.runner_up = second.best
        ruled_out = [line for line in ruled_out if not line.startswith(f"{words(second.limit)}:")]
    confidence = _run_confidence(first, ranked, unknown)
    answer = hypothesis(first.best, facts["engine"])
    return Verdict(
        limit=first.limit,
        phase=answer.phase,
        objective=objective,
        confidence=confidence,
        summary=_sentence(first, answer),
        runner_up=second.limit if second else None,
        next=_next(first, second, wall),
        by_phase=[_phase_sentence(p) for p in phases],
        ruled_out=ruled_out,
        could_not_tell=could_not,
        calibrated=calibrated("trace"),
    )


def _second(first: Ranked, ranked: list[Ranked], wall: float) -> Ranked | None:
    """What comes next: of what its relief would free beside the first, else of what it would hold behind it."""
    others = [r for r in ranked if r.limit != first.limit]
    now = max(others, key=lambda r: r.ns, default=None)
    if now is None or not wall or now.ns >= MIN_NEXT * wall:
        return now if wall else None
    behind = max(others, key=lambda r: r.later_ns)
    return behind if behind.later_ns >= MIN_NEXT * wall else None


def _may_be_beaten(first: Ranked, ranked: list[Ranked], unknown: float, wall: float) -> bool:
    """Whether kernels without a bound could make another limit the first one.

    All of them may be of one kind, and that kind may already hold time: where relief of both together could free more
    than the claim's by a headline's worth, the claim stands on what was not seen. Below that the two bind alike.
    """
    if any(r.best.found.status == "possible" and r.ns > first.ns for r in ranked):
        return True
    if unknown < MIN_UNKNOWN * wall:
        return False
    rivals = [r.ns for r in ranked if r.limit in KERNEL_LIMITS and r.limit != first.limit]
    return unknown + max(rivals, default=0.0) > first.ns + MIN_SHARE * wall


def _dark(claims: list[Claim], device: int | None) -> float:
    """Observed nanoseconds of unknown nature on the deciding device."""
    contexts = {c.context.phase: c.context for c in claims if c.context.device_id == device}
    return sum(
        ns
        for c in contexts.values()
        for part, ns in c.parts_ns.items()
        if part.split(":")[0] in ("unmodelled", "idle_other")
    )


def _run_confidence(first: Ranked, ranked: list[Ranked], unknown: float) -> float:
    """As for a phase, over the whole run's time."""
    from diagnose.rules.engine import confidence

    rival = max((r.ns for r in ranked if r.limit != first.limit), default=0.0)
    stated = confidence(first.ns, rival, unknown, first.best.found.quality, first.best.context.steps)
    return round(observed(stated, "trace"), 3)


def _phase_limit(phase: Phase, claims: list[Claim], device: int | None) -> None:
    mine = [
        c for c in claims
        if c.context.phase == phase.phase and c.context.device_id == device and c.found.status != "not_assessed"
    ]  # fmt: skip
    if not mine:
        return
    mine.sort(key=lambda c: -c.found.share)
    best = mine[0]
    unknown = unknown_share(best.context)
    if best.found.status != "supported" or (unknown > best.found.share and unknown > 0.2):
        return
    phase.limit, phase.confidence = best.rule.limit, best.confidence
    others = [c for c in mine[1:] if c.rule.limit != best.rule.limit]
    second = next((c for c in others if c.found.share >= MIN_NEXT), None)
    second = second or max(others, key=lambda c: c.found.later, default=None)
    if second is not None and max(second.found.share, second.found.later) >= MIN_NEXT:
        phase.runner_up = second.rule.limit


def _sentence(first: Ranked, answer: Hypothesis) -> str:
    """Limit and the numbers that carry it; confidence and experiment stand beside it in every report."""
    head, _, rest = answer.statement.partition(": ")
    subject = {"the run": "the run", "the time outside steps": "the run"}.get(head, head)
    if not rest or len(head) > 24:
        return f"the run is limited by {words(first.limit)}: {answer.statement}"
    return f"{subject} is limited by {words(first.limit)}: {rest}"


def _phase_sentence(phase: Phase) -> str:
    observed = phase.wall_ns - phase.attribution_ns["unobserved"]
    size = f"{phase.phase}: {phase.steps} step{'s' if phase.steps != 1 else ''}, {ms(observed)}"
    if phase.limit == "inconclusive":
        return f"{size}; inconclusive"
    sure = f", confidence {phase.confidence:.2f}" if phase.confidence is not None else ""
    return f"{size}; limited by {words(phase.limit)}{sure}" + (
        f", then {words(phase.runner_up)}" if phase.runner_up else ""
    )


def _next(first: Ranked, second: Ranked | None, wall: float) -> str | None:
    lines = []
    if second is not None and wall:
        left = wall - first.ns
        share = second.later_ns / left if left > 0 else 0.0
        lines.append(
            f"with {words(first.limit)} entirely relieved, {words(second.limit)} would hold {percent(min(1.0, share))} of what is left"
        )
    pace = _stops_paying(first)
    return "; ".join(lines + ([pace] if pace else [])) or None


def _stops_paying(first: Ranked) -> str | None:
    """Where faster kernels stop paying: at the host's own work per step."""
    context = first.best.context
    steps = context.whole_steps or context.steps
    if first.limit not in KERNEL_LIMITS or context.host is None or not steps:
        return None
    host = context.host.busy_share * context.wall_ns / steps
    return f"faster kernels pay down to {ms(host)} a step, the host's own work for it (now {ms(context.wall_ns / steps)})"


def _ruled_out(rejected: list[Claim], kept: set[str]) -> list[str]:
    lines: dict[str, str] = {}
    for claim in sorted(rejected, key=lambda c: -c.found.share):
        if claim.rule.limit not in kept and claim.context.phase != OUTSIDE:
            lines.setdefault(claim.rule.limit, f"{words(claim.rule.limit)}: {claim.found.statement}")
    return list(lines.values())


def _could_not(
    claims: list[Claim], device: int | None, wall: float, unknown: float, requests: list[str]
) -> list[str]:
    lines: list[str] = []
    for claim in claims:
        if claim.context.device_id not in (device, -2):
            continue
        if claim.found.status == "not_assessed":
            for missing in claim.found.missing:
                lines.append(f"{words(claim.rule.limit)}: needs {missing}")
        elif claim.found.status == "supported":
            lines += [
                f"{words(claim.rule.limit)}: {doubt}" for doubt in claim.found.doubts + claim.found.missing
            ]
    dark = _dark(claims, device)
    if wall and dark / wall > 0.05:
        lines.insert(
            0,
            f"{percent(dark / wall)} of the observed time is of unknown nature (kernels without a bound, idle of no cause)",
        )
    return list(dict.fromkeys(lines + requests))


def _inconclusive(
    supported: list[Ranked],
    phases: list[Phase],
    objective: str,
    wall: float,
    unknown: float,
    ruled_out: list[str],
    could_not: list[str],
    requests: list[str],
    why: str | None = None,
    asked: list[str] | None = None,
) -> Verdict:
    requests = [*(asked or []), *requests]
    settle = requests[0] if requests else "capture more steps with operator shapes and CPU activity"
    if why is None:
        dark = (
            f"{percent(unknown / wall)} of the observed time is of unknown nature" if wall and unknown else ""
        )
        why = dark or "no limit holds enough of the time"
    else:
        for phase in phases:
            phase.limit, phase.confidence, phase.runner_up = "inconclusive", None, None
    leading = (
        f"; so far {words(supported[0].limit)} leads with {percent(supported[0].ns / wall)}"
        if supported and wall
        else ""
    )
    return Verdict(
        limit="inconclusive",
        phase=None,
        objective=objective,
        confidence=None,
        summary=f"inconclusive: {why}{leading}. To settle it: {settle}",
        runner_up=supported[0].limit if supported else None,
        next=None,
        by_phase=[_phase_sentence(p) for p in phases],
        ruled_out=ruled_out,
        could_not_tell=could_not,
        calibrated=calibrated("trace"),
    )


_WORDS = {
    "hbm": "HBM bandwidth", "kv_capacity": "KV cache capacity", "launch_overhead": "launch overhead",
    "host_sync": "host synchronisation", "host_input": "host input", "kernel_inefficiency": "inefficient kernels",
}  # fmt: skip


def words(limit: str) -> str:
    """A limit in plain words."""
    return _WORDS.get(limit, limit.replace("_", " "))
