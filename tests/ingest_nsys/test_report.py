"""`.nsys-rep` files: the release that wrote one, finding an nsys, exporting no more than needed, and plain
refusals."""

import os
import random
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from diagnose.errors import InputError, UsageError
from diagnose.ingest.nsys import facts, load_nsys, report, stage
from diagnose.store import Store

Load = Callable[..., Store]
Make = Callable[..., Path]

HEADER = b"NVIDIA Tegra Profiler Report 2026@2@1@210-262134567890v0.\nbinary follows"


@pytest.fixture
def fake(tmp_path: Path, export: Make) -> Callable[..., Path]:
    """A program that answers like nsys of a version and 'exports' by copying a ready SQLite file."""

    def make(
        version: str = "2026.3.1", tables: bool = True, source: Path | None = None, fail: str = ""
    ) -> Path:
        ready = source or export()
        program = tmp_path / "nsys"
        program.write_text(
            f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
case "$*" in
  --version) echo "NVIDIA Nsight Systems version {version}.42-1v0" ;;
  *--help*) echo "usage: export {"--tables=<pattern>" if tables else ""}" ;;
  *) if [ -n "{fail}" ]; then echo "Exportation error: {fail}"; exit 1; fi
     while [ "$1" != -o ]; do shift; done
     printf 'Processing: [==37%%  ]\\r'; sleep 0.2; printf 'Processing: [====100%%]\\n'
     cp "{ready}" "$2" ;;
