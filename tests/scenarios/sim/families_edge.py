"""Trace scenarios at the edges: near-ties, withheld evidence, distorted and cut traces, other vendors' and tools' forms."""

from collections.abc import Callable
from dataclasses import replace

from sim import rng
from sim.arch import ARCHS, StepPlan
from sim.families import (
    _base,
    _pick,
    compute_prefill,
    decode_steps,
    fallback_gemm,
    hbm_decode,
    host_sync_decode,
    launch_eager_decode,
    prefill_steps,
    scheduling_gap_decode,
    straggler_tp,
)
from sim.hardware import DEVICES
from sim.registry import Variant, scenario
from sim.steps import simulate
from sim.truth import RELIEFS
from sim.world import Profile, World


def gain(world: World, limit: str) -> float:
    """Share of the step that a relief saves."""
    return 1.0 - simulate(RELIEFS[limit](world)).step_time_ns / simulate(world).step_time_ns


def balance(
    make: Callable[[float], World], grows: str, falls: str, low: float, high: float, offset: float
) -> World:
    """Choose a knob so that two limits' gains differ by `offset` (found by bisection on a geometric scale)."""
    for _ in range(9):
        middle = (low * high) ** 0.5
        w = make(middle)
        if gain(w, grows) - gain(w, falls) > offset:
            high = middle
        else:
            low = middle
    return make((low * high) ** 0.5)


def _offset(seed: int) -> float:
    return rng.uniform(-0.07, 0.07, seed, 99)


@scenario("tie-scheduling-hbm", "near tie", tags=("tie",))
def tie_scheduling_hbm(seed: int) -> World:
    """The gap between steps is worth about what the memory is."""
    w = replace(hbm_decode(seed), async_scheduling=False)
    return balance(lambda x: w.with_host(sched_ns=x), "scheduling", "hbm", 2e5, 6e7, _offset(seed))


@scenario("tie-launch-hbm", "near tie", tags=("tie",))
def tie_launch_hbm(seed: int) -> World:
    """Python between launches is worth about what the memory is."""
    w = replace(hbm_decode(seed), graphs=False)
    return balance(lambda x: w.with_host(op_ns=x), "launch_overhead", "hbm", 5e3, 4e5, _offset(seed))


@scenario("tie-sync-hbm", "near tie", tags=("tie",))
def tie_sync_hbm(seed: int) -> World:
    """Blocking reads are worth about what the memory is."""
    w = host_sync_decode(seed)
    return balance(lambda x: w.with_host(sync_python_ns=x), "host_sync", "hbm", 1e4, 4e6, _offset(seed))


@scenario("tie-compute-hbm", "near tie", tags=("tie",))
def tie_compute_hbm(seed: int) -> World:
    """A prefill chunk at the ridge: matrix units and memory both near their roofs."""
    w = _base(seed, ("h100", "a100"))
    w = replace(w, arch=ARCHS["llama-3-8b"])
    ridge = 260 if w.device.key == "h100" else 150
    tokens = round(ridge * rng.uniform(0.75, 1.5, seed, 98))
    return replace(w, plans=tuple(StepPlan(prefill=((tokens, tokens),)) for _ in range(4)))


# -- other settled cases --------------------------------------------------------------------------------------------


@scenario("hf-dynamic-cache", "launch_overhead", cases=(2,))
def hf_dynamic_cache(seed: int) -> World:
    """Hugging Face generate: eager, unfused, the cache copied into a longer tensor every step."""
    w = (
        _base(seed, ("h100", "a100"))
        .with_options(style="hf", fused=False, kv_concat=True)
        .with_profile(engine="hf")
    )
    w = w.with_host(op_ns=rng.uniform(10_000, 22_000, seed, 22))
    arch = ARCHS[_pick(("qwen2.5-0.5b", "llama-3.2-1b", "llama-2-7b"), seed, 20)]
    batch = rng.integer(1, 16, seed, 21)
    context = rng.integer(200, 3000, seed, 23)
    return replace(w, arch=arch, plans=tuple(StepPlan(decode=(context + i,) * batch) for i in range(3)))


