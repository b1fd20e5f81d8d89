"""Nothing half-written."""

import os
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.reports.write import write_atomically


def test_writes_text_and_bytes(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "µs\n")
    write_atomically(str(tmp_path / "b"), b"\x00\x01")
    assert (tmp_path / "a").read_bytes() == "µs\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\x00\x01"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "new", "x")
        (tmp_path / "old").write_text("y")
        (tmp_path / "old").chmod(0o600)
        write_atomically(tmp_path / "old", "z")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "old").read_text() == "z"


def test_follows_a_link_instead_of_replacing_it(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_failure_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_atomically(tmp_path / "a", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        write_atomically(tmp_path / "no" / "a", "x")
    assert "\n" not in str(error.value)
    assert "-o" in str(error.value)
