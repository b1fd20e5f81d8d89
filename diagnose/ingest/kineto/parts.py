"""Chunks of events to Parquet parts: a chunk file, one DuckDB statement, on a thread beside the splitter."""

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import duckdb

from diagnose.ingest.kineto.columns import rename, select
from diagnose.ingest.kineto.repair import Damage, clean
from diagnose.ingest.kineto.split import Chunk
from diagnose.store.store import Store

_LEAST_BUFFER = 1 << 20
_BAD_DATA = (duckdb.InvalidInputException, duckdb.DataError)  # not: a mistake in the statement


class Parts:
    """Writes `event-*.parquet` into the store's folder; `damage` counts what DuckDB would not read as it was."""

    def __init__(self, store: Store) -> None:
        self.damage = Damage()
        self.written = 0
        self._folder: Path = store.folder
        self._con = store.con.cursor()

    @property
    def pattern(self) -> str:
        """Glob of the parts."""
        return (self._folder / "event-*.parquet").as_posix()

    def write(self, chunks: Iterable[Chunk]) -> None:
        """Write all chunks: while DuckDB, which releases the interpreter, reads one, the next is split."""
        pending: Future[None] | None = None
        with ThreadPoolExecutor(max_workers=1) as pool:
            for chunk in chunks:
                if pending:
                    pending.result()
                pending = pool.submit(self._add, chunk) if chunk.events else None
            if pending:
                pending.result()
        self._con.close()

    def remove(self) -> None:
        """Delete the parts once the tables are made."""
        for part in self._folder.glob("event-*.parquet"):
            part.unlink()

    def _add(self, chunk: Chunk) -> None:
        body = rename(chunk.body)
        try:
            self._copy(body)
        except _BAD_DATA:
            before = self.damage.quarantined
            result = clean(body, chunk.offset, self.damage, drop_python=False)
            try:
                self._copy(result.body)
            except _BAD_DATA:
                # not one event of a clean chunk should fail; if it does, none of it is used and that is said
                self.damage.quarantined = before + chunk.events

    def _copy(self, body: bytes) -> None:
        path = self._folder / "chunk.json"
        part = self._folder / f"event-{self.written:05d}.parquet"
        with open(path, "wb", buffering=0, opener=_private) as file:
            for piece in (b"[", body, b"]"):
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) or 0 :]
        try:
            query = select(path.as_posix(), max(len(body), _LEAST_BUFFER))
            self._con.execute(f"COPY ({query}) TO '{part.as_posix()}' (FORMAT parquet, COMPRESSION snappy)")
            self.written += 1
        except duckdb.Error:
            part.unlink(missing_ok=True)
            raise
        finally:
            path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