@scenario("small-model-batch", "launch_overhead", cases=(4,))
def small_model_batch(seed: int) -> World:
    """A small model at growing batch: what graphs give must shrink."""
    w = launch_eager_decode(seed)
    return replace(
        w, arch=ARCHS["qwen2.5-0.5b"], plans=decode_steps(_pick((1, 8, 30, 120), seed, 21), 600, 4, seed)
    )


@scenario("piecewise-graphs", "hbm", cases=(6,))
def piecewise_graphs(seed: int) -> World:
    """Attention outside the graphs."""
    w = launch_eager_decode(seed)
    return replace(w.with_host(op_ns=rng.uniform(15_000, 60_000, seed, 22)), graphs=True, piecewise=True)


@scenario("logprobs", "scheduling", cases=(13,))
def logprobs(seed: int) -> World:
    """Log-probabilities of many tokens come back and become Python objects."""
    n = _pick((100, 1000, 10_000), seed, 26)
    w = replace(hbm_decode(seed), async_scheduling=False)
    return w.with_host(logprob_bytes=n * 8.0, logprob_ns=n * rng.uniform(1_500, 4_000, seed, 27))


@scenario("gc-stall-ranks", "imbalance", cases=(15,), tags=("ranks",))
def gc_stall_ranks(seed: int) -> World:
    """One rank collects garbage; the others wait in a collective."""
    w = straggler_tp(seed)
    w = replace(
        w, straggler_factor=1.0, straggler_pause_ns=0.0, straggler=rng.integer(0, w.ranks - 1, seed, 31)
    )
    return w.with_host(gc_every=2, gc_ns=rng.uniform(1e8, 3e8, seed, 34))


@scenario("plan-read-back", "host_sync", cases=(17,))
def plan_read_back(seed: int) -> World:
    """Attention planning reads lengths back before each step and drains the queue."""
    w = hbm_decode(seed)
    w = replace(
        w, graphs=True, async_scheduling=True, arch=ARCHS[_pick(("llama-3.2-1b", "llama-3-8b"), seed, 20)]
    )
    return w.with_host(plan_ns=rng.uniform(1e6, 9e6, seed, 26))


@scenario("small-blocking-copies", "host_sync", cases=(19,))
def small_blocking_copies(seed: int) -> World:
    """Many tiny synchronous copies from pageable memory inside the step."""
    w = launch_eager_decode(seed).with_host(op_ns=rng.uniform(4_000, 8_000, seed, 22))
    return w.with_host(small_copies=rng.integer(8, 24, seed, 26))


@scenario("int8-mixed-decode", "launch_overhead", cases=(29,))
def int8_mixed_decode(seed: int) -> World:
    """Seven launches where there was one."""
    w = _base(seed, ("a100", "h100")).with_options(weights="int8", style="hf").with_profile(engine="hf")
    w = w.with_host(op_ns=rng.uniform(8_000, 25_000, seed, 22))
    arch = ARCHS[_pick(("llama-2-7b", "llama-2-13b"), seed, 20)]
    return replace(
        w, arch=arch, plans=tuple(StepPlan(decode=(400 + i,) * _pick((1, 4, 16), seed, 21)) for i in range(3))
    )


@scenario("sampler-sort", "kernel_inefficiency", cases=(39,))
def sampler_sort(seed: int) -> World:
    """Sorting the whole vocabulary for every sequence."""
    w = hbm_decode(seed).with_options(sampler_sort=True)
    arch = ARCHS[_pick(("qwen2.5-0.5b", "qwen2.5-1.5b", "llama-3.2-1b"), seed, 20)]
    w = replace(w, arch=arch, graphs=False).with_host(op_ns=3_000.0)
    return replace(
        w, plans=decode_steps(rng.integer(96, 256, seed, 21), rng.integer(100, 500, seed, 23), 4, seed)
    )


