"""Rendering of chats with a tokenizer's chat template.

Templates are rendered in a separate process, which is started once and replaced when needed.
"""

import atexit
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.support import bounded_child
from keras_transformer.support.bounded_process import BoundedProcess, Ended
from keras_transformer.tokenizers import chat_child

# Maximum characters of a template; published ones have up to about ten thousand.
MAX_TEMPLATE = 2**20
# Beginning of the error message, by the kind of failure.
_WRONG = {
    "syntax": "is invalid in line ",
    "forbidden": "asks for something forbidden: ",
    "size": "asks for too much: ",
    "refused": "refuses this chat: ",
    "failed": "fails for this chat: ",
}
SECONDS = 2.0  # of CPU time
PATIENCE = 30.0  # wall-clock seconds: more, since other programs may occupy the CPU
MEMORY = 256 * 2**20  # bytes
MAX_REQUEST = 16 * 2**20  # bytes, of a template with its variables


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """Return the text of a chat, as Transformers' `apply_chat_template` does."""
    given = {
        **(special_tokens or {}),
        "messages": check_messages(messages),
        "tools": check_values(tools, "tools"),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **{name: check_values(value, name) for name, value in variables.items()},
    }
    return text_of(*render_all(template, [given])[0])


def render_all(template: str, chats: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Render a template with the variables of several chats.

    Returns the kind of each result and a text, for `text_of`.
    """
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise ValueError(
            f"A chat template must be a string of at most {MAX_TEMPLATE:,} characters, received "
            f"{f'{len(template):,}' if isinstance(template, str) else type(template).__name__}."
        )
    try:
        return render_chats_apart(template, chats)
    except ImportError as error:
        raise ImportError(
            "Chat templates need the package jinja2, which is not installed. "
            'Install it with: pip install "keras_transformer[generation]"'
        ) from error


def text_of(kind: str, text: str) -> str:
    """Return the text of a rendered chat. Raises ValueError if the template failed."""
    if kind == "text":
        return text
    raise ValueError(f"The chat template {_WRONG[kind]}{text}")


def check_messages(
    messages: Sequence[Mapping[str, Any]], check_content: Callable[[Any, str], None] | None = None
) -> list[dict[str, Any]]:
    """Return the messages of a chat as dicts. Raises ValueError if one is invalid.

    The content of a message that calls tools may be None or missing. Contents are strings, or what
    `check_content` lets pass; it takes a content, and how errors name the message.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        what = "empty" if isinstance(messages, (list, tuple)) else type(messages).__name__
        raise ValueError(
            f"`messages` must be a list of at least one message, but is {what}. Give dicts, as in "
            "[{'role': 'user', 'content': 'Hello'}]."
        )
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(
                f"messages[{place}] must be a dict with 'role' and 'content', but is "
                f"{type(message).__name__}."
            )
        for key in ("role", "content"):
            if key == "content" and message.get(key) is None and message.get("tool_calls"):
                continue
            if key == "content" and check_content is not None and key in message:
                check_content(message[key], f"messages[{place}]")
            elif not isinstance(message.get(key), str):
                found = f"is {type(message[key]).__name__}" if key in message else "is missing"
                raise ValueError(f"messages[{place}]: {key!r} must be a string, but {found}.")
    return [
        check_values(dict(message), f"messages[{place}]") for place, message in enumerate(messages)
    ]


def check_values(value: Any, name: str) -> Any:
    """Return a value. Raises ValueError if it cannot be written as JSON."""
    try:
        json.dumps(value)
        return value
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`{name}` must hold JSON values only: {error}") from None


def render_apart(
    template: str, given: Mapping[str, Any], seconds: float = SECONDS, patience: float = PATIENCE
) -> tuple[str, str]:
    """Render one chat as `render_chats_apart` does."""
    return render_chats_apart(template, [given], seconds, patience)[0]


def render_chats_apart(
    template: str,
    chats: Sequence[Mapping[str, Any]],
    seconds: float = SECONDS,
    patience: float = PATIENCE,
) -> list[tuple[str, str]]:
    """Render a template in another process, which is killed if it exceeds its limits.

    Returns for each chat the kind of the result and a text: `"text"` with the chat, or a key of
    `_WRONG` with the end of the error message.
    """
    request = json.dumps([template, chats]).encode()
    if len(request) > MAX_REQUEST:
        why = f"with the chat it has {len(request):,} bytes, more than {MAX_REQUEST:,}"
        return [("size", why)] * len(chats)
    kind, answer = _asked(request, seconds, patience)
    if kind != "texts":
        return [(kind, answer)] * len(chats)
    return [(kind, text) for kind, text in json.loads(answer)]


def _asked(request: bytes, seconds: float, patience: float) -> tuple[str, str]:
    """Return the kind and the text of the process's answer."""
    global _process
    with _lock:
        for _ in range(2):
            if _process is None:
                _process = _started()
            process = _process
            try:
                kind, last, data = process.ask(request, seconds, patience)
            except BaseException as error:
                process.end()
                _process = None
                if not isinstance(error, Ended):
                    raise  # such as an interruption, after which an answer would still arrive
            else:
                if last:
                    process.end()
                    _process = None
                return kind, data.decode("utf-8", "surrogatepass")
            if process.timed_out:
                return "size", f"it takes longer than {patience:g} seconds"
            if process.took_too_long:
                return "size", f"it takes more than {seconds:g} seconds of computing"
            if process.status == bounded_child.OUT_OF_MEMORY:
                return "size", f"it takes more than {MEMORY // 2**20} MB"
            # The process was killed from outside, perhaps while idle: try once more.
    return "size", f"it ends the process that renders it (with the status {process.status})"


def _started() -> BoundedProcess:
    return BoundedProcess(
        "renders chat templates",
        chat_child.__file__,
        MEMORY,
        ("jinja2", "markupsafe"),
        PATIENCE,
        8 * chat_child.MAX_TEXT,  # in JSON a character has up to 6 bytes
    )


_lock = threading.Lock()
_process: BoundedProcess | None = None


def _leave() -> None:
    """Forget the parent's process after a fork, during which another thread may hold the lock."""
    global _lock, _process
    _lock = threading.Lock()
    if _process is not None:
        _process.leave()
        _process = None


@atexit.register
def _end() -> None:
    if _process is not None:
        _process.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
