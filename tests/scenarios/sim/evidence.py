"""What a deployment leaves beside a trace: Prometheus scrapes, the engine's log, a benchmark result, the model's config.

Metric names, log lines and result keys as vLLM (0.11 and later) and SGLang (0.5) write them.
"""

import json
from bisect import bisect_right
from pathlib import Path

from sim.hardware import DTYPE_BYTES
from sim.serving import BLOCK, Serve, Served, StepRecord

EPOCH = 1_759_300_000.0  # wall-clock time of the run's first event
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
                640.0, 2560.0)  # fmt: skip
ITL_BUCKETS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
E2E_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
               7680.0)  # fmt: skip
TOKEN_BUCKETS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)


def step_at(run: Served, seconds: float) -> StepRecord:
    """The last step begun by then."""
    starts = [s.start for s in run.steps]
    return run.steps[max(0, bisect_right(starts, seconds * 1e9) - 1)]


def _histogram(name: str, labels: str, values: list[float], bounds: tuple[float, ...], doc: str) -> list[str]:
    lines = [f"# HELP {name} {doc}", f"# TYPE {name} histogram"]
    ordered = sorted(values)
    for bound in bounds:
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(bisect_right(ordered, bound))}')
    lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {float(len(values))}')
    lines += [f"{name}_count{{{labels}}} {float(len(values))}", f"{name}_sum{{{labels}}} {sum(values)}"]
    return lines


def scrape(run: Served, seconds: float) -> str:
    """The exposition text of vLLM V1 at a moment of the run."""
    s, now, step = run.serve, seconds * 1e9, step_at(run, seconds)
    label = f'engine="0",model_name="{s.arch.name}"'
    done = [r for r in run.requests if r.token_times and r.token_times[-1] <= now]
    begun = [r for r in run.requests if r.token_times and r.token_times[0] <= now]
    started = [r for r in run.requests if r.scheduled is not None and r.scheduled <= now]
    out: list[str] = []

    def single(name: str, kind: str, value: float, doc: str, extra: str = "") -> None:
        metric = name + ("_total" if kind == "counter" else "")
        out.extend(
            [
                f"# HELP {metric} {doc}",
                f"# TYPE {metric} {kind}",
                f"{metric}{{{label}{extra}}} {float(value)}",
            ]
        )

    single(
        "vllm:num_requests_running", "gauge", step.running, "Number of requests in model execution batches."
    )
    single("vllm:num_requests_waiting", "gauge", step.waiting, "Number of requests waiting to be processed.")
    single(
        "vllm:kv_cache_usage_perc",
        "gauge",
        step.used_blocks / run.blocks,
        "KV-cache usage. 1 means 100 percent usage.",
    )
    hits = sum(r.cached for r in started)
    single(
        "vllm:prefix_cache_queries",
        "counter",
        sum(r.prompt for r in started),
        "Prefix cache queries, in tokens.",
    )
    single("vllm:prefix_cache_hits", "counter", hits, "Prefix cache hits, in tokens.")
    single(
        "vllm:num_preemptions",
        "counter",
        step.preemptions,
        "Cumulative number of preemptions from the engine.",
    )
    single(
        "vllm:prompt_tokens", "counter", sum(r.prompt for r in begun), "Number of prefill tokens processed."
    )
    single("vllm:generation_tokens", "counter", step.generated, "Number of generation tokens processed.")
    single(
        "vllm:request_success",
        "counter",
        len(done),
        "Count of successfully processed requests.",
        ',finished_reason="length"',
    )
    config = {
        "block_size": BLOCK, "cache_dtype": "auto" if s.options.kv_dtype == "bf16" else "fp8", "enable_prefix_caching": s.prefix_caching,
        "gpu_memory_utilization": 0.9, "num_gpu_blocks": run.blocks, "num_cpu_blocks": "None", "sliding_window": "None",
        "num_gpu_blocks_override": "None", "engine": 0,
    }  # fmt: skip
    fields = ",".join(f'{k}="{v}"' for k, v in sorted(config.items()))
    out += ["# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig", "# TYPE vllm:cache_config_info gauge",
            f"vllm:cache_config_info{{{fields}}} 1.0"]  # fmt: skip
    out += _histogram("vllm:iteration_tokens_total", label,
                      [float(sum(n for n, _ in x.plan_prefill) + x.decode) for x in run.steps if x.start <= now], TOKEN_BUCKETS,
                      "Histogram of number of tokens per engine_step.")  # fmt: skip
    out += _histogram("vllm:time_to_first_token_seconds", label, [(r.token_times[0] - r.entered) / 1e9 for r in begun], TTFT_BUCKETS,
                      "Histogram of time to first token in seconds.")  # fmt: skip
    gaps = [
        (b - a) / 1e9
        for r in begun
        for a, b in zip(r.token_times, r.token_times[1:], strict=False)
        if b <= now
    ]
    out += _histogram(
        "vllm:inter_token_latency_seconds",
        label,
        gaps,
        ITL_BUCKETS,
        "Histogram of inter-token latency in seconds.",
    )
    out += _histogram("vllm:e2e_request_latency_seconds", label, [(r.token_times[-1] - r.entered) / 1e9 for r in done], E2E_BUCKETS,
                      "Histogram of e2e request latency in seconds.")  # fmt: skip
    queue = [((r.scheduled or 0) - r.entered) / 1e9 for r in done]
    out += _histogram(
        "vllm:request_queue_time_seconds",
        label,
        queue,
        E2E_BUCKETS,
        "Histogram of time spent in WAITING phase.",
    )
    prefill = [(r.token_times[0] - (r.scheduled or 0)) / 1e9 for r in done]
    out += _histogram(
        "vllm:request_prefill_time_seconds",
        label,
        prefill,
        E2E_BUCKETS,
        "Histogram of time spent in PREFILL phase.",
    )
    decode = [(r.token_times[-1] - r.token_times[0]) / 1e9 for r in done]
    out += _histogram(
        "vllm:request_decode_time_seconds",
        label,
        decode,
        E2E_BUCKETS,
        "Histogram of time spent in DECODE phase.",
    )
    sizes = tuple(float(x) for x in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000))
    out += _histogram(
        "vllm:request_prompt_tokens",
        label,
        [float(r.prompt) for r in done],
        sizes,
        "Number of prefill tokens processed.",
    )
    out += _histogram("vllm:request_generation_tokens", label, [float(r.output) for r in done], sizes,
                      "Number of generation tokens processed.")  # fmt: skip
    return "\n".join(out) + "\n"