@scenario("nccl-one-stream", "communication", cases=(36,), tags=("ranks",))
def nccl_one_stream(seed: int) -> World:
    """Prefill whose collectives run between the kernels and hide behind nothing."""
    w = _base(seed, ("l4", "a100"))
    slow = replace(w.device, peer=rng.uniform(6e9, 16e9, seed, 26))
    w = replace(w.with_options(tp=2), device=slow, arch=ARCHS["qwen2-7b"])
    return replace(w.with_host(op_ns=5_000.0), plans=prefill_steps(2, rng.integer(512, 1024, seed, 23), 2))


@scenario("moe-decode", "hbm")
def moe_decode(seed: int) -> World:
    """Mixture of experts: only touched experts are read."""
    w = _base(seed, ("h200", "mi300x"))
    return replace(w.with_host(op_ns=4_000.0), arch=ARCHS["mixtral-8x7b"],
                   plans=decode_steps(rng.integer(2, 48, seed, 21), rng.integer(300, 2000, seed, 23), 3, seed))  # fmt: skip


@scenario("throttled-prefill", "power")
def throttled_prefill(seed: int) -> Variant:
    """Clocks far below their usual value during compute-bound work; the counters show them."""
    w = compute_prefill(seed)
    w = replace(w, device=DEVICES[_pick(("h100", "a100"), seed, 1)], clock=rng.uniform(0.42, 0.6, seed, 26))
    w = w.with_options(style="vllm").with_profile(engine="vllm")
    return Variant(world=w, form="nsys", schema=_pick(("2023", "2025", "2026"), seed, 27), counters=True)


@scenario("mixed-step", "compute")
def mixed_step(seed: int) -> World:
    """Chunked prefill beside decode in one iteration."""
    w = _base(seed, ("h100", "a100")).with_profile(engine="vllm_detailed")
    chunk, batch = rng.integer(512, 2048, seed, 21), rng.integer(8, 64, seed, 22)
    base = decode_steps(batch, rng.integer(500, 4000, seed, 23), 4, seed)
    plans = tuple(StepPlan(((chunk, chunk * (i + 1)),), p.decode) for i, p in enumerate(base))
    return replace(w, arch=ARCHS["llama-3-8b"], plans=plans)


@scenario("pdl-decode", "hbm", tags=("graph",))
def pdl_decode(seed: int) -> World:
    """Kernels overlap their predecessor's tail on one stream."""
    w = replace(hbm_decode(seed), pdl=True)
    return (
        replace(w, device=DEVICES[_pick(("h100", "h200"), seed, 1)])
        .with_options(style="vllm")
        .with_profile(engine="vllm_detailed")
    )


# -- forms, withheld evidence, distortion -----------------------------------------------------------------------------


@scenario("nsys-decode", "hbm", tags=("nsys",))
def nsys_decode(seed: int) -> Variant:
    """The healthy and the host-bound decode as Nsight Systems sees them, over four schemas."""
    make = _pick((hbm_decode, launch_eager_decode, host_sync_decode, scheduling_gap_decode), seed, 50)
    w: World = make(seed)
    w = (
        replace(w, device=DEVICES[_pick(("h100", "a100"), seed, 1)])
        .with_options(style="vllm")
        .with_profile(engine="vllm_detailed")
    )
    return Variant(world=w, form="nsys", schema=_pick(("2022", "2023", "2025", "2026"), seed, 51))


@scenario("nsys-opaque-graph", "inconclusive", tags=("nsys", "withheld"))
def nsys_opaque_graph(seed: int) -> Variant:
    """Graph replays recorded as one row: nothing inside can be judged."""
    w = replace(
        hbm_decode(seed), graphs=True, opaque_graphs=True, device=DEVICES["h100"], async_scheduling=True
    )
    return Variant(
        world=w.with_options(style="vllm").with_profile(engine="vllm"),
        form="nsys",
        schema=_pick(("2025", "2026"), seed, 51),
    )


@scenario("graph-no-model", "inconclusive", tags=("graph", "withheld"))
def graph_no_model(seed: int) -> World:
    """A graph replay without shapes and without the model's config."""
    return replace(hbm_decode(seed), graphs=True, async_scheduling=True)


@scenario("graph-with-model", "hbm", tags=("graph",))
def graph_with_model(seed: int) -> Variant:
    """The same with the config beside it and KV tokens in the annotation."""
    w = replace(hbm_decode(seed), graphs=True, async_scheduling=True)
    return Variant(world=w.with_profile(engine="vllm_detailed"), config=True)


