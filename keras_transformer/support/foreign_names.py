"""Error messages that translate names of KerasHub, Transformers and vLLM to ours."""

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer.support.checking import nearest

_Method = TypeVar("_Method", bound=Callable)
# Where users look for a class that KerasHub has for each architecture.
_WITH_CLASSES = ("keras_transformer", "keras_transformer.models", "keras_transformer.layers")


@functools.cache
def tables() -> dict[str, Any]:
    """Return the tables of foreign names, each of which gives our equivalents.

    They are:

    - `options`: by library, sentences about its options that are named differently or do not exist.
    - `arguments`: call arguments of attention layers and blocks; of our arguments for one name, the
      first that the called layer has is suggested.
    - `modules`: names of KerasHub, by the module of ours in which users look for them.
    - `classes`: names of Transformers that users look for in `kt`.
    - `class_endings`: by library, endings of its class names: it has a class for each architecture.
    - `generation`: names for text generation that users look for in `kt` and `kt.generation`.
    - `samplers`: strings that other libraries accept as a sampler.
    - `sampler_attributes`: attributes of KerasHub's samplers.
    - `attributes`: attributes and methods of tokenizers, of models, and of both (`all`).
    - `presets`: KerasHub's presets that have another name here, with the same weights.
    """
    return json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


class Elsewhere:
    """Descriptor for another library's attribute, which raises an AttributeError with our name."""

    def __init__(self, ours: str):
        self.ours = ours

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        ours = self.ours.format(owner=owner.__name__)
        raise AttributeError(f"{owner.__name__} has no `{self.name}`. It is {ours} here.")


class ForeignNames:
    """Mixin that raises errors with our names for attributes that only other libraries have."""

    if not TYPE_CHECKING:
        from_pretrained = Elsewhere("`{owner}.from_preset(...)`, with a name or a folder,")
        presets = Elsewhere("`kt.list_presets(task=...)`")

        def __getattr__(self, name: str):
            try:
                return super().__getattr__(name)  # PyTorch modules define one
            except AttributeError:
                error = no_attribute(self, name)
            raise error


def no_attribute(owner: Any, name: str) -> AttributeError:
    """Return the error for a missing attribute of a model or tokenizer, with our name for it."""
    attributes = tables()["attributes"]
    own = attributes["tokenizers" if hasattr(type(owner), "encode_batch") else "models"]
    ours = {**attributes["all"], **own}.get(name)
    hint = "" if ours is None else f". Its equivalent here is {ours}"
    message = f"{type(owner).__name__!r} object has no attribute {name!r}{hint}"
    return AttributeError(message, name=name, obj=owner)


def check_options(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError, with our name, if an option exists only in another library.

    Args:
        owner: name of the class or function that the options are given to, for the message.
        given: names of the given options.
        known: names of the options that `owner` accepts.
    """
    for name in given:
        for library, options in tables()["options"].items():
            if name in options and name not in known:
                raise ValueError(f"{owner} has no `{name}`, unlike {library}. {options[name]}")


def refuse_argument(owner: str, name: str, known: Sequence[str]) -> None:
    """Raise TypeError, as Python does, for a call argument that is not in `known`."""
    ours = next((ours for ours in tables()["arguments"].get(name, ()) if ours in known), None)
    hint = "" if ours is None else f" It is `{ours}` here."
    raise TypeError(
        f"{owner} got an unexpected keyword argument {name!r}.{hint} It takes {', '.join(known)}."
    )


def refuse(owner: str, given: Iterable[str]) -> None:
    """Raise the ValueError of `check_options`, or Python's TypeError if an option is unknown."""
    check_options(owner, given, ())
    for name in given:
        raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")


def hint_on_foreign_arguments(method: _Method) -> _Method:
    """Decorate a method so that unknown arguments raise the errors of `refuse`."""
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def answering(self, *args, **kwargs):
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            refuse(f"{type(self).__name__}.{method.__name__}", unknown)
        return method(self, *args, **kwargs)

    return answering


def offer(module: str, names: Sequence[str], later: Mapping[str, str] | None = None) -> None:
    """Limit the names that completion offers for a package, and improve its AttributeErrors.

    Errors about a missing name suggest our equivalent of another library's name, or a similar name.

    Args:
        module: name of the package.
        names: names that it exports.
        later: names that are imported on first use, mapped to their modules.
    """

    def lack(name: str):
        if name not in (later or ()):
            raise missing(module, name, names)
        value = getattr(importlib.import_module(later[name]), name)
        vars(sys.modules[module])[name] = value
        return value

    # Not defined in the package, since a type checker would then accept any name.
    vars(sys.modules[module]).update(__getattr__=lack, __dir__=lambda: list(names))


def missing(module: str, name: str, names: Sequence[str] = ()) -> AttributeError:
    """Return the AttributeError of a missing name, with our equivalent or a similar name.

    `names` are the names that the module has.
    """
    known = tables()

    def of_ending(library: str) -> str | None:
        endings = known["class_endings"][library]
        return next((ours for end, ours in endings.items() if name.endswith(end)), None)

    ours = known["modules"].get(module, {}).get(name)
    library = "KerasHub"
    if ours is None and module == "keras_transformer" and name in known["classes"]:
        library, ours = "Transformers", known["classes"][name]
    if ours is None and module in _WITH_CLASSES:
        ours = of_ending("KerasHub")
    if ours is None and module == "keras_transformer":
        library = "Transformers"
        ours = of_ending(library)
    generating = ("keras_transformer", "keras_transformer.generation")
    if ours is None and module in generating and name in known["generation"]:
        library, ours = "another library", known["generation"][name]
    hint = "" if ours is None else f". The equivalent of {library}'s {name} is {ours}"
    if not hint and not name.startswith("_") and (near := nearest(name, names)):
        hint = f".{near}"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def sampler_here(sampler: Any) -> str:
    """Return a sentence that names our equivalent of another library's sampler, or ""."""
    known = tables()
    if isinstance(sampler, str) and sampler in known["samplers"]:
        return f" It is {known['samplers'][sampler]!r} here."
    ours = known["modules"]["keras_transformer.generation"].get(type(sampler).__name__)
    if ours is None:
        return ""
    name = ours.strip("`").partition("(")[0]
    attributes = known["sampler_attributes"]
    values = {own: getattr(sampler, theirs, None) for theirs, own in attributes.items()}
    if name != "Random" or values["temperature"] == 1:
        del values["temperature"]
    given = ", ".join(f"{n}={value!r}" for n, value in values.items() if value is not None)
    return f" It is `kt.generation.{name}({given})` here, and a seed is an argument of `generate`."
