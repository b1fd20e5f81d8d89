"""`.nsys-rep` files: which release wrote one, finding an nsys that can read it, exporting the tables we need.

The export is kept in the user's cache folder, private to the user, under the report's content hash: it can
hold the environment and the arguments of what was profiled, so only the tables the loader reads are in it.
"""

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from diagnose.errors import InputError, UsageError
from diagnose.ingest.nsys.notes import sanitise

Version = tuple[int, int, int]

# Read by `stage` and `facts`; kept in step with them by a test. META_DATA_* is left out: it holds the command
# line.
TABLES: tuple[str, ...] = (
    "StringIds",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "PROFILER_OVERHEAD",
    "NVTX_EVENTS",
    "GPU_METRICS",
    "TARGET_INFO_GPU",
    "TARGET_INFO_GPU_METRICS",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_SESSION_START_TIME",
    "DIAGNOSTIC_EVENT",
)
_FOLDERS = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
)
_KEEP_DAYS = 14
_MAGIC = b"NVIDIA Tegra Profiler Report"
_VERSION = re.compile(r"(\d{4})[.@](\d+)[.@](\d+)")


def producing_version(path: Path) -> str | None:
    """The release that wrote the report, from its first line (`… Report 2023@4@4@54-…`), as `2023.4.4.54`;
    else None."""
    with path.open("rb") as file:
        line = file.read(200).split(b"\n", 1)[0]
    found = re.match(rb"\s*(\d{4}(?:[.@]\d+)+)", line.removeprefix(_MAGIC))
    return None if found is None else found.group(1).decode().replace("@", ".")


def parse_version(text: str) -> Version | None:
    """Year, release and patch of a version as nsys prints it, else None."""
    found = _VERSION.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def find_nsys(given: str | None) -> list[Path]:
    """Programs to try, best first: `given` or `$NSYS` alone, else PATH, then the usual install folders,
    newest first.

    UsageError when the one named is no program.
    """
    named = given or os.environ.get("NSYS")
    if named:
        program = shutil.which(named)
        if program is None:
            raise UsageError(
                f"{'--nsys' if given else '$NSYS'} names no program that can be run: {Path(named).name}"
            )
        return [Path(program)]
    found: list[Path] = []
    if program := shutil.which("nsys"):
        found.append(Path(program))
    installed = [p for pattern in _FOLDERS for p in Path("/").glob(pattern[1:]) if os.access(p, os.X_OK)]
    installed.sort(key=lambda p: parse_version(p.as_posix()) or (0, 0, 0), reverse=True)
    return found + [p for p in installed if p not in found]


def program_version(program: Path) -> Version | None:
    """What `nsys --version` says, None when it does not run."""
    try:
        done = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stdout)


def export(path: Path, digest: str, nsys: str | None, say: Callable[[float], None], spare: Path) -> Path:
    """The SQLite export of a report, from the cache or made now; `spare` is used where no cache can be
    written.

    InputError naming the release needed and the command to run elsewhere when no nsys here can read it, or
    when nsys refuses the file.
    """
    folder = _cache_folder() or spare
    layout = hashlib.sha256(",".join(TABLES).encode()).hexdigest()[:8]
    cached = folder / f"{digest}-{layout}.sqlite"
    if cached.is_file():
        with suppress(OSError):
            os.utime(cached)
        return cached
    program, version = _choose(path, nsys)
    partial = Path(tempfile.mkdtemp(prefix="export-", dir=folder))
    try:
        out = partial / "report.sqlite"
        _run(program, version, path, out, say)
        _drop_unneeded(out, path)
        os.replace(out, cached)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return cached


def _choose(path: Path, nsys: str | None) -> tuple[Path, Version]:
    wrote = producing_version(path)
    needed = parse_version(wrote or "")
    elsewhere = (
        f"run `nsys export -t sqlite -o {path.stem}.sqlite {path.name}` where that is installed and give "
        f"{path.stem}.sqlite, or name the program with --nsys"
    )
    need = f"Nsight Systems {wrote} or newer" if wrote else "Nsight Systems"
    found: list[Version] = []
    for program in find_nsys(nsys):
        version = program_version(program)
        if version is None:
            continue
        if needed is None or version >= needed:
            return program, version
        found.append(version)
    if found:
        newest = ".".join(map(str, max(found)))
        raise InputError(
            f"{path}: written by Nsight Systems {wrote}, and the nsys found here is {newest}; it needs that "
            f"release or a newer one: {elsewhere}"
        )
    raise InputError(f"{path}: reading it takes {need}, and no nsys that runs was found here: {elsewhere}")


def _run(program: Path, version: Version, path: Path, out: Path, say: Callable[[float], None]) -> None:
    command = [str(program), "export", "-t", "sqlite", "-f", "true", "-o", str(out)]
    if "--tables" in _help(program):
        # Patterns are unanchored in some releases; what they drag in is dropped afterwards.
        command.append("--tables=" + ",".join(TABLES))
    say(0.0)
    text = ""
    with subprocess.Popen(
        [*command, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        stop = threading.Event()

        def expire() -> None:
            stop.set()
            process.kill()

        # 200 kB/s at the worst, and ten minutes at least.
        timer = threading.Timer(600 + path.stat().st_size / 2e5, expire)
        timer.start()
        try:
            while block := os.read(process.stdout.fileno(), 4096):
                text = (text + block.decode("utf-8", "replace"))[-4000:]
                if shares := re.findall(r"(\d+)%", text):
                    say(min(int(shares[-1]), 100) / 100)
            code = process.wait()
        finally:
            timer.cancel()
    if stop.is_set():
        raise InputError(f"{path}: nsys did not finish exporting it; export it yourself and give the result")
    if code != 0 or not out.is_file():
        raise InputError(
            f"{path}: nsys {'.'.join(map(str, version))} cannot export it{_reason(text, path)}; "
            "it is incomplete or damaged: copy it again, or capture again"
        )


def _help(program: Path) -> str:
    try:
        done = subprocess.run(
            [str(program), "export", "--help"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _reason(output: str, path: Path) -> str:
    """The last error line nsys wrote, without paths."""
    lines = [
        line.strip() for line in re.split(r"[\r\n]+", output) if re.search(r"error|invalid|fail", line, re.I)
    ]
    if not lines:
        return ""
    line = lines[-1].replace(str(path), path.name)
    return f" ({sanitise(re.sub(r'^Exportation error: *', '', line)).rstrip('.')})"


def _drop_unneeded(out: Path, path: Path) -> None:
    """Leave only the tables the loader reads; an nsys that cannot select tables exported all of them."""
    try:
        with closing(sqlite3.connect(out)) as database:
            have = [
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            extra = [name for name in have if name not in TABLES]
            database.execute("PRAGMA secure_delete = ON")
            for name in extra:
                database.execute(f'DROP TABLE "{name}"')
            database.commit()
            if extra:
                database.execute("VACUUM")
        out.chmod(0o600)
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{path}: nsys wrote no usable export of it; run `nsys export -t sqlite` and give its result"
        ) from error


def _cache_folder() -> Path | None:
    """`$XDG_CACHE_HOME/diagnose/nsys`, mode 0700, cleared of exports unused for two weeks; None where it
    cannot be."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "diagnose" / "nsys"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for level in (folder.parent, folder):
            level.chmod(0o700)
        old = time.time() - _KEEP_DAYS * 86_400
        for entry in folder.glob("*.sqlite"):
            if entry.stat().st_mtime < old:
                entry.unlink()
        if not os.access(folder, os.W_OK):
            return None
    except OSError:
        return None
    return folder
