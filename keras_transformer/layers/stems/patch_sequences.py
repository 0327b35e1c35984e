"""The stem of images of any size, as sequences of patches."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.indexing import look_up
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem, patch_product


@keras.saving.register_keras_serializable(package="keras_transformer")
class PatchSequenceStem(PositionedStem):
    """Patches of images of any size, each projected linearly, with its row and column.

    The images of a batch have as many patches as the largest: the others are padded. Which patches
    follow each other is up to the caller, see `processors.PatchSequenceProcessor`.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `PatchSequenceStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `patches`, float `(images, length, values)`, the values of a patch by frame,
            row, column and channel; and `patch_positions`, int `(images, length, 2)`, the row and
            the column of each patch, -1 for padding.

    Returns:
        `Embedded`: a state for each patch, the mask of the real ones, and their rows and columns as
        positions.

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1; Dehghani et al. 2023, "Patch n' Pack: NaViT";
    trained positions: Bai et al. 2025, "Qwen3-VL Technical Report"; antialiased: Tschannen et al.
    2025, "SigLIP 2", section 2.4.2; of rows and columns: the published code of Gemma 4.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        size = (stem.num_frames, stem.patch_size, stem.patch_size)
        self.patches = keras.layers.Conv3D(
            config.embedding_dim,
            size,
            strides=size,
            data_format="channels_last",
            use_bias=stem.use_bias,
            kernel_initializer=kernel_initializer(config, initializer),
            name="input_patches",
            dtype=self.dtype_policy,
        )
        self.make_rest(initializer)

    @property
    def inputs(self):
        return (
            Input("patches", "float32", (None, self.config.stem.num_values), required=True),
            Input("patch_positions", "int32", (None, 2), required=True),
        )

    def build(self, input_shape=None):
        side = self.config.stem.position_grid
        self.patches.build((None, None, None, None, self.config.stem.num_channels))
        self.grid = None
        if side is not None:
            shape = (side**2, self.config.embedding_dim)
            self.grid = self.add_weight(shape, self._embeddings, name="input_positions")
        self.axes, count = None, self.config.stem.axis_positions
        if count is not None:  # of columns, then of rows
            shape = (2, count, self.config.embedding_dim)
            self.axes = self.add_weight(shape, self._embeddings, name="input_axis_positions")
        super().build(input_shape)

    def call(self, inputs, training=False):
        x = ops.cast(inputs["patches"], self.compute_dtype)
        positions = ops.cast(inputs["patch_positions"], "int32")
        real = positions[..., 0] >= 0
        x = patch_product(x, self.patches)
        if self.grid is not None:
            x = x + ops.cast(self._on_grid(positions), x.dtype)
        if self.axes is not None:
            x = x + ops.cast(self._on_axes(positions), x.dtype)
        x = self.finished(x, training)
        return Embedded(x, padding_mask=real, position_ids=ops.maximum(positions, 0))

    def mask_of(self, inputs, length):
        return ops.cast(inputs["patch_positions"], "int32")[..., 0] >= 0

    def _on_axes(self, positions):
        """Return the sum of the vectors of each patch's column and row, `(images, length, dim)`."""
        count, width = self.config.stem.axis_positions, self.config.embedding_dim
        places = ops.clip(positions, 0, count - 1)
        numbers = ops.stack([places[..., 1], places[..., 0] + count], axis=-1)
        table = ops.reshape(ops.convert_to_tensor(self.axes), (2 * count, width))
        return ops.sum(look_up(table, numbers), axis=-2)

    def _on_grid(self, positions):
        """Interpolate the trained positions at each patch, `(images, length, dim)`."""
        side, table = self.config.stem.position_grid, ops.cast(self.grid, "float32")
        last = ops.max(positions, axis=1, keepdims=True)
        if self.config.stem.interpolation == "linear_antialiased":
            rows, columns = (self._shares(positions[..., i], last[..., i], side) for i in range(2))
            both = rows[..., :, None] * columns[..., None, :]
            return ops.matmul(ops.reshape(both, (*ops.shape(positions)[:2], side**2)), table)
        # The first and the last patch of an image are at the ends of the grid.
        # The order of operations is that of the published models: a place may be next to a node.
        places = ops.cast(ops.maximum(positions, 0) * (side - 1), "float32")
        places = places / ops.cast(ops.maximum(last, 1), "float32")
        before = ops.floor(places)
        share, before = places - before, ops.cast(before, "int32")
        added = 0.0
        for down in (0, 1):
            for right in (0, 1):
                corner = ops.minimum(
                    before + ops.convert_to_tensor([down, right], "int32"), side - 1
                )
                shares = ops.stack(
                    [
                        share[..., i] if step else 1 - share[..., i]
                        for i, step in enumerate((down, right))
                    ]
                )
                number = corner[..., 0] * side + corner[..., 1]
                added += ops.take(table, number, axis=0) * ops.prod(shares, axis=0)[..., None]
        return added

    def _shares(self, places, last, side: int):
        """Return the share of each row of the grid in each patch, `(images, length, side)`.

        It is a triangle around the patch, as wide as the distance of two patches on the grid, and
        at least as wide as that of two rows.

        Args:
            places: int `(images, length)`, row (or column) of each patch.
            last: int `(images, 1)`, that of the last patch.
            side: int, rows of the grid.
        """
        step = side / ops.cast(ops.maximum(last, 0) + 1, "float32")
        centers = (ops.cast(ops.maximum(places, 0), "float32") + 0.5) * step
        distances = ops.arange(side, dtype="float32") + 0.5 - centers[..., None]
        shares = ops.maximum(1 - ops.abs(distances) / ops.maximum(step, 1.0)[..., None], 0.0)
        return shares / ops.sum(shares, axis=-1, keepdims=True)
