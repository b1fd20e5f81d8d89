"""Follow-up experiments: one change each, and how every part of a phase responds to it.

A response is an interval of factors on a part's time; `diagnose.rules.predict` adds them up. Under the runner-up the same
change is read with the claimed part responding as the runner-up's resource would: if the two intervals overlap, the change
cannot tell them apart and another experiment is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass

from diagnose.rules.situation import Situation
from diagnose.rules.weight_products import quantised

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


Response = Callable[[str, Situation], Factor]


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `response(part, now)` gives the factor interval on that part's time in this situation.

    `uses_recoverable`: the saving that this run's own evidence bounds replaces the factor on the claimed parts.
    `scope_claimed`: the metric is the claimed parts' time alone, because the change moves the rest too.
    `host`: factor on the launching thread's own work per step, which no step can undercut; None where the change removes
    that work. `adds_launches`: every product that streams weights gains a kernel (its input is quantised).
    """

    id: str
    change: str
    command: Callable[[str], str | None]
    metric: str
    response: Response
    cost: str
    risk: str
    uses_recoverable: bool = False
    scope_claimed: bool = False
    host: Factor | None = (1.0, 1.0)
    adds_launches: bool = False


def bucket_of(part: str) -> str:
    """The bucket a part belongs to: `hbm:kv` to `hbm`."""
    return part.split(":", maxsplit=1)[0]


def _table(factors: dict[str, Factor], default: Factor = NOISE) -> Response:
    """Response by exact part, else by bucket, else noise."""

    def response(part: str, _: Situation) -> Factor:
        return factors.get(part, factors.get(bucket_of(part), default))

    return response


_FP8 = _table(
    {
        # int8 on an A100, half the bytes: 1.4-1.7 x (gpt-fast); FP8 on Hopper 1.4-1.8 x from 50 MB a matrix.
        "hbm:weights": (1 / 1.8, 0.9),
        "compute:weights": (1 / 1.6, 1 / 1.1),
        "inefficient:weights": (0.6, 1.1),
        "hbm:experts": (1 / 1.8, 1.0),
        "compute:experts": (1 / 1.6, 1.03),
        "floor": (0.97, 1.5),
        "idle_launch": (0.97, 1.6),
    }
)


def _fp8_weights(part: str, now: Situation) -> Factor:
    """FP8 weights: each product as one of its size was measured to change, the usual range where none was.

    Measured on H100/H200, M = 16-64: 1.41-1.56 x on products that stream 100 MB and more, less on small ones (fp8 reaches
    49 % of peak where bf16 reaches 63 %), and every product gains a kernel that quantises its input. Experts and packed
    weights may not change at all; a launch-, host- or floor-bound step can lose.
    """
    if (
        not now.fp8
        and bucket_of(part) in ("compute", "inefficient")
        and part.endswith((":weights", ":experts"))
    ):
        # Without FP8 units the weights are unpacked inside a 16-bit product: the bytes halve, the arithmetic does not.
        return (0.93, 1.3)
    usual = _FP8(part, now)
    if part.endswith(":weights"):
        return quantised(now.products, bucket_of(part), now.device, usual)
    return usual


GRAPH_GAP_NS: Factor = (500.0, 2_000.0)
"""Time from one kernel of a replayed graph to the next. Assumed: below the 2-2.5 us that the smallest kernel itself takes."""


def _in_a_graph(part: str, now: Situation) -> Factor:
    """Replayed as a graph: of the launch gaps a device-side gap a kernel is left, at most a quarter (piecewise graphs).

    Engines capture steps with prompts up to a size only (vLLM: 512 tokens), so those may stay as they are but for what
    compiling fuses.
    """
    bucket = bucket_of(part)
    idle = now.parts_ns.get("idle_launch", 0.0)
    if bucket == "idle_launch" and now.phase in ("prefill", "mixed"):
        return (0.0, 1.03)
    if bucket == "idle_launch" and now.kernels and idle:
        return (
            min(0.1, GRAPH_GAP_NS[0] * now.kernels / idle),
            min(0.25, GRAPH_GAP_NS[1] * now.kernels / idle),
        )
    return _GRAPHS(part, now)


_GRAPHS = _table({"idle_launch": (0.0, 0.25), "idle_sync": (0.85, 1.03), "idle_device": (0.5, 1.03)})


