"""Export of a model to a folder in Hugging Face format."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.base.family import Family, Inexpressible
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.presets import sentence_transformers
from keras_transformer.checkpoints.presets.assignment import plain_variables
from keras_transformer.checkpoints.presets.preset import CONFIG_FILE, GENERATION, GENERATION_FILE
from keras_transformer.checkpoints.presets.publishing import atomic_directory
from keras_transformer.checkpoints.presets.saving import refuse_own_blocks
from keras_transformer.checkpoints.weights.safetensors_io import WEIGHTS_FILE, save_tensors
from keras_transformer.checkpoints.weights.tables import export
from keras_transformer.config import TransformerConfig
from keras_transformer.models.runtime.quantized import refuse_rounded
from keras_transformer.support.checking import check_choice, check_path, describe, shorten
from keras_transformer.support.files import read_json, write_json
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.folder import CONFIG_FILE as TOKENIZER_CONFIG


def export_to_huggingface(
    model: keras.Model,
    directory: str | os.PathLike,
    dtype: str | None = None,
    family: str | None = None,
) -> None:
    """Write a model to a folder that the Transformers library loads: config, weights, processor.

    A `TextEmbedder` is written for sentence-transformers. The generation config of the original
    checkpoint is written too, with the model's token ids. The folder appears complete or not at
    all.

    Args:
        model: a backbone, or a task, whose head and processor are written too.
        directory: the folder to write: new, empty, or with a preset, which is replaced.
        dtype: `"float32"` or `"float16"` for the stored weights. Defaults to the weights' dtype.
        family: the published architecture, a `model_type` such as `"roberta"`. Defaults to the
            family that the model was loaded from, or else the first that fits.

    Raises:
        ValueError: if no published architecture, or not the given one, computes the same as the
            model (the message lists the reasons of the nearest ones), or if the folder holds other
            files.

    Example:
    ```python
    import tempfile
    from keras_transformer.checkpoints import export_to_huggingface, load_backbone

    backbone = load_backbone("minilm_l6_en")
    folder = tempfile.mkdtemp()
    export_to_huggingface(backbone, folder)
    assert load_backbone(folder).config == backbone.config
    ```
    """
    check_path("directory", directory)
    check_choice("dtype", dtype, ("float32", "float16"), none=True)
    backbone = getattr(model, "backbone", model)
    if not hasattr(backbone, "config"):
        raise ValueError(f"`model` must be a backbone or a task, received {describe(model)}.")
    refuse_rounded(model, "export it before `quantize`")
    refuse_own_blocks(backbone)
    if not isinstance(family, str | None):
        raise ValueError(f"`family` must be a str or None, received {describe(family)}.")
    task, head = published_task(model)
    # Its head, if any, is written to separate files.
    pooled = task is not None and task["name"] == sentence_transformers.TASK
    chosen, config = choose_family(backbone, head, family)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        config |= _token_ids(tokenizer, config, backbone.config)
        chosen.config(config)  # an id may change what a published model computes, as XGLM's padding
    processor = getattr(model, "processor", None)
    if processor is not None:
        config |= processor.config_values()
    tensors = _tensors(chosen, backbone, head, {} if pooled else getattr(model, "head", {}))
    with atomic_directory(directory) as folder:
        save_tensors(folder / WEIGHTS_FILE, tensors, dtype)
        if processor is not None:
            processor.save(folder)
            if tokenizer is not None and backbone.config.sides[-1].vector_pooling == "last":
                # SigLIP attended to padding in training, so its tokenizer must not make a mask.
                path = folder / TOKENIZER_CONFIG
                write_json(path, read_json(path) | {"model_input_names": ["input_ids"]})
        if pooled:
            sentence_transformers.write_embedder(folder, model, task, dtype)
        if head is not None and hasattr(TASKS[head["name"]], "generate"):
            write_json(folder / GENERATION_FILE, _generation(backbone, config))
        write_json(folder / CONFIG_FILE, config)


def published_task(model: keras.Model) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the values of a task and of its published task. A bare model has no own task: None."""
    backbone = getattr(model, "backbone", model)
    if backbone is model:
        return None, _exported_head(backbone)
    task = {**model.task_values(), "name": model.head.head_of or type(model).__name__}
    pooled = task["name"] == sentence_transformers.TASK
    bare = pooled or not (model.head.published_as or model.generates or model.head)
    return task, _exported_head(backbone) if bare else task


