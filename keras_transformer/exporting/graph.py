"""What a model is as a graph: a plain function of named arrays, which each format converts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

# What Transformers, and so optimum, calls the arrays of tokens.
PUBLISHED = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}


@dataclasses.dataclass(frozen=True)
class Array:
    """An input of a graph.

    Args:
        name: str.
        dtype: str: `"int64"`, for masks too, or `"float32"`.
        axes: of each axis its size, or a name where any size is taken.
    """

    name: str
    dtype: str
    axes: tuple[int | str, ...]

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Its shape where the axes with a name have these sizes."""
        return tuple(sizes.get(axis, axis) for axis in self.axes)


@dataclasses.dataclass(frozen=True)
class Graph:
    """A function of tensors of the backend, in the order of `inputs`, to a tuple of them.

    Args:
        name: str, that of its file, such as `"decoder_model"`.
        model: what holds the weights.
        function: gives the outputs of the inputs.
        inputs: tuple of `Array`.
        outputs: tuple of str.
    """

    name: str
    model: keras.Model
    function: Callable[..., tuple[Any, ...]]
    inputs: tuple[Array, ...]
    outputs: tuple[str, ...]
