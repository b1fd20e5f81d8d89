"""How buckets, limits, phases and the other coded words of the contract are named, ordered and coloured for
people."""

import re
from dataclasses import dataclass

from diagnose.contract import Diagnosis

_CODE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class BucketStyle:
    """One bucket: short label, explanation, what a title says of its time, fill, ink readable on it, hatched
    or not."""

    key: str
    label: str
    meaning: str
    finding: str
    color: str
    ink: str
    hatched: bool = False

    @property
    def fill(self) -> str:
        """The SVG paint: the colour, or the page's hatch pattern of that bucket."""
        return f"url(#hatch-{self.key})" if self.hatched else self.color


# Okabe-Ito where it has a colour left; `inefficient` and `idle_device` are additions that stay apart from
# their neighbours in lightness (so also in grey print and for the common colour-vision deficiencies). Kernels
# without a model, waiting ranks and unobserved time are hatched: they are the three that one must not read as
# work at a roof.
_B = BucketStyle
_STYLES = (
    _B("compute", "compute-bound", "kernels near the compute roof",
       "runs near the compute roof", "#0072B2", "#ffffff"),
    _B("hbm", "memory-bound", "kernels near the memory-bandwidth roof",
       "runs near the memory roof", "#E69F00", "#000000"),
    _B("floor", "kernel floor", "kernels too small for the device: latency, not work",
       "is kernels too small for the device", "#CC79A7", "#000000"),
    _B("inefficient", "inefficient", "kernels with enough work, yet far from both roofs",
       "is inefficient kernels", "#5D3A9B", "#ffffff"),
    _B("unmodelled", "no cost model", "kernels whose work is not known",
       "is kernels without a cost model", "#8A8A8A", "#000000", True),
    _B("communication", "communication", "only collectives or peer copies run",
       "is communication", "#009E73", "#000000"),
    _B("comm_wait", "waiting for a rank", "collectives waiting for a later rank",
       "is waiting for a later rank", "#009E73", "#000000", True),
    _B("copy", "host copies", "only host-device copies or memsets run",
       "is copies between host and device", "#56B4E9", "#000000"),
    _B("idle_launch", "idle: launching", "nothing runs; the host was still launching",
       "is idle while the host launches", "#D55E00", "#000000"),
    _B("idle_sync", "idle: host blocked", "nothing runs; the host waited in a call",
       "is idle with the host blocked", "#7F3B08", "#ffffff"),
    _B("idle_scheduling", "idle: between steps", "nothing runs; host work between steps",
       "is idle between steps", "#F0E442", "#000000"),
    _B("idle_device", "idle: device", "nothing runs; launched already, dispatch or dependency",
       "is idle though launched", "#F4B998", "#000000"),
    _B("idle_other", "idle: cause unknown", "nothing runs; no host events to decide",
       "is idle for a cause the file does not show", "#D9D9D9", "#000000"),
    _B("unobserved", "not observed", "the file cannot show whether the device worked",
       "is not observed", "#B8B8B8", "#000000", True),
)  # fmt: skip
BUCKET: dict[str, BucketStyle] = {style.key: style for style in _STYLES}

# (name, what it means for the run) of each limit, to be read after "limited by".
LIMIT: dict[str, tuple[str, str]] = {
    "compute": ("compute", "the arithmetic units are near their sustained rate"),
    "hbm": ("memory bandwidth (HBM)", "device memory is read near its sustained rate"),
    "kv_capacity": ("KV-cache capacity", "the KV pool, not the device, caps the batch"),
    "scheduling": ("scheduling", "host work or caps between steps hold the device back"),
    "launch_overhead": ("launch overhead", "the device waits for the host to launch work"),
    "host_sync": ("host synchronisation", "the host blocks on the device and the queue runs dry"),
    "host_input": ("host input pipeline", "the device waits for input prepared on the host"),
    "communication": ("communication", "collectives between devices take the time"),
    "imbalance": ("imbalance between ranks", "one rank, stage or expert is late and the others wait"),
    "copy": ("host-device copies", "the link between host and device takes the time"),
    "kernel_inefficiency": ("inefficient kernels", "kernels with enough work run far below both roofs"),
    "power": ("power or clocks", "the clock dropped below what the device can hold"),
    "demand": ("demand", "nobody is waiting: there is no more work to do"),
    "inconclusive": ("inconclusive", "the evidence does not separate the candidates"),
}

OBJECTIVE: dict[str, str] = {
    "step_time": "step time",
    "throughput": "throughput",
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
}

STATUS: dict[str, str] = {
    "supported": "supported",
    "possible": "possible",
    "refuted": "ruled out",
    "not_assessed": "not assessed",
}

# Mark, and word, of where a number comes from; the page, Markdown and legend use the same three.
PROVENANCE: dict[str, tuple[str, str]] = {
    "measured": ("●", "measured: a timestamp or counter"),
    "derived": ("◐", "derived: a formula on measured shapes"),
    "assumed": ("○", "assumed: a catalog value or default"),
}

SEVERITY_ORDER: dict[str, int] = {"error": 0, "warning": 1, "info": 2}

DIRECTION: dict[str, str] = {"above": "above", "below": "below", "equal": "equal to"}


def limit_name(limit: str | None) -> str:
    """`hbm` -> `memory bandwidth (HBM)`; an unknown limit is shown as it is, None as `unknown`."""
    if limit is None:
        return "unknown"
    return LIMIT[limit][0] if limit in LIMIT else limit.replace("_", " ")


def is_alone(d: Diagnosis) -> bool:
    """Whether the result's one phase is all there is, so that `other` can be called the whole window."""
    return len(d.phases) == 1 and (d.outside_steps is None or d.outside_steps.wall_ns == 0)


def bucket_label(bucket: str) -> str:
    """The short label of a bucket."""
    return BUCKET[bucket].label if bucket in BUCKET else bucket.replace("_", " ")


def phase_name(phase: str | None, alone: bool = False) -> str:
    """Phase names are words already. `alone`: the result knows no other phase, so `other` is the whole
    window."""
    if phase is None:
        return "run"
    if phase == "outside":
        return "the time outside steps"
    return "whole window" if phase == "other" and alone else phase


def words(code: str | None) -> str:
    """A code such as `step_time` with its underscores as spaces; anything else (names of a trace) stays as it
    is."""
    text = "" if code is None else code
    return text.replace("_", " ") if _CODE.fullmatch(text) else text
