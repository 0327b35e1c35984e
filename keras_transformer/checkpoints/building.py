"""From a preset to a backbone, and to a whole task."""

import contextlib
import inspect
import logging
import os
from collections.abc import Iterator
from typing import Any

import keras

from keras_transformer.checking import check_bool, check_int, shorten
from keras_transformer.checkpoints import loading
from keras_transformer.checkpoints.overrides import changed_config, check_head_values
from keras_transformer.checkpoints.presets import CONFIG_FILE, PresetSource, read_preset
from keras_transformer.checkpoints.shapes import head_shapes
from keras_transformer.config import TransformerConfig
from keras_transformer.kerashub_names import check_options
from keras_transformer.models import build_backbone
from keras_transformer.models.stack import weights_to_be_loaded
from keras_transformer.tokenizers import Tokenizer


def load_backbone(
    preset: str | os.PathLike,
    backbone_class: type | None = None,
    load_weights: bool = True,
    dtype=None,
    **config_overrides: Any,
) -> keras.Model:
    """Builds the backbone of a preset: what `Backbone.from_preset` does.

    Args:
        preset: A preset, or what `resolve_preset` made of it.
        backbone_class: The class that the caller wants, `None` for any.
        load_weights: Whether to load the weights, or leave them fresh.
        dtype: The dtype or dtype policy of the model.
        **config_overrides: Values of the config to change. With weights only those that they do
            not depend on: `dropout`, `attention_dropout`, `initializer_range`, and where
            positions are computed, `max_sequence_length`.

    Returns:
        The backbone.

    Raises:
        ValueError: If the preset is of another class, its files do not fit each other, or its
            weights do not go with a changed value.

    Example:
    ```python
    from keras_transformer.checkpoints import load_backbone

    assert load_backbone("minilm_l6_en", dropout=0.0).count_params() == 22_713_216
    ```
    """
    load_weights = check_bool("load_weights", load_weights)
    return read_preset(
        preset,
        lambda source: _load_backbone(
            source, backbone_class, load_weights, dtype, config_overrides
        ),
    )


def _load_backbone(
    source: PresetSource, backbone_class, load_weights, dtype, config_overrides
) -> keras.Model:
    config = loading.load_config(source, load_weights=False)[0]
    # Before the weights are fetched, whose header the config depends on.
    _check_kind(source, config, backbone_class, (getattr(backbone_class, "kind", config.kind),))
    config, _, metadata = loading.load_config(source, load_weights)
    config = changed_config(source.name, config, config_overrides, load_weights)
    if load_weights:
        loading.check_weights(source, config)
    with weights_to_be_loaded() if load_weights else contextlib.nullcontext():
        backbone = build_backbone(config, dtype=dtype)
    backbone.family = metadata.get("family")
    backbone.generation_config = metadata.get(loading.GENERATION)
    if load_weights:
        loading.fill(source, backbone)
    return backbone


def load_task(
    task_class: type,
    preset: str | os.PathLike,
    load_weights: bool = True,
    dtype=None,
    **options: Any,
) -> keras.Model:
    """Builds a task from a preset: what `from_preset` of a task class does.

    A head that the preset lacks, or has for another number of classes than asked for, is made
    fresh, with a warning. Without tokenizer files the task takes ids only.

    Args:
        task_class: The class, e.g. `TextClassifier`; `Task` for the one that the preset names.
        preset: A preset, or what `resolve_preset` made of it.
        load_weights: Whether to load the weights, or leave them fresh.
        dtype: The dtype or dtype policy of the model.
        **options: Of the task's constructor, or values of the backbone's config to change, see
            `load_backbone`. A name that both have, such as `dropout`, goes to both.

    Returns:
        The task, compiled.

    Raises:
        ValueError: If an option is unknown, the preset is of a kind that the task does not work
            with, its files do not fit each other, or its weights, those of the head included, do
            not go with an option.

    Example:
    ```python
    from keras_transformer import TextClassifier
    from keras_transformer.checkpoints import load_task

    classifier = load_task(TextClassifier, "minilm_l6_en", labels=["bad", "good"])
    assert classifier.num_classes == 2 and classifier.tokenizer is not None
    ```
    """
    load_weights = check_bool("load_weights", load_weights)
    if hasattr(task_class, "backbone_kinds"):
        known = {*inspect.signature(task_class).parameters, *TransformerConfig.__annotations__}
        check_options(f"{task_class.__name__}.from_preset", options, known)
    return read_preset(
        preset, lambda source: _load_task(source, task_class, load_weights, dtype, options)
    )


