"""Diagnoses of the real traces, once a session."""

from functools import cache
from pathlib import Path

import pytest

from diagnose import pipeline

SHARED = Path(__file__).parents[2].parent / "shared" / "traces"


@cache
def diagnosis(name: str):
    path = SHARED / "kineto" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"real traces are absent: {path}")
    return pipeline.run([path])


@pytest.fixture
def diagnose_real():
    return diagnosis


@pytest.fixture
def shared():
    if not SHARED.exists():
        pytest.skip("real traces are absent")
    return SHARED
