"""What two results have to share before their numbers can be compared, and what differs."""

from typing import Any

from diagnose.contract import Diagnosis, Phase


def context_of(d: Diagnosis, phase: str | None) -> dict[str, Any]:
    """The conditions of a result that move its step time, by name; unknown is None."""
    mine: Phase | None = next((p for p in d.phases if p.phase == phase), None)
    codes = {n.code for n in d.data_quality}
    return {
        "device": d.devices[0].catalog_key or d.devices[0].name if d.devices else None,
        "devices": len(d.devices),
        "model": (d.model or {}).get("name"),
        "framework": d.source[0].framework if d.source else None,
        "profiler": d.source[0].profiler if d.source else None,
        "steps": mine.steps if mine else None,
        "sequences": round(mine.sequences, 1) if mine and mine.sequences is not None else None,
        "context_tokens": round(mine.context_tokens) if mine and mine.context_tokens is not None else None,
        "python_stacks": "python-stacks" in codes,
    }


# Differences that change the work itself; the experiment may be meant to change one of them.
UNSOUND = ("device", "devices", "model", "sequences", "context_tokens")
# Context grows a token a step: a few percent is the same context.
TOLERANCE = 0.05


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line a condition that differs, the ones that change the work first."""
    lines = []
    for name in sorted(before, key=lambda n: (n not in UNSOUND, n)):
        a, b = before.get(name), after.get(name)
        if a == b or a is None or b is None or name == "steps":
            continue
        if name == "context_tokens" and abs(a - b) <= TOLERANCE * max(a, b):
            continue
        lines.append(f"{name.replace('_', ' ')}: {a} before, {b} after")
    return lines
