"""OpenAPI descriptions of the endpoints of the page and of the API."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras_transformer as kt
from keras_transformer.serving.openai_fields import OTHERS, READ
from keras_transformer.serving.verbs import Field, Verb

_ABOUT = {
    "openapi": "3.1.0",
    "info": {"title": "keras_transformer", "version": kt.__version__},
}
_JSON = ("application/json",)
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_ROW = {"type": "object", "additionalProperties": True}
_ANSWER = {
    "type": "object",
    "description": "The results of the verb: some of these properties.",
    "properties": {
        "rows": {"type": "array", "items": {"type": "array", "items": _ROW}},
        "texts": {"type": "array", "items": {"type": "string"}},
        "vectors": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "similarities": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    },
}
_VIEW = {"type": "object", "properties": {"view": {"type": "string"}}, "required": ["view"]}
_PIECES = {"type": "string", "description": "A line of JSON for each event: piece, done or error."}
_WRONG = {
    "400": "The request is not valid HTTP, or is for another host.",
    "404": "The preset does not exist, or does not have this verb.",
    "408": "The request did not arrive in time.",
    "413": "The request is too large.",
    "415": "The request is not JSON.",
    "422": "A value is missing or invalid; the message says which.",
    "429": "Too many requests are waiting.",
    "503": "The server is stopping, or has too many connections.",
}
# An error in the API's format.
_OPENAI_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_CHOICES = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    },
    "required": ["id", "object", "created", "model", "choices"],
}
_RESPONSE = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "response"},
        "status": {"enum": ["completed", "incomplete"]},
        "output": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    },
    "required": ["id", "object", "status", "output"],
}
_EVENT = {
    "type": "object",
    "description": "Each event has a part of the answer in JSON, an error, or [DONE].",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
_LIST = {
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array"}},
    "required": ["object", "data"],
}
_MODEL = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "object": {"const": "model"}},
    "required": ["id", "object"],
}
# OpenAI's paths -> (the verb, the schema of the answer).
_OPENAI = {
    "/v1/completions": ("complete", _CHOICES),
    "/v1/chat/completions": ("complete", _CHOICES),
    "/v1/responses": ("complete", _RESPONSE),
    "/v1/embeddings": ("embed", _LIST),
}


def described_api(models: Mapping[str, Iterable[Verb]], has_key: bool) -> dict[str, Any]:
    """Describe the server of OpenAI's API as OpenAPI 3.1.

    Args:
        models: dict from names of models to their verbs.
        has_key: bool, whether requests need an API key.
    """
    named: dict[str, Verb] = {verb.name: verb for verbs in models.values() for verb in verbs}
    able = {
        name: [model for model, verbs in models.items() if name in {verb.name for verb in verbs}]
        for name in named
    }
    paths: dict[str, Any] = {}
    for path, (name, answer) in _OPENAI.items():
        if name in able:
            given = _object(READ[path], {"model": _names(able[name]), **OTHERS[path]}, ["model"])
            given["required"] += [n for n in ("prompt", "messages", "input") if n in OTHERS[path]]
            kinds = ["application/json", *(["text/event-stream"] if name == "complete" else [])]
            paths[path] = {"post": _api_operation(f"openai_{name}_{path}", given, answer, kinds)}
    for name, verb in named.items():
        if name not in ("chat", "complete", "embed"):
            needed = ["model"] if len(able[name]) > 1 else []
            given = _object(verb.fields, {"model": _names(able[name])}, needed)
            paths[f"/{name}"] = {"post": _api_operation(name, given, _ANSWER)}
    of_model = _api_operation("model", None, _MODEL)
    of_model["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": _names(models)}
    ]
    state = {"type": "object"}
    paths |= {
        "/v1/models": {"get": _api_operation("models", None, _LIST)},
        "/v1/models/{model}": {"get": of_model},
        "/": {"get": _api_operation("root", None, state)},
        "/health": {"get": _api_operation("health", None, state)},
        "/ready": {"get": _api_operation("ready", None, state)},
        "/metrics": {"get": _api_operation("metrics", None, {"type": "string"}, ["text/plain"])},
    }
    paths["/ready"]["get"]["responses"]["503"] = _content("A model is not ready yet.", state)
    found: dict[str, Any] = {**_ABOUT, "paths": paths}
    if has_key:
        found["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        found["security"] = [{"key": []}]
    return found


def _api_operation(
    name: str, given: dict[str, Any] | None, answer: dict[str, Any], kinds: Iterable[str] = _JSON
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name.strip("/").replace("/", "_"),
        "responses": {
            "200": _content("The answer.", answer, kinds),
            "default": _content("An error; the message says what is wrong.", _OPENAI_ERROR),
        },
    }
    if given is not None:
        body = {"required": True, "content": {"application/json": {"schema": given}}}
        operation["requestBody"] = body
    return operation


def _content(text: str, schema: dict[str, Any], kinds: Iterable[str] = _JSON) -> dict[str, Any]:
    forms = {"text/event-stream": _EVENT, "text/plain": {"type": "string"}}
    content = {kind: {"schema": forms.get(kind, schema)} for kind in kinds}
    return {"description": text, "content": content}


def _names(models: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(models)}


def _object(
    fields: Iterable[Field], further: Mapping[str, Any] | None = None, required: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the JSON Schema of a body: `fields`, and `further` ones given as schemas."""
    fields = tuple(fields)
    needed = [f.name for f in fields if f.default is None and not f.optional]
    return {
        "type": "object",
        "properties": {**{field.name: field.schema for field in fields}, **(further or {})},
        "required": list(dict.fromkeys([*needed, *required])),
        "additionalProperties": False,
    }


def described(verbs: Mapping[tuple[str, str], Verb]) -> dict[str, Any]:
    """Describe the page's endpoints as OpenAPI 3.1; keys of `verbs` are preset and verb."""
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
    return {**_ABOUT, "paths": paths}


def _operation(
    verb: Verb, preset: str, form: str, kind: str, schema: dict[str, Any]
) -> dict[str, Any]:
    given = _object(verb.fields)
    wrong = {status: _content(text, _ERROR) for status, text in _WRONG.items()}
    found = {"200": {"description": "The answer.", "content": {kind: {"schema": schema}}}}
    operation = {
        "summary": " ".join(filter(None, (verb.title, preset, form))),
        "operationId": "_".join(filter(None, (preset, verb.name, form))),
        "requestBody": {"required": True, "content": {"application/json": {"schema": given}}},
        "responses": found | wrong,
    }
    return {"post": operation}
