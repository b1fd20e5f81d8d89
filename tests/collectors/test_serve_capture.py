"""`diagnose capture serve` against local servers that speak the engines' endpoints and metric names."""

import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from diagnose.collectors import serve_http
from diagnose.collectors.serve_capture import ServeCapture, capture_serve, check, dry_run
from diagnose.collectors.serve_engines import public_settings
from diagnose.errors import InputError, UsageError

TRACE = {"host_name": "gpu-host-17", "traceEvents": [{"ph": "X", "name": "k", "ts": 1, "dur": 1}]}


class Fake:
    """A serving engine: `posts` records what it was asked to do, the flags make it misbehave."""

    def __init__(self, trace_dir: Path | None = None) -> None:
        self.posts: list[tuple[str, Any]] = []
        self.gets: list[str] = []
        self.answers: dict[str, Callable[[], tuple[int, str]]] = {}
        self.trace_dir = trace_dir
        self.trace_names = ["gpu-host-17_4242.rank0.1700000000.pt.trace.json.gz"]
        self.start_status = 200
        self.stop_delay_s = 0.0
        self.release = threading.Event()

    def post(self, path: str, body: Any) -> int:
        self.posts.append((path, body))
        if path == "/start_profile":
            if body and body.get("output_dir"):
                self.trace_dir = Path(body["output_dir"])
            return self.start_status
        if path == "/stop_profile":
            self.release.wait(self.stop_delay_s)
            if self.trace_dir is not None:
                for name in self.trace_names:
                    (self.trace_dir / name).write_bytes(gzip.compress(json.dumps(TRACE).encode()))
            return 200
        return 404


@pytest.fixture
def serve() -> Iterator[Callable[[Fake], str]]:
    """Start a fake engine on a free loopback port; its URL."""
    servers: list[tuple[ThreadingHTTPServer, Fake]] = []

    def start(fake: Fake) -> str:
        class Handler(BaseHTTPRequestHandler):
            def _reply(self, status: int, text: str) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                fake.gets.append(self.path)
                answer = fake.answers.get(self.path)
                self._reply(*(answer() if answer else (404, "not found")))

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._reply(fake.post(self.path, json.loads(raw) if raw else None), "")

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append((server, fake))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, fake in servers:
        fake.release.set()
        server.shutdown()
        server.server_close()


def vllm(trace_dir: Path | None = None) -> Fake:
    """vLLM 0.33's endpoints; the number running grows with every scrape."""
    registry = CollectorRegistry()
    labels = {"model_name": "Qwen/Qwen3-8B", "engine": "0"}
    running = Gauge("vllm:num_requests_running", "r", list(labels), registry=registry).labels(**labels)
    Gauge("vllm:kv_cache_usage_perc", "k", list(labels), registry=registry).labels(**labels).set(0.97)
    tokens = Counter("vllm:generation_tokens", "g", list(labels), registry=registry).labels(**labels)
    ttft = Histogram("vllm:time_to_first_token_seconds", "t", list(labels), registry=registry).labels(
        **labels
    )
    fake = Fake(trace_dir)

    def metrics() -> tuple[int, str]:
        running.inc()
        tokens.inc(100)
        ttft.observe(0.2)
        return 200, generate_latest(registry).decode()

    fake.answers = {
        "/metrics": metrics,
        "/version": lambda: (200, '{"version": "0.33.0"}'),
        "/v1/models": lambda: (
            200,
            json.dumps(
                {"data": [{"id": "prod", "root": "/home/alice/models/Qwen3-8B", "max_model_len": 8192}]}
            ),
        ),
    }
    return fake


def sglang() -> Fake:
    """SGLang 0.5's endpoints, server arguments with secrets included."""
    registry = CollectorRegistry()
    Gauge("sglang:num_running_reqs", "r", ["model_name"], registry=registry).labels("m").set(7)
    fake = Fake()
    fake.trace_names = ["1700-TP-0.trace.json.gz", "1700-TP-1.trace.json.gz"]
    info = {
        "model_path": "Qwen/Qwen3-8B", "api_key": "sk-secret", "host": "10.0.0.7", "tp_size": 2,
        "chunked_prefill_size": 8192, "max_total_num_tokens": 464848, "version": "0.5.23",
        "tokenizer_path": "/home/alice/tok", "internal_states": [{"x": 1}],
    }  # fmt: skip
    fake.answers = {
        "/metrics": lambda: (200, generate_latest(registry).decode()),
        "/get_server_info": lambda: (200, json.dumps(info)),
        "/v1/models": lambda: (200, json.dumps({"data": [{"id": "Qwen/Qwen3-8B"}]})),
    }
    return fake


