"""Fields of OpenAI's API requests, read and checked."""

import functools
import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras_transformer as kt
from keras_transformer.data import Conversation
from keras_transformer.processors import Sound, Video
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.openai_errors import ApiError, wrong
from keras_transformer.serving.openai_tools import (
    CallForm,
    Tools,
    call_form,
    read_calls,
    read_tools,
)
from keras_transformer.serving.verbs import (
    Field,
    Values,
    check_pixels,
    check_samples,
    quoted,
    read_file,
)
from keras_transformer.support.checking import shorten
from keras_transformer.tasks.images.image_conversations import ImageConversations, numbers_of
from keras_transformer.tasks.images.row_images import (
    RowImages,
    check_padding,
    check_silence,
    states_of,
)


class Prompts(NamedTuple):
    """The prompts of a request, and the options for generating from them.

    Fields:
        prompts: list of the ids of each prompt.
        samples: int, texts returned for each prompt.
        most: int, most new tokens of each text; 0 generates nothing; None uses all the room.
        temperature: float; 0 takes the likeliest tokens.
        top_p: float, total probability of the likeliest tokens, among which tokens are drawn.
        seed: int.
        options: dict of options of `GenerationCall`: `stop`, `rules`, `constraint`,
            `guidance_scale`.
        top_k: int, number of alternatives returned for each token; None returns no
            log-probabilities.
        stream: bool, whether the answer is a stream.
        usage: bool, whether a stream ends with the token counts.
        echoes: tuple of the text of each prompt if answers begin with it, else `()`.
        best_of: int, texts generated for each prompt, of which the `samples` likeliest are
            returned. Defaults to `samples`.
        tools: `Tools` that the answer may call, or None.
        negative: list of the ids of each prompt's negative prompt; empty without guidance.
        images: the `RowImages` of a conversation, or None if the model reads texts alone.
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
    echoes: tuple[str, ...] = ()
    best_of: int | None = None
    tools: Tools | None = None
    negative: Sequence[list[int]] = ()
    images: RowImages | None = None

    @property
    def written(self) -> int:
        """Number of texts that are generated for each prompt."""
        return self.best_of or self.samples


_MODEL = Field("model", "text", "Name of a model in /v1/models")
_LONGEST = Field("max_tokens", "integer", "Max new tokens", least=1, most=10**9, optional=True)
_SHARED = (
    _MODEL, _LONGEST,
    Field("temperature", "number", "Temperature (0 = greedy)", 1.0, most=2),
    Field("top_p", "number", "Top-p", 1.0, least=1e-6, most=1),
    Field("n", "integer", "Texts for each prompt", 1, least=1, most=32),
    Field("seed", "integer", "Seed", least=-(2**63), most=2**63 - 1, optional=True),
    Field("presence_penalty", "number", "Penalty of repeated tokens", 0.0, least=-2, most=2),
    Field("frequency_penalty", "number", "Penalty per repetition", 0.0, least=-2, most=2),
    Field("guidance_scale", "number", "Guidance; 1 disables it", most=100, optional=True),
    Field("negative_prompt", "text", "Text that guidance leads away from", optional=True),
    Field("stream", "flag", "Stream the answer", False),
)  # fmt: skip
_COMPLETION = (
    *(field._replace(least=0) if field is _LONGEST else field for field in _SHARED),
    Field("logprobs", "integer", "Alternatives per token", most=20, optional=True),
    Field("echo", "flag", "Return the prompt before its text", False),
    Field("best_of", "integer", "Texts to choose from", least=1, most=32, optional=True),
)  # fmt: skip
_CHAT = (
    *_SHARED, _LONGEST._replace(name="max_completion_tokens"),
    Field("logprobs", "flag", "Return log-probabilities", False),
    Field("top_logprobs", "integer", "Alternatives per token", most=20, optional=True),
)  # fmt: skip
_EMBEDDING = (
    _MODEL, Field("dimensions", "integer", "Vector length", least=1, most=10**6, optional=True),
)  # fmt: skip
_RESPONSE = (
    *(field for field in _SHARED if field.name in ("model", "temperature", "top_p", "seed",
                                                   "stream")),
    _LONGEST._replace(name="max_output_tokens"),
)  # fmt: skip
# Fields that are read separately, since they are not single numbers or texts.
# How the URL of a video begins whose data are images, one for each frame.
_FRAMES = tuple(f"data:{kind};" for kind in ("video/jpeg", "video/png", "video/webp"))
_OF_TEXTS = ("stop", "response_format", "stream_options")
_COMPLETION_OTHERS = (*_OF_TEXTS, "prompt", "tokenizer")
_CHAT_OTHERS = (*_OF_TEXTS, "messages", "tools", "tool_choice")
_EMBEDDING_OTHERS = ("input", "encoding_format", "tokenizer")
# Fields of each path for the OpenAPI description, without those that are read separately.
READ = {
    "/v1/completions": _COMPLETION,
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _RESPONSE,
    "/v1/embeddings": _EMBEDDING,
}
_STRING: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT_SCHEMAS: dict[str, Any] = {
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
_MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"type": "string"},
            "tool_call_id": {"type": "string"},
            "tool_calls": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["role", "content"],
    },
}
_TOOLS: dict[str, Any] = {
    "tools": {"type": "array", "items": {"type": "object"}, "maxItems": 128},
    "tool_choice": {
        "anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}],
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": {"anyOf": [_STRING, {"type": "array", "items": _STRING, "minItems": 1}, _IDS]},
        "tokenizer": _STRING,
        **_TEXT_SCHEMAS,
    },
    "/v1/chat/completions": {"messages": _MESSAGES, **_TOOLS, **_TEXT_SCHEMAS},
    "/v1/responses": {
        "input": {"anyOf": [_STRING, {**_MESSAGES, "items": {"type": "object"}}]},
        "instructions": {"type": "string"},
        "text": {"type": "object"},
        **_TOOLS,
    },
    "/v1/embeddings": {
        "input": {
            "anyOf": [
                _STRING,
                {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 2048},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 2048},
            ]
        },
        "encoding_format": {"enum": ["float", "base64"]},
        "tokenizer": _STRING,
    },
}
# Ignored fields, which do not change the answer. `parallel_tool_calls` is one of them, since an
# answer has at most one call.
_NEUTRAL = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "parallel_tool_calls")  # fmt: skip
_MOST_PROMPTS, _MOST_INPUTS, _MOST_STOPS = 32, 2048, 16


def too_long(message: str, param: str | None = None) -> ApiError:
    """Return an error for more tokens or characters than the context has room for."""
    code = "context_length_exceeded"
    # Some clients recognize the error by its code, others by a word of its message.
    return ApiError(400, f"{message} ({code})", code, param)


def read_completion(
    task: Any, given: Values, limits: Limits, tokenizers: Mapping[str, Any] | None = None
) -> Prompts:
    """Read a request to `/v1/completions`; `tokenizers` are keyed by the models' names."""
    values = _values(given, _COMPLETION, _COMPLETION_OTHERS, limits)
    prompts = given.get("prompt")
    if prompts is None:
        raise wrong(
            "`prompt` is missing: give a text, a list of texts, or ids of tokens.", "prompt"
        )
    single = isinstance(prompts, str) or is_ids(prompts)
    prompts = [prompts] if single else prompts
    if not isinstance(prompts, list) or not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise wrong(f"`prompt` must be 1 to {_MOST_PROMPTS} texts or lists of ids.", "prompt")
    for prompt in prompts:
        check_length(prompt, "prompt", limits)
    if values["max_tokens"] == 0 and not values["echo"]:
        raise wrong("`max_tokens` must be an integer from 1, or 0 with `echo`.", "max_tokens")
    best_of = values["best_of"]
    if best_of is not None and best_of < values["n"]:
        raise wrong(f"`best_of` must be at least `n`, {values['n']}.", "best_of")
    if best_of == values["n"]:
        best_of = None
    if best_of is not None and values["stream"]:
        raise wrong("`best_of` cannot be streamed: leave out `stream`.", "best_of")
    if given.get("tokenizer") != values["model"]:  # the model's own ids stay as they are
        prompts = [_as_text(prompt, "prompt", task, given, tokenizers) for prompt in prompts]
    try:
        rows = [task.generator.prompt_ids([prompt], "prompt")[0][0] for prompt in prompts]
    except ValueError as error:
        raise wrong(str(error), "prompt") from None
    asked = _prompts(task, given, values, rows, 16, values["logprobs"], limits)
    echoes: tuple[str, ...] = ()
    if values["echo"]:
        texts = zip(prompts, rows, strict=True)
        echoes = tuple(p if isinstance(p, str) else task.tokenizer.decode(row) for p, row in texts)
    return asked._replace(echoes=echoes, best_of=best_of)


