"""Keeping a Kineto trace: compressed, and without what names its owner."""

import gzip
import re
from pathlib import Path
from typing import Any

_CHUNK = 4 << 20
_PRIVATE = re.compile(rb'("(?:host_name|traceName)"\s*:\s*)"(?:[^"\\]|\\.)*"')
# Inductor writes where a kernel's source lies, which names the user; the file name alone is kept.
_KERNEL_FILE = re.compile(rb'("kernel_file"\s*:\s*"\\?"?)(?:[^"\\]|\\/)*/')


def scrub(text: bytes) -> bytes:
    """A piece of a trace, cut between fields, without the host's name and without folders."""
    if b'"host_name"' in text or b'"traceName"' in text:
        text = _PRIVATE.sub(rb'\1""', text)
    if b'"kernel_file"' in text:
        text = _KERNEL_FILE.sub(rb"\1", text)
    return text


def pack(source: Path, target: Path) -> None:
    """Copy a plain or gzip trace to gzip `target`, scrubbed, in bounded memory; `target` appears when
    complete.

    Raises OSError, EOFError or zlib.error when `source` cannot be read to its end.
    """
    partial = target.with_name(f".{target.name}.tmp")
    try:
        with source.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        opener: Any = gzip.open if packed else open
        with opener(source, "rb") as reader, gzip.GzipFile(partial, "wb", 6, mtime=0) as writer:
            held = b""
            while chunk := reader.read(_CHUNK):
                held += chunk
                # Cut after a comma or a line's end, where no field of ours can be split.
                cut = max(held.rfind(b"\n"), held.rfind(b",")) + 1
                writer.write(scrub(held[:cut]))
                held = held[cut:]
            writer.write(scrub(held))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
