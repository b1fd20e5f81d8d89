"""What kind of file or folder this is, by its content, never by its name."""

import re
from pathlib import Path

import msgspec
from isal import igzip_lib

from diagnose.errors import InputError
from diagnose.ingest.source import GZIP_MAGIC, INFLATE_ERROR, MAX_HEAD_BYTES, ByteSource, open_regular

_LOOK = 1 << 16
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_DIAGNOSIS = re.compile(rb'"schema"\s*:\s*"diagnose/\d')
_MEMBER = re.compile(rb'(?<!\\)"traceEvents"\s*:')
_EVENT = re.compile(rb'(?<!\\)"ph"\s*:')
_JSON = re.compile(rb"\{|\[\s*[\{\]]")
_NO_TRACE = "JSON, but no profiler trace (no traceEvents); give the file that torch.profiler wrote"


def detect(path: Path) -> str:
    """One of kineto, nsys-rep, nsys-sqlite, nsys-parquet, diagnosis-json.

    Raises InputError with one line when the path is none of them, is empty or cannot be read.
    """
    if path.is_dir():
        if any(path.glob("*.parquet")):
            return "nsys-parquet"
        raise InputError(
            f"{path}: a folder without Parquet files; give the trace file, or an `nsys export -t parquetdir` folder"
        )
    with open_regular(path) as file:
        start = file.read(_LOOK) or b""
    if not start:
        raise InputError(f"{path}: the file is empty; capture the trace again")
    packed = start.startswith(GZIP_MAGIC)
    if packed:
        start = _inflate(path, start)
    if kind := _nsys(start):
        if packed:
            raise InputError(f"{path}: a gzip-compressed Nsight Systems file; unpack it first (gunzip)")
        return kind
    for magic, name in _PACKED.items():
        if start.startswith(magic):
            raise InputError(f"{path}: {name}-compressed; unpack it first (only gzip is read directly)")
    return _json(path, start.lstrip(b"\xef\xbb\xbf \t\r\n"))


def is_surely_trace(path: Path) -> bool:
    """Whether the first bytes show a Kineto trace or a binary file; False also for what `detect` says cannot be read."""
    try:
        with open_regular(path) as file:
            start = file.read(_LOOK) or b""
        if start.startswith(GZIP_MAGIC):
            start = _inflate(path, start)
    except InputError:
        return False
    return b"\0" in start[:4096] or (start.lstrip()[:1] == b"{" and _MEMBER.search(start) is not None)


def _nsys(start: bytes) -> str | None:
    if start.startswith(b"SQLite format 3\0"):
        return "nsys-sqlite"
    return "nsys-rep" if b"Profiler Report" in start[:128] or start.startswith(b"QDSTRM") else None


def _inflate(path: Path, start: bytes) -> bytes:
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    try:
        inside: bytes = inflater.decompress(start, _LOOK)
    except (INFLATE_ERROR, EOFError):
        raise InputError(
            f"{path}: gzip header, but nothing in it can be inflated; copy or capture it again"
        ) from None
    if not inside and not inflater.eof:
        raise InputError(f"{path}: the gzip stream is cut short, before any event; copy or capture it again")
    if not inside:
        raise InputError(f"{path}: gzip with nothing in it; capture the trace again")
    return inside


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _json(path: Path, text: bytes) -> str:
    if not _JSON.match(text):
        if len(text) < _LOOK and _is_json(text):
            raise InputError(f"{path}: {_NO_TRACE}")
        raise InputError(
            f"{path}: neither JSON nor an nsys report; give a PyTorch profiler trace or a .nsys-rep / .sqlite of nsys"
        )
    if text[:1] == b"[":
        if _EVENT.search(text) or len(text) >= _LOOK // 2:
            return "kineto"
        raise InputError(f"{path}: {_NO_TRACE}")
    if _MEMBER.search(text):
        return "kineto"
    if _DIAGNOSIS.search(text[:4096]):
        return "diagnosis-json"
    with ByteSource(path) as source:  # events may come after a long head
        window = b""
        while source.produced < MAX_HEAD_BYTES and (more := source.read(1 << 20)):
            window = window[-64:] + more
            if _MEMBER.search(window):
                return "kineto"
    if source.damage:
        raise InputError(f"{path}: {source.damage}, before any event; copy or capture it again")
    if not window.rstrip().endswith(b"}"):
        raise InputError(f"{path}: cut or damaged before any event; copy or capture it again")
    raise InputError(f"{path}: {_NO_TRACE}")
