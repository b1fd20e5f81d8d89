"""Ingest: one adapter a trace format; each writes the raw tables of `diagnose.ingest.raw` and nothing else."""
