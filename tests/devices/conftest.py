"""Fixtures of the device tests: roofs by key, and the shared measured tables."""

from pathlib import Path

import pytest

from diagnose.devices import Roofs, by_key

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture(scope="session")
def roofs_of():
    made: dict[str, Roofs] = {}

    def get(key: str) -> Roofs:
        if key not in made:
            made[key] = Roofs(by_key(key))
        return made[key]

    return get


@pytest.fixture(scope="session")
def measured() -> Path:
    folder = SHARED / "measured"
    if not folder.is_dir():
        pytest.skip("shared traces are not here")
    return folder


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    if not SHARED.is_dir():
        pytest.skip("shared traces are not here")
    return SHARED
