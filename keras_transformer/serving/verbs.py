"""Verbs: what clients can ask of tasks, described once for endpoints, OpenAPI and the page."""

import base64
import binascii
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import keras_transformer as kt
from keras_transformer.processors import AudioProcessor, ImageProcessor
from keras_transformer.processors.audio_files import TooLong, count_samples
from keras_transformer.processors.image_files import count_pixels
from keras_transformer.serving.bodies import RefusedRequest
from keras_transformer.serving.limits import Limits
from keras_transformer.support.checking import shorten
from keras_transformer.tasks.images.row_images import states_of
from keras_transformer.tokenizers.moses import text_forms

Values = Mapping[str, Any]


class ServedTask(NamedTuple):
    """A task to serve, and the form of its texts.

    Fields:
        task: the task.
        text: str, the form of the texts that the task was trained on, from the preset's metadata:
            `"moses"` means words with spaces around punctuation; None means ordinary texts.
    """

    task: Any
    text: str | None = None

    @property
    def writes(self) -> bool:
        """Whether texts are generated in a running batch: continuations, or answers in chats."""
        completes = any(verb.name == "complete" for verb in self.verbs)
        return completes or getattr(self.task, "takes_conversations", False)

    @property
    def verbs(self) -> "tuple[Verb, ...]":
        """Verbs of the task."""
        return tuple(verb for verb in VERBS if verb.fits(self.task))


