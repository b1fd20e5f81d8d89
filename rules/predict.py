"""What a change does to a phase's time: the sum over its parts of time x factor, never less than the host's own work."""

from diagnose.rules.experiments import NOISE, Change, Factor, bucket_of
from diagnose.rules.situation import Situation


def predict(now: Situation, change: Change) -> Factor:
    """Predicted (low, high) time of the phase after the change, in ns."""
    low = high = 0.0
    for part, ns in now.parts_ns.items():
        f = change.response(part, now)
        low += ns * f[0]
        high += ns * f[1]
    return floored((low, high), now, change)


def predict_if(now: Situation, change: Change, claimed: tuple[str, ...], other: tuple[str, ...]) -> Factor:
    """The same change if the claimed parts were really `other`'s kind of time: they respond as that part would."""
    low = high = 0.0
    parts = now.parts_ns
    # The response of the runner-up's own largest part stands for its kind. A part that the change may or may not touch on
    # the side (its interval holds 1) is not what the change acts on: time of that kind would stay.
    mine = [p for p in parts if bucket_of(p) in other]
    stand_in = max(mine, key=lambda p: parts[p]) if mine else (other[0] if other else "")
    as_other = change.response(stand_in, now)
    if as_other[0] < NOISE[0] and as_other[1] >= 1.0:
        as_other = NOISE
    for part, ns in parts.items():
        f = as_other if bucket_of(part) in claimed else change.response(part, now)
        low += ns * f[0]
        high += ns * f[1]
    return floored((low, high), now, change)


def floored(predicted: Factor, now: Situation, change: Change) -> Factor:
    """A prediction that keeps to the host's pace: device work that shrinks below it only makes the device wait."""
    if now.host is None or change.host is None or change.scope_claimed:
        return predicted
    work = now.host.busy_share * now.total_ns
    # A kernel that the change adds costs the host what a launch costs now, at most; some are fused into others.
    eager = sum(p.launches for p in now.products if not p.in_graph) if change.adds_launches else 0.0
    added = eager / now.host.launches if now.host.launches else 0.0
    low = work * change.host[0] * (1 - now.host.noise)
    high = work * (change.host[1] + added) * (1 + now.host.noise)
    return max(predicted[0], low), max(predicted[1], high)
