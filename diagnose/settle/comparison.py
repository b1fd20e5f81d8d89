"""The machine-readable comparison, schema "diagnose-compare/1": what `compare --json` writes and its page embeds.

Plain structs, no logic. Relative changes are shares of the before-value (0.13 is +13 %); unknown is None, never 0. Times in
`delta` are whole nanoseconds per unit of work, so that parts add up exactly. Keys may be added, never renamed.
"""

from typing import Any

import msgspec

from diagnose.contract import Source

SCHEMA = "diagnose-compare/1"
VERDICTS = ("improved", "regressed", "mixed", "no_change", "inconclusive")
METRIC_VERDICTS = ("improved", "regressed", "no_change", "inconclusive", "withheld")
UNITS = ("step", "token", "call", "request")


class Struct(msgspec.Struct, kw_only=True):
    """Base of all parts."""


class SideInfo(Struct):
    """What one side is: its inputs (a list a run) and the facts a reader needs."""

    runs: int
    source: list[list[Source]]
    device: str | None
    devices: int
    model: str | None
    engine: str | None
    precision: str | None
    steps: dict[str, int] = {}
    window_ns: int | None = None


class Difference(Struct):
    """A condition that differs. `withholds`: the metrics whose verdict it makes unsound (empty: it is only named)."""

    what: str
    before: str
    after: str
    withholds: list[str] = []
    note: str | None = None


class OverallVerdict(Struct):
    """The answer in one word and one sentence; `why` says what moved and why that is thought to be the cause."""

    overall: str
    summary: str
    why: list[str] = []
    cause: str | None = None


class MetricChange(Struct):
    """One metric. `change`, `low`, `high` are shares of `before`; `change_abs` and its interval are in `unit`.

    `noise`: steps, calls, requests, runs, load points (measured), window or assumed (not measured), single (unknown).
    `headline` metrics decide the overall verdict; the others explain it. `points`: verdicts at the points of a load sweep.
    """

    metric: str
    phase: str | None
    unit: str
    before: float
    after: float
    change: float | None
    low: float | None
    high: float | None
    verdict: str
    change_abs: float
    low_abs: float | None
    high_abs: float | None
    better: str
    noise: str
    samples: list[int]
    headline: bool
    reason: str | None = None
    note: str | None = None
    points: dict[str, int] | None = None


class RoleChange(Struct):
    """Part of the change: kernels of a role, collectives, copies, or a kind of idle time; ns and calls per unit of work."""

    role: str
    kind: str
    before_ns: int
    after_ns: int
    change_ns: int
    calls_before: float | None = None
    calls_after: float | None = None


class Delta(Struct):
    """The change of time per unit of work, split. Sum of `buckets` = sum of `roles[].change_ns` = `total_ns`, exactly."""

    per: str
    unit: str
    phase: str | None
    units_before: int
    units_after: int
    before_ns: int
    after_ns: int
    total_ns: int
    buckets: dict[str, int]
    roles: list[RoleChange]
    buckets_before: dict[str, int] = {}
    buckets_after: dict[str, int] = {}


class KernelChange(Struct):
    """The same work on both sides. Times per call, calls and `impact_ns` per unit; `change` is of the time per call, or of
    the time per unit where the calls are not the same (`per` says which). `minor`: moves the unit by less than 0.5 %."""

    phase: str | None
    role: str
    op: str | None
    shape: str | None
    name_before: str
    name_after: str
    renamed: bool
    matched_by: str
    calls_before: float
    calls_after: float
    call_ns_before: float
    call_ns_after: float
    per: str
    change: float
    low: float | None
    high: float | None
    impact_ns: float
    verdict: str
    minor: bool
    bound_before: str
    bound_after: str


class Unmatched(Struct):
    """Work of one side without a partner: a phase, steps or a kernel. `ns_per_unit` where it has a time."""

    side: str
    kind: str
    name: str
    detail: str
    ns_per_unit: float | None = None
    phase: str | None = None


class LimitChange(Struct):
    """What limited a phase (None: the served load), before and after."""

    phase: str | None
    objective: str
    before: str
    after: str


class BetOutcome(Struct):
    """What the comparison says of a hypothesis of the before-report: confirmed, refuted or not_tested."""

    hypothesis: str
    limit: str
    verdict: str
    reason: str


class Comparison(Struct):
    """The whole result."""

    schema: str
    tool_version: str
    before: SideInfo
    after: SideInfo
    comparability: list[Difference]
    verdict: OverallVerdict
    metrics: list[MetricChange]
    delta: Delta | None
    unmatched: list[Unmatched]
    deltas: list[Delta] = []
    kernels: list[KernelChange] = []
    limits: list[LimitChange] = []
    hypotheses: list[BetOutcome] = []
    quantization: dict[str, Any] | None = None
    batching: dict[str, Any] | None = None
    quality: dict[str, Any] | None = None
    points: list[dict[str, Any]] = []
    notes: list[str] = []