# First bytes of JPEG 2000 files and codestreams (ISO/IEC 15444-1, annexes A and I). Pillow blocks
# all other threads for seconds while it decodes them.
_JPEG_2000 = (b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")
_NOT_EMPTY = r"\S"  # pattern in JSON Schema for a text that is not empty
_JSON_TYPES = {
    "text": "string",
    "file": "string",
    "integer": "integer",
    "number": "number",
    "flag": "boolean",
}


def read_file(name: str, value: Any) -> bytes:
    """Return the bytes of a file in base64. Raises ValueError if they are not; `name` says where.

    JPEG 2000 is refused.
    """
    try:
        content = base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        content = b""
    if not content:
        raise ValueError(f"{name} must be the bytes of a file in base64.")
    if content.startswith(_JPEG_2000):
        raise ValueError(
            f"{name} is a JPEG 2000, which is not read here: send a PNG, JPEG or WebP."
        )
    return content


class Field(NamedTuple):
    """An argument of a verb.

    Fields:
        name: str, name of the field in JSON.
        kind: `"text"`, `"texts"` (a list), `"messages"` (a conversation), `"file"` (bytes in
            base64), `"integer"`, `"number"` or `"flag"`.
        label: str, name of the field on the page and its description in OpenAPI.
        default: value of a field that is not given. None makes the field required, unless it is
            `optional`.
        least: the least number.
        most: the greatest number, or the most texts or messages.
        optional: bool, whether the field may be omitted without a default.
        whole: bool, whether the model reads all of a text, without truncation. `Verb.check` limits
            the length of these texts.
    """

    name: str
    kind: str
    label: str
    default: Any = None
    least: float = 0
    most: float = 32
    optional: bool = False
    whole: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the field."""
        schema: dict[str, Any] = {"description": self.label}
        if self.kind == "texts":
            text = {"type": "string", "minLength": 1, "pattern": _NOT_EMPTY}
            schema |= {"type": "array", "items": text, "minItems": 1, "maxItems": int(self.most)}
        elif self.kind == "messages":
            parts = {
                "role": {"enum": list(_ROLES)},
                "content": {"type": "string", "minLength": 1, "pattern": _NOT_EMPTY},
            }
            message = {
                "type": "object", "properties": parts, "required": list(parts),
                "additionalProperties": False,
            }  # fmt: skip
            schema |= {"type": "array", "items": message, "minItems": 1, "maxItems": int(self.most)}
        else:
            schema["type"] = _JSON_TYPES[self.kind]
        if self.kind in ("integer", "number"):
            schema |= {"minimum": self.least, "maximum": self.most}
        elif self.kind == "text":
            schema["pattern"] = _NOT_EMPTY
        elif self.kind == "file":
            schema["contentEncoding"] = "base64"
        return schema if self.default is None else {**schema, "default": self.default}

    def read(self, given: Values, longest: int) -> Any:
        """Return the value in a request. Raises ValueError if it is missing or invalid."""
        value = given.get(self.name, self.default)
        if value is None:
            if self.optional:
                return None
            raise ValueError(f"`{self.name}` is missing: give {_KINDS[self.kind]}.")
        return getattr(self, f"_read_{self.kind}")(value, longest)

    def _read_text(self, value: Any, longest: int) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"`{self.name}` must be a text that is not empty.")
        if len(value) > longest:
            raise ValueError(
                f"`{self.name}` has {len(value):,} characters, and at most {longest:,} are read."
            )
        return value

    def _read_texts(self, value: Any, longest: int) -> list[str]:
        texts = value if isinstance(value, list) else [value]
        if not 1 <= len(texts) <= self.most:
            raise ValueError(f"`{self.name}` must be 1 to {self.most} texts, not {len(texts)}.")
        return [self._read_text(text, longest) for text in texts]

    def _read_messages(self, value: Any, longest: int) -> list[dict[str, str]]:
        if not isinstance(value, list) or not 1 <= len(value) <= self.most:
            raise ValueError(f"`{self.name}` must be a list of 1 to {self.most} messages.")
        for message in value:
            named = isinstance(message, dict) and set(message) == {"role", "content"}
            if not named or message["role"] not in _ROLES:
                raise ValueError(
                    f"`{self.name}` must have objects with a `role`, one of {', '.join(_ROLES)}, "
                    "and a `content`, a text."
                )
            self._read_text(message["content"], longest)
        characters = sum(len(message["content"]) for message in value)
        if characters > longest:
            raise ValueError(
                f"`{self.name}` has {characters:,} characters, and at most {longest:,} are read: "
                "start a new conversation."
            )
        return value

    def _read_file(self, value: Any, longest: int) -> bytes:
        return read_file(f"`{self.name}`", value)

    def _read_flag(self, value: Any, longest: int) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"`{self.name}` must be true or false.")
        return value

    def _read_integer(self, value: Any, longest: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"`{self.name}` must be an integer.")
        if not self.least <= value <= self.most:
            raise ValueError(f"`{self.name}` must be an integer from {self.least} to {self.most}.")
        return value

    def _read_number(self, value: Any, longest: int) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.least <= value <= self.most:
            raise ValueError(f"`{self.name}` must be a number from {self.least} to {self.most}.")
        return value


_ROLES = ("system", "user", "assistant")
_KINDS = {
    "text": "a text",
    "texts": "a list of texts",
    "messages": "a list of messages",
    "file": "a file in base64",
    "integer": "an integer",
    "number": "a number",
    "flag": "true or false",
}


@dataclasses.dataclass(frozen=True)
class Verb:
    """An operation that some tasks offer to clients.

    Args:
        name: str, name of the endpoint.
        title: str, text of the button on the page.
        tasks: tuple of the names of the task classes that have the verb.
        fields: tuple of `Field`s, the arguments of the verb.
        answer: function from a `ServedTask` and the values of the fields to a dict for JSON:
            `rows`, for each input a list of dicts with the same keys; `texts`; or `vectors` and
            their `similarities`.
        stream: function with the same arguments that yields the pieces of a text, or None.
        explained: function from a `ServedTask` and the values to the input of the task's `explain`;
            None if the page does not show attention for the verb.
        needs: function from a task of `tasks` to whether it has the verb. Defaults to all of them.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    fields: tuple[Field, ...]
    answer: Callable[[ServedTask, Values], dict[str, Any]]
    stream: Callable[[ServedTask, Values], Iterator[str]] | None = None
    explained: Callable[[ServedTask, Values], Any] | None = None
    needs: Callable[[Any], bool] | None = None

    def fits(self, task: Any) -> bool:
        """Return whether a task has the verb."""
        return type(task).__name__ in self.tasks and (self.needs is None or self.needs(task))

    def read(self, given: Any, longest: int) -> dict[str, Any]:
        """Read and check the values of a request. Raises ValueError if they are invalid."""
        if not isinstance(given, dict):
            raise ValueError("The body must be a JSON object.")
        names = [field.name for field in self.fields]
        unknown = sorted(set(given) - set(names))
        if unknown:
            known = ", ".join(names)
            raise ValueError(f"{quoted(unknown[0])} is not known here. There are: {known}.")
        return {field.name: field.read(given, longest) for field in self.fields}

    def check(self, served: ServedTask, values: Values, limits: Limits) -> None:
        """Check the lengths of texts and the sizes of files before anything is computed.

        Raises ValueError if a text or a file cannot be read or is too long for the model, and
        `RefusedRequest` if a recording has too many samples, or an image too many pixels.
        """
        self._check_tokens(served, values, limits.tokens)
        for field in self.fields:
            if field.kind == "file":
                _check_file(field.name, served.task, values[field.name], limits)

    def _check_tokens(self, served: ServedTask, values: Values, most: int) -> None:
        """Raise ValueError if texts take more memory than one text of `most` tokens.

        The memory of attention is the number of texts times the square of the longest length. Texts
        that the task truncates are not checked.
        """
        tokenizer = getattr(served.task, "tokenizer", None)  # if None, the task refuses texts
        names = [field.name for field in self.fields if field.whole and tokenizer is not None]
        for name in names:
            if isinstance(values[name], list) and isinstance(values[name][0], dict):
                count = len(tokenizer.encode_chat(values[name]))
                if count > most:
                    raise ValueError(
                        f"`{name}` has {count:,} tokens, and at most {most:,} are read: start a "
                        "new conversation."
                    )
                continue
            texts = values[name] if isinstance(values[name], list) else [values[name] or ""]
            longest = max(map(len, tokenizer.encode_batch(texts)))
            room = int(most / len(texts) ** 0.5)
            if longest > room:
                of_each = f" of each of {len(texts)} texts" if len(texts) > 1 else ""
                raise ValueError(
                    f"`{name}` has a text of {longest:,} tokens, and at most {room:,} are read"
                    f"{of_each}: memory grows with the square of its length. Shorten it"
                    f"{', or send fewer at a time' if of_each else ''}."
                )


def check_pixels(name: str, images: Sequence[bytes], limits: Limits) -> None:
    """Check the pixels of image files by their headers, before they are decoded.

    Raises ValueError if one cannot be read, and `RefusedRequest` if all have too many together.
    """
    count = sum(count_pixels(content, name) for content in images)
    if count > limits.pixels:
        raise RefusedRequest(
            413,
            f"`{name}` has {count:,} pixels; the images of a request may have {limits.pixels:,} "
            "together. Make them smaller.",
            "request_too_large",
        )


def check_samples(name: str, files: Sequence[bytes], rate: int, limits: Limits) -> None:
    """Check the samples of files of recordings by their headers, before they are decoded.

    Raises ValueError if one cannot be read, and `RefusedRequest` if all have too many together.
    """
    try:
        count = sum(count_samples(content, rate, name, limits.samples) for content in files)
    except TooLong as error:
        raise RefusedRequest(413, str(error), "request_too_large") from None
    if count > limits.samples:
        raise RefusedRequest(
            413,
            f"`{name}` has {count:,} samples at {rate:,} Hz; the recordings of a request may have "
            f"{limits.samples:,} together. Send fewer.",
            "request_too_large",
        )


def _check_file(name: str, task: Any, content: bytes, limits: Limits) -> None:
    """Check the size of a recording or an image by its file's header, before it is decoded."""
    processor = getattr(task, "processor", None)
    source = getattr(processor, "source", processor)
    if isinstance(source, AudioProcessor):
        _check_recording(name, task, source, content, limits)
    elif isinstance(source, ImageProcessor):
        check_pixels(name, [content], limits)
        if getattr(task.backbone, "placeholder_tokens", None) is not None:
            (layout,) = source.layouts([content], states_of(task.backbone), [name])
            if len(layout.states) > limits.tokens:
                raise ValueError(
                    f"`{name}` takes {len(layout.states):,} tokens, and at most {limits.tokens:,} "
                    "are read. Make the image smaller."
                )


def _check_recording(
    name: str, task: Any, source: AudioProcessor, content: bytes, limits: Limits
) -> None:
    try:
        count = count_samples(content, source.sampling_rate, name, limits.samples)
    except TooLong as error:
        raise RefusedRequest(413, str(error), "request_too_large") from None
    stem = task.backbone.config.sides[0].stem
    in_windows = source.most_samples is not None or getattr(task, "window_seconds", None)
    whole = stem.kind == "waveform" or getattr(stem, "masked", False)
    if whole and not in_windows and source.count_states(stem, count) > limits.tokens:
        rate = source.sampling_rate
        most = limits.tokens * source.samples_of_state(stem) / rate
        raise RefusedRequest(
            413,
            f"`{name}` has {count / rate:,.1f} seconds, and this model reads at most {most:,.1f} "
            "at once: memory grows with the square of its length. Cut it into pieces.",
            "request_too_large",
        )


def quoted(name: str) -> str:
    """Quote a field name that a client sent, shortened."""
    return f"`{shorten(name)[1:-1]}`"


_TEXTS = Field("texts", "texts", "Texts, one per line")
_WHOLE_TEXTS = _TEXTS._replace(whole=True)
_FILE = Field("file", "file", "File")
_LENGTH = Field("max_new_tokens", "integer", "Max new tokens", 64, least=1, most=512)
_ITS_LENGTH = _LENGTH._replace(default=None, optional=True)  # defaults to the model's
_SAMPLING = (
    _LENGTH,
    Field("temperature", "number", "Temperature (0 = greedy)", 0.8, most=4),
    Field("top_p", "number", "Top-p", 0.95, least=0.01, most=1),
    Field("seed", "integer", "Seed", least=0, most=2**31 - 1, optional=True),
)


def _first(served: ServedTask, values: Values) -> str:
    return text_forms(served.text)[0](values["texts"][:1])[0]


def _file(served: ServedTask, values: Values) -> bytes:
    return values["file"]


def _prompt(served: ServedTask, values: Values) -> str:
    return values["prompt"]


def _pair(served: ServedTask, values: Values) -> tuple[str, str]:
    return values["question"], values["context"]


def _classes(found: list) -> dict[str, Any]:
    rows = [[{"label": label, "score": float(share)} for label, share in row] for row in found]
    return {"rows": rows}


def _classify(served: ServedTask, values: Values) -> dict[str, Any]:
    return _classes(served.task.classify(values["texts"], top_k=min(served.task.num_classes, 10)))


def _classify_file(served: ServedTask, values: Values) -> dict[str, Any]:
    return _classes(served.task.classify([values["file"]], top_k=min(served.task.num_classes, 10)))


def _classify_by_labels(served: ServedTask, values: Values) -> dict[str, Any]:
    labels = values["labels"]
    return _classes(served.task.classify([values["file"]], labels=labels, top_k=len(labels)))


def _fill_mask(served: ServedTask, values: Values) -> dict[str, Any]:
    found = served.task.fill_mask(values["texts"], top_k=values["top_k"])
    # A text with several masks has a list of candidates for each.
    flat = [[f for fs in each for f in (fs if isinstance(fs, list) else [fs])] for each in found]
    names = ("token", "score", "text")
    return {"rows": [[{n: _plain(getattr(f, n)) for n in names} for f in fs] for fs in flat]}


def _recognize(served: ServedTask, values: Values) -> dict[str, Any]:
    found = served.task.recognize(values["texts"])
    return {"rows": [[_entity(entity) for entity in entities] for entities in found]}


def _entity(entity: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in entity._asdict().items()}


def _answer(served: ServedTask, values: Values) -> dict[str, Any]:
    (found,) = served.task.answer([values["question"]], [values["context"]], top_k=3)
    return {"rows": [[_entity(answer) for answer in found]]}


def _embed(served: ServedTask, values: Values) -> dict[str, Any]:
    if served.task.interaction is not None:
        raise ValueError("This model has a vector for each token: it has none for a text.")
    vectors = np.asarray(served.task.encode(values["texts"]), "float64")
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similarities = (units @ units.T).round(6).tolist()
    return {"vectors": vectors.round(7).tolist(), "similarities": similarities}


def _translate(served: ServedTask, values: Values) -> dict[str, Any]:
    split, join = text_forms(served.text)
    beams = values["beams"]
    sampler = kt.generation.BeamSearch(beams) if beams > 1 else kt.generation.Greedy()
    options = {"max_new_tokens": values["max_new_tokens"], "sampler": sampler}
    return {
        "texts": [join(text) for text in served.task.generate(split(values["texts"]), **options)]
    }


def _drawing(values: Values) -> dict[str, Any]:
    """Return the options of `generate`: sampler, most new tokens, and seed."""
    sampler = kt.generation.Greedy()
    if values["temperature"] > 0:
        sampler = kt.generation.Random(values["temperature"], top_p=values["top_p"])
    given = {"sampler": sampler, "max_new_tokens": values["max_new_tokens"]}
    return given if values["seed"] is None else {**given, "seed": values["seed"]}


def _complete(served: ServedTask, values: Values) -> dict[str, Any]:
    return {"texts": [served.task.generate(values["prompt"], **_drawing(values))]}


def _has_chat_template(task: Any) -> bool:
    return getattr(getattr(task, "tokenizer", None), "chat_template", None) is not None


def _chat(served: ServedTask, values: Values) -> dict[str, Any]:
    return {"texts": [served.task.chat(values["messages"], **_drawing(values))]}


def _chat_stream(served: ServedTask, values: Values) -> Iterator[str]:
    return served.task.chat(values["messages"], stream=True, **_drawing(values))


def _complete_stream(served: ServedTask, values: Values) -> Iterator[str]:
    return served.task.generate(values["prompt"], stream=True, **_drawing(values))


def _caption(served: ServedTask, values: Values) -> dict[str, Any]:
    options = {"max_new_tokens": values["max_new_tokens"]}
    return {"texts": list(served.task.generate([values["file"]], values["question"], **options))}


def _transcribe(served: ServedTask, values: Values) -> dict[str, Any]:
    return {"texts": list(served.task.transcribe([values["file"]]))}


def _plain(value: Any) -> Any:
    """Convert a NumPy number to a Python number, which `json` can write."""
    return value.item() if isinstance(value, np.generic) else value


VERBS = (
    Verb(
        "classify", "Classify", ("TextClassifier", "SequenceClassifier"), (_TEXTS,), _classify,
        explained=_first,
    ),
    Verb(
        "classify", "Classify", ("ImageClassifier", "AudioClassifier"), (_FILE,), _classify_file,
        explained=_file,
    ),
    Verb(
        "classify", "Classify", ("ImageEmbedder", "AudioEmbedder"),
        (_FILE, Field("labels", "texts", "Classes, one per line")), _classify_by_labels,
    ),
    Verb(
        "fill-mask", "Fill the mask", ("MaskedLM",),
        (_WHOLE_TEXTS, Field("top_k", "integer", "How many", 5, least=1, most=20)), _fill_mask,
        explained=_first,
    ),
    Verb(
        "recognize", "Recognize", ("TokenClassifier", "SequenceLabeler"), (_TEXTS,), _recognize,
        explained=_first,
    ),
    Verb(
        "answer", "Answer", ("QuestionAnswerer",),
        (Field("question", "text", "Question"), Field("context", "text", "Text")), _answer,
        explained=_pair,
    ),
    Verb("embed", "Embed and compare", ("TextEmbedder",), (_TEXTS,), _embed, explained=_first),
    Verb(
        "translate", "Translate", ("Seq2SeqLM",),
        (
            _WHOLE_TEXTS, Field("beams", "integer", "Beams", 4, least=1, most=16), _ITS_LENGTH,
        ),
        _translate,
        explained=_first,
    ),
    Verb(
        "chat", "Chat", ("CausalLM",),
        (Field("messages", "messages", "Message", most=100, whole=True), *_SAMPLING), _chat,
        stream=_chat_stream, needs=_has_chat_template,
    ),
    Verb(
        "complete", "Complete", ("CausalLM",),
        (Field("prompt", "text", "Prompt", whole=True), *_SAMPLING), _complete,
        stream=_complete_stream, explained=_prompt,
    ),
    Verb(
        "caption", "Describe", ("ImageToText",),
        (
            _FILE, Field("question", "text", "Question", optional=True, whole=True), _ITS_LENGTH,
        ),
        _caption,
    ),
    Verb("transcribe", "Transcribe", ("SpeechToText", "CTCSpeechToText"), (_FILE,), _transcribe),
)  # fmt: skip


@functools.cache
def task_names() -> frozenset[str]:
    """Return the names of the task classes that have a verb."""
    return frozenset(name for verb in VERBS for name in verb.tasks)
