"""Settled public cases with serving evidence: their published numbers in the engine's format, the settled
limit expected.

Each also has its decisive evidence withheld: then the answer must be inconclusive, with the right request.
"""

import pytest
from serving_forms import bench_json, hist, sglang_log, vllm_log

from diagnose.serving.config_findings import config_findings
from diagnose.serving.gap_laws import GapPoint
from diagnose.serving.kv import check_pool, kv_report
from diagnose.serving.limits import TraceFacts, assess
from diagnose.serving.model_config import load_model
from diagnose.serving.signals import derive_signals


def codes(evidence, signals, **kw):
    return [f["code"] for f in config_findings(evidence, signals, **kw)]


# --- 20: Qwen2-7B on A100, 1k in / 1k out, concurrency 200; only gpu-memory-utilization differs


def case_20(pool, gib, running, tok_s, ttft, tpot, concurrency=200, usage=99.5):
    waiting = concurrency - running
    log = vllm_log([(running, waiting, usage, 0)] * 12, pool=pool, max_len=4096, gib=gib)
    bench = bench_json(
        max_concurrency=concurrency, num_prompts=400, duration=400 * 1024 / tok_s, completed=400,
        total_input_tokens=400 * 1024, total_output_tokens=400 * 1024, request_throughput=tok_s / 1024,
        output_throughput=tok_s, mean_ttft_ms=ttft, mean_tpot_ms=tpot,
    )  # fmt: skip
    return {"log": log, "bench": bench}


STARVED = case_20(93_872, 5.01, 72, 2057, 28_900, 29.9)
AMPLE = case_20(464_848, 24.83, 196, 4443, 3_200, 40.3, usage=52.0)


def test_20_starved_pool_is_kv_capacity(signals):
    s = signals(**STARVED)
    a = assess(s, "throughput")
    assert a.limits == ["kv_capacity"]
    assert a.first.confidence == 0.8
    assert any("larger batch" in m for m in a.missing)
    # with the knowledge that a larger batch gains, nothing is left to doubt
    assert assess(s, "throughput", TraceFacts(doubling_gain=(1.4, 1.7))).first.confidence > 0.9
    # 72 requests of 93,872 / 72 = 1,297 tokens fit; at full length, 2,048 tokens, only 46 would
    assert s.fits.value == pytest.approx(72 / 0.995, rel=0.01)
    assert s.fits_full.value == pytest.approx(93_872 / 2048)
    low, high = a.first.gain
    assert low <= 4443 / 2057 <= high


def test_20_starved_pool_holds_the_first_token(signals):
    a = assess(signals(**STARVED), "ttft")
    assert a.limits == ["kv_capacity"]


def test_20_starved_pool_is_not_the_limit_of_itl(signals):
    """Time per token is better when starved, 29.9 against 40.3 ms: more KV would make it longer."""
    a = assess(signals(**STARVED), "itl")
    assert a.limits == ["inconclusive"]
    kv = next(c for c in a.candidates if c.cause == "kv_pool")
    assert kv.status == "refuted"
    assert any("trace" in m for m in a.missing)


def test_20_ample_pool_is_not_kv(signals):
    a = assess(signals(**AMPLE), "throughput")
    assert "kv_capacity" not in a.limits
    assert next(c for c in a.candidates if c.cause == "kv_pool").status == "refuted"


def test_20_at_concurrency_10_both_pools_are_the_same(signals):
    for pool in (93_872, 464_848):
        usage = 10 * 1536 / pool * 100
        log = vllm_log([(10, 0, round(usage, 1), 0)] * 12, pool=pool, max_len=4096)
        bench = bench_json(max_concurrency=10, num_prompts=100, mean_tpot_ms=13.46, output_throughput=740.0)
        a = assess(signals(log=log, bench=bench), "throughput")
        assert a.limits == ["demand"]


def test_20_start_up_log_and_bench_alone(signals):
    """No periodic lines: Little's law gives 2,057 tok/s x 29.9 ms = 61 running, what the pool holds at
    1,536 tokens."""
    log = vllm_log(pool=93_872, max_len=4096)
    s = signals(log=log, bench=STARVED["bench"])
    assert s.running.value == pytest.approx(61.5, abs=0.1)
    a = assess(s, "throughput")
    assert a.limits == ["kv_capacity"]
    assert a.first.confidence < 0.8


def test_20_bench_alone_is_inconclusive(signals):
    a = assess(signals(bench=STARVED["bench"]), "throughput")
    assert a.limits == ["inconclusive"]
    assert any("--log" in m and "running, waiting and KV usage" in m for m in a.missing)


