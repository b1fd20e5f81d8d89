"""Follow-up experiments: one change each, and how every part of a phase responds to it.

A response is an interval of factors on a part's time. The prediction under a hypothesis is the sum over parts of time x
factor. Under the runner-up the same change is read with the claimed part responding as the runner-up's resource would:
if the two intervals overlap, the change cannot tell them apart and another experiment is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass

Factor = tuple[float, float]

NOISE: Factor = (0.97, 1.03)
"""What an untouched part does between two runs of the same thing: within a few percent."""

LIMIT_PARTS: dict[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "hbm": ("hbm",),
    "kernel_inefficiency": ("inefficient", "floor"),
    "launch_overhead": ("idle_launch",),
    "host_sync": ("idle_sync",),
    "scheduling": ("idle_scheduling",),
    "host_input": ("idle_input",),
    "copy": ("copy",),
    "communication": ("communication",),
    "imbalance": ("comm_wait",),
    "power": ("compute",),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `response(part)` gives the factor interval on that part's time.

    `uses_recoverable`: the saving that this run's own evidence bounds replaces the factor on the claimed parts.
    `scope_claimed`: the metric is the claimed parts' time alone, because the change moves the rest too.
    """

    id: str
    change: str
    command: Callable[[str], str | None]
    metric: str
    response: Callable[[str], Factor]
    cost: str
    risk: str
    uses_recoverable: bool = False
    scope_claimed: bool = False


def _bucket(part: str) -> str:
    return part.split(":", maxsplit=1)[0]


def _table(factors: dict[str, Factor], default: Factor = NOISE) -> Callable[[str], Factor]:
    """Response by exact part, else by bucket, else noise."""

    def response(part: str) -> Factor:
        return factors.get(part, factors.get(_bucket(part), default))

    return response


def _by_engine(commands: dict[str, str]) -> Callable[[str], str | None]:
    def command(engine: str) -> str | None:
        return commands.get(engine, commands.get("*"))

    return command


CLOCK = 0.8
"""Share of the usual SM clock in the clock experiment: enough to stand clear of noise, safe on every part."""

