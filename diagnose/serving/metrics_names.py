"""Metric names of vLLM (V0 and V1) and SGLang, and the canonical names they are stored under."""

# source name -> (canonical, scale). Counters are listed without _total.
GAUGES: dict[str, tuple[str, float]] = {
    "vllm:num_requests_running": ("running", 1), "vllm:num_requests_waiting": ("waiting", 1),
    "vllm:num_requests_swapped": ("swapped", 1), "vllm:kv_cache_usage_perc": ("kv_usage", 1),
    "vllm:gpu_cache_usage_perc": ("kv_usage", 1), "vllm:gpu_prefix_cache_hit_rate": ("prefix_hit_rate", 1),
    "vllm:avg_prompt_throughput_toks_per_s": ("prompt_tok_s", 1),
    "vllm:avg_generation_throughput_toks_per_s": ("generation_tok_s", 1),
    "sglang:num_running_reqs": ("running", 1), "sglang:num_queue_reqs": ("waiting", 1),
    "sglang:num_used_tokens": ("used_tokens", 1), "sglang:token_usage": ("kv_usage", 1),
    "sglang:swa_token_usage": ("swa_usage", 1), "sglang:kv_evictable_tokens": ("evictable_tokens", 1),
    "sglang:gen_throughput": ("generation_tok_s", 1), "sglang:cache_hit_rate": ("prefix_hit_rate", 1),
    "sglang:num_paused_reqs": ("paused", 1), "sglang:spec_accept_length": ("spec_accept_len", 1),
    "sglang:spec_accept_rate": ("spec_accept_rate", 1), "sglang:is_cuda_graph": ("graph_replay", 1),
}  # fmt: skip

COUNTERS: dict[str, str] = {
    "vllm:num_preemptions": "preemptions", "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens", "vllm:prefix_cache_queries": "prefix_queries",
    "vllm:prefix_cache_hits": "prefix_hits", "vllm:gpu_prefix_cache_queries": "prefix_queries",
    "vllm:gpu_prefix_cache_hits": "prefix_hits", "vllm:request_success": "requests_finished",
    "vllm:prompt_tokens_recomputed": "recomputed_tokens", "vllm:prompt_tokens_cached": "cached_tokens",
    "vllm:spec_decode_num_drafts": "spec_drafts", "vllm:spec_decode_num_draft_tokens": "spec_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "spec_accepted_tokens",
    "vllm:estimated_flops_per_gpu": "estimated_flops",
    "vllm:estimated_read_bytes_per_gpu": "estimated_read_bytes",
    "vllm:estimated_write_bytes_per_gpu": "estimated_write_bytes",
    "sglang:prompt_tokens": "prompt_tokens", "sglang:generation_tokens": "generation_tokens",
    "sglang:cached_tokens": "cached_tokens", "sglang:num_requests": "requests_finished",
    "sglang:num_aborted_requests": "requests_aborted", "sglang:num_retracted_requests": "preemptions",
    "sglang:forward_execution_seconds": "forward_s", "sglang:scheduler_idle_seconds": "scheduler_idle_s",
    "sglang:scheduler_stage_seconds": "scheduler_stage_s",
    "sglang:estimated_flops_per_gpu": "estimated_flops",
    "sglang:estimated_read_bytes_per_gpu": "estimated_read_bytes",
    "sglang:estimated_write_bytes_per_gpu": "estimated_write_bytes",
}  # fmt: skip

HISTOGRAMS: dict[str, tuple[str, float]] = {
    "time_to_first_token_seconds": ("ttft_ms", 1e3), "inter_token_latency_seconds": ("itl_ms", 1e3),
    "time_per_output_token_seconds": ("itl_ms", 1e3), "request_time_per_output_token_seconds": ("tpot_ms",
    1e3),
    "e2e_request_latency_seconds": ("e2e_ms", 1e3), "request_queue_time_seconds": ("queue_ms", 1e3),
    "queue_time_seconds": ("queue_ms", 1e3), "request_prefill_time_seconds": ("prefill_ms", 1e3),
    "request_decode_time_seconds": ("decode_ms", 1e3), "request_inference_time_seconds": ("inference_ms",
    1e3),
    "iteration_tokens_total": ("iteration_tokens", 1), "request_prompt_tokens": ("prompt_len", 1),
    "request_generation_tokens": ("output_len", 1), "prompt_tokens_histogram": ("prompt_len", 1),
    "generation_tokens_histogram": ("output_len", 1), "request_num_preemptions": ("request_preemptions", 1),
}  # fmt: skip

CACHE_INFO = {
    "block_size": "block_size", "num_gpu_blocks": "num_gpu_blocks", "cache_dtype": "kv_cache_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization", "enable_prefix_caching": "prefix_caching",
    "kv_cache_size_tokens": "kv_pool_tokens",
}  # fmt: skip
GAUGE_SETTINGS = {"sglang:max_total_num_tokens": "kv_pool_tokens", "sglang:context_len": "max_model_len"}
GAUGE_BYTES = {
    "sglang:weight_memory_usage_gb": "weight_bytes",
    "sglang:kv_cache_memory_usage_gb": "kv_pool_bytes",
}
