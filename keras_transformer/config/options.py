"""Options of a config part: their definition, their checks, and parts as JSON."""

import dataclasses
import functools
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from keras_transformer.support.checking import describe, is_int, is_number, nearest, shorten


def option(
    doc: str,
    default: Any = dataclasses.MISSING,
    *,
    of: str = "layer",
    least: int | None = None,
    most: int = 2**31 - 1,
    positive: bool = False,
    rate: bool = False,
    choices: tuple | None = None,
    changeable: bool = False,
    function: bool = False,
) -> Any:
    """Define one option of a part, with everything that is known about it.

    Args:
        doc: description, for the docstring.
        default: default value. Without it the option is required.
        of: `"model"`, `"side"` or `"layer"`: the smallest part of a model that may have a value of
            its own.
        least: the smallest integer allowed.
        most: the largest integer allowed.
        positive: whether the value must be a number above 0.
        rate: whether the value must be a number in [0, 1).
        choices: the values allowed.
        changeable: whether the option may be changed for a model with loaded weights, because it
            affects no output, except through dropout in training. Every other option belongs to the
            weights, even if it changes no shape. (The rows of learned positions do change it: a
            wrong `max_sequence_length` does not fit them.)
        function: whether a layer also takes a function or a layer; a `TransformerConfig`, which is
            written as JSON, does not.
    """
    known = {key: value for key, value in locals().items() if key != "default"}
    return dataclasses.field(default=default, metadata=known)


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def part(cls: type) -> type:
    """Make a class a frozen dataclass of options, which are given by name."""
    return dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)


class Part:
    """Base class of the parts of a config: frozen dataclasses that check themselves.

    Parts that can take the same place in a model, such as the positions, have one base class, and
    each is a subclass with a `kind`, which names it in JSON: `class Rotary(Position,
    kind="rotary")`. A part may define `check`, and the `weights` of its layer.

    Attributes:
        kind: name of the part among the subclasses of its base class; empty if there is only one.
        kinds: the parts of a base class by their kind.
        layer: path of its layer, `"module:Class"`, if the layer is chosen by the type of the part.
    """

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type["Part"]]] = {}
    layer: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str | None = None, **kwargs):
        super().__init_subclass__(**kwargs)
        if Part in cls.__bases__:
            cls.kinds = {}
        if kind is not None:
            cls.kind = kind
            cls.kinds[kind] = cls

    def __post_init__(self):
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Raise ValueError if values of the part contradict each other."""

    def replace(self, **values: Any) -> Self:
        """Return a copy with some values changed."""
        return dataclasses.replace(self, **values)

    def values(self) -> dict[str, Any]:
        """Return all values by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, and the kind, ready for JSON."""
        values: dict[str, Any] = {"kind": self.kind} if self.kind else {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                values[field.name] = _plain(value)
        return values

    def difference(self, other: "Part") -> dict[str, Any]:
        """Return the values that differ from another part of this type, ready for JSON."""
        found = {}
        for field in dataclasses.fields(self):
            value, base = getattr(self, field.name), getattr(other, field.name)
            if value != base:
                alike = isinstance(value, Part) and type(value) is type(base)
                found[field.name] = value.difference(base) if alike else _plain(value)
        return found

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the part that a dict made by `to_dict` describes.

        Raises:
            ValueError: if a name or the kind is unknown, a required value is missing, or a value is
                invalid.
        """
        if not isinstance(values, Mapping):
            raise ValueError(
                f"A part of a config must be a dictionary, received {describe(values)}."
            )
        given, found = dict(values), cls
        if cls.kinds and not cls.kind:
            kind = given.pop("kind", None)
            if not isinstance(kind, str) or kind not in cls.kinds:
                raise ValueError(
                    f"{cls.__name__} must have a 'kind', one of "
                    f"{', '.join(map(repr, cls.kinds))}, received {shorten(kind)}. Import the "
                    "module of a part of your own before it is read."
                )
            found = cls.kinds[kind]
        elif cls.kinds and given.pop("kind", cls.kind) != cls.kind:
            raise ValueError(
                f"{cls.__name__} has the kind {cls.kind!r}, received {values['kind']!r}."
            )
        fields = {field.name: field for field in dataclasses.fields(found)}
        refuse_unknown(found.__name__, given, fields)
        missing = [
            n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in given
        ]
        if missing:
            raise ValueError(f"{found.__name__} lacks the values: {', '.join(missing)}.")
        return found(**given)

    def __repr__(self) -> str:
        fields = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        shown = [f"{f.name}={value!r}" for f, value in fields if value != f.default]
        return f"{type(self).__name__}({', '.join(shown)})"


def merged(base: Any, own: Any) -> Any:
    """Merge the dict of a part with values that differ from it; nested parts key by key."""
    if not isinstance(base, Mapping) or not isinstance(own, Mapping):
        return own
    if "kind" in own and own["kind"] != base.get("kind"):
        return own  # a part of another kind
    return {**base, **{name: merged(base.get(name), value) for name, value in own.items()}}


def refuse_unknown(name: str, given: Iterable, known: Iterable[str]) -> None:
    """Raise ValueError if a value is given that a part does not have."""
    known = list(known)
    unknown = [each for each in given if each not in known]
    if unknown:
        raise ValueError(
            f"{name} has no value {shorten(unknown[0])}, only: {', '.join(known)}."
            f"{nearest(unknown[0], known)}"
        )