def weights_gib(s: Serve) -> float:
    """Weights per device as the engine reports them, in GiB."""
    per = {"bf16": 2.0, "fp8": 1.0, "awq": 0.52}[s.options.weights]
    a = s.arch
    body = a.layers * a.layer_weights * per + 2 * a.vocab * a.hidden * 2.0
    return body / s.options.tp / (1 << 30)


def vllm_log(run: Served, every_s: float | None = None, max_len: int = 8192, iterations: bool = False) -> str:
    """Start-up and periodic lines of `vllm serve`: every 10 s, or 2 s (VLLM_LOG_STATS_INTERVAL) in a short run."""
    every_s = every_s or (10.0 if run.duration_s > 60 else 2.0)
    s = run.serve
    tokens = run.blocks * BLOCK
    kv_gib = tokens * s.arch.kv_bytes_per_token(DTYPE_BYTES[s.options.kv_dtype]) / s.options.tp / (1 << 30)

    def stamp(seconds: float) -> str:
        total = int(seconds)
        return f"INFO 10-01 {6 + total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"

    args = (f"{{'model_tag': '{s.arch.name}', 'max_model_len': {max_len}, 'max_num_seqs': {s.max_seqs}, "
            f"'max_num_batched_tokens': {s.token_budget}" + (", 'enforce_eager': True" if not s.graphs else "") + "}")  # fmt: skip
    lines = [
        f"{stamp(0)} [utils.py:233] non-default args: {args}",
        f"{stamp(1)} [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens={s.token_budget}.",
        f"{stamp(2)} [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='{s.arch.name}', dtype=torch.bfloat16, "
        f"max_seq_len={max_len}, tensor_parallel_size={s.options.tp}, pipeline_parallel_size=1, quantization=None, "
        f"enforce_eager={not s.graphs}, kv_cache_dtype={'auto' if s.options.kv_dtype == 'bf16' else 'fp8'}, seed=0",
        f"{stamp(12)} [gpu_model_runner.py:2392] Model loading took {weights_gib(s):.4f} GiB memory and 9.123456 seconds",
        f"{stamp(20)} [gpu_worker.py:298] Available KV cache memory: {kv_gib:.2f} GiB",
        f"{stamp(20)} [kv_cache_utils.py:1087] GPU KV cache size: {tokens:,} tokens",
        f"{stamp(20)} [kv_cache_utils.py:1091] Maximum concurrency for {max_len:,} tokens per request: {tokens / max_len:.2f}x",
    ]
    if s.graphs:
        lines.append(
            f"{stamp(30)} [gpu_model_runner.py:3118] Graph capturing finished in 9 secs, took 0.61 GiB"
        )
    if iterations:
        # VLLM with --enable-logging-iteration-details: one line a step
        for i, x in enumerate(run.steps):
            tokens = sum(n for n, _ in x.plan_prefill)
            lines.append(
                f"{stamp(40 + x.start / 1e9)} [core.py:359] Engine 000: Iteration({i}): {len(x.plan_prefill)} context requests, {tokens} "
                f"context tokens, {x.decode} generation requests, {x.decode} generation tokens, iteration elapsed time: {x.dur / 1e6:.2f} ms, "
                f"GPU KV cache usage: {100 * x.used_blocks / run.blocks:.1f}%")  # fmt: skip
    previous, at = (0, 0), every_s
    while at < run.duration_s + every_s:
        x = step_at(run, min(at, run.duration_s))
        prompt, gen = (x.prompt_tokens - previous[0]) / every_s, (x.generated - previous[1]) / every_s
        previous = (x.prompt_tokens, x.generated)
        seen = sum(r.prompt for r in run.requests if r.scheduled is not None and r.scheduled <= at * 1e9)
        hits = sum(r.cached for r in run.requests if r.scheduled is not None and r.scheduled <= at * 1e9)
        lines.append(
            f"{stamp(40 + at)} [loggers.py:123] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
            f"{gen:.1f} tokens/s, Running: {x.running} reqs, Waiting: {x.waiting} reqs, GPU KV cache usage: "
            f"{100 * x.used_blocks / run.blocks:.1f}%, Prefix cache hit rate: {100 * hits / max(1, seen):.1f}%")  # fmt: skip
        at += every_s
    return "\n".join(lines) + "\n"


