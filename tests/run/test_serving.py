"""Serving evidence through the whole pipeline, with and without a trace. Numbers of the KV-limited Qwen2-7B run on an A100
that was measured in public: pool 93,872 tokens, concurrency 200, 72 running, 2,057 tok/s, TTFT 28.9 s, TPOT 29.9 ms."""

import json
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.cli import main
from diagnose.rules import calibration

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PERIODIC = (
    "INFO 10-06 16:00:{:02} [loggers.py:310] Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg generation throughput: "
    "2057.0 tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}%, Prefix cache hit rate: 0.0%\n"
)


def write_log(path, levels, pool=93_872):
    text = (
        f"INFO 10-06 15:56:53 [kv_cache_utils.py:1286] GPU KV cache size: {pool:,} tokens\n"
        "INFO 10-06 15:56:54 [kv_cache_utils.py:1291] Maximum concurrency for 8,192 tokens per request: 11.46x\n"
        "INFO 10-06 15:56:26 [utils.py:233] non-default args: {'max_num_seqs': 256}\n"
    )
    text += "".join(PERIODIC.format(i, *level) for i, level in enumerate(levels))
    path.write_text(text)
    return path


def write_bench(path, rate, ttft, tpot, concurrency=200):
    path.write_text(
        json.dumps(
            {
                "backend": "vllm", "model_id": "Qwen/Qwen2-7B", "num_prompts": 400, "request_rate": "inf", "max_concurrency": concurrency,
                "duration": 200.0, "completed": 400, "total_input_tokens": 400 * 1024, "total_output_tokens": 400 * 1024,
                "request_throughput": rate / 1024, "output_throughput": rate, "total_token_throughput": 2 * rate,
                "mean_ttft_ms": ttft, "median_ttft_ms": ttft, "p99_ttft_ms": 2 * ttft, "mean_tpot_ms": tpot, "median_tpot_ms": tpot,
                "p99_tpot_ms": tpot, "mean_itl_ms": tpot, "median_itl_ms": tpot, "p99_itl_ms": tpot,
            }
        )
    )  # fmt: skip
    return path


@pytest.fixture
def starved(tmp_path):
    log = write_log(tmp_path / "server.log", [(72, 128, 99.8)] * 12)
    bench = write_bench(tmp_path / "bench.json", 2057.0, 28_900.0, 29.9)
    return log, bench


def run(log, bench, **options):
    return pipeline.run([], pipeline.Options(log=(log,), bench=(bench,), model="Qwen/Qwen2-7B", **options))


def test_a_full_pool_is_the_limit_without_a_single_preemption(starved):
    d = run(*starved)
    assert d.objective == "throughput"
    assert d.verdict.limit == "kv_capacity"
    assert d.devices == []
    assert d.attribution_ns is None
    # 28 layers x 2 x 4 heads x 128 x 2 bytes.
    assert d.kv["bytes_per_token"] == 2 * 28 * 4 * 128 * 2 == 57_344
    assert d.kv["budget_tokens"] == 93_872
    assert d.latency["throughput_tok_s"] == 2057.0
    assert d.latency["ttft_ms"]["mean"] == 28_900.0
    first = d.hypotheses[0]
    assert first.limit == "kv_capacity"
    assert first.experiment is not None
    # The bet can be lost: more throughput than now by more than noise, against no change.
    assert first.experiment.prediction.low > first.experiment.under_runner_up.high * 0.99
    assert any("trace" in line for line in d.verdict.could_not_tell)


def test_confidence_is_told_through_the_fitted_map(starved, monkeypatch):
    monkeypatch.setattr(calibration, "knots", lambda kind: ())
    stated = run(*starved)
    assert not stated.verdict.calibrated
    # A map that halves what is stated.
    monkeypatch.setattr(calibration, "knots", lambda kind: ((1.0, 0.5),) if kind == "serving" else ())
    told = run(*starved)
    assert told.verdict.calibrated
    assert told.verdict.confidence == pytest.approx(stated.verdict.confidence / 2, abs=1e-3)
    assert told.hypotheses[0].confidence == told.verdict.confidence


def test_a_starved_pool_is_not_what_limits_itl(starved):
    d = run(*starved, objective="itl")
    assert d.verdict.limit != "kv_capacity"


def test_nobody_waiting_far_below_the_knee_is_demand(tmp_path):
    log = write_log(tmp_path / "server.log", [(3, 0, 4.0)] * 12, pool=464_848)
    bench = write_bench(tmp_path / "bench.json", 180.0, 40.0, 13.5, concurrency=3)
    assert run(log, bench).verdict.limit == "demand"


def test_without_levels_it_asks_for_them(tmp_path):
    bench = write_bench(tmp_path / "bench.json", 2057.0, 28_900.0, 29.9)
    d = pipeline.run([], pipeline.Options(bench=(bench,)))
    assert d.verdict.limit == "inconclusive"
    assert "--metrics" in d.verdict.summary


def test_page_and_json_without_a_trace(starved, tmp_path, capsys):
    log, bench = starved
    page = tmp_path / "page.html"
    assert (
        main(
            [
                "--bench",
                str(bench),
                "--log",
                str(log),
                "--model",
                "Qwen/Qwen2-7B",
                "-o",
                str(page),
                "--json",
                "-",
            ]
        )
        == 0
    )
    d = json.loads(capsys.readouterr().out)
    assert d["verdict"]["limit"] == "kv_capacity"
    text = page.read_text()
    assert "KV cache capacity" in text


def test_evidence_beside_a_trace(starved):
    log, bench = starved
    d = pipeline.run(
        [SAMPLES / "generated_h100_decode_hbm.json.gz"],
        pipeline.Options(log=(log,), bench=(bench,), model="Qwen/Qwen2-7B"),
    )
    # The steps stream memory; the service waits for KV space.
    assert d.verdict.limit == "kv_capacity"
    assert next(p for p in d.phases if p.phase == "decode").limit == "hbm"
    assert any(h.limit == "hbm" and h.status == "supported" for h in d.hypotheses)
    assert d.what_if
    assert {"step_time", "throughput"} >= {h.objective for h in d.hypotheses}
    # 16 sequences were traced, 72 ran: five profiled steps are not the deploy.
    assert d.representative["verdict"] == "no"
    assert any(n.code == "not-representative" for n in d.data_quality)


def test_step_time_stays_the_traces_question(starved):
    log, bench = starved
    options = pipeline.Options(log=(log,), bench=(bench,), objective="step_time")
    d = pipeline.run([SAMPLES / "generated_h100_decode_hbm.json.gz"], options)
    assert d.verdict.limit == "hbm"
    assert d.latency is not None
