"""One side of a comparison: its runs, the device that is compared, and the work of each step."""

from dataclasses import dataclass, field

from diagnose.contract import Diagnosis, KernelRow, StepRow
from diagnose.settle.measure import deciding_device

KERNELS = ("compute", "hbm", "floor", "inefficient", "unmodelled")
COMMUNICATION = ("communication", "comm_wait")
IDLE = ("idle_launch", "idle_sync", "idle_scheduling", "idle_device", "idle_other")
COPY = ("copy",)
OBSERVED = (*KERNELS, *COMMUNICATION, *COPY, *IDLE)
"""Every bucket but `unobserved`, which counts for nothing."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step: what it was asked to do, and the time it took (ns, unobserved time left out).

    `first`: the device's first step, which has no gap before it and is only comparable to another first step.
    """

    phase: str
    sequences: int | None
    tokens: int | None
    context: int | None
    first: bool
    buckets: dict[str, int]
    roles: dict[str, int]

    @property
    def total(self) -> int:
        """Observed time."""
        return sum(self.buckets.values())

    def part(self, names: tuple[str, ...]) -> int:
        """Time in some buckets."""
        return sum(self.buckets[b] for b in names)


@dataclass(slots=True)
class Run:
    """A result seen from the compared device (None: every device, or there is none)."""

    d: Diagnosis
    device: int | None
    steps: list[Work] = field(default_factory=list)
    windows: list[Work] = field(default_factory=list)

    @property
    def kernels(self) -> list[KernelRow]:
        """Kernel rows of the compared device."""
        return [k for k in self.d.kernels if self.device is None or k.device in (None, self.device)]

    def phases(self) -> list[str]:
        """Phases with steps, in the result's order."""
        return list(dict.fromkeys(s.phase for s in self.steps))

    def steps_in(self, phase: str) -> list[Work]:
        """Steps of a phase in time order."""
        return [s for s in self.steps if s.phase == phase]

    def step_count(self, phase: str) -> float:
        """All steps of a phase on the compared device, also those beyond the listed ones."""
        listed = len(self.steps_in(phase))
        if self.d.steps_total <= len(self.d.steps):
            return listed
        known = next((p.steps for p in self.d.phases if p.phase == phase), listed)
        return max(listed, known / max(1, len(self.d.devices)))

    def accepted_per_step(self, phase: str) -> float | None:
        """Tokens kept a step, where the trace says."""
        found = next((p for p in self.d.phases if p.phase == phase), None)
        if found is None or not found.steps or found.tokens.get("accepted") is None:
            return None
        return (found.tokens["accepted"] or 0) / found.steps


@dataclass(slots=True)
class Side:
    """The runs of one side; several are repeats of each other."""

    runs: list[Run]

    @property
    def first(self) -> Run:
        """The run that words are taken from."""
        return self.runs[0]

    @property
    def single(self) -> bool:
        """Whether there is nothing to measure the noise between runs by."""
        return len(self.runs) < 2


def sides(before: list[Diagnosis], after: list[Diagnosis]) -> tuple[Side, Side]:
    """Both sides, seen from the device that decides the first before-run (same rank, same number where there is one)."""
    device = deciding_device(before[0])
    rank = next((x.rank for x in before[0].devices if x.id == device), None)
    return Side([_run(d, device, rank) for d in before]), Side([_run(d, device, rank) for d in after])


def _run(d: Diagnosis, device: int | None, rank: int | None) -> Run:
    if isinstance(d.ranks, list) and rank is not None and d.devices and d.devices[0].rank != rank:
        d = next((r for r in d.ranks if r.devices and r.devices[0].rank == rank), d)
    ids = {x.id for x in d.devices}
    chosen = device if device in ids else deciding_device(d)
    run = Run(d, chosen)
    mine = [s for s in d.steps if s.device == chosen]
    # Steps of a trace are in order of their start; the first on the device has no earlier step to count a gap from.
    for index, row in enumerate(mine):
        work = _work(row, index == 0)
        (run.windows if _is_window(row, len(mine)) else run.steps).append(work)
    return run


def _is_window(row: StepRow, count: int) -> bool:
    """Whether the row is no step at all but a stretch of device time in which none was found."""
    if row.provenance is not None:
        return row.provenance == "window"
    return row.phase == "other" and row.sequences is None and row.decode_tokens is None and count < 3


def _work(row: StepRow, first: bool) -> Work:
    tokens = None
    if row.prefill_tokens is not None or row.decode_tokens is not None:
        tokens = (row.prefill_tokens or 0) + (row.decode_tokens or 0)
    buckets = {b: row.attribution_ns[b] for b in OBSERVED}
    roles = row.role_ns or {"kernels": sum(buckets[b] for b in (*KERNELS, *COMMUNICATION))}
    return Work(row.phase, row.sequences, tokens, row.context_tokens, first, buckets, roles)
