"""Only a report of this tool is recognised as one."""

from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError
from diagnose.reports.html import to_html
from diagnose.reports.json import to_json
from diagnose.reports.markdown import to_markdown
from diagnose.reports.marker import embedded_json, is_own_report


def test_own_outputs_are_recognised(case: Any, tmp_path: Path) -> None:
    d = case("serving_only")
    for name, data in (
        ("a.html", to_html(d).encode()),
        ("a.md", to_markdown(d).encode()),
        ("a.json", to_json(d)),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert is_own_report(path), name


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"traceEvents": [{"name": "diagnose-report/1"}]}',
        b'{"schemaVersion": 1, "traceEvents": []}',
        b'{"schema": "other/1"}',
        b"<!doctype html>\n<html><!-- diagnose-report/1 --></html>",
        b"# notes\n<!-- diagnose-report/1 -->",
        b"\x1f\x8b\x08\x00",
        b'["schema", "diagnose/1"]',
    ],
)
def test_other_files_are_not(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_bytes(content)
    assert not is_own_report(path)


def test_missing_file_and_folder_are_not(tmp_path: Path) -> None:
    assert not is_own_report(tmp_path / "absent")
    assert not is_own_report(tmp_path)


def test_indented_json_and_compare_json_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n  "schema": "diagnose/1",\n  "a": 1}')
    assert is_own_report(path)
    path.write_text('{"schema":"diagnose-compare/1"}')
    assert is_own_report(path)


def test_the_contract_comes_back_out_of_a_page() -> None:
    with pytest.raises(InputError, match="holds no diagnosis"):
        embedded_json(b"<html></html>")
