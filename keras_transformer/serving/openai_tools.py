"""Function tools of a chat: how a request names them, and how a model calls one of them.

A chat template that supports tools also shows how a call is written: a chat with a call of a known
function is rendered, and the text around the name and the arguments is kept. A model that calls a
function then chooses among the names in the request, and its arguments are constrained by the
function's JSON Schema, so that every call is valid.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.serving.openai_errors import ApiError, wrong
from keras_transformer.support.checking import load_json

_MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Names of the function and the argument with which templates are probed.
_FUNCTION, _ARGUMENT = "probe_function", "probe_argument"
_CALLED = re.compile(rf'\{{\s*"{_ARGUMENT}"\s*:\s*"1"\s*\}}')
_PARAMETERS = {
    "type": "object",
    "properties": {_ARGUMENT: {"type": "string", "description": ""}},
    "required": [_ARGUMENT],
}
_TOOL = {
    "type": "function",
    "function": {"name": _FUNCTION, "description": "", "parameters": _PARAMETERS},
}
_ASKING = {"role": "user", "content": "a"}


class CallForm(NamedTuple):
    """Notation of a function call in a chat template.

    Fields:
        before: str, the text before the name of the function.
        between: str, the text between the name and the arguments.
        as_text: bool, whether the template expects arguments as text, not as an object.
    """

    before: str
    between: str
    as_text: bool = False

    @property
    def marker(self) -> str:
        """The beginning of a call, which distinguishes it from other text."""
        return self.before.partition("{")[0].strip() or self.before.rstrip()


# For templates that show tools but no calls, or calls whose arguments are not JSON.
_PLAIN_FORM = CallForm('{"name": "', '", "arguments": ')


class Tools(NamedTuple):
    """The functions that an answer may call.

    Fields:
        schemas: dict from function names to constraints of their arguments.
        names: constraint of the name and the first character of `form.between` behind it.
        form: `CallForm` of the chat template.
        required: bool, whether a function must be called; else the answer may be a text.
        encode: function from a text to its ids as the continuation of a prompt.
        marker: str, or the id of a special token, at which the text before a call ends.
    """

    schemas: dict[str, Any]
    names: Any
    form: CallForm
    required: bool
    encode: Callable[[str], list[int]]
    marker: str | int

    def behind(self, text: str, name: str = "") -> list[int]:
        """Return the ids of a text and the beginning of a call, up to the arguments of `name`."""
        return self.encode(text + self.form.before + (name and name + self.form.between))

    def chosen(self, written: str) -> str:
        """Return the name of the function in a text generated under the constraint `names`."""
        return written.removesuffix(self.form.between[:1])


def call_form(tokenizer: Any) -> CallForm | None:
    """Return the notation of calls in a tokenizer's chat template; None if it ignores tools."""
    try:
        without = tokenizer.render_chat([_ASKING])
        prompt = tokenizer.render_chat([_ASKING], tools=[_TOOL])
    except ValueError:  # the template refuses even the shortest chat
        return None
    if prompt == without:
        return None
    for arguments in ({_ARGUMENT: "1"}, json.dumps({_ARGUMENT: "1"})):
        # The id has nine letters and digits, as some templates demand.
        called = {"name": _FUNCTION, "arguments": arguments}
        call = {"id": "probe0000", "type": "function", "function": called}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            whole = tokenizer.render_chat(
                [_ASKING, answer], tools=[_TOOL], add_generation_prompt=False
            )
        except ValueError:  # the template refuses calls, or arguments of this kind
            continue
        pairs = enumerate(zip(prompt, whole, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), len(prompt))
        if same < len(prompt):  # for example, the prompt contains the beginning of a thought
            same = whole.rfind("\n", 0, same) + 1
        before, name, behind = whole[same:].partition(_FUNCTION)
        found = _CALLED.search(behind)
        if name and found:
            return CallForm(before, behind[: found.start()], isinstance(arguments, str))
    return _PLAIN_FORM


def read_tools(
    task: Any, given: dict[str, Any], compiled: Callable[[Any, str], Any]
) -> Tools | None:
    """Read the tools that an answer may call; None if it cannot call any.

    `compiled` makes a constraint from a JSON Schema and the name of the request's field for errors.
    """
    tools = given.get("tools") or []
    choice = given.get("tool_choice") or ("auto" if tools else "none")
    if not tools:
        if choice not in ("none", "auto"):
            raise wrong("`tool_choice` needs `tools`.", "tool_choice")
        return None
    form = call_form(task.tokenizer)
    if form is None:
        raise ApiError(
            400,
            "`tools` is not supported by the chat template of this model: it does not show tools "
            "to the model. Describe them in a message, or ask for JSON with `response_format`.",
            "unsupported_parameter",
            "tools",
        )
    functions = _functions(tools)
    names, required = _allowed(choice, list(functions))
    if not names:
        return None
    encode = _encoder(task.tokenizer)
    marker: str | int = form.marker
    first = encode(marker)[:1]
    if first and first[0] in _unseen(task.tokenizer):
        marker = first[0]
    schemas = {name: compiled(functions[name], "tools") for name in names}
    ended = [name + form.between[:1] for name in names]
    return Tools(schemas, task.constraint(choices=ended), form, required, encode, marker)


