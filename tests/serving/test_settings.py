"""Settings files of the engines, in the shapes their servers answer and their users write."""

import json

import pytest

from diagnose.errors import InputError
from diagnose.serving.config_findings import config_findings
from diagnose.serving.evidence import detect_evidence, read_evidence
from diagnose.serving.settings_parser import read_settings, read_yaml
from diagnose.serving.signals import derive_signals

SGLANG = {
    "model_path": "/data/alice/Qwen3-8B", "tokenizer_path": "/data/alice/t", "host": "10.1.2.3", "port": 30000,
    "api_key": "sk-secret", "admin_api_key": None, "tp_size": 2, "pp_size": 1, "dp_size": 1, "dtype": "auto",
    "kv_cache_dtype": "auto", "quantization": None, "mem_fraction_static": 0.836, "max_running_requests": 128,
    "chunked_prefill_size": 8192, "max_prefill_tokens": 16384, "schedule_conservativeness": 1.0, "page_size": 1,
    "attention_backend": None, "disable_radix_cache": True, "disable_cuda_graph": False, "cuda_graph_max_bs": 16,
    "cuda_graph_bs": [1, 2, 4, 8, 16], "disable_overlap_schedule": False, "cpu_offload_gb": 0, "status": "ready",
    "speculative_algorithm": None, "speculative_draft_model_path": "/x", "max_total_num_tokens": 464848, "version": "0.5.9",
    "internal_states": [{
        "attention_backend": "torch_native", "host": "10.1.2.3", "context_length": 32768,
        "memory_usage": {"weight": 14.98, "kvcache": 24.83, "token_capacity": 464848, "graph": 0.06},
    }],
}  # fmt: skip

VLLM = {
    "vllm_config": {
        "model_config": {"model": "Qwen/Qwen3-8B", "dtype": "torch.bfloat16", "max_model_len": 8192, "enforce_eager": True},
        "cache_config": {
            "block_size": 16, "gpu_memory_utilization": 0.7, "cache_dtype": "fp8", "enable_prefix_caching": False,
            "num_gpu_blocks": 29053,
        },
        "scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "enable_chunked_prefill": False},
        "parallel_config": {"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "data_parallel_master_ip": "10.1.2.3"},
        "compilation_config": {"cudagraph_mode": "NONE", "cudagraph_capture_sizes": [1, 2, 4, 8], "cache_dir": "/home/alice"},
        "speculative_config": {"model": "/home/alice/draft", "max_model_len": 5},
    },
    "vllm_env": {"VLLM_HOST_IP": "10.1.2.3"}, "system_env": {"hostname": "node17"},
}  # fmt: skip

VLLM_YAML = """\
# served by alice
model: /home/alice/models/Qwen3-8B
host: 10.1.2.3
api-key: "sk-secret"
max-model-len: 10240
max-num-seqs: 32   # small
no-enable-prefix-caching: true
gpu-memory-utilization: 0.70
kv-cache-dtype: fp8
compilation-config: '{"cudagraph_mode":"PIECEWISE","cudagraph_capture_sizes":[1,8,16]}'
"""

TRTLLM_YAML = """\
cuda_graph_config:
  enable_padding: true
  batch_sizes: [1, 2, 4, 64]
kv_cache_config:
  dtype: fp8
  enable_block_reuse: false
  free_gpu_memory_fraction: 0.4
moe_config:
  backend: TRITON
  max_num_tokens: 5
max_batch_size: 128
max_num_tokens: 8192
disable_overlap_scheduler: true
"""


def write(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (SGLANG, "server_info.json", {
            "engine": "sglang", "engine_version": "0.5.9", "model": "Qwen3-8B", "tp": "2", "max_num_seqs": "128",
            "max_num_batched_tokens": "8192", "prefix_caching": "false", "enforce_eager": "false", "graph_max_batch": "16",
            "attention_backend": "torch_native", "mem_fraction_static": "0.836", "kv_pool_tokens": "464848",
            "async_scheduling": "true", "kv_cache_dtype": "auto", "block_size": "1", "max_model_len": "32768",
            # 24.83 GB in powers of two, as SGLang prints them
            "kv_pool_bytes": f"{24.83 * 2**30:.0f}",
        }),
        (VLLM, "info.json", {
            "engine": "vllm", "model": "Qwen/Qwen3-8B", "dtype": "bfloat16", "max_model_len": "8192", "enforce_eager": "true",
            "kv_cache_dtype": "fp8", "gpu_memory_utilization": "0.7", "prefix_caching": "false", "chunked_prefill": "false",
            "max_num_seqs": "64", "tp": "4", "graph_max_batch": "8", "graph_mode": "NONE",
        }),
        (VLLM_YAML, "args.yaml", {
            "engine": "vllm", "model": "Qwen3-8B", "max_model_len": "10240", "max_num_seqs": "32", "prefix_caching": "false",
            "gpu_memory_utilization": "0.7", "kv_cache_dtype": "fp8", "graph_mode": "PIECEWISE", "graph_max_batch": "16",
        }),
        (TRTLLM_YAML, "extra.yml", {
            "engine": "tensorrt-llm", "kv_cache_dtype": "fp8", "prefix_caching": "false", "max_num_seqs": "128",
            "max_num_batched_tokens": "8192", "graph_max_batch": "64", "async_scheduling": "false",
        }),
        ({"schema": "diagnose-server/1", "engine": "vllm", "version": "0.33.0", "settings": {
            "cache_config.cache_dtype": "fp8", "scheduler_config.max_num_seqs": 64, "model_config.enforce_eager": True,
        }}, "server.json", {
            "engine": "vllm", "engine_version": "0.33.0", "kv_cache_dtype": "fp8", "max_num_seqs": "64", "enforce_eager": "true",
        }),
    ],
)  # fmt: skip
def test_settings_are_mapped_and_nothing_private_travels(tmp_path, data, name, expected):
    path = write(tmp_path, data, name)
    assert detect_evidence(path) == ("run_json" if name == "server.json" else "settings")
    e = read_settings(path)
    got = {s.key: s.value for s in e.settings}
    assert {k: got.get(k) for k in expected} == expected
    assert all(s.origin == "settings" for s in e.settings)
    told = repr(e)
    assert not any(x in told for x in ("alice", "10.1.2.3", "sk-secret", "node17", "draft"))


