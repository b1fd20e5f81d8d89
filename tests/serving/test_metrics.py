"""Prometheus pages made by prometheus_client itself under the engines' metric names."""

import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from diagnose.errors import InputError
from diagnose.serving.metrics_parser import looks_like_metrics, read_metrics


class Engine:
    """A vLLM V1 server's registry."""

    def __init__(self):
        self.registry = CollectorRegistry()
        labels = {"labelnames": ("model_name", "engine"), "registry": self.registry}
        self.running = Gauge("vllm:num_requests_running", "r", **labels)
        self.waiting = Gauge("vllm:num_requests_waiting", "w", **labels)
        self.usage = Gauge("vllm:kv_cache_usage_perc", "k", **labels)
        self.preempt = Counter("vllm:num_preemptions", "p", **labels)
        self.tokens = Counter("vllm:generation_tokens", "t", **labels)
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "h", buckets=(0.1, 0.5, 1, 5), **labels)
        self.iteration = Histogram("vllm:iteration_tokens_total", "h", buckets=(1, 8, 2048), **labels)
        self.info = Gauge(
            "vllm:cache_config_info",
            "i",
            ("block_size", "num_gpu_blocks", "cache_dtype", "engine"),
            registry=self.registry,
        )
        self.info.labels("16", "5867", "auto", "0").set(1)
        for metric in (
            self.running,
            self.waiting,
            self.usage,
            self.preempt,
            self.tokens,
            self.ttft,
            self.iteration,
        ):
            self.of(metric)  # the engine creates every label set at start-up

    def of(self, metric, engine="0"):
        return metric.labels("m", engine)

    def page(self):
        return generate_latest(self.registry).decode()


def scrapes(tmp_path, pages, stamps=None):
    path = tmp_path / "metrics.txt"
    parts = [
        f"# scraped_at {t}\n{p}" if t is not None else p
        for p, t in zip(pages, stamps or [None] * len(pages), strict=True)
    ]
    path.write_text("\n".join(parts))
    return read_metrics(path)


def test_one_scrape(tmp_path):
    e = Engine()
    e.of(e.running).set(72)
    e.of(e.usage).set(0.99)
    e.of(e.preempt).inc(7)
    got = scrapes(tmp_path, [e.page()])
    assert got.values("running") == [72]
    assert got.values("preemptions") == [7]
    assert {n.code for n in got.notes} == {"metrics-single"}
    assert got.setting("kv_pool_tokens") == str(16 * 5867)
    assert got.setting("kv_pool_from_blocks") == "true"


def pages(e):
    """Three scrapes: 10 and 30 tokens between them, one preemption in the second interval."""
    out = []
    e.of(e.tokens).inc(100)
    e.of(e.ttft).observe(0.3)
    out.append(e.page())
    e.of(e.tokens).inc(10)
    e.of(e.ttft).observe(0.7)
    e.of(e.running).set(5)
    out.append(e.page())
    e.of(e.tokens).inc(30)
    e.of(e.preempt).inc()
    e.of(e.ttft).observe(0.7)
    e.of(e.iteration).observe(2000)
    e.of(e.running).set(9)
    out.append(e.page())
    return out


def buckets(got, metric):
    return {s.label("le"): s.value for s in got.samples if s.metric == metric and s.label("stat") == "bucket"}


def check_three(got):
    assert got.values("generation_tokens") == [10, 30]
    assert got.values("preemptions") == [0, 1]
    assert got.values("running") == [0, 5, 9]
    # the observation before the first scrape is not part of the window
    assert got.stat("ttft_ms", "count") == 2
    assert got.stat("ttft_ms", "sum") == pytest.approx(1400)
    assert buckets(got, "ttft_ms") == {"100": 0, "500": 0, "1000": 2, "5000": 2, "+Inf": 2}
    assert got.stat("iteration_tokens", "count") == 1


def test_many_scrapes_with_stamps(tmp_path):
    got = scrapes(tmp_path, pages(Engine()), [100.0, 101.0, 103.0])
    check_three(got)
    spans = [s.label("interval_s") for s in got.samples if s.metric == "generation_tokens"]
    assert spans == ["1.000", "2.000"]


def test_many_scrapes_concatenated_without_stamps(tmp_path):
    check_three(scrapes(tmp_path, pages(Engine())))


def test_json_lines(tmp_path):
    path = tmp_path / "scrapes.jsonl"
    path.write_text("\n".join(json.dumps({"ts": 10.0 + i, "text": p}) for i, p in enumerate(pages(Engine()))))
    check_three(read_metrics(path))


