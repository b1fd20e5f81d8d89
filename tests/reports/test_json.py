"""The contract as JSON, and the published schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from diagnose import contract as c
from diagnose.reports.json import json_schema, schema_text, to_json

PUBLISHED = Path(__file__).parents[2] / "docs" / "diagnose-1.schema.json"


def test_published_schema_has_not_drifted() -> None:
    assert PUBLISHED.read_text() == schema_text(), (
        "the contract changed: write it anew with python -c "
        "'from diagnose.reports.json import schema_text; print(schema_text(), end=\"\")' > "
        "docs/diagnose-1.schema.json"
    )


def test_every_case_validates_and_reads_back(any_case: c.Diagnosis) -> None:
    data = to_json(any_case)
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(data))
    assert msgspec.json.decode(data, type=c.Diagnosis) == any_case


def _broken(case: Any, change: Any) -> list[str]:
    raw = json.loads(to_json(case("launch_bound")))
    change(raw)
    return [e.message for e in jsonschema.Draft202012Validator(json_schema()).iter_errors(raw)]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["attribution_ns"].pop("hbm"),
        lambda raw: raw["attribution_ns"].update(busy=1),
        lambda raw: raw["devices"][0]["attribution_ns"].update(hbm=0.5),
        lambda raw: raw.update(schema="diagnose/2"),
        lambda raw: raw["verdict"].update(limit="bandwidth"),
        lambda raw: raw["phases"][0].update(phase="warmup"),
        lambda raw: raw["phases"][0].pop("efficiency"),
        lambda raw: raw["hypotheses"][0].update(status="true"),
        lambda raw: raw["data_quality"][0].update(severity="bad"),
        lambda raw: raw["timeline"][0].update(bucket="idle"),
    ],
)
def test_schema_refuses(case: Any, change: Any) -> None:
    assert _broken(case, change)


def test_schema_allows_added_keys(case: Any) -> None:
    assert not _broken(case, lambda raw: raw["kernels"][0].update(added_later=1))


def test_values_that_are_not_finite_become_null(case: Any) -> None:
    d = case("launch_bound")
    d.kernels[0].tflops = float("inf")
    d.kernels[0].gbps = float("nan")
    row = json.loads(to_json(d))["kernels"][0]
    assert row["tflops"] is None
    assert row["gbps"] is None


def test_ranks_key_is_absent_for_one_rank(case: Any) -> None:
    assert "ranks" not in json.loads(to_json(case("launch_bound")))
    assert len(json.loads(to_json(case("eight_ranks")))["ranks"]) == 8
