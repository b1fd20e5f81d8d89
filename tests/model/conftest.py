"""Build runs from a few plain rows: kernels, copies, calls, annotations, all in nanoseconds."""

from collections.abc import Iterator
from typing import Any

import pytest

from diagnose.ingest.raw import ensure_raw
from diagnose.model import attribution, bounds
from diagnose.model.link import link, public_views
from diagnose.model.steps import StepOutcome, build_steps
from diagnose.store import BY_NAME, TABLES, Store
from diagnose.store.sqlfile import read_sql


class Run:
    """A run under construction. `k`, `copy` and `call` add rows; `build` runs the model stage up to `segment`."""

    def __init__(self) -> None:
        self.store = Store()
        ensure_raw(self.store)
        for table in TABLES:
            if table.stage == "ingest" and table.name != "host_call":
                self.store.con.execute(table.ddl())
        self.names: dict[str, int] = {}
        self.correlation = 1000
        self.outcome: StepOutcome | None = None

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names)
            self.store.con.execute("INSERT INTO name VALUES (?, ?)", [self.names[text], text])
        return self.names[text]

    def _row(self, table: str, row: dict[str, Any]) -> None:
        columns = ", ".join(row)
        marks = ", ".join("?" for _ in row)
        self.store.con.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))

    def call(
        self, start: int, dur: int, name: str = "cudaLaunchKernel", thread: int = 1, blocking: bool = False
    ) -> int:
        self.correlation += 1
        self._row("raw_host_call", {
            "source_id": 0, "process": 1, "thread": thread, "start_ns": start, "dur_ns": dur, "name_id": self.name(name),
            "correlation": self.correlation, "blocking": blocking,
        })  # fmt: skip
        return self.correlation

    def k(
        self, start: int, dur: int, *, launch: tuple[int, int] | None = None, correlation: int | None = None, name: str = "gemm",
        device: int = 0, stream: int = 7, thread: int = 1,
    ) -> None:  # fmt: skip
        if launch is not None:
            correlation = self.call(*launch, thread=thread)
        self._row("raw_kernel", {
            "source_id": 0, "device_id": device, "stream": stream, "start_ns": start, "dur_ns": dur, "name_id": self.name(name),
            "correlation": correlation, "grid": "[1,1,1]", "block": "[128,1,1]",
        })  # fmt: skip

    def copy(
        self, start: int, dur: int, kind: str, *, correlation: int | None = None, nbytes: int = 1024, device: int = 0, stream: int = 7,
        pageable: bool | None = None,
    ) -> None:  # fmt: skip
        self._row("raw_gpu_copy", {
            "source_id": 0, "device_id": device, "stream": stream, "start_ns": start, "dur_ns": dur, "name_id": self.name(f"Memcpy {kind}"),
            "correlation": correlation, "kind": kind, "bytes": nbytes, "pageable": pageable,
        })  # fmt: skip

    def annotate(
        self, start: int, dur: int, text: str, thread: int = 1, origin: str = "user_annotation"
    ) -> None:
        self._row("annotation", {
            "annotation_id": start, "source_id": 0, "origin": origin, "process": 1, "thread_or_stream": thread, "start_ns": start,
            "dur_ns": dur, "text": text,
        })  # fmt: skip

    def steps(self, step_annotation: str | None = None) -> StepOutcome:
        link(self.store)
        devices = tuple(r[0] for r in self.store.rows("SELECT DISTINCT device_id FROM activity ORDER BY 1"))
        bounds.write_families(self.store)
        self.outcome = build_steps(self.store, step_annotation, devices)
        public_views(self.store)
        return self.outcome

    def build(self, step_annotation: str | None = None) -> "Run":
        self.steps(step_annotation)
        attribution.cut(self.store)
        self.store.con.execute(BY_NAME["cost"].ddl())
        devices = [r[0] for r in self.store.rows("SELECT DISTINCT device_id FROM activity")]
        bounds.build_bounds(self.store, dict.fromkeys(devices), dict.fromkeys(devices))
        attribution.label(self.store)
        self.store.con.execute(read_sql("diagnose.model", "evidence.sql"))
        return self

    def buckets(self, device: int = 0) -> dict[str, int]:
        rows = self.store.rows(
            "SELECT bucket, sum(end_ns - start_ns)::BIGINT FROM segment WHERE device_id = ? GROUP BY 1",
            device,
        )
        return dict(rows)


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    made.store.close()


@pytest.fixture
def new_run() -> Iterator[Any]:
    made: list[Run] = []

    def make() -> Run:
        made.append(Run())
        return made[-1]

    yield make
    for one in made:
        one.store.close()