def read_chat(task: Any, given: Values, limits: Limits) -> Prompts:
    """Read a request to `/v1/chat/completions`."""
    values = _values(given, _CHAT, _CHAT_OTHERS, limits)
    if task.tokenizer.chat_template is None:
        raise wrong(
            f"{values['model']!r} has no chat template: it was not trained for conversations. Ask "
            "/v1/completions instead.", "model",
        )  # fmt: skip
    check_size(given.get("tools"), "tools", limits)
    tools = read_tools(task, given, functools.partial(_compiled, task))
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("`messages` must be a list of at least one message.", "messages")
    of_images = getattr(task, "takes_conversations", False)
    if of_images and (tools or values["guidance_scale"] not in (None, 1)):
        name = "tools" if tools else "guidance_scale"
        raise wrong(f"`{name}` is not supported by models of images.", name)
    messages, urls = _without_urls(messages)
    check_size(messages, "messages", limits)
    calls = any(isinstance(message, dict) and message.get("tool_calls") for message in messages)
    form = call_form(task.tokenizer) if calls else None
    if urls and not of_images:
        raise wrong(f"{values['model']!r} reads texts, and no images.", "messages")
    videos = any(isinstance(each, Video) for each in urls)
    if videos and getattr(task.processor.source, "videos", None) is None:
        raise wrong(f"{values['model']!r} reads images, and no videos.", "messages")
    hears = of_images and task.backbone.config.hearing_side
    sounds = hears and task.processor.source.sounds
    seen = [each for each in urls if not isinstance(each, Sound)]
    if hears == "encoder" and seen:
        raise wrong(f"{values['model']!r} hears recordings, and sees no images.", "messages")
    if any(isinstance(each, Sound) for each in urls) and not sounds:
        raise wrong(f"{values['model']!r} reads images, and hears no sound.", "messages")
    messages = [_message(message, i, form) for i, message in enumerate(messages)]
    images = None
    try:
        if of_images:
            _check_images(task, urls, limits)
            filled = [Conversation(messages, images=urls)]
            (images,), rows = ImageConversations(task).prompts(filled)
        else:
            shown = given.get("tools") if tools else None
            rows = [task.tokenizer.encode_chat(messages, tools=shown)]
    except ValueError as error:
        raise wrong(str(error), "messages") from None
    for name, is_given in {
        "logprobs": values["logprobs"],
        "response_format": (given.get("response_format") or {"type": "text"}) != {"type": "text"},
    }.items():
        if tools and is_given:
            raise wrong(f"`{name}` does not go with `tools` here.", name)
    top_k = values["top_logprobs"]
    if top_k is not None and not values["logprobs"]:
        raise wrong("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    top_k = (top_k or 0) if values["logprobs"] else None
    values["max_tokens"] = values["max_completion_tokens"] or values["max_tokens"]
    asked = _prompts(task, given, values, rows, None, top_k, limits)
    return asked._replace(tools=tools, images=images)


def _check_images(task: Any, images: list[bytes | Video | Sound], limits: Limits) -> None:
    """Check the number of images, their pixels, and samples, before anything is made of them."""
    seen = [image for image in images if not isinstance(image, Sound)]
    each = [image.content if isinstance(image, Video) else [image] for image in seen]
    check_pixels("messages", list(itertools.chain(*each)), limits)
    source = task.processor.source
    heard = [image.content for image in images if isinstance(image, Sound)]
    if heard:
        check_samples("messages", heard, source.sounds.sampling_rate, limits)
    layouts = source.layouts(images, states_of(task.backbone))
    states = sum(len(layout.states) for layout in layouts)
    room = room_of(task, limits)
    if states > room:
        raise too_long(
            f"This model's maximum context length is {room:,} tokens, and {numbers_of(images)} "
            f"take {states:,}. Send fewer.", "messages",
        )  # fmt: skip
    pairs = list(zip(images, layouts, strict=True))
    if task.backbone.placeholder_tokens.count is None and seen:
        check_padding(source, [one for image, one in pairs if not isinstance(image, Sound)])
    if heard:
        check_silence(source, [one for image, one in pairs if isinstance(image, Sound)])


def _without_urls(messages: list) -> tuple[list, list[bytes | Video | Sound]]:
    """Return messages with parts that are texts or `{"type": "image"}`, and the images' bytes.

    Only data URLs are read: nothing is fetched, neither from the network nor from this machine. A
    video is `{"type": "video"}`, and a `Video` of the bytes of its frames, which are images; a
    recording is `{"type": "audio"}`, and a `Sound` of the bytes of its file.
    """
    made: list[Any] = []
    images: list[bytes | Video | Sound] = []
    for place, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            made.append(message)
            continue
        parts: list[Any] = []
        for number, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            where = f"`messages[{place}].content[{number}]`"
            if kind == "input_audio":
                held = part.get("input_audio")
                data = held.get("data") if isinstance(held, dict) else None
                try:
                    images.append(Sound(read_file(f"{where}.input_audio.data", data)))
                except ValueError as error:
                    raise wrong(str(error), "messages") from None
                parts.append({"type": "audio"})
                continue
            if kind not in ("image_url", "input_image", "video_url"):
                text = part.get("text") if isinstance(part, dict) else None
                if not isinstance(text, str):
                    raise wrong(f"{where} is neither a text nor an `image_url`.", "messages")
                parts.append({"type": "text", "text": text})
                continue
            url = part.get("video_url" if kind == "video_url" else "image_url")
            url = url.get("url") if isinstance(url, dict) else url
            if not isinstance(url, str) or url[:5].lower() != "data:":
                shown = shorten(url) if isinstance(url, str) else "no URL"
                raise wrong(
                    f"{where} has {shown}: only `data:` URLs are read, with the image in base64. "
                    "Addresses of the network and of files are never fetched.", "messages",
                )  # fmt: skip
            head, _, data = url.partition(",")
            if not head.lower().endswith(";base64"):
                raise wrong(f"{where} must hold the image in base64.", "messages")
            is_video = kind == "video_url"
            if is_video and not head.lower().startswith(_FRAMES):
                raise wrong(
                    f"{where} must be the frames of a video, each an image in base64, with commas "
                    "between them: `data:video/jpeg;base64,FRAME,FRAME`. Files of videos are not "
                    "decoded.", "messages",
                )  # fmt: skip
            try:
                if is_video:
                    frames = [read_file(where, frame) for frame in data.split(",")]
                    images.append(Video(frames))
                else:
                    images.append(read_file(where, data))
            except ValueError as error:
                raise wrong(str(error), "messages") from None
            parts.append({"type": "video" if is_video else "image"})
        made.append({**message, "content": parts})
    return made, images


class Inputs(NamedTuple):
    """Texts to embed; `dimensions` is the expected length of the vectors."""

    texts: list[Any]  # strings, or lists of ids
    are_ids: bool
    as_base64: bool
    dimensions: int | None


def read_embedding(
    task: Any, given: Values, limits: Limits, tokenizers: Mapping[str, Any] | None = None
) -> Inputs:
    """Read a request to `/v1/embeddings`; `tokenizers` are keyed by the models' names."""
    values = _values(given, _EMBEDDING, _EMBEDDING_OTHERS, limits)
    form = given.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise wrong("`encoding_format` must be 'float' or 'base64'.", "encoding_format")
    texts = given.get("input")
    texts = [texts] if isinstance(texts, str) or is_ids(texts) else texts
    if not isinstance(texts, list) or not 1 <= len(texts) <= _MOST_INPUTS:
        raise wrong(f"`input` must be 1 to {_MOST_INPUTS:,} texts or lists of ids.", "input")
    rows = list(map(is_ids, texts))
    if any(rows) and given.get("tokenizer") not in (None, values["model"]):
        texts, rows = [_as_text(text, "input", task, given, tokenizers) for text in texts], [False]
    for text in texts:
        check_length(text, "input", limits)
        if any(rows):
            _check_ids(text, "input", values["model"], task.tokenizer)
        elif not isinstance(text, str) or not text:
            raise wrong("`input` must be texts or lists of ids that are not empty.", "input")
    return Inputs(texts, any(rows), form == "base64", values["dimensions"])


def is_ids(value: Any) -> bool:
    """Return whether a value is a list of token ids."""
    return isinstance(value, list) and bool(value) and all(type(x) is int for x in value)


def _as_text(
    value: Any, name: str, task: Any, given: Values, tokenizers: Mapping[str, Any] | None
) -> Any:
    """Decode ids with the tokenizer that the request names; return other values unchanged.

    Ids of a request without `tokenizer` are those of the task's own, and are returned unchanged.
    """
    stated = given.get("tokenizer")
    if stated is None or not is_ids(value):
        return value
    known = {given.get("model"): task.tokenizer, **(tokenizers or {})}
    if not isinstance(stated, str) or stated not in known:
        raise wrong(
            "`tokenizer` must be the name of a model here whose tokenizer made the ids: "
            f"{', '.join(sorted(filter(None, known)))}. Send ids of other tokenizers as texts.",
            "tokenizer",
        )
    _check_ids(value, name, stated, known[stated])
    return known[stated].decode(value)


def _check_ids(value: Any, name: str, model: str, tokenizer: Any) -> None:
    """Raise ApiError if the value is not a list of ids of a model's tokenizer."""
    if not is_ids(value):
        raise wrong(f"`{name}` must be texts, or lists of ids that are not empty.", name)
    size = tokenizer.vocabulary_size
    if not 0 <= min(value) <= max(value) < size:
        raise wrong(
            f"`{name}` has ids from {shorten(min(value))} to {shorten(max(value))}, but the "
            f"tokenizer of {model!r} has ids from 0 to {size - 1}. If another tokenizer made "
            "them, as LangChain's `OpenAIEmbeddings` does unless "
            "`check_embedding_ctx_length` is false, send texts.",
            name,
        )


def check_length(text: Any, name: str, limits: Limits) -> None:
    """Raise ApiError if a text or list of ids is longer than the limit."""
    most, what = limits.characters, "characters"
    if isinstance(text, list):
        most, what = limits.tokens, "tokens"
    if isinstance(text, (str, list)) and len(text) > most:
        raise too_long(f"`{name}` has {len(text):,} {what}, and at most {most:,} are read.", name)


def check_size(value: Any, name: str, limits: Limits) -> None:
    """Raise ApiError if a JSON value has too many characters.

    Each string counts with its length, and each other value as one character.
    """
    size, found = 0, [value]
    while found:
        each = found.pop()
        size += len(each) if isinstance(each, str) else 1
        if isinstance(each, dict):
            found += [*each, *each.values()]
        elif isinstance(each, list):
            found += each
    if size > limits.characters:
        raise too_long(
            f"`{name}` has {size:,} characters, and at most {limits.characters:,} are read. Names, "
            "roles and the number of messages count.",
            name,
        )


def _values(
    given: Values, fields: tuple[Field, ...], others: tuple[str, ...], limits: Limits
) -> dict[str, Any]:
    """Read the fields of a request. Raises ApiError if one is invalid or unsupported."""
    known = {field.name for field in fields}.union(others, _NEUTRAL)
    for name in sorted(set(given) - known):
        # Clients send unused fields as null, false or empty.
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
    most = usual if values["max_tokens"] is None else values["max_tokens"]
    for row in rows:
        _check_room(task, row, most, limits)
    options: dict[str, Any] = {"stop": _stop(given), "constraint": _constraint(task, given)}
    penalties = {name: values[name] for name in ("presence_penalty", "frequency_penalty")}
    if any(penalties.values()):
        options["rules"] = kt.generation.Rules(**penalties)
    options["guidance_scale"] = values["guidance_scale"]
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
        negative=_negative(task, values, rows, most, limits),
    )


