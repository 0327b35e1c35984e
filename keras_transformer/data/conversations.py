"""Conversations in any of the forms in which data sets hold them."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.record_objects import column_names
from keras_transformer.processors.audio_files import Sound
from keras_transformer.processors.video_files import Video
from keras_transformer.support.checking import describe, shorten
from keras_transformer.support.columns import is_column, listed_column, plain, undecoded

# Columns that hold conversations, the first known ones are used; and columns that may be beside.
_FORMS = {
    ("messages",): ("tools",),
    ("conversations",): ("system", "tools"),
    ("prompt", "completion"): ("tools",),
    ("instruction", "output"): ("input", "system"),
}
# Columns of what the parts of a row's messages hold, and the classes that their entries get.
_MEDIA: dict[str, type | None] = {"images": None, "videos": Video, "audios": Sound}
# Names of roles in the column "conversations" (ShareGPT's `from`).
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
    "assistant": "assistant", "model": "assistant", "bot": "assistant", "system": "system",
    "tool": "tool", "observation": "tool", "function_response": "tool",
}  # fmt: skip


class Conversation(NamedTuple):
    """Messages of a conversation, and the tools that the assistant may call.

    Args:
        messages: list of dicts with `role`, `content` and other keys that a chat template uses.
        tools: list of dicts of JSON values that describe functions, or None.
        prompt: int, the number of messages at the beginning that were given as a prompt: nothing
            is learned from them.
        plain: bool, whether it was given as two strings, a prompt and a completion, which a model
            without a chat template reads as one text.
        images: list of the images of parts `{"type": "image"}` that hold none, and of the videos
            and recordings, each a `processors.Video` or `processors.Sound`, of such parts; or None.

    Example:
    ```python
    from keras_transformer.data import as_conversations

    rows = [{"instruction": "Name a colour.", "input": "", "output": "Blue."}]
    (conversation,) = as_conversations(rows)
    assert conversation.messages[-1] == {"role": "assistant", "content": "Blue."}
    ```
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    prompt: int = 0
    plain: bool = False
    images: list[Any] | None = None


def as_conversations(x: Any, y: Any = None) -> list[Conversation]:
    """Return the conversations of any table of them.

    Args:
        x: a list of conversations, each a list of messages; a list of rows, each a dict with the
            columns below; a data frame or a data set of `datasets` with them; or, with `y`, a list
            of prompts. The columns are `messages`; `conversations`, with `from` and `value`
            (ShareGPT) or `role` and `content`; `prompt` and `completion`; or `instruction` and
            `output` (Alpaca). Beside them `tools`, `system` and `input` are read, and `images`,
            `videos` and `audios`, each a list for each row.
        y: the answers to the prompts. Prompts and answers are strings, or lists of messages.

    Returns:
        A list of `Conversation`.

    Raises:
        ValueError: if a row is not a conversation; the message names it.

    Example:
    ```python
    from keras_transformer.data import as_conversations

    assert as_conversations(["2 + 2?"], ["4"])[0].messages == [
        {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    ]
    ```
    """
    if y is not None:
        columns = {"prompt": _listed(x, "x"), "completion": _listed(y, "y")}
        sizes = {name: len(column) for name, column in columns.items()}
        if len({*sizes.values()}) > 1:
            raise ValueError(
                f"Received {sizes['prompt']} prompts and {sizes['completion']} answers: give one "
                "for each."
            )
        for name, column in zip("xy", columns.values(), strict=True):
            for i, side in enumerate(column):
                if not isinstance(side, (str, list, tuple)):
                    raise ValueError(
                        f"`{name}[{i}]` must be a string or a list of messages, since `y` holds "
                        f"the answers to the prompts in `x`, received {describe(side)}. Texts "
                        "that are their own targets are given without `y`."
                    )
        return from_columns(columns, lambda i: f"`x[{i}]`")
    names = column_names(x)
    if names is not None:
        used = needed_columns(names, x)
        columns = {name: list(plain(listed_column(x[name]), name)) for name in used}
        found = from_columns(columns, lambda i: f"row {i}", filled=True)
        media = {name: listed_column(undecoded(x, name)[name]) for name in _MEDIA if name in names}
        if media:
            rows = [
                dict(zip(media, each, strict=True)) for each in zip(*media.values(), strict=True)
            ]
            found = [
                row._replace(images=_media(held, f"row {i}"))
                for i, (row, held) in enumerate(zip(found, rows, strict=True))
            ]
        return found
    rows = _listed(x, "x")
    return [_of_row(row, f"`x[{i}]`") for i, row in enumerate(rows)]


