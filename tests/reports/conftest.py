"""Diagnosis objects shaped like real runs, built by hand, and a headless browser to open pages in.

Numbers are those of public traces rounded, or plain arithmetic; nothing here comes from running the pipeline.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diagnose import contract as c


def _load(name: str) -> ModuleType:
    """A module beside this file; tests are no package, so it gets a name of its own."""
    spec = importlib.util.spec_from_file_location(f"reports_{name}", Path(__file__).parent / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_load("builders")
_bound, _devices, _serving, _browser = map(_load, ("runs_bound", "runs_devices", "runs_serving", "browser"))

CASES: dict[str, Callable[[], c.Diagnosis]] = {
    "launch_bound": _bound.launch_bound,
    "decode_unobserved": _bound.decode_unobserved,
    "prefill_inefficient": _devices.prefill_inefficient,
    "healthy": _devices.healthy,
    "two_devices_copy": _devices.two_devices_copy,
    "serving_only": _serving.serving_only,
    "eight_ranks": _serving.eight_ranks,
}


@pytest.fixture(params=list(CASES))
def any_case(request: pytest.FixtureRequest) -> c.Diagnosis:
    """Each of the modelled runs in turn."""
    return CASES[request.param]()


@pytest.fixture
def many_kernels() -> c.Diagnosis:
    """A run with 6,004 rows of long names: more JSON than a page may hold."""
    result: c.Diagnosis = _devices.prefill_inefficient(6000)
    return result


@pytest.fixture
def case() -> Callable[[str], c.Diagnosis]:
    """A modelled run by name."""
    return lambda name: CASES[name]()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One headless chromium for the tests of a module; skips plainly where there is none."""
    if _browser.CHROMIUM is None:
        pytest.skip("no chromium: install it to test the page in a browser")
    running = _browser.Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.close()