def sglang_log(run: Served, every: int = 40) -> str:
    """Batch lines of SGLang's scheduler."""
    s, tokens = run.serve, run.blocks * BLOCK
    lines = [f"[2025-10-01 06:00:20] max_total_num_tokens={tokens}, chunked_prefill_size={s.token_budget}, max_prefill_tokens=16384, "
             f"max_running_requests={s.max_seqs}, context_len=8192, available_gpu_mem=6.40 GB"]  # fmt: skip
    last = (0, 0)
    for i, x in enumerate(run.steps):
        at = 40 + x.start / 1e9
        stamp = f"[2025-10-01 06:{int(at) // 60:02d}:{int(at) % 60:02d}]"
        usage = x.used_blocks / run.blocks
        if x.plan_prefill:
            new = sum(n for n, _ in x.plan_prefill)
            lines.append(f"{stamp} Prefill batch, #new-seq: {len(x.plan_prefill)}, #new-token: {new}, #cached-token: 0, token usage: "
                         f"{usage:.2f}, #running-req: {x.running - len(x.plan_prefill)}, #queue-req: {x.waiting}, "
                         f"#pending-token: 0, cuda graph: False, input throughput (token/s): {new / max(1, x.dur) * 1e9:.2f}")  # fmt: skip
        elif i % every == 0:
            span = max(1, x.start - last[0])
            rate = (x.generated - last[1]) / span * 1e9
            last = (x.start, x.generated)
            lines.append(f"{stamp} Decode batch, #running-req: {x.running}, #token: {x.used_blocks * BLOCK}, token usage: {usage:.2f}, "
                         f"cuda graph: {s.graphs}, gen throughput (token/s): {rate:.2f}, #queue-req: {x.waiting}")  # fmt: skip
    return "\n".join(lines) + "\n"


