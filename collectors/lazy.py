"""torch, loaded when first needed: everything that does not run a model works without it."""

import importlib
from typing import Any


def torch_module() -> Any:
    """The torch package, untyped, so that type checking is the same with and without it installed."""
    return importlib.import_module("torch")
