"""Run folders: whole or not at all, never over somebody else's files."""

import os
from pathlib import Path

import pytest

from diagnose.collectors.runfolder import RUN_FILE, PartialFolder, choose_folder, write_json
from diagnose.errors import UsageError


def ours(path: Path, text: str) -> Path:
    path.mkdir()
    write_json(path / RUN_FILE, {"schema": "diagnose-run/1", "note": text})
    return path


def test_a_folder_that_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "out.run"
    mine.mkdir()
    (mine / "thesis.txt").write_text("keep")
    for force in (False, True):
        with pytest.raises(UsageError, match="exists; choose another"):
            choose_folder(mine, "x", force)
    assert (mine / "thesis.txt").read_text() == "keep"


def test_an_earlier_run_is_replaced_only_with_force_and_only_at_the_end(tmp_path: Path) -> None:
    out = ours(tmp_path / "out.run", "first")
    with pytest.raises(UsageError, match="--force to replace"):
        choose_folder(out, "x", False)
    partial = PartialFolder(choose_folder(out, "x", True))
    write_json(partial.path / RUN_FILE, {"schema": "diagnose-run/1", "note": "second"})
    assert "first" in (out / RUN_FILE).read_text()
    assert partial.commit() == out
    partial.discard()
    assert "second" in (out / RUN_FILE).read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["out.run"]


def test_a_discarded_capture_leaves_nothing_and_the_earlier_one_stands(tmp_path: Path) -> None:
    out = ours(tmp_path / "out.run", "first")
    partial = PartialFolder(choose_folder(out, "x", True))
    (partial.path / "half").write_text("x")
    partial.discard()
    assert [p.name for p in tmp_path.iterdir()] == ["out.run"]
    assert "first" in (out / RUN_FILE).read_text()


def test_what_killed_captures_left_is_swept(tmp_path: Path) -> None:
    dead = tmp_path / ".a.run.x.partial-4194305"  # above the largest process id that Linux gives out
    alive = tmp_path / f".b.run.x.partial-{os.getpid()}"
    other = tmp_path / ".c.partial-notes"
    for path in (dead, alive, other):
        path.mkdir()
    PartialFolder(tmp_path / "n.run").discard()
    assert not dead.exists() and alive.exists() and other.exists()


def test_default_names_are_free_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_folder(None, "serve", False) == Path("serve.run")
    Path("serve.run").mkdir()
    assert choose_folder(None, "serve", True) == Path("serve.run-2")
    assert choose_folder(None, "a b/../c", False) == Path("a_b_.._c.run")


def test_a_place_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        choose_folder(tmp_path / "absent" / "o.run", "x", False)
