"""A serving engine under load: requests, KV blocks, continuous batching, chunked prefill, preemption, caps.

A step's device time is the sum of its kernels on the same physics as the traces; its host part is the same costs. The
engine follows vLLM's scheduler: running requests first, each a token (or the next prompt chunk) within the token budget,
blocks taken as tokens come, the youngest request preempted and recomputed when none is left, then admission in order.
"""

from collections import deque
from dataclasses import dataclass, field

from sim import rng
from sim.deploy import BLOCK, Load, Serve, gap_ns, relieved, step_ns

__all__ = ["BLOCK", "Load", "Request", "Serve", "Served", "StepRecord", "relieved", "serve", "step_ns"]


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
    entered: int = 0  # when the front end handed it to the engine
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


class _Engine:
    def __init__(self, s: Serve) -> None:
        self.s, self.seed = s, s.seed
        self.blocks = s.kv_tokens // BLOCK
        self.free = self.blocks
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preempted = 0
        self.shared_ready = False
        self.prompt_tokens = self.generated = 0

    def need(self, r: Request, tokens: int) -> int:
        """Further blocks to hold `tokens` of a request (shared prefix blocks are not its own)."""
        return -(-(tokens - r.cached) // BLOCK) - r.blocks

    def release(self, r: Request) -> None:
        self.free += r.blocks
        r.blocks = 0

    def keep_prefix(self, computed: list[Request]) -> None:
        """Once a request has computed the shared prefix its blocks stay, held once for all."""
        blocks = self.s.load.shared_prefix // BLOCK
        if any(r.computed >= self.s.load.shared_prefix for r in computed) and self.free >= blocks:
            self.free -= blocks
            self.shared_ready = True

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
        held = 0
        if self.s.hold:
            reserve = round(r.output * self.s.hold)
            held = sum(max(0, round(q.output * self.s.hold) - q.generated) for q in self.running)
        fits = -(-(r.total + reserve + held - cached) // BLOCK) <= self.free
        return fits or (self.s.hold > 0 and not self.running)

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
    front: deque[Request] = deque()  # handed over in order, one after the other
    free_at = 0
    while todo or front or engine.waiting or engine.running:
        while todo and (active < s.load.concurrency if s.load.concurrency else todo[0].arrival <= now):
            r = todo.popleft()
            if s.load.concurrency:
                r.arrival = now
                active += 1
            free_at = r.entered = max(free_at, r.arrival) + round(s.front_ns)
            front.append(r)
        while front and front[0].entered <= now:
            engine.waiting.append(front.popleft())
        if not engine.waiting and not engine.running:
            now = max(now, front[0].entered if front else todo[0].arrival)
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
        if s.prefix_caching and s.load.shared_prefix and not engine.shared_ready:
            engine.keep_prefix([r for r, _ in chunks])
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