def test_20_twin_names_both_limits(signals):
    """Concurrency 500 on the large pool: running stands at 256, the default slot cap, and KV at 99.8 %."""
    log = vllm_log([(256, 244, 99.8, 0)] * 12, pool=464_848, max_len=4096)
    bench = bench_json(max_concurrency=500, num_prompts=1000, output_throughput=4500.0, mean_tpot_ms=55.0)
    a = assess(signals(log=log, bench=bench), "throughput")
    assert sorted(a.limits) == ["kv_capacity", "scheduling"]
    assert "together" in a.note
    assert a.first.confidence <= 0.8


# --- 21: preemption tax


def test_21_preemption_tax(signals):
    """1,600 blocks of 16: 32.2 % of prompt tokens computed again."""
    text = "# TYPE vllm:num_preemptions counter\n# TYPE vllm:prompt_tokens counter\n"
    pages = [
        f"# scraped_at {t}\n{text}vllm:num_requests_running 30\nvllm:num_requests_waiting 200\nvllm:kv_cache_usage_perc 0.98\n"
        f"vllm:num_preemptions_total {40 * t}\nvllm:prompt_tokens_total {10000 * t}\n"
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="1600"} 1\n'
        for t in range(10)
    ]
    bench = bench_json(total_input_tokens=int(90000 * (1 - 0.322)), completed=300, total_output_tokens=60000)
    s = signals(metrics="".join(pages), bench=bench)
    assert s.recomputed_share.value == pytest.approx(0.322, abs=1e-3)
    a = assess(s, "throughput")
    assert a.limits == ["kv_capacity"]
    assert {e["metric"] for e in a.first.evidence} >= {"preemptions", "recomputed_share", "kv_full_share"}


# --- 22: pool full, zero preemptions


def test_22_no_preemption_is_still_kv(signals):
    """742,528 tokens / 9,216 = 80 sequences; at 256 offered: running 81-86, waiting, KV 99.4 %, no
    preemption."""
    levels = [(81 + i % 6, 1 + i % 4, 99.4, 0) for i in range(20)]
    log = vllm_log(levels, pool=742_528, max_len=9216)
    bench = bench_json(max_concurrency=256, num_prompts=512, completed=512, total_input_tokens=512 * 8192,
                       total_output_tokens=512 * 1024, output_throughput=3000.0, mean_tpot_ms=28.0)  # fmt: skip
    s = signals(log=log, bench=bench)
    assert s.preemptions.value == 0
    assert s.fits_full.value == pytest.approx(80.57, abs=0.01)
    a = assess(s, "throughput")
    assert a.limits == ["kv_capacity"]


def test_22_withheld_levels(signals):
    """The start-up line alone does not say that the pool was ever full."""
    a = assess(signals(log=vllm_log(pool=742_528, max_len=9216)), "throughput")
    assert a.limits == ["inconclusive"]
    assert any("running, waiting and KV usage" in m for m in a.missing)


# --- 23: latent attention cached as full keys and values


def test_23_full_cache_of_a_latent_model(make):
    """5,373 blocks of 16 at 276,480 bytes a token instead of 31,104: 8.9 times fewer tokens than the latent
    cache."""
    model = load_model("deepseek-v2-lite")
    gib = 5373 * 16 * 276_480 / 2**30
    log = vllm_log(
        [(10, 50, 99.0, 0)] * 10, pool=5373 * 16, max_len=8192, gib=f"{gib:.2f}",
        extra=[f"Maximum concurrency for 8,192 tokens per request: {5373 * 16 / 8192:.2f}x"],
    )  # fmt: skip
    e = make(log=log)
    assert e.setting("max_concurrency") == "10.49"
    check = check_pool(model, e)
    assert check.ratio == pytest.approx(8.889, abs=0.01)
    s = derive_signals(e)
    assert "latent-cache-unused" in codes(e, s, model=model, check=check)
    assert assess(s, "throughput").limits == ["kv_capacity"]


# --- 24, 25: FP8 KV, two outcomes


def test_24_doubling_a_pool_that_is_free_is_not_the_limit(signals):
    """Qwen3-8B at concurrency 8: pool 389,872 to 779,760, end to end 0.997-1.032 times."""
    for pool in (389_872, 779_760):
        log = vllm_log([(8, 0, round(8 * 2000 / pool * 100, 1), 0)] * 10, pool=pool)
        bench = bench_json(max_concurrency=8, num_prompts=64, output_throughput=500.0, mean_tpot_ms=15.0)
        a = assess(signals(log=log, bench=bench), "throughput")
        assert "kv_capacity" not in a.limits
        assert next(c for c in a.candidates if c.cause == "kv_pool").status == "refuted"


