"""From a model to a folder in Hugging Face format."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.checking import check_choice, check_path, describe, shorten
from keras_transformer.checkpoints import sentence_transformers
from keras_transformer.checkpoints.assignment import backbone_variables
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.preset import CONFIG_FILE, GENERATION, GENERATION_FILE
from keras_transformer.checkpoints.publishing import atomic_directory
from keras_transformer.checkpoints.safetensors_io import WEIGHTS_FILE, save_tensors
from keras_transformer.checkpoints.saving import refuse_own_blocks
from keras_transformer.checkpoints.untrusted import read_json, write_json
from keras_transformer.checkpoints.weights import export
from keras_transformer.config import TransformerConfig
from keras_transformer.models.quantized import refuse_quantized
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.folder import CONFIG_FILE as TOKENIZER_CONFIG


def export_to_huggingface(
    model: keras.Model,
    directory: str | os.PathLike,
    dtype: str | None = None,
    family: str | None = None,
) -> None:
    """Writes a folder that the Transformers library loads: config, weights, processor.

    A `TextEmbedder` is written for sentence-transformers. What the checkpoint that a model was
    loaded from says of generation goes along, with the token ids of the model. The folder appears
    complete or not at all.

    Args:
        model: a backbone, or a task, whose head and processor are written too.
        directory: the folder: new, empty, or that of a preset.
        dtype: `"float32"` or `"float16"` for the stored weights. Defaults to theirs.
        family: the published architecture, a `model_type` such as `"roberta"`. Defaults to the one
            that the model was loaded from, else to the first that fits.

    Raises:
        ValueError: if no published architecture, or not the named one, computes what the model
            computes (the message says what is in the way), or if the folder holds other files.

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
    refuse_quantized(model, "export it before `quantize`")
    refuse_own_blocks(backbone)
    if not isinstance(family, str | None):
        raise ValueError(f"`family` must be a str or None, received {describe(family)}.")
    task = None if backbone is model else {**model.task_values()}
    if task is not None:
        task["name"] = model.head_of or type(model).__name__
    # Its head, if any, goes to files of its own.
    pooled = task is not None and task["name"] == sentence_transformers.TASK
    bare = task is None or pooled or not (model.published_as or model.generates or model.head)
    head = _exported_head(backbone) if bare else task
    chosen, config = _choose_family(backbone, head, family)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        config |= _token_ids(tokenizer, config, backbone.config)
    tensors = _tensors(chosen, backbone, head, {} if pooled else getattr(model, "head", {}))
    with atomic_directory(directory) as folder:
        save_tensors(folder / WEIGHTS_FILE, tensors, dtype)
        processor = getattr(model, "processor", None)
        if processor is not None:
            processor.save(folder)
            if tokenizer is not None and backbone.config.sides[-1].vector_pooling == "last":
                # Padding is read as it was in training (SigLIP): no mask is to be made of it.
                path = folder / TOKENIZER_CONFIG
                write_json(path, read_json(path) | {"model_input_names": ["input_ids"]})
        if pooled:
            sentence_transformers.write_embedder(folder, model, task, dtype)
        if head is not None and TASKS[head["name"]].generates:
            write_json(folder / GENERATION_FILE, _generation(backbone, config))
        write_json(folder / CONFIG_FILE, config)


def _exported_head(backbone: keras.Model) -> dict[str, Any] | None:
    """The task that a bare model goes out as: the logits of a decoder belong to the backbone."""
    if backbone.config.kind != "dual" and backbone.config.vector_pooling is not None:
        return None  # A decoder that makes vectors.
    kind = backbone.config.kind
    known = {n: t for n, t in TASKS.items() if t.generates and kind in t.backbone_kinds}
    names = (name for name, task in known.items() if backbone.id_inputs[0] in task.reads_arrays)
    return next(({"name": name} for name in names), None)


def _generation(backbone: keras.Model, config: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: config[name] for name in _TOKEN_IDS if name in config}
    return {**(getattr(backbone, GENERATION, None) or {}), **ids}


_TOKEN_IDS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


def _token_ids(
    tokenizer: Tokenizer, theirs: Mapping[str, Any], config: TransformerConfig
) -> dict[str, int]:
    """The special tokens that their configs name, where the family or the task does not."""
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
    tensors = export(lines, backbone_variables(backbone))
    if task is None:
        return tensors
    # Their models with a head keep the backbone under its name.
    prefix = family.heads[task["name"]].prefix
    if prefix is None:
        prefix = next(iter(family.names.prefixes), "")
    outside = {line.theirs for line in lines if line.outside}
    tensors = {n if n in outside else prefix + n: array for n, array in tensors.items()}
    return tensors | export(family.heads[task["name"]].weights, head)


def _choose_family(
    backbone: keras.Model, task: Mapping[str, Any] | None, asked: str | None
) -> tuple[Family, dict[str, Any]]:
    """The family to export to, and its config: the one asked for, or else the first that fits."""
    if asked is not None and asked not in FAMILIES:
        known = ", ".join(map(repr, sorted(FAMILIES)))
        raise ValueError(f"There is no family {shorten(asked)} to export to. Known are: {known}.")
    own = getattr(backbone, "family", None)
    reasons = []
    for name in [asked] if asked else sorted(FAMILIES, key=lambda name: name != own):
        try:
            return FAMILIES[name], FAMILIES[name].published_config(backbone.config, task)
        except ValueError as error:
            reasons.append(f"\n  {error}")
    raise ValueError(f"No published architecture fits this model:{''.join(reasons)}")