def _exported_head(backbone: keras.Model) -> dict[str, Any] | None:
    """Return the generating task that a bare backbone is exported as, or None if it has none."""
    if backbone.config.kind != "dual" and backbone.config.vector_pooling is not None:
        return None  # a text decoder for embeddings
    kind = backbone.config.kind
    known = {n: t for n, t in TASKS.items() if hasattr(t, "generate") and kind in t.backbone_kinds}
    names = (name for name, task in known.items() if task.takes_backbone(backbone))
    return next(({"name": name} for name in names), None)


def _generation(backbone: keras.Model, config: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: config[name] for name in _TOKEN_IDS if name in config}
    return {**(getattr(backbone, GENERATION, None) or {}), **ids}


_TOKEN_IDS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


def _token_ids(
    tokenizer: Tokenizer, theirs: Mapping[str, Any], config: TransformerConfig
) -> dict[str, int]:
    """Return the special token ids that the published config does not have yet."""
    ids = {"bos_token_id": tokenizer.start_id, "eos_token_id": tokenizer.end_id}
    ids = {name: i for name, i in ids.items() if name not in theirs}
    if config.position_padding_id is None:
        ids["pad_token_id"] = tokenizer.pad_id
    return {name: i for name, i in ids.items() if i is not None}


def _tensors(
    family: Family,
    backbone: keras.Model,
    task: Mapping[str, Any] | None,
    head: Mapping[str, keras.Variable],
) -> dict[str, np.ndarray]:
    lines = family.lines(backbone.config)
    tensors = export(lines, plain_variables(backbone))
    if family.computed is not None:
        tensors |= family.computed(backbone.config)
    if task is None:
        return tensors
    prefix = backbone_prefix(family, task)
    outside = {line.theirs for line in lines if line.outside}
    tensors = {n if n in outside else prefix + n: array for n, array in tensors.items()}
    published = family.heads[task["name"]]
    computed = {} if published.computed is None else published.computed(backbone.config, task)
    return tensors | export(published.weights, head) | dict(computed)


def backbone_prefix(family: Family, task: Mapping[str, Any] | None) -> str:
    """Return what precedes the names of the backbone's tensors in Transformers' model of a task."""
    if task is None:
        return ""
    prefix = family.heads[task["name"]].prefix
    return next(iter(family.names.prefixes), "") if prefix is None else prefix


def choose_family(
    backbone: keras.Model, task: Mapping[str, Any] | None, asked: str | None
) -> tuple[Family, dict[str, Any]]:
    """Return the family to export to, the given one or the first that fits, and its config."""
    if asked is not None and asked not in FAMILIES:
        known = ", ".join(map(repr, sorted(FAMILIES)))
        raise ValueError(f"There is no family {shorten(asked)} to export to. Known are: {known}.")
    own = getattr(backbone, "family", None)
    errors = []
    for name in [asked] if asked else sorted(FAMILIES, key=lambda name: name != own):
        try:
            if task is None and not FAMILIES[name].bare:
                raise Inexpressible(f"A {name} checkpoint cannot express a model without a head.")
            return FAMILIES[name], FAMILIES[name].published_config(backbone.config, task)
        except ValueError as error:
            errors.append(error)
    nearest = sorted(errors, key=_distance)[:_SHOWN]
    listing = "".join(f"\n  {error}" for error in nearest)
    rest = len(errors) - len(nearest)
    if rest:
        listing += (
            f"\nand {rest} that differ as much or more; `family=` asks for the reasons of one."
        )
    raise ValueError(f"No published architecture fits this model:{listing}")


_SHOWN = 3  # families of which an error says why they do not fit


def _distance(error: ValueError) -> float:
    """Return the number of values that a family cannot express; infinity if it is of another kind.

    An error of the task comes after all values of the config have been compared.
    """
    reasons = error.reasons if isinstance(error, Inexpressible) else 1
    return float("inf") if reasons is None else reasons
