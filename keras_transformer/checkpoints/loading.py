"""From a preset to a config, and from its weights into variables."""

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.files import read_json
from keras_transformer.checkpoints.keras_hub import find_family
from keras_transformer.checkpoints.overrides import warn_of_contradictions
from keras_transformer.checkpoints.presets import (
    CONFIG_FILE,
    GENERATION_FILE,
    PresetSource,
    read_preset,
)
from keras_transformer.checkpoints.sentence_transformers import read_embedder
from keras_transformer.checkpoints.shapes import variable_shapes
from keras_transformer.checkpoints.weights import Names, Weight, expand, match
from keras_transformer.config import TransformerConfig

BACKBONE_PREFIX = "backbone/"
HEAD_PREFIX = "head/"
GENERATION = "generation_config"  # in the metadata
# What checkpoints say of generation in their config, before there was a file for it.
_OF_OLD = (
    "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
    "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What came from the checkpoint: `fresh` names the head's variables that did not."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]

    @property
    def head_loaded(self) -> bool:
        """Whether no variable was left with the value it was made with."""
        return not self.fresh


def load_config(
    source: str | os.PathLike, load_weights: bool = True
) -> tuple[TransformerConfig, dict[str, Any] | None, dict[str, Any]]:
    """Reads what a preset says of itself.

    Args:
        source: A preset, or what `resolve_preset` made of it.
        load_weights: Whether the weights will be loaded too. If so their header is read now,
            since a Hugging Face config alone does not say whether BERT's pooler is there.

    Returns:
        The backbone's config; the values of the task (`"name"`, and e.g. `"num_classes"`,
        `"labels"`), `None` without one; and the metadata (`"family"`, `"license"`, ...).

    Raises:
        ValueError: If the config has unknown or contradictory values. The message names the
            file.

    Example:
    ```python
    from keras_transformer.checkpoints import load_config

    config, task, metadata = load_config("minilm_l6_en")
    assert config.hidden_dim == 384 and task["pooling"] == "mean"
    assert metadata["license"] == "apache-2.0"
    ```
    """
    return read_preset(source, lambda found: _load_config(found, load_weights))


def _load_config(
    source: PresetSource, load_weights: bool
) -> tuple[TransformerConfig, dict[str, Any] | None, dict[str, Any]]:
    values = source.config
    try:
        if source.is_huggingface:
            family = _family(source)
            config = family.config(values, source.checkpoint if load_weights else None)
            task = family.task(_with_generation(source))
            task = task or read_embedder(source.directory, config.max_sequence_length)
            metadata = {"family": family.model_type, "source": source.name}
            return config, task, metadata | _generation(source)
        task, metadata = values.get("task"), values.get("metadata", {})
        _check_task(task)
        if not isinstance(metadata, dict):
            raise ValueError(f"'metadata' must be an object. Received: {metadata!r}.")
        config = TransformerConfig.from_dict(values.get("backbone"))
        if load_weights and values.get("weights") is not None:
            config = _published(source, config)
            metadata = metadata | _generation(source.weights)
        return config, task, metadata
    except ValueError as error:
        if str(source.directory) in str(error):
            raise
        raise ValueError(f"{source.file(CONFIG_FILE)}: {error}") from error


def _published(source: PresetSource, bundled: TransformerConfig) -> TransformerConfig:
    """The config that lies with the weights a bundled preset points to: they belong together."""
    values = source.weights.config
    config = get_family(values).config(values, source.checkpoint)
    mine, theirs = bundled.to_dict(), config.to_dict()
    differing = {n: (mine[n], theirs[n]) for n in mine if mine[n] != theirs[n]}
    if differing:
        logging.getLogger("keras_transformer").warning(
            "The weights of %r come with a config that differs from the bundled one; theirs is "
            "used: %s.",
            source.name,
            ", ".join(f"{name} is {new!r}, not {old!r}" for name, (old, new) in differing.items()),
        )
    return config


def family_values(source: PresetSource, task: str) -> dict[str, Any]:
    """The options that a task has in the preset's family, whether or not its head is there.

    Args:
        source: A preset.
        task: The name of the task class.

    Returns:
        The options, none if the preset is of no known family.
    """
    if source.is_huggingface:
        return _family(source).task_values(task, _with_generation(source))
    metadata = source.config.get("metadata")
    name = metadata.get("family") if isinstance(metadata, dict) else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    return family.task_values(task) if family else {}


def _family(source: PresetSource) -> Family:
    """The family of a preset in a published format."""
    return (find_family if source.is_keras_hub else get_family)(source.config)


def _with_generation(source: PresetSource) -> dict[str, Any]:
    """The config, with the token ids that newer checkpoints keep in a file for generation."""
    values = _generation(source).get(GENERATION, {})
    kept = ("eos_token_id", "decoder_start_token_id")
    return dict(source.config) | {k: values[k] for k in kept if values.get(k) is not None}


def _generation(source: PresetSource) -> dict[str, dict[str, Any]]:
    """What Transformers generates by if nothing else is said: for an export to say the same.

    It is in a file of its own, or of old among the values of the config.
    """
    path = source.file(GENERATION_FILE)
    if path.is_file():
        return {GENERATION: read_json(path)}
    values = {name: source.config[name] for name in _OF_OLD if source.config.get(name) is not None}
    return {GENERATION: values} if values else {}


