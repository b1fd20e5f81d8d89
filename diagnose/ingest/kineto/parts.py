"""Chunks of events to Parquet parts: a chunk file, one DuckDB statement, on threads beside the splitter."""

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb

from diagnose.ingest.kineto.columns import rename, select
from diagnose.ingest.kineto.repair import Damage, clean
from diagnose.ingest.kineto.split import Chunk
from diagnose.store.store import Store

_WRITERS = 2
_BAD_DATA = (duckdb.InvalidInputException, duckdb.DataError)  # not: a mistake in the statement


@dataclass(slots=True)
class _Written:
    done: bool
    damage: Damage


class Parts:
    """Writes `event-*.parquet` into the store's folder; `damage` counts what DuckDB would not read as it was."""

    def __init__(self, store: Store) -> None:
        self.damage = Damage()
        self.written = 0
        self._chunks: list[tuple[int, int]] = []  # (offset, events) by number
        self._folder: Path = store.folder
        self._free = [store.con.cursor() for _ in range(_WRITERS)]

    @property
    def pattern(self) -> str:
        """Glob of the parts."""
        return (self._folder / "event-*.parquet").as_posix()

    def write(self, chunks: Iterable[Chunk]) -> None:
        """Write all chunks: while DuckDB, which releases the interpreter, reads some, the next is split."""
        pending: deque[Future[_Written]] = deque()
        with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
            for number, chunk in enumerate(chunks):
                if len(pending) == _WRITERS:
                    self._settle(pending.popleft().result())
                self._chunks.append((chunk.offset, chunk.events))
                if chunk.events:
                    pending.append(pool.submit(self._add, number, chunk))
            while pending:
                self._settle(pending.popleft().result())
        for cursor in self._free:
            cursor.close()

    def _settle(self, written: _Written) -> None:
        self.written += written.done
        self.damage.merge(written.damage)

    def drop_from(self, offset: int) -> int:
        """Delete the parts from the chunk that holds `offset` on; how many events the parts before it hold."""
        keep = max(0, sum(start <= offset for start, _ in self._chunks) - 1)
        for number in range(keep, len(self._chunks)):
            self._part(number).unlink(missing_ok=True)
        self.written = len(list(self._folder.glob("event-*.parquet")))
        return sum(events for _, events in self._chunks[:keep])

    def _part(self, number: int) -> Path:
        return self._folder / f"event-{number:05d}.parquet"

    def remove(self) -> None:
        """Delete the parts once the tables are made."""
        for part in self._folder.glob("event-*.parquet"):
            part.unlink()

    def _add(self, number: int, chunk: Chunk) -> _Written:
        cursor = self._free.pop()
        damage = Damage()
        body = rename(chunk.body)
        try:
            self._copy(cursor, number, body)
        except _BAD_DATA:
            result = clean(body, chunk.offset, damage, drop_python=False)
            try:
                self._copy(cursor, number, result.body)
            except _BAD_DATA:
                # no event of a cleaned chunk should fail; if one does, none of them is used and that is said
                damage.quarantine(chunk.offset, chunk.events)
                return _Written(False, damage)
        finally:
            self._free.append(cursor)
        return _Written(True, damage)

    def _copy(self, cursor: duckdb.DuckDBPyConnection, number: int, body: bytes) -> None:
        path = self._folder / f"chunk-{number:05d}.json"
        part = self._part(number)
        with open(path, "wb", buffering=0, opener=_private) as file:
            for piece in (b"[", body, b"]"):
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) or 0 :]
        try:
            query = select(path.as_posix(), len(body))
            cursor.execute(f"COPY ({query}) TO '{part.as_posix()}' (FORMAT parquet, COMPRESSION snappy)")
        except duckdb.Error:
            part.unlink(missing_ok=True)
            raise
        finally:
            path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