def scrapes(path: Path) -> list[tuple[float, str]]:
    parts = re.split(r"^# scraped_at ([0-9.]+)\n", path.read_text(), flags=re.MULTILINE)
    return [(float(parts[i]), parts[i + 1]) for i in range(1, len(parts), 2)]


QUICK: dict[str, Any] = {
    "seconds": 1.5,
    "profile_seconds": 0.3,
    "interval_s": 0.25,
    "trace_timeout_s": 5.0,
    "settle_s": 0.3,
}


def test_vllm_gives_metrics_settings_and_its_trace(serve: Callable[[Fake], str], tmp_path: Path) -> None:
    traces = tmp_path / "server-traces"
    traces.mkdir()
    (traces / "old.pt.trace.json.gz").write_bytes(b"from before")
    import os

    os.utime(traces / "old.pt.trace.json.gz", (1e9, 1e9))
    fake = vllm(traces)
    fake.trace_names += ["gpu-host-17_1.async_llm.1700.pt.trace.json.gz"]
    log, bench = tmp_path / "v.log", tmp_path / "b.json"
    log.write_text("Engine 000: Avg prompt throughput: 1.0 tokens/s\n")
    bench.write_text(json.dumps({"duration": 10.0, "ttfts": [0.1], "generated_texts": ["private prose"]}))
    folder = capture_serve(
        ServeCapture(
            url=serve(fake), trace_dir=traces, log=log, bench=bench, output=tmp_path / "s.run", **QUICK
        )
    )
    assert [p for p, _ in fake.posts] == ["/start_profile", "/stop_profile"]
    assert sorted(p.name for p in folder.iterdir()) == [
        "bench.json", "metrics.prom", "run.json", "server.json", "server.log", "trace.rank0.json.gz"
    ]  # fmt: skip
    assert json.loads(gzip.decompress((folder / "trace.rank0.json.gz").read_bytes())) == {
        **TRACE,
        "host_name": "",
    }
    assert json.loads((folder / "bench.json").read_text()) == {"duration": 10.0, "ttfts": [0.1]}
    server = json.loads((folder / "server.json").read_text())
    assert server == {
        "schema": "diagnose-server/1", "engine": "vllm", "version": "0.33.0", "model": "Qwen3-8B",
        "max_model_len": 8192,
    }  # fmt: skip
    taken = scrapes(folder / "metrics.prom")
    assert 2 <= len(taken) <= 8  # one each 0.25 s for 1.5 s, fewer where the machine is slow
    assert [a[0] for a in taken] == sorted(a[0] for a in taken)
    values = []
    for _, text in taken:
        families = {f.name: f for f in text_string_to_metric_families(text)}
        values.append(families["vllm:num_requests_running"].samples[0].value)
    # The first scrape of all only found out which engine it is, so the file starts at the second.
    assert values == [float(n) for n in range(2, 2 + len(values))]
    run = json.loads((folder / "run.json").read_text())
    assert run["traces"] == ["trace.rank0.json.gz"] and run["window"]["profiled_seconds"] >= 0.3
    assert any("front end" in note for note in run["notes"])


def test_the_products_own_parser_reads_the_file(serve: Callable[[Fake], str], tmp_path: Path) -> None:
    parser = pytest.importorskip("diagnose.serving.metrics_parser")
    folder = capture_serve(ServeCapture(url=serve(vllm()), profile=False, output=tmp_path / "s.run", **QUICK))
    evidence = parser.read_metrics(folder / "metrics.prom")
    kept = len(scrapes(folder / "metrics.prom"))
    running = [s.value for s in evidence.samples if s.metric == "running"]
    assert running == [float(n) for n in range(2, 2 + kept)]
    # Each scrape adds 100 generated tokens, and counters are differenced between scrapes.
    generated = [s.value for s in evidence.samples if s.metric == "generation_tokens"]
    assert sum(generated) == 100.0 * (kept - 1)