def bench(run: Served, detailed: bool = True) -> dict[str, object]:
    """The result object of `vllm bench serve`."""
    s, requests = run.serve, run.requests
    ttft = [(r.token_times[0] - r.arrival) / 1e9 for r in requests]
    itls = [[(b - a) / 1e9 for a, b in zip(r.token_times, r.token_times[1:], strict=False)] for r in requests]
    e2e = [(r.token_times[-1] - r.arrival) / 1e9 for r in requests]
    tpot = [sum(x) / len(x) for x in itls if x]
    flat = [v for x in itls for v in x]
    prompt, output = sum(r.prompt for r in requests), sum(r.output for r in requests)
    out: dict[str, object] = {
        "date": "20251001-060000", "endpoint_type": "vllm", "backend": "vllm", "label": None, "model_id": s.arch.name,
        "tokenizer_id": s.arch.name, "num_prompts": len(requests), "request_rate": "inf" if s.load.concurrency else s.load.rate,
        "burstiness": 1.0, "max_concurrency": s.load.concurrency or None, "duration": run.duration_s, "completed": len(requests),
        "failed": 0, "total_input_tokens": prompt, "total_output_tokens": output, "request_throughput": len(requests) / run.duration_s,
        "request_goodput": None, "output_throughput": run.throughput, "total_token_throughput": (prompt + output) / run.duration_s,
    }  # fmt: skip
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", flat), ("e2el", e2e)):
        ordered = sorted(values)
        mean = sum(values) / len(values)
        out |= {
            f"mean_{name}_ms": mean * 1e3, f"median_{name}_ms": ordered[len(ordered) // 2] * 1e3,
            f"std_{name}_ms": (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5 * 1e3,
            f"p99_{name}_ms": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3,
        }  # fmt: skip
    if detailed:
        out |= {"input_lens": [r.prompt for r in requests], "output_lens": [r.output for r in requests], "ttfts": ttft,
                "itls": itls, "start_times": [r.arrival / 1e9 for r in requests], "errors": [""] * len(requests)}  # fmt: skip
    return out


def write_evidence(
    run: Served,
    kinds: frozenset[str],
    folder: Path,
    engine: str = "vllm",
    scrapes: int = 4,
    iterations: bool = False,
) -> dict[str, list[Path]]:
    """Write the chosen kinds (metrics, log, bench, config) and return their paths by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    out: dict[str, list[Path]] = {}

    def put(kind: str, name: str, text: str) -> None:
        (folder / name).write_text(text)
        out.setdefault(kind, []).append(folder / name)

    if "metrics" in kinds:
        times = [run.duration_s * (0.25 + 0.5 * i / max(1, scrapes - 1)) for i in range(scrapes)]
        texts = [scrape(run, at) for at in times]
        form = run.serve.seed % 3  # the three ways such scrapes are kept
        if form == 0:
            (folder / "metrics").mkdir(exist_ok=True)
            for i, text in enumerate(texts):
                (folder / "metrics" / f"scrape_{i:02d}.prom").write_text(text)
            out["metrics"] = [folder / "metrics"]
        elif form == 1:
            put(
                "metrics",
                "metrics.prom",
                "".join(f"# scraped_at {EPOCH + t:.3f}\n{x}" for t, x in zip(times, texts, strict=True)),
            )
        else:
            rows = (json.dumps({"ts": EPOCH + t, "text": x}) for t, x in zip(times, texts, strict=True))
            put("metrics", "metrics.jsonl", "\n".join(rows) + "\n")
    if "log" in kinds:
        put(
            "log", "server.log", vllm_log(run, iterations=iterations) if engine == "vllm" else sglang_log(run)
        )
    if "bench" in kinds:
        put("bench", "bench.json", json.dumps(bench(run)))
    if "config" in kinds:
        put("config", "config.json", json.dumps(run.serve.arch.config(), indent=1))
    return out
