"""Load a trace of any supported format into a store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from diagnose.errors import InputError
from diagnose.ingest.detect import detect
from diagnose.ingest.kineto.load import load_kineto
from diagnose.ingest.kineto.split import CHUNK_BYTES
from diagnose.store.store import Store

LOW_MEMORY_CHUNK = 1 << 20


def load(
    path: Path,
    store: Store,
    *,
    python: bool = False,
    low_memory: bool = False,
    nsys: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fill the raw tables (`diagnose.ingest.raw`) and the public tables of stage `ingest` from one trace.

    One trace a store. `python` keeps Python frames (table python_call), `low_memory` reads in smaller chunks,
    `nsys` names the program that exports a .nsys-rep report, searched for when None. `progress` is called with
    (done, total): bytes of the file read, or thousandths for nsys. Raises InputError with one line.
    """
    with _one_line(path, store):
        kind = detect(path)
        if kind == "kineto":
            chunk = LOW_MEMORY_CHUNK if low_memory else CHUNK_BYTES
            load_kineto(path, store, python=python, chunk_bytes=chunk, progress=progress)
        elif kind.startswith("nsys-"):
            from diagnose.ingest.nsys import load_nsys

            load_nsys(path, store, nsys=nsys, progress=progress)
        else:
            raise InputError(
                f"{path}: a diagnosis, not a trace; give the trace, or compare two diagnoses with `diagnose compare`"
            )


@contextmanager
def _one_line(path: Path, store: Store) -> Iterator[None]:
    """Turn a machine too small for the trace into an InputError."""
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"{path}: not enough memory to read it; use --low-memory, or a larger machine"
        ) from None
    except (OSError, duckdb.IOException) as error:
        reason = getattr(error, "strerror", None) or "input or output failed"
        folder = store.folder.parent
        raise InputError(
            f"{path}: reading stopped ({reason}); its tables go to {folder}: free space there, or set TMPDIR"
        ) from None