def conversation_columns(names: Sequence) -> tuple[str, ...] | None:
    """Return the columns of conversations among the names of a table's columns, or None."""
    for form, beside in _FORMS.items():
        if {*form} <= {*names}:
            return (*form, *(name for name in beside if name in names))
    return None


def needed_columns(names: Sequence, data: Any) -> tuple[str, ...]:
    """Return the columns of conversations. Raises ValueError without them."""
    found = conversation_columns(names)
    if found is None:
        raise ValueError(
            f"The {type(data).__name__} has no known column of conversations, but "
            f"{shorten(list(names))}. Rename them: 'messages'; 'prompt' and 'completion'; "
            "'instruction' and 'output'; or 'conversations'."
        )
    return found


def is_conversations(x: Any) -> bool:
    """Return whether data in memory holds conversations rather than texts, valid or not."""
    names = column_names(x)
    if names is not None:
        return conversation_columns(names) is not None
    first = next(iter(x), None) if isinstance(x, (list, tuple)) or is_column(x) else None
    if isinstance(first, list):
        return bool(first) and isinstance(first[0], Mapping)
    return isinstance(first, (Mapping, Conversation))


def from_columns(
    columns: Mapping[str, Sequence], place: Callable[[int], str], filled: bool = False
) -> list[Conversation]:
    """Return the conversations of columns by name.

    Args:
        columns: dict of lists, with the columns of `as_conversations`.
        place: function from the index of a row to how errors name it.
        filled: bool, whether the columns come from a table in which each message has the keys of
            all others, with None where they are missing. They are removed then.
    """
    names, found = list(columns), []
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        row = dict(zip(names, values, strict=True))
        found.append(_of_row(_without_none(row) if filled else row, place(i)))
    return found


def _of_row(row: Any, place: str) -> Conversation:
    if isinstance(row, Conversation):
        return row
    row = plain(row, place) if not isinstance(row, Mapping) else row
    if isinstance(row, list):
        return Conversation(_messages(row, place))
    if not isinstance(row, Mapping):
        raise ValueError(
            f"{place} must be a conversation, a list of messages, but is {describe(row)}."
        )
    if {"role", "content"} <= row.keys():
        raise ValueError(
            f"{place} is a message: a conversation is a list of messages, and `x` a list of "
            "conversations. Put the conversation in []."
        )
    if conversation_columns(list(row)) is None:
        raise ValueError(
            f"{place} has the keys {shorten(list(row))}: a row has 'messages'; 'prompt' and "
            "'completion'; 'instruction' and 'output'; or 'conversations'."
        )
    tools, images = _tools(row.get("tools"), place), _media(row, place)
    if "messages" in row:
        messages = _messages(row["messages"], f"{place}, 'messages'")
        return Conversation(messages, tools, images=images)
    system = _message("system", row["system"], place) if row.get("system") else []
    if "conversations" in row:
        messages = [*system, *_shared(row["conversations"], place)]
        return Conversation(messages, tools, images=images)
    if "prompt" in row and "completion" in row:
        sides = [row["prompt"], row["completion"]]
        both = all(isinstance(side, str) for side in sides)
        prompt, answer = (
            _message(role, side, f"{place}, {name}")
            if isinstance(side, str)
            else _messages(side, f"{place}, {name}")
            for role, side, name in zip(
                ("user", "assistant"), sides, ("the prompt", "the answer"), strict=True
            )
        )
        return Conversation([*prompt, *answer], tools, len(prompt), both, images)
    asked = "\n\n".join(str(row[n]) for n in ("instruction", "input") if row.get(n))
    asked = _message("user", asked, place)
    answer = _message("assistant", row["output"], f"{place}, 'output'")
    return Conversation([*system, *asked, *answer], tools, len(system) + 1, images=images)


