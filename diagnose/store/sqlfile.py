"""SQL lives in .sql files beside the module that runs it."""

from functools import cache
from importlib import resources


@cache
def read_sql(package: str, name: str) -> str:
    """The text of `name` (with .sql) in `package`."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