def check_weights(
    source: str | os.PathLike,
    config: TransformerConfig,
    head: Mapping[str, tuple[int, ...]] | None = None,
    task: str | None = None,
) -> None:
    """Holds a config against the header of a preset's weights, before anything is built.

    Args:
        source: A preset, or what `resolve_preset` made of it.
        config: The config that the backbone is to be built from.
        head: The shapes of the head's variables by path, if there is a head to load.
        task: The name of the head's task class, e.g. `"TextClassifier"`.

    Raises:
        ValueError: If tensors are missing, left over or of other shapes. The message lists them.
        FileNotFoundError: If there are no weights.

    Example:
    ```python
    from keras_transformer.checkpoints import check_weights, load_config

    config, task, metadata = load_config("minilm_l6_en")
    check_weights("minilm_l6_en", config)
    ```
    """
    read_preset(source, lambda found: _check_weights(found, config, head, task))


def _check_weights(source: PresetSource, config: TransformerConfig, head, task) -> None:
    layers = config.num_layers + (config.num_decoder_layers or 0)
    if layers > len(source.checkpoint):  # before a name is made for each
        raise ValueError(
            f"The config of {source.name!r} declares {layers:,} layers, its weights in "
            f"{source.weights.directory} are only {len(source.checkpoint):,} tensors."
        )
    _plan(source, config, variable_shapes(config), head, task)


def load_weights(
    source: str | os.PathLike,
    backbone: keras.Model,
    head: Mapping[str, keras.Variable] | None = None,
    task: str | None = None,
) -> LoadReport:
    """Loads a preset's weights into a backbone, and into a task's head if the preset has it.

    One tensor at a time goes from the file into its variable, cast to the variable's dtype.
    Everything is checked against the files' headers before the first one. Values of the model that
    change its numbers and are not those of the weights, such as another `activation`, are logged.

    Args:
        source: A preset, or what `resolve_preset` made of it.
        backbone: The model, with its `config`.
        head: The variables of the task's head by path, e.g. `"output/kernel"`.
        task: The name of the head's task class. A checkpoint's head for another task is not
            loaded.

    Returns:
        A `LoadReport`: which variables were loaded, and which of the head's were not because
        the checkpoint has no such head.

    Raises:
        ValueError: If the weights do not fit, are damaged, or hold NaN. The backbone must then
            not be used: some of its variables may have been loaded.
        FileNotFoundError: If there are no weights.

    Example:
    ```python
    from keras_transformer.checkpoints import load_config, load_weights
    from keras_transformer.models import build_backbone

    config, task, metadata = load_config("minilm_l6_en")
    backbone = build_backbone(config)
    report = load_weights("minilm_l6_en", backbone)
    assert "pooler/kernel" in report.loaded
    ```
    """
    return read_preset(source, lambda found: _load_weights(found, backbone, head, task))


def _load_weights(source: PresetSource, backbone: keras.Model, head, task) -> LoadReport:
    warn_of_contradictions(source.name, load_config(source)[0], backbone.config)
    return fill(source, backbone, head, task)


def fill(
    source: PresetSource,
    backbone: keras.Model,
    head: Mapping[str, keras.Variable] | None = None,
    task: str | None = None,
) -> LoadReport:
    """Does what `load_weights` says, into a model whose config is that of the weights."""
    variables = backbone_variables(backbone)
    shapes = {path: variable.shape for path, variable in variables.items()}
    plan, head_plan = _plan(source, backbone.config, shapes, head, task)
    # One tensor may hold several variables: it is read once.
    places: dict[str, list[tuple[keras.Variable, Weight]]] = {}
    for table, found in ((plan, variables), (head_plan, head or {})):
        for path, (name, line) in table.items():
            places.setdefault(name, []).append((found[path], line))
    for name, lines in places.items():
        array = source.checkpoint.read(name)
        for variable, line in lines:
            variable.assign(line.split(array))
    fresh = tuple(path for path in head or () if path not in head_plan)
    return LoadReport((*plan, *(HEAD_PREFIX + path for path in head_plan)), fresh)


def backbone_variables(backbone: keras.Model) -> dict[str, keras.Variable]:
    """A backbone's weights by their path relative to it, the names that the weight tables use."""
    prefix = backbone.path + "/"
    return {variable.path.removeprefix(prefix): variable for variable in backbone.weights}


def _check_task(task: Any) -> None:
    if task is None:
        return
    if not isinstance(task, dict) or not isinstance(task.get("name"), str):
        raise ValueError(f"'task' must be null or have a 'name'. Received: {task!r}.")
    labels = task.get("labels")
    if labels is not None and not (
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    ):
        raise ValueError(f"'labels' must be null or a list of strings. Received: {labels!r}.")


def _plan(
    source: PresetSource,
    config: TransformerConfig,
    shapes: Mapping[str, tuple[int, ...]],
    head: Mapping[str, Any] | None,
    task: str | None,
) -> tuple[dict[str, tuple[str, Weight]], dict[str, tuple[str, Weight]]]:
    """Matches backbone and head with the checkpoint."""
    checkpoint, weights = source.checkpoint, source.weights
    where = str(checkpoint.folder)
    if weights.is_huggingface:
        family = _family(weights)
        lines, names = expand(family.weights, config), family.names
        head_lines = family.heads[task].weights if task in family.heads else ()
        required = False
    else:
        lines = [Weight(path, BACKBONE_PREFIX + path) for path in shapes]
        names = Names(ignored=(HEAD_PREFIX + "*",))
        # Written by save_preset, which does not leave out the head of a task.
        required = task is not None and (weights.config.get("task") or {}).get("name") == task
        head_lines = [Weight(path, HEAD_PREFIX + path) for path in head or () if required]
    plan = match(lines, shapes, checkpoint, names, where)
    theirs = {names.canonical(name) for name in checkpoint}
    seen = any(name in theirs for line in head_lines for name in line.names)
    if not head or not (required or seen):
        return plan, {}
    head_shapes = {path: tuple(getattr(v, "shape", v)) for path, v in head.items()}
    everything_else = dataclasses.replace(names, ignored=("*",))
    return plan, match(head_lines, head_shapes, checkpoint, everything_else, where)
