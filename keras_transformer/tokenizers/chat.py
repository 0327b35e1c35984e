"""Chats as the text that a model was trained on, by the template of its tokenizer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.tokenizers.chat_process import render_apart

# Characters; published templates have up to some ten thousand.
MAX_TEMPLATE = 2**20
# What is said of a template before the message, by the kind of what is wrong.
_WRONG = {
    "syntax": "is invalid in line ",
    "forbidden": "asks for what it may not: ",
    "size": "asks for too much: ",
    "refused": "refuses this chat: ",
    "failed": "fails for this chat: ",
}


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The text of a chat, as Transformers' `apply_chat_template` gives it."""
    messages = _checked(messages)
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise ValueError(
            f"A chat template must be a string of at most {MAX_TEMPLATE:,} characters, received "
            f"{f'{len(template):,}' if isinstance(template, str) else type(template).__name__}."
        )
    given = {
        **(special_tokens or {}),
        "messages": messages,
        "tools": _plain(tools, "tools"),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **{name: _plain(value, name) for name, value in variables.items()},
    }
    try:
        kind, text = render_apart(template, given)
    except ImportError as error:
        raise ImportError(
            "Chat templates need the package jinja2, which is not installed. "
            'Install it with: pip install "keras_transformer[generation]"'
        ) from error
    if kind == "text":
        return text
    raise ValueError(f"The chat template {_WRONG[kind]}{text}")


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(messages, (list, tuple)) or not messages:
        what = "empty" if isinstance(messages, (list, tuple)) else type(messages).__name__
        raise ValueError(f"`messages` must be a list of at least one message, but is {what}.")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(
                f"messages[{place}] must be a dict with 'role' and 'content', but is "
                f"{type(message).__name__}."
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                found = f"is {type(message[key]).__name__}" if key in message else "is missing"
                raise ValueError(f"messages[{place}]: {key!r} must be a string, but {found}.")
    return [_plain(dict(message), f"messages[{place}]") for place, message in enumerate(messages)]


def _plain(value: Any, name: str) -> Any:
    """A value that must be JSON's."""
    try:
        json.dumps(value)
        return value
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`{name}` must hold JSON values only: {error}") from None
