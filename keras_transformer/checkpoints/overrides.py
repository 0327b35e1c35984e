"""What a caller may change of a preset whose weights are loaded, and what is a part of them."""

import logging
from collections.abc import Mapping
from typing import Any

from keras_transformer.checking import nearest
from keras_transformer.config import CHANGEABLE, TransformerConfig
from keras_transformer.kerashub_names import OPTIONS, check_options

_ON_PURPOSE = (
    "Leave it out; or give `load_weights=False`, for fresh weights to train; or, to compute "
    "something else with these weights on purpose, make the model of a changed config and load "
    "into it: `checkpoints.load_config`, `config.replace`, `models.build_backbone`, "
    "`checkpoints.load_weights`."
)
_HEAD_ACTIVATION = (
    " `activation` is that of every block. KerasHub's tasks have an argument of this name for the "
    f"head. {OPTIONS['activation'].split(' (')[0]}"
)


def changed_config(
    preset: str,
    config: TransformerConfig,
    values: Mapping[str, Any],
    load_weights: bool,
    task: str | None = None,
) -> TransformerConfig:
    """The config of a preset with the values that the caller gives."""
    fields = TransformerConfig.__dataclass_fields__
    check_options("from_preset", values, fields)
    for name in values.keys() - fields.keys():
        raise ValueError(
            f"`from_preset` has no option {name!r}, and the config no such value."
            f"{nearest(name, fields)}"
        )
    of_the_head = task is not None and "activation" in values
    if not load_weights:
        try:
            return config.replace(**values)
        except ValueError as error:
            hint = _HEAD_ACTIVATION if of_the_head and "`activation`" in str(error) else ""
            raise ValueError(f"{error}{hint}") from error
    wrong = contradictions(config, values)
    if wrong:
        said = ", ".join(
            f"{name}={mine!r}, received {repr(given)[:80]}" for name, (mine, given) in wrong.items()
        )
        of_the_head = of_the_head and "activation" in wrong
        raise ValueError(
            f"The weights of {preset!r} were trained with {said}: they would give other numbers, "
            f"or not fit.{_HEAD_ACTIVATION if of_the_head else ''} With weights these values may "
            f"change: {', '.join(sorted(CHANGEABLE))}. {_ON_PURPOSE}"
        )
    return TransformerConfig.from_dict({**config.to_dict(), **values})


def contradictions(
    config: TransformerConfig, values: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Those of the values that weights do not go with, by name: (what they have, what is given)."""
    fields = TransformerConfig.__dataclass_fields__
    left_out = {n: v for n, v in values.items() if v is None and fields[n].default is None}
    plain = config.replace(**left_out)
    found = {}
    for name, given in values.items():
        mine = getattr(config, name)
        wanted = getattr(plain, name) if name in left_out else given
        if isinstance(wanted, list) and isinstance(mine, tuple):
            wanted = tuple(wanted)
        # By type first: an array has no truth, and True is not one head.
        if name not in CHANGEABLE and not (_kind(wanted) is _kind(mine) and wanted == mine):
            found[name] = (mine, given)
    return found


def warn_of_contradictions(
    preset: str, config: TransformerConfig, model_config: TransformerConfig
) -> None:
    """Logs which values of a model are not those of the weights that it is about to be given."""
    wrong = contradictions(config, model_config.to_dict())
    if wrong:
        logging.getLogger("keras_transformer").warning(
            "The weights of %r were trained with other values than those of the model that they "
            "are loaded into, which gives other numbers: %s.",
            preset,
            ", ".join(f"{n}={mine!r}, here {given!r}" for n, (mine, given) in wrong.items()),
        )


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)
