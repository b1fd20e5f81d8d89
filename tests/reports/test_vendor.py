"""The vendored JavaScript is what the named package gives, unchanged, and safe to inline."""

import hashlib
import importlib.metadata
import runpy
from pathlib import Path

import pytest

VENDOR = Path(__file__).parents[2] / "reports" / "vendor"


def test_bundle_matches_its_checksum() -> None:
    digest, name = (VENDOR / "bundle.js.sha256").read_text().splitlines()[0].split()
    assert name == "bundle.js"
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


def test_bundle_is_what_vl_convert_gives() -> None:
    pytest.importorskip("vl_convert")
    installed = importlib.metadata.version("vl-convert-python")
    versions = (VENDOR / "bundle.js.sha256").read_text().splitlines()[1]
    if f"vl-convert-python {installed}," not in versions:
        pytest.skip(f"another vl-convert is installed ({installed}); {versions}")
    fresh = runpy.run_path(str(VENDOR / "refresh.py"))["bundle"]()
    assert fresh.encode() == (VENDOR / "bundle.js").read_bytes()


def test_bundle_can_be_inlined_and_hashed() -> None:
    text = (VENDOR / "bundle.js").read_text()
    for forbidden in ("</script", "<!--", "\r", "\0"):
        assert forbidden not in text


def test_vega_lite_of_the_bundle_is_the_one_altair_writes_for() -> None:
    import altair

    major_minor = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    assert f"vega-lite {major_minor}" in (VENDOR / "bundle.js.sha256").read_text()


def test_licences_lie_beside_it() -> None:
    text = (VENDOR / "LICENSES.txt").read_text()
    assert "University of Washington Interactive Data Lab" in text
    assert "Redistributions in binary form must reproduce" in text
