"""Files with the LoRA adapters and the head of a task, without its frozen weights."""

import os
from pathlib import Path

import keras
import numpy as np

from keras_transformer.checkpoints.weights.safetensors_io import save_tensors
from keras_transformer.config.structure import without_numbers
from keras_transformer.support.checking import check_path
from keras_transformer.support.files import SafetensorsFile, naming
from keras_transformer.support.scratch import PathLock
from keras_transformer.training import lora

_BACKBONE, _INNER = "backbone/", "/lora_kernel_a"


def save_adapter(task, path: str | os.PathLike) -> None:
    """Save the adapters and the head of a task to a file, see `Task.save_adapter`."""
    check_path("path", path)
    variables = _adapter_variables(task)
    alpha = np.float32(lora.adapted_layers(task.backbone)[0].lora_alpha)
    lock = PathLock(path)
    with naming(Path(path)):
        mine = lock.acquire()
    if not mine:
        raise OSError(f"{path} is being written by another process. Name another file.")
    try:
        save_tensors(path, {**variables, "alpha": alpha})
    finally:
        lock.release()


def load_adapter(task, path: str | os.PathLike) -> None:
    """Load adapters and the head of a task from a file, see `Task.load_adapter`."""
    arrays = dict(SafetensorsFile(check_path("path", path)))
    inner = [name for name in arrays if name.endswith(_INNER)]
    alpha = arrays.pop("alpha", np.zeros(2))
    if not inner or alpha.size != 1 or any(arrays[name].ndim != 2 for name in inner):
        raise ValueError(f"{path} holds no adapters: it was not written by `save_adapter`.")
    alpha = float(alpha.item())
    fresh = not lora.is_adapted(task.backbone)
    if fresh:
        layers = [name.removeprefix(_BACKBONE).rpartition("/")[0] for name in inner]
        try:
            lora.enable_lora(task.backbone, arrays[inner[0]].shape[-1], alpha, layers=layers)
            lora.forget_compiled(task)
        except ValueError as error:
            raise ValueError(f"{path} does not fit this model: {error}") from error
    variables = _adapter_variables(task)
    try:
        _check_same(path, arrays, variables)
    except ValueError:
        if fresh:
            task.merge_lora()  # nothing was trained yet, so this restores the model
        raise
    for layer in lora.adapted_layers(task.backbone):
        layer.lora_alpha = alpha
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _adapter_variables(task) -> dict[str, keras.Variable]:
    matrices = lora.adapters(task.backbone).items()
    variables = {f"{_BACKBONE}{path}": variable for path, variable in matrices}
    names = without_numbers(task.head)
    return variables | {f"head/{names[n]}": variable for n, variable in task.head.items()}


def _check_same(path, arrays: dict, variables: dict) -> None:
    """Raise ValueError unless each variable has one array of its shape."""
    for name in sorted(set(arrays) ^ set(variables)):
        where = "file" if name in arrays else "task"
        raise ValueError(f"{path} belongs to another task: {name!r} is only in the {where}.")
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise ValueError(
                f"{path} belongs to another model: {name!r} has the shape {arrays[name].shape} "
                f"in the file and {tuple(variable.shape)} in this task."
            )
