"""The facts that limits are judged on: a value with unit, provenance and how it was found, or None for unknown."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with unit, provenance (measured, derived, assumed) and how it was found."""

    value: float
    unit: str
    provenance: str
    text: str


@dataclass
class Signals:
    """Everything the limits need of the serving evidence; None is unknown."""

    engine: str | None = None
    samples: Fact | None = None
    running: Fact | None = None
    running_peak: Fact | None = None
    waiting: Fact | None = None
    waiting_peak: Fact | None = None
    waiting_share: Fact | None = None
    waiting_deferred: Fact | None = None
    waiting_mean: Fact | None = None
    offered: Fact | None = None
    open_rate: Fact | None = None
    request_s: Fact | None = None
    kv_usage: Fact | None = None
    kv_peak: Fact | None = None
    kv_full_share: Fact | None = None
    pool_tokens: Fact | None = None
    resident_tokens: Fact | None = None
    full_tokens: Fact | None = None
    fits: Fact | None = None
    fits_full: Fact | None = None
    preemptions: Fact | None = None
    preemption_rate: Fact | None = None
    recomputed_share: Fact | None = None
    prefix_hit: Fact | None = None
    slot_cap: Fact | None = None
    at_cap_share: Fact | None = None
    token_budget: Fact | None = None
    at_budget_share: Fact | None = None
    queue_share: Fact | None = None
    queue_ms: Fact | None = None
    ttft_ms: Fact | None = None
    front_end_share: Fact | None = None
    itl_p50: Fact | None = None
    itl_p99: Fact | None = None
    itl_tail: Fact | None = None
    tpot_ms: Fact | None = None
    e2e_ms: Fact | None = None
    interference_share: Fact | None = None
    mixed_over_decode: Fact | None = None
    mixed_share: Fact | None = None
    host_over_device: Fact | None = None
    forward_share: Fact | None = None
    engine_spread: Fact | None = None
    in_engine_share: Fact | None = None
    output_tok_s: Fact | None = None
    graph_max_batch: Fact | None = None
    graph_share: Fact | None = None
    eager: bool | None = None
    backend: str | None = None
    spec_accept_len: Fact | None = None

    def known(self) -> list[str]:
        """Names of what is known."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]
