"""The comparison as JSON, and its published JSON Schema."""

from typing import Any

import msgspec

from diagnose.contract import BUCKETS
from diagnose.settle.comparison import METRIC_VERDICTS, SCHEMA, UNITS, VERDICTS, Comparison

_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def to_json(c: Comparison) -> bytes:
    """The comparison as compact UTF-8 JSON with a final newline; a value that is not finite becomes null."""
    return msgspec.json.encode(c) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of schema "diagnose-compare/1": the structs' shapes plus the closed lists of words.

    Keys may be added by a later version, so unknown keys are allowed everywhere.
    """
    schema = msgspec.json.schema(Comparison)
    defs: dict[str, Any] = schema["$defs"]
    defs["Comparison"]["properties"]["schema"] = {"const": SCHEMA}
    defs["OverallVerdict"]["properties"]["overall"] = {"enum": list(VERDICTS)}
    for name in ("MetricChange", "KernelChange"):
        defs[name]["properties"]["verdict"] = {"enum": list(METRIC_VERDICTS)}
    delta = defs["Delta"]["properties"]
    delta["per"] = {"enum": list(UNITS)}
    for key in ("buckets", "buckets_before", "buckets_after"):
        delta[key] = {
            "type": "object",
            "description": "Nanoseconds by bucket; all buckets, or none where time was not attributed.",
            "properties": {bucket: {"type": "integer"} for bucket in BUCKETS},
            "additionalProperties": False,
        }
    defs["BetOutcome"]["properties"]["verdict"] = {"enum": ["confirmed", "refuted", "not_tested"]}
    return {"$schema": _SCHEMA_ID, "title": f"comparison, schema {SCHEMA}", **schema}


def schema_text() -> str:
    """The schema as it is published in `docs/diagnose-compare-1.schema.json`."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"
