"""Small Kineto traces made by code, and an independent reading of real ones with the standard library."""

import gzip
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from diagnose.ingest.kineto import load_kineto
from diagnose.model.link import link
from diagnose.store import Store

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "kineto"
REAL = (
    "hf_bert-small_h100", "hf_vit_h100", "hf_qwen1.5-0.5b_h100_prefill", "hf_qwen1.5-0.5b_mi300x_prefill", "hf_owlv2_h100",
    "sglang_qwen3-8b_mi300x_decode_graph", "sglang_qwen3-8b_mi300x_decode_capture", "sglang_qwen3-8b_mi300x_prefill",
    "vllm_gptoss_b200_tp8_eager_prefill", "vllm_gptoss_mi300x_decode_fullgraph", "vllm_gptoss_mi300x_decode_capture",
)  # fmt: skip

Event = dict[str, Any]


def op(
    name: str, ts: Any, dur: Any, ext: int | None = None, tid: Any = 7, pid: Any = 7, **args: Any
) -> Event:
    """A cpu_op event; ts and dur in microseconds."""
    if ext is not None:
        args["External id"] = ext
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def call(
    name: str, ts: Any, dur: Any, corr: int, ext: int | None = None, tid: Any = 7, pid: Any = 7, **args: Any
) -> Event:
    """A cuda_runtime event."""
    if ext is not None:
        args["External id"] = ext
    args["correlation"] = corr
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def device(
    name: str,
    ts: Any,
    dur: Any,
    corr: int,
    ext: int | None = None,
    cat: str = "kernel",
    stream: int = 7,
    gpu: int = 0,
    **args: Any,
) -> Event:
    """A device event."""
    if ext is not None:
        args["External id"] = ext
    args |= {"correlation": corr, "stream": stream, "device": gpu}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": gpu,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def python(name: str, ts: Any, dur: Any) -> Event:
    """A Python frame."""
    return {
        "ph": "X", "cat": "python_function", "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur,
        "args": {"Python parent id": None, "Python id": 1},
    }  # fmt: skip


class Make:
    """Builders handed to tests by the fixture `make`."""

    op = staticmethod(op)
    call = staticmethod(call)
    device = staticmethod(device)
    python = staticmethod(python)

    @staticmethod
    def small() -> list[Event]:
        """One launch inside one operator inside another, and its kernel."""
        return [
            op("aten::linear", 10, 30, 1), op("aten::mm", 15, 20, 2, **{"Input Dims": [[4, 8], [8, 2]]}),
            python("model.py(3): forward", 5, 100), call("cudaLaunchKernel", 20, 5, 11, 2),
            {"ph": "s", "id": 11, "pid": 7, "tid": 7, "ts": 20, "cat": "ac2g", "name": "ac2g"},
            device("gemm", 40, 12.5, 11, 2, grid=[4, 1, 1], block=[128, 1, 1]),
        ]  # fmt: skip

    @staticmethod
    def text(events: list[Event], **around: Any) -> str:
        """A trace in the layout of json.dumps."""
        return json.dumps({"schemaVersion": 1, **around, "traceEvents": events, "traceName": "/tmp/x.json"})


@pytest.fixture
def make() -> Make:
    return Make()


Load = Callable[..., Store]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """load(text or bytes or path, linked=False, **options) -> Store; closed at the end of the test."""
    stores: list[Store] = []

    def run(source: str | bytes | Path, linked: bool = False, **options: Any) -> Store:
        if not isinstance(source, Path):
            path = tmp_path / f"trace{len(stores)}.json"
            path.write_bytes(source.encode() if isinstance(source, str) else source)
            source = path
        store = Store()
        stores.append(store)
        load_kineto(source, store, **options)
        if linked:
            link(store)
        return store

    yield run
    for store in stores:
        store.close()


@pytest.fixture
def notes() -> Callable[[Store], dict[str, int]]:
    """notes(store) -> {code: count}."""
    return lambda store: {row["code"]: row["count"] for row in store.dicts("FROM ingest_note")}


def real_path(name: str) -> Path:
    path = SHARED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"real traces are absent: {path}")
    return path


@pytest.fixture(params=REAL, scope="module")  # module scope: pytest then runs all tests of one trace together
def real(request: pytest.FixtureRequest) -> Path:
    return real_path(request.param)


@pytest.fixture
def real_named() -> Callable[[str], Path]:
    return real_path


@lru_cache(maxsize=1)
def _events_of(path: Path) -> tuple[dict[str, Any], list[Event]]:
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return document, document.pop("traceEvents")


@pytest.fixture
def events_of() -> Callable[[Path], tuple[dict[str, Any], list[Event]]]:
    """(rest, events) of a trace by the standard library, numbers exact."""

    return _events_of