CHANGES: tuple[Change, ...] = (
    Change(
        id="sm-clock",
        change="lock the SM clock at 80 % of its usual value and repeat the same run",
        command=_by_engine(
            {
                "*": "nvidia-smi -lgc $(( $(nvidia-smi --query-gpu=clocks.max.sm --format=csv,noheader,nounits) * 8 / 10 ))"
            }
        ),
        metric="step time",
        # Compute-bound time goes with 1/clock; memory-bound time moves less than a fifth of that until the clock is so
        # low that too few requests are in flight. Latency of small kernels partly follows the clock.
        response=_table(
            {
                "compute": (1 / CLOCK * 0.9, 1 / CLOCK * 1.01),
                "hbm": (0.99, 1.05),
                "inefficient": (1.05, 1 / CLOCK),
                "floor": (1.0, 1 / CLOCK),
                "communication": (0.98, 1.06),
                "unmodelled": (1.0, 1 / CLOCK),
            }
        ),
        cost="minutes; needs permission to set clocks",
        risk="other jobs on the device slow down; undo with nvidia-smi -rgc",
    ),
    Change(
        id="cuda-graphs",
        change="replay the step as a CUDA graph (or compile it), so that kernels need no launch each",
        command=_by_engine(
            {
                "vllm": "--no-enforce-eager",
                "sglang": "--cuda-graph-max-bs 256   # and without --disable-cuda-graph",
                "trtllm": "cuda_graph_config: {enable_padding: true}",
                "*": "model.forward = torch.compile(model.forward, mode='reduce-overhead')",
            }
        ),
        metric="step time",
        # Published: eager to graphs leaves 0-25 % of the launch gaps (piecewise graphs keep some around attention).
        response=_table({"idle_launch": (0.0, 0.25), "idle_sync": (0.85, 1.03), "idle_device": (0.5, 1.03)}),
        cost="a restart; minutes of capture at start-up and some memory for graphs",
        risk="dynamic shapes outside the captured sizes still run eagerly",
    ),
    Change(
        id="async-scheduling",
        change="overlap scheduling and output processing with the device's current step",
        command=_by_engine(
            {
                "vllm": "--async-scheduling",
                "sglang": "# start the server without --disable-overlap-schedule",
                "trtllm": "disable_overlap_scheduler: false",
            }
        ),
        metric="step time",
        response=_table({"idle_scheduling": (0.0, 0.4), "idle_sync": (0.2, 1.03)}),
        cost="a restart",
        risk="features that need the sampled token on the host (some structured output) may not overlap",
    ),
    Change(
        id="remove-sync",
        change="remove the blocking call from the step (keep the value on the device, or read it a step later)",
        command=_by_engine({"vllm": "--async-scheduling"}),
        metric="step time",
        # Without the wait the host runs ahead again: launch gaps behind each sync close too, and the small copies it
        # waited for leave the critical path.
        response=_table(
            {
                "idle_sync": (0.0, 0.35),
                "idle_launch": (0.3, 1.03),
                "idle_device": (0.5, 1.03),
                "copy": (0.2, 1.03),
            }
        ),
        cost="a code change, or the engine's asynchronous mode",
        risk="values read late must not be needed by the host in the same step",
    ),
    Change(
        id="cached-input",
        change="feed one prepared batch again and again, so that nothing has to be loaded or preprocessed",
        command=_by_engine({"*": "batch = next(iter(loader)); repeat it for the profiled steps"}),
        metric="time per batch",
        # The batch is on the device already: its copies and the host's work around them go with the loading.
        response=_table(
            {
                "idle_input": (0.0, 0.1),
                "copy": (0.0, 1.03),
                "idle_scheduling": (0.0, 1.03),
                "idle_sync": (0.3, 1.03),
                "idle_launch": (0.5, 1.03),
            }
        ),
        cost="minutes; a two-line change for the experiment, workers and prefetch for the fix",
        risk="none: outputs of the experiment are not used",
    ),
    Change(
        id="keep-resident",
        change="keep the copied data on the device (no offload), or copy it ahead on its own stream",
        command=_by_engine({"vllm": "--cpu-offload-gb 0", "sglang": "--cpu-offload-gb 0"}),
        metric="step time",
        response=_table({"copy": (0.0, 0.25)}),
        cost="device memory for what was offloaded",
        risk="may not fit: check free memory first",
    ),
    Change(
        id="local-collective",
        change="run the same batch without the collective: one rank if the model fits, else half the tensor-parallel size",
        command=_by_engine(
            {"vllm": "--tensor-parallel-size 1", "sglang": "--tp 1", "trtllm": "tensor_parallel_size: 1"}
        ),
        metric="communication time per step",
        response=_table({"communication": (0.0, 0.8), "comm_wait": (0.0, 0.8)}),
        cost="a restart; twice the weights on each device",
        risk="weights per device double, so the rest of a weight-bound step slows",
        scope_claimed=True,
    ),
    Change(
        id="quantise-weights",
        change="serve the same model with FP8 weights and evaluate its quality beside the speed",
        command=_by_engine({"vllm": "--quantization fp8", "sglang": "--quantization fp8"}),
        metric="step time",
        # Measured on H100/H200, M = 16-64: 1.41-1.56 x on products that stream 100 MB and more, less on small ones (fp8
        # reaches 49 % of peak where bf16 reaches 63 %), and every product gains a kernel that quantises its input. Experts
        # and packed weights may not change at all; a launch-, host- or floor-bound step can lose.
        response=_table(
            {
                "hbm:weights": (1 / 1.56, 0.92),
                "compute:weights": (1 / 1.6, 1 / 1.1),
                "inefficient:weights": (0.6, 1.1),
                "hbm:experts": (1 / 1.56, 1.03),
                "compute:experts": (1 / 1.6, 1.03),
                "floor": (0.97, 1.5),
                "idle_launch": (0.97, 1.6),
            }
        ),
        cost="a restart; quality must be evaluated",
        risk="accuracy can drop; small layers can get slower",
    ),
    Change(
        id="better-kernels",
        change="replace the kernels named in the evidence (another backend, aligned and contiguous layout, or fusing the chain)",
        command=_by_engine(
            {"*": "torch.compile(model) for unfused chains; another attention or GEMM backend for the rest"}
        ),
        metric="step time",
        response=_table({"inefficient": (0.3, 0.9), "floor": (0.3, 1.0)}),
        cost="hours to days",
        risk="numerics of another kernel must be checked",
        uses_recoverable=True,
    ),
    Change(
        id="straggler-swap",
        change="run the late rank's shard on another host or device of the job",
        command=_by_engine({}),
        metric="waiting in collectives per step",
        response=_table({"comm_wait": (0.0, 0.4)}),
        cost="a restart with another placement",
        risk="none",
        scope_claimed=True,
    ),
    Change(
        id="clock-lock",
        change="lock the SM clock just below what the power limit sustains, and log clocks and throttle reasons during the run",
        command=_by_engine(
            {
                "*": "nvidia-smi -q -d PERFORMANCE,CLOCK; nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv -lms 100"
            }
        ),
        metric="step time",
        # At a clock that holds, compute kernels repeat their own best; memory kernels do not move.
        response=_table({"compute": (0.75, 0.98), "inefficient": (0.8, 1.03)}),
        cost="minutes; needs permission to set clocks",
        risk="undo with nvidia-smi -rgc",
        uses_recoverable=True,
    ),
    Change(
        id="half-batch",
        change="repeat the run at half the batch (same context)",
        command=_by_engine({"vllm": "--max-num-seqs N/2", "sglang": "--max-running-requests N/2"}),
        metric="step time",
        response=_table(
            {
                "compute": (0.45, 0.65),
                "hbm:kv": (0.48, 0.6),
                "hbm:other": (0.48, 0.75),
                "inefficient": (0.5, 1.0),
            }
        ),
        cost="minutes",
        risk="none",
    ),
)

BY_ID: dict[str, Change] = {change.id: change for change in CHANGES}


def predict(parts: dict[str, float], change: Change) -> Factor:
    """Predicted time of the phase after the change, in the parts' unit: the sum over parts of time x factor."""
    low = high = 0.0
    for part, ns in parts.items():
        f = change.response(part)
        low += ns * f[0]
        high += ns * f[1]
    return low, high


def predict_if(
    parts: dict[str, float], change: Change, claimed: tuple[str, ...], other: tuple[str, ...]
) -> Factor:
    """The same change if the claimed parts were really `other`'s kind of time: they respond as that part would."""
    low = high = 0.0
    # The response of the runner-up's own largest part stands for its kind. A part that the change may or may not touch on
    # the side (its interval holds 1) is not what the change acts on: time of that kind would stay.
    mine = [p for p in parts if _bucket(p) in other]
    stand_in = max(mine, key=lambda p: parts[p]) if mine else (other[0] if other else "")
    as_other = change.response(stand_in)
    if as_other[0] < NOISE[0] and as_other[1] >= 1.0:
        as_other = NOISE
    for part, ns in parts.items():
        f = as_other if _bucket(part) in claimed else change.response(part)
        low += ns * f[0]
        high += ns * f[1]
    return low, high
