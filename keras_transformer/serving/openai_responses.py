"""Endpoint `/v1/responses` of OpenAI's API: requests become chats, and answers are items."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.serving.limits import Limits
from keras_transformer.serving.openai_answers import Arguments, Called, Text
from keras_transformer.serving.openai_errors import ApiError, wrong
from keras_transformer.serving.openai_fields import Prompts, read_chat
from keras_transformer.serving.verbs import Values, quoted
from keras_transformer.serving.worker import Done

# Fields with the same meaning as in `/v1/chat/completions`, and their names there.
_SAME = {
    "model": "model", "max_output_tokens": "max_tokens", "temperature": "temperature",
    "top_p": "top_p", "stream": "stream", "seed": "seed",
}  # fmt: skip
_READ = ("input", "instructions", "text", "tools", "tool_choice")
# Ignored fields, which do not change the answer. Nothing is kept between requests.
_NEUTRAL = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention", "parallel_tool_calls", "max_tool_calls",
            "stream_options")  # fmt: skip


def read_response(task: Any, given: Values, limits: Limits) -> Prompts:
    """Read a request to `/v1/responses`."""
    for name in sorted(set(given).difference(_SAME, _READ, _NEUTRAL)):
        if given[name] not in (None, False, [], {}, "", 0) and (name, given[name]) != (
            "truncation",
            "disabled",
        ):
            message = f"{quoted(name)} is not supported here."
            raise ApiError(400, message, "unsupported_parameter", name[:80])
    chat = {theirs: given.get(ours) for ours, theirs in _SAME.items()}
    chat["messages"] = _messages(given)
    chat["tools"] = _tools(given.get("tools"))
    chat["tool_choice"] = _tool_choice(given.get("tool_choice"))
    chat["response_format"] = _text_format(given.get("text"))
    try:
        return read_chat(task, chat, limits)
    except ApiError as error:
        renamed = {"messages": "input", "max_tokens": "max_output_tokens",
                   "response_format": "text.format"}  # fmt: skip
        error.param = renamed.get(error.param or "", error.param)
        raise


class ResponseAnswer:
    """Formats one response, whole or as the server-sent events of a stream.

    A text and a function call are separate items of a response.

    Args:
        model: str, the name of the model.
        given: dict, the body of the request.
    """

    is_chat = True

    def __init__(self, model: str, given: Mapping[str, Any]):
        self._base = {
            "id": _name("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": given.get("instructions"),
            "metadata": given.get("metadata") or {},
            "parallel_tool_calls": False,
            "temperature": 1.0 if given.get("temperature") is None else given["temperature"],
            "top_p": 1.0 if given.get("top_p") is None else given["top_p"],
            "max_output_tokens": given.get("max_output_tokens"),
            "tools": given.get("tools") or [],
            "tool_choice": given.get("tool_choice") or "auto",
            "text": given.get("text") or {"format": {"type": "text"}},
            "truncation": "disabled",
            "store": False,
            "previous_response_id": None,
            "error": None,
        }
        self._message, self._call = _name("msg"), _name("fc")
        self._sent = 0
        self._text: Text | None = None  # once a part of it has arrived
        self._opened: list[str] = []  # the types of the items begun so far

    def complete_body(self, texts: list[Text], usage: dict[str, int]) -> dict[str, Any]:
        """Return the whole response."""
        (text,) = texts
        reason = "max_output_tokens" if text.done.reason == "length" else None
        return {
            **self._base,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._items(text),
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }

    def begun(self, count: int) -> Iterator[str]:
        """Yield the events before the text."""
        response = self._unfinished("in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def told(self, index: int, told: Any, text: Text) -> Iterator[str]:
        """Yield the events for new content: a `Piece`, `Called`, `Arguments` or `Done`."""
        self._text = text
        if isinstance(told, Called):
            if "message" in self._opened:
                yield from self._closed_message("completed")
            self._opened.append("function_call")
            item = {**self._function_call(text, "in_progress"), "arguments": ""}
            yield self._event("response.output_item.added", **self._at(), item=item)
        elif isinstance(told, Arguments):
            yield self._event(
                "response.function_call_arguments.delta",
                item_id=self._call, **self._at(), delta=told.text,
            )  # fmt: skip
        elif not isinstance(told, Done):
            if not self._opened:
                yield from self._opened_message()
            yield self._event(
                "response.output_text.delta", **self._part(), delta=told.text, logprobs=[]
            )
        else:
            if not self._opened:  # an empty text is an item too
                yield from self._opened_message()
            status = "incomplete" if told.reason == "length" else "completed"
            if self._opened[-1] == "message":
                yield from self._closed_message(status)
            else:
                item = self._function_call(text, status)
                yield self._event(
                    "response.function_call_arguments.done",
                    item_id=self._call, **self._at(), name=item["name"],
                    arguments=item["arguments"],
                )  # fmt: skip
                yield self._event("response.output_item.done", **self._at(), item=item)

    def closed(self, usage: dict[str, int], wanted: bool) -> Iterator[str]:
        """Yield the last event, which has the whole response."""
        response = self.complete_body([self._text], usage)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError) -> Iterator[str]:
        """Yield the last event of a response that failed."""
        response = self._unfinished("failed")
        response["error"] = {"code": "server_error", "message": str(error)}
        yield self._event("response.failed", response=response)

    def _unfinished(self, status: str) -> dict[str, Any]:
        return {
            **self._base, "status": status, "incomplete_details": None, "output": [], "usage": None,
        }  # fmt: skip

    def _items(self, text: Text) -> list[dict[str, Any]]:
        status = "incomplete" if text.done.reason == "length" else "completed"
        called = [] if text.call is None else [self._function_call(text, status)]
        if text.content or not called:
            return [self._message_item(text, "completed" if called else status), *called]
        return called

    def _message_item(self, text: Text | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [_output_text(text.content)]
        return {
            "id": self._message, "type": "message", "role": "assistant", "status": status,
            "content": content,
        }  # fmt: skip

    def _function_call(self, text: Text, status: str) -> dict[str, Any]:
        return {
            "id": self._call, "type": "function_call", "status": status,
            "call_id": text.call.id, "name": text.call.name, "arguments": text.arguments,
        }  # fmt: skip

    def _opened_message(self) -> Iterator[str]:
        self._opened.append("message")
        item = self._message_item(None, "in_progress")
        yield self._event("response.output_item.added", **self._at(), item=item)
        yield self._event("response.content_part.added", **self._part(), part=_output_text(""))

    def _closed_message(self, status: str) -> Iterator[str]:
        content = self._text.content
        yield self._event("response.output_text.done", **self._part(), text=content, logprobs=[])
        yield self._event("response.content_part.done", **self._part(), part=_output_text(content))
        item = self._message_item(self._text, status)
        yield self._event("response.output_item.done", **self._at(), item=item)

    def _at(self) -> dict[str, int]:
        return {"output_index": len(self._opened) - 1}

    def _part(self) -> dict[str, Any]:
        return {"item_id": self._message, **self._at(), "content_index": 0}

    def _event(self, kind: str, **given: Any) -> str:
        event = {"type": kind, "sequence_number": self._sent, **given}
        self._sent += 1
        return f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _messages(given: Values) -> list[dict[str, Any]]:
    """Convert the instructions and the items of the input to the messages of a chat."""
    instructions, items = given.get("instructions"), given.get("input")
    if not isinstance(instructions, str | None):
        raise wrong("`instructions` must be a text.", "instructions")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise wrong("`input` must be a text, or a list of at least one item.", "input")
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for place, item in enumerate(items):
        kind = item.get("type") or "message" if isinstance(item, dict) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            function = {name: item.get(name) for name in ("name", "arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            result = {"content": item.get("output"), "tool_call_id": item.get("call_id")}
            messages.append({"role": "tool", **result})
        else:
            raise wrong(
                f"`input[{place}]` must be a message, a function_call or a function_call_output.",
                "input",
            )
    return messages


def _tools(tools: Any) -> Any:
    """Convert tools to the format of a chat, which has an object `function` in each tool."""
    if not isinstance(tools, list):
        return tools
    found = []
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            found.append(tool)
            continue
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    return found


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = {"mode": choice.get("mode"), "tools": _tools(choice.get("tools"))}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _text_format(text: Any) -> Any:
    """Convert the format of the text to that of a chat, which has an object `json_schema`."""
    form = text.get("format") if isinstance(text, dict) else text
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": form}
    return form
