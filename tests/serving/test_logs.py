"""Server logs in the engines' own wording: vLLM 0.6 to 0.33, SGLang 0.4 and 0.5, TensorRT-LLM."""

import gzip
from itertools import pairwise

import pytest

from diagnose.errors import InputError
from diagnose.serving.log_parser import looks_like_log, read_log

GIB = 2**30

V0 = """\
INFO 12-22 10:55:30 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: model='meta-llama/Meta-Llama-3-8B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto, num_scheduler_steps=8, chunked_prefill_enabled=False, enable_prefix_caching=False
INFO 12-22 10:55:34 model_runner.py:1097] Loading model weights took 8.5107 GB
INFO 12-22 10:55:34 worker.py:241] the current vLLM instance can use total_gpu_memory (79.25GiB) x gpu_memory_utilization (0.15) = 11.89GiB
INFO 12-22 10:55:34 worker.py:241] model weights take 8.51GiB; non_torch_memory takes 0.26GiB; PyTorch activation peak memory takes 0.94GiB; the rest of the memory reserved for KV Cache is 2.18GiB.
INFO 12-22 10:55:35 gpu_executor.py:76] # GPU blocks: 715, # CPU blocks: 1310
INFO 12-22 10:55:35 gpu_executor.py:80] Maximum concurrency for 2048 tokens per request: 5.59x
INFO 12-31 23:59:58 metrics.py:345] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.5 tokens/s, Running: 5 reqs, Swapped: 1 reqs, Pending: 3 reqs, GPU KV cache usage: 97.0%, CPU KV cache usage: 0.0%.
WARNING 01-01 00:00:03 scheduler.py:1057] Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. total_cumulative_preemption_cnt=1
WARNING 01-01 00:00:08 scheduler.py:1057] Sequence group 9 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space. total_num_cumulative_preemption=51
"""  # noqa: E501

V1 = """\
(APIServer pid=41428) INFO 10-06 15:56:26 [utils.py:233] non-default args: {'model_tag': '/home/someone/models/Qwen3-8B', 'host': '10.1.2.3', 'api_key': ['sk-secret'], 'model': '/home/someone/models/Qwen3-8B', 'max_model_len': 8192, 'tensor_parallel_size': 2, 'max_num_seqs': 64}
(APIServer pid=41428) INFO 10-06 15:56:27 [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=2048.
(EngineCore_DP0 pid=41565) INFO 10-06 15:56:35 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='/home/someone/models/Qwen3-8B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, enable_prefix_caching=True, chunked_prefill_enabled=True, compilation_config={"level":3,"cudagraph_mode":[2,1],"cudagraph_capture_sizes":[128,120,8,4,2,1],"max_capture_size":128}
(Worker_TP0 pid=2) INFO 10-06 15:56:53 [gpu_model_runner.py:100] Model loading took 14.2488 GiB and 33.3 seconds
(Worker_TP1 pid=3) INFO 10-06 15:56:53 [gpu_model_runner.py:100] Model loading took 14.2488 GiB and 33.4 seconds
(Worker_TP0 pid=2) INFO 10-06 15:56:53 [cuda.py:100] Using Flash Attention backend on V1 engine.
(Worker_TP0 pid=2) INFO 10-06 15:56:53 [gpu_worker.py:359] Available KV cache memory: 52.36 GiB
(EngineCore_DP0 pid=4) INFO 10-06 15:56:53 [kv_cache_utils.py:1286] GPU KV cache size: 686,320 tokens
(EngineCore_DP0 pid=4) INFO 10-06 15:56:54 [kv_cache_utils.py:1291] Maximum concurrency for 8,192 tokens per request: 83.78x
(Worker_TP0 pid=2) INFO 10-06 15:57:06 [gpu_model_runner.py:3480] Graph capturing finished in 10 secs, took 0.62 GiB
(APIServer pid=1) INFO 10-06 15:57:54 [loggers.py:127] Engine 000: Avg prompt throughput: 15.3 tokens/s, Avg generation throughput: 880.1 tokens/s, Running: 72 reqs, Waiting: 128 reqs, GPU KV cache usage: 99.4%, Prefix cache hit rate: 25.0%
something that no parser knows, 12 tokens/s
"""  # noqa: E501

