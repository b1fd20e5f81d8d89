"""`detect` and `load`: any supported file by its content; progress; what large runs do with memory."""

import gzip
import json

import pytest

from diagnose.errors import InputError
from diagnose.ingest import detect, load
from diagnose.ingest.kineto import load as kineto_load
from diagnose.model.link import link
from diagnose.store import Store


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"traceEvents": []}', "kineto"),
        (b' \n{"schemaVersion": 1, "traceEvents": [', "kineto"),
        (b'\xef\xbb\xbf{"traceEvents" : [', "kineto"),
        (b'[{"ph": "X"}]', "kineto"),
        (b'{"schemaVersion": 1, "log": "' + b"x" * 200_000 + b'", "traceEvents": [', "kineto"),
        (b'{"schema": "diagnose/1", "tool_version": "1"}', "diagnosis-json"),
        (b"SQLite format 3\0" + bytes(100), "nsys-sqlite"),
        (b"NVIDIA Tegra Profiler Report 2023@4@4@54-234433681190v0.\n\0\0", "nsys-rep"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["trace.json", "trace.txt", "noext", "x.sqlite"])
def test_by_content_whatever_the_name(tmp_path, content, kind, packed, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if packed else content)
    if packed and kind.startswith("nsys"):
        with pytest.raises(InputError, match="unpack it first"):
            detect(path)
    else:
        assert detect(path) == kind


def test_a_folder_of_parquet_is_an_nsys_export(tmp_path):
    (tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1")
    assert detect(tmp_path) == "nsys-parquet"


def test_a_diagnosis_is_no_trace(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps({"schema": "diagnose/1"}))
    with Store() as store, pytest.raises(InputError, match="a diagnosis, not a trace"):
        load(path, store)


@pytest.mark.parametrize("low_memory", [False, True])
def test_progress_and_source(tmp_path, make, low_memory):
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(make.text(make.small() * 2000).encode()))
    seen = []
    with Store() as store:
        load(path, store, low_memory=low_memory, progress=lambda done, total: seen.append((done, total)))
        size = path.stat().st_size
        assert seen[-1] == (size, size) and seen == sorted(seen)
        assert store.rows("SELECT path, format, bytes FROM source") == [
            ("t.json.gz", "kineto", len(make.text(make.small() * 2000)))
        ]


def test_large_runs_keep_their_tables_in_parquet(tmp_path, make, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text(make.text(make.small()))
    rows = []
    for limit in (10**9, 10):
        monkeypatch.setattr(kineto_load, "LARGE_BYTES", limit)
        with Store() as store:
            load(path, store)
            assert store.large is (limit == 10)
            link(store)
            rows.append(
                [
                    store.rows(f"FROM {t}")
                    for t in ("kernel", "op", "host_call", "annotation", "name", "memory_event")
                ]
            )
            assert not [p for p in store.folder.iterdir() if p.suffix != ".parquet"]
    assert rows[0] == rows[1]


def test_the_same_trace_gives_the_same_ids(tmp_path, make):
    events = [
        make.op("a", 10, 5, 1),
        make.op("a", 10, 5, 2),
        make.op("b", 10, 5, 3),
        make.device("k", 12, 1, 4),
        make.device("k", 12, 1, 5, stream=8),
    ]
    results = set()
    for order in (events, events[::-1]):
        path = tmp_path / "t.json"
        path.write_text(make.text(order))
        with Store() as store:
            load(path, store)
            link(store)
            results.add(str([store.rows(f"FROM {t} ORDER BY ALL") for t in ("kernel", "op", "name")]))
    assert len(results) == 1


def test_a_full_disk_is_one_line(tmp_path, make, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text(make.text(make.small()))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("diagnose.ingest.kineto.parts.Parts._copy", full)
    with (
        Store() as store,
        pytest.raises(InputError, match=r"reading stopped \(No space left on device\).*set TMPDIR"),
    ):
        load(path, store)
