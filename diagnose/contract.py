"""The machine-readable result, schema "diagnose/1": what `--json` writes, the page embeds and `verify` reads.

Plain msgspec structs, no logic. Durations are integer nanoseconds unless the name says otherwise; rates are TFLOP/s
and GB/s (1e9). Unknown is None, never 0. Keys may be added, never renamed.
"""

from typing import Any

import msgspec

SCHEMA = "diagnose/1"

BUCKETS: tuple[str, ...] = (
    "compute", "hbm", "floor", "inefficient", "unmodelled", "communication", "comm_wait", "copy",
    "idle_launch", "idle_sync", "idle_scheduling", "idle_device", "idle_other", "unobserved",
)  # fmt: skip
PHASES: tuple[str, ...] = ("prefill", "decode", "mixed", "encode", "draft", "other")
LIMITS: tuple[str, ...] = (
    "compute", "hbm", "kv_capacity", "scheduling", "launch_overhead", "host_sync", "host_input", "communication",
    "imbalance", "copy", "kernel_inefficiency", "power", "demand", "inconclusive",
)  # fmt: skip
OBJECTIVES: tuple[str, ...] = ("step_time", "throughput", "ttft", "itl", "e2e")

Attribution = dict[str, int]


class Struct(msgspec.Struct, kw_only=True):
    """Base of all parts."""


class Source(Struct):
    """A trace or an evidence file."""

    path: str
    format: str
    sha256: str | None = None
    profiler: str | None = None
    profiler_version: str | None = None
    framework: str | None = None
    captured_at: str | None = None
    rank: int | None = None
    world_size: int | None = None
    bytes: int | None = None


class Window(Struct):
    """First to last recorded activity of a device."""

    start_ns: int
    end_ns: int
    wall_ns: int


class RoofRow(Struct):
    """One roof. `sustained` is the plateau for large work; `note` says how it varies with size."""

    resource: str
    dtype: str
    peak: float | None
    sustained: float | None
    unit: str
    provenance: str
    note: str | None = None
    source: str | None = None


class Device(Struct):
    """A device with activity."""

    id: int
    name: str
    catalog_key: str | None
    rank: int | None
    window: Window
    attribution_ns: Attribution
    roofs: list[RoofRow]
    sm_count: int | None = None
    memory_bytes: int | None = None
    match_note: str | None = None


class Coverage(Struct):
    """How much kernel time is linked and has a cost."""

    kernel_time_ns: int
    linked_to_op_ns: int
    in_graphs_ns: int
    no_launch_ns: int
    with_cost_ns: int
    by_source_ns: dict[str, int]
    unmodelled_top: list[dict[str, Any]] = []


class Phase(Struct):
    """All steps of one phase on all devices."""

    phase: str
    steps: int
    wall_ns: int
    tokens: dict[str, int | None]
    attribution_ns: Attribution
    step_time_ns: dict[str, float | None]
    ideal_step_ns: float | None
    efficiency: float | None
    mfu: float | None
    mbu: float | None
    limit: str
    confidence: float | None
    runner_up: str | None = None
    sequences: float | None = None
    context_tokens: float | None = None
    ideal_note: str | None = None


class OutsideSteps(Struct):
    """Device time that no step owns."""

    wall_ns: int
    attribution_ns: Attribution


class KernelRow(Struct):
    """One combination of name, op, role, shape and phase; totals over `count` launches."""

    name: str
    family: str
    op: str | None
    role: str | None
    shape: str | None
    phase: str | None
    count: int
    time_ns: int
    flops: float | None
    bytes: float | None
    tflops: float | None
    gbps: float | None
    intensity: float | None
    regime: str | None
    percent_of_roof: float | None
    bound: str
    reason: str | None
    cost_source: str | None
    dtype: str | None = None
    device: int | None = None
    bytes_low: float | None = None
    bytes_high: float | None = None
    flags: list[str] = []
    # Standard error of the mean duration, from means of consecutive calls; None below 3 calls.
    se_ns: float | None = None


class Evidence(Struct):
    """One typed fact. `direction` says which side of `threshold` supports the claim: above, below, equal."""

    metric: str
    value: float | str | None
    unit: str
    threshold: float | None = None
    direction: str | None = None
    provenance: str = "measured"
    query: str | None = None
    note: str | None = None


