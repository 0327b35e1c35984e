"""Parts between the stages of an encoder of images or videos, most of which merge patches."""

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["ConcatenatedMerging", "Merging", "OverlappingMerging", "TimePositions"]


@part
class Merging(Part):
    """Base class of mergings: patches of a grid become fewer and wider, and a new stage begins."""

    hidden_dim: int = option("width of the states from this layer on.", least=1, most=2**20)
    input_dim: int | None = option(
        "width of the states before. Defaults to the width of the layer before.",
        None,
        least=1,
        most=2**20,
    )

    def grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns that merging leaves of a grid."""
        raise NotImplementedError

    def weights(self, kind: str) -> tuple[Weight, ...]:
        """Return the weights, with norms of the block's kind."""
        raise NotImplementedError

    @property
    def sizes(self) -> dict[str, int | None]:
        """Sizes of the weight axes that the side does not define, by name."""
        return {"merging_input_dim": self.input_dim}


@part
class OverlappingMerging(Merging, kind="overlapping"):
    """A norm of the stage before, a convolution with a stride, and another norm (SegFormer).

    Example:
    ```python
    from keras_transformer.config import OverlappingMerging

    assert OverlappingMerging(hidden_dim=64).grid((9, 12)) == (5, 6)
    ```

    Source: Xie et al. 2021, "SegFormer", section 3.1, https://arxiv.org/abs/2105.15203.
    """

    layer = "keras_transformer.layers.merging:OverlappingPatchMerging"

    kernel_size: int = option(
        "rows and columns of patches that become one, an odd number; half of it is padded with "
        "zeros on each side.",
        3,
        least=1,
        most=2**7,
    )
    stride: int = option("patches from one to the next.", 2, least=1, most=2**7)

    def check(self):
        if self.kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd, received {self.kernel_size}.")

    def grid(self, grid):
        rows, columns = ((n - 1) // self.stride + 1 for n in grid)
        return rows, columns

    def weights(self, kind):
        size = ("merging_size", "merging_size")
        return (
            *norm_of("merging/input_norm", kind, "merging_input_dim"),
            *weight_of("merging/convolution/kernel", *size, "merging_input_dim", "hidden_dim"),
            *weight_of("merging/convolution/bias", "hidden_dim"),
            *norm_of("merging/norm", kind),
        )

    @property
    def sizes(self):
        return {**super().sizes, "merging_size": self.kernel_size}


@part
class ConcatenatedMerging(Merging, kind="concatenated"):
    """Two by two patches are concatenated, normalized, and projected without a bias (Swin).

    Swin V2 normalizes behind the projection. Patches are concatenated column by column. A grid with
    an odd number of rows or columns is padded with zeros below and on the right.

    Example:
    ```python
    from keras_transformer.config import ConcatenatedMerging

    assert ConcatenatedMerging(hidden_dim=192).grid((7, 12)) == (4, 6)
    ```

    Source: Liu et al. 2021, "Swin Transformer", section 3.1, https://arxiv.org/abs/2103.14030.
    """

    layer = "keras_transformer.layers.merging:ConcatenatedPatchMerging"

    norm_place: str = option(
        'what is normalized: the concatenated patches, `"before"` the projection, or their sums, '
        '`"behind"` it (Swin V2).',
        "before",
        choices=("before", "behind"),
    )

    def grid(self, grid):
        rows, columns = (-(-n // 2) for n in grid)
        return rows, columns

    def weights(self, kind):
        width = "concatenated_dim" if self.norm_place == "before" else "hidden_dim"
        return (
            *norm_of("merging/norm", kind, width),
            *dense_of("merging/projection", "concatenated_dim", "hidden_dim", bias=False),
        )

    @property
    def sizes(self):
        concatenated = None if self.input_dim is None else 4 * self.input_dim
        return {**super().sizes, "concatenated_dim": concatenated}


@part
class TimePositions(Merging, kind="time_positions"):
    """A norm of the stage before, and trained positions of the steps in time; nothing is merged.

    The stage before saw each frame alone, and the next one compares the frames (VideoPrism).

    Example:
    ```python
    from keras_transformer.config import TimePositions

    assert TimePositions(hidden_dim=64, steps=16).grid((16, 9, 9)) == (16, 9, 9)
    ```

    Source: Zhao et al. 2024, "VideoPrism: A Foundational Visual Encoder for Video Understanding",
    section 3.3, https://arxiv.org/abs/2402.13217.
    """

    layer = "keras_transformer.layers.merging:AddedTimePositions"

    steps: int = option(
        "steps in time that have positions, interpolated for other numbers. 0 adds no positions: "
        "a norm alone.",
        0,
        least=0,
        most=2**15,
    )

    def check(self):
        if self.input_dim not in (None, self.hidden_dim):
            raise ValueError(
                f"`TimePositions` keep the width of the states, received {self.input_dim} before "
                f"and {self.hidden_dim} behind."
            )

    def grid(self, grid):
        return grid

    def weights(self, kind):
        norm = norm_of("merging/input_norm", kind)
        table = weight_of("merging/positions", "time_steps", "hidden_dim")
        return norm + (table if self.steps else ())

    @property
    def sizes(self):
        return {**super().sizes, "time_steps": self.steps}