def test_25_offline_full_load(signals):
    """All requests at once on a 7B with a small pool: 8-bit KV gave 1.49 times."""
    log = vllm_log([(40, 900, 99.9, 0)] * 10, pool=30_000)
    a = assess(signals(log=log), "throughput")
    assert a.limits == ["kv_capacity"]


# --- 37: prefill in front of decode


def iterations_37():
    """Pure decode 10.5 ms; a 9.1k-token prompt computed whole takes 0.80 s in front of 16 streams."""
    rows = [(0, 0, 16, 10.5)] * 60
    long = (1, 9100, 16, 800.0)
    return [*rows[:20], long, *rows[20:40], long, *rows[40:]]


def test_37_prefill_blocks_decode(signals):
    bench = bench_json(mean_itl_ms=35.0, median_itl_ms=10.6, p99_itl_ms=801.0, output_throughput=450.0)
    s = signals(log=vllm_log([(16, 0, 30.0, 0)] * 5, iterations=iterations_37()), bench=bench)
    # 62 iterations of 16 streams: 2 x (800 - 10.5) of 60 x 10.5 + 2 x 800 ms are interference
    assert s.interference_share.value == pytest.approx(2 * 789.5 / (60 * 10.5 + 1600), rel=1e-6)
    a = assess(s, "itl")
    assert a.limits == ["scheduling"]
    assert a.first.cause == "prefill_interference"


def test_37_tail_without_iterations_is_inconclusive(signals):
    bench = bench_json(mean_itl_ms=77.6, median_itl_ms=60.0, p99_itl_ms=718.0)
    a = assess(signals(bench=bench, log=vllm_log([(16, 0, 30.0, 0)] * 5)), "itl")
    assert a.limits == ["inconclusive"]
    assert any("iteration-details" in m for m in a.missing)


# --- 7, 9, 10, 13, 15: work of the host


def busy(running=100, waiting=50):
    """A loaded server with KV and slots to spare."""
    return {"log": vllm_log([(running, waiting, 40.0, 0)] * 12, pool=400_000, seqs=512)}


def test_7_api_server_and_scheduling(signals):
    """Llama-3-8B on one H100: model execution 38 % of the time, API server 33 %, scheduling 29 %."""
    facts = TraceFacts(between_steps_share=0.62, busy_share=0.38)
    a = assess(signals(**busy()), "throughput", facts)
    assert a.limits == ["scheduling"]
    host = next(c for c in a.candidates if c.cause == "host_per_step")
    assert host.status == "supported"
    assert host.gain[1] == pytest.approx(1 / 0.38)


def test_9_bubble_per_step(signals):
    """5-13 ms of idle device in steps of some 25 ms, whatever the batch."""
    gaps = tuple(GapPoint(8.0 + 0.3 * (i % 5), 20 + 4 * (i % 10)) for i in range(40))
    facts = TraceFacts(between_steps_share=0.33, gaps=gaps)
    a = assess(signals(log=vllm_log([(60, 0, 30.0, 0)] * 10, seqs=256)), "itl", facts)
    assert a.limits == ["scheduling"]
    assert a.first.cause == "host_per_step"


def test_10_gap_grows_with_requests(signals):
    gaps = tuple(GapPoint(1.0 + 0.1 * n, n) for n in range(32, 128, 4))
    facts = TraceFacts(between_steps_share=0.35, gaps=gaps)
    a = assess(signals(log=vllm_log([(128, 0, 30.0, 0)] * 10, seqs=256)), "itl", facts)
    assert a.limits == ["scheduling"]
    assert a.first.cause == "host_per_request"
    assert "0.1 ms a request" in a.first.statement


def test_growth_with_length_is_per_sequence_work(signals):
    gaps = tuple(GapPoint(0.5 + 0.004 * n, 8, float(n)) for n in range(0, 2000, 50))
    a = assess(signals(**busy()), "itl", TraceFacts(between_steps_share=0.3, gaps=gaps))
    assert a.first.cause == "host_per_sequence_length"
    assert "4 ms per 1000 tokens" in a.first.statement


def test_15_rare_stalls_on_one_rank(signals):
    """100-300 ms stalls every 1.5 s while the other ranks sit in a collective: that rank's host, not
    communication."""
    gaps = tuple(GapPoint(250.0 if i % 60 == 59 else 0.4, 32) for i in range(240))
    facts = TraceFacts(between_steps_share=0.2, gaps=gaps, others_in_collective=True)
    a = assess(signals(log=vllm_log([(32, 0, 30.0, 0)] * 10, seqs=256)), "itl", facts)
    assert a.limits == ["imbalance"]
    assert a.first.cause == "host_stalls"


