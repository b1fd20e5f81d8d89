"""docs/serving.md lists every metric, setting and threshold as the code has them."""

from pathlib import Path

from diagnose.serving.limit_types import THRESHOLDS
from diagnose.serving.names import METRICS, SETTINGS

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


def test_metrics_and_settings_are_documented():
    for name, (unit, kind, doc) in METRICS.items():
        assert f"| `{name}` | {unit} | {kind} | {doc} |" in TEXT, name
    for key, doc in SETTINGS.items():
        assert f"| `{key}` | {doc} |" in TEXT, key


def test_thresholds_are_documented():
    for name, (value, origin) in THRESHOLDS.items():
        assert f"| `{name}` | {value:g} | {origin} |" in TEXT, name