def check_values(name: str, given: Any, cls: type) -> Mapping[str, Any]:
    """Return a mapping with values of a dataclass, an empty one for None.

    Raises ValueError if `given` is something else, or has a value that the dataclass has not.
    """
    known = [field.name for field in dataclasses.fields(cls)]
    if given is not None and (not isinstance(given, Mapping) or set(given) - set(known)):
        raise ValueError(
            f"{name} must be a dict with keys among {', '.join(map(repr, known))}, received "
            f"{shorten(given)}."
        )
    return given or {}


def _plain(value: Any) -> Any:
    """Return a value of a part, ready for JSON."""
    if isinstance(value, Part):
        return value.to_dict()
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def documented(options: Mapping[str, Any]) -> str:
    """Return the `Args:` section that describes these options."""
    lines = [f"{name}: {known['doc']}" for name, known in options.items()]
    wrapped = (
        textwrap.wrap(
            line, 92, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
        )
        for line in lines
    )
    return "\n".join(["Args:", *(line for option in wrapped for line in option)])


def check_fields(config: Any) -> None:
    """Raise ValueError if a value does not fit its `option`. Dicts become parts.

    Most values are the defaults, which fit.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is field.default:
            continue
        checked = check_option(field.name, value, field)
        if checked is not value:
            object.__setattr__(config, field.name, checked)


def check_option(name: str, value: Any, field: Any, any_choice: bool = False) -> Any:
    """Check a value and return it as a config stores it, with Python numbers and tuples.

    Args:
        name: name of the value in messages.
        value: the value.
        field: the dataclass field of the option, with its type and `metadata`.
        any_choice: bool, leave the check of the option's choices to the caller.

    Raises:
        ValueError: if the value has another type or is out of range.
    """
    if is_number(value) and type(value) not in (int, float):  # a NumPy number
        value = value.item()
    made = _part_type(field.type)
    if made is not None:
        return _of_part(name, value, *made)
    if field.type in (dict | None, tuple | list, tuple | list | None):
        value = _with_tuples(value)
    if callable(value) and field.metadata.get("function"):
        return value
    _check_type(name, value, field.type)
    known = {**field.metadata, "choices": None} if any_choice else field.metadata
    _check_range(name, value, known)
    return value


@functools.cache
def _part_type(known: Any) -> tuple[tuple[type[Part], ...], bool] | None:
    """Return the parts that a field may hold, and whether it holds a tuple of them; or None."""
    several = typing.get_origin(known) is tuple
    found = typing.get_args(known) if several or isinstance(known, types.UnionType) else (known,)
    parts = tuple(each for each in found if isinstance(each, type) and issubclass(each, Part))
    return (parts, several) if parts else None


def _of_part(name: str, value: Any, parts: tuple[type[Part], ...], several: bool) -> Any:
    """Return a part, or a tuple of parts; dicts become parts."""
    if several:
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"`{name}` must be a list of parts, received {describe(value)}.")
        return tuple(_of_part(f"{name}[{i}]", each, parts, False) for i, each in enumerate(value))
    if isinstance(value, parts):
        return value
    if isinstance(value, Mapping):
        kind = value.get("kind")
        fitting = [each for each in parts if kind in (each.kind or None, *each.kinds)]
        return (fitting or parts)[0].from_dict(value)
    names = " or ".join(each.__name__ for each in parts)
    raise ValueError(f"`{name}` must be of type {names}, received {describe(value)}.")


def _with_tuples(value: Any) -> Any:
    """Convert the lists of a JSON value to tuples."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, (list, tuple)) else value


def _check_type(name: str, value: Any, known: Any) -> None:
    kinds = (int, float, bool, str, dict, tuple | list)
    if known == float | str:  # a number, or the name of one
        known = str if isinstance(value, str) else float
    kind = next((k for k in kinds if known in (k, k | None)), None)
    if kind is None:  # an object of a class that checked itself
        return
    wrong = not isinstance(value, (int, float) if kind is float else kind)
    if wrong or (isinstance(value, bool) and kind is not bool):
        hint = " Functions are for the layers, see `models.DecoderBase`." if callable(value) else ""
        kind_name = getattr(kind, "__name__", kind)
        raise ValueError(f"`{name}` must be of type {kind_name}, received {describe(value)}.{hint}")


def _ours(value: Any) -> str:
    """Return the sentence that translates another name of an activation, or an empty string."""
    names = {
        "swish": "'silu'",
        "swiglu": "'silu' with `gated=True`",
        "geglu": "'gelu' with `gated=True`",
        "reglu": "'relu' with `gated=True`",
    }
    ours = names.get(value.lower()) if isinstance(value, str) else None
    return f" It is {ours} here." if ours else ""


def _check_range(name: str, value: Any, known: Any) -> None:
    if known["choices"] and value in known["choices"]:
        return
    if is_int(value) and abs(value) > known["most"]:
        raise ValueError(f"`{name}` must be at most {known['most']:,}, received {shorten(value)}.")
    if known["least"] is not None and value < known["least"]:
        raise ValueError(f"`{name}` must be at least {known['least']}, received {value}.")
    if known["rate"] and not 0 <= value < 1:
        raise ValueError(f"`{name}` is a rate and must be in [0, 1), received {value}.")
    if known["positive"] and not (is_number(value) and 1e-30 <= value <= 1e30):  # float32's range
        raise ValueError(
            f"`{name}` must be a positive number, received {value}. It may be from 1e-30 to 1e30."
        )
    if known["choices"] and not known["positive"]:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, known['choices']))}, received "
            f"{shorten(value)}.{_ours(value)}"
        )