def _negative(
    task: Any, values: dict[str, Any], rows: list[list[int]], most: int | None, limits: Limits
) -> list[list[int]]:
    """Return the ids of each prompt's negative prompt, or an empty list without guidance."""
    scale, text = values["guidance_scale"], values["negative_prompt"]
    if (task.generator.published_guidance() if scale is None else scale) == 1:
        if text is not None and scale is None:
            raise wrong("`negative_prompt` needs a `guidance_scale`.", "negative_prompt")
        return []
    if text is None:
        return [row[-1:] for row in rows]
    negative = task.generator.prompt_ids([text], "negative_prompt")[0]
    _check_room(task, *negative, most, limits, "negative_prompt")
    return negative * len(rows)


def room_of(task: Any, limits: Limits) -> int:
    """Return the most tokens of a prompt and its text that the server and the model allow."""
    config = task.backbone.config
    most = config.max_sequence_length if config.position == "learned" else limits.tokens
    return min(most, limits.tokens)


def _check_room(
    task: Any, row: list[int], most: int | None, limits: Limits, name: str = "prompt"
) -> None:
    room, most = room_of(task, limits), 1 if most is None else most
    if len(row) + most > room:
        raise too_long(
            f"This model's maximum context length is {room:,} tokens. The {name} has {len(row):,} "
            f"tokens, and with {most:,} new ones needs more than there is room for. Shorten the "
            f"{name}, or lower `max_tokens`.",
            "max_tokens" if len(row) < room else name,
        )


