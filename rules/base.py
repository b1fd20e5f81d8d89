"""What a rule is: its declaration, what it returns, and what the engine gives it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from diagnose.contract import Evidence
from diagnose.rules.host_pace import HostPace
from diagnose.rules.weight_products import WeightProduct

OUTSIDE = "outside"
"""Pseudo-phase of the time that no step owns."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number a rule compares with. `direction`: the side of it that supports the rule; `origin`: where it is from."""

    value: float
    unit: str
    direction: str
    origin: str


@dataclass(frozen=True, slots=True)
class Need:
    """Something a rule reads. `what` is a table that must have rows, or a fact of the context; `capture` supplies it."""

    what: str
    capture: str


@dataclass(frozen=True, slots=True)
class Context:
    """What the engine knows about one phase of one device when it asks a rule.

    `parts_ns`: exclusive time by part (see `diagnose.rules.parts`), observed time only; `wall_ns` their sum.
    `facts`: counts and shares that several rules share (coverage, python stacks, ranks, engine, ...).
    `host`: the launching thread's pace; `products`: matrix products that stream weights; `unseen_gaps`: steps whose gap
    before them lies outside the window; `whole_steps`: steps, those cut by an edge of the window in part; `kernels`: kernels of the phase.
    """

    phase: str
    device_id: int
    objective: str
    wall_ns: int
    steps: int
    parts_ns: dict[str, float]
    facts: dict[str, Any]
    host: HostPace | None = None
    products: tuple[WeightProduct, ...] = ()
    unseen_gaps: int = 0
    whole_steps: float = 0.0
    kernels: int = 0


@dataclass(slots=True)
class Assessment:
    """What a rule found in one phase.

    `status`: supported, possible, refuted, not_assessed. `share`: part of the phase's observed time that would go with
    the limit entirely relieved. `recover_ns`: (low, high) time that the proposed change should save in the phase.
    `quality`: 0..1, how far the evidence can be trusted (coverage, single rank, distortions), with `doubts` in words.
    `experiments`: of the rule's, those that fit what was found here; empty for all of them. `instead`: what else it may be,
    where it is only possible. `later`: the share once the host no longer sets the pace, where that holds `share` down.
    """

    status: str
    share: float = 0.0
    recover_ns: tuple[float, float] = (0.0, 0.0)
    quality: float = 1.0
    statement: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    counter: list[Evidence] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    parts: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    instead: str = "something the evidence does not show"
    later: float = 0.0


Row = dict[str, Any]
Assess = Callable[[Row, Context, dict[str, Threshold]], Assessment]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `sql` returns one row, its parameters `$phase` (NULL for outside) and `$device`.

    `experiments` are ids of `diagnose.rules.experiments` in order of preference: a rule without one does not load.
    """

    id: str
    limit: str
    title: str
    phases: tuple[str, ...]
    objectives: tuple[str, ...]
    sql: str
    thresholds: dict[str, Threshold]
    assess: Assess
    experiments: tuple[str, ...]
    required: tuple[Need, ...] = ()
    optional: tuple[Need, ...] = ()
    refuters: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    doc: str = ""
