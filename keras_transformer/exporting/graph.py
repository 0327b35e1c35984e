"""A model as a graph: a function of named arrays, which each format converts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

# Our names of token arrays -> the names in Transformers and optimum.
PUBLISHED = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}


@dataclasses.dataclass(frozen=True)
class Array:
    """An input of a graph.

    Args:
        name: str, name of the input.
        dtype: str, `"int64"` (also for masks) or `"float32"`.
        axes: tuple with the size of each axis, or the name of the axis if any size is allowed.
    """

    name: str
    dtype: str
    axes: tuple[int | str, ...]

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Return the shape for these sizes of the named axes."""
        return tuple(sizes.get(axis, axis) for axis in self.axes)


@dataclasses.dataclass(frozen=True)
class Graph:
    """A function from tensors of the backend, in the order of `inputs`, to a tuple of tensors.

    Args:
        name: str, the name of the graph's file, such as `"decoder_model"`.
        model: the Keras model that holds the weights.
        function: function from the inputs to the outputs.
        inputs: tuple of `Array`s.
        outputs: tuple of str, names of the outputs.
    """

    name: str
    model: keras.Model
    function: Callable[..., tuple[Any, ...]]
    inputs: tuple[Array, ...]
    outputs: tuple[str, ...]