def _message(message: Any, place: int, form: CallForm | None) -> dict[str, Any]:
    """Read a message, and join its content to one text if the client sent it in parts."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise wrong(f"`messages[{place}]` must be an object with `role` and `content`.", "messages")
    content, calls = message.get("content"), read_calls(message, place, form)
    if isinstance(content, list):
        texts = [part["text"] for part in content if part["type"] == "text"]
        content = "".join(texts) if len(texts) == len(content) else content
    content = "" if content is None and calls else content
    if not isinstance(content, (str, list)):
        raise wrong(f"`messages[{place}].content` must be a text.", "messages")
    read: dict[str, Any] = {"role": message["role"], "content": content}
    if calls:
        read["tool_calls"] = calls
    if read["role"] == "tool":  # some templates show the name or id with the result of a call
        given = {name: message.get(name) for name in ("name", "tool_call_id")}
        read |= {name: text for name, text in given.items() if isinstance(text, str)}
    return read


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
    """Return the constraint that `response_format` puts on the text, or None."""
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
    return _compiled(task, schema, "response_format")


def _compiled(task: Any, schema: Any, param: str) -> Any:
    """Compile a JSON Schema from the field `param` to a constraint."""
    try:
        return task.constraint(json_schema=schema)
    except (ValueError, RecursionError) as error:
        raise wrong(str(error), param) from None
