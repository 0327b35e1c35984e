"""Modes of a task: its dtype, and the memory layout of its weights."""

import warnings

import keras

from keras_transformer.kernels.packed import packs
from keras_transformer.support.checking import check_choice
from keras_transformer.tasks import Task

PACKED = "-packed"
_DTYPES = ("float32", "bfloat16", "int8", "int4")
# A mode later in this list takes more memory for the same numbers, or changes outputs more.
MODES = (*_DTYPES, *(dtype + PACKED for dtype in _DTYPES if dtype != "int4"))


def load(task_class: type[Task], preset, mode: str) -> Task:
    """Load the task of a preset in a mode, without a second task in memory.

    Raises:
        ValueError: if the task or the backend does not support the mode.
    """
    check_choice("mode", mode, MODES)
    dtype = mode.removesuffix(PACKED)
    quantized, packed = dtype.startswith("int"), mode != dtype
    task = task_class.from_preset(preset, dtype="float32" if quantized else dtype)
    if packed:
        _check_packs(task)
        task.compile(pack_weights=True)
    if quantized:
        task.quantize(dtype)
    return task


def make(task: Task, mode: str, made: dict[str, Task]) -> Task:
    """Return the task in a mode, with copied weights or the backbone of another task in `made`.

    Raises:
        ValueError: if the task or the backend does not support the mode.
    """
    dtype = mode.removesuffix(PACKED)
    if mode == dtype:
        return task if dtype == "float32" else _copy(task, dtype)
    _check_packs(task)
    if task.generates:  # it has no weights outside of the backbone
        packed = _again(task, (made.get(dtype) or make(task, dtype, made)).backbone)
    else:
        packed = _copy(task, dtype)
    packed.compile(pack_weights=True)
    return packed


def _check_packs(task: Task) -> None:
    if not packs(task):
        raise ValueError("packed weights are for PyTorch on a CPU")


def _copy(task: Task, dtype: str) -> Task:
    """Return a copy that computes in `dtype`, or with weights quantized to an integer `dtype`."""
    quantized = dtype.startswith("int")
    config = keras.saving.serialize_keras_object(task.backbone)
    if not quantized:
        config["config"]["dtype"] = dtype
    copy = _again(task, keras.saving.deserialize_keras_object(config))
    for mine, given in zip(copy.weights, task.weights, strict=True):
        mine.assign(keras.ops.convert_to_numpy(given))  # a copy: JAX donates arrays in training
    if quantized:
        copy.quantize(dtype)
    return copy


def _again(task: Task, backbone) -> Task:
    """Return the same task on another backbone."""
    with warnings.catch_warnings():
        # A new head warns of its initial weights, but callers assign weights to it.
        warnings.simplefilter("ignore")
        argument = None if task.processor is None else task.processor.argument
        again = type(task)(backbone, argument, **task.task_values(), name=task.name)
    values = task.compile_values()
    if values:
        again.compile(**values)
    return again