V033 = """\
(EngineCore pid=9) INFO 07-09 03:15:00 [core.py:105] Initializing a V1 LLM engine (v0.33.0) with config: model='openai/gpt-oss-120b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=1, enforce_eager=True, kv_cache_dtype=fp8_e4m3, enable_prefix_caching=True, compilation_config={'mode': 0, 'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'cudagraph_capture_sizes': [], 'max_cudagraph_capture_size': 0}
(EngineCore pid=9) INFO 07-09 03:15:01 [cuda.py:44] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].
(EngineCore pid=9) INFO 07-09 03:15:02 [kv_cache_utils.py:900] GPU KV cache size: 742,528 tokens, Maximum concurrency for 9,216 tokens per request: 80.57x
(APIServer pid=1) INFO 07-09 03:15:05 [loggers.py:310] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 58.7 tokens/s, Running: 83 reqs, Waiting: 3 reqs, Deferred: 1 reqs, Preemptions: 4, GPU KV cache usage: 99.4%, Prefix cache hit rate: 0.0%
(EngineCore pid=9) INFO 07-09 03:15:06 [core.py:359] Engine 000: Iteration(15): 2 context requests, 7986 context tokens, 14 generation requests, 28 generation tokens, iteration elapsed time: 115.64 ms, GPU KV cache usage: 43.2%
(EngineCore pid=9) INFO 07-09 03:15:06 [core.py:359] Engine 000: Iteration(16): 0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 9.00 ms, GPU KV cache usage: 43.2% (dummy)
(APIServer pid=1) INFO 07-09 03:15:15 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.36, Accepted throughput: 1.0 tokens/s, Avg Draft acceptance rate: 45.0%
"""  # noqa: E501

SGLANG = """\
[2025-07-14 05:48:40] server_args=ServerArgs(model_path='/data/x/Llama-3.1-8B', tp_size=2, dtype='auto', context_length=None, mem_fraction_static=0.88, max_running_requests=None, chunked_prefill_size=8192, schedule_conservativeness=1.0, disable_cuda_graph=False, disable_radix_cache=False, host='10.0.0.1', api_key='sk-secret')
[2025-07-14 05:48:43] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=7.37 GB, mem usage=15.02 GB.
[2025-07-14 05:48:43] KV Cache is allocated. #tokens: 38141, K size: 2.33 GB, V size: 2.33 GB
[2025-07-14 05:48:44] Capture cuda graph bs [1, 2, 4, 8]
[2025-07-14 05:49:02] max_total_num_tokens=38141, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, available_gpu_mem=0.83 GB
[2025-07-18 15:32:52 TP0] Prefill batch. #new-seq: 1, #new-token: 2192, #cached-token: 35, #token: 35, token usage: 0.00, #running-req: 0, #queue-req: 0, timestamp: 2025-07-18T15:32:52.498932
[2025-07-18 15:32:54 TP0] Decode batch. #running-req: 233, #token: 370959, token usage: 0.82, cuda graph: True, gen throughput (token/s): 4594.01, #queue-req: 317
[2025-07-18 15:32:54 TP1] Decode batch. #running-req: 233, #token: 370959, token usage: 0.82, cuda graph: True, gen throughput (token/s): 4594.01, #queue-req: 317
[2026-08-19 00:02:25] Decode batch, #running-req: 4, #full token: 1, full token usage: 0.50, swa token usage: 0.25, mamba num: 1, mamba usage: 0.1, accept len: 2.36, accept rate: 0.19, cuda graph: False, gen throughput (token/s): 40.29, #queue-req: 0
[2026-09-16 05:00:02] Prefill batch [7], #new-seq: 1, #new-token: 128, #cached-token: 256, token usage: 0.82, #running-req: 2, #queue-req: 2, #pending-token: 0, cuda graph: False, input throughput (token/s): 12.50
[2026-09-16 05:00:03 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5 -> 0.9
"""  # noqa: E501

