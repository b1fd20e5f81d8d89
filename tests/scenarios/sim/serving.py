"""A serving engine under load: requests, KV blocks, continuous batching, chunked prefill, preemption, caps.

A step's device time is the sum of its kernels on the same physics as the traces; its host part is the same costs. The
engine follows vLLM's scheduler: running requests first, each a token (or the next prompt chunk) within the token budget,
blocks taken as tokens come, the youngest request preempted and recomputed when none is left, then admission in order.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from sim import rng
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
    prefix_caching: bool = False
    graphs: bool = True
    graph_max: int = 512  # larger decode batches launch kernel by kernel
    async_scheduling: bool = False
    clock: float = 1.0
    collective_speed: float = 1.0
    noise: float = 0.02
    seed: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One request and what happened to it (times in ns)."""

    index: int
    arrival: int
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    scheduled: int | None = None
    token_times: list[int] = field(default_factory=list)
    preemptions: int = 0
    cached: int = 0
    active: bool = False

    @property
    def total(self) -> int:
        """Tokens that must be in the cache before the next token can be sampled."""
        return self.prompt + self.generated


@dataclass(slots=True)
class StepRecord:
    """One iteration, for metrics, logs and the traced window."""

    start: int
    dur: int
    gap: int
    plan_prefill: tuple[tuple[int, int], ...]
    decode: int
    context: int
    running: int
    waiting: int
    used_blocks: int
    preemptions: int
    prompt_tokens: int
    generated: int


@dataclass(slots=True)
class Served:
    """The whole run."""

    serve: Serve
    requests: list[Request]
    steps: list[StepRecord]
    blocks: int
    contexts: list[tuple[int, ...]]  # of the decoding sequences, by step

    @property
    def duration_s(self) -> float:
        """First arrival to last token."""
        return (max(r.token_times[-1] for r in self.requests) - min(r.arrival for r in self.requests)) / 1e9

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return sum(r.output for r in self.requests) / self.duration_s

    @property
    def steady_throughput(self) -> float:
        """Output tokens per second while requests still arrive, the first fifth of that time left out."""
        last = max(r.arrival for r in self.requests)
        first = min(r.arrival for r in self.requests)
        low, high = first + (last - first) // 5, last
        inside = sum(1 for r in self.requests for t in r.token_times if low < t <= high)
        return inside / (high - low) * 1e9

    @property
    def ttft_ms(self) -> float:
        """Mean time to first token."""
        return sum(r.token_times[0] - r.arrival for r in self.requests) / len(self.requests) / 1e6

    @property
    def itl_ms(self) -> float:
        """Mean gap between consecutive tokens."""
        gaps = [b - a for r in self.requests for a, b in zip(r.token_times, r.token_times[1:], strict=False)]
        return sum(gaps) / max(1, len(gaps)) / 1e6

    @property
    def e2e_ms(self) -> float:
        """Mean latency of a request."""
        return sum(r.token_times[-1] - r.arrival for r in self.requests) / len(self.requests) / 1e6

    def objective(self, name: str) -> float:
        """A figure where smaller is better: time per token, or a latency."""
        if name == "throughput":
            return 1.0 / self.steady_throughput
        return {"ttft": self.ttft_ms, "itl": self.itl_ms, "e2e": self.e2e_ms}[name]


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
        vendor = "ampere" if s.device.capability[0] == 8 and s.device.vendor == "nvidia" else s.device.vendor
        total, count = 0.0, 0
        groups = step_kernels(s.arch, plan, s.options, vendor)
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
    return h.sched_ns + h.sched_per_seq_ns * sequences + h.detok_per_token_ns * sampled


