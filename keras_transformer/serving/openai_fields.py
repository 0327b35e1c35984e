"""What requests of OpenAI's API are made of, read and checked."""

import secrets
from typing import Any, NamedTuple

import keras_transformer as kt
from keras_transformer.serving.bodies import said
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.verbs import Field, Values, quoted


class ApiError(Exception):
    """What is wrong with a request, as OpenAI's clients read it."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None):
        super().__init__(said(message))
        self.status, self.code, self.param = status, code, param
        self.headers = {"Retry-After": "2"} if status == 429 else {}

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class Prompts(NamedTuple):
    """What texts are to be written, and how.

    Fields:
        prompts: the ids of each prompt.
        samples: int, texts for each.
        most: the most new tokens of each text; None for as many as there is room for.
        temperature: float, 0 for the likeliest tokens.
        top_p: float.
        seed: int.
        options: of `GenerationCall`: `stop`, `rules`, `constraint`.
        top_k: None without log-probabilities, else how many alternatives to each token.
        stream: bool.
        usage: bool, whether a stream ends with the number of tokens.
    """

    prompts: list[list[int]]
    samples: int
    most: int | None
    temperature: float
    top_p: float
    seed: int
    options: dict[str, Any]
    top_k: int | None
    stream: bool
    usage: bool


_MODEL = Field("model", "text", "Name of a model, of /v1/models")
_LONGEST = Field("max_tokens", "integer", "Most new tokens", least=1, most=10**9, optional=True)
_SHARED = (
    _MODEL, _LONGEST,
    Field("temperature", "number", "Temperature, 0 for the likeliest", 1.0, most=2),
    Field("top_p", "number", "Share of the likeliest", 1.0, least=1e-6, most=1),
    Field("n", "integer", "Texts for each prompt", 1, least=1, most=32),
    Field("seed", "integer", "Seed", least=-(2**63), most=2**63 - 1, optional=True),
    Field("presence_penalty", "number", "Penalty of a token that was", 0.0, least=-2, most=2),
    Field("frequency_penalty", "number", "Penalty each time", 0.0, least=-2, most=2),
    Field("stream", "flag", "In pieces", False),
)  # fmt: skip
_COMPLETION = (
    *_SHARED, Field("logprobs", "integer", "Alternatives", most=20, optional=True),
)  # fmt: skip
_CHAT = (
    *_SHARED, _LONGEST._replace(name="max_completion_tokens"),
    Field("logprobs", "flag", "Log-probabilities", False),
    Field("top_logprobs", "integer", "Alternatives", most=20, optional=True),
)  # fmt: skip
_EMBEDDING = (
    _MODEL, Field("dimensions", "integer", "Numbers", least=1, most=10**6, optional=True),
)  # fmt: skip
# Read apart from the fields: they are not one number or one text.
_OTHERS = ("prompt", "messages", "stop", "response_format", "stream_options", "input",
           "encoding_format")  # fmt: skip
# What is described of the paths: the fields, and schemas of what is read apart.
READ = {
    "/v1/completions": _COMPLETION,
    "/v1/chat/completions": _CHAT,
    "/v1/embeddings": _EMBEDDING,
}
_STRING: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_OF_TEXTS: dict[str, Any] = {
    "stop": {"anyOf": [_STRING, {"type": "array", "items": _STRING, "maxItems": 16}]},
    "response_format": {
        "type": "object",
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {"type": "object"},
        },
        "required": ["type"],
    },
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": {"anyOf": [_STRING, {"type": "array", "items": _STRING, "minItems": 1}, _IDS]},
        **_OF_TEXTS,
    },
    "/v1/chat/completions": {
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "role": {"enum": ["system", "user", "assistant"]},
                    "content": {"type": "string"},
                },
                "required": ["role", "content"],
            },
        },
        **_OF_TEXTS,
    },
    "/v1/embeddings": {
        "input": {"anyOf": [_STRING, {"type": "array", "items": _STRING, "minItems": 1}, _IDS]},
        "encoding_format": {"enum": ["float", "base64"]},
    },
}
# What changes nothing of the answer.
_NEUTRAL = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
_MOST_PROMPTS, _MOST_INPUTS, _MOST_STOPS = 32, 256, 16


def wrong(message: str, param: str | None = None) -> ApiError:
    """A request that cannot be answered as it is."""
    return ApiError(400, message, "invalid_value", param)


def too_large(message: str, param: str | None = None) -> ApiError:
    """A request of more than is taken."""
    return ApiError(413, message, "context_length_exceeded", param)


def read_completion(task: Any, given: Values, limits: Limits) -> Prompts:
    """The texts that `/v1/completions` is asked for."""
    values = _values(given, _COMPLETION, limits)
    prompts = given.get("prompt")
    if prompts is None:
        raise wrong(
            "`prompt` is missing: give a text, a list of texts, or ids of tokens.", "prompt"
        )
    single = isinstance(prompts, str) or (
        isinstance(prompts, list) and prompts and all(type(x) is int for x in prompts)
    )
    prompts = [prompts] if single else prompts
    if not isinstance(prompts, list) or not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise wrong(f"`prompt` must be 1 to {_MOST_PROMPTS} texts or lists of ids.", "prompt")
    for prompt in prompts:
        check_length(prompt, "prompt", limits)
    try:
        rows = [task._prompt_ids([prompt], "prompt")[0][0] for prompt in prompts]
    except ValueError as error:
        raise wrong(str(error), "prompt") from None
    return _prompts(task, given, values, rows, 16, values["logprobs"], limits)


def read_chat(task: Any, given: Values, limits: Limits) -> Prompts:
    """The answers that `/v1/chat/completions` is asked for."""
    values = _values(given, _CHAT, limits)
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("`messages` must be a list of at least one message.", "messages")
    check_size(messages, "messages", limits)
    messages = [_message(message, i) for i, message in enumerate(messages)]
    if task.tokenizer.chat_template is None:
        raise wrong(
            f"{values['model']!r} has no chat template: it was not trained for conversations. Ask "
            "/v1/completions instead.", "model",
        )  # fmt: skip
    try:
        rows = [task.tokenizer.encode_chat(messages)]
    except ValueError as error:
        raise wrong(str(error), "messages") from None
    top_k = values["top_logprobs"]
    if top_k is not None and not values["logprobs"]:
        raise wrong("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    top_k = (top_k or 0) if values["logprobs"] else None
    values["max_tokens"] = values["max_completion_tokens"] or values["max_tokens"]
    return _prompts(task, given, values, rows, None, top_k, limits)


class Inputs(NamedTuple):
    """Texts to be embedded; `dimensions` is what the vectors are expected to have."""

    texts: list[str]
    as_base64: bool
    dimensions: int | None


def read_embedding(task: Any, given: Values, limits: Limits) -> Inputs:
    """What `/v1/embeddings` is asked for: texts, or lists of ids, which are turned into them."""
    values = _values(given, _EMBEDDING, limits)
    form = given.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise wrong("`encoding_format` must be 'float' or 'base64'.", "encoding_format")
    texts = given.get("input")
    of_ids = isinstance(texts, list) and texts and all(type(x) is int for x in texts)
    texts = [texts] if isinstance(texts, str) or of_ids else texts
    if not isinstance(texts, list) or not 1 <= len(texts) <= _MOST_INPUTS:
        raise wrong(f"`input` must be 1 to {_MOST_INPUTS} texts.", "input")
    found = []
    for text in texts:
        check_length(text, "input", limits)
        if isinstance(text, list):
            try:
                text = task.tokenizer.decode(text)
            except (ValueError, TypeError) as error:
                raise wrong(f"`input`: {error}", "input") from None
        if not isinstance(text, str) or not text:
            raise wrong("`input` must be texts that are not empty.", "input")
        found.append(text)
    return Inputs(found, form == "base64", values["dimensions"])


def check_length(text: Any, name: str, limits: Limits) -> None:
    """ApiError for a text of more characters, or ids of more tokens, than are read."""
    most, what = limits.characters, "characters"
    if isinstance(text, list):
        most, what = limits.tokens, "tokens"
    if isinstance(text, (str, list)) and len(text) > most:
        raise too_large(f"`{name}` has {len(text):,} {what}, and at most {most:,} are read.", name)


def check_size(value: Any, name: str, limits: Limits) -> None:
    """ApiError for JSON of more characters than are read, each value counted as one at least."""
    size, found = 0, [value]
    while found:
        each = found.pop()
        size += len(each) if isinstance(each, str) else 1
        if isinstance(each, dict):
            found += [*each, *each.values()]
        elif isinstance(each, list):
            found += each
    if size > limits.characters:
        raise too_large(
            f"`{name}` has {size:,} characters, and at most {limits.characters:,} are read. Names, "
            "roles and the number of messages count.",
            name,
        )


def _values(given: Values, fields: tuple[Field, ...], limits: Limits) -> dict[str, Any]:
    """The fields of a request. ApiError for one that is wrong, or that would not be heeded."""
    known = {field.name for field in fields}.union(_OTHERS, _NEUTRAL)
    for name in sorted(set(given) - known):
        # Clients send what they have no wish for as null, false or nothing.
        if given[name] not in (None, False, [], {}, "", 0) and (name, given[name]) != (
            "best_of",
            1,
        ):
            message = f"{quoted(name)} is not supported here."
            raise ApiError(400, message, "unsupported_parameter", name[:80])
    values = {}
    for field in fields:
        try:
            value = given.get(field.name)
            asked = {} if value is None else {field.name: value}
            values[field.name] = field.read(asked, limits.characters)
        except ValueError as error:
            raise wrong(str(error), field.name) from None
    return values


def _prompts(
    task: Any, given: Values, values: dict[str, Any], rows: list[list[int]], usual: int | None,
    top_k: int | None, limits: Limits,
) -> Prompts:  # fmt: skip
    most = values["max_tokens"] or usual
    for row in rows:
        _check_room(task, row, most, limits)
    options: dict[str, Any] = {"stop": _stop(given), "constraint": _constraint(task, given)}
    penalties = {name: values[name] for name in ("presence_penalty", "frequency_penalty")}
    if any(penalties.values()):
        options["rules"] = kt.generation.Rules(**penalties)
    return Prompts(
        rows,
        values["n"],
        most,
        values["temperature"],
        values["top_p"],
        secrets.randbits(63) if values["seed"] is None else values["seed"] % 2**64,
        {name: value for name, value in options.items() if value is not None},
        top_k if top_k is None else min(top_k, task.backbone.config.vocabulary_size),
        values["stream"],
        _usage(given),
    )


def room_of(task: Any, limits: Limits) -> int:
    """The most tokens of a prompt and its text: of the server, and of the model's positions."""
    config = task.backbone.config
    most = config.max_sequence_length if config.position == "learned" else limits.tokens
    return min(most, limits.tokens)


