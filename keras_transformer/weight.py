"""One weight of a layer as `structure` describes it: its axes by name, and who shares them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig

# Each with the names of its weights.
NORMALIZATIONS = {
    "layer_norm": ("gamma", "beta"),
    "layer_norm_no_bias": ("gamma",),
    "rms_norm": ("scale",),
    "rms_norm_plus_one": ("scale",),
    "batch_norm": ("gamma", "beta", "moving_mean", "moving_variance"),
}

Shapes = dict[str, tuple[int, ...]]

# Axes that the devices of one model share. A product whose last axis is one of them is cut by
# columns, one whose first is by rows, and the tables of tokens by their words.
PARALLEL = frozenset({
    "query_heads", "key_heads", "intermediate_dim", "num_experts", "shared_expert_dim",
    "neighbours", "vocabulary_size",
})  # fmt: skip


def grid_distances(grid: tuple[int, int]) -> int:
    """How many distances two places of a grid may have, and three of the token before them."""
    rows, columns = grid
    return (2 * rows - 1) * (2 * columns - 1) + 3


# Axes that are no size of the config by themselves.
_SIZES = {
    "query_heads": lambda config: config.num_heads * config.head_dim,
    "key_heads": lambda config: config.num_key_value_heads * config.head_dim,
    # Of one token, which each device has whole.
    "all_queries": lambda config: config.num_heads * config.head_dim,
    "all_keys": lambda config: config.num_key_value_heads * config.head_dim,
    "all_experts": lambda config: config.num_experts,
    "each_head": lambda config: config.num_heads,
    "each_key_head": lambda config: config.num_key_value_heads,
    "neighbours": lambda config: config.convolution_size * config.hidden_dim,
    # Of positions and what is added to them.
    "embedded": lambda config: (
        config.hidden_dim if config.token_projection else config.embedding_dim
    ),
    "grid_distances": lambda config: grid_distances(config.stem.grid(config.stem.image_size)),
    "one": lambda config: 1,
    "positions": lambda config: config.num_positions + config.position_offset,
    # That a group of a convolution of positions sees.
    "position_features": lambda config: config.embedding_dim // config.stem.position_groups,
}

# Axes over parts that each have a vector or a matrix.
_EACH = ("num_experts", "each_head", "each_key_head")


@dataclasses.dataclass(frozen=True)
class Weight:
    """One weight of a layer.

    Fields:
        path: str, within the layer.
        axes: tuple of str, the names of its axes.
        when: dict, values of the config with which it is there; True and False for any of a truth.
        shape: tuple of int, once it is that of a config.
    """

    path: str
    axes: tuple[str, ...]
    when: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shape: tuple[int, ...] = ()

    def of(self, config: "TransformerConfig", folder: str = "", **sizes: int) -> "Weight":
        """With its shape in a model of this config, `sizes` for those that are not the config's."""
        known = {axis: _SIZES[axis](config) for axis in self.axes if axis in _SIZES} | sizes
        shape = tuple(known[a] if a in known else getattr(config, a) for a in self.axes)
        return dataclasses.replace(self, path=folder + self.path, shape=shape)

    def is_in(self, config: "TransformerConfig") -> bool:
        """Whether a model of this config has it."""
        for name, wanted in self.when.items():
            value = getattr(config, name)
            if (bool(value) if isinstance(wanted, bool) else value) != wanted:
                return False
        return True

    @property
    def is_vector(self) -> bool:
        """Whether it is a bias or a normalization, perhaps of each expert or head, no matrix."""
        return len([axis for axis in self.axes if axis not in _EACH]) <= 1

    def numbers_of_a_token(self, config: "TransformerConfig") -> int:
        """How many of its numbers one token is multiplied with: those of the experts it chose."""
        numbers = math.prod(self.shape)
        if "num_experts" in self.axes:
            return numbers // config.num_experts * config.experts_per_token
        return numbers

    def cut_axis(self, parts: int) -> int | None:
        """The number of the axis that so many devices share, None for a weight that each has.

        A vocabulary that cannot be shared is cut along the other axis if that can be.
        """
        shared = [number for number, axis in enumerate(self.axes) if axis in PARALLEL]
        numbers = dict.fromkeys([*shared, *range(len(self.axes))]) if shared else ()
        return next((n for n in numbers if self.shape[n] % parts == 0), None)


def weight_of(path: str, *axes: str, **when) -> tuple[Weight, ...]:
    """A weight of the values of a config `when` it is there, as a table of one line."""
    return (Weight(path, axes, when),)


def dense_of(name: str, inputs: str, outputs: str, bias: str | None = None, **when):
    """A projection, with a bias if the config has this option, or if it is None."""
    with_bias = when if bias is None else {**when, bias: True}
    return weight_of(f"{name}/kernel", inputs, outputs, **when) + weight_of(
        f"{name}/bias", outputs, **with_bias
    )


def residual_of(name: str, inputs: str, outputs: str) -> tuple[Weight, ...]:
    """A feed-forward layer to another width, and the linear layer beside it."""
    return (
        *dense_of(f"{name}/intermediate", inputs, "intermediate_dim"),
        *dense_of(f"{name}/output", "intermediate_dim", outputs),
        *dense_of(f"{name}/residual", inputs, outputs),
    )


def norm_of(name: str, axis: str = "hidden_dim", **when) -> tuple[Weight, ...]:
    """A normalization of the kind that the config says."""
    return tuple(
        weight
        for kind, parts in NORMALIZATIONS.items()
        for part in parts
        for weight in weight_of(f"{name}/{part}", axis, normalization=kind, **when)
    )


def norms_of(sublayer: str, of_output: Mapping[str, Any] = {}, **when) -> tuple[Weight, ...]:
    """The normalizations of a sub-layer: in front of it or behind the sum, and of its output."""
    return (
        *norm_of(f"{sublayer}_norm", normalize_first=True, **when),
        *norm_of(f"{sublayer}_norm", normalize_first=False, normalize_output=False, **when),
        *norm_of(f"{sublayer}_output_norm", normalize_output=True, **of_output),
    )