def test_vllm_answers_in_text_unless_asked_for_json(tmp_path):
    text = (
        "model='/home/alice/Qwen3-8B', speculative_config=SpeculativeConfig(method='eagle', model='/home/alice/draft'), "
        "tokenizer='/home/alice/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, quantization=None, "
        "enforce_eager=False, kv_cache_dtype=fp8, enable_prefix_caching=False, chunked_prefill_enabled=True, "
        'compilation_config={"level": 3, "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [8, 4, 2, 1]}'
    )
    path = write(tmp_path, {"vllm_config": text, "vllm_env": {"VLLM_HOST_IP": "10.1.2.3"}}, "info.json")
    assert detect_evidence(path) == "settings"
    e = read_settings(path)
    got = {x.key: x.value for x in e.settings}
    assert got["model"] == "Qwen3-8B" and got["dtype"] == "bfloat16" and got["tp"] == "2"
    assert (got["prefix_caching"], got["chunked_prefill"], got["enforce_eager"]) == ("false", "true", "false")
    assert (got["kv_cache_dtype"], got["graph_max_batch"], got["graph_mode"]) == (
        "fp8",
        "8",
        "FULL_AND_PIECEWISE",
    )
    assert got["engine"] == "vllm" and "quantization" not in got
    assert not any(x in repr(e) for x in ("alice", "10.1.2.3", "draft"))


def test_a_settings_file_given_as_a_log_is_read_as_what_it_is(tmp_path):
    e = read_evidence(logs=[write(tmp_path, SGLANG, "x.json")])
    assert e.setting("max_num_seqs") == "128"


@pytest.mark.parametrize("text", [
    "", "{}", '{"model": "x", "dtype": "bf16"}', "a: 1\nb: 2\n", "max_num_seqs: 4\n", "INFO: max_num_seqs: 4, host: x\nwords\n",
    '{"hidden_size": 4096, "model_type": "llama", "max_position_embeddings": 4096}',
])  # fmt: skip
def test_other_files_are_no_settings(tmp_path, text):
    assert detect_evidence(write(tmp_path, text, "f")) != "settings"


def test_unusable_files_are_one_line(tmp_path):
    with pytest.raises(InputError, match="no setting") as error:
        read_settings(write(tmp_path, "key: value\n", "f.yaml"))
    assert "\n" not in str(error.value)


def test_unchunked_prefill_of_sglang(tmp_path):
    e = read_settings(
        write(tmp_path, {"chunked_prefill_size": -1, "mem_fraction_static": 0.8, "tp_size": 1}, "i.json")
    )
    assert (e.setting("chunked_prefill"), e.setting("max_num_batched_tokens")) == ("false", None)


def test_yaml_is_read_as_far_as_settings_need():
    text = "a:\n  b: 1\n  c:\n    d: [1, 2]\ne: 'x # y'\nf: yes # why\n- g: 1\nh: 0.5\n"
    assert read_yaml(text) == {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": "x # y", "f": True, "h": 0.5}


def findings(tmp_path, data, log=""):
    settings = [write(tmp_path, data, "s.json")]
    logs = [write(tmp_path, log, "x.log")] if log else []
    e = read_evidence(logs=logs, settings=settings)
    return {f["code"]: f for f in config_findings(e, derive_signals(e))}


def test_settings_become_findings(tmp_path):
    line = (
        "[2026-01-01 10:00:0{i} TP0] Decode batch, #running-req: 40, #token: 60000, token usage: 0.13, cuda graph: False, "
        "gen throughput (token/s): 900.0, #queue-req: 0\n"
    )
    got = findings(tmp_path, SGLANG, "".join(line.format(i=i) for i in range(8)))
    # 40 run, graphs go up to 16; the radix cache is off; attention runs on a fallback
    assert {"batch-above-graphs", "prefix-cache-off", "backend-fallback"} <= set(got)
    assert "--cuda-graph-max-bs" in got["batch-above-graphs"]["remedy"]
    got = findings(tmp_path, VLLM)
    assert {"eager", "prefix-cache-off"} <= set(got)
    no_flag = {"vllm_config": {**VLLM["vllm_config"], "model_config": {"enforce_eager": False}}}
    assert "eager" in findings(tmp_path, no_flag)  # cudagraph_mode NONE is the same without the flag


def test_a_full_pool_asks_for_the_memory_held_back(tmp_path):
    line = (
        "INFO 10-06 16:00:0{i} [loggers.py:310] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: "
        "9.0 tokens/s, Running: 9 reqs, Waiting: 4 reqs, GPU KV cache usage: {use}%, Prefix cache hit rate: 0.0%\n"
    )
    keep = {"vllm_config": {"cache_config": {"gpu_memory_utilization": 0.7, "cache_dtype": "auto"}, "scheduler_config": {
        "max_num_seqs": 64}}}  # fmt: skip
    full = "".join(line.format(i=i, use=97.0) for i in range(8))
    assert {"memory-share-low", "kv-cache-16-bit"} <= set(findings(tmp_path, keep, full))
    free = "".join(line.format(i=i, use=40.0) for i in range(8))
    assert not {"memory-share-low", "kv-cache-16-bit"} & set(findings(tmp_path, keep, free))
