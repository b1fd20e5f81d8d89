"""One pass over an input file: opened read-only, hashed as given, inflated when gzip, within limits."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from isal import igzip_lib

from diagnose.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
MAX_BYTES = 200 * 10**9  # nobody profiles this much at once; a bomb does
MAX_RATIO = 2000  # real traces inflate 10 to 40 times, gzip can reach 1032 per layer of deflate
RATIO_FROM = 4 * 10**9  # a small file may inflate oddly; judge the ratio from here on
MAX_HEAD_BYTES = 256 << 20  # what may precede the events: log arrays, metadata

_IN = 1 << 16
_OUT = 1 << 16  # a corrupt block loses at most this much of what was readable before it

INFLATE_ERROR: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # the stub says instance
Progress = Callable[[int, int], None]


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises InputError with one line when that cannot be done."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: not a regular file; give the trace file itself")
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it; run as its owner or copy it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); copy it to a local disk") from None


class ByteSource:
    """The decompressed bytes of a trace, read once from front to back.

    After the last `read`, call `finish`; then `sha256` is the hash of the file as given, `size` its bytes on disk,
    `produced` the bytes after decompression and `damage` a short text when the compressed stream was cut or corrupt
    (`corrupt`: not merely cut; `unread` is then the share of the file that could not be used).
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.produced = 0
        self.consumed = 0
        self.damage: str | None = None
        self.corrupt = False
        self.unread = 0.0
        self._progress = progress
        self._hash = hashlib.sha256()
        self._file = open_regular(path)
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            self._file.close()
            raise InputError(f"{path}: the file is empty; capture the trace again")
        self._pending = self._fetch(_IN)
        self.gzip = self._pending.startswith(GZIP_MAGIC)
        self._inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP) if self.gzip else None

    def _fetch(self, size: int) -> bytes:
        try:
            block = self._file.read(size) or b""
        except OSError as error:
            raise InputError(
                f"{self.path}: reading failed ({error.strerror}); copy it to a local disk"
            ) from None
        self._hash.update(block)
        self.consumed += len(block)
        return block

    def read(self, size: int) -> bytes:
        """Up to `size` decompressed bytes; b'' at the end. Raises InputError on a decompression bomb."""
        parts: list[bytes] = []
        have = 0
        while have < size:
            part = self._inflate(min(_OUT, size - have)) if self._inflater else self._plain(size - have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        self.produced += have
        self._check_limits()
        if self._progress:
            self._progress(self.consumed, self.size)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _plain(self, size: int) -> bytes:
        if self._pending:
            block, self._pending = self._pending[:size], self._pending[size:]
            return block
        return self._fetch(size)

    def _inflate(self, size: int) -> bytes:
        inflater = self._inflater
        while inflater is not None and not self.damage:
            if inflater.eof:
                rest = inflater.unused_data.lstrip(b"\0") or self._fetch(_IN).lstrip(b"\0")
                if not rest:
                    return b""
                if not rest.startswith(GZIP_MAGIC[: len(rest)]):
                    self.damage = "the file goes on after its gzip stream"
                    return b""
                self._pending = rest
                self._inflater = inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            if inflater.needs_input and not self._pending:
                self._pending = self._fetch(_IN)
                if not self._pending:
                    self.damage = "the gzip stream is cut short"
                    return b""
            block, self._pending = self._pending, b""
            try:
                part: bytes = inflater.decompress(block, size)
            except (INFLATE_ERROR, EOFError):
                self.damage = f"the gzip stream is corrupt near byte {self.consumed - len(block)} of the file"
                self.corrupt = True
                self.unread = (self.size - self.consumed + len(block)) / self.size
                return b""
            if part:
                return part
        return b""

    def _check_limits(self) -> None:
        bomb = self.produced > RATIO_FROM and self.produced > MAX_RATIO * self.size
        if self.produced > MAX_BYTES or bomb:
            raise InputError(
                f"{self.path}: inflates to more than {self.produced / 1e9:.0f} GB from {self.size / 1e6:.1f} MB; "
                "this is no profiler trace"
            )

    def finish(self) -> None:
        """Read what is left of the file into the hash only, and close it."""
        while self._fetch(1 << 20):
            pass
        self._file.close()

    @property
    def sha256(self) -> str:
        """Hash of the bytes read so far: of the whole file after `finish`."""
        return self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._file.close()
