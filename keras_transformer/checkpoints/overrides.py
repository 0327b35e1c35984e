"""What a caller may change of a preset whose weights are loaded, and what is a part of them."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.config import CHANGEABLE, TransformerConfig
from keras_transformer.kerashub_names import OPTIONS

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
    """The config of a preset with the values that the caller gives.

    Args:
        preset: The preset's name, for the message.
        config: The config that lies with the weights.
        values: What is given, by the names of the config. None is the value that follows from
            others.
        load_weights: Whether the model gets the preset's weights. Then only what is in
            `config.CHANGEABLE` may differ, and no other value follows from it.
        task: The task's class, for the message.

    Returns:
        The changed config.

    Raises:
        ValueError: If a value is not that of the weights, or none at all.

    Example:
    ```python
    from keras_transformer.checkpoints import load_config
    from keras_transformer.checkpoints.overrides import changed_config

    config, task, metadata = load_config("minilm_l6_en")
    assert changed_config("minilm_l6_en", config, {"dropout": 0.2}, True).dropout == 0.2
    ```
    """
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
            f"{name}={mine!r}, received {_short(given)}" for name, (mine, given) in wrong.items()
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
    """Those of the values that weights of this config do not go with: (what it has, what is given).

    Args:
        config: The config of the weights.
        values: Values by the names of the config, of any type.

    Returns:
        The pairs by name, none if all values agree.

    Example:
    ```python
    from keras_transformer.checkpoints import load_config
    from keras_transformer.checkpoints.overrides import contradictions

    config, task, metadata = load_config("minilm_l6_en")
    assert contradictions(config, {"num_heads": 6, "dropout": 0.2}) == {"num_heads": (12, 6)}
    ```
    """
    left_out = {n: None for n, v in values.items() if v is None and _may_be_none(n)}
    plain = config.replace(**left_out)
    found = {}
    for name, given in values.items():
        mine = getattr(config, name)
        wanted = getattr(plain, name) if name in left_out else given
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


def check_head_values(
    task_class: type,
    preset: str,
    config: TransformerConfig,
    saved: Mapping[str, Any],
    chosen: Mapping[str, Any],
) -> None:
    """ValueError for options that the weights of a preset's head do not go with.

    Args:
        task_class: The task, whose `head_values` says what its head computes with.
        preset: The preset's name, for the message.
        config: The config of the backbone.
        saved: The options that the preset was saved with.
        chosen: Those that the caller gives.
    """
    mine = task_class.head_values(config, saved)
    given = task_class.head_values(config, {**saved, **chosen})
    wrong = [f"{n}={mine[n]!r}, received {_short(given[n])}" for n in mine if given[n] != mine[n]]
    moved = _moved(saved.get("labels"), chosen.get("labels"))
    if moved:
        wrong.append(f"labels={saved['labels']}, received {_short(chosen['labels'])} in which "
                     f"{moved} stands for another class")  # fmt: skip
    if wrong:
        raise ValueError(
            f"The preset {preset!r} was trained as {task_class.__name__} with {', '.join(wrong)}. "
            "Leave it out; or, to do so on purpose, load the backbone and the tokenizer and make "
            f"the task of them: `{task_class.__name__}(backbone, tokenizer, ...)`."
        )


def _moved(saved: Any, given: Any) -> str:
    """A label that a head knows and that is given for another class, quoted; "" for none."""
    if not isinstance(saved, list) or not isinstance(given, Iterable):
        return ""
    pairs = enumerate(given)
    return next((repr(x) for i, x in pairs if x in saved and saved.index(x) != i), "")


def _may_be_none(name: str) -> bool:
    return TransformerConfig.__dataclass_fields__[name].default is None


def _kind(value: Any) -> type:
    numbers = (int, float)
    return float if type(value) in numbers else type(value)


def _short(value: Any) -> str:
    return repr(value)[:80]