def test_folder_of_scrapes(tmp_path):
    for i, page in enumerate(pages(Engine())):
        (tmp_path / f"{i:03}.prom").write_text(page)
    check_three(read_metrics(tmp_path))


def test_restart_counts_from_zero(tmp_path):
    first, second = Engine(), Engine()
    first.of(first.tokens).inc(1000)
    second.of(second.tokens).inc(40)
    got = scrapes(tmp_path, [first.page(), second.page()], [1.0, 2.0])
    assert got.values("generation_tokens") == [40]
    assert "metrics-restart" in {n.code for n in got.notes}


def test_histogram_over_a_restart(tmp_path):
    """Two observations before the restart (one after the first scrape), then three: 1 + 3."""
    first, second = Engine(), Engine()
    first.of(first.ttft).observe(0.3)
    pages = [first.page()]
    first.of(first.ttft).observe(0.3)
    pages.append(first.page())
    for _ in range(3):
        second.of(second.ttft).observe(2)
    pages += [Engine().page(), second.page()]
    got = scrapes(tmp_path, pages, [1.0, 2.0, 3.0, 4.0])
    assert got.stat("ttft_ms", "count") == 4
    assert buckets(got, "ttft_ms") == {"100": 0, "500": 1, "1000": 1, "5000": 4, "+Inf": 4}


def test_two_names_of_one_thing_are_counted_once(tmp_path):
    """0.11 exposes the usage and the inter-token latency under the old and the new name."""
    registry = CollectorRegistry()
    for name in ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"):
        Gauge(name, "k", registry=registry).set(0.5)
    for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"):
        Histogram(name, "h", buckets=(0.1, 1), registry=registry).observe(0.05)
    got = scrapes(tmp_path, [generate_latest(registry).decode()])
    assert got.values("kv_usage") == [0.5]
    assert got.stat("itl_ms", "count") == 1


def test_waiting_by_reason_and_engines(tmp_path):
    e = Engine()
    e.of(e.running, "0").set(3)
    e.of(e.running, "1").set(4)
    by = Gauge("vllm:num_requests_waiting_by_reason", "w", ("reason", "engine"), registry=e.registry)
    by.labels("capacity", "0").set(2)
    by.labels("deferred", "0").set(1)
    got = scrapes(tmp_path, [e.page()])
    assert sorted(got.values("running")) == [3, 4]
    assert (got.values("waiting_capacity"), got.values("waiting_deferred")) == ([2], [1])


def test_sglang_names(tmp_path):
    registry = CollectorRegistry()
    labels = {"labelnames": ("model_name",), "registry": registry}
    Gauge("sglang:num_running_reqs", "r", **labels).labels("m").set(12)
    Gauge("sglang:token_usage", "u", **labels).labels("m").set(0.93)
    Gauge("sglang:max_total_num_tokens", "u", **labels).labels("m").set(38141)
    Gauge("sglang:weight_memory_usage_gb", "u", **labels).labels("m").set(15.0)
    Counter("sglang:num_retracted_requests_total", "c", **labels).labels("m").inc(3)
    Histogram("sglang:queue_time_seconds", "h", buckets=(1, 2), **labels).labels("m").observe(1.5)
    got = scrapes(tmp_path, [generate_latest(registry).decode()])
    assert (got.engines, got.values("running"), got.values("kv_usage")) == (["sglang"], [12], [0.93])
    assert got.setting("kv_pool_tokens") == "38141"
    assert got.setting("weight_bytes") == str(15 * 2**30)
    assert got.values("preemptions") == [3]
    assert got.stat("queue_ms", "sum") == 1500


def test_damaged_lines_are_left_out_and_counted(tmp_path):
    e = Engine()
    e.of(e.running).set(2)
    got = scrapes(tmp_path, [e.page() + 'vllm:num_requests_running{a="b 1 2 3\n'])
    assert got.values("running") == [2]
    assert any("1 lines could not be read" in n.message for n in got.notes)


@pytest.mark.parametrize("text", ["", "hello\n", "# TYPE up gauge\nup 1\n"])
def test_other_pages_are_refused(tmp_path, text):
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_metrics(path)
    assert "\n" not in str(error.value)


def test_looks_like_metrics():
    assert looks_like_metrics(Engine().page())
    assert looks_like_metrics('vllm:num_requests_running{engine="0"} 3\n')
    assert not looks_like_metrics('{"traceEvents": []}')
    assert not looks_like_metrics("INFO the vllm: server is up\n")
