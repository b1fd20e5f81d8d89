"""Serving evidence: engine metrics, logs, benchmark results and the model config, read beside or without a
trace."""
