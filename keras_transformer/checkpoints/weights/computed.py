"""Stored tensors that a model computes instead of loading: positions, masks, rotary frequencies.

Older releases of Transformers stored them beside the weights. This library computes them from the
config, and compares the stored values with the computed ones, since a difference would change the
outputs.
"""

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.attention.grid import grid_index
from keras_transformer.layers.position import RotaryEmbedding

# Relative and absolute rounding error of a stored number.
_ROUNDING = {"F16": (1e-3, 6e-8), "BF16": (8e-3, 0.0)}
_LEAST_MASK = -1e4  # old masks added this, or a lower number, to a score


def _counted(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    yield np.broadcast_to(np.arange(array.shape[-1] if array.ndim else 1), array.shape)


def _causal(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    yield np.broadcast_to(np.tri(*array.shape[-2:]), array.shape)


def _masked(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    if array.size == 1:
        yield np.minimum(array, _LEAST_MASK)


def _rotary(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    # A name without a number is a table for all layers, with the values of one of them.
    side, number = _side(config, name), re.search(r"\.(\d+)\.", name)
    layers = side.layers if number is None else [side.layer(int(number[1]))]
    for layer in {id(layer): layer for layer in layers if layer.position == "rotary"}.values():
        rotary = RotaryEmbedding.from_part(layer.only_side.block.mixer.position)
        width = layer.head_dim if layer.kv_lora_rank is None else layer.qk_rope_head_dim
        dim = width if rotary.dim is None else rotary.dim
        yield rotary.frequencies(dim)
        # Older releases stored the frequencies before scaling.
        yield RotaryEmbedding(rotary.base).frequencies(dim)


def _waves(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    side = _side(config, name)
    if side.position == "sinusoidal" and array.ndim == 2 and array.shape[1] % 2 == 0:
        positions = np.arange(len(array)) + side.position_offset
        angles = positions[:, None] * RotaryEmbedding().frequencies(array.shape[1])
        parts = [np.sin(angles), np.cos(angles)]
        axis = -1 if side.sinusoidal_interleaved else -2
        yield np.stack(parts, axis).reshape(array.shape)


def _grid(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    side = _side(config, name)
    if side.grid_bias is not None:
        yield grid_index(side.stem.grid(side.stem.image_size))


# Functions that yield the values allowed by a config, by pattern of tensor names.
COMPUTED: Mapping[str, Callable[[TransformerConfig, str, np.ndarray], Iterator[np.ndarray]]] = {
    "*position_ids": _counted,
    "*rotary_emb*.inv_freq": _rotary,
    "*.embed_positions.weight": _waves,
    "*attn.bias": _causal,
    "*attention.bias": _causal,
    "*.masked_bias": _masked,
    "*.relative_position_index": _grid,
}


def is_computed(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a model computes the tensor of this name, which may then stay unread."""
    found = _maker(name)
    return found is not None and (found is not _causal or len(shape) > 1)


def check_computed(
    config: TransformerConfig, canonical: str, name: str, checkpoint: Checkpoint
) -> None:
    """Compare a tensor of a file with the values that a model of this config computes.

    The file calls it `name`, which is `canonical` without the model's prefix. Raises ValueError if
    they differ by more than the rounding of the stored numbers.
    """
    array = checkpoint.read_any(name)
    expected = _maker(canonical)
    relative, absolute = _ROUNDING.get(checkpoint[name].dtype, (1e-4, 0.0))
    if expected is _waves:  # sines of large angles, which float32 rounds
        relative, absolute = 0.0, max(relative, 1e-3)
    for values in expected(config, canonical, array):
        if values.shape == array.shape and np.allclose(array, values, relative, absolute):
            return
    raise ValueError(
        f"The tensor {name!r} of {checkpoint[name].path} is computed from the config and not "
        "read, but its values differ: the model would give other outputs than the one that "
        "was saved. Correct the config, or remove the tensor if it is not used."
    )


def _maker(name: str) -> Callable | None:
    """Return the function that computes the values of a tensor of this name."""
    found = (make for like, make in COMPUTED.items() if fnmatch.fnmatchcase(name, like))
    return next(found, None)


def _side(config: TransformerConfig, name: str) -> TransformerConfig:
    """Return the side that a tensor belongs to, by its name; otherwise the last side."""
    named = dict(zip(config.side_names, config.sides, strict=True))
    found = (side for side in named if f".{side}." in f".{name}")
    return named[next(found, config.side_names[-1])]
