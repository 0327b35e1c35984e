"""Files with the LoRA adapters and the head of a task, without its frozen weights."""

import os
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from keras_transformer.checkpoints.presets.hub import SCHEME
from keras_transformer.checkpoints.weights.safetensors_io import save_tensors
from keras_transformer.config.structure import without_numbers
from keras_transformer.layers.dense import LOW_RANK, MAGNITUDE
from keras_transformer.support.checking import check_choice, check_path
from keras_transformer.support.files import SafetensorsFile, naming
from keras_transformer.support.scratch import PathLock
from keras_transformer.training import lora

_BACKBONE, _INNER, _ALPHA = "backbone/", "/lora_kernel_a", "/lora_alpha"
# A number of files whose alphas are those of plain LoRA, and were trained as rsLoRA.
_STABILIZED = "rank_stabilized"


def save_adapter(task, path: str | os.PathLike, format: str | None = None) -> None:
    """Save the adapters and the head of a task, see `Task.save_adapter`."""
    check_path("path", path)
    check_choice("format", format, ("peft",), none=True)
    variables = _adapter_variables(task)
    sizes = lora.adapter_sizes(task.backbone)
    if len({alpha for _, alpha in sizes.values()}) == 1:
        alphas = {"alpha": np.float32(next(iter(sizes.values()))[1])}
    else:
        alphas = {f"{_BACKBONE}{p}{_ALPHA}": np.float32(alpha) for p, (_, alpha) in sizes.items()}
    if task.backbone.lora_method == "rslora":
        alphas[_STABILIZED] = np.float32(1)
    lock = PathLock(path)
    with naming(Path(path)):
        mine = lock.acquire()
    if not mine:
        raise OSError(f"{path} is being written by another process. Name another file.")
    try:
        if format is None:
            save_tensors(path, {**variables, **alphas})
        else:
            _save_peft(task, path, sizes)
    finally:
        lock.release()


def load_adapter(task, path: str | os.PathLike) -> None:
    """Load adapters and the head of a task, see `Task.load_adapter`."""
    check_path("path", path)
    if str(path).startswith(SCHEME) or Path(path).expanduser().is_dir():
        _load_peft(task, path)
        return
    arrays = dict(SafetensorsFile(path))
    inner = [name for name in arrays if name.endswith(_INNER)]
    layers = [name.removeprefix(_BACKBONE).removesuffix(_INNER) for name in inner]
    common = arrays.pop("alpha", None)
    method = "rslora" if arrays.pop(_STABILIZED, None) is not None else "lora"
    method = "dora" if any(name.endswith(f"/{MAGNITUDE}") for name in arrays) else method
    alphas = [
        arrays.pop(f"{_BACKBONE}{p}{_ALPHA}", np.zeros(2)) if common is None else common
        for p in layers
    ]
    odd = any(alpha.size != 1 for alpha in alphas) or any(arrays[n].ndim != 2 for n in inner)
    if not inner or odd:
        raise ValueError(f"{path} holds no adapters: it was not written by `save_adapter`.")
    ranks = [arrays[name].shape[-1] for name in inner]
    numbers = [float(alpha.item()) for alpha in alphas]
    sizes = dict(zip(layers, zip(ranks, numbers, strict=True), strict=True))
    _assign(task, path, arrays, sizes, method, with_head=True)


def _load_peft(task, path: str | os.PathLike) -> None:
    # It reads the tables of all families, which take long to import.
    from keras_transformer.checkpoints.peft_adapters import read_adapter

    found = read_adapter(path, task, lora.kernel_shapes(task.backbone))
    arrays, sizes = {f"head/{name}": array for name, array in found.head.items()}, {}
    for layer, low_rank in found.matrices.items():
        sizes[layer] = (low_rank.rank, low_rank.alpha)
        for name, array in low_rank.arrays().items():
            arrays[f"{_BACKBONE}{layer}/{name}"] = array
    _assign(task, path, arrays, sizes, found.method, with_head=bool(found.head))


def _save_peft(task, path: str | os.PathLike, sizes: Mapping[str, tuple[int, float]]) -> None:
    from keras_transformer.checkpoints.peft_adapters import Adapter, LowRank, write_adapter

    variables = lora.adapters(task.backbone)
    matrices = {
        layer: LowRank.of(
            {name: variables.get(f"{layer}/{name}") for name in (*LOW_RANK, MAGNITUDE)}, alpha
        )
        for layer, (_, alpha) in sizes.items()
    }
    adapter = Adapter(matrices, {}, task.backbone.lora_method)
    with naming(Path(path)):
        write_adapter(path, task, adapter, lora.kernel_shapes(task.backbone))


def _assign(
    task,
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, tuple[int, float]],
    method: str,
    with_head: bool,
) -> None:
    """Add adapters of these sizes, unless the task has some, and assign their values."""
    fresh = not lora.is_adapted(task.backbone)
    if fresh:
        try:
            lora.enable_lora(task.backbone, 1, layers=sizes, method=method)
            lora.forget_compiled(task)
        except ValueError as error:
            raise ValueError(f"{path} does not fit this model: {error}") from error
    variables = _adapter_variables(task)
    if not with_head:
        variables = {name: v for name, v in variables.items() if name.startswith(_BACKBONE)}
    try:
        _check_same(path, arrays, variables)
    except ValueError:
        if fresh:
            task.merge_lora()  # nothing was trained yet, so this restores the model
        raise
    own = lora.adapter_sizes(task.backbone)
    for layer, name in zip(lora.adapted_layers(task.backbone), own, strict=True):
        layer.lora_alpha = sizes[name][1]
    task.backbone.lora_method = method
    if own != lora.adapter_sizes(task.backbone):  # a compiled step has the former scale
        lora.forget_compiled(task.backbone)
        lora.forget_compiled(task)
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
