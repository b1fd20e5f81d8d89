"""vLLM server logs, 0.4 to 0.33: start-up facts, the periodic line, preemptions, iteration lines,
speculation.

Only fields named here are taken: a log also holds command lines, hosts and keys, and none of that may
travel.
"""

import re

from diagnose.serving.log_common import LogState, flag, model_label, number, size_bytes

_NUM = r"([\d,]+(?:\.\d+)?)"
_ENGINE = re.compile(r"\(EngineCore(?:_DP|_)?(\d*)\b[^)]*\)|\bEngine (\d{3}):")
_INIT = re.compile(r"Initializing (?:a V1|an|a V0) LLM engine \(v([^)]+)\) with config: (.*)")
_ARGS = re.compile(r"non-default args: (\{.*)")
_PERIODIC = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s"
    r"(?:, (?:Running|Active): (\d+) reqs)?(.*)"
)
_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms(?:, GPU KV cache usage: ([\d.]+)%)?"
)
_PREEMPT = re.compile(
    r"is preempted by PreemptionMode\.\w+.*?(?:total_(?:num_)?cumulative_preemption(?:_cnt)?=(\d+))?\s*$"
)
_SPEC = re.compile(r"Mean acceptance length: ([\d.]+)(?:.*?Avg Draft acceptance rate: ([\d.]+)%)?")
_SPEC_V0 = re.compile(r"Speculative metrics: Draft acceptance rate: ([\d.]+), System efficiency: ([\d.]+)")

# (key, spelling in the init line or in the non-default args)
_SETTINGS = (
    ("dtype", "dtype"), ("max_model_len", "max_seq_len"), ("max_model_len", "max_model_len"),
    ("tp", "tensor_parallel_size"), ("pp", "pipeline_parallel_size"), ("dp", "data_parallel_size"),
    ("ep", "enable_expert_parallel"), ("quantization", "quantization"), ("enforce_eager", "enforce_eager"),
    ("kv_cache_dtype", "kv_cache_dtype"), ("prefix_caching", "enable_prefix_caching"),
    ("chunked_prefill", "chunked_prefill_enabled"), ("chunked_prefill", "enable_chunked_prefill"),
    ("max_num_seqs", "max_num_seqs"), ("max_num_batched_tokens", "max_num_batched_tokens"),
    ("gpu_memory_utilization", "gpu_memory_utilization"), ("block_size", "block_size"),
    ("scheduler_steps", "num_scheduler_steps"), ("async_scheduling", "async_scheduling"),
    ("num_gpu_blocks_override", "num_gpu_blocks_override"), ("cpu_offload_gb", "cpu_offload_gb"),
)  # fmt: skip
_BOOLS = {"enforce_eager", "prefix_caching", "chunked_prefill", "async_scheduling", "ep"}