def test_structured_output(signals):
    facts = TraceFacts(between_steps_share=0.3, sampler_gap_share=0.28)
    a = assess(signals(**busy()), "itl", facts)
    assert a.first.cause == "structured_output"


def test_host_work_withheld(signals):
    """Without a trace nobody knows what the device does between steps."""
    a = assess(signals(log=vllm_log([(60, 0, 30.0, 0)] * 10, seqs=256)), "itl")
    assert a.limits == ["inconclusive"]
    assert any("trace" in m for m in a.missing)


def test_tensorrt_host_bound(signals):
    line = (
        "[TRT-LLM] [I] iter = {i}, global_rank = 0, rank = 0, num_scheduled_requests = 9, kv_cache_util = 0.2, "
        "currank_total_requests = 1/9, host_step_time = {h}ms, prev_device_step_time = {d}ms, "
        "timestamp = 2026-08-04 19:08:{i:02}, states = {{'num_ctx_requests': 0, 'num_ctx_tokens': 0, "
        "'num_generation_tokens': 9}}\n"
    )
    slow = signals(log="".join(line.format(i=i, h=9.0, d=6.0) for i in range(20)))
    assert slow.host_over_device.value == pytest.approx(1.5)
    assert assess(slow, "itl").limits == ["scheduling"]
    fine = signals(log="".join(line.format(i=i, h=6.0, d=6.0) for i in range(20)))
    assert assess(fine, "itl").limits == ["inconclusive"]


# --- scheduling: caps, cautious scheduler, budget; demand


def test_slot_cap(signals):
    a = assess(signals(log=vllm_log([(64, 130, 45.0, 0)] * 12, pool=400_000, seqs=64)), "throughput")
    assert a.limits == ["scheduling"]
    assert a.first.cause == "slot_cap"


def test_sglang_conservative_scheduler(signals):
    """Token usage below 0.9 with a queue: the guide's sign of a scheduler that is too careful."""
    a = assess(signals(log=sglang_log([(120, 300, 0.72)] * 20, pool=450_000)), "throughput")
    assert (a.limits, a.first.cause) == (["scheduling"], "conservative")


def test_sglang_healthy_full_pool(signals):
    a = assess(signals(log=sglang_log([(233, 317, 0.94)] * 20, pool=450_000)), "throughput")
    assert a.limits == ["kv_capacity"]


def test_token_budget(signals):
    rows = [(3, 1984, 64, 60.0)] * 50 + [(0, 0, 64, 15.0)] * 20
    s = signals(log=vllm_log([(64, 40, 45.0, 0)] * 12, pool=400_000, seqs=256, budget=2048, iterations=rows))
    assert s.at_budget_share.value == pytest.approx(50 / 70)
    a = assess(s, "throughput")
    assert (a.limits, a.first.cause) == (["scheduling"], "token_budget")
    # with a trace that has prefill at the compute roof, more tokens would only take more time
    a = assess(s, "throughput", TraceFacts(hardware={"prefill": "compute"}))
    assert next(c for c in a.candidates if c.cause == "token_budget").status == "refuted"


def test_demand_of_an_open_arrival_rate(signals):
    log = vllm_log([(4, 0, 3.0, 0)] * 20, pool=400_000, seqs=256)
    bench = bench_json(request_rate=2.0, request_throughput=1.97, num_prompts=200)
    a = assess(signals(log=log, bench=bench), "throughput")
    assert a.limits == ["demand"]


def test_nobody_waits_but_the_device_is_saturated(signals):
    """Beyond the knee twice the load gains nothing: not demand."""
    log = vllm_log([(200, 0, 60.0, 0)] * 20, pool=800_000, seqs=1024)
    facts = TraceFacts(hardware={"decode": "compute"}, knee=150, doubling_gain=(1.0, 1.05))
    a = assess(signals(log=log), "throughput", facts)
    assert a.limits != ["demand"]
    assert next(c for c in a.candidates if c.limit == "demand").status == "refuted"


def test_full_pool_where_a_larger_batch_gains_nothing(signals):
    """Where KV reads already fill the step, more KV space does not help."""
    a = assess(signals(**STARVED), "throughput", TraceFacts(doubling_gain=(1.0, 1.04)))
    assert a.limits == ["inconclusive"]


