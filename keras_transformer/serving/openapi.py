"""The description of the endpoints, as OpenAPI has it."""

from collections.abc import Mapping
from typing import Any

import keras_transformer as kt
from keras_transformer.serving.verbs import Verb

_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_ROW = {"type": "object", "additionalProperties": True}
_ANSWER = {
    "type": "object",
    "description": "Of these what the verb finds.",
    "properties": {
        "rows": {"type": "array", "items": {"type": "array", "items": _ROW}},
        "texts": {"type": "array", "items": {"type": "string"}},
        "vectors": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "similarities": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    },
}
_VIEW = {"type": "object", "properties": {"view": {"type": "string"}}, "required": ["view"]}
_PIECES = {"type": "string", "description": "A line of JSON for each piece: piece, done or error."}
_WRONG = {
    "404": "No such preset, or it cannot be asked this.",
    "413": "The request is too large.",
    "415": "The request is no JSON.",
    "422": "A value is missing or wrong; the message says which.",
    "429": "Too many requests wait.",
}


def described(verbs: Mapping[tuple[str, str], Verb]) -> dict[str, Any]:
    """The description, of OpenAPI 3.1, of all that can be asked, by preset and name of the verb."""
    paths = {}
    for (preset, name), verb in verbs.items():
        base = f"/api/{preset}/{name}"
        paths[base] = _operation(verb, preset, "", "application/json", _ANSWER)
        if verb.stream is not None:
            kind = "application/x-ndjson"
            paths[f"{base}/stream"] = _operation(verb, preset, "stream", kind, _PIECES)
        if verb.explained is not None:
            paths[f"{base}/explain"] = _operation(
                verb, preset, "explain", "application/json", _VIEW
            )
    return {
        "openapi": "3.1.0",
        "info": {"title": "keras_transformer", "version": kt.__version__},
        "paths": paths,
    }


def _operation(
    verb: Verb, preset: str, form: str, kind: str, schema: dict[str, Any]
) -> dict[str, Any]:
    required = [f.name for f in verb.fields if f.default is None and not f.optional]
    given = {
        "type": "object",
        "properties": {field.name: field.schema for field in verb.fields},
        "required": required,
        "additionalProperties": False,
    }
    wrong = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
        for status, text in _WRONG.items()
    }
    found = {"200": {"description": "The answer.", "content": {kind: {"schema": schema}}}}
    operation = {
        "summary": " ".join(filter(None, (verb.title, preset, form))),
        "operationId": "_".join(filter(None, (preset, verb.name, form))),
        "requestBody": {"required": True, "content": {"application/json": {"schema": given}}},
        "responses": found | wrong,
    }
    return {"post": operation}
