"""Read a profiler trace of LLM inference and say what limits it, how sure that is, and what would prove it."""

__version__ = "0.1.0"
