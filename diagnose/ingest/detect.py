"""What kind of file or folder this is, by its content, never by its name."""

import re
from pathlib import Path

from isal import igzip_lib

from diagnose.errors import InputError
from diagnose.ingest.source import GZIP_MAGIC, open_regular

_LOOK = 1 << 16
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_DIAGNOSIS = re.compile(rb'"schema"\s*:\s*"diagnose/\d')
_EVENTS = re.compile(rb'(?<!\\)"(traceEvents|ph)"\s*:')


def detect(path: Path) -> str:
    """One of kineto, nsys-rep, nsys-sqlite, nsys-parquet, diagnosis-json.

    Raises InputError with one line when the path is none of them, is empty or cannot be read.
    """
    if path.is_dir():
        if any(path.glob("*.parquet")):
            return "nsys-parquet"
        raise InputError(f"{path}: a folder without Parquet files; give the trace file, or an `nsys export -t parquetdir` folder")
    with open_regular(path) as file:
        start = file.read(_LOOK) or b""
    if not start:
        raise InputError(f"{path}: the file is empty; capture the trace again")
    if start.startswith(GZIP_MAGIC):
        start = _inflate(path, start)
    if start.startswith(b"SQLite format 3\0"):
        return "nsys-sqlite"
    if b"Profiler Report" in start[:128] or start.startswith(b"QDSTRM"):
        return "nsys-rep"
    for magic, name in _PACKED.items():
        if start.startswith(magic):
            raise InputError(f"{path}: {name}-compressed; unpack it first (only gzip is read directly)")
    return _json(path, start.lstrip(b"\xef\xbb\xbf \t\r\n"))


def _inflate(path: Path, start: bytes) -> bytes:
    try:
        inside: bytes = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP).decompress(start, _LOOK)
    except (igzip_lib.IsalError, EOFError):
        raise InputError(f"{path}: gzip header, but nothing in it can be inflated; copy or capture it again") from None
    if not inside:
        raise InputError(f"{path}: gzip with nothing in it; capture the trace again")
    return inside


def _json(path: Path, text: bytes) -> str:
    if text[:1] not in (b"{", b"["):
        raise InputError(f"{path}: neither JSON nor an nsys report; give a PyTorch profiler trace or a .nsys-rep / .sqlite of nsys")
    if text[:1] == b"{" and not _EVENTS.search(text) and _DIAGNOSIS.search(text[:4096]):
        return "diagnosis-json"
    # a long head may hide the events: what starts like JSON and is no diagnosis is read as a trace, which then decides
    return "kineto"