TRTLLM = """\
[TRT-LLM] [I] [_torch][RANK 0] iter = 5, global_rank = 0, rank = 0, num_scheduled_requests = 7, kv_cache_util = 0.125, currank_total_requests = 1/8, host_step_time = 9.5ms, prev_device_step_time = 7.25ms, timestamp = 2026-08-04 19:08:13, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 4, 'cached_kv_tokens': 63821}
[TRT-LLM] [I] [_torch][RANK 1] iter = 5, global_rank = 1, rank = 1, num_scheduled_requests = 7, host_step_time = 99ms, prev_device_step_time = 7.25ms, timestamp = 2026-08-04 19:08:13, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 4}
[TRT-LLM] [I] iter = 6, global_rank = 0, rank = 0, currank_total_requests = 1/8, host_step_time = 5.5ms, prev_device_step_time = N/A, timestamp = 2026-08-04 19:08:14, num_scheduled_requests: 9, states = {'num_ctx_requests': 1, 'num_ctx_tokens': 10, 'num_generation_tokens': 4}
"""  # noqa: E501


def read(tmp_path, text, name="server.log"):
    path = tmp_path / name
    path.write_text(text)
    return read_log(path)


def settings(e):
    return {s.key: s.value for s in e.settings}


def test_vllm_v0(tmp_path):
    e = read(tmp_path, V0)
    s = settings(e)
    assert (s["engine_version"], s["scheduler_steps"], s["chunked_prefill"]) == ("0.6.3.post1", "8", "false")
    assert float(s["weight_bytes"]) == pytest.approx(8.51 * GIB)
    assert float(s["kv_pool_bytes"]) == pytest.approx(2.18 * GIB)
    assert float(s["device_memory_bytes"]) == pytest.approx(79.25 * GIB)
    assert s["gpu_memory_utilization"] == "0.15"
    assert s["kv_pool_tokens"] == str(715 * 16)
    assert e.values("kv_usage") == [0.97]
    assert (e.values("swapped"), e.values("waiting")) == ([1], [3])
    # the counter is cumulative and printed now and then: 1, then 50 more
    assert e.values("preemptions") == [1, 50]
    times = [x.ts for x in e.samples if x.metric in {"running", "preemptions"}]
    assert [b - a for a, b in pairwise(times)] == [5, 5]  # across new year


def test_vllm_v1(tmp_path):
    e = read(tmp_path, V1)
    s = settings(e)
    assert (s["tp"], s["max_num_seqs"], s["max_num_batched_tokens"]) == ("2", "64", "2048")
    assert (s["kv_pool_tokens"], s["max_concurrency"], s["graph_max_batch"]) == ("686320", "83.78", "128")
    assert (s["enforce_eager"], s["attention_backend"]) == ("false", "Flash Attention")
    assert float(s["graph_bytes"]) == pytest.approx(0.62 * GIB)
    assert (e.values("running"), e.values("waiting")) == ([72], [128])
    assert e.values("kv_usage") == [pytest.approx(0.994)]
    assert e.values("prefix_hit_rate") == [0.25]


def test_nothing_private_is_kept(tmp_path):
    for text in (V1, SGLANG):
        e = read(tmp_path, text)
        kept = repr(e)
        assert not any(word in kept for word in ("someone", "sk-secret", "10.1.2.3", "10.0.0.1", "/data/x"))
        assert settings(e)["model"] in {"Qwen3-8B", "Llama-3.1-8B"}


def test_vllm_033(tmp_path):
    e = read(tmp_path, V033)
    s = settings(e)
    assert (s["kv_pool_tokens"], s["max_model_len"], s["max_concurrency"]) == ("742528", "9216", "80.57")
    assert (s["enforce_eager"], s["attention_backend"]) == ("true", "FLASH_ATTN")
    assert (s["kv_cache_dtype"], s["graph_mode"]) == ("fp8_e4m3", "NONE")
    assert (e.values("preemptions"), e.values("waiting_deferred")) == ([4], [1])
    assert e.values("step_ms") == [115.64]  # the dummy iteration is left out
    assert e.values("step_generation_tokens") == [28]
    assert e.values("spec_accept_len") == [2.36]


