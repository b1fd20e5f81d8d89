"""Nsight Systems: reports, SQLite exports and Parquet folders."""

from diagnose.ingest.nsys.load import load_nsys

__all__ = ["load_nsys"]