def _load_task(
    source: PresetSource, task_class: type, load_weights: bool, dtype, options: dict[str, Any]
) -> keras.Model:
    config, saved, _ = loading.load_config(source, load_weights=False)
    if not hasattr(task_class, "backbone_kinds"):
        task_class = _saved_class(source, saved, task_class)
    # Before the weights are fetched, whose header the config depends on.
    _check_kind(source, config, task_class, task_class.backbone_kinds)
    config, saved, metadata = loading.load_config(source, load_weights)
    parameters = set(inspect.signature(task_class).parameters) - {"backbone", "tokenizer"}
    overrides = {name: value for name, value in options.items() if name in config.to_dict()}
    unknown = sorted(set(options) - set(overrides) - parameters)
    if unknown:
        raise ValueError(
            f"Unknown options {unknown}. {task_class.__name__} takes {sorted(parameters)}, and the "
            "values of TransformerConfig."
        )
    config = changed_config(source.name, config, overrides, load_weights, task_class.__name__)
    same_task = saved is not None and saved["name"] == task_class.__name__
    values = {k: v for k, v in saved.items() if k != "name"} if same_task else {}
    usual = loading.family_values(source, task_class.__name__)
    values = {k: v for k, v in usual.items() if k in parameters} | values
    if set(values) - parameters:
        raise ValueError(
            f"{source.file(CONFIG_FILE)}: the task has the unknown values "
            f"{sorted(set(values) - parameters)}. {task_class.__name__} takes {sorted(parameters)}."
        )
    chosen = {name: value for name, value in options.items() if name in parameters}
    renamed = same_task and _other_names(values.get("labels"), chosen.get("labels"))
    keeps_head = same_task and _same_classes(values, chosen) and not renamed
    if not keeps_head:
        values = {k: v for k, v in values.items() if k not in ("num_classes", "labels")}
    if load_weights:
        if keeps_head:
            check_head_values(task_class, source.name, config, values, chosen)
        named = {"name": task_class.__name__, **values, **chosen}
        with _naming(source, values):
            head = head_shapes(config, named) if keeps_head else None
        loading.check_weights(source, config, head, task_class.__name__)
    tokenizer = _tokenizer(source, load_weights)
    with weights_to_be_loaded() if load_weights else contextlib.nullcontext():
        backbone = build_backbone(config, dtype=dtype)
    backbone.family = metadata.get("family")
    backbone.generation_config = metadata.get(loading.GENERATION)
    with _naming(source, values):
        try:
            task = task_class(backbone, tokenizer, **{**values, **chosen})
        except TypeError as error:  # values of other types, from the file or from the caller
            raise ValueError(
                f"The values { ({**values, **chosen}) } do not fit {task_class.__name__}: {error}"
            ) from error
    if load_weights:
        head = task.head if keeps_head else None
        report = loading.fill(source, backbone, head, task_class.__name__)
        if task.head and not (keeps_head and report.head_loaded):
            logging.getLogger("keras_transformer").warning(
                "The preset %r has no weights for this head of %s: they are fresh. Train it first."
                "%s",
                source.name,
                task_class.__name__,
                f" Its own head knows the classes {shorten(saved['labels'])}. If these are other "
                "names for them, load it without `labels` and assign them: task.labels = [...]."
                if renamed
                else "",
            )
        elif keeps_head and chosen.get("labels") and not _names(values.get("labels")):
            logging.getLogger("keras_transformer").warning(
                "The classes of the head of %r have no names. They are taken to be, in the order "
                "of their numbers, %s.",
                source.name,
                shorten(list(chosen["labels"])),
            )
    return task


def _tokenizer(source: PresetSource, required: bool) -> Tokenizer | None:
    """The preset's tokenizer, if it has one; one on the hub that is out of reach if it must."""
    try:
        found = source.tokenizer
    except OSError as error:
        if required:
            raise
        logging.getLogger("keras_transformer").warning(
            "The tokenizer of %r is not on this machine, and the model takes ids only: %s",
            source.name,
            error,
        )
        return None
    return None if found is None else Tokenizer.from_preset(found)


@contextlib.contextmanager
def _naming(source: PresetSource, values: dict[str, Any]) -> Iterator[None]:
    """Says in an error that values of the task come from the preset, and from which file."""
    try:
        yield
    except ValueError as error:
        if not values or str(source.directory) in str(error):
            raise
        path = source.file(CONFIG_FILE)
        raise ValueError(f"{error} The values of the task in {path} are {values}.") from error


def _saved_class(source: PresetSource, saved: dict[str, Any] | None, wanted: type) -> type:
    """The task that the preset names: one of ours, from a table."""
    from keras_transformer import tasks  # Tasks are a floor above checkpoints.

    known = {name: getattr(tasks, name) for name in tasks.__all__}
    known = {
        n: task for n, task in known.items() if task is not wanted and issubclass(task, wanted)
    }
    name = None if saved is None else saved["name"]
    if name not in known:
        raise ValueError(
            f"The preset {source.name!r} names the task {name!r}, and {wanted.__name__} may be one "
            f"of {', '.join(known)}. Call from_preset on the one that you want."
        )
    return known[name]


def _same_classes(saved: dict[str, Any], chosen: dict[str, Any]) -> bool:
    """Whether what the user chose leaves a saved head its number of classes."""
    if "num_classes" not in saved:
        return True
    labels = chosen.get("labels")
    number = check_int("num_classes", chosen.get("num_classes"), none=True)
    if number is None and isinstance(labels, (list, tuple)):
        number = len(labels)
    return number is None or number == saved["num_classes"]


def _other_names(saved: Any, given: Any) -> bool:
    """Whether classes are given by names that are not those of a saved head, in any order."""
    known = _names(saved)
    if not known or not isinstance(given, (list, tuple)):
        return False
    return {str(name).casefold() for name in given} != {name.casefold() for name in known}


def _names(labels: list[str] | None) -> list[str]:
    """The names that somebody gave to classes: not the `LABEL_0` of published configs."""
    plain = [f"LABEL_{number}" for number in range(len(labels or ()))]
    return [] if labels is None or labels == plain else labels


def _check_kind(
    source: PresetSource, config: TransformerConfig, wanted: type | None, kinds: tuple[str, ...]
) -> None:
    if config.kind not in kinds:
        raise ValueError(
            f"The preset {source.name!r} is of kind {config.kind!r}, and {wanted.__name__} needs "
            f"{' or '.join(map(repr, kinds))}."
        )
