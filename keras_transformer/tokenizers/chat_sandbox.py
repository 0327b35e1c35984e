"""Where the template of a chat is rendered: it sees its variables, and its work is bounded.

Jinja's sandbox keeps a template from Python's internals. It does not keep it from filling the
memory, or from running for days, with a few characters. So here the steps are counted, and the
sizes of what is made: what goes in is measured before anything can be made of it.
"""

import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What one rendering may do: iterations and calls, and characters that are made on the way.
_MAX_STEPS = 200_000
_MAX_CHARACTERS = 50_000_000
_MAX_NUMBER_BITS = 128
_MAX_INDENT = 16
# What an entry of a list or a dict counts as, in characters.
_ENTRY = 8
# Filters and methods that make much out of a number, and some that no chat needs.
_NO_FILTERS = {
    *("batch", "center", "filesizeformat", "format", "indent", "pprint", "random", "round"),
    *("slice", "sum", "urlize", "wordcount", "wordwrap", "xmlattr"),
}
_NO_METHODS = {"center", "encode", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill"}
# Filters that make text of all that they are given. The others pass on what they are given.
_TEXT_FILTERS = {"string", "tojson", "urlencode"}


class TooMuch(Exception):
    """A template asks for more than it may."""


class Budget:
    """What is left of the steps and characters of one rendering."""

    def __init__(self):
        self.steps, self.characters = _MAX_STEPS, _MAX_CHARACTERS

    def step(self, count: int = 1) -> None:
        """Spends steps."""
        self.steps -= count
        if self.steps < 0:
            raise TooMuch(f"it takes more than {_MAX_STEPS:,} steps")

    def make(self, count: int) -> None:
        """Spends characters."""
        self.characters -= count
        if self.characters < 0:
            raise TooMuch(f"it makes more than {_MAX_CHARACTERS:,} characters")

    def measured(self, value: Any) -> Any:
        """A value, after the characters of its text are spent, of all that it holds."""
        waiting = [value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str):
                self.make(len(part))
            elif isinstance(part, dict):
                self.make(_ENTRY * (1 + len(part)))
                waiting += part
                waiting += part.values()
            elif isinstance(part, (list, tuple)):
                self.make(_ENTRY * (1 + len(part)))
                waiting += part
            elif isinstance(part, jinja2.utils.Namespace):
                raise TooMuch("it uses a namespace as a value")
        return value

    def counted(self, values, cost: int):
        """Iterates, a step for each value, and `cost` characters that its turn writes."""
        for value in values:
            self.step()
            self.make(cost)
            yield value


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote. It is rendered like all else."""

    tags = frozenset({"generation"})

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment that Transformers renders chats in, with bounds.

    Args:
        budget: what the rendering may spend.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
            finalize=budget.measured,
            cache_size=0,
            # Folding constants would compute while the template is read.
            optimized=False,
        )
        self.budget = budget
        kept = {name: f for name, f in self.filters.items() if name not in _NO_FILTERS}
        kept["tojson"] = _to_json
        kept["replace"] = self._replace
        kept["join"] = self._join
        self.filters = {name: self._guarded(name, function) for name, function in kept.items()}
        self.filters |= {"_measured": budget.measured, "_counted": budget.counted}
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "joiner")
        }
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}

    def _parse(self, source, name, filename):
        return _bounded(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj, attr, value):
        if isinstance(obj, (str, int)) and attr in _NO_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value):
        if super().wrap_str_format(value) is not None:
            raise jinja2.exceptions.SecurityError("`format` is not allowed")

    def call(self, context, function, *args, **kwargs):
        self.budget.step()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            self.budget.measured([owner, args, kwargs])
            if function.__name__ == "replace":
                return self._replace(owner, *args, **kwargs)
            if function.__name__ == "join":
                return self._join(*args, owner)
        elif function is dict:
            self.budget.measured([args, kwargs])
        result = super().call(context, function, *args, **kwargs)
        return self.budget.measured(result) if isinstance(result, str) else result

    def call_binop(self, context, operator, left, right):
        self.budget.step()
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "+" and not whole:
            self.budget.make(_size(left) + _size(right))
        elif operator == "%" and not whole:
            if isinstance(left, str):
                raise jinja2.exceptions.SecurityError("formatting by % is not allowed")
        elif operator == "*" and not whole:
            for text, count in ((left, right), (right, left)):
                if isinstance(count, int):
                    self.budget.make(_size(text) * max(count, 0))
        elif operator in ("*", "**") and whole:
            bits = (left.bit_length(), right.bit_length())
            size = sum(bits) if operator == "*" else bits[0] * max(right, 1)
            if size > _MAX_NUMBER_BITS:
                raise TooMuch("it makes too large a number")
        return super().call_binop(context, operator, left, right)

    def _replace(self, text, old, new, count=-1):
        """As `str.replace`, measured before it is done."""
        text, old, new = str(text), str(old), str(new)
        found = text.count(old)
        count = found if count is None or count < 0 else min(found, count)
        self.budget.make(len(text) + count * len(new))
        return text.replace(old, new, count)

    def _join(self, values, d="", attribute=None):
        """As Jinja's filter, measured before it is done."""
        if attribute is not None:
            values = map(jinja2.filters.make_attrgetter(self, attribute), values)
        parts = []
        for value in values:
            self.budget.make(len(d))
            parts.append(str(self.budget.measured(value)))
        return str(d).join(parts)

    def _guarded(self, name, function):
        """A filter whose arguments are measured, and the text that it gives."""

        def guarded(*args, **kwargs):
            self.budget.step()
            for value in args:
                if isinstance(value, str) or name in _TEXT_FILTERS:
                    self.budget.measured(value)
                else:
                    self.budget.make(_size(value))
            result = function(*args, **kwargs)
            return self.budget.measured(result) if isinstance(result, str) else result

        # Marks such as "is given the environment first".
        guarded.__dict__.update(getattr(function, "__dict__", {}))
        return guarded


def _size(value: Any) -> int:
    """What a text or a list takes, without what its entries take, which are shared."""
    if isinstance(value, str):
        return len(value)
    return _ENTRY * len(value) if isinstance(value, (list, tuple, dict, range)) else 0


def _bounded(template: nodes.Template) -> nodes.Template:
    """Has loops counted, and measures what is put together without a call."""
    for loop in list(template.find_all(nodes.For)):
        written = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
        loop.iter = _filtered(loop.iter, "_counted", nodes.Const(written))
    measured = (nodes.Concat, nodes.List, nodes.Tuple, nodes.Dict)
    _replace_children(template, measured)
    return template


def _replace_children(node: nodes.Node, kinds: tuple[type, ...]) -> None:
    for name, value in node.iter_fields():
        values = value if isinstance(value, list) else [value]
        for place, child in enumerate(values):
            if not isinstance(child, nodes.Node):
                continue
            _replace_children(child, kinds)
            # A tuple may also be what is assigned to.
            if isinstance(child, kinds) and getattr(child, "ctx", "load") == "load":
                child = _filtered(child, "_measured")
                if isinstance(value, list):
                    value[place] = child
                else:
                    setattr(node, name, child)


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    made = nodes.Filter(node, name, list(args), [], None, None)
    return made.set_lineno(node.lineno).set_environment(node.environment)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """As Transformers has it: nothing is escaped for HTML."""
    if (isinstance(indent, int) and indent > _MAX_INDENT) or (
        isinstance(indent, str) and len(indent) > _MAX_INDENT
    ):
        raise TooMuch(f"it indents by more than {_MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message):
    raise jinja2.exceptions.TemplateError(message)


def _now(form: str) -> str:
    if not isinstance(form, str) or len(form) > 100:
        raise TooMuch("it asks for the time in too long a form")
    return datetime.datetime.now().strftime(form)
