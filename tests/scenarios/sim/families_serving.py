"""Deployments under load, for each objective, with any subset of their evidence."""

from dataclasses import replace

from sim import rng
from sim.arch import ARCHS
from sim.hardware import DEVICES, DTYPE_BYTES
from sim.model import Options
from sim.registry import Variant, scenario
from sim.serving import Load, Serve, relieved
from sim.world import HostCosts

FULL = frozenset({"trace", "metrics", "log", "bench", "config"})
OBJECTIVES = ("throughput", "ttft", "itl", "e2e")


def _deploy(seed: int) -> Serve:
    """A sound deployment with a drawn device and model and enough clients."""
    device = DEVICES[rng.choice(("h100", "a100", "h200"), seed, 1)]
    arch = ARCHS[rng.choice(("llama-3-8b", "qwen2-7b", "qwen3-8b"), seed, 2)]
    host = HostCosts(
        op_ns=rng.uniform(5_000, 9_000, seed, 3), sched_ns=rng.uniform(100_000, 250_000, seed, 4),
        sched_per_seq_ns=rng.uniform(1_500, 4_000, seed, 5), prep_ns=rng.uniform(100_000, 250_000, seed, 6),
        detok_per_token_ns=rng.uniform(2_000, 5_000, seed, 7))  # fmt: skip
    load = Load(
        requests=260,
        concurrency=80,
        prompt=rng.integer(300, 900, seed, 8),
        output=rng.integer(100, 260, seed, 9),
    )
    pool = (device.memory_bytes * 0.9 - arch.weights * 2.0 - 3e9) / arch.kv_bytes_per_token()
    return Serve(device=device, arch=arch, host=host, load=load, kv_tokens=int(pool) // 16 * 16, seed=seed,
                 token_budget=rng.choice((2048, 4096, 8192), seed, 10), async_scheduling=rng.unit(seed, 11) < 0.3)  # fmt: skip


def _evidence(seed: int, choices: tuple[frozenset[str], ...] = ()) -> frozenset[str]:
    sets = choices or (
        FULL,
        FULL - {"metrics"},
        FULL - {"log"},
        frozenset({"metrics", "log", "bench", "config"}),
        FULL - {"bench"},
    )
    return rng.choice(sets, seed, 60)


def _variant(
    s: Serve, seed: int, objectives: tuple[str, ...] = ("throughput",), evidence: frozenset[str] | None = None
) -> Variant:
    return Variant(serve=s, objective=rng.choice(objectives, seed, 61), evidence=evidence or _evidence(seed))


