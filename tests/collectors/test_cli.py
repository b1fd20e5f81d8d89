"""The capture and calibrate commands: help and dry runs on a bare machine, light imports, messages."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from diagnose.collectors.cli import calibrate_command, capture_app
from diagnose.errors import UsageError

app = typer.Typer()
app.add_typer(capture_app)
app.command("calibrate")(calibrate_command)
runner = CliRunner()


@pytest.mark.parametrize(
    "verb", [["capture"], ["capture", "torch"], ["capture", "nsys"], ["capture", "serve"], ["calibrate"]]
)
def test_help_of_every_verb(verb: list[str]) -> None:
    result = runner.invoke(app, [*verb, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output


def test_dry_runs_say_what_would_happen(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("raise SystemExit('must not run')\n")
    result = runner.invoke(app, ["capture", "torch", "--dry-run", "--", str(script), "--batch", "8"])
    assert result.exit_code == 0
    assert result.output.rstrip().endswith(
        f"-m diagnose.collectors.torch_runner SETTINGS.json {script} --batch 8"
    )
    result = runner.invoke(app, ["capture", "nsys", "--dry-run", "--", "./a.out", "--flag"])
    assert (
        result.exit_code == 0
        and "--cuda-graph-trace=node" in result.output
        and "./a.out --flag" in result.output
    )
    result = runner.invoke(app, ["capture", "serve", "--dry-run", "--engine", "vllm"])
    assert result.exit_code == 0 and "/start_profile" in result.output


def test_the_targets_options_are_its_own_without_the_double_dash(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("")
    result = runner.invoke(app, ["capture", "torch", "--dry-run", str(script), "--steps", "7", "--help"])
    assert result.exit_code == 0 and result.output.rstrip().endswith(f"{script} --steps 7 --help")


def test_a_missing_script_is_a_usage_error() -> None:
    result = runner.invoke(app, ["capture", "torch", "--dry-run", "--", "absent.py"])
    assert isinstance(result.exception, UsageError)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, diagnose.collectors, diagnose.collectors.cli\n"
        "heavy = {'torch', 'polars', 'duckdb', 'altair', 'numpy', 'msgspec', 'nvtx'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
