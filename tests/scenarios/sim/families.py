"""Families of trace scenarios. Parameters are drawn per seed inside ranges real deployments show."""

from dataclasses import replace

from sim import rng
from sim.arch import ARCHS, StepPlan
from sim.hardware import DEVICES
from sim.model import Options
from sim.registry import scenario
from sim.world import HostCosts, Offload, Profile, World


def decode_steps(batch: int, context: int, steps: int, seed: int) -> tuple[StepPlan, ...]:
    """A decode batch whose sequences have different contexts, growing by a token a step."""
    base = StepPlan(
        decode=tuple(max(16, round(context * rng.uniform(0.6, 1.4, seed, 70, i))) for i in range(batch))
    )
    return tuple(base.grown(i) for i in range(steps))


def prefill_steps(sequences: int, tokens: int, steps: int) -> tuple[StepPlan, ...]:
    """Fresh prompts of equal length."""
    return tuple(StepPlan(prefill=((tokens, tokens),) * sequences) for _ in range(steps))


def _pick(items: tuple, *key: int):  # type: ignore[no-untyped-def]
    return rng.choice(items, *key)


def _base(seed: int, devices: tuple[str, ...] = ("h100", "a100", "h200", "mi300x")) -> World:
    """A healthy world on a drawn device, with its engine's habits."""
    device = DEVICES[_pick(devices, seed, 1)]
    amd = device.vendor == "amd"
    engine = "sglang" if amd else _pick(("vllm", "vllm_detailed", "vllm_tokens"), seed, 2)
    host = HostCosts(
        op_ns=rng.uniform(6_000, 11_000, seed, 3), sched_ns=rng.uniform(120_000, 300_000, seed, 4),
        sched_per_seq_ns=rng.uniform(2_000, 5_000, seed, 5), prep_ns=rng.uniform(150_000, 300_000, seed, 6),
        detok_per_token_ns=rng.uniform(3_000, 7_000, seed, 7))  # fmt: skip
    options = Options(style="sglang" if amd else "vllm")
    return World(device=device, host=host, options=options, profile=Profile(engine=engine), seed=seed,
                 noise=rng.uniform(0.01, 0.04, seed, 8), scatter=rng.uniform(0.0, 0.15, seed, 9), run_device=0.006, run_host=0.02)  # fmt: skip


@scenario("hbm-decode", "hbm", cases=(1,), tags=("first",))
def hbm_decode(seed: int) -> World:
    """Weights and KV stream at the roof; the host keeps ahead."""
    w = _base(seed)
    arch = ARCHS[_pick(("llama-3-8b", "llama-2-7b", "qwen3-8b"), seed, 20)]
    batch = rng.integer(8, 48, seed, 21)
    w = w.with_host(op_ns=rng.uniform(3_000, 6_000, seed, 22))
    return replace(w, arch=arch, plans=decode_steps(batch, rng.integer(1000, 4000, seed, 23), 4, seed), graphs=False,
                   async_scheduling=rng.unit(seed, 24) < 0.5)  # fmt: skip


@scenario("launch-eager-decode", "launch_overhead", cases=(1, 2, 3, 4), tags=("first",))
def launch_eager_decode(seed: int) -> World:
    """Small model or slow host, no graphs: the device waits for Python."""
    w = _base(seed)
    arch = ARCHS[_pick(("qwen2.5-0.5b", "qwen2.5-1.5b", "llama-3.2-1b", "llama-3-8b"), seed, 20)]
    op = (
        rng.uniform(40_000, 90_000, seed, 22)
        if arch.hidden >= 4096
        else rng.uniform(14_000, 35_000, seed, 22)
    )
    w = w.with_host(op_ns=op, api_ns=rng.uniform(3_500, 7_000, seed, 25))
    return replace(
        w,
        arch=arch,
        plans=decode_steps(rng.integer(1, 8, seed, 21), rng.integer(200, 2000, seed, 23), 4, seed),
    )


