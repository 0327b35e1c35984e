"""Function tools of a chat: how a request names them, and how a model calls one of them.

A chat template that knows tools also says how a call is written: a chat with a call of a known
function is rendered, and the text around the name and the arguments is kept. The name is then
chosen among those of the request, and the arguments are written under the JSON Schema of the
function, so that each call can be carried out.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.checking import load_json
from keras_transformer.serving.openai_errors import ApiError, wrong

_MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# The function, its argument and its value that templates are asked about.
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
    """How the messages of a chat template have a call.

    Fields:
        before: the text before the name of the function.
        between: the text between the name and the arguments.
        as_text: bool, whether the template expects arguments as text, not as an object.
    """

    before: str
    between: str
    as_text: bool = False

    @property
    def marker(self) -> str:
        """The beginning of a call, by which it differs from other text."""
        return self.before.partition("{")[0].strip() or self.before.rstrip()


# For templates that show tools, but no calls, or calls that are not JSON.
_PLAIN_FORM = CallForm('{"name": "', '", "arguments": ')


class Tools(NamedTuple):
    """The functions that an answer may call.

    Fields:
        schemas: constraint of the arguments by the name of the function.
        names: constraint of the name, with the first character behind it.
        form: `CallForm`.
        required: bool, whether one must be called; else the answer may be a text.
        encode: from a text to the ids by which it goes on with a prompt.
        marker: what ends the text before a call: a string, or the id of a special token.
    """

    schemas: dict[str, Any]
    names: Any
    form: CallForm
    required: bool
    encode: Callable[[str], list[int]]
    marker: str | int

    def behind(self, text: str, name: str = "") -> list[int]:
        """The ids that go on with a prompt: a text, the beginning of a call, and its name."""
        return self.encode(text + self.form.before + (name and name + self.form.between))

    def chosen(self, written: str) -> str:
        """The function that a text under the constraint `names` names."""
        return written.removesuffix(self.form.between[:1])


def call_form(tokenizer: Any) -> CallForm | None:
    """The form of calls in the chat template of a tokenizer; None if it does not know tools."""
    try:
        without = tokenizer.render_chat([_ASKING])
        prompt = tokenizer.render_chat([_ASKING], tools=[_TOOL])
    except ValueError:  # a template that refuses the shortest chat there is
        return None
    if prompt == without:
        return None
    for arguments in ({_ARGUMENT: "1"}, json.dumps({_ARGUMENT: "1"})):
        # Nine letters and digits, as some templates demand.
        called = {"name": _FUNCTION, "arguments": arguments}
        call = {"id": "probe0000", "type": "function", "function": called}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            whole = tokenizer.render_chat(
                [_ASKING, answer], tools=[_TOOL], add_generation_prompt=False
            )
        except ValueError:  # it shows tools and refuses calls, or arguments of this kind
            continue
        pairs = enumerate(zip(prompt, whole, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), len(prompt))
        if same < len(prompt):  # the prompt has the beginning of a thought, say
            same = whole.rfind("\n", 0, same) + 1
        before, name, behind = whole[same:].partition(_FUNCTION)
        found = _CALLED.search(behind)
        if name and found:
            return CallForm(before, behind[: found.start()], isinstance(arguments, str))
    return _PLAIN_FORM


def read_tools(
    task: Any, given: dict[str, Any], compiled: Callable[[Any, str], Any]
) -> Tools | None:
    """The tools that an answer may call, None if it cannot call any.

    `compiled` makes a constraint of a JSON Schema and the name of the field that it is from.
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
            "to the model. Describe them in a message, or ask for JSON by `response_format`.",
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
    """The calls of an earlier answer, as chat templates take them."""
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
    """The JSON Schemas of functions by their names."""
    if not isinstance(tools, list) or len(tools) > _MOST_TOOLS:
        raise wrong(f"`tools` must be a list of at most {_MOST_TOOLS} tools.", "tools")
    found: dict[str, Any] = {}
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise wrong(
                f"`tools[{place}]` must be an object with `type`, which is 'function' (no other "
                "tools are supported here), and `function`.", "tools",
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
    """The functions that `tool_choice` allows, and whether one must be called."""
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
    """Encodes texts that go on with others: at the start of a text some tokenizers add a space."""
    anchor = tokenizer.encode("\n", special_tokens=False)

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode("\n" + text, special_tokens=False)
        if anchor and ids[: len(anchor)] == anchor:
            return ids[len(anchor) :]
        return tokenizer.encode(text, special_tokens=False)

    return encode


def _unseen(tokenizer: Any) -> Sequence[int]:
    """The ids of tokens that decoding leaves out of a text."""
    added = tokenizer._backend.get_added_tokens_decoder()
    return [index for index, token in added.items() if token.special]
