"""The contract as JSON, and its published JSON Schema."""

from typing import Any

import msgspec

from diagnose.contract import BUCKETS, LIMITS, OBJECTIVES, PHASES, SCHEMA, Diagnosis

_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
_STATUSES = ("supported", "possible", "refuted", "not_assessed")
_PROVENANCES = ("measured", "derived", "assumed")
_SEVERITIES = ("info", "warning", "error")


def to_json(d: Diagnosis) -> bytes:
    """The diagnosis as compact UTF-8 JSON with a final newline; a value that is not finite becomes null."""
    return msgspec.json.encode(d) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of schema "diagnose/1": the structs' shapes plus the closed lists of words.

    Keys may be added by a later version, so unknown keys are allowed everywhere but in `attribution_ns`.
    """
    schema = msgspec.json.schema(Diagnosis)
    defs: dict[str, Any] = schema["$defs"]
    defs["Attribution"] = {
        "title": "Attribution",
        "description": "Nanoseconds of each bucket; every bucket is present, 0 when empty.",
        "type": "object",
        "properties": {bucket: {"type": "integer"} for bucket in BUCKETS},
        "required": list(BUCKETS),
        "additionalProperties": False,
    }
    for definition in defs.values():
        _close_words(definition)
    diagnosis = defs["Diagnosis"]["properties"]
    diagnosis["schema"] = {"const": SCHEMA}
    diagnosis["objective"] = {"enum": list(OBJECTIVES)}
    defs["Note"]["properties"]["severity"] = {"enum": list(_SEVERITIES)}
    defs["Hypothesis"]["properties"]["status"] = {"enum": list(_STATUSES)}
    return {"$schema": _SCHEMA_ID, "title": f"diagnosis, schema {SCHEMA}", **schema}


def schema_text() -> str:
    """The schema as it is published in `docs/diagnose-1.schema.json`."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def _close_words(definition: dict[str, Any]) -> None:
    """Replace free strings by the vocabulary where the contract fixes one."""
    properties: dict[str, Any] = definition.get("properties", {})
    for name, shape in properties.items():
        if name == "attribution_ns":
            nullable = "anyOf" in shape
            reference: dict[str, Any] = {"$ref": "#/$defs/Attribution"}
            properties[name] = {"anyOf": [reference, {"type": "null"}]} if nullable else reference
        elif name == "phase" and definition.get("title") != "Attribution":
            nullable = "anyOf" in shape or isinstance(shape.get("type"), list)
            properties[name] = {"enum": [*PHASES, *([None] if nullable else [])]}
        elif name == "limit":
            properties[name] = {"enum": list(LIMITS)}
        elif name == "bucket":
            properties[name] = {"enum": list(BUCKETS)}
        elif name == "provenance":
            properties[name] = {**shape, "examples": list(_PROVENANCES)}