def _check_room(task: Any, row: list[int], most: int | None, limits: Limits) -> None:
    room = room_of(task, limits)
    if len(row) + (most or 1) > room:
        raise too_large(
            f"The prompt has {len(row):,} tokens, and with {most or 1:,} new ones needs more than "
            f"there is room for, {room:,}. Shorten the prompt, or lower `max_tokens`.",
            "max_tokens" if len(row) < room else "prompt",
        )


def _message(message: Any, place: int) -> dict[str, Any]:
    """A message with its content as one text, of which clients may send the parts."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise wrong(f"`messages[{place}]` must be an object with `role` and `content`.", "messages")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise wrong(f"`messages[{place}]` has a part that is no text.", "messages")
        content = "".join(texts)
    if not isinstance(content, str):
        raise wrong(f"`messages[{place}].content` must be a text.", "messages")
    return {"role": message["role"], "content": content}


def _stop(given: Values) -> list[str] | None:
    stop = given.get("stop")
    if stop is None or stop == []:
        return None
    stop = [stop] if isinstance(stop, str) else stop
    texts = isinstance(stop, list) and all(isinstance(text, str) and text for text in stop)
    if not texts or len(stop) > _MOST_STOPS:
        raise wrong(f"`stop` must be 1 to {_MOST_STOPS} texts that are not empty.", "stop")
    return stop


def _usage(given: Values) -> bool:
    options = given.get("stream_options") or {}
    if not isinstance(options, dict):
        raise wrong("`stream_options` must be an object.", "stream_options")
    return options.get("include_usage") is True


def _constraint(task: Any, given: Values) -> Any:
    """What the text must be, of `response_format`."""
    form = given.get("response_format")
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    schema: Any = {"type": "object"}
    if kind == "text":
        return None
    if kind == "json_schema":
        schema = form.get("json_schema")
        schema = schema.get("schema") if isinstance(schema, dict) else None
    elif kind != "json_object":
        raise wrong(
            "`response_format.type` must be 'text', 'json_object' or 'json_schema'.",
            "response_format",
        )
    if not isinstance(schema, (dict, bool)):
        raise wrong("`response_format.json_schema.schema` must be an object.", "response_format")
    try:
        return task.constraint(json_schema=schema)
    except (ValueError, RecursionError) as error:
        raise wrong(str(error), "response_format") from None