@scenario("compute-prefill", "compute", tags=("first",))
def compute_prefill(seed: int) -> World:
    """Long prompts through good kernels."""
    w = _base(seed, ("h100", "a100", "mi300x"))
    arch = ARCHS[_pick(("llama-3-8b", "qwen3-8b", "llama-2-7b"), seed, 20)]
    return replace(
        w, arch=arch, plans=prefill_steps(rng.integer(2, 6, seed, 21), rng.integer(1024, 3072, seed, 23), 3)
    )


@scenario("host-sync-decode", "host_sync", cases=(16, 17, 19), tags=("first",))
def host_sync_decode(seed: int) -> World:
    """A device value is read inside every layer; the queue drains each time."""
    w = _base(seed)
    arch = ARCHS[_pick(("llama-3-8b", "qwen3-8b", "llama-2-7b"), seed, 20)]
    w = w.with_host(syncs=rng.integer(24, 56, seed, 26), sync_python_ns=rng.uniform(60_000, 220_000, seed, 27),
                    op_ns=rng.uniform(3_500, 6_500, seed, 22))  # fmt: skip
    return replace(
        w,
        arch=arch,
        plans=decode_steps(rng.integer(8, 32, seed, 21), rng.integer(800, 3000, seed, 23), 4, seed),
    )


@scenario("scheduling-gap-decode", "scheduling", cases=(7, 8, 9, 10, 13), tags=("first",))
def scheduling_gap_decode(seed: int) -> World:
    """Steps replay as graphs; between them Python schedules and detokenises."""
    w = _base(seed)
    arch = ARCHS[_pick(("llama-3-8b", "qwen2-7b", "qwen3-8b"), seed, 20)]
    w = w.with_host(sched_ns=rng.uniform(2e6, 6e6, seed, 26), sched_per_seq_ns=rng.uniform(10_000, 60_000, seed, 27),
                    detok_per_token_ns=rng.uniform(10_000, 80_000, seed, 28), op_ns=rng.uniform(3_000, 5_000, seed, 22))  # fmt: skip
    return replace(
        w,
        arch=arch,
        plans=decode_steps(rng.integer(24, 96, seed, 21), rng.integer(300, 1500, seed, 23), 4, seed),
    )


@scenario("host-input", "host_input", tags=("first",))
def host_input(seed: int) -> World:
    """A data loader runs between forward passes."""
    w = _base(seed).with_profile(engine="hf").with_options(style="hf")
    arch = ARCHS[_pick(("qwen2.5-0.5b", "qwen2.5-1.5b", "llama-3.2-1b"), seed, 20)]
    plans = prefill_steps(rng.integer(4, 12, seed, 21), rng.integer(256, 900, seed, 23), 3)
    return replace(w.with_host(loader_ns=rng.uniform(4e7, 1.2e8, seed, 26)), arch=arch, plans=plans)


@scenario("copy-offload", "copy", tags=("first",))
def copy_offload(seed: int) -> World:
    """Layers' weights come over the host link every step."""
    w = _base(seed, ("h100", "a100", "l4"))
    arch = ARCHS[_pick(("llama-3-8b", "llama-2-7b", "qwen2-7b"), seed, 20)]
    share = rng.uniform(0.4, 1.0, seed, 26)
    off = Offload(
        arch.layer_weights * 2.0 * share, pageable=rng.unit(seed, 27) < 0.3, overlap=rng.unit(seed, 28) < 0.4
    )
    if off.pageable:
        off = replace(off, overlap=False)
    return replace(
        w,
        arch=arch,
        offload=off,
        plans=decode_steps(rng.integer(1, 16, seed, 21), rng.integer(300, 2000, seed, 23), 3, seed),
    )


@scenario("communication-tp", "communication", cases=(32, 33, 34, 36), tags=("first", "ranks"))
def communication_tp(seed: int) -> World:
    """Tensor parallel over a slow link: collectives carry the step."""
    w = _base(seed, ("h100", "a100", "l4"))
    slow = replace(
        w.device, peer=rng.uniform(2e9, 9e9, seed, 26), collective_ns=rng.uniform(20_000, 60_000, seed, 27)
    )
    arch = ARCHS[_pick(("llama-3-8b", "qwen2-7b", "llama-2-13b"), seed, 20)]
    tp = _pick((2, 4), seed, 28)
    skew = tuple(round(rng.uniform(-8e5, 8e5, seed, 29, r)) for r in range(tp))
    w = replace(w.with_options(tp=tp), device=slow, arch=arch).with_profile(skew_ns=skew)
    return replace(w.with_host(op_ns=rng.uniform(3_000, 6_000, seed, 22)),
                   plans=decode_steps(rng.integer(16, 64, seed, 21), rng.integer(300, 1200, seed, 23), 3, seed))  # fmt: skip


