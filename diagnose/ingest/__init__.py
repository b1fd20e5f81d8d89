"""Ingest: one adapter a trace format; each writes the raw tables of `diagnose.ingest.raw`, nothing else."""

from diagnose.ingest.detect import detect
from diagnose.ingest.load import load

__all__ = ["detect", "load"]
