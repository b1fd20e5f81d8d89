"""The command line: one file a verb, errors caught here in one place."""

from diagnose.cli.app import main

__all__ = ["main"]
