"""The traced window as the service sees it: what each relief would free of an objective's time, and what a larger batch costs.

Every phase counts by the time it takes for the objective. A gap between tokens is every step that runs while a request
decodes, mixed and prefill steps included; a first token is the queue in front of the engine and the steps that compute the
prompt; throughput is all of them. Parts of a step follow a larger batch each by its own law, so a gain is a sum over parts.
"""

from dataclasses import dataclass, field
from math import hypot, sqrt

PROMPT_PHASES = ("prefill", "mixed")
NO_PHASE = ("encode", "draft")
RATIO_NOISE = 0.025
"""What every part may do besides its law when the batch changes: measured products below the knee move by up to 6 %."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of the traced window.

    `ns` its observed time; `relief` the share of it that goes when a limit is relieved (compute, memory and links doubled,
    overheads removed), by limit; `unknown` the share whose nature no evidence tells; `parts` its time by part, as shares
    that add up to about 1; `tokens` rows of a step's products; `steps` how many were seen; `sampler_gap` the share idle between logits and
    sampler, which is not in `relief`.
    """

    phase: str
    ns: float
    relief: dict[str, float] = field(default_factory=dict)
    unknown: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    tokens: float | None = None
    steps: int = 0
    sampler_gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """All phases of the window. `knee`: tokens a step from which weights cost compute; `expert_growth`: how many times the
    experts read grow when a step's tokens double (1 when all are read already), None for a dense model; `variants`: windows
    that are all possible, between which answers span; `prompt_steps`: tokens of each traced step that computes prompts."""

    phases: tuple[PhaseTime, ...]
    knee: float | None = None
    expert_growth: float | None = None
    variants: tuple["Window", ...] = ()
    prompt_steps: tuple[float, ...] = ()

    def of(self, objective: str) -> tuple[PhaseTime, ...]:
        """The phases whose time the objective waits for."""
        mine = tuple(p for p in self.phases if p.phase not in NO_PHASE)
        if objective == "ttft":
            return tuple(p for p in mine if p.phase in PROMPT_PHASES)
        if objective == "itl" and not any(p.phase in ("decode", "mixed") for p in mine):
            return ()
        return mine

    def relief(self, objective: str) -> dict[str, float]:
        """Share of the objective's step time that each relief frees, by limit."""
        phases = self.of(objective)
        whole = sum(p.ns for p in phases)
        out: dict[str, float] = {}
        for p in phases:
            for limit, share in p.relief.items():
                out[limit] = out.get(limit, 0.0) + share * p.ns / whole
        return out

    def unknown(self, objective: str) -> float:
        """Share of the objective's step time of unknown nature."""
        phases = self.of(objective)
        whole = sum(p.ns for p in phases)
        return sum(p.unknown * p.ns for p in phases) / whole if whole else 0.0

    def sampler_gap(self, objective: str) -> float:
        """Share of the objective's step time idle between logits and sampler."""
        phases = self.of(objective)
        whole = sum(p.ns for p in phases)
        return sum(p.sampler_gap * p.ns for p in phases) / whole if whole else 0.0

    def spread(self, objective: str, limit: str) -> float:
        """How much the mix of phases matters for a limit: the difference of its relief between phases, by the time of the
        lesser side. A window of few steps knows its own mix only to about one step."""
        phases = self.of(objective)
        whole = sum(p.ns for p in phases)
        if len(phases) < 2 or not whole:
            return 0.0
        shares = [p.relief.get(limit, 0.0) for p in phases]
        count = sum(p.steps for p in phases)
        return (max(shares) - min(shares)) / (2.0 * sqrt(max(1, count)))

    def time_factor(self, ratio: float) -> tuple[float, float]:
        """(low, high) time per output token at `ratio` times the sequences, over now. Prompts are computed as before, a
        token each; what a step costs once is shared by more sequences; idle time that waits for launches hides the growth
        of the kernels under it."""
        whole = sum(p.ns for p in self.phases)
        if not whole or ratio <= 1:
            return 1.0, 1.0
        if self.variants:
            ends = [v.time_factor(ratio) for v in self.variants]
            return min(low for low, _ in ends), max(high for _, high in ends)
        middle = 0.0
        doubts: dict[str, float] = {}
        decode = next((p for p in self.phases if p.phase == "decode" and p.steps), None)
        for p in self.phases:
            weight = p.ns / whole
            mean, loose = self._phase_factor(p, ratio)
            if p.phase == "mixed" and decode is not None and p.steps:
                # A mixed step is also a decode step and what the prompt adds to it: the truth lies between adding up
                # its parts and letting the decode it holds follow decode's law.
                base = min(1.0, decode.ns / decode.steps / (p.ns / p.steps))
                other = base * self._phase_factor(decode, ratio)[0] + 1 - base
                loose["mixed"] = abs(mean - other) / 2
                mean = (mean + other) / 2
            middle += weight * mean
            for part, doubt in loose.items():
                # the same part of two phases follows the same unknown law
                doubts[part] = doubts.get(part, 0.0) + weight * doubt
        doubt = hypot(*doubts.values(), self._mix_doubt(ratio), RATIO_NOISE * middle)
        return max(1 / ratio, middle - doubt), min(1.0 + RATIO_NOISE, middle + doubt)

    def _mix_doubt(self, ratio: float) -> float:
        """What a few steps leave open of how often each phase runs: the phases' difference, by the steps seen."""
        ends = [self._phase_factor(p, ratio)[0] for p in self.phases if p.steps]
        count = sum(p.steps for p in self.phases)
        return (max(ends) - min(ends)) / sqrt(max(1, count)) / 4 if len(ends) > 1 else 0.0

    def _phase_factor(self, p: PhaseTime, ratio: float) -> tuple[float, dict[str, float]]:
        """A phase's middle factor, and by part the half-width of what its law leaves open."""
        named = sum(p.parts.values())
        if not named:
            return (1 + 1 / ratio) / 2, {"": (1 - 1 / ratio) / 2}
        laws = {part: (share / named, *self._law(part, p, ratio)) for part, share in p.parts.items()}
        mean = sum(share * (low + high) / 2 for share, low, high in laws.values())
        slack = laws["idle_launch"][0] if "idle_launch" in laws else 0.0
        loose = {part: share * (high - low) / 2 for part, (share, low, high) in laws.items() if high > low}
        return max(1 / ratio, mean - slack / ratio), loose

    def overlapped(self, objective: str, limit: str) -> float:
        """Share of the objective's time that goes when a limit's time runs beside the rest of each step, not before it."""
        phases = self.of(objective)
        whole = sum(p.ns for p in phases)
        held = sum(p.ns * min(p.relief.get(limit, 0.0), 1 - p.relief.get(limit, 0.0)) for p in phases)
        return held / whole if whole else 0.0

    def saved_by_larger_steps(self, part: str, p: PhaseTime) -> float:
        """Share of a part's time that goes when a step computes twice the tokens: all but work that is by the token. The
        context of a prompt is read once a chunk, so attention's reads halve too."""
        if part.startswith("compute"):
            return 0.0
        if part in ("hbm:weights", "hbm:packed"):
            low, high = self._law(part, p, 2.0)
            return 1 - (low + high) / 2
        return 0.5

    def _law(self, part: str, p: PhaseTime, ratio: float) -> tuple[float, float]:
        """(low, high) time of a part per output token at `ratio` times the sequences, over now."""
        once = 1 / ratio
        bucket, _, kind = part.partition(":")
        if part in ("hbm:weights", "hbm:packed"):
            if self.knee is None or p.tokens is None:
                return once, 1.0
            exact = once * max(1.0, ratio * p.tokens / self.knee) / max(1.0, p.tokens / self.knee)
            return exact, exact
        if part == "hbm:experts":
            grown = self.expert_growth
            exact = once if grown is None else min(1.0, once * (1 + (grown - 1) * min(1.0, ratio - 1)))
            return exact, (1.0 if grown is None else exact)
        if bucket == "compute" or kind == "kv":
            return 1.0, 1.0
        if bucket in ("floor", "idle_launch", "idle_sync", "idle_device"):
            return once, once
        return once, 1.0


def doubling(window: Window) -> tuple[float, float]:
    """(low, high) throughput factor of twice the sequences."""
    low, high = window.time_factor(2.0)
    return 1 / high, 1 / low