def test_iteration_line_of_014(tmp_path):
    line = "(EngineCore_DP1 pid=5) INFO 07-09 03:15:05 [v1/engine/core.py:359] Iteration(15): 2 context requests, 7986 context tokens, 14 generation requests, 14 generation tokens, iteration elapsed time: 1115.64 ms\n"  # noqa: E501
    e = read(tmp_path, line)
    assert e.values("step_context_tokens") == [7986]
    assert e.samples[0].label("engine") == "1"


def test_data_parallel_pools_add_up(tmp_path):
    text = "".join(
        f"(EngineCore_DP{i} pid={i}) INFO 10-06 15:56:53 [x.py:1286] GPU KV cache size: 100,000 tokens\n"
        for i in range(4)
    )
    s = settings(read(tmp_path, text))
    assert (s["kv_pool_tokens"], s["kv_engines"]) == ("400000", "4")


def test_last_of_several_starts_counts(tmp_path):
    e = read(
        tmp_path, V1 + V1.replace("686,320", "111,104").replace("'max_num_seqs': 64", "'max_num_seqs': 32")
    )
    s = settings(e)
    assert (s["kv_pool_tokens"], s["max_num_seqs"]) == ("111104", "32")
    assert e.notes[0].code == "log-restarts"
    assert len(e.values("running")) == 1


def test_sglang(tmp_path):
    e = read(tmp_path, SGLANG)
    s = settings(e)
    assert (s["engine"], s["tp"], s["kv_pool_tokens"]) == ("sglang", "2", "38141")
    assert (s["max_num_seqs"], s["max_num_batched_tokens"], s["graph_max_batch"]) == ("2048", "2048", "8")
    assert float(s["kv_pool_bytes"]) == pytest.approx(4.66 * GIB)
    assert float(s["free_memory_bytes"]) == pytest.approx(0.83 * GIB)
    assert (s["enforce_eager"], s["prefix_caching"]) == ("false", "true")
    assert e.values("running") == [233, 4]  # rank 1 repeats rank 0; prefill lines have no level
    assert e.values("kv_usage") == [0.0, 0.82, 0.5, 0.82]
    assert e.values("swa_usage") == [0.25]
    assert e.values("graph_replay") == [1, 0]
    assert e.values("preemptions") == [3]
    assert e.values("prefill_cached_tokens") == [35, 256]


def test_tensorrt_llm(tmp_path):
    e = read(tmp_path, TRTLLM)
    assert settings(e)["engine"] == "tensorrt-llm"
    assert (e.values("host_step_ms"), e.values("device_step_ms")) == ([9.5, 5.5], [7.25])
    assert (e.values("scheduled"), e.values("step_context_tokens")) == ([7, 9], [0, 10])


def test_trtllm_before_device_times(tmp_path):
    """0.19 and before: the wall time of a step in seconds, nothing of the device."""
    line = (
        "[05/02/2025-10:00:0{i}] [TRT-LLM] [I] iter = {i}, global_rank = 0, rank = 0, currank_total_requests = 0/0, "
        "elapsed_time = 0.01{i}s, timestamp = 2025-05-02 10:00:0{i}, num_scheduled_requests: 8, states = {{'num_ctx_requests': 0, "
        "'num_ctx_tokens': 0, 'num_generation_tokens': 8}}\n"
    )
    e = read(tmp_path, "".join(line.format(i=i) for i in range(1, 4)))
    assert e.values("host_step_ms") == pytest.approx([11, 12, 13])
    assert e.values("device_step_ms") == []
    assert e.values("running") == [8, 8, 8]


def test_gzip_colour_and_garbage(tmp_path):
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(("\x1b[36m" + V1).encode() + b"\xff\xfe\x00 broken \n"))
    assert settings(read_log(path))["kv_pool_tokens"] == "686320"
    whole = gzip.compress((V1 * 50).encode())
    path.write_bytes(whole[: len(whole) // 2])
    e = read_log(path)
    assert any(n.code == "log-cut" for n in e.notes)


def test_a_client_log_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"client\.log: no line of vLLM") as error:
        read(tmp_path, "INFO: nothing here\n" * 3, "client.log")
    assert "\n" not in str(error.value)
    assert not looks_like_log("INFO: nothing here\n")
    assert looks_like_log(V0)
    assert looks_like_log(SGLANG)
    assert looks_like_log(TRTLLM)
