"""`experiment` and `verify`: write a bet down, then settle it on the after-run."""

from typing import Any

import msgspec

from diagnose.contract import Diagnosis, Experiment, Hypothesis, Struct
from diagnose.errors import UsageError
from diagnose.settle.context import context_of, differences
from diagnose.settle.measure import SERVED, per_step_ms
from diagnose.settle.noise import Estimate, estimate

SCHEMA = "diagnose-experiment/1"
RESULT_SCHEMA = "diagnose-verify/1"


class Bet(Struct):
    """A hypothesis with its experiment and the conditions it was made under."""

    schema: str
    hypothesis: str
    limit: str
    phase: str | None
    objective: str
    statement: str
    experiment: Experiment
    baseline: dict[str, Any]
    context: dict[str, Any]
    source: list[dict[str, Any]]


class Settled(Struct):
    """How it came out. `verdict`: confirmed, refuted or inconclusive."""

    schema: str
    hypothesis: str
    limit: str
    verdict: str
    metric: str
    unit: str
    baseline: float | None
    measured: dict[str, Any] | None
    predicted: dict[str, Any]
    under_runner_up: dict[str, Any] | None
    changed: list[str]
    reason: str
    follows: str


def make_bet(d: Diagnosis, hypothesis_id: str) -> Bet:
    """The bet of one hypothesis. UsageError when there is none of that id, or it carries no experiment."""
    import difflib

    found = next((h for h in d.hypotheses if h.id == hypothesis_id), None)
    with_experiment = [h.id for h in d.hypotheses if h.experiment is not None]
    if found is None:
        near = difflib.get_close_matches(hypothesis_id, [h.id for h in d.hypotheses], n=1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"it has {', '.join(with_experiment) or 'none with an experiment'}"
        )
        raise UsageError(f"no hypothesis {hypothesis_id!r} in this diagnosis; {hint}")
    if found.experiment is None:
        raise UsageError(
            f"hypothesis {hypothesis_id} is {found.status} and carries no experiment; with one: {', '.join(with_experiment) or 'none'}"
        )
    return _bet(d, found, found.experiment)


def _bet(d: Diagnosis, found: Hypothesis, experiment: Experiment) -> Bet:
    phase = experiment.phase or found.phase
    values = per_step_ms(d, experiment.metric, phase)
    mine = estimate([values])
    return Bet(
        schema=SCHEMA,
        hypothesis=found.id,
        limit=found.limit,
        phase=phase,
        objective=found.objective,
        statement=found.statement,
        experiment=experiment,
        baseline=_as_dict(mine) or {"value": experiment.baseline},
        context=context_of(d, phase),
        source=[{"path": s.path, "sha256": s.sha256} for s in d.source],
    )


def _as_dict(e: Estimate | None) -> dict[str, Any] | None:
    if e is None:
        return None
    return {"value": e.value, "low": e.low, "high": e.high, "method": e.method, "samples": e.samples}


def settle(bet: Bet, after: list[Diagnosis]) -> Settled:
    """Compare the after-run(s) with both intervals.

    Confirmed: the measured interval meets the prediction and not the runner-up's. Refuted: it misses the prediction on the
    runner-up's side. Inconclusive: it meets both or goes beyond the prediction, the after-run lacks the phase, or was taken on
    another device or model.
    """
    experiment = bet.experiment
    low, high = experiment.prediction.low, experiment.prediction.high
    rival = experiment.under_runner_up
    measured = estimate([per_step_ms(d, experiment.metric, bet.phase) for d in after])
    changed = differences(bet.context, context_of(after[0], bet.phase)) if after else []
    verdict, reason, follows = _judge(bet, measured, low, high)
    foreign = [line for line in changed if line.startswith(("device:", "devices:", "model:"))]
    if foreign:
        verdict, reason = "inconclusive", f"the after-run is other work: {'; '.join(foreign)}"
        follows = "repeat the after-run on the same device and model"
    return Settled(
        schema=RESULT_SCHEMA,
        hypothesis=bet.hypothesis,
        limit=bet.limit,
        verdict=verdict,
        metric=experiment.metric,
        unit=experiment.prediction.unit,
        baseline=bet.baseline.get("value"),
        measured=_as_dict(measured),
        predicted={"low": low, "high": high},
        under_runner_up=None
        if rival is None
        else {"limit": rival.limit, "low": rival.low, "high": rival.high},
        changed=changed,
        reason=reason,
        follows=follows,
    )


def _judge(
    bet: Bet, measured: Estimate | None, low: float | None, high: float | None
) -> tuple[str, str, str]:
    rival = bet.experiment.under_runner_up
    if measured is None:
        return (
            "inconclusive",
            f"the after-run has no {bet.experiment.metric} to measure"
            if bet.experiment.metric in SERVED
            else f"the after-run has no {bet.phase} steps to measure",
            "give the benchmark's result with the after-run"
            if bet.experiment.metric in SERVED
            else "capture the after-run with the same phases and annotations",
        )
    if low is None and high is None:
        return "inconclusive", "the experiment carries no predicted interval", "diagnose the before-run again"
    low, high = (float("-inf") if low is None else low), (float("inf") if high is None else high)
    unit = bet.experiment.prediction.unit
    shown = f"measured {measured.value:.4g} {unit} ({measured.low:.4g}-{measured.high:.4g})"
    fits = measured.meets(low, high)
    other = (
        rival is not None
        and rival.low is not None
        and rival.high is not None
        and measured.meets(rival.low, rival.high)
    )
    if fits and other:
        assert rival is not None
        return (
            "inconclusive",
            f"{shown} meets both the prediction {low:.4g}-{high:.4g} and what {rival.limit} would give, {rival.low:.4g}-{rival.high:.4g}",
            "repeat both sides several times (give every after-run) so that the noise gets smaller than the gap between the two",
        )
    if fits:
        return (
            "confirmed",
            f"{shown} meets the prediction {low:.4g}-{high:.4g}",
            "keep the change; diagnose the after-run for what binds next",
        )
    if other:
        assert rival is not None
        return (
            "refuted",
            f"{shown} misses {low:.4g}-{high:.4g} and lands where {rival.limit} would put it",
            f"{bet.limit} was not the limit: look at {rival.limit}",
        )
    if rival is not None and rival.low is not None and rival.high is not None:
        beyond = measured.high < low < rival.high or measured.low > high > rival.low
        if beyond:
            # Further from the runner-up than predicted: the limit was relieved, but not only that happened.
            return (
                "inconclusive",
                f"{shown} goes beyond the prediction {low:.4g}-{high:.4g}, away from what {rival.limit} would give",
                "more changed than the experiment: compare the two runs' work before believing the gain",
            )
    return (
        "refuted",
        f"{shown} misses the prediction {low:.4g}-{high:.4g}",
        "neither this limit nor the runner-up explains it: diagnose the after-run",
    )


def decode_bet(data: bytes) -> Bet:
    """Read an experiment file. ValueError (msgspec) when it is none."""
    bet = msgspec.json.decode(data, type=Bet)
    if bet.schema != SCHEMA:
        raise msgspec.ValidationError(f"schema {bet.schema!r} is not {SCHEMA}")
    return bet
