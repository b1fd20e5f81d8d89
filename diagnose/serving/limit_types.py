"""What the judgement of limits returns, and its thresholds with their origin."""

from dataclasses import dataclass, field
from typing import Any

THRESHOLDS: dict[str, tuple[float, str]] = {
    "kv_full": (0.90, "pool full: SGLang tuning guide and llm-d metrics guide"),
    "kv_tight": (
        0.80,
        "a pool of a dozen requests or so is as good as full with less than two requests' tokens free",
    ),
    "kv_free": (0.70, "pool free: below it KV cannot be what holds requests back"),
    "sustained": (0.50, "a state counts as the run's when half the loaded samples show it"),
    "idle_queue": (0.05, "a queue seen in fewer samples than this is arrivals between two schedules"),
    "fits_slack": (1.25, "sequences seen within a quarter of what the pool holds run at the pool"),
    "offered_over_fits": (1.10, "a tenth more requests offered than the pool holds is more than it can run"),
    "queue_share": (0.50, "half of TTFT in the queue makes the queue the first token's limit"),
    "queue_free": (0.20, "a fifth or less of TTFT in the queue leaves it to prefill and front end"),
    "front_end": (0.30, "a third of the client's TTFT outside the engine"),
    "in_engine": (0.70, "fewer than 7 of 10 requests in flight inside the engine: they wait in front of it"),
    "interference": (0.15, "prefill interference worth a seventh of mean ITL"),
    "tail": (3.0, "ITL p99 three times its median: stalls, not noise (published tails: 9 times)"),
    "mixed_ratio": (2.0, "a mixed iteration twice a pure decode one"),
    "host_over_device": (1.05, "host time above the device's: the device waits"),
    "forward_share": (0.70, "under 70 % of the busy time in the forward pass"),
    "between_steps": (0.15, "idle above 15 % of a window is flagged by two published tools"),
    "engine_spread": (1.30, "busiest engine a third above the mean of its peers"),
    "keeps_up": (0.95, "completing 95 % of an open arrival rate is keeping up"),
    "batch_room": (0.80, "running below four fifths of the cap leaves slots free"),
    "small_batch": (
        16.0,
        "published GEMM times are flat to 64 sequences and more: at 16 a larger batch gains",
    ),
    "sure_gain": (
        1.30,
        "a gain that other reliefs of a closed loop seldom pass: half of a doubling and more",
    ),
    "room": (
        1.25,
        "a quarter more sequences gain at most a fifth: less than twice the bandwidth would in most decode steps",
    ),
    "marginal_gain": (1.10, "doubling the batch must gain a tenth to be worth more KV or slots"),
    "e2e_share": (0.40, "a part of the whole request this large can be its limit; near halves name both"),
    "recomputed": (0.05, "a twentieth of prompt tokens computed twice"),
}


def threshold(name: str) -> float:
    """A threshold's value."""
    return THRESHOLDS[name][0]


@dataclass
class Candidate:
    """A limit an objective may have, with what speaks for and against it.

    status: supported, possible, refuted, not_assessed. `cause` narrows a limit (slot_cap, token_budget,
    ...). Evidence rows are {metric, value, unit, threshold, direction, provenance, text}. `gain` is the
    (low, high) factor on the objective if the limit were relieved, either end None when unknown; `relief`
    the (low, high) share of the objective's time that twice of it would free, None when unknown;
    `change` the experiment's setting where it is not the cause's own.
    """

    limit: str
    cause: str
    status: str
    confidence: float
    statement: str
    evidence: list[dict[str, Any]] = field(default_factory=list)
    against: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    gain: tuple[float | None, float | None] | None = None
    relief: tuple[float, float] | None = None
    change: str | None = None


@dataclass
class Assessment:
    """All candidates of an objective, best first; `limits` are those that bind together, or
    ["inconclusive"]."""

    objective: str
    limits: list[str]
    candidates: list[Candidate]
    missing: list[str]
    note: str

    @property
    def first(self) -> Candidate | None:
        """The best supported candidate, None when inconclusive."""
        return next((c for c in self.candidates if c.status == "supported"), None)
