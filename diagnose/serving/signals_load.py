"""Which of an engine's samples are the run: the stretch between idle servers, of the load that was asked about.

A server is scraped before its load and after it; those samples say nothing about the load. A sample is idle when nobody
runs and nobody waits. A run is a stretch from its first to its last busy sample, in which fewer than IDLE samples in a row
are idle (a light load has idle moments of its own); of several the one with the most requests counts. Each source (scrapes,
log) has its own clock and is cut by its own levels.
"""

from dataclasses import dataclass

from diagnose.serving.evidence_types import Evidence, Sample
from diagnose.serving.kv import engine_totals, paired
from diagnose.serving.stats import quantile

LOADED = 0.5
"""Share of the run's peak of running requests from which a sample counts as loaded: ramps at both ends do not."""
IDLE = 3
"""So many idle samples in a row end a run."""
OTHER_LOAD = 0.5
MIN_DECODING = 4.0
"""Levels this far below Little's law are of another load; under four sequences the law itself is coarse."""
LEVELS = frozenset(
    {"running", "waiting", "waiting_capacity", "waiting_deferred", "kv_usage", "used_tokens", "swa_usage"}
)
TIMED = LEVELS | {
    "generation_tok_s", "graph_replay", "prefill_new_tokens", "host_step_ms", "device_step_ms", "step_ms",
    "step_context_tokens", "step_generation_tokens", "step_generation_requests", "spec_accept_len", "forward_s", "scheduler_idle_s",
}  # fmt: skip
"""Samples that describe a moment; counters and histograms are differenced over the whole time anyway."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The run of one source: first and last busy time stamp, samples inside and in all."""

    origin: str
    first: float
    last: float
    inside: int
    total: int

    def text(self) -> str:
        """In words: how many samples, over which of the time."""
        return f"{self.inside} of {self.total} samples, {self.last - self.first:.0f} s"


def stretches(evidence: Evidence) -> list[Stretch]:
    """The run of every source with levels over time."""
    found = []
    for origin in ("metrics", "log"):
        busy: dict[float, float] = {}
        for s in evidence.samples:
            timed = s.origin == origin and s.ts is not None and s.label("stat") is None
            if timed and s.metric in ("running", "waiting"):
                busy[float(s.ts or 0.0)] = busy.get(float(s.ts or 0.0), 0.0) + s.value
        best = _busiest(sorted(busy.items()))
        if best:
            found.append(Stretch(origin, best[0][0], best[-1][0], len(best), len(busy)))
    return found


def _busiest(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The stretch with the most requests, from its first to its last busy sample."""
    best: list[tuple[float, float]] = []
    run: list[tuple[float, float]] = []
    idle: list[tuple[float, float]] = []
    for row in [*rows, *[(0.0, 0.0)] * IDLE]:
        if row[1] > 0:
            run, idle = [*run, *(idle if run else []), row], []
            continue
        idle.append(row)
        if len(idle) >= IDLE:
            if sum(v for _, v in run) > sum(v for _, v in best):
                best = run
            run, idle = [], []
    return best


def of_the_run(evidence: Evidence) -> Evidence:
    """The evidence without the samples of an idle server, with a note where some were left out."""
    cut = {s.origin: s for s in stretches(evidence)}

    def keep(s: Sample) -> bool:
        mine = cut.get(s.origin)
        if mine is None or s.ts is None or s.metric not in TIMED or s.label("stat") is not None:
            return True
        return mine.first <= s.ts <= mine.last

    left_out = [s for s in cut.values() if s.inside < s.total]
    if not left_out:
        return evidence
    kept = [s for s in evidence.samples if keep(s)]
    out = Evidence(kept, evidence.requests, evidence.settings, evidence.notes, evidence.engines)
    said = "; ".join(f"{s.origin}: {s.text()}" for s in left_out)
    out.note(
        "idle-samples",
        f"levels are taken while requests ran or waited ({said}); the server was idle at the others",
    )
    return out


def of_the_load(evidence: Evidence) -> Evidence:
    """The evidence without its levels where they are not of the benchmark's load.

    Little's law gives the sequences that decoded at a time, throughput x time per token; a median level
    below half of it is of another stretch of the server's life (its start, its tail, another hour).
    """
    rate = evidence.stat_value("output_tok_s", "bench")
    tpot = evidence.stat("tpot_ms", "mean", "bench") or evidence.stat("itl_ms", "mean", "bench")
    rows = loaded(evidence)
    running = sorted(r for r, _ in rows) or sorted(v for _, v in engine_totals(evidence, "running") if v > 0)
    if not (rate and tpot and running):
        return evidence
    decoding = rate * tpot / 1e3
    if decoding < MIN_DECODING or quantile(running, 0.5) >= OTHER_LOAD * decoding:
        return evidence
    kept = [x for x in evidence.samples if x.metric not in LEVELS]
    out = Evidence(kept, evidence.requests, evidence.settings, evidence.notes, evidence.engines)
    out.note(
        "levels-of-another-load",
        f"the engine's levels ({quantile(running, 0.5):.0f} running) are not of the benchmark ({decoding:.0f} by its "
        "throughput and time per token); they were left out",
        "warning",
    )
    return out


def loaded(evidence: Evidence) -> list[tuple[float, float]]:
    """(running, waiting) at the samples of the loaded part; waiting 0 only where the source has no such
    level."""
    both = paired(evidence, "running", "waiting")
    engines = {x.label("engine") for x in evidence.samples if x.metric == "running"}
    if len(engines) > 1 or not both:
        running, waiting = engine_totals(evidence, "running"), dict(engine_totals(evidence, "waiting"))
        both = [(run, waiting[ts]) for ts, run in running if ts in waiting]
    peak = max((run for run, _ in both), default=0.0)
    return [(run, wait) for run, wait in both if run >= LOADED * peak and run > 0]