esac
"""
        )
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def rep(tmp_path: Path) -> Path:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(HEADER)
    return path


def test_version_is_in_the_first_line(tmp_path: Path, rep: Path) -> None:
    assert report.producing_version(rep) == "2026.2.1.210"
    other = tmp_path / "other"
    other.write_bytes(b"NVIDIA Tegra Profiler Report of some sort")
    assert report.producing_version(other) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0", (2023, 4, 4)),
        ("2026.2.1.210", (2026, 2, 1)),
        ("no version", None),
    ],
)
def test_parse_version(text: str, version: report.Version | None) -> None:
    assert report.parse_version(text) == version


def test_exported_with_what_is_given(
    fake: Make, rep: Path, loaded: Load, tmp_path: Path, private_cache: Path
) -> None:
    """The tables of the export arrive; source names the report; a second reading needs no nsys."""
    program = fake()
    store = loaded(rep, nsys=str(program))
    assert store.count("raw_kernel") == 2
    assert store.rows("SELECT path, format, profiler_version, bytes FROM source") == [
        ("run.nsys-rep", "nsys-rep", "2026.2.1.210", len(HEADER))
    ]
    calls = (tmp_path / "calls").read_text()
    assert "--tables=StringIds," in calls and "META_DATA" not in calls and "PROCESSES" not in calls
    program.unlink()
    assert loaded(rep, nsys=None).count("raw_kernel") == 2
    folder = private_cache / "diagnose"
    assert {stat.S_IMODE(p.stat().st_mode) for p in (folder, folder / "nsys")} == {0o700}
    (cached,) = (folder / "nsys").iterdir()
    assert stat.S_IMODE(cached.stat().st_mode) == 0o600


def test_another_content_is_another_export(fake: Make, rep: Path, loaded: Load, private_cache: Path) -> None:
    program = str(fake())
    loaded(rep, nsys=program)
    rep.write_bytes(HEADER + b"!")
    loaded(rep, nsys=program)
    assert len(list((private_cache / "diagnose" / "nsys").iterdir())) == 2


def test_nothing_more_than_needed_is_kept(fake: Make, rep: Path, loaded: Load, private_cache: Path) -> None:
    """An nsys that cannot select tables exports all of them: the host's name and the command do not stay in
    the cache."""
    store = loaded(rep, nsys=str(fake(tables=False)))
    assert store.count("raw_kernel") == 2
    (cached,) = (private_cache / "diagnose" / "nsys").iterdir()
    with closing(sqlite3.connect(cached)) as database:
        names = {n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names <= set(report.TABLES)
    assert b"secret" not in cached.read_bytes()


def test_progress_of_the_export(fake: Make, rep: Path, loaded: Load) -> None:
    seen: list[int] = []
    loaded(rep, nsys=str(fake()), progress=lambda done, total: seen.append(done * 100 // total))
    # The fake prints 37 % and 100 %; then the reading starts anew.
    assert seen[:4] == [0, 37, 100, 0] and seen[-1] == 100


def test_too_old(fake: Make, rep: Path) -> None:
    with Store() as store, pytest.raises(InputError) as caught:
        load_nsys(rep, store, nsys=str(fake(version="2023.4.4")))
    message = str(caught.value)
    assert "2026.2.1.210" in message and "2023.4.4" in message
    assert "nsys export -t sqlite -o run.sqlite run.nsys-rep" in message
    assert "\n" not in message


def test_none_found(rep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(report, "_FOLDERS", ())
    with (
        Store() as store,
        pytest.raises(
            InputError, match=r"2026\.2\.1\.210 or newer.*nsys export -t sqlite -o run\.sqlite run\.nsys-rep"
        ),
    ):
        load_nsys(rep, store)


def test_environment_names_the_program(
    fake: Make, rep: Path, loaded: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS", str(fake()))
    assert loaded(rep).count("raw_kernel") == 2


def test_program_that_is_none(rep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store() as store, pytest.raises(UsageError, match="--nsys names no program"):
        load_nsys(rep, store, nsys="/nonexistent/nsys")
    monkeypatch.setenv("NSYS", "/nonexistent/nsys")
    with Store() as store, pytest.raises(UsageError, match=r"\$NSYS names no program"):
        load_nsys(rep, store)


def test_newest_install_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2024.1.1", "2025.5.2", "2023.4.4"):
        program = tmp_path / "opt" / version / "bin" / "nsys"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(report, "_FOLDERS", (f"{tmp_path}/opt/*/bin/nsys",))
    assert [p.parts[-3] for p in report.find_nsys(None)] == ["2025.5.2", "2024.1.1", "2023.4.4"]


def test_refused_by_nsys(fake: Make, rep: Path, private_cache: Path) -> None:
    with (
        Store() as store,
        pytest.raises(
            InputError, match=r"nsys 2026\.3\.1 cannot export it \(Bad section\).*incomplete or damaged"
        ),
    ):
        load_nsys(rep, store, nsys=str(fake(fail="Bad section.")))
    assert not list((private_cache / "diagnose" / "nsys").iterdir())


def test_unwritable_cache(
    fake: Make, rep: Path, loaded: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no cache can be made, the export lives with the store and goes away with it."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert loaded(rep, nsys=str(fake())).count("raw_kernel") == 2


def test_old_exports_are_cleared(fake: Make, rep: Path, loaded: Load, private_cache: Path) -> None:
    folder = private_cache / "diagnose" / "nsys"
    folder.mkdir(parents=True)
    stale, fresh = folder / "stale.sqlite", folder / "fresh.sqlite"
    for path, days in ((stale, 15), (fresh, 13)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - days * 86_400,) * 2)
    loaded(rep, nsys=str(fake()))
    assert not stale.exists() and fresh.exists()


def test_every_table_read_is_exported() -> None:
    """The list given to `nsys export` and the tables the loader reads must not drift apart."""
    staged = {item.table for item in stage.STAGED} | {"StringIds", "NVTX_EVENTS", "GPU_METRICS"}
    text = Path(facts.__file__).read_text() + Path(facts.__file__).with_name("notes.py").read_text()
    small = {name for name in report.TABLES if f'"{name}"' in text}
    assert set(report.TABLES) == staged | small
    assert "META_DATA_CAPTURE" not in report.TABLES and "TARGET_INFO_SYSTEM_ENV" not in report.TABLES


@pytest.mark.nsys
def test_real_cpu_report_has_no_gpu_activity(nsys: Path, report_file: Path, private_cache: Path) -> None:
    with Store() as store, pytest.raises(InputError, match=r"no GPU activity.*-t cuda,nvtx"):
        load_nsys(report_file, store, nsys=str(nsys))
    (cached,) = (private_cache / "diagnose" / "nsys").iterdir()
    with closing(sqlite3.connect(cached)) as database:
        names = {n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert "StringIds" in names and names <= set(report.TABLES)
        if "NVTX_EVENTS" in names:
            # The script pushed 3 x 2 ranges.
            assert database.execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59").fetchone() == (
                6,
            )


@pytest.mark.nsys
def test_real_report_of_a_newer_release(nsys: Path, report_file: Path, tmp_path: Path) -> None:
    """The version line says 2026.2.1: both versions are named before nsys is even run."""
    newer = tmp_path / "newer.nsys-rep"
    newer.write_bytes(report_file.read_bytes().replace(b"2023@4@4", b"2026@2@1", 1))
    with Store() as store, pytest.raises(InputError, match=r"2026\.2\.1.*2023\.4\.4"):
        load_nsys(newer, store, nsys=str(nsys))


@pytest.mark.nsys
def test_real_report_cut_short(nsys: Path, report_file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.nsys-rep"
    cut.write_bytes(report_file.read_bytes()[:20_000])
    with (
        Store() as store,
        pytest.raises(
            InputError, match=r"nsys 2023\.4\.4 cannot export it .*incomplete or damaged"
        ) as caught,
    ):
        load_nsys(cut, store, nsys=str(nsys))
    assert "\n" not in str(caught.value)


@pytest.mark.nsys
def test_real_garbage_behind_the_header(nsys: Path, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.nsys-rep"
    garbage.write_bytes(
        b"NVIDIA Tegra Profiler Report 2023@4@4@54-1v0.\n" + random.Random(5).randbytes(50_000)
    )
    with Store() as store, pytest.raises(InputError, match="incomplete or damaged"):
        load_nsys(garbage, store, nsys=str(nsys))


@pytest.mark.nsys
def test_real_parquet_folder(nsys: Path, report_file: Path, tmp_path: Path) -> None:
    """`nsys export -t parquetdir` of the same report is recognised, and says the same."""
    folder = tmp_path / "cpu_pqtdir"
    subprocess.run(
        [str(nsys), "export", "-t", "parquetdir", "-q", "true", "-o", str(folder), str(report_file)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with Store() as store, pytest.raises(InputError, match="no GPU activity"):
        load_nsys(folder, store)
