"""Files appear whole or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path

from diagnose.errors import InputError


def write_atomically(path: Path | str, data: str | bytes) -> None:
    """Write text (UTF-8) or bytes to `path` through a temporary file in the same folder and a rename.

    A reader, or a run that dies half way, sees the old file or the new one, never a part. The file gets the
    permissions a plain `open` would give. Raises InputError when the folder cannot be written.
    """
    target = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    if target.is_symlink():  # a rename would replace the link, a plain write would follow it
        target = target.resolve()
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent
        )
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror or error}; name another file with -o"
        ) from None
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(payload)
            out.flush()
            os.fsync(out.fileno())
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror or error}; name another file with -o"
        ) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
