"""What a change does when it is really made: the same run with one thing changed, repeated with new noise.

Ids name changes an engineer can make; several products' wordings map to one id.
"""

from collections.abc import Callable
from dataclasses import replace

from sim.arch import StepPlan
from sim.serving import Serve, relieved
from sim.world import Offload, World


def _half(w: World) -> World:
    return replace(w, plans=tuple(StepPlan(p.prefill[: max(1, len(p.prefill) // 2)] if p.prefill else (),
                                           p.decode[: max(1, len(p.decode) // 2)] if p.decode else ()) for p in w.plans))  # fmt: skip


def _double(w: World) -> World:
    return replace(w, plans=tuple(StepPlan(p.prefill * 2, p.decode * 2) for p in w.plans))


def _kernels(w: World) -> World:
    weights = {"awq": "marlin", "int8": "bf16"}.get(w.options.weights, w.options.weights)
    return w.with_options(gemm_quality=1.0, attention_quality=1.0, strided=1.0, fused=True, sampler_sort=False, kv_concat=False,
                          weights=weights)  # fmt: skip


TRACE: dict[str, Callable[[World], World]] = {
    "sm-clock": lambda w: replace(w, clock=w.clock * 0.8),
    "cuda-graphs": lambda w: replace(w, graphs=True, piecewise=False, graph_max=1 << 20),
    "async-scheduling": lambda w: replace(w, async_scheduling=True),
    "remove-sync": lambda w: w.with_host(syncs=0, plan_ns=0.0, small_async=w.host.small_copies > 0),
    "cached-input": lambda w: w.with_host(loader_ns=0.0),
    "keep-resident": lambda w: replace(w, offload=Offload()),
    "pinned": lambda w: replace(w, offload=replace(w.offload, pageable=False)),
    "local-collective": lambda w: w.with_options(tp=max(1, w.options.tp // 2)),
    "quantise-weights": lambda w: w.with_options(weights="fp8") if w.options.weights == "bf16" else w,
    "better-kernels": _kernels,
    "straggler-swap": lambda w: replace(w, straggler=-1, straggler_factor=1.0, straggler_pause_ns=0.0),
    "gc-freeze": lambda w: w.with_host(gc_every=0),
    "half-batch": _half,
    "double-batch": _double,
}  # fmt: skip

SERVING: dict[str, Callable[[Serve], Serve]] = {
    "kv-double": lambda s: replace(s, kv_tokens=2 * s.kv_tokens),
    "kv-fp8": lambda s: replace(s, kv_tokens=2 * s.kv_tokens, options=replace(s.options, kv_dtype="fp8")),
    "slots-double": lambda s: replace(s, max_seqs=2 * s.max_seqs),
    "kv-slots-double": lambda s: replace(s, kv_tokens=2 * s.kv_tokens, max_seqs=2 * s.max_seqs),
    "budget-double": lambda s: replace(s, token_budget=2 * s.token_budget),
    # A budget on a step also chunks prompts that were computed whole.
    "budget-quarter": lambda s: replace(s, chunked=True, token_budget=max(64, s.token_budget // 4)),
    "chunks-of-512": lambda s: replace(s, chunked=True, token_budget=512),
    "admit-early": lambda s: replace(s, reserve=0.3 * s.reserve, hold=0.3 * s.hold),
    "chunked": lambda s: replace(s, chunked=True),
    "async-scheduling": lambda s: replace(s, async_scheduling=True),
    "cuda-graphs": lambda s: replace(s, graphs=True, graph_max=1 << 20),
    "quantise-weights": lambda s: replace(s, options=replace(s.options, weights="fp8")),
    "load-double": lambda s: (
        relieved(s, load_concurrency=2 * s.load.concurrency, load_requests=2 * s.load.requests)
        if s.load.concurrency
        else relieved(s, load_rate=2 * s.load.rate, load_requests=2 * s.load.requests)
    ),
}  # fmt: skip


def after(world: World, change: str, again: int = 1) -> World:
    """The world after a change, with other noise and its own luck of the run."""
    return replace(TRACE[change](world), again=again)