@scenario("serve-kv-starved", "kv_capacity", cases=(20, 21, 22, 25), tags=("serving",))
def serve_kv_starved(seed: int) -> Variant:
    """The KV pool holds a fraction of the offered sequences."""
    s = _deploy(seed)
    per = s.load.prompt + s.load.output
    s = replace(s, kv_tokens=max(6 * per, int(per * rng.uniform(8, 26, seed, 20))) // 16 * 16)
    s = relieved(s, load_concurrency=rng.integer(60, 128, seed, 21))
    return _variant(s, seed, OBJECTIVES)


@scenario("serve-kv-queue-no-preempt", "kv_capacity", cases=(22,), tags=("serving",))
def serve_kv_queue(seed: int) -> Variant:
    """The scheduler reserves the output: the pool is full, nothing is ever preempted."""
    s = serve_kv_starved(seed).serve
    assert s is not None
    return _variant(replace(s, reserve=1.0), seed, ("throughput", "ttft"))


@scenario("serve-kv-ample", "kv not binding", cases=(24,), tags=("serving",))
def serve_kv_ample(seed: int) -> Variant:
    """FP8 KV doubles a pool that was never full."""
    s = relieved(_deploy(seed), load_concurrency=rng.integer(6, 16, seed, 21), load_requests=100)
    return _variant(s, seed, OBJECTIVES)


@scenario("serve-slot-cap", "scheduling", tags=("serving",))
def serve_slot_cap(seed: int) -> Variant:
    """Requests wait, KV is free, the batch sits at max_num_seqs."""
    s = replace(_deploy(seed), max_seqs=rng.choice((8, 16, 24, 32), seed, 20))
    return _variant(s, seed, ("throughput", "ttft", "e2e"))


@scenario("serve-cap-and-pool", "kv_capacity and scheduling", cases=(20,), tags=("serving", "tie"))
def serve_cap_and_pool(seed: int) -> Variant:
    """The batch is at its cap and the pool is full."""
    s = _deploy(seed)
    cap = rng.integer(16, 40, seed, 20)
    per = s.load.prompt + 0.55 * s.load.output
    return _variant(
        replace(s, max_seqs=cap, kv_tokens=int(per * cap * rng.uniform(0.95, 1.05, seed, 21)) // 16 * 16),
        seed,
    )


@scenario("serve-low-demand", "demand", tags=("serving",))
def serve_low_demand(seed: int) -> Variant:
    """Nobody waits; the batch is far below the knee."""
    s = _deploy(seed)
    per_request = s.load.output * 0.012
    rate = rng.uniform(1.5, 5.0, seed, 20) / per_request
    s = relieved(s, load_concurrency=0, load_rate=rate, load_requests=140)
    return _variant(s, seed, OBJECTIVES)


@scenario("serve-saturated", "hbm or compute", tags=("serving",))
def serve_saturated(seed: int) -> Variant:
    """Everything admitted, device busy: the hardware limits."""
    s = _deploy(seed)
    s = relieved(s, load_concurrency=rng.integer(40, 160, seed, 20), load_requests=400)
    return _variant(s, seed, OBJECTIVES)


@scenario("serve-prefill-heavy", "compute", tags=("serving",))
def serve_prefill_heavy(seed: int) -> Variant:
    """Long prompts, short answers."""
    s = relieved(_deploy(seed), load_prompt=rng.integer(1500, 4000, seed, 20), load_output=rng.integer(16, 64, seed, 21),
                 load_concurrency=rng.integer(16, 48, seed, 22), load_requests=140)  # fmt: skip
    return _variant(s, seed, ("throughput", "ttft", "itl"))


@scenario("serve-prefill-blocks-decode", "scheduling", cases=(37,), tags=("serving",))
def serve_prefill_blocks(seed: int) -> Variant:
    """Prompts are not chunked: running streams stall while one is computed."""
    s = relieved(_deploy(seed), load_prompt=rng.integer(2000, 6000, seed, 20), load_output=rng.integer(60, 160, seed, 21),
                 load_concurrency=rng.integer(12, 32, seed, 22), load_requests=110)  # fmt: skip
    return _variant(replace(s, chunked=False), seed, ("itl",))


@scenario("serve-host-bound", "scheduling", cases=(7, 8, 9, 10), tags=("serving",))
def serve_host_bound(seed: int) -> Variant:
    """Scheduling and output processing between steps grow with the running requests."""
    s = relieved(_deploy(seed), host_sched_ns=rng.uniform(1e6, 5e6, seed, 20), host_sched_per_seq_ns=rng.uniform(2e4, 8e4, seed, 21),
                 host_detok_per_token_ns=rng.uniform(1e4, 6e4, seed, 22))  # fmt: skip
    return _variant(
        replace(s, async_scheduling=False),
        seed,
        ("throughput", "itl"),
        _evidence(seed, (FULL, FULL - {"metrics"})),
    )


@scenario("serve-eager-flag", "launch_overhead", cases=(3,), tags=("serving",))
def serve_eager_flag(seed: int) -> Variant:
    """A deploy switched graphs off."""
    s = relieved(_deploy(seed), host_op_ns=rng.uniform(35_000, 80_000, seed, 20), load_concurrency=rng.integer(4, 24, seed, 21),
                 load_requests=80)  # fmt: skip
    return _variant(
        replace(s, graphs=False), seed, ("throughput", "itl"), _evidence(seed, (FULL, FULL - {"metrics"}))
    )


@scenario("serve-above-graphs", "launch_overhead", tags=("serving",))
def serve_above_graphs(seed: int) -> Variant:
    """The batch is above the largest captured graph."""
    s = relieved(
        _deploy(seed),
        host_op_ns=rng.uniform(40_000, 80_000, seed, 20),
        load_concurrency=rng.integer(48, 96, seed, 21),
    )
    return _variant(
        replace(s, graph_max=32), seed, ("throughput", "itl"), _evidence(seed, (FULL, FULL - {"metrics"}))
    )


@scenario("serve-fp8-kv", "kv_capacity", cases=(25,), tags=("serving",))
def serve_fp8_kv(seed: int) -> Variant:
    """An FP8 cache that is still too small."""
    s = serve_kv_starved(seed).serve
    assert s is not None
    s = replace(s, options=Options(kv_dtype="fp8"), kv_tokens=int(s.kv_tokens * 2 / DTYPE_BYTES["bf16"]))
    return _variant(s, seed, ("throughput", "ttft"))


@scenario("serve-shared-prefix", "hbm or demand", tags=("serving",))
def serve_shared_prefix(seed: int) -> Variant:
    """All prompts share a long prefix that is cached once: the pool holds more sequences than their lengths suggest."""
    s = _deploy(seed)
    prefix = rng.integer(500, 1500, seed, 20)
    s = relieved(
        s,
        load_prompt=prefix + 200,
        load_shared_prefix=prefix,
        load_spread=0.1,
        load_concurrency=rng.integer(20, 60, seed, 21),
    )
    pool = prefix + rng.integer(12, 50, seed, 22) * (300 + s.load.output)
    return _variant(
        replace(s, prefix_caching=True, kv_tokens=max(pool, 4 * (s.load.prompt + s.load.output)) // 16 * 16),
        seed,
    )


@scenario("serve-trace-only", "inconclusive", tags=("serving", "withheld"))
def serve_trace_only(seed: int) -> Variant:
    """A starved server seen through its kernel trace alone looks healthy."""
    make = rng.choice((serve_kv_starved, serve_slot_cap, serve_low_demand), seed, 62)
    v: Variant = make(seed)
    return replace(v, objective="throughput", evidence=frozenset({"trace"}))


@scenario("serve-bench-only", "inconclusive", tags=("serving", "withheld"))
def serve_bench_only(seed: int) -> Variant:
    """Only the load generator's result."""
    make = rng.choice((serve_kv_starved, serve_host_bound, serve_saturated), seed, 62)
    v: Variant = make(seed)
    return replace(v, objective="throughput", evidence=frozenset({"bench"}))


@scenario("serve-sglang", "kv_capacity", tags=("serving",))
def serve_sglang(seed: int) -> Variant:
    """The same questions from SGLang's log."""
    make = rng.choice((serve_kv_starved, serve_slot_cap, serve_low_demand), seed, 62)
    v: Variant = make(seed)
    return replace(v, objective="throughput", engine="sglang", evidence=frozenset({"log", "bench", "config"}))


@scenario("serve-front-end", "scheduling", cases=(7,), tags=("serving",))
def serve_front_end(seed: int) -> Variant:
    """One front-end process takes longer for a request than the engine has between two: clients wait in front of it."""
    s = replace(_deploy(seed), front_ns=rng.uniform(7e7, 1.6e8, seed, 20))
    return _variant(
        s, seed, ("throughput", "ttft"), _evidence(seed, (FULL, FULL - {"log"}, FULL - {"trace"}))
    )


@scenario("serve-conservative", "scheduling", tags=("serving",))
def serve_conservative(seed: int) -> Variant:
    """SGLang holds back blocks for the longest answer a request may ask for, several times what it gives."""
    s = _deploy(seed)
    per = s.load.prompt + s.load.output
    s = replace(
        s, hold=rng.uniform(5.0, 9.0, seed, 20), kv_tokens=per * rng.integer(60, 110, seed, 21) // 16 * 16
    )
    v = _variant(relieved(s, load_output=rng.integer(180, 320, seed, 22)), seed, ("throughput", "ttft"))
    return replace(
        v,
        engine="sglang",
        evidence=_evidence(seed, (frozenset({"log", "bench", "config"}), FULL - {"metrics"})),
    )


@scenario("serve-token-budget", "scheduling", tags=("serving",))
def serve_token_budget(seed: int) -> Variant:
    """So few tokens an iteration that prompt steps stream the weights for a handful of tokens each."""
    s = replace(_deploy(seed), token_budget=rng.choice((64, 96, 128, 192), seed, 10), async_scheduling=False)
    s = relieved(
        s, load_prompt=rng.integer(800, 2400, seed, 20), load_output=rng.integer(24, 80, seed, 21),
        load_concurrency=rng.integer(16, 40, seed, 22), load_requests=90,
    )  # fmt: skip
    evidence = _evidence(seed, (FULL, FULL - {"metrics"}, frozenset({"log", "bench", "config"})))
    return replace(_variant(s, seed, ("throughput", "ttft"), evidence), iterations=True)


@scenario("serve-uneven-engines", "imbalance", tags=("serving",))
def serve_uneven_engines(seed: int) -> Variant:
    """A router that sticks sessions to one of several engines: it queues while the others idle."""
    s = replace(_deploy(seed), max_seqs=rng.integer(12, 24, seed, 20))
    first = rng.uniform(0.7, 0.92, seed, 21)
    count = rng.choice((3, 4), seed, 22)
    shares = (first, *[(1 - first) / (count - 1)] * (count - 1))
    s = relieved(s, load_concurrency=rng.integer(60, 100, seed, 23), load_requests=400)
    evidence = _evidence(
        seed,
        (
            frozenset({"metrics", "bench", "config"}),
            frozenset({"metrics", "config"}),
            frozenset({"bench", "config"}),
        ),
    )
    return replace(_variant(s, seed, ("throughput",), evidence), shares=shares)


@scenario("serve-structured-output", "scheduling", tags=("serving",))
def serve_structured_output(seed: int) -> Variant:
    """A grammar's mask is built on the host between logits and sampler, sequence by sequence."""
    s = relieved(
        _deploy(seed),
        host_mask_ns=rng.uniform(1e5, 3e5, seed, 20),
        load_concurrency=rng.integer(16, 48, seed, 21),
    )
    return _variant(
        replace(s, async_scheduling=False),
        seed,
        ("throughput", "itl"),
        _evidence(seed, (FULL, FULL - {"metrics"})),
    )


@scenario("serve-even-engines", "hbm", tags=("serving",))
def serve_even_engines(seed: int) -> Variant:
    """The same engines with the load dealt out evenly."""
    v = serve_uneven_engines(seed)
    return replace(v, shares=(1.0,) * len(v.shares), evidence=frozenset({"metrics", "bench", "config"}))
