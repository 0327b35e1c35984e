"""Layers with the gated delta rule in GGUF files: Qwen3.5.

llama.cpp has the heads of values in another order, and the decay as it is used.
"""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.decoders.gated_delta import SIZES, delta_of
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import GatedDelta, TransformerConfig

_OURS, _THEIRS = "decoder/layer_{i}/", "blk.{i}."
_KEYS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
_INNER, _EVERY = "ssm.inner_size", "full_attention_interval"
# Sections of the rotated features are for the rows and columns of images, which are not read.
KEYS = (*_KEYS.values(), _INNER, _EVERY, "rope.dimension_sections", "feed_forward_length")


def read_delta(metadata: Metadata) -> dict[str, Any]:
    """Return the published values of the gated delta rule, and which layers have it."""
    values = {name: metadata.needed(key) for name, key in _KEYS.items()}
    heads, inner = values["linear_num_value_heads"], metadata.needed(_INNER)
    if inner % heads:
        raise ValueError(f"{metadata.header.path}: {inner} features are not {heads} heads.")
    every = metadata.whole(_EVERY, 4)
    return {**values, "linear_value_head_dim": inner // heads, "full_attention_interval": every}


def write_delta(config: TransformerConfig) -> dict[str, Any]:
    """Return the keys of a config's gated delta rule, and of the layers that have it.

    Raises ValueError if the layers with attention are not at equal distances.
    """
    mixer, blocks = delta_of(config), [*config.last_side.blocks]
    linear = [isinstance(block.mixer, GatedDelta) for block in blocks]
    every = next((i + 1 for i, delta in enumerate(linear) if not delta), 0)
    if mixer is None or every == 0 or linear != [bool((i + 1) % every) for i in range(len(blocks))]:
        raise ValueError("attention is there in every layer of a fixed number.")
    values = {key: getattr(mixer, SIZES[name][0]) for name, key in _KEYS.items()}
    return {**values, _INNER: mixer.num_value_heads * mixer.value_dim, _EVERY: every}


@dataclasses.dataclass(frozen=True)
class _OfValues(WeightLine):
    """A tensor whose axis of values, or the last part of it, has another order of heads.

    Several heads of values share a head of keys. Published models store all value heads of the
    first key head, then those of the second; GGUF files store the first value head of each key
    head, then the second of each.
    """

    heads: tuple[int, int] = (1, 1)  # of keys, and of values for each
    axis: int = -1  # of ours

    def split(self, array: np.ndarray) -> np.ndarray:
        found = super().split(array)
        last = self.part is None or self.part[0] == self.part[1] - 1
        return self._ordered(found, self.heads[::-1]) if last else found

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        return super().join([*arrays[:-1], self._ordered(arrays[-1], self.heads)])

    def _ordered(self, array: np.ndarray, heads: tuple[int, int]) -> np.ndarray:
        moved = np.moveaxis(array, self.axis, 0)
        turned = moved.reshape(*heads, -1, *moved.shape[1:]).swapaxes(0, 1).reshape(moved.shape)
        return np.moveaxis(turned, 0, self.axis)


class _Decay(_OfValues):
    """The negative exponential of the decay."""

    def split(self, array):
        if not (array < 0).all():
            raise ValueError(f"The tensor {self.theirs!r} must have negative numbers alone.")
        return super().split(np.log(-array))

    def join(self, arrays):
        return -np.exp(super().join(arrays))


def delta_lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the gated delta rule, and of queries with their gate."""
    attention, lines = config.last_side.attention, ()
    for place, name in enumerate(("query", "gate") if attention is not None else ()):
        for end, its in (("kernel", "weight"), ("bias", "bias")):
            line = WeightLine(
                f"{_OURS}self_attention/{name}/{end}",
                f"{_THEIRS}attn_q.{its}",
                part=(place, 2),
                sizes=(attention.head_dim,) * 2,
                groups=attention.num_heads,
                transpose=end == "kernel",
            )
            lines += (line,)
    mixer = delta_of(config)
    if mixer is None:
        return lines
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
    heads = (mixer.num_key_heads, mixer.num_value_heads // mixer.num_key_heads)
    ours, options = f"{_OURS}mixer/", {"transpose": True, "heads": heads}
    for end, its in (("", "attn_qkv"), ("_convolution", "ssm_conv1d")):
        for place, name in enumerate(("query", "key", "value")):
            line = _OfValues(
                f"{ours}{name}{end}/kernel",
                f"{_THEIRS}{its}.weight",
                part=(place, 3),
                sizes=(keys, keys, values),
                **options,
            )
            lines += (line,)
    denses = {"gate": "attn_gate", "strength": "ssm_beta", "step": "ssm_alpha"}
    return (
        *lines,
        *(
            _OfValues(f"{ours}{mine}/kernel", f"{_THEIRS}{its}.weight", **options)
            for mine, its in denses.items()
        ),
        _OfValues(f"{ours}output/kernel", f"{_THEIRS}ssm_out.weight", axis=0, **options),
        _OfValues(f"{ours}step_bias", f"{_THEIRS}ssm_dt.bias", heads=heads),
        _Decay(f"{ours}decay", f"{_THEIRS}ssm_a", heads=heads),
        WeightLine(f"{ours}norm/scale", f"{_THEIRS}ssm_norm.weight"),
    )
