"""Detection by content, loading into the tables, conflicts between sources."""

import json
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.serving.evidence import detect_evidence, load_evidence, read_evidence
from diagnose.serving.names import METRICS, SETTINGS
from diagnose.store import Store

SHARED = Path(__file__).parents[3] / "shared" / "traces"

PERIODIC = (
    "INFO 10-06 15:57:54 [loggers.py:127] Engine 000: Avg prompt throughput: 15.3 tokens/s, "
    "Avg generation throughput: 880.1 tokens/s, Running: 72 reqs, Waiting: 128 reqs, "
    "GPU KV cache usage: 99.4%, Prefix cache hit rate: 0.0%\n"
)
LOG = "INFO 10-06 15:56:53 [kv_cache_utils.py:1286] GPU KV cache size: 93,872 tokens\n" + PERIODIC
METRIC = (
    'vllm:num_requests_running{engine="0"} 72\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="5867"} 1\n'
)
BENCH = {
    "request_throughput": 2.0,
    "output_throughput": 100.0,
    "duration": 60.0,
    "mean_ttft_ms": 5.0,
    "total_output_tokens": 6000,
}
CONFIG = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28}


@pytest.fixture
def files(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_detection_is_by_content(files):
    for kind, content in {
        "log": LOG, "metrics": METRIC, "bench": BENCH, "model_config": CONFIG,
        "eval": {"results": {"arc": {}}, "versions": {}, "n-shot": {}},
        "run_json": {"schema": "diagnose-run/1"},
    }.items():  # fmt: skip
        assert detect_evidence(files("evidence.dat", content)) == kind
    assert detect_evidence(files("x", json.dumps(BENCH, indent=2))) == "bench"
    assert detect_evidence(files("x", json.dumps({"ts": 1, "text": METRIC}) + "\n")) == "metrics"
    stats = {
        "iter": 3,
        "iterLatencyMS": 5.0,
        "kvCacheStats": {"maxNumBlocks": 10, "usedNumBlocks": 5, "tokensPerBlock": 32},
    }
    assert detect_evidence(files("x", [stats])) == "metrics"


def test_detection_leaves_other_things_alone(files, tmp_path):
    for content in ("", "hello", '{"traceEvents": []}', '{"a": 1}', "[1, 2]", "{broken"):
        assert detect_evidence(files("x", content)) is None
    assert detect_evidence(tmp_path / "absent") is None
    (tmp_path / "binary").write_bytes(b"SQLite format 3\x00" + bytes(100))
    assert detect_evidence(tmp_path / "binary") is None


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.exists(), reason="real traces are not here")
def test_no_real_trace_is_taken_for_evidence():
    for folder in ("kineto", "nsys", "measured"):
        for path in (SHARED / folder).iterdir():
            assert detect_evidence(path) is None, path.name


def test_tables(files):
    with Store() as store:
        load_evidence(store, [files("m", METRIC)], [files("l", LOG)], [files("b", BENCH)])
        running = store.rows("SELECT origin, value FROM serving WHERE metric = 'running' ORDER BY 1")
        assert running == [("log", 72.0), ("metrics", 72.0)]
        assert (
            store.scalar("SELECT value FROM engine_config WHERE key = 'kv_pool_tokens' AND origin = 'log'")
            == "93872"
        )
        assert store.scalar("SELECT labels->>'stat' FROM serving WHERE metric = 'ttft_ms'") == "mean"
        known = {r[0] for r in store.rows("SELECT DISTINCT metric FROM serving")}
        assert known <= set(METRICS)
        assert {r[0] for r in store.rows("SELECT DISTINCT key FROM engine_config")} <= set(SETTINGS)


def test_tensorrt_statistics(files):
    rows = [
        {
            "iter": i, "iterLatencyMS": 5.0 + i, "numActiveRequests": 8, "numQueuedRequests": 3,
            "maxBatchSizeRuntime": 8,
            "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 97, "freeNumBlocks": 3,
            "tokensPerBlock": 32},
            "inflightBatchingStats": {"numScheduledRequests": 8, "numPausedRequests": 1,
            "numContextRequests": 0},
        }
        for i in range(2)
    ]  # fmt: skip
    e = read_evidence(metrics=[files("stats.jsonl", "\n".join(map(json.dumps, rows)))])
    assert e.values("kv_usage") == [0.97, 0.97]
    assert e.values("step_ms") == [5.0, 6.0]
    assert (e.setting("kv_pool_tokens"), e.setting("max_num_seqs")) == ("3200", "8")
    assert e.values("paused") == [1, 1]


def test_agreement_is_silent_and_disagreement_is_named(files):
    agree = read_evidence([files("m", METRIC)], [files("l", LOG)])  # 5,867 blocks of 16 are 93,872 tokens
    assert not [n for n in agree.notes if n.code == "evidence-conflict"]
    other = read_evidence(
        logs=[files("l", LOG)],
        metrics=[files("m2", METRIC + 'vllm:cache_config_info{kv_cache_size_tokens="464848"} 1\n')],
    )
    assert any("kv_pool_tokens" in n.message or "KV pool" in n.message for n in other.notes)


def test_other_clients_are_noticed(files):
    def page(tokens, ts):
        kind = "# TYPE vllm:generation_tokens counter"
        return f"# scraped_at {ts}\n{kind}\nvllm:generation_tokens_total {tokens}\n"

    text = page(0, 0) + page(12000, 60)
    e = read_evidence(metrics=[files("m", text)], benches=[files("b", BENCH)])
    assert any("other clients" in n.message for n in e.notes)
    e = read_evidence(metrics=[files("m", page(0, 0) + page(6100, 60))], benches=[files("b", BENCH)])
    assert not [n for n in e.notes if n.code == "evidence-conflict"]
    e = read_evidence(metrics=[files("m", page(0, 0) + page(600, 6))], benches=[files("b", BENCH)])
    assert any(n.code == "metrics-part" for n in e.notes)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"gone\.log: no such file"):
        read_evidence(logs=[tmp_path / "gone.log"])