_FACTS = (
    ("kv_pool_bytes", re.compile(rf"Available KV cache memory: {_NUM} ?(GiB|GB|MiB)")),
    ("weight_bytes", re.compile(rf"(?:Model loading took|Loading model weights took) {_NUM} ?(GiB|GB)")),
    ("graph_bytes", re.compile(rf"Graph capturing finished in [\d.]+ secs?, took {_NUM} ?(GiB|GB)")),
    ("device_memory_bytes", re.compile(rf"total_gpu_memory \({_NUM} ?(GiB)\)")),
    ("weight_bytes", re.compile(rf"model weights take {_NUM} ?(GiB)")),
    ("non_torch_bytes", re.compile(rf"non_torch_memory takes {_NUM} ?(GiB)")),
    ("activation_bytes", re.compile(rf"PyTorch activation peak memory takes {_NUM} ?(GiB)")),
    ("kv_pool_bytes", re.compile(rf"memory reserved for KV Cache is {_NUM} ?(GiB)")),
)
_POOL = re.compile(r"(?:GPU )?KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_BLOCKS = re.compile(r"# (?:GPU|cuda) blocks: (\d+)")
_BUDGET = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([\w ]+?) (?:attention )?backend\b")
_UTIL = re.compile(r"gpu_memory_utilization \(([\d.]+)\)")
MARKS = (
    "Avg prompt throughput", "Iteration(", "LLM engine (v", "non-default args", "KV cache", "KV Cache",
    "preempted",
    "Maximum concurrency", "blocks:", "total_gpu_memory", "took", "take", "backend", "max_num_batched_tokens",
    "peculative metrics",
    "SpecDecoding metrics", "Asynchronous scheduling", "eager", "Cudagraph", "CUDA graph", "capture sizes",
)  # fmt: skip


def _engine(line: str) -> str:
    match = _ENGINE.search(line)
    return str(int(match[1] or match[2] or 0)) if match else ""


def parse_line(state: LogState, line: str) -> bool:
    """Take what a vLLM line says into `state`; False when it says nothing known."""
    if not any(mark in line for mark in MARKS):
        return False
    if (m := _ITERATION.search(line)) is not None:
        _iteration(state, line, m)
    elif (m := _PERIODIC.search(line)) is not None:
        _periodic(state, line, m)
    elif (m := _INIT.search(line)) is not None:
        _init(state, line, m)
    elif (m := _ARGS.search(line)) is not None:
        state.restart("args")
        _settings(state, m[1])
    elif (m := _PREEMPT.search(line)) is not None:
        _preemption(state, line, m)
    elif (m := _SPEC.search(line)) is not None:
        ts = state.stamp(line)
        state.out.add("spec_accept_len", float(m[1]), "log", ts)
        if m[2]:
            state.out.add("spec_accept_rate", float(m[2]) / 100, "log", ts)
    elif (m := _SPEC_V0.search(line)) is not None:
        state.out.add("spec_accept_rate", float(m[1]), "log", state.stamp(line))
    else:
        return _startup(state, line)
    return True


def _init(state: LogState, line: str, m: re.Match[str]) -> None:
    state.restart(_engine(line))
    out = state.out
    out.set("engine", "vllm", "log")
    out.set("engine_version", m[1], "log")
    body = m[2]
    if (model := re.search(r"model='?([^',]+)", body)) is not None:
        out.set("model", model_label(model[1]), "log")
    _settings(state, body)
    spec = re.search(r"speculative_config=(None|\w+\(.*?\))", body)
    if spec:
        out.set("speculative", "false" if spec[1] == "None" else "true", "log")
    top = re.search(r"max_(?:cudagraph_)?capture_size[\"']?: ?(\d+)", body)
    sizes = re.search(r"cudagraph_capture_sizes[\"']?: ?\[([\d, ]+)\]", body)
    if sizes:
        out.set("graph_max_batch", max(int(x) for x in sizes[1].split(",")), "log")
    elif top:
        out.set("graph_max_batch", top[1], "log")
    if (mode := re.search(r"cudagraph_mode[\"']?: ?(?:<CUDAGraphMode\.)?[\"']?([A-Z_]+)", body)) is not None:
        out.set("graph_mode", mode[1], "log")


def _settings(state: LogState, body: str) -> None:
    for key, name in _SETTINGS:
        m = re.search(rf"['\"]?\b{name}\b['\"]?\s*[=:]\s*['\"]?(?:torch\.)?([\w.\-]+)", body)
        if m:
            value = flag(m[1]) if key in _BOOLS or m[1] == "None" else m[1]
            state.out.set(key, value, "log")
    m = re.search(r"'model(?:_tag)?': '([^']+)'", body)
    if m:
        state.out.set("model", model_label(m[1]), "log")


def _periodic(state: LogState, line: str, m: re.Match[str]) -> None:
    ts, engine, out = state.stamp(line), _engine(line), state.out
    labels = {"engine": engine} if engine else {}
    if "vllm" not in out.engines:
        out.engines.append("vllm")
    out.add("prompt_tok_s", float(m[1]), "log", ts, **labels)
    out.add("generation_tok_s", float(m[2]), "log", ts, **labels)
    if m[3]:
        out.add("running", float(m[3]), "log", ts, **labels)
    rest = m[4]
    for metric, pattern, scale in (
        ("swapped", r"Swapped: (\d+)", 1), ("waiting", r"(?:Waiting|Pending): (\d+)", 1),
        ("waiting_deferred", r"Deferred: (\d+)", 1), ("preemptions", r"Preemptions: (\d+)", 1),
        ("kv_usage", r"GPU KV cache usage: ([\d.]+)%", 100), ("prefix_hit_rate",
        r"Prefix cache hit rate: (?:GPU: )?([\d.]+)%", 100),
    ):  # fmt: skip
        if (found := re.search(pattern, rest)) is not None:
            out.add(metric, float(found[1]) / scale, "log", ts, **labels)


def _iteration(state: LogState, line: str, m: re.Match[str]) -> None:
    if "(dummy)" in line:
        return
    ts, engine = state.stamp(line), _engine(line)
    labels = {"iteration": m[1], **({"engine": engine} if engine else {})}
    out = state.out
    if "vllm" not in out.engines:
        out.engines.append("vllm")
    for metric, text in zip(
        (
            "step_context_requests",
            "step_context_tokens",
            "step_generation_requests",
            "step_generation_tokens",
            "step_ms",
        ),
        m.groups()[1:6],
        strict=True,
    ):
        out.add(metric, float(text), "log", ts, **labels)
    if m[7]:
        out.add("kv_usage", float(m[7]) / 100, "log", ts, **labels)


def _preemption(state: LogState, line: str, m: re.Match[str]) -> None:
    """The warning is printed for the first and then every 50th preemption; the cumulative count is the
    truth."""
    engine = _engine(line)
    before = state.preempted.get(engine, 0.0)
    total = float(m[1]) if m[1] else before + 1
    state.preempted[engine] = max(total, before)
    state.out.add("preemptions", max(total - before, 0.0), "log", state.stamp(line))


def _startup(state: LogState, line: str) -> bool:
    out, hit = state.out, False
    for key, pattern in _FACTS:
        if (m := pattern.search(line)) is not None:
            out.set(key, f"{size_bytes(m[1].replace(',', ''), m[2]):.0f}", "log")
            hit = True
    if (m := _POOL.search(line)) is not None:
        state.pools[_engine(line)] = number(m[1])
        hit = True
    if (m := _CONCURRENCY.search(line)) is not None:
        out.set("max_model_len", f"{number(m[1]):.0f}", "log")
        out.set("max_concurrency", m[2], "log")
        hit = True
    if (m := _BLOCKS.search(line)) is not None:
        out.set("num_gpu_blocks", m[1], "log")
        hit = True
    if (m := _BUDGET.search(line)) is not None:
        out.set("max_num_batched_tokens", m[1], "log")
        out.set("chunked_prefill", "true", "log")
        hit = True
    if (m := _UTIL.search(line)) is not None:
        out.set("gpu_memory_utilization", m[1], "log")
        hit = True
    if (m := _BACKEND.search(line)) is not None and "quant" not in line.lower():
        out.set("attention_backend", m[1].strip(), "log")
        hit = True
    if "Asynchronous scheduling is enabled" in line:
        out.set("async_scheduling", "true", "log")
        hit = True
    if re.search(
        r"Enforce eager set|Cudagraph is disabled under eager mode|CUDA graphs? (?:is|are) disabled",
        line,
        re.I,
    ):
        out.set("enforce_eager", "true", "log")
        hit = True
    if hit and "vllm" not in out.engines:
        out.engines.append("vllm")
        out.set("engine", "vllm", "log")
    return hit
