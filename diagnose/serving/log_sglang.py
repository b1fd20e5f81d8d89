"""SGLang server logs, 0.4 and 0.5: start-up facts, prefill and decode batch lines, retractions."""

import re

from diagnose.serving.log_common import LogState, flag, model_label, size_bytes

_FIELD = re.compile(r"([#A-Za-z][\w #.()/-]*?): ?(-?[\d.]+|True|False)(%?)")
_BATCH = re.compile(r"\b(Prefill|Decode) batch(?: \[\d+\])?[,.]? ?(#.*)")
_RETRACT = re.compile(r"Retract requests\.?(?:.*?#retracted_reqs: (\d+))?")
_START = re.compile(r"max_total_num_tokens=(\d+)")

_SETTINGS = (
    ("tp", "tp_size"), ("pp", "pp_size"), ("dp", "dp_size"), ("ep", "ep_size"), ("dtype", "dtype"),
    ("quantization", "quantization"), ("kv_cache_dtype", "kv_cache_dtype"), ("max_model_len",
    "context_length"),
    ("mem_fraction_static", "mem_fraction_static"), ("max_num_seqs", "max_running_requests"),
    ("schedule_conservativeness", "schedule_conservativeness"), ("attention_backend", "attention_backend"),
    ("graph_max_batch", "cuda_graph_max_bs"),
    ("max_num_batched_tokens", "chunked_prefill_size"), ("speculative_algorithm", "speculative_algorithm"),
    ("mixed_chunk", "enable_mixed_chunk"),
)  # fmt: skip
MARKS = (
    "Decode batch",
    "Prefill batch",
    "etract",
    "max_total_num_tokens",
    "server_args",
    "Load weight end",
    "KV Cache is allocated",
    "cuda graph",
    "Memory pool end",
    "attention backend",
)


def parse_line(state: LogState, line: str) -> bool:
    """Take what an SGLang line says into `state`; False when it says nothing known."""
    if not any(mark in line for mark in MARKS):
        return False
    out = state.out
    if (m := _BATCH.search(line)) is not None:
        _batch(state, line, m)
    elif (m := _RETRACT.search(line)) is not None:
        out.add("preemptions", float(m[1] or 1), "log", state.stamp(line))
    elif "server_args=" in line:
        state.restart(_rank(line))
        out = state.out
        out.set("engine", "sglang", "log")
        _server_args(state, line[line.index("server_args=") :])
    elif (m := _START.search(line)) is not None:
        _capacity(state, line)
    elif (m := re.search(r"Load weight end\..*?mem usage=([\d.]+) ?(GB)", line)) is not None:
        out.set("weight_bytes", f"{size_bytes(m[1], m[2]):.0f}", "log")
        if (kind := re.search(r"dtype=torch\.(\w+)", line)) is not None:
            out.set("dtype", kind[1], "log")
    elif "KV Cache is allocated" in line:
        return _kv_allocated(state, line)
    elif (m := re.search(r"Capture cuda graph bs \[([\d, ]+)\]", line)) is not None:
        out.set("graph_max_batch", max(int(x) for x in m[1].split(",")), "log")
    elif (m := re.search(r"Capture cuda graph end\..*?mem usage=([\d.]+) ?(GB)", line)) is not None:
        out.set("graph_bytes", f"{size_bytes(m[1], m[2]):.0f}", "log")
    else:
        return False
    if "sglang" not in out.engines:
        out.engines.append("sglang")
    out.set("engine", "sglang", "log")
    return True


def _rank(line: str) -> str:
    m = re.search(r"\bDP(\d+)\b", line[:80])
    return f"DP{m[1]}" if m else ""


