"""Anything that is no usable export: one line that says what is wrong and what to do, and the input left as
it was."""

import hashlib
import os
import random
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from diagnose.errors import InputError
from diagnose.ingest.nsys import load_nsys
from diagnose.store import Store

Load = Callable[..., Store]
Make = Callable[..., Path]
Pack = tuple[Callable[[int], int], Callable[[int, int], int]]


def _fails(path: Path, match: str) -> None:
    with Store() as store, pytest.raises(InputError, match=match) as caught:
        load_nsys(path, store)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_truncated(export: Make) -> None:
    path = export()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    _fails(path, f"truncated, {len(whole) // 2} of {len(whole)} bytes; copy it again")


def test_damaged_pages(export: Make) -> None:
    path = export()
    whole = bytearray(path.read_bytes())
    noise = random.Random(1).randbytes(4096)
    for page in range(2, len(whole) // 4096):
        whole[page * 4096 : (page + 1) * 4096] = noise
    path.write_bytes(whole)
    _fails(path, "damaged .*repeat `nsys export`")


def test_damaged_schema(export: Make) -> None:
    path = export()
    whole = bytearray(path.read_bytes())
    whole[100:4096] = random.Random(2).randbytes(3996)
    path.write_bytes(whole)
    _fails(path, "damaged|no Nsight Systems export")


def test_garbage(tmp_path: Path) -> None:
    for name in ("x.sqlite", "x.nsys-rep"):
        path = tmp_path / name
        path.write_bytes(random.Random(3).randbytes(10_000))
        _fails(path, "neither JSON nor an nsys report|no Nsight Systems")


def test_header_only(tmp_path: Path) -> None:
    path = tmp_path / "short.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(20))
    _fails(path, "no SQLite database")


def test_sqlite_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE customer (id INTEGER, name TEXT)")
        database.commit()
    _fails(path, "no Nsight Systems export")


def test_kineto_file_is_not_read_here(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    _fails(path, "no Nsight Systems report or export")


def test_without_strings(export: Make) -> None:
    _fails(export(StringIds=None), "no table StringIds")


def test_missing_column(export: Make) -> None:
    path = export()
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN end")
        database.commit()
    _fails(path, "table CUPTI_ACTIVITY_KIND_KERNEL has no column end")


def test_missing_optional_columns_and_tables(export: Make, loaded: Load) -> None:
    path = export(NVTX_EVENTS=None, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=None,
        TARGET_INFO_SESSION_START_TIME=None,
                  META_DATA_EXPORT=None, PROFILER_OVERHEAD=None)  # fmt: skip
    with closing(sqlite3.connect(path)) as database:
        for column in ("graphNodeId", "globalPid", "correlationId", "registersPerThread", "demangledName"):
            database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
        database.commit()
    store = loaded(path)
    assert store.rows(
        "SELECT process, correlation, registers, start_ns, n.text FROM raw_kernel JOIN name n USING "
        "(name_id) ORDER BY start_ns"
    ) == [(None, None, None, 900, "gemm"), (None, None, None, 1900, "gemm")]
    assert store.rows("SELECT captured_at, profiler_version, origin_ns FROM source") == [(None, None, 100)]


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(os, "chmod"), reason="needs file modes")
def test_input_is_left_alone(export: Make, loaded: Load) -> None:
    """Same bytes, same time stamp, and nothing beside it, even for a database left in write-ahead mode."""
    path = export()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.commit()
    before = (
        hashlib.sha256(path.read_bytes()).hexdigest(),
        path.stat().st_mtime_ns,
        sorted(path.parent.iterdir()),
    )
    path.chmod(0o400)
    store = loaded(path)
    assert store.count("raw_kernel") == 2
    after = (
        hashlib.sha256(path.read_bytes()).hexdigest(),
        path.stat().st_mtime_ns,
        sorted(path.parent.iterdir()),
    )
    assert after == before
    assert store.scalar("SELECT sha256 FROM source") == before[0]


def test_odd_file_names(export: Make, loaded: Load) -> None:
    for name in ("a b?c#d%20.sqlite", "it's.sqlite", 'q"uote.sqlite'):
        assert loaded(export(name=name)).count("raw_kernel") == 2


def _everything(store: Store) -> dict[str, list[tuple[object, ...]]]:
    tables = (
        "raw_kernel",
        "raw_gpu_copy",
        "raw_gpu_memset",
        "raw_host_call",
        "raw_op",
        "annotation",
        "sync",
        "name",
        "signature",
    )
    return {table: store.rows(f"SELECT * FROM {table} ORDER BY ALL") for table in tables}


def test_without_adbc(export: Make, loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library's reader gives the same tables."""
    path = export()
    expected = _everything(loaded(path))
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    assert _everything(loaded(path)) == expected
    assert any(expected.values())


def test_text_that_is_not_utf8(export: Make, loaded: Load, pack: Pack) -> None:
    """One bad name does not cost the report: the bytes that say nothing are replaced."""
    _, tid = pack
    row = {"start": 200, "end": 300, "eventType": 59, "globalTid": tid(100, 101), "text": "fine"}
    path = export(NVTX_EVENTS=[row])
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE NVTX_EVENTS SET text = CAST(x'6869ff21' AS TEXT)")
        database.commit()
    assert loaded(path).rows("SELECT text FROM annotation") == [("hi\ufffd!",)]


def test_hostile_names(export: Make, loaded: Load, pack: Pack) -> None:
    """Quotes, SQL, markup and control characters are text like any other."""
    _, tid = pack
    texts = ["'; DROP TABLE name; --", "</script><b>", "{origin} {last}", "a\tb\nc", '"quoted"', "%s {0}"]
    row = {"eventType": 59, "globalTid": tid(100, 101)}
    rows = [{**row, "start": 200 + i, "end": 300, "text": text} for i, text in enumerate(texts)]
    assert loaded(export(NVTX_EVENTS=rows)).rows("SELECT text FROM annotation ORDER BY start_ns") == [
        (t,) for t in texts
    ]


def test_parquet_folder(export: Make, loaded: Load, tmp_path: Path) -> None:
    """A folder of Parquet files with the same rows gives the same tables; ids are unsigned there, as nsys
    writes them."""
    path = export()
    folder = tmp_path / "run_pqtdir"
    folder.mkdir()
    with closing(sqlite3.connect(path)) as database, duckdb.connect() as con:
        for (table,) in database.execute("SELECT name FROM sqlite_master").fetchall():
            info = database.execute(f'PRAGMA table_info("{table}")').fetchall()
            types = ", ".join(
                f'"{c}" {"VARCHAR" if t == "TEXT" else "UBIGINT" if c.startswith("global") else "BIGINT"}'
                for _, c, t, *_ in info
            )
            con.execute(f'CREATE TABLE "{table}" ({types})')
            rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            con.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" for _ in info)})', rows)
            con.execute(f"COPY \"{table}\" TO '{folder / table}.parquet' (FORMAT parquet)")
    store = loaded(folder)
    assert _everything(store) == _everything(loaded(path))
    assert store.rows("SELECT path, format FROM source") == [("run_pqtdir", "nsys-parquet")]
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert store.scalar("SELECT bytes FROM source") == size


def test_damaged_parquet_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1" + bytes(100))
    _fails(folder, "damaged .*repeat `nsys export`")


def test_progress_goes_to_the_end(export: Make, loaded: Load) -> None:
    seen: list[tuple[int, int]] = []
    loaded(export(), progress=lambda done, total: seen.append((done, total)))
    shares = [done / total for done, total in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 5


def test_stdout_is_left_to_data(export: Make, loaded: Load) -> None:
    """DuckDB draws a bar on stdout once a statement takes two seconds, which would end up in `--json -`."""
    assert loaded(export()).scalar("SELECT current_setting('enable_progress_bar')") is False
