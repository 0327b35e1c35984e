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
from keras_transformer.config import (
    Attention,
    LatentAttention,
    Rotary,
    TransformerConfig,
    WindowBias,
)
from keras_transformer.layers.attention.grid import grid_index, window_index
from keras_transformer.layers.attention.grid_windows import log_distances
from keras_transformer.layers.position import RotaryEmbedding

# Relative and absolute rounding error of a stored number.
_ROUNDING = {"F16": (1e-3, 6e-8), "BF16": (8e-3, 0.0)}
_LEAST_MASK = -1e4  # old masks added this, or a lower number, to a score


def _counted(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    yield np.broadcast_to(np.arange(array.shape[-1] if array.ndim else 1), array.shape)


def _zeros(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    yield np.zeros(array.shape)


def _causal(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    for window in dict.fromkeys(layer.window for layer in _layers(config, name)):
        seen = np.tri(*array.shape[-2:])
        if window is not None:  # a local layer of GPT-Neo
            seen = seen - np.tri(*array.shape[-2:], -window)
        yield np.broadcast_to(seen, array.shape)


def _masked(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    if array.size == 1:
        yield np.minimum(array, _LEAST_MASK)


def _rotary(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    mixers = (m for x in _layers(config, name) for m in x.only_side.block.mixer.every_mixer)
    for mixer in mixers:
        if not isinstance(getattr(mixer, "position", None), Rotary):
            continue
        rotary = RotaryEmbedding.from_part(mixer.position)
        latent = isinstance(mixer, LatentAttention)
        width = mixer.qk_rope_head_dim if latent else mixer.head_dim
        dim = width if rotary.dim is None else rotary.dim
        yield rotary.frequencies(dim)
        # Older releases stored the frequencies before scaling.
        yield RotaryEmbedding(rotary.base).frequencies(dim)


def _waves(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    side = _side(config, name)
    if array.ndim != 2 or array.shape[1] % 2:
        return
    if side.position == "sinusoidal":
        parts = _sines(np.arange(len(array)) + side.position_offset, array.shape[1])
        axis = -1 if side.sinusoidal_interleaved else -2
        yield np.stack(parts, axis).reshape(array.shape)
    elif side.position == "rotary":
        yield rotary_sines(side)


def _sines(positions: np.ndarray, width: int, base: float = 10000.0) -> list[np.ndarray]:
    """Return the sines and the cosines of positions, each `(positions, width // 2)`."""
    angles = positions[:, None] * RotaryEmbedding(base).frequencies(width)
    return [np.sin(angles), np.cos(angles)]


def rotary_sines(config: TransformerConfig) -> np.ndarray:
    """Return the sines, then the cosines of a head's angles, `(max_sequence_length, head_dim)`."""
    positions = np.arange(config.max_sequence_length)
    return np.concatenate(_sines(positions, config.head_dim, config.rotary_base), axis=1)


def _counted_waves(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the table of M2M100 from its row 0, in which the row of the padding is zero."""
    side = _side(config, name)
    if side.position == "sinusoidal" and side.sinusoidal_inclusive and array.ndim == 2:
        half = array.shape[1] // 2
        frequencies = 10_000.0 ** -(np.arange(half) / (half - 1))
        angles = np.arange(len(array))[:, None] * frequencies
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
        table[side.position_offset - 1] = 0
        yield table


def _grid(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    side = _side(config, name)
    if side.grid_bias is not None:
        yield grid_index(side.stem.grid(side.stem.image_size))
    for size in {mixer.pattern.size for each in config.sides for mixer in _in_windows(each)}:
        if array.shape == (size**2, size**2):  # others could be too large to compute
            yield window_index(size)


def _log_distances(config: TransformerConfig, name: str, array: np.ndarray) -> Iterator[np.ndarray]:
    mixers = _in_windows(_side(config, name))
    for size, trained in {(m.pattern.size, _trained_size(m.score_bias)) for m in mixers}:
        shape = (1, 2 * size - 1, 2 * size - 1, 2)
        if array.shape == shape:
            yield log_distances(size, trained).reshape(shape)


def _trained_size(bias: WindowBias) -> int | None:
    return getattr(bias, "trained_size", None)


def _in_windows(side: TransformerConfig) -> list[Attention]:
    """Return the mixers of a side that have biases of the distances in windows."""
    mixers = (block.mixer for block in side.only_side.every_block)
    return [m for m in mixers if isinstance(getattr(m, "score_bias", None), WindowBias)]


def _shares_of_points(
    config: TransformerConfig, name: str, array: np.ndarray
) -> Iterator[np.ndarray]:
    levels = getattr(config.stem, "num_maps", 0) + 1
    if array.ndim == 1 and len(array) and len(array) % levels == 0:
        yield np.full(len(array), levels / len(array))


def _shares_of_own_points(
    config: TransformerConfig, name: str, array: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield a share for each point of each map, which may have any number of them."""
    counts: list[int] = []
    if array.ndim == 1:
        while sum(counts) < len(array) and 0 < (share := array[sum(counts)]) <= 1:
            counts.append(round(1 / max(float(share), 1e-6)))
    levels = getattr(config.stem, "num_maps", 0) + 1
    if len(counts) == levels and sum(counts) == len(array):
        yield np.repeat([1 / count for count in counts], counts)


# Functions that yield the values allowed by a config, by pattern of tensor names.
COMPUTED: Mapping[str, Callable[[TransformerConfig, str, np.ndarray], Iterator[np.ndarray]]] = {
    "*position_ids": _counted,
    "*/clip_vision_embedding/vars/1": _counted,  # of KerasHub, as are those with a "/" below
    "*/sig_lip_*_embedding/vars/0": _counted,
    "*.token_type_ids": _zeros,
    "*rotary_emb*.inv_freq": _rotary,
    "*/rotary_embedding/vars/0": _rotary,
    "*.embed_positions.weight": _waves,
    "*.embed_positions.weights": _counted_waves,
    "*attn.bias": _causal,
    "*attention.bias": _causal,
    "*.causal_mask": _causal,
    "*.masked_bias": _masked,
    "*.relative_position_index": _grid,
    "*.relative_coords_table": _log_distances,
    "*.encoder_attn.n_points_scale": _shares_of_points,
    "*.encoder_attn.num_points_scale": _shares_of_own_points,
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
    if expected in (_waves, _counted_waves):  # sines of large angles, which float32 rounds
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


def _layers(config: TransformerConfig, name: str) -> list[TransformerConfig]:
    """Return the configs of the layers that a tensor belongs to, by the number in its name.

    A name without a number is a table for all layers, with the values of one of them.
    """
    side, number = _side(config, name), re.search(r"\.(\d+)\.", name)
    layers = side.layers if number is None else [side.layer(int(number[1]))]
    return list({id(layer): layer for layer in layers}.values())


def _side(config: TransformerConfig, name: str) -> TransformerConfig:
    """Return the side that a tensor belongs to, by its name; otherwise the last side."""
    named = dict(zip(config.side_names, config.sides, strict=True))
    found = (side for side in named if f".{side}." in f".{name}")
    return named[next(found, config.side_names[-1])]