@scenario("no-shapes", "inconclusive", tags=("withheld",))
def no_shapes(seed: int) -> World:
    """Eager, but shapes were not recorded (vLLM's default)."""
    make = _pick((hbm_decode, compute_prefill, launch_eager_decode, scheduling_gap_decode), seed, 50)
    w: World = make(seed)
    return w.with_profile(shapes=False)


@scenario("one-rank-of-many", "inconclusive", tags=("ranks", "withheld"))
def one_rank_of_many(seed: int) -> Variant:
    """Only one of the ranks was captured, and not the late one."""
    w = straggler_tp(seed)
    return Variant(world=w, only_ranks=((w.straggler + 1) % w.ranks,))


@scenario("no-annotations", "hbm", tags=("form",))
def no_annotations(seed: int) -> World:
    """No step annotations: steps must come from the repeating work."""
    make = _pick((hbm_decode, launch_eager_decode, compute_prefill), seed, 50)
    w: World = make(seed)
    return w.with_profile(engine="none")


@scenario("python-stacks", "distorted", tags=("distorted",))
def python_stacks(seed: int) -> Variant:
    """Recording Python stacks slows the host; the real run has no such gaps."""
    real = replace(hbm_decode(seed), async_scheduling=False)
    factor = rng.uniform(2.0, 5.0, seed, 26)
    seen = real.with_host(speed=1.0 / factor).with_profile(python=True)
    return Variant(world=seen, real=real)


@scenario("slice-head-cut", "hbm", tags=("slice",))
def slice_head_cut(seed: int) -> World:
    """The host's first events are missing: early kernels have no launch in the file."""
    make = _pick((hbm_decode, compute_prefill, fallback_gemm), seed, 50)
    w: World = make(seed)
    return w.with_profile(drop_launches=rng.uniform(0.02, 0.12, seed, 26))


@scenario("slice-tail-cut", "hbm", tags=("slice",))
def slice_tail_cut(seed: int) -> World:
    """The file ends inside a step."""
    make = _pick((hbm_decode, launch_eager_decode, scheduling_gap_decode), seed, 50)
    w: World = make(seed)
    return w.with_profile(cut_tail=rng.uniform(0.05, 0.2, seed, 26))


@scenario("amd-unnamed", "hbm", tags=("amd",))
def amd_unnamed(seed: int) -> World:
    """ROCm trace whose device has no name."""
    w = hbm_decode(seed)
    w = replace(w, device=DEVICES["mi300x"]).with_options(style="sglang")
    return replace(w, profile=Profile(engine="sglang", name_empty=True))


@scenario("eight-ranks-slow-host", "launch_overhead", tags=("ranks",))
def eight_ranks_slow_host(seed: int) -> World:
    """Eight ranks launch eagerly; one host is 5 % slower and the others wait for it."""
    w = _base(seed, ("h100",)).with_options(tp=8)
    w = w.with_host(op_ns=rng.uniform(14_000, 22_000, seed, 22), jitter=0.05)
    return replace(w, arch=ARCHS["qwen3-8b"], straggler=rng.integer(0, 7, seed, 31), straggler_factor=1.05,
                   plans=decode_steps(8, 500, 2, seed))  # fmt: skip


@scenario("cpu-only", "inconclusive", tags=("cpu", "withheld"))
def cpu_only(seed: int) -> Variant:
    """No GPU in the trace: operators are all there is."""
    w = _base(seed, ("h100",)).with_options(style="hf", fused=False).with_profile(engine="hf")
    w = w.with_host(op_ns=rng.uniform(3_000, 20_000, seed, 22))
    arch = ARCHS[_pick(("qwen2.5-0.5b", "llama-3.2-1b"), seed, 20)]
    plans = (
        prefill_steps(1, rng.integer(64, 512, seed, 21), 2)
        if rng.unit(seed, 23) < 0.5
        else decode_steps(1, 300, 3, seed)
    )
    return Variant(world=replace(w, arch=arch, plans=plans), form="cpu")