def test_sglang_is_told_where_to_write_and_its_secrets_stay_there(
    serve: Callable[[Fake], str], tmp_path: Path
) -> None:
    fake = sglang()
    folder = capture_serve(ServeCapture(url=serve(fake), output=tmp_path / "s.run", **QUICK))
    start = dict(fake.posts)["/start_profile"]
    assert start["record_shapes"] is True and start["with_stack"] is False
    assert start["activities"] == ["CPU", "GPU"]
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["metrics.prom", "run.json", "server.json", "trace.rank0.json.gz", "trace.rank1.json.gz"]
    text = (folder / "server.json").read_text()
    assert json.loads(text)["settings"] == {
        "tp_size": 2, "chunked_prefill_size": 8192, "max_total_num_tokens": 464848, "version": "0.5.23"
    }  # fmt: skip
    assert not any(secret in text for secret in ("sk-secret", "10.0.0.7", "alice"))


def test_vllms_nested_settings_are_kept_and_read(serve: Callable[[Fake], str], tmp_path: Path) -> None:
    fake = vllm()
    info = {
        "vllm_config": {
            "model_config": {"model": "/home/alice/Qwen3-8B", "enforce_eager": True},
            "cache_config": {"cache_dtype": "fp8", "gpu_memory_utilization": 0.9},
            "parallel_config": {"data_parallel_master_ip": "10.0.0.7", "tensor_parallel_size": 2},
        },
        "vllm_env": {"VLLM_HOST_IP": "10.0.0.7"},
    }
    fake.answers["/server_info?config_format=json"] = lambda: (200, json.dumps(info))
    folder = capture_serve(ServeCapture(url=serve(fake), profile=False, output=tmp_path / "s.run", **QUICK))
    text = (folder / "server.json").read_text()
    assert json.loads(text)["settings"] == {
        "model_config.enforce_eager": True, "cache_config.cache_dtype": "fp8", "cache_config.gpu_memory_utilization": 0.9,
        "parallel_config.tensor_parallel_size": 2,
    }  # fmt: skip
    parser = pytest.importorskip("diagnose.serving.settings_parser")
    read = {s.key: s.value for s in parser.read_settings(folder / "server.json").settings}
    assert (read["enforce_eager"], read["kv_cache_dtype"], read["tp"]) == ("true", "fp8", "2")


