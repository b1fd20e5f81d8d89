"""PyTorch profiler (Kineto) traces: streamed to Parquet parts a chunk at a time, so memory follows the chunk size."""

from diagnose.ingest.kineto.load import load_kineto

__all__ = ["load_kineto"]
