"""An Nsight Systems export as tables: SQLite files and Parquet folders behind one small interface.

SQLite is streamed through ADBC into DuckDB (no pyarrow, no DuckDB extension), and row by row through the
standard library where ADBC cannot: no driver on this platform, text that is not UTF-8, or a column whose
first 65,536 values suggest another type than a later one. The file is opened `immutable`, so that nothing is
ever created beside it.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import duckdb
import msgspec

from diagnose.errors import InputError
from diagnose.store import Store

SQLITE_MAGIC = b"SQLite format 3\0"
_TEXT_COLUMNS = frozenset({"value", "text", "name", "metricName"})
_BATCH = 50_000


class Tables(Protocol):
    """What the loader needs of an export. Column lists name existing columns only."""

    format: str
    path: Path

    def columns(self, table: str) -> frozenset[str]:
        """Column names of a table, empty when the export lacks it."""

    def fetch(self, table: str, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
        """All rows of a small table."""

    def copy(
        self, store: Store, table: str, columns: Sequence[str], select: str, to: Path, where: str = ""
    ) -> None:
        """Write `select`, a query over the relation `scan` with these columns, to the Parquet file `to`."""

    def close(self) -> None:
        """Release the file."""


def quoted(columns: Sequence[str]) -> str:
    """Column names as SQL identifiers."""
    return ", ".join(f'"{c}"' for c in columns)


class SqliteTables:
    """`nsys export -t sqlite`, read only."""

    format = "nsys-sqlite"

    def __init__(self, path: Path, given: Path | None = None) -> None:
        """Open `path`; messages name `given`, the report it was exported from. InputError when it is
        damaged."""
        self.path = given or path
        _check_complete(path)
        self._uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
        self._sqlite = sqlite3.connect(self._uri, uri=True)
        self._sqlite.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            rows = self._sqlite.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
            self._columns = {name: frozenset(self._table_info(name)) for (name,) in rows}
        except sqlite3.DatabaseError as error:
            self.close()
            raise damaged(self.path, error) from error

    def _table_info(self, table: str) -> list[str]:
        quoted_name = table.replace('"', '""')
        return [row[1] for row in self._sqlite.execute(f'PRAGMA table_info("{quoted_name}")')]

    def columns(self, table: str) -> frozenset[str]:
        """Column names of a table, empty when the export lacks it."""
        return self._columns.get(table, frozenset())

    def fetch(self, table: str, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
        """All rows of a small table. InputError when the database is damaged."""
        try:
            return self._sqlite.execute(_select(table, columns, where)).fetchall()
        except sqlite3.DatabaseError as error:
            raise damaged(self.path, error) from error

    def copy(
        self, store: Store, table: str, columns: Sequence[str], select: str, to: Path, where: str = ""
    ) -> None:
        """Stream the table into `select` and write a Parquet file. InputError when the database is
        damaged."""
        try:
            with self._adbc_scan(store, table, columns, where):
                _write(store, select, to)
        except _AdbcUnusable:
            with self._rows_scan(store, table, columns, where):
                _write(store, select, to)

    @contextmanager
    def _adbc_scan(self, store: Store, table: str, columns: Sequence[str], where: str) -> Iterator[None]:
        try:
            # Not their `dbapi`, which imports pyarrow and pandas where they happen to be installed.
            import adbc_driver_manager as manager
            import adbc_driver_sqlite as driver
        except ImportError as error:
            raise _AdbcUnusable from error
        # A text column that starts with NULLs is taken for an integer one: hand over '' instead, NULLIF it
        # later.
        names = [f'COALESCE("{c}", \'\') AS "{c}"' if c in _TEXT_COLUMNS else f'"{c}"' for c in columns]
        try:
            with (
                driver.connect(self._uri) as database,
                manager.AdbcConnection(database) as connection,
                manager.AdbcStatement(connection) as statement,
            ):
                statement.set_sql_query(f'SELECT {", ".join(names)} FROM "{table}"{_where(where)}')
                store.con.register("scan_stream", statement.execute_query()[0])
                # decode raises for bytes that are not UTF-8, which nothing else checks before a later reading fails.
                texts = [f'decode(encode("{c}")) AS "{c}"' for c in columns if c in _TEXT_COLUMNS]
                replace = f" REPLACE ({', '.join(texts)})" if texts and table != "GPU_METRICS" else ""
                store.con.execute(f"CREATE OR REPLACE TEMP VIEW scan AS SELECT *{replace} FROM scan_stream")
                try:
                    yield
                finally:
                    store.con.execute("DROP VIEW IF EXISTS scan")
                    store.con.unregister("scan_stream")
        except duckdb.OutOfMemoryException:
            raise
        except (manager.Error, duckdb.Error) as error:
            raise _AdbcUnusable from error

    @contextmanager
    def _rows_scan(self, store: Store, table: str, columns: Sequence[str], where: str) -> Iterator[None]:
        """The slow, lenient path: rows as JSON lines in the store's private folder."""
        lines = store.folder / "nsys_scan.ndjson"
        encoder = msgspec.json.Encoder()
        types = {c: "VARCHAR" if c in _TEXT_COLUMNS else "BIGINT" for c in columns}
        try:
            with lines.open("wb") as out:
                cursor = self._sqlite.execute(_select(table, columns, where))
                while rows := cursor.fetchmany(_BATCH):
                    out.write(encoder.encode_lines([dict(zip(columns, row, strict=True)) for row in rows]))
            spec = ", ".join(f"'{c}': '{t}'" for c, t in types.items())
            source = f"read_json('{lines.as_posix()}', format='newline_delimited', columns={{{spec}}})"
            if lines.stat().st_size == 0:
                source = (
                    "(SELECT " + ", ".join(f'NULL::{t} AS "{c}"' for c, t in types.items()) + " WHERE false)"
                )
            store.con.execute(f"CREATE OR REPLACE TEMP VIEW scan AS SELECT * FROM {source}")
            yield
        except duckdb.OutOfMemoryException:
            raise
        except (sqlite3.DatabaseError, duckdb.Error, UnicodeError) as error:
            raise damaged(self.path, error) from error
        finally:
            store.con.execute("DROP VIEW IF EXISTS scan")
            lines.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the database."""
        self._sqlite.close()


class ParquetTables:
    """`nsys export -t parquetdir`: a folder with one Parquet file a table."""

    format = "nsys-parquet"

    def __init__(self, path: Path) -> None:
        """Probe the folder. InputError when a file of it cannot be read."""
        self.path = path
        self._con = duckdb.connect(":memory:")
        self._con.execute("SET enable_progress_bar=false")
        self._files = {file.stem: file for file in sorted(path.glob("*.parquet"))}
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        """Column names of a table, empty when the export lacks it. InputError when its file is damaged."""
        if table not in self._columns:
            names: list[str] = []
            if table in self._files:
                try:
                    rows = self._con.execute(f"DESCRIBE SELECT * FROM {self._scan(table)}").fetchall()
                except duckdb.Error as error:
                    raise damaged(self._files[table], error) from error
                names = [row[0] for row in rows]
            self._columns[table] = frozenset(names)
        return self._columns[table]

    def _scan(self, table: str) -> str:
        file = self._files[table].as_posix().replace("'", "''")
        return f"read_parquet('{file}')"

    def fetch(self, table: str, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
        """All rows of a small table. InputError when its file is damaged."""
        try:
            return self._con.execute(
                f"SELECT {quoted(columns)} FROM {self._scan(table)}{_where(where)}"
            ).fetchall()
        except duckdb.Error as error:
            raise damaged(self._files[table], error) from error

    def copy(
        self, store: Store, table: str, columns: Sequence[str], select: str, to: Path, where: str = ""
    ) -> None:
        """Scan the table's file into `select` and write a Parquet file. InputError when it is damaged."""
        store.con.execute(
            f"CREATE OR REPLACE TEMP VIEW scan AS "
            f"SELECT {quoted(columns)} FROM {self._scan(table)}{_where(where)}"
        )
        try:
            _write(store, select, to)
        except duckdb.Error as error:
            raise damaged(self._files[table], error) from error
        finally:
            store.con.execute("DROP VIEW IF EXISTS scan")

    def close(self) -> None:
        """Close the probing connection."""
        self._con.close()


