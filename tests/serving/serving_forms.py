"""Evidence in the engines' own formats, built from a case's published numbers."""

import json
from itertools import accumulate


def vllm_log(
    levels=(),
    *,
    pool=None,
    max_len=None,
    seqs=None,
    budget=None,
    gib=None,
    extra=(),
    iterations=(),
    preempt_version=33,
):
    """A vLLM V1 server log. `levels`: (running, waiting, KV usage in %, preemptions) a periodic line, 10 s
    apart."""
    lines = []
    if seqs is not None:
        lines.append(
            f"(APIServer pid=1) INFO 10-06 15:56:26 [utils.py:233] non-default args: {{'max_num_seqs': {seqs}}}"
        )
    if budget is not None:
        lines.append(
            f"INFO 10-06 15:56:27 [x.py:205] Chunked prefill is enabled with max_num_batched_tokens={budget}."
        )
    if gib is not None:
        lines.append(f"INFO 10-06 15:56:53 [gpu_worker.py:359] Available KV cache memory: {gib} GiB")
    if pool is not None:
        lines.append(f"INFO 10-06 15:56:53 [kv_cache_utils.py:1286] GPU KV cache size: {pool:,} tokens")
    if max_len is not None and pool is not None:
        text = f"Maximum concurrency for {max_len:,} tokens per request: {pool / max_len:.2f}x"
        lines.append(f"INFO 10-06 15:56:54 [kv_cache_utils.py:1291] {text}")
    lines += [f"INFO 10-06 15:56:55 [x.py:1] {line}" for line in extra]
    for i, (running, waiting, usage, preempted) in enumerate(levels):
        seconds = 16 * 3600 + 10 * i
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        text = f"Running: {running} reqs, Waiting: {waiting} reqs, "
        if preempted:
            text += f"Preemptions: {preempted}, "
        lines.append(
            f"(APIServer pid=1) INFO 10-06 {clock} [loggers.py:310] Engine 000: Avg prompt throughput: 100.0 tokens/s, "
            f"Avg generation throughput: 2000.0 tokens/s, {text}GPU KV cache usage: {usage}%, Prefix cache hit rate: 0.0%"
        )
    for i, (ctx, ctx_tokens, gen, ms) in enumerate(iterations):
        lines.append(
            f"(EngineCore pid=9) INFO 10-06 16:00:00 [core.py:359] Engine 000: Iteration({i}): {ctx} context requests, "
            f"{ctx_tokens} context tokens, {gen} generation requests, {gen} generation tokens, "
            f"iteration elapsed time: {ms:.2f} ms, GPU KV cache usage: 50.0%"
        )
    return "\n".join(lines) + "\n"


def sglang_log(levels, *, pool, running_cap=None):
    """SGLang 0.5 decode lines. `levels`: (running, queue, token usage)."""
    lines = [
        f"[2026-01-01 10:00:00] max_total_num_tokens={pool}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"max_running_requests={running_cap or 2048}, context_len=32768, available_gpu_mem=6.00 GB"
    ]
    for i, (running, queue, usage) in enumerate(levels):
        lines.append(
            f"[2026-01-01 10:{i // 60:02}:{i % 60:02} TP0] Decode batch, #running-req: {running}, "
            f"#token: {int(usage * pool)}, token usage: {usage:.2f}, cuda graph: True, "
            f"gen throughput (token/s): 4594.01, #queue-req: {queue}"
        )
    return "\n".join(lines) + "\n"


def bench_json(**kw):
    """A result of vllm bench serve: totals and statistics as keywords."""
    base = {
        "backend": "vllm",
        "request_rate": "inf",
        "burstiness": 1.0,
        "request_throughput": 1.0,
        "output_throughput": 1.0,
    }
    return json.dumps({**base, **kw})


def hist(name, bounds, observations):
    """A Prometheus histogram of `observations` (seconds)."""
    counts = list(
        accumulate(
            sum(1 for o in observations if lo < o <= hi)
            for lo, hi in zip([-1, *bounds], bounds, strict=False)
        )
    )
    rows = [f'{name}_bucket{{le="{b}"}} {n}' for b, n in zip(bounds, counts, strict=True)]
    rows += [
        f'{name}_bucket{{le="+Inf"}} {len(observations)}',
        f"{name}_count {len(observations)}",
        f"{name}_sum {sum(observations)}",
    ]
    return f"# TYPE {name} histogram\n" + "\n".join(rows) + "\n"
