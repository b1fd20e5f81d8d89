"""The package's shape: folders at the top, symlinks that make them sub-packages, and no stray imports."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {
    "pyproject.toml", "README.md", "diagnose", "collectors", "rules", "reports", "sample_traces", "tests", "docs", "benchmarks",
    "CHANGELOG.md", "MANIFEST.in",
}  # fmt: skip


@pytest.mark.parametrize("name", ["collectors", "rules", "reports"])
def test_sub_packages_are_symlinks_to_the_top_level(name):
    link = ROOT / "diagnose" / name
    assert link.is_symlink(), (
        f"diagnose/{name} must be a symlink: clone with symlinks enabled (git config core.symlinks true)"
    )
    assert link.resolve() == (ROOT / name).resolve()
    assert importlib.import_module(f"diagnose.{name}").__name__ == f"diagnose.{name}"


def test_top_level_is_as_agreed():
    tracked = {line.split("/")[0] for line in _tracked()}
    assert {name for name in tracked if not name.startswith(".")} <= TOP


def test_nothing_large_is_tracked():
    sizes = {name: (ROOT / name).stat().st_size for name in _tracked() if (ROOT / name).is_file()}
    assert max(sizes.values()) < 2_000_000
    assert sum(size for name, size in sizes.items() if name.startswith("sample_traces/")) <= 2_000_000


def _tracked():
    import subprocess

    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()