def _media(row: Mapping[str, Any], place: str) -> list | None:
    """Return the images, videos and recordings of a row; None without these columns."""
    found = None
    for name, wrapped in _MEDIA.items():
        given = row.get(name)
        if given is None:
            continue
        listed = isinstance(given, np.ndarray) and given.dtype == object  # as pandas reads Parquet
        if not listed and not isinstance(given, (list, tuple)):
            raise ValueError(f"{place}, {name!r} must be a list, received {describe(given)}.")
        own = [
            each if wrapped is None or isinstance(each, wrapped) else wrapped(each)
            for each in given
        ]
        found = [*(found or ()), *own]
    return found


def _message(role: str, content: Any, place: str) -> list[dict[str, str]]:
    if not isinstance(content, str):
        raise ValueError(f"{place} must be a string, received {describe(content)}.")
    return [{"role": role, "content": content}]


def _messages(given: Any, place: str) -> list[dict[str, Any]]:
    """Return messages without keys that are None, except for the content."""
    given = plain(given, place)
    if not isinstance(given, list) or not given:
        raise ValueError(
            f"{place} must be a list of messages, as [{{'role': 'user', 'content': 'hello'}}], "
            f"received {describe(given)}."
        )
    for i, message in enumerate(given):
        if not isinstance(message, Mapping):
            raise ValueError(
                f"{place}, message {i}, must be a dict with 'role' and 'content', received "
                f"{describe(message)}."
            )
    return [
        {n: v for n, v in message.items() if v is not None or n == "content"} for message in given
    ]


def _shared(given: Any, place: str) -> list[dict[str, Any]]:
    """Return the messages of a column "conversations", in ShareGPT's form or the usual one."""
    messages = _messages(given, f"{place}, 'conversations'")
    found = []
    for i, message in enumerate(messages):
        if not {"from", "value"} <= message.keys():
            found.append(message)
            continue
        role = _ROLES.get(message["from"])
        if role is None:
            raise ValueError(
                f"{place}, 'conversations'[{i}] is from {shorten(message['from'])}, but must be "
                f"from one of {', '.join(_ROLES)}. Give other messages in the form of 'messages', "
                "with 'role', 'content' and 'tool_calls'."
            )
        found.append({"role": role, "content": message["value"]})
    return found


def _tools(given: Any, place: str) -> list | None:
    """Return the descriptions of tools, which may be given as JSON."""
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"{place}, 'tools' is not valid JSON: {error}.") from None
    given = plain(given, place)
    if given is None or given in ("", []):
        return None
    if not isinstance(given, list):
        raise ValueError(
            f"{place}, 'tools' must be a list of dicts, or its JSON, received {describe(given)}."
        )
    return given


def _without_none(value: Any) -> Any:
    """Return a JSON value without None in objects, except for the content of messages."""
    value = plain(value, "a row")
    if isinstance(value, Mapping):
        return {n: _without_none(v) for n, v in value.items() if v is not None or n == "content"}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _listed(values: Any, name: str) -> list:
    if is_column(values) or hasattr(values, "tolist"):
        values = plain(values, f"`{name}`")
    if isinstance(values, (str, Mapping)) or not isinstance(values, (list, tuple)):
        raise ValueError(f"`{name}` must be a list of conversations, received {describe(values)}.")
    if not len(values):
        raise ValueError(f"`{name}` is empty: there must be at least one conversation.")
    return list(values)
