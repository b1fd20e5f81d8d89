"""Everything that defines a run: hardware, host, model, steps, ranks, and how the profiler saw it."""

from dataclasses import dataclass, field, replace

from sim.arch import Arch, StepPlan
from sim.hardware import DEVICES, Device
from sim.model import Options


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the CPU side costs, in ns."""

    op_ns: float = 9_000.0  # Python, dispatcher and framework per launched operator, without the launch call
    api_ns: float = 3_200.0  # the launch call itself
    latency_ns: float = 2_200.0  # launch call's end to earliest start on the device
    graph_api_ns: float = 60_000.0  # one graph launch, plus `graph_node_ns` a node
    graph_node_ns: float = 350.0
    jitter: float = 0.15  # relative spread of each piece of host work
    prep_ns: float = 250_000.0  # building the step's inputs, inside the step annotation
    sched_ns: float = 200_000.0  # scheduler between steps, constant part
    sched_per_seq_ns: float = 4_000.0  # and per running sequence
    detok_per_token_ns: float = 6_000.0  # output processing per generated token
    loader_ns: float = 0.0  # input pipeline before each step, in a data-loader annotation
    syncs: int = 0  # blocking reads of a device value inside each step
    sync_python_ns: float = 40_000.0  # Python that depends on the value read
    plan_ns: float = (
        0.0  # attention planning on the host: reads a value back before each step, then this much Python
    )
    small_copies: int = 0  # blocking pageable copies of a few kB before each layer
    small_async: bool = False  # the same copies from pinned memory, without waiting
    logprob_bytes: float = 0.0  # copied back per sequence and step, and turned into Python objects
    logprob_ns: float = 0.0
    mask_ns: float = 0.0  # grammar mask built on the host between logits and sampler, per sequence
    history_ns: float = 0.0  # work over every sequence's whole history between steps, per token of it
    history_op: str = "aten::cat"  # the operator that work shows as
    gc_every: int = 0  # a garbage collection before every n-th step (0: never)
    gc_ns: float = 0.0
    speed: float = 1.0  # of the host CPU


@dataclass(frozen=True, slots=True)
class Offload:
    """Weights streamed from the host each step: bytes per layer, and whether the host memory is pageable."""

    bytes_per_layer: float = 0.0
    pageable: bool = False
    overlap: bool = False  # on a side stream, one layer ahead


@dataclass(frozen=True, slots=True)
class Profile:
    """How the trace was taken and written."""

    engine: str = "vllm"  # vllm | vllm_detailed | vllm_tokens | vllm_old | sglang | hf | none
    shapes: bool = True
    python: bool = False  # Python stacks recorded: they cost host time, see `stack_cost`
    stack_cost: float = 1.0  # factor on host work while stacks are recorded
    flows: bool = True
    drop_launches: float = 0.0  # share of leading host events cut away (work launched before the file begins)
    cut_tail: float = 0.0  # share of the time cut off at the end
    name_empty: bool = False  # ROCm traces sometimes have no device name
    skew_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """A run of a few engine steps, on one or more ranks."""

    device: Device = DEVICES["h100"]
    arch: Arch | None = None
    plans: tuple[StepPlan, ...] = ()
    options: Options = field(default_factory=Options)
    host: HostCosts = field(default_factory=HostCosts)
    offload: Offload = field(default_factory=Offload)
    profile: Profile = field(default_factory=Profile)
    graphs: bool = False
    graph_max: int = 1 << 20  # larger decode batches, and steps with prompt tokens, launch kernel by kernel
    piecewise: bool = False  # graphs around an eager attention
    opaque_graphs: bool = False
    async_scheduling: bool = False
    pdl: bool = False
    collective_speed: float = 1.0
    comm_stream: bool = False
    straggler: int = (
        -1
    )  # rank whose host is slower by `straggler_factor`, or stalls by `straggler_pause_ns` each step
    straggler_factor: float = 1.0
    straggler_pause_ns: float = 0.0
    clock: float = 1.0  # of the compute array, below 1 when throttled
    scatter: float = 0.0  # kernels run up to this share slower than the plateau, by role
    role_factor: tuple[tuple[str, float], ...] = ()  # kernels of a role slower by a factor (a planted change)
    pace: float = (
        1.0  # everything, host and device, slower by this factor (a planted change of the whole step)
    )
    noise: float = 0.025  # of a kernel from call to call
    run_device: float = 0.0  # of the whole device from run to run
    run_host: float = 0.0  # of the whole host from run to run
    seed: int = 0  # what the run is
    again: int = 0  # which repetition of it: other noise, same run
    warm_up: int = (
        0  # leading steps that no figure counts: where host and device overlap it takes some to settle
    )

    def warmed_up(self, steps: int) -> "World":
        """The same run with more of its first step in front, left out of every figure."""
        return replace(self, plans=self.plans[:1] * steps + self.plans, warm_up=steps)

    @property
    def luck(self) -> int:
        """Key of all noise."""
        return self.seed * 1009 + self.again

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks."""
        return self.options.tp

    def with_host(self, **changes: object) -> "World":
        """The same run with other host costs."""
        return replace(self, host=replace(self.host, **changes))  # type: ignore[arg-type]

    def with_options(self, **changes: object) -> "World":
        """The same run with other model options."""
        return replace(self, options=replace(self.options, **changes))  # type: ignore[arg-type]

    def with_profile(self, **changes: object) -> "World":
        """The same run seen by another profiler setting."""
        return replace(self, profile=replace(self.profile, **changes))  # type: ignore[arg-type]
