"""Serialized Keras objects: read as values, and nothing is made from them by name."""

from typing import Any

from keras_transformer.checkpoints.families.family import Values

# Keras registers a class under the package's name and its own; KerasHub has an older name too.
PACKAGES = ("keras_hub", "keras_nlp")
_FLOATS = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "float64")


def is_preset(values: Values) -> bool:
    """Whether the content of a `config.json` is KerasHub's."""
    return "registered_name" in values and not {"model_type", "format"} & set(values)


def registered_class(values: Values) -> str:
    """The class that a serialized Keras object names, if it is one of KerasHub's own."""
    name, registered = values.get("class_name"), values.get("registered_name")
    module = values.get("module")
    package, _, known_as = registered.partition(">") if isinstance(registered, str) else ("",) * 3
    ours = module is None or (isinstance(module, str) and module.split(".")[0] in PACKAGES)
    if package not in PACKAGES or not known_as or name not in (None, known_as) or not ours:
        raise ValueError(
            "Only objects of KerasHub are read, such as class_name='BertBackbone' with "
            f"registered_name='keras_hub>BertBackbone'. Received: class_name={_short(name)}, "
            f"registered_name={_short(registered)}, module={_short(module)}."
        )
    return known_as


def serialized_arguments(values: Values) -> dict[str, Any]:
    """The arguments of a serialized Keras object."""
    arguments = values.get("config")
    if not isinstance(arguments, dict):
        raise ValueError(
            f"'config' must be an object with arguments. Received: {_short(arguments)}."
        )
    return arguments


def check_dtype(policy: Any) -> None:
    """Refuses weights that are not floating point numbers. Which of those does not matter."""
    value = policy
    if isinstance(policy, dict) and policy.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
        value = policy.get("config")
        value = value.get("name") if isinstance(value, dict) else None
    if value is not None and value not in _FLOATS:
        raise ValueError(
            f"dtype={_short(policy)} is not supported, only {', '.join(map(repr, _FLOATS))}. "
            "Save a model that is not quantized."
        )


def _short(value: Any) -> str:
    """A value for a message."""
    return repr(value)[:200]
