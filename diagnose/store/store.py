"""One run's tables in one DuckDB connection, spilling to a private folder that goes away with it."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from diagnose.store.schema import BY_NAME, TABLES

# DuckDB hands out work by groups of this many rows: on fewer a second thread has nothing to do and costs all the same.
ROW_GROUP = 122_880


class Store:
    """The tables of one trace. `con` is the DuckDB connection; `folder` holds its Parquet parts and spill files.

    Use as a context manager: the folder (mode 0700, it holds a copy of the trace's names) is removed at the end.
    """

    def __init__(self, memory_limit: str = "256MB", threads: int = 2) -> None:
        """Open an empty store. `memory_limit` bounds DuckDB's buffers; larger tables spill to `folder`."""
        self.folder = Path(tempfile.mkdtemp(prefix="diagnose-"))
        self.large = False  # set by ingest: tables of a large trace live in Parquet, not in memory
        self._parts = 0
        self._threads = int(threads)
        self.con = duckdb.connect(":memory:")
        self.con.execute(f"SET memory_limit='{memory_limit}'")
        self.con.execute(f"SET threads={self._threads}")
        self.con.execute(f"SET temp_directory='{self.folder.as_posix()}'")
        self.con.execute("SET preserve_insertion_order=false")
        # DuckDB draws its own bar on stdout, which is for data, when a statement takes more than two seconds.
        self.con.execute("SET enable_progress_bar=false")
        self.con.execute("SET autoinstall_known_extensions=false")
        self.con.execute("SET autoload_known_extensions=false")

    def save(self, name: str, select: str) -> None:
        """Write a query's rows as table `name`: in memory, or for a large trace as a Parquet part behind a view."""
        if not self.large:
            self.con.execute(f'CREATE OR REPLACE TABLE "{name}" AS {select}')
            return
        self._parts += 1
        part = (self.folder / f"{name}-{self._parts}.parquet").as_posix()
        self.con.execute(f"COPY ({select}) TO '{part}' (FORMAT parquet, COMPRESSION snappy)")
        self.con.execute(f"""CREATE OR REPLACE VIEW "{name}" AS SELECT * FROM read_parquet('{part}')""")

    def expect_rows(self, rows: int) -> None:
        """Say how many rows the largest table has: small stores work with one thread."""
        self.con.execute(f"SET threads={1 if rows <= ROW_GROUP else self._threads}")

    def names(self) -> dict[str, str]:
        """Every table and view of the store by name: `TABLE` or `VIEW`."""
        # Not information_schema: it binds every view, which costs more than most of our statements.
        return dict(
            self.rows(
                "SELECT table_name, 'TABLE' FROM duckdb_tables() "
                "UNION ALL SELECT view_name, 'VIEW' FROM duckdb_views() WHERE NOT internal"
            )
        )

    def drop(self, *names: str) -> None:
        """Drop tables and views that `save` wrote, with their Parquet parts; names that are not there are no error."""
        have = self.names()
        self.con.execute("; ".join(f'DROP {have[name]} "{name}"' for name in names if name in have))
        if self._parts:
            for name in names:
                for part in self.folder.glob(f"{name}-*.parquet"):
                    part.unlink()

    def insert(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Append a few rows, given by column name, to a table of the schema; make it when it is not there."""
        self.con.execute(BY_NAME[table].ddl())
        for row in rows:
            names = ", ".join(f'"{key}"' for key in row)
            marks = ", ".join("?" for _ in row)
            self.con.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', list(row.values()))

    def ensure_tables(self) -> None:
        """Create, empty, every table of the schema that no stage has written, so that a query meets no missing name."""
        have = self.names()
        self.con.execute("; ".join(table.ddl() for table in TABLES if table.name not in have))

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """All rows of a query as tuples."""
        return self.con.execute(sql, list(params)).fetchall()

    def dicts(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """All rows of a query as dictionaries by column name."""
        cursor = self.con.execute(sql, list(params))
        names = [d[0] for d in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def scalar(self, sql: str, *params: Any) -> Any:
        """The first column of the first row, or None."""
        # Fetch to the end: a result left open blocks the connection's next statement.
        rows = self.con.execute(sql, list(params)).fetchall()
        return rows[0][0] if rows else None

    def count(self, table: str) -> int:
        """Rows of a table."""
        return int(self.scalar(f'SELECT count(*) FROM "{table}"') or 0)

    def insert_columns(self, table: str, columns: dict[str, list[Any]], types: dict[str, str]) -> None:
        """Create or replace `table` from Python lists of equal length; `types` gives each column's DuckDB type."""
        parts = ", ".join(f'unnest(?::{types[name]}[]) AS "{name}"' for name in columns)
        self.con.execute(f'CREATE OR REPLACE TABLE "{table}" AS SELECT {parts}', list(columns.values()))

    def close(self) -> None:
        """Close the connection and remove the folder."""
        self.con.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
