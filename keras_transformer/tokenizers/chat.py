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
    """The text of a chat, as Transformers' `apply_chat_template` gives it.

    A template comes with a model and is not trusted: it can do nothing but make text of what it
    is given here. It is read and rendered in a process of its own, which the operating system
    ends after 2 seconds of computing, and gives 256 MB (on Linux; on Windows the end comes after
    30 seconds by the clock). The first call starts that process, later ones use it.

    The text has the special tokens in it. It is encoded with `special_tokens=False`.

    Args:
        template: the template, in Jinja.
        messages: dicts with the strings `role` (`"system"`, `"user"`, `"assistant"`, ...) and
            `content`, and further keys that the template may know.
        add_generation_prompt: end with what comes before the assistant's next answer.
        special_tokens: such as `{"bos_token": "<s>"}`.
        tools: descriptions of functions that the model may call, as dicts of JSON values.
        **variables: what else the template knows, such as `enable_thinking`.

    Returns:
        The text.

    Raises:
        ImportError: if jinja2 is not installed.
        RuntimeError: if the process for it cannot be started.
        ValueError: if a message is wrong, or the template is: it is invalid, it refuses the chat,
            it asks for what it may not, or for too much.

    Example:

    ```python
    from keras_transformer.tokenizers.chat import render_chat

    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    messages = [{"role": "user", "content": "Hello!"}]
    text = render_chat(template, messages, special_tokens={"eos_token": "</s>"})
    assert text == "<user>Hello!</s>"
    ```
    """
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
