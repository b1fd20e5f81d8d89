"""The store: DuckDB tables that every stage after ingest reads."""

from diagnose.store.schema import BY_NAME, TABLES, Column, Table
from diagnose.store.store import Store

__all__ = ["BY_NAME", "TABLES", "Column", "Store", "Table"]