def _half_group(part: str, now: Situation) -> Factor:
    """Half the ranks in a collective. A ring moves (n - 1) / n of the payload, twice, in 2 (n - 1) steps; a direct exchange
    reads n - 1 copies. From n to n / 2 the time goes with one or the other; with one rank left nothing is exchanged.
    """
    if bucket_of(part) not in ("communication", "comm_wait"):
        return NOISE
    n = now.ranks
    if n is None or n < 2:
        return (0.0, 0.95)
    half = n / 2
    steps, ring = (half - 1) / (n - 1), (half - 1) / half * n / (n - 1)
    return (0.9 * steps, max(0.03, 1.1 * ring))


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
                "compute": (1 / CLOCK * 0.9, 1 / CLOCK * 1.03),
                "hbm": (0.97, 1.05),
                "inefficient": (0.97, 1 / CLOCK),
                "floor": (0.97, 1 / CLOCK),
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
        response=_in_a_graph,
        host=None,
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
        # The host prepares and schedules the next step while this one runs: every host gap can close, down to the pace of
        # the slower of the two. Waits inside a step for a value of that step stay.
        response=_table(
            {
                "idle_scheduling": (0.0, 0.25),
                "idle_launch": (0.0, 1.03),
                "idle_sync": (0.2, 1.03),
                "idle_device": (0.3, 1.03),
            }
        ),
        # A thread that no longer sleeps in every step wakes less and works on warm caches.
        host=(0.92, 1.0),
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
                "idle_sync": (0.0, 0.25),
                "idle_launch": (0.3, 1.03),
                "idle_device": (0.5, 1.03),
                "copy": (0.2, 1.03),
            }
        ),
        # The Python that the value decides can go with the wait, or run beside the device.
        host=(0.0, 1.0),
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
                "idle_input": (0.0, 0.02),
                "copy": (0.0, 1.03),
                "idle_scheduling": (0.0, 1.03),
                "idle_sync": (0.3, 1.03),
                "idle_launch": (0.5, 1.03),
            }
        ),
        host=None,
        cost="minutes; a two-line change for the experiment, workers and prefetch for the fix",
        risk="none: outputs of the experiment are not used",
    ),
    Change(
        id="keep-resident",
        change="keep the copied data on the device (no offload)",
        command=_by_engine({"vllm": "--cpu-offload-gb 0", "sglang": "--cpu-offload-gb 0"}),
        metric="step time",
        # What is resident is not copied; small copies of inputs and results stay. Kernels no longer share memory with copies.
        response=_table({"copy": (0.0, 0.06)}, (0.9, 1.03)),
        cost="device memory for what was offloaded",
        risk="may not fit: check free memory first",
    ),
    Change(
        id="local-collective",
        change="run the same batch at half the tensor-parallel size (one rank of two: no collective at all)",
        command=_by_engine(
            {
                "vllm": "--tensor-parallel-size N/2",
                "sglang": "--tp N/2",
                "trtllm": "tensor_parallel_size: N/2",
            }
        ),
        metric="communication time per step",
        response=_half_group,
        cost="a restart; twice the weights on each device",
        risk="weights per device double, so the rest of a weight-bound step slows",
        scope_claimed=True,
    ),
    Change(
        id="quantise-weights",
        change="serve the same model with FP8 weights and evaluate its quality beside the speed",
        command=_by_engine({"vllm": "--quantization fp8", "sglang": "--quantization fp8"}),
        metric="step time",
        response=_fp8_weights,
        adds_launches=True,
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
        # Fused kernels need fewer launches.
        host=(0.4, 1.0),
        cost="hours to days",
        risk="numerics of another kernel must be checked",
        uses_recoverable=True,
    ),
    Change(
        id="straggler-swap",
        change="run the late rank's shard on another host or device of the job",
        command=_by_engine({}),
        metric="step time",
        response=_table({"comm_wait": (0.0, 0.4)}),
        cost="a restart with another placement",
        risk="none",
        uses_recoverable=True,
        # The wait is the late rank's host; this rank's own pace is in what its lead leaves.
        host=None,
    ),
    Change(
        id="gc-freeze",
        change="keep Python's garbage collector out of the run on every rank: gc.collect(); gc.freeze(); gc.disable() after warm-up",
        command=_by_engine(
            {"vllm": "# VLLM_GC_DEBUG=1 logs each collection", "sglang": "# POST /freeze_gc after warm-up"}
        ),
        metric="step time",
        response=_table({"comm_wait": (0.0, 0.4)}),
        cost="minutes; a line at start-up",
        risk="garbage in cycles is not freed while it is off: watch the host's memory",
        uses_recoverable=True,
        host=None,
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
                "unmodelled": (0.5, 1.03),
                "idle_launch": (0.95, 1.06),
                # Scheduling and detokenising have a part for each request.
                "idle_scheduling": (0.5, 1.03),
            }
        ),
        host=(0.5, 1.0),
        cost="minutes",
        risk="none",
    ),
)

BY_ID: dict[str, Change] = {change.id: change for change in CHANGES}