@scenario("straggler-tp", "imbalance", cases=(15,), tags=("first", "ranks"))
def straggler_tp(seed: int) -> World:
    """One rank's host is slower; the others sit in collectives."""
    w = _base(seed, ("h100", "h200"))
    arch = ARCHS[_pick(("llama-3-8b", "qwen2-7b"), seed, 20)]
    tp = _pick((2, 4), seed, 28)
    pause = rng.unit(seed, 30) < 0.5
    skew = tuple(round(rng.uniform(-8e5, 8e5, seed, 29, r)) for r in range(tp))
    w = replace(w.with_options(tp=tp), arch=arch, straggler=rng.integer(0, tp - 1, seed, 31)).with_profile(
        skew_ns=skew
    )
    w = (
        replace(w, straggler_pause_ns=rng.uniform(1.5e7, 5e7, seed, 32))
        if pause
        else replace(w, straggler_factor=rng.uniform(3.0, 5.0, seed, 33))
    )
    return replace(w.with_host(op_ns=rng.uniform(5_000, 8_000, seed, 22)),
                   plans=decode_steps(rng.integer(8, 32, seed, 21), rng.integer(300, 1500, seed, 23), 3, seed))  # fmt: skip


@scenario("fallback-gemm", "kernel_inefficiency", cases=(30,), tags=("first",))
def fallback_gemm(seed: int) -> World:
    """Unaligned shapes fell back to a slow GEMM."""
    w = _base(seed, ("h100", "a100", "h200")).with_options(gemm_quality=rng.uniform(0.12, 0.35, seed, 26))
    arch = ARCHS[_pick(("llama-3-8b", "qwen2-7b"), seed, 20)]
    if rng.unit(seed, 27) < 0.5:
        plans = prefill_steps(rng.integer(1, 4, seed, 21), rng.integer(512, 2048, seed, 23), 3)
    else:
        plans = decode_steps(rng.integer(8, 32, seed, 21), rng.integer(300, 1500, seed, 23), 4, seed)
    return replace(w, arch=arch, plans=plans)


@scenario("unfused-prefill", "kernel_inefficiency", tags=("first",))
def unfused_prefill(seed: int) -> World:
    """Eager chains of strided elementwise kernels around small GEMMs."""
    w = _base(seed, ("h100", "a100")).with_options(
        style="hf", fused=False, strided=rng.uniform(0.25, 0.45, seed, 26)
    )
    arch = ARCHS[_pick(("qwen2.5-0.5b", "llama-3.2-1b"), seed, 20)]
    w = w.with_profile(engine="hf").with_host(op_ns=rng.uniform(5_000, 9_000, seed, 22))
    return replace(
        w, arch=arch, plans=prefill_steps(rng.integer(12, 32, seed, 21), rng.integer(512, 1024, seed, 23), 2)
    )


@scenario("awq-large-batch", "kernel_inefficiency", cases=(27, 28), tags=("first",))
def awq_large_batch(seed: int) -> World:
    """Four-bit weights are expanded before every GEMM."""
    w = _base(seed, ("a100", "h100")).with_options(weights="awq")
    arch = ARCHS[_pick(("llama-2-7b", "llama-2-13b", "llama-3-8b"), seed, 20)]
    return replace(
        w,
        arch=arch,
        plans=decode_steps(rng.integer(64, 200, seed, 21), rng.integer(200, 900, seed, 23), 3, seed),
    )


@scenario("graph-decode", "hbm", tags=("graph",))
def graph_decode(seed: int) -> World:
    """The healthy deployment: full graphs, asynchronous scheduling."""
    w = hbm_decode(seed)
    return replace(w, graphs=True, async_scheduling=True)
