"""Tasks in Keras's own formats: `.keras` files, configs, clones, deep copies, pickles.

A processor is saved as its files. If a task has LoRA adapters, a file holds the merged weights, as
after `merge_lora`, which a task without adapters can load, and separately the adapters.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.weights.safetensors_io import save_tensors
from keras_transformer.config.structure import without_numbers
from keras_transformer.models.runtime.quantized import refuse_quantized
from keras_transformer.support.files import SafetensorsFile
from keras_transformer.training import lora

# Prefix of the names of adapters in the task's own entry of a file, and the sampler's file.
_ADAPTER = "adapter_"
_SAMPLER = "sampler.json"


def config_of(task) -> dict[str, Any]:
    """Return the config of a task, from which `task_of` restores it."""
    refuse_quantized(task)
    # Weights that were frozen for the adapters become trainable again after `merge_lora`.
    later = getattr(task.backbone, "trainable_before_lora", None) or ()
    return {
        "backbone": keras.saving.serialize_keras_object(task.backbone),
        "tokenizer": None if task.processor is None else task.processor.packed(),
        **task.task_values(),
        "name": task.name,
        "frozen": [
            path for v, path in _stable_paths(task) if not v.trainable and v.path not in later
        ],
        "adapters": lora.lora_values(task.backbone),
    }


def task_of(task_class: type, config: dict[str, Any], custom_objects=None):
    """Make a task from a config that `config_of` returned."""
    values = dict(config)
    frozen, adapters = values.pop("frozen", ()), values.pop("adapters", None)
    backbone = keras.saving.deserialize_keras_object(
        values.pop("backbone"), custom_objects=custom_objects
    )
    files = values.pop("tokenizer")
    processor = None if files is None else task_class.processor_class.unpacked(files)
    task = task_class(backbone, None if processor is None else processor.argument, **values)
    for variable, path in _stable_paths(task):
        if path in frozen or variable.path in frozen:  # older files hold `variable.path`
            variable.trainable = False
    if not any(variable.trainable for variable in backbone.weights):
        backbone.trainable = False
    if adapters is not None:
        lora.enable_lora(backbone, **adapters)
    return task


def save_variables(task, save: Callable, store) -> None:
    """Save a task's own variables with Keras's method `save`, and its adapters."""
    save(store)
    if lora.is_adapted(task.backbone):
        for number, array in enumerate(lora.arrays_apart(task.backbone)):
            store[f"{_ADAPTER}{number}"] = array


def load_variables(task, load: Callable, store) -> None:
    """Load variables that `save_variables` saved; `load` is Keras's method for its own part."""
    names = list(store.keys())
    load({n: store[n] for n in names if not n.startswith(_ADAPTER)})
    count = sum(name.startswith(_ADAPTER) for name in names)
    if count and lora.is_adapted(task.backbone):
        arrays = [np.asarray(store[f"{_ADAPTER}{number}"]) for number in range(count)]
        lora.load_apart(task.backbone, arrays)


def compile_config_of(task, config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Add the task's own arguments of `compile` to Keras's compile config."""
    values = task.compile_values()
    if _models_of(values.get("sampler")):
        del values["sampler"]  # Samplers with models are saved as assets, with their weights.
    if config:
        config |= keras.saving.serialize_keras_object(values)
        config["optimizer_built"] = task.optimizer is not None and task.optimizer.built
    return config


def compile_from(task, config: dict[str, Any]) -> None:
    """Compile a task with the values of a config that `compile_config_of` returned."""
    values = keras.saving.deserialize_keras_object(config)
    built = values.pop("optimizer_built")
    task.compile(**values)
    if built:  # The optimizer's state is in the file.
        task.optimizer.build(task.trainable_variables)


def save_sampler(task, directory: str) -> None:
    """Save a sampler that uses other models: a compile config cannot hold their weights."""
    sampler = task.compile_values().get("sampler")
    for place, model in enumerate(_models_of(sampler)):
        save_tensors(Path(directory, f"model_{place}.safetensors"), _by_place(model))
    if _models_of(sampler):
        config = keras.saving.serialize_keras_object(sampler)
        Path(directory, _SAMPLER).write_text(json.dumps(config))


def load_sampler(task, directory: str | None) -> None:
    """Load the sampler that `save_sampler` saved, if any."""
    file = Path(directory or "", _SAMPLER)
    if directory is None or not file.is_file():
        return
    config = json.loads(file.read_text())
    for name, value in config["config"].items():
        if isinstance(value, dict):
            config["config"][name] = keras.saving.deserialize_keras_object(value)
    sampler = keras.saving.deserialize_keras_object(config)
    for place, model in enumerate(_models_of(sampler)):
        tensors = SafetensorsFile(Path(directory, f"model_{place}.safetensors"))
        for name, variable in _by_place(model).items():
            variable.assign(tensors[name])
    task.sampler = sampler


def _stable_paths(task) -> list[tuple[keras.Variable, str]]:
    """Return the weights with paths that are the same in any process."""
    names = without_numbers(v.path for v in task.weights)
    return [(v, names[v.path]) for v in task.weights]


def _models_of(sampler) -> tuple:
    """Return the models that a sampler uses besides the task's backbone."""
    return getattr(sampler, "models", ())


def _by_place(model) -> dict[str, keras.Variable]:
    return {str(place): variable for place, variable in enumerate(model.weights)}