def _server_args(state: LogState, body: str) -> None:
    out = state.out
    for key, name in _SETTINGS:
        m = re.search(rf"\b{name}=['\"]?([\w.\-]+)", body)
        if m and m[1] not in {"None", "auto"} | ({"-1"} if key == "max_num_batched_tokens" else set()):
            out.set(key, flag(m[1]), "log")
    if (m := re.search(r"model_path='([^']+)'", body)) is not None:
        out.set("model", model_label(m[1]), "log")
    for name, target, invert in (
        ("disable_cuda_graph", "enforce_eager", False),
        ("disable_radix_cache", "prefix_caching", True),
        ("disable_overlap_schedule", "async_scheduling", True),
    ):
        if (m := re.search(rf"\b{name}=(True|False)", body)) is not None:
            out.set(target, str((m[1] == "True") != invert).lower(), "log")


def _capacity(state: LogState, line: str) -> None:
    out = state.out
    for key, name in (
        ("max_num_batched_tokens", "chunked_prefill_size"), ("max_num_seqs", "max_running_requests"),
        ("max_model_len", "context_len"), ("max_prefill_tokens", "max_prefill_tokens"),
    ):  # fmt: skip
        if (m := re.search(rf"\b{name}=(\d+)", line)) is not None:
            out.set(key, m[1], "log")
    state.pools[_rank(line)] = float(_START.search(line)[1])  # type: ignore[index]
    if (m := re.search(r"available_gpu_mem=([\d.]+) ?(GB)", line)) is not None:
        out.set("free_memory_bytes", f"{size_bytes(m[1], m[2]):.0f}", "log")


def _kv_allocated(state: LogState, line: str) -> bool:
    m = re.search(r"#tokens: (\d+)", line)
    if m is None:
        return False
    out = state.out
    sizes = re.findall(r"(?:K|V|KV) size: ([\d.]+) (GB)", line)
    # a second pool of a draft model follows the main one: keep the first
    if sizes and out.setting("kv_pool_bytes") is None:
        out.set("kv_pool_bytes", f"{sum(size_bytes(n, u) for n, u in sizes):.0f}", "log")
        state.pools.setdefault(_rank(line), float(m[1]))
    if (kind := re.search(r"dtype: torch\.(\w+)", line)) is not None:
        out.set("kv_cache_dtype", kind[1], "log")
    if "sglang" not in out.engines:
        out.engines.append("sglang")
    out.set("engine", "sglang", "log")
    return True


def _batch(state: LogState, line: str, m: re.Match[str]) -> None:
    ts, out, decode = state.stamp(line), state.out, m[1] == "Decode"
    rank = _rank(line)
    if re.search(r"\bTP(?!0\b)\d+\b", line[:80]):
        return  # other tensor-parallel ranks repeat rank 0
    labels = {"engine": rank} if rank else {}
    fields = {name.strip(" ,#").lower(): value for name, value, _ in _FIELD.findall(m[2])}

    def get(*names: str) -> float | None:
        for name in names:
            value = fields.get(name)
            if value not in {None, "True", "False"}:
                return float(value or 0)
        return None

    usage = get("token usage", "full token usage")
    out.add("kv_usage", usage, "log", ts, **labels)
    out.add("swa_usage", get("swa token usage"), "log", ts, **labels)
    out.add("waiting", get("queue-req"), "log", ts, **labels)
    if decode:
        # a prefill line's #running-req leaves the new requests out; the decode line has the level
        out.add("running", get("running-req"), "log", ts, **labels)
        out.add("used_tokens", get("token", "full token"), "log", ts, **labels)
        out.add("generation_tok_s", get("gen throughput (token/s)"), "log", ts, **labels)
        out.add("spec_accept_len", get("accept len"), "log", ts, **labels)
        out.add("spec_accept_rate", get("accept rate"), "log", ts, **labels)
    else:
        out.add("prefill_new_tokens", get("new-token"), "log", ts, **labels)
        out.add("prefill_cached_tokens", get("cached-token"), "log", ts, **labels)
        out.add("prompt_tok_s", get("input throughput (token/s)"), "log", ts, **labels)
    graph = fields.get("cuda graph")
    if decode and graph in {"True", "False"}:
        out.add("graph_replay", 1.0 if graph == "True" else 0.0, "log", ts, **labels)
