"""One weight of a layer as described in `structure`: its named axes, and which devices share it."""

import dataclasses
from collections.abc import Mapping

# Normalizations, with the names of their weights.
NORMALIZATIONS = {
    "layer_norm": ("gamma", "beta"),
    "layer_norm_no_bias": ("gamma",),
    "layer_norm_plus_one": ("gamma", "beta"),
    "rms_norm": ("scale",),
    "rms_norm_plus_one": ("scale",),
    "rms_norm_no_weight": (),
    "batch_norm": ("gamma", "beta", "moving_mean", "moving_variance"),
}

# The numbers that the inputs and the outputs of a clipped projection lie between.
BOUNDS = ("input_min", "input_max", "output_min", "output_max")

Shapes = dict[str, tuple[int, ...]]

# Axes that are divided over the devices of one model. A kernel is cut by columns if its last axis
# is among them, by rows if its first axis is, and token tables are cut by vocabulary.
PARALLEL = frozenset({
    "query_heads", "key_heads", "value_heads", "intermediate_dim", "num_experts",
    "shared_expert_dim", "neighbours", "vocabulary_size", "vector_query_heads", "vector_key_heads",
})  # fmt: skip


def grid_distances(grid: tuple[int, int]) -> int:
    """Return the number of distances between two grid positions, plus three for the class token."""
    rows, columns = grid
    return (2 * rows - 1) * (2 * columns - 1) + 3


# Axes over experts or heads, each of which has a vector or a matrix of its own.
_EACH = ("num_experts", "each_head", "each_key_head", "each_state_head")


@dataclasses.dataclass(frozen=True)
class Weight:
    """One weight of a layer.

    Attributes:
        path: str, within the layer.
        axes: tuple of str, the names of its axes.
        kinds: tuple of str, the kinds of models that have it; empty for all.
        shape: tuple of int, once the sizes of its axes are known.
    """

    path: str
    axes: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    def with_shape(self, sizes: Mapping[str, int], folder: str = "") -> "Weight":
        """Return a copy with its shape, from the sizes of axes by name."""
        shape = tuple(sizes[axis] for axis in self.axes)
        return Weight(folder + self.path, self.axes, self.kinds, shape)

    def within(self, folder: str) -> "Weight":
        """Return a copy whose path is in a folder."""
        return Weight(folder + self.path, self.axes, self.kinds, self.shape)

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector, that is a bias or a norm, perhaps for each expert or head."""
        return len([axis for axis in self.axes if axis not in _EACH]) <= 1

    def cut_axis(self, parts: int) -> int | None:
        """Return the axis to cut over `parts` devices, or None if each holds the whole weight.

        If the vocabulary cannot be divided, the other axis is used if possible.
        """
        shared = [number for number, axis in enumerate(self.axes) if axis in PARALLEL]
        numbers = dict.fromkeys([*shared, *range(len(self.axes))]) if shared else ()
        return next((n for n in numbers if self.shape[n] % parts == 0), None)


def spread_axis(shape: tuple[int, ...], cut: int | None, parts: int) -> int | None:
    """Return the axis of a weight to spread over `parts` devices that see different rows.

    It is the longest that they divide, other than `cut`, which the devices of one model divide.
    Vectors, and weights without such an axis, are whole on each device: None.

    Args:
        shape: the shape of the weight.
        cut: the axis that is already divided, see `Weight.cut_axis`, or None.
        parts: number of devices.
    """
    if parts == 1 or len(shape) < 2:
        return None
    fitting = [n for n, size in enumerate(shape) if n != cut and size % parts == 0]
    return max(fitting, key=lambda n: shape[n], default=None)


def weight_of(path: str, *axes: str, kinds: tuple[str, ...] = ()) -> tuple[Weight, ...]:
    """Return a table of one weight; `kinds` are the kinds of models that have it, all if empty."""
    return (Weight(path, axes, kinds),)


def dense_of(
    name: str, inputs: str, outputs: str, bias: bool = True, clipped: bool = False
) -> tuple[Weight, ...]:
    """Return the weights of a projection, those of its bias and its ranges if it has them."""
    kernel = weight_of(f"{name}/kernel", inputs, outputs)
    ranges = tuple(Weight(f"{name}/{bound}", ()) for bound in BOUNDS) if clipped else ()
    return kernel + (weight_of(f"{name}/bias", outputs) if bias else ()) + ranges


def residual_of(name: str, inputs: str, outputs: str, bias: bool = True) -> tuple[Weight, ...]:
    """Return the weights of a feed-forward layer and of the linear layer parallel to it."""
    return (
        *dense_of(f"{name}/intermediate", inputs, "intermediate_dim", bias),
        *dense_of(f"{name}/output", "intermediate_dim", outputs, bias),
        *dense_of(f"{name}/residual", inputs, outputs, bias),
    )


def norm_of(name: str, kind: str, axis: str = "hidden_dim") -> tuple[Weight, ...]:
    """Return the weights of a normalization of a kind in `NORMALIZATIONS`."""
    return tuple(Weight(f"{name}/{part}", (axis,)) for part in NORMALIZATIONS[kind])
