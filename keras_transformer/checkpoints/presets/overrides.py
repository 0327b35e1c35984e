"""Config values that a caller may change for a preset with loaded weights."""

import logging
from collections.abc import Mapping
from typing import Any

from keras_transformer.config import CHANGEABLE, TransformerConfig
from keras_transformer.config.flat import FIELDS
from keras_transformer.config.options import Part
from keras_transformer.support.checking import nearest
from keras_transformer.support.foreign_names import check_options, tables

_ON_PURPOSE = (
    "Leave it out; or give `load_weights=False`, to train from initial weights; or, to override "
    "it on purpose, build the model from a changed config and load the weights into it: "
    "`checkpoints.load_config`, `config.replace`, `models.build_backbone`, "
    "`checkpoints.load_weights`."
)


def changed_config(
    preset: str,
    config: TransformerConfig,
    values: Mapping[str, Any],
    load_weights: bool,
    task: str | None = None,
) -> TransformerConfig:
    """Return a preset's config with the caller's values. Raises ValueError if weights forbid it."""
    check_options("from_preset", values, FIELDS)
    for name in values.keys() - FIELDS.keys():
        raise ValueError(
            f"Neither `from_preset` nor the config has an option {name!r}.{nearest(name, FIELDS)}"
        )
    of_the_head = task is not None and "activation" in values
    if not load_weights:
        try:
            return config.replace(**values)
        except ValueError as error:
            hint = _hint_on_activation() if of_the_head and "`activation`" in str(error) else ""
            raise ValueError(f"{error}{hint}") from error
    wrong = contradictions(config, values)
    if wrong:
        said = ", ".join(
            f"{name}={mine!r}, received {repr(given)[:80]}" for name, (mine, given) in wrong.items()
        )
        of_the_head = of_the_head and "activation" in wrong
        raise ValueError(
            f"The weights of {preset!r} were trained with {said}: they would give other outputs, "
            f"or not fit.{_hint_on_activation() if of_the_head else ''} With weights these values "
            f"may be changed: {', '.join(sorted(CHANGEABLE))}. {_ON_PURPOSE}"
        )
    return config.changed(**{n: value for n, value in values.items() if n in CHANGEABLE})


def _hint_on_activation() -> str:
    """Return a sentence for those who mean the activation of KerasHub's heads."""
    here = tables()["options"]["KerasHub"]["activation"].split(" (")[0]
    return (
        " `activation` applies to every block. KerasHub's tasks have an argument of this name for "
        f"the head. {here}"
    )


def contradictions(
    config: TransformerConfig, values: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the values that contradict the weights: {name: (the weights' value, value given)}."""
    left_out = {n: v for n, v in values.items() if v is None and FIELDS[n].default is None}
    plain = config.replace(**left_out)
    found = {}
    for name, given in values.items():
        mine = config.flat.get(name)  # a model without attention has no values of one
        wanted = plain.flat.get(name) if name in left_out else given
        if isinstance(wanted, Part):
            wanted = wanted.to_dict()
        if isinstance(wanted, list) and isinstance(mine, tuple):
            wanted = tuple(wanted)
        # Compare types first: `==` of an array has no truth value, and True == 1.
        if name not in CHANGEABLE and not (_kind(wanted) is _kind(mine) and wanted == mine):
            found[name] = (mine, given)
    return found


def warn_of_contradictions(
    preset: str, config: TransformerConfig, model_config: TransformerConfig
) -> None:
    """Log a warning with the config values that contradict the weights about to be loaded."""
    wrong = contradictions(config, model_config.flat)
    if wrong:
        logging.getLogger("keras_transformer").warning(
            "The weights of %r were trained with other values than the model that they "
            "are loaded into, which changes the outputs: %s.",
            preset,
            ", ".join(f"{n}={mine!r}, here {given!r}" for n, (mine, given) in wrong.items()),
        )


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)