def test_front_end(signals):
    """200 requests in flight at the client, 20 in the engine, and its own clock starts late."""
    log = vllm_log([(20, 0, 5.0, 0)] * 20, pool=400_000, seqs=256)
    bench = bench_json(max_concurrency=200, num_prompts=1000, mean_ttft_ms=4000.0)
    metrics = "vllm:num_requests_running 20\nvllm:num_requests_waiting 0\n" + hist(
        "vllm:time_to_first_token_seconds", [0.1, 0.5, 1.0], [0.05] * 100
    )
    a = assess(signals(log=log, bench=bench, metrics=metrics), "ttft")
    assert (a.limits, a.first.cause) == (["scheduling"], "front_end")


def test_ttft_queue_share_from_histograms(signals):
    metrics = (
        "vllm:num_requests_running 64\nvllm:num_requests_waiting 100\nvllm:kv_cache_usage_perc 0.4\n"
        + hist("vllm:time_to_first_token_seconds", [1, 10], [5.0] * 50)
        + hist("vllm:request_queue_time_seconds", [1, 10], [4.5] * 50)
        + hist("vllm:request_prefill_time_seconds", [1, 10], [0.4] * 50)
    )
    s = signals(metrics=metrics, log=vllm_log(seqs=64))
    assert s.queue_share.value == pytest.approx(0.9)
    a = assess(s, "ttft")
    assert (a.limits, a.first.cause) == (["scheduling"], "slot_cap")


def test_short_queue_leaves_ttft_to_prefill(signals):
    metrics = (
        "vllm:num_requests_running 8\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n"
        + hist("vllm:time_to_first_token_seconds", [1, 10], [2.0] * 50)
        + hist("vllm:request_queue_time_seconds", [1, 10], [0.01] * 50)
        + hist("vllm:request_prefill_time_seconds", [1, 10], [1.9] * 50)
    )
    a = assess(signals(metrics=metrics), "ttft")
    assert a.limits == ["inconclusive"]
    assert any("prefill steps" in m for m in a.missing)
    a = assess(signals(metrics=metrics), "ttft", TraceFacts(hardware={"prefill": "compute"}))
    assert a.limits == ["compute"]


def test_uneven_engines(signals):
    row = 'vllm:num_requests_running{{engine="{e}"}} {r}\nvllm:num_requests_waiting{{engine="{e}"}} {w}\n'
    pages = "".join(
        f"# scraped_at {t}\n"
        + row.format(e=0, r=60, w=40)
        + row.format(e=1, r=10, w=0)
        + row.format(e=2, r=12, w=0)
        for t in range(10)
    )
    s = signals(metrics=pages)
    assert s.engine_spread.value == pytest.approx(60 / ((60 + 10 + 12) / 3))
    assert assess(s, "throughput").limits == ["imbalance"]


def test_nothing_at_all(signals):
    a = assess(signals(bench=bench_json()), "throughput")
    assert a.limits == ["inconclusive"]
    assert a.missing


# --- after a deploy: findings of the configuration


def test_eager_flag_and_graph_cap(make):
    extra = [
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m', enforce_eager=True, "
        'compilation_config={"cudagraph_capture_sizes":[64,32],"max_capture_size":64}'
    ]
    e = make(log=vllm_log([(90, 0, 20.0, 0)] * 10, extra=extra))
    found = codes(e, derive_signals(e))
    assert found[:2] == ["eager", "batch-above-graphs"]


def test_cold_prefix_cache_and_fallback_backend(make):
    lines = vllm_log([(20, 0, 20.0, 0)] * 12, extra=["Using XFormers backend."]).splitlines()
    hot = [line.replace("hit rate: 0.0%", f"hit rate: {min(60, 8 * i)}.0%") for i, line in enumerate(lines)]
    e = make(log="\n".join(hot))
    found = codes(e, derive_signals(e))
    assert "backend-fallback" in found
    assert "prefix-cache-cold" in found


def test_kv_entry_of_the_contract(make):
    e = make(**STARVED)
    kv = kv_report(load_model("qwen2-7b"), e)
    assert kv["bytes_per_token"] == 57_344
    assert kv["budget_tokens"] == 93_872
    assert kv["computed_vs_logged"] == pytest.approx(1, abs=1e-3)
    assert kv["peak_used_share"] == pytest.approx(0.995)
    assert (kv["waiting_max"], kv["running_max"]) == (128, 72)
    assert kv["fits_at_full_length"] == pytest.approx(45.8, abs=0.1)
    assert kv["fits_at_resident"] == pytest.approx(72.4, abs=0.1)
