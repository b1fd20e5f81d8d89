"""Settings files of a server: SGLang's /get_server_info, vLLM's /server_info, engine arguments as JSON or YAML, TensorRT-LLM
options, and the collector's `server.json`.

Only the names listed here are taken. Such files also hold hosts, keys, paths and environments, and none of that may travel.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.serving.evidence_types import Evidence
from diagnose.serving.log_common import flag, model_label

MAX_BYTES = 16 << 20
ORIGIN = "settings"

# Groups that only gather settings; below any other group (draft model, MoE, transport) a name means something else.
_GROUPS = {
    "settings", "server_info", "server_args", "engine_args", "vllm_config", "model_config", "cache_config", "scheduler_config",
    "parallel_config", "compilation_config", "load_config", "args", "build_config",
}  # fmt: skip

# Spelling (dashes as underscores) -> setting. A dotted spelling names the group it must be in.
_NAMES: dict[str, str] = {
    "model": "model", "model_path": "model", "model_tag": "model", "model_name": "model",
    "dtype": "dtype", "quantization": "quantization", "quant_algo": "quantization",
    "kv_cache_dtype": "kv_cache_dtype", "cache_config.cache_dtype": "kv_cache_dtype", "kv_cache_config.dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tp", "tp_size": "tp", "tp": "tp", "pipeline_parallel_size": "pp", "pp_size": "pp", "pp": "pp",
    "data_parallel_size": "dp", "dp_size": "dp", "enable_expert_parallel": "ep", "ep_size": "ep",
    "moe_expert_parallel_size": "ep", "max_model_len": "max_model_len", "context_length": "max_model_len",
    "max_seq_len": "max_model_len", "max_num_seqs": "max_num_seqs", "max_running_requests": "max_num_seqs",
    "max_batch_size": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill_size": "max_num_batched_tokens", "max_num_tokens": "max_num_batched_tokens",
    "max_prefill_tokens": "max_prefill_tokens", "gpu_memory_utilization": "gpu_memory_utilization",
    "mem_fraction_static": "mem_fraction_static", "block_size": "block_size", "page_size": "block_size",
    "kv_cache_config.tokens_per_block": "block_size", "num_gpu_blocks_override": "num_gpu_blocks_override",
    "max_total_num_tokens": "kv_pool_tokens", "memory_usage.token_capacity": "kv_pool_tokens",
    "enforce_eager": "enforce_eager", "disable_cuda_graph": "enforce_eager",
    "enable_prefix_caching": "prefix_caching", "kv_cache_config.enable_block_reuse": "prefix_caching",
    "no_enable_prefix_caching": "!prefix_caching", "disable_radix_cache": "!prefix_caching",
    "enable_chunked_prefill": "chunked_prefill", "chunked_prefill_enabled": "chunked_prefill",
    "no_enable_chunked_prefill": "!chunked_prefill", "enable_mixed_chunk": "mixed_chunk",
    "async_scheduling": "async_scheduling", "disable_overlap_schedule": "!async_scheduling",
    "disable_overlap_scheduler": "!async_scheduling", "cpu_offload_gb": "cpu_offload_gb",
    "schedule_conservativeness": "schedule_conservativeness", "num_scheduler_steps": "scheduler_steps",
    "speculative_algorithm": "speculative_algorithm", "attention_backend": "attention_backend",
    "attn_backend": "attention_backend", "cudagraph_mode": "graph_mode", "cuda_graph_max_bs": "graph_max_batch",
    "cuda_graph_bs": "graph_max_batch", "cudagraph_capture_sizes": "graph_max_batch", "cuda_graph_sizes": "graph_max_batch",
    "max_cudagraph_capture_size": "graph_max_batch", "max_capture_size": "graph_max_batch",
    "cuda_graph_config.max_batch_size": "graph_max_batch", "cuda_graph_config.batch_sizes": "graph_max_batch",
    "engine": "engine", "version": "engine_version", "memory_usage.weight": "weight_bytes",
    "memory_usage.kvcache": "kv_pool_bytes", "memory_usage.graph": "graph_bytes",
}  # fmt: skip
_BOOLS = {"enforce_eager", "prefix_caching", "chunked_prefill", "async_scheduling", "mixed_chunk"}
_COUNTS = {
    "tp", "pp", "dp", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_prefill_tokens", "block_size",
    "num_gpu_blocks_override", "kv_pool_tokens", "graph_max_batch", "scheduler_steps",
}  # fmt: skip
_SIZES = {"weight_bytes", "kv_pool_bytes", "graph_bytes"}
_SHARES = {"gpu_memory_utilization", "mem_fraction_static", "schedule_conservativeness", "cpu_offload_gb"}
# The word alone says nothing of the engine, and a single one can be in any file.
_COMMON = {
    "model",
    "model_path",
    "model_name",
    "model_tag",
    "dtype",
    "version",
    "engine",
    "tp",
    "pp",
    "block_size",
}
_SGLANG = {
    "mem_fraction_static",
    "max_running_requests",
    "disable_radix_cache",
    "max_total_num_tokens",
    "cuda_graph_max_bs",
}
_TRTLLM = {"kv_cache_config", "cuda_graph_config", "max_batch_size", "extra_llm_api_options"}
_VLLM = {"vllm_config", "max_num_seqs", "gpu_memory_utilization", "enforce_eager", "max_num_batched_tokens"}
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm"}
# indentation, name, and a value in quotes or up to a comment
_YAML_LINE = re.compile(r"""( *)([\w.-]+)\s*:(?:\s+((?P<quote>['"]).*(?P=quote)|[^#\s].*?))?\s*(?:\s#.*)?$""")
_PAIR = re.compile(r"""\b(\w+)['"]?\s*[=:]\s*('[^']*'|"[^"]*"|\[[\d, ]*\]|[\w.+-]+)""")
_WORD = re.compile(r"[\w.+/-]{1,80}")


def looks_like_settings(data: Any) -> bool:
    """Whether a JSON object is a server's settings: the collector's, or at least two names only engines have."""
    if not isinstance(data, dict):
        return False
    if str(data.get("schema", "")).startswith("diagnose-server/"):
        return True
    names = {path.rsplit(".", 1)[-1] for path, _ in _known(data)} - _COMMON
    return len(names) >= 2


def looks_like_settings_text(head: str) -> bool:
    """Whether a text is YAML of engine arguments: nothing but settings lines, two of them known."""
    rows = [line for line in head.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))]
    shaped = sum(1 for line in rows if re.match(r"\s*(?:- |[\w.-]+\s*:(?:\s|$))", line))
    return bool(rows) and shaped == len(rows) and looks_like_settings(read_yaml(head))


def read_settings(path: Path) -> Evidence:
    """Settings of one file. InputError when it is too large, cannot be read or holds none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name}: larger than 16 MiB; give the server's settings file")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"{path.name}: cannot be read ({error.strerror}); give the server's settings file"
        ) from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = read_yaml(text)
    out = from_mapping(data) if isinstance(data, dict) else Evidence()
    if not out.settings:
        raise InputError(
            f"{path.name}: no setting of vLLM, SGLang or TensorRT-LLM in it; give the server's settings file"
        )
    return out


def from_mapping(data: dict[str, Any], origin: str = ORIGIN) -> Evidence:
    """The known settings of a nested mapping. What the server resolved (SGLang's internal state) fills what it was not given."""
    out = Evidence()
    for path, value in _known(data):
        key = _NAMES[_spelling(path)]
        invert, key = key.startswith("!"), key.lstrip("!")
        if key == "max_num_batched_tokens" and str(value) == "-1":
            key, value = "chunked_prefill", "false"  # SGLang's spelling of prefilling prompts whole
        text = _text(key, value, invert)
        if text is not None and (key == "graph_max_batch" or out.setting(key) is None):
            largest = key == "graph_max_batch" and out.setting(key)
            out.set(key, max(int(text), int(largest)) if largest else text, origin)
    engine = _engine(data, out)
    if engine and out.settings:
        out.set("engine", engine, origin)
        out.engines.append(engine)
    if (
        engine == "tensorrt-llm"
        and (share := _at(data, "kv_cache_config", "free_gpu_memory_fraction")) is not None
    ):
        out.note(
            "trtllm-kv-share",
            f"the KV pool may take {share} of the memory left after loading (free_gpu_memory_fraction)",
        )
    return out


def read_yaml(text: str) -> dict[str, Any]:
    """The mapping of a YAML file of settings: nested `key: value` by indentation, scalars and flow lists, values that are JSON.

    Anchors, block texts and lists of mappings are left out: no engine's settings need them.
    """
    root: dict[str, Any] = {}
    open_: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for line in text.splitlines():
        m = _YAML_LINE.match(line)
        if m is None:
            continue
        depth = len(m[1])
        while open_[-1][0] >= depth:
            open_.pop()
        where = open_[-1][1]
        if m[3] is None or not m[3].strip():
            child: dict[str, Any] = {}
            where[m[2]] = child
            open_.append((depth, child))
        else:
            where[m[2]] = _scalar(m[3].strip())
    return root


def _scalar(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"true": True, "false": False, "yes": True, "no": False}.get(text.lower(), text)


def _known(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every known setting, outer ones first."""
    later: list[tuple[str, dict[str, Any]]] = [("", data)]
    for prefix, values in later:
        for name, value in values.items():
            key = str(name).replace("-", "_").lower()
            path = f"{prefix}.{key}" if prefix else key
            # An option that takes JSON: --compilation-config '{"cudagraph_mode": ...}'
            if isinstance(value, str) and value.startswith("{") and key.endswith("_config"):
                value = _scalar(value)
            elif isinstance(value, str) and key == "vllm_config":
                value = _pairs(value)
            if _spelling(path):
                yield path, value
            if isinstance(value, dict) and len(later) < 200:
                later.append((path, value))
            elif (
                key in {"internal_states", "vllm_config"}
                and isinstance(value, list)
                and value
                and isinstance(value[0], dict)
            ):
                later.append(("server_info", value[0]))


def _pairs(text: str) -> dict[str, Any]:
    """`name=value` and `"name": value` of a config printed as text, as vLLM's /server_info answers unless asked for JSON; of a
    name that comes twice (a draft model's) the first."""
    found: dict[str, Any] = {}
    for name, value in _PAIR.findall(text):
        found.setdefault(name, None if value == "None" else _scalar(value))
    return found


def _spelling(path: str) -> str:
    """The name under which a path is known; '' for none."""
    parts = path.split(".")
    dotted = ".".join(parts[-2:])
    if len(parts) > 1 and dotted in _NAMES:
        return dotted
    # The outermost name is a group of unknown meaning unless it is one of the known ones.
    return parts[-1] if parts[-1] in _NAMES and all(p in _GROUPS for p in parts[:-1]) else ""


def _text(key: str, value: Any, invert: bool) -> str | None:
    """A value as the settings table holds it; None where it says nothing or is no value of that setting."""
    if isinstance(value, list):
        numbers = [v for v in value if isinstance(v, int) and not isinstance(v, bool)]
        value = max(numbers) if key == "graph_max_batch" and numbers else None
    if value is None or isinstance(value, (dict, list)):
        return None
    text = str(value).strip()
    if text.lower() in {"none", "null", "", "auto"} and key not in {"kv_cache_dtype", "graph_mode"}:
        return None
    if key in _BOOLS:
        state = flag(text)
        if state not in {"true", "false"}:
            return None
        return str((state == "true") != invert).lower()
    if key == "model":
        return model_label(text)
    if key == "engine":
        return _ENGINES.get(text.lower())
    try:
        if key in _SIZES:
            return f"{float(text) * 2**30:.0f}" if float(text) > 0 else None
        if key in _COUNTS:
            return str(int(float(text))) if float(text) > 0 else None
        if key in _SHARES:
            return f"{float(text):g}"
    except (ValueError, OverflowError):
        return None
    if key == "ep":
        return flag(text)
    text = text.removeprefix("torch.").removeprefix("AttentionBackendEnum.")
    return text if _WORD.fullmatch(text) and not text.startswith(("/", "~", ".")) else None


def _engine(data: dict[str, Any], out: Evidence) -> str | None:
    stated = out.setting("engine")
    if stated:
        return stated
    names = {str(k).replace("-", "_") for k in data} | {
        str(k) for v in data.values() if isinstance(v, dict) for k in v
    }
    for engine, marks in (("tensorrt-llm", _TRTLLM), ("sglang", _SGLANG), ("vllm", _VLLM)):
        if names & marks:
            return engine
    return None


def _at(data: dict[str, Any], *keys: str) -> Any:
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