class _AdbcUnusable(Exception):
    """ADBC cannot stream this table here; the standard library reads it."""


def _write(store: Store, select: str, to: Path) -> None:
    # The size of a stream is unknown to the optimizer, which would put it on the side of a join that is kept
    # in memory.
    store.con.execute("SET disabled_optimizers='build_side_probe_side,join_order'")
    try:
        _write_parquet(store, select, to)
    finally:
        store.con.execute("RESET disabled_optimizers")


def _write_parquet(store: Store, select: str, to: Path) -> None:
    store.con.execute(f"COPY ({select}) TO '{to.as_posix()}' (FORMAT parquet, COMPRESSION snappy)")


def _where(where: str) -> str:
    return f" WHERE {where}" if where else ""


def _select(table: str, columns: Sequence[str], where: str) -> str:
    return f'SELECT {quoted(columns)} FROM "{table}"{_where(where)}'


def _check_complete(path: Path) -> None:
    """The header's page count against the file's size: a copy cut short is the commonest damage."""
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(SQLITE_MAGIC):
        raise InputError(f"{path}: no SQLite database; give an export made by `nsys export -t sqlite`")
    page = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
    have = path.stat().st_size
    if have < expected:
        raise InputError(
            f"{path}: truncated, {have} of {expected} bytes; copy it again, or repeat `nsys export -t sqlite`"
        )


def damaged(path: Path, error: Exception) -> InputError:
    """The one line for a file that opens but cannot be read."""
    reason = " ".join(str(error).replace(str(path), "").split())[:160]
    return InputError(f"{path}: damaged ({reason}); repeat `nsys export` from the .nsys-rep file")