def test_trtllm_statistics_are_kept_and_the_missing_endpoint_is_said(
    serve: Callable[[Fake], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake()
    count = iter(range(1000))
    fake.answers = {
        "/metrics": lambda: (200, json.dumps([{"iter": next(count), "numActiveRequests": 3}])),
        "/version": lambda: (200, '{"version": "1.1.0"}'),
    }
    folder = capture_serve(ServeCapture(url=serve(fake), output=tmp_path / "s.run", **QUICK))
    rows = [json.loads(line) for line in (folder / "iteration_stats.jsonl").read_text().splitlines()]
    assert [row["iter"] for row in rows] == list(range(1, 1 + len(rows))) and len(rows) >= 2
    assert all(row["scraped_at"] > 1e9 for row in rows)
    assert fake.posts == []
    assert "TLLM_TORCH_PROFILE_TRACE" in capsys.readouterr().err


def test_a_server_without_a_profiler_says_how_to_start_it_with_one(
    serve: Callable[[Fake], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = vllm()
    fake.start_status = 404
    folder = capture_serve(ServeCapture(url=serve(fake), output=tmp_path / "s.run", **QUICK))
    message = capsys.readouterr().err
    assert "HTTP 404" in message and "torch_profiler_record_shapes" in message
    run = json.loads((folder / "run.json").read_text())
    assert run["traces"] == [] and run["metrics"] == ["metrics.prom"]
    assert [p for p, _ in fake.posts] == ["/start_profile"]


def test_a_profiler_that_never_stops_is_left_after_the_timeout(
    serve: Callable[[Fake], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "t"
    traces.mkdir()
    fake = vllm(traces)
    fake.stop_delay_s = 60.0
    start = time.monotonic()
    folder = capture_serve(
        ServeCapture(
            url=serve(fake), trace_dir=traces, output=tmp_path / "s.run", stop_timeout_s=0.7, **QUICK
        )
    )
    assert time.monotonic() - start < 20
    assert "did not stop (/stop_profile: no answer within 0.7 s)" in capsys.readouterr().err
    run = json.loads((folder / "run.json").read_text())
    assert run["traces"] == [] and run["window"]["profiled_seconds"] is None
    assert run["window"]["scrapes"] >= 3  # scraping went on meanwhile


def test_a_trace_cut_short_is_left_out(
    serve: Callable[[Fake], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "t"
    traces.mkdir()
    fake = vllm(traces)
    fake.trace_names = []
    original = fake.post

    def post(path: str, body: Any) -> int:
        status = original(path, body)
        if path == "/stop_profile":
            whole = gzip.compress(
                json.dumps({"traceEvents": [{"name": str(i)} for i in range(9999)]}).encode()
            )
            (traces / "w.rank0.pt.trace.json.gz").write_bytes(whole[:-200])
        return status

    fake.post = post  # type: ignore[method-assign]
    folder = capture_serve(
        ServeCapture(url=serve(fake), trace_dir=traces, output=tmp_path / "s.run", **QUICK)
    )
    assert json.loads((folder / "run.json").read_text())["traces"] == []
    assert "cannot be read to its end" in capsys.readouterr().err


def test_no_server_is_one_line_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server answers there"):
        capture_serve(ServeCapture(url="http://127.0.0.1:9", output=tmp_path / "s.run", **QUICK))
    assert list(tmp_path.iterdir()) == []


def test_something_else_behind_the_port_is_refused(serve: Callable[[Fake], str], tmp_path: Path) -> None:
    fake = Fake()
    fake.answers = {"/metrics": lambda: (200, "# TYPE up gauge\nup 1\n")}
    with pytest.raises(UsageError, match="neither vLLM, SGLang nor TensorRT-LLM"):
        capture_serve(ServeCapture(url=serve(fake), output=tmp_path / "s.run", **QUICK))
    assert list(tmp_path.iterdir()) == [] and fake.posts == []


def test_metrics_that_stop_answering_are_counted(serve: Callable[[Fake], str], tmp_path: Path) -> None:
    fake = vllm()
    good = fake.answers["/metrics"]
    calls = iter(range(1000))
    fake.answers["/metrics"] = lambda: good() if next(calls) < 3 else (503, "overloaded")
    folder = capture_serve(ServeCapture(url=serve(fake), profile=False, output=tmp_path / "s.run", **QUICK))
    window = json.loads((folder / "run.json").read_text())["window"]
    assert window["scrapes"] == 2 and window["failed_scrapes"] >= 1


def test_nothing_obtained_is_an_error_and_no_folder(serve: Callable[[Fake], str], tmp_path: Path) -> None:
    fake = vllm()
    good = fake.answers["/metrics"]
    calls = iter(range(1000))
    fake.answers["/metrics"] = lambda: good() if next(calls) < 1 else (503, "down")
    with pytest.raises(InputError, match="no metrics and no trace"):
        capture_serve(ServeCapture(url=serve(fake), profile=False, output=tmp_path / "s.run", **QUICK))
    assert list(tmp_path.iterdir()) == []


def test_redirects_are_not_followed(serve: Callable[[Fake], str]) -> None:
    fake = Fake()
    server = serve_http.Server(serve(fake))
    fake.answers = {"/away": lambda: (302, "")}
    with pytest.raises(serve_http.ServerError, match="HTTP 302"):
        server.get("/away")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://gpu7:8000/", "http://gpu7:8000"),
        ("https://h/prefix/", "https://h/prefix"),
    ],
)
def test_urls(url: str, base: str) -> None:
    assert serve_http.check_url(url) == base


@pytest.mark.parametrize("url", ["ftp://h/", "http://", "http://u:p@h:1", "http://h:notaport"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(UsageError):
        serve_http.check_url(url)


def test_the_default_is_loopback_and_a_dry_run_sends_nothing() -> None:
    assert check(ServeCapture()).local
    assert not check(ServeCapture(url="http://gpu7:8000")).local
    text = dry_run(ServeCapture(engine="sglang", seconds=10))
    assert "POST http://127.0.0.1:8000/start_profile" in text and '"record_shapes": true' in text


def test_settings_keep_numbers_and_lose_names() -> None:
    assert public_settings(
        {
            "max_num_seqs": 256,
            "hf_token": "x",
            "log_dir": "/x",
            "parallel": {"tp": 2, "master_addr": "h"},
            "l": [1],
        }
    ) == {"max_num_seqs": 256, "parallel.tp": 2}