class Interval(Struct):
    """A predicted interval."""

    low: float | None
    high: float | None
    unit: str


class RunnerUpPrediction(Struct):
    """What the same experiment would show if the runner-up were the limit."""

    limit: str
    low: float | None
    high: float | None


class Experiment(Struct):
    """One change that can refute the hypothesis."""

    change: str
    command: str | None
    metric: str
    prediction: Interval
    under_runner_up: RunnerUpPrediction | None
    refuted_if: str
    cost: str
    risk: str | None = None
    baseline: float | None = None
    phase: str | None = None
    # Why the baseline is not the window's plain mean, e.g. "with the gap before every step".
    baseline_note: str | None = None


class Gain(Struct):
    """Predicted gain. `scope` says of what: this kernel, this phase, the window."""

    metric: str
    low: float | None
    high: float | None
    unit: str
    scope: str


class Hypothesis(Struct):
    """A limit claimed for a phase and objective."""

    id: str
    limit: str
    phase: str | None
    objective: str
    status: str
    confidence: float | None
    gain: Gain | None
    statement: str
    evidence: list[Evidence] = []
    counter_evidence: list[Evidence] = []
    missing: list[str] = []
    experiment: Experiment | None = None
    rule: str | None = None
    score: float | None = None


class Verdict(Struct):
    """The run's answer."""

    limit: str
    phase: str | None
    objective: str
    confidence: float | None
    summary: str
    runner_up: str | None = None
    next: str | None = None
    by_phase: list[str] = []
    ruled_out: list[str] = []
    could_not_tell: list[str] = []
    calibrated: bool = False


class Note(Struct):
    """A data-quality note. severity: info, warning, error."""

    code: str
    severity: str
    message: str


class StepRow(Struct):
    """A step for the timeline (capped; `Diagnosis.steps_total` has the true number)."""

    step_id: int
    device: int
    phase: str
    start_ns: int
    end_ns: int
    gap_before_ns: int
    sequences: int | None
    prefill_tokens: int | None
    decode_tokens: int | None
    context_tokens: int | None
    attribution_ns: Attribution
    # Kernel and collective time by role (family where no role is known); with copies and idle it adds up to the period.
    role_ns: dict[str, int] = {}
    # How the step was found: an annotation's form, pattern, or window (no step was found; this is a stretch of device time).
    provenance: str | None = None
    # Idle between the step's logits and its last kernel, by bucket; and host work in the gap before it, by name.
    sampler_gap_ns: dict[str, int] = {}
    gap_work_ns: dict[str, int] = {}


class TimelineSegment(Struct):
    """A merged stretch of one device's window for drawing."""

    device: int
    start_ns: int
    end_ns: int
    bucket: str
    cause: str | None
    step_id: int | None


class Diagnosis(Struct):
    """The whole result."""

    schema: str
    tool_version: str
    source: list[Source]
    objective: str
    devices: list[Device]
    attribution_ns: Attribution | None
    coverage: Coverage | None
    phases: list[Phase]
    outside_steps: OutsideSteps | None
    kernels: list[KernelRow]
    latency: dict[str, Any] | None
    kv: dict[str, Any] | None
    hypotheses: list[Hypothesis]
    verdict: Verdict
    data_quality: list[Note]
    ranks: list["Diagnosis"] | msgspec.UnsetType = msgspec.UNSET
    steps: list[StepRow] = []
    steps_total: int = 0
    timeline: list[TimelineSegment] = []
    model: dict[str, Any] | None = None
    engine_config: list[dict[str, Any]] = []
    memory: dict[str, Any] | None = None
    what_if: list[dict[str, Any]] = []
    what_if_devices: list[dict[str, Any]] = []
    load: dict[str, Any] | None = None
    ceiling: dict[str, Any] | None = None
    useful_batch: dict[str, Any] | None = None
    quantization: list[dict[str, Any]] = []
    representative: dict[str, Any] | None = None
    counters: list[dict[str, Any]] = []
    rank_summary: dict[str, Any] | None = None


def empty_attribution() -> Attribution:
    """Every bucket at 0."""
    return dict.fromkeys(BUCKETS, 0)