class _Engine:
    def __init__(self, s: Serve) -> None:
        self.s, self.seed = s, s.seed
        self.blocks = s.kv_tokens // BLOCK
        self.free = self.blocks
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preempted = 0
        self.shared_blocks = 0
        self.shared_ready = False
        self.prompt_tokens = self.generated = 0

    def need(self, r: Request, tokens: int) -> int:
        """Further blocks to hold `tokens` of a request (shared prefix blocks are not its own)."""
        return -(-(tokens - r.cached) // BLOCK) - r.blocks

    def release(self, r: Request) -> None:
        self.free += r.blocks
        r.blocks = 0

    def preempt(self) -> Request:
        victim = self.running.pop()
        self.release(victim)
        victim.computed = 0
        victim.active = False
        victim.preemptions += 1
        self.preempted += 1
        self.waiting.appendleft(victim)
        return victim

    def grow(self, r: Request, tokens: int) -> bool:
        """Take blocks for a running request, preempting younger ones; False when it was itself the victim."""
        while (need := self.need(r, tokens)) > self.free:
            if self.preempt() is r:
                return False
        self.free -= max(0, need)
        r.blocks += max(0, need)
        return True

    def plan(self, now: int) -> tuple[list[tuple[Request, int]], list[Request]]:
        """One iteration's chunks and decodes."""
        s, budget = self.s, self.s.token_budget
        chunks: list[tuple[Request, int]] = []
        decodes: list[Request] = []
        if not s.chunked and self.waiting and self._fits(self.waiting[0]):
            return self._prefill_only(now), []
        for r in list(self.running):
            if budget <= 0 or not r.active:
                continue
            left = r.total - r.computed
            if left > 1 or not r.token_times:
                n = min(left, budget)
                if self.grow(r, r.computed + n):
                    chunks.append((r, n))
                    budget -= n
            elif self.grow(r, r.total):
                decodes.append(r)
                budget -= 1
        decodes = [r for r in decodes if r.active]
        chunks = [(r, n) for r, n in chunks if r.active]
        stalled = bool(self.waiting) and self.waiting[0].preemptions > 0 and self.waiting[0].scheduled == now
        while self.waiting and budget > 0 and len(self.running) < s.max_seqs and not stalled:
            r = self.waiting[0]
            if not self._fits(r):
                break
            n = self._admit(r, now, budget)
            chunks.append((r, n))
            budget -= n
        return chunks, decodes

    def _fits(self, r: Request) -> bool:
        if len(self.running) >= self.s.max_seqs:
            return False
        reserve = round(r.output * self.s.reserve)
        cached = self._hit(r)
        return -(-(r.total + reserve - cached) // BLOCK) <= self.free

    def _hit(self, r: Request) -> int:
        if not (self.s.prefix_caching and self.s.load.shared_prefix and self.shared_ready):
            return 0
        return min(self.s.load.shared_prefix, r.prompt - 1) // BLOCK * BLOCK

    def _admit(self, r: Request, now: int, budget: int) -> int:
        self.waiting.popleft()
        r.cached = self._hit(r)
        r.computed = r.cached
        if r.scheduled is None:
            r.scheduled = now
        n = min(r.total - r.computed, budget)
        # The whole prompt's blocks are taken at admission: chunks of one prompt never wait for blocks.
        need = max(0, self.need(r, r.total))
        self.free -= need
        r.blocks += need
        self.running.append(r)
        r.active = True
        return n

    def _prefill_only(self, now: int) -> list[tuple[Request, int]]:
        chunks: list[tuple[Request, int]] = []
        budget = self.s.token_budget
        while (
            self.waiting and self._fits(self.waiting[0]) and (not chunks or self.waiting[0].total <= budget)
        ):
            r = self.waiting[0]
            n = self._admit(r, now, 1 << 30)
            chunks.append((r, n))
            budget -= n
        return chunks


def arrivals(s: Serve) -> list[Request]:
    """All requests; arrival times by rate, or 0 where clients wait for a slot."""
    load, t, out = s.load, 0.0, []
    for i in range(load.requests):
        if not load.concurrency:
            t += rng.exponential(1e9 / load.rate, s.seed, 41, i)
        f = rng.uniform(1 - load.spread, 1 + load.spread, s.seed, 42, i)
        g = rng.uniform(1 - load.spread, 1 + load.spread, s.seed, 43, i)
        out.append(Request(i, round(t), max(4, round(load.prompt * f)), max(2, round(load.output * g))))
    return out


def serve(s: Serve) -> Served:
    """Run until every request is done."""
    engine, todo = _Engine(s), deque(arrivals(s))
    everyone = list(todo)
    now, steps, active, step = 0, [], 0, 0
    contexts: list[tuple[int, ...]] = []
    while todo or engine.waiting or engine.running:
        if s.load.concurrency:
            while todo and active < s.load.concurrency:
                r = todo.popleft()
                r.arrival = now
                engine.waiting.append(r)
                active += 1
        while todo and not s.load.concurrency and todo[0].arrival <= now:
            engine.waiting.append(todo.popleft())
        if not engine.waiting and not engine.running:
            now = max(now, todo[0].arrival)
            continue
        start = now
        chunks, decodes = engine.plan(now)
        if not chunks and not decodes:
            raise RuntimeError("a request does not fit the KV pool")
        prefill = [(n, r.computed + n) for r, n in chunks]
        decoding = tuple(r.total for r in decodes)
        context = sum(decoding)
        _, wall = step_ns(s, prefill, len(decodes), context)
        factor = rng.lognormal(s.noise, s.seed, 44, step)
        sampled = len(decodes) + sum(1 for r, n in chunks if r.computed + n >= r.total)
        gap = gap_ns(s, len(chunks) + len(decodes), sampled) * rng.lognormal(s.host.jitter, s.seed, 45, step)
        if s.async_scheduling:
            dur = max(wall * factor, gap)
            gap = max(0.0, gap - wall * factor)
        else:
            dur = wall * factor + gap
        now += round(dur)
        for r, n in chunks:
            r.computed += n
            engine.prompt_tokens += n
        for r in decodes:
            r.computed = r.total
        if s.load.shared_prefix and any(r.computed >= s.load.shared_prefix for r, _ in chunks):
            engine.shared_ready = True
        contexts.append(decoding)
        for r in [*(r for r, _ in chunks), *decodes]:
            if r.computed >= r.total:
                r.generated += 1
                r.token_times.append(now)
                engine.generated += 1
                if r.generated >= r.output:
                    engine.running.remove(r)
                    r.active = False
                    engine.release(r)
                    active -= 1
        steps.append(
            StepRecord(
                start, now - start, round(gap), tuple(prefill), len(decodes), context, len(engine.running),
                len(engine.waiting), engine.blocks - engine.free, engine.preempted, engine.prompt_tokens, engine.generated
            )
        )  # fmt: skip
        step += 1
    return Served(s, everyone, steps, engine.blocks, contexts)


def relieved(s: Serve, **changes: object) -> Serve:
    """The same deployment with fields replaced (`load_` and `host_` prefixes reach into those parts)."""
    load = {k[5:]: v for k, v in changes.items() if k.startswith("load_")}
    host = {k[5:]: v for k, v in changes.items() if k.startswith("host_")}
    own = {k: v for k, v in changes.items() if not k.startswith(("load_", "host_"))}
    return replace(s, **own, load=replace(s.load, **load), host=replace(s.host, **host))  # type: ignore[arg-type]