def read_calls(message: dict[str, Any], place: int, form: CallForm | None) -> list[dict] | None:
    """Read the calls of an earlier answer, in the format of chat templates."""
    calls = message.get("tool_calls")
    if not calls:
        return None
    where = f"`messages[{place}].tool_calls`"
    if form is None:
        raise wrong(f"{where} is not supported by the chat template of this model.", "messages")
    found = []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        texts = isinstance(function, dict) and (function.get("name"), function.get("arguments"))
        if not texts or not all(isinstance(text, str) for text in texts):
            raise wrong(
                f"{where} must be a list of objects with `id`, `type` and `function`, which has "
                "the texts `name` and `arguments`.", "messages",
            )  # fmt: skip
        name, arguments = texts
        try:
            parsed = load_json(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise wrong(f"{where} has arguments that are not JSON: {error}", "messages") from None
        given = {"name": name, "arguments": arguments if form.as_text else parsed}
        found.append({"id": str(call.get("id") or ""), "type": "function", "function": given})
    return found


def _functions(tools: Any) -> dict[str, Any]:
    """Return the JSON Schemas of functions by their names."""
    if not isinstance(tools, list) or len(tools) > _MOST_TOOLS:
        raise wrong(f"`tools` must be a list of at most {_MOST_TOOLS} tools.", "tools")
    found: dict[str, Any] = {}
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise wrong(
                f"`tools[{place}]` must be an object with the `type` 'function' (other types "
                "are not supported here) and with `function`.", "tools",
            )  # fmt: skip
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in found:
            raise wrong(
                f"`tools[{place}].function.name` must be 1 to 64 letters, digits, underscores and "
                "dashes, and no name may come twice.", "tools",
            )  # fmt: skip
        if not isinstance(function.get("description") or "", str):
            raise wrong(f"`tools[{place}].function.description` must be a text.", "tools")
        schema = function.get("parameters")
        if schema is None:
            schema = {"properties": {}, "additionalProperties": False}
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise wrong(
                f"`tools[{place}].function.parameters` must be the JSON Schema of an object.",
                "tools",
            )
        found[name] = {"type": "object", **schema}
    return found


def _allowed(choice: Any, names: list[str]) -> tuple[list[str], bool]:
    """Return the functions that `tool_choice` allows, and whether one must be called."""
    if choice in ("none", "auto", "required"):
        return [] if choice == "none" else names, choice == "required"
    wanted, required = [], True
    if isinstance(choice, dict) and choice.get("type") == "function":
        wanted = [choice]
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        allowed = allowed if isinstance(allowed, dict) else {}
        wanted, required = allowed.get("tools"), allowed.get("mode") == "required"
        if allowed.get("mode") not in ("auto", "required"):
            wanted = None
    functions = [
        tool.get("function") if isinstance(tool, dict) else None
        for tool in (wanted if isinstance(wanted, list) else [])
    ]
    chosen = [
        function.get("name") if isinstance(function, dict) else None for function in functions
    ]
    if not chosen:
        raise wrong(
            "`tool_choice` must be 'none', 'auto', 'required', or an object that names functions: "
            '{"type": "function", "function": {"name": ...}}, or of the type "allowed_tools".',
            "tool_choice",
        )
    for name in chosen:
        if name not in names:
            raise wrong(
                f"`tool_choice` names {str(name)[:64]!r}. `tools` has: {', '.join(names)}.",
                "tool_choice",
            )
    return list(dict.fromkeys(chosen)), required


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return an encoder for continuations, without the space that some tokenizers put first."""
    anchor = tokenizer.encode("\n", special_tokens=False)

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode("\n" + text, special_tokens=False)
        if anchor and ids[: len(anchor)] == anchor:
            return ids[len(anchor) :]
        return tokenizer.encode(text, special_tokens=False)

    return encode


def _unseen(tokenizer: Any) -> Sequence[int]:
    """Return the ids of tokens that decoding omits from a text."""
    added = tokenizer._backend.get_added_tokens_decoder()
    return [index for index, token in added.items() if token.special]
