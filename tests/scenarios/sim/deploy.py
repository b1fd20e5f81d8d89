"""A deployment's parameters, and what one of its steps costs on the device and on the host."""

from dataclasses import dataclass, field, replace

from sim.arch import ARCHS, Arch, StepPlan
from sim.hardware import DEVICES, DTYPE_BYTES, Device, Work, collective_ns, duration_ns
from sim.model import Options, step_kernels
from sim.world import HostCosts

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Load:
    """Clients: a fixed number in a closed loop, or arrivals at a rate (Poisson)."""

    requests: int = 200
    concurrency: int = 0
    rate: float = 0.0  # requests per second when concurrency is 0
    prompt: int = 512
    output: int = 128
    spread: float = 0.3  # relative half-range of both lengths
    shared_prefix: int = 0  # leading tokens that all prompts share


@dataclass(frozen=True, slots=True)
class Serve:
    """A deployment."""

    device: Device = DEVICES["h100"]
    arch: Arch = ARCHS["llama-3-8b"]
    options: Options = field(default_factory=Options)
    host: HostCosts = field(default_factory=HostCosts)
    load: Load = field(default_factory=Load)
    kv_tokens: int = 400_000
    max_seqs: int = 256
    token_budget: int = 8192
    chunked: bool = True
    reserve: float = 0.0  # share of a request's output reserved at admission (a conservative scheduler)
    hold: float = 0.0  # share of its output held back for every running request as well (SGLang: new token ratio x longest answer)
    prefix_caching: bool = False
    graphs: bool = True
    graph_max: int = 512  # larger decode batches launch kernel by kernel
    async_scheduling: bool = False
    front_ns: float = (
        0.0  # a single front-end process per request (HTTP, tokenising), before the engine sees it
    )
    clock: float = 1.0
    collective_speed: float = 1.0
    noise: float = 0.02
    seed: int = 0


_BASE: dict[tuple[object, ...], tuple[float, int]] = {}


def base_ns(s: Serve, tokens: int, sequences: int) -> tuple[float, int]:
    """Time of all kernels but attention (gaps between them included), and how many launches there are."""
    device = s.device.with_factor(compute=s.clock)
    d = s.device
    key = (
        tokens,
        sequences,
        s.arch,
        s.options,
        d.key,
        d.bandwidth,
        d.tensor["bf16"],
        d.peer,
        d.collective_ns,
        s.clock,
        s.collective_speed,
    )
    if key not in _BASE:
        plan = StepPlan(prefill=((tokens - sequences + 1, tokens),), decode=(1,) * (sequences - 1))
        total, count = 0.0, 0
        groups = step_kernels(s.arch, plan, s.options, s.device.family)
        for group, times in ((groups[0], 1), (groups[1], s.arch.layers), (groups[-1], 1)):
            for k in group:
                if k.role.startswith("attention"):
                    continue
                if k.payload:
                    ns = collective_ns(s.device, s.options.tp, k.payload, s.collective_speed)
                else:
                    ns = duration_ns(device, k.work, DEVICES[s.device.key])
                total += (ns + 450.0) * times
                count += times
        _BASE[key] = (total, count)
    return _BASE[key]


def step_ns(s: Serve, prefill: list[tuple[int, int]], decode: int, context: int) -> tuple[float, float]:
    """Device time of a step and the time from its start to its end on the host, without the gap before it."""
    new = sum(n for n, _ in prefill)
    sequences = len(prefill) + decode
    total, launches = base_ns(s, new + decode, sequences)
    a, o, device, nominal = s.arch, s.options, s.device.with_factor(compute=s.clock), DEVICES[s.device.key]
    hq, hkv, d, e = a.heads // o.tp, max(1, a.kv_heads // o.tp), a.head_dim, DTYPE_BYTES[o.kv_dtype]
    layers = a.layers
    if prefill:
        pairs = sum(n * c - n * (n - 1) // 2 for n, c in prefill)
        moved = 4.0 * new * hq * d + 2 * sum(c for _, c in prefill) * hkv * d * e
        work = Work(
            "attn_prefill",
            4.0 * hq * d * pairs,
            moved,
            "bf16",
            o.attention_quality,
            max(1, new // len(prefill)),
        )
        total += (duration_ns(device, work, nominal) + 450.0) * layers
        launches += layers
    if decode:
        moved = 2 * context * hkv * d * e + 4.0 * decode * hq * d
        work = Work("attn_decode", 4.0 * hq * d * context, moved, "bf16", o.attention_quality)
        total += (duration_ns(device, work, nominal) + 450.0) * layers
        launches += layers
    h = s.host
    if s.graphs and not prefill and decode <= s.graph_max:
        launch = h.op_ns + h.graph_api_ns + h.graph_node_ns * launches
        return total, h.prep_ns + launch * 0.1 + max(total, launch)
    launch = (h.op_ns + h.api_ns) * launches
    return total, h.prep_ns + max(total, launch) + (h.syncs * h.sync_python_ns)


def gap_ns(s: Serve, sequences: int, sampled: int) -> float:
    """Host work between steps."""
    h = s.host
    return (
        h.sched_ns + h.sched_per_seq_ns * sequences + h.detok_per_token_ns * sampled + h.mask_ns * sequences
    )


def relieved(s: Serve, **changes: object) -> Serve:
    """The same deployment with fields replaced (`load_` and `host_` prefixes reach into those parts)."""
    load = {k[5:]: v for k, v in changes.items() if k.startswith("load_")}
    host = {k[5:]: v for k, v in changes.items() if k.startswith("host_")}
    own = {k: v for k, v in changes.items() if not k.startswith(("load_", "host_"))}
    return replace(s, **own, load=replace(s.load, **load), host=replace(s.host, **host))  # type: ignore[arg-type]
