"""Stems of images: patches, and convolutions."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config import GridRotary, TransformerConfig
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.resampling import (
    antialiased_cubic_resampling,
    cubic_resampling,
)
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem, patch_product


class ImageStem(PositionedStem):
    """Base class of image stems, with positions on a grid that fit images of any size.

    Args:
        config: `TransformerConfig` of a side whose `stem` is an `ImageStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.
    """

    known_sizes_from = 4

    @property
    def inputs(self):
        channels = self.config.stem.num_channels
        return (Input("images", "float32", (None, None, channels), required=True),)

    def on_grid(self, x, tokens: int, size: tuple[int, int]):
        """Add positions to the states of an image, whose first `tokens` are not on the grid."""
        table, stem = self.position_embedding, self.config.stem
        if self.config.position != "learned" or stem.grid(size) == stem.grid(self.position_size):
            return self.with_positions(x)
        vectors = ops.cast(table.embeddings, "float32")[table.offset :]
        vectors = self.interpolated(vectors, tokens, size)
        return x + ops.cast(vectors[None], x.dtype)

    @property
    def position_size(self) -> tuple[int, int]:
        """Height and width of the images that positions are defined for."""
        stem = self.config.stem
        height, width = getattr(stem, "position_size", None) or stem.image_size
        return height, width

    def interpolated(self, table, tokens: int, size: tuple[int, int]):
        """Interpolate positions to the grid of an image.

        Args:
            table: float32 `(positions, dim)`, those of `tokens` states, then those of the grid of
                the config's image size, row by row, then any others.
            tokens: int, the number of states before the grid.
            size: ints, height and width of the image.
        """
        usual, grid = (self.config.stem.grid(each) for each in (self.position_size, size))
        if grid == usual:
            return table
        antialiased = getattr(self.config.stem, "interpolation", "") == "bicubic_antialiased"
        resampled = antialiased_cubic_resampling if antialiased else cubic_resampling
        rows, columns = (resampled(*pair) for pair in zip(usual, grid, strict=True))
        end = tokens + usual[0] * usual[1]
        places = ops.reshape(table[tokens:end], (*usual, -1))
        places = ops.einsum("ai,bj,ijd->abd", rows, columns, places)
        places = ops.reshape(places, (grid[0] * grid[1], -1))
        return ops.concatenate([table[:tokens], places, table[end:]])

    def image_size(self, images) -> tuple[int, int]:
        """Return height and width of the images, or of the config while they are unknown."""
        sizes = zip(images.shape[1:3], self.config.stem.image_size, strict=True)
        height, width = (given or usual for given, usual in sizes)
        return height, width


@keras.saving.register_keras_serializable(package="keras_transformer")
class PatchStem(ImageStem):
    """Image cut into patches, each projected linearly, with trained tokens before and after them.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `PatchStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`. Learned positions are
            interpolated if the size differs from the config's.

    Returns:
        `Embedded`: a state for each token of the stem, then one for each patch, row by row, then
        those of the detection tokens. For a rotation over the grid, `position_ids` are the `places`
        of these states.

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1; the second token:
    Touvron et al. 2020, "Training data-efficient image transformers", section 4; registers: Darcet
    et al. 2023, "Vision Transformers Need Registers", section 2.2; detection tokens: Fang et al.
    2021, "You Only Look at One Sequence", section 3.1.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        self.patches = keras.layers.Conv2D(
            config.embedding_dim,
            stem.patch_sides,
            strides=stem.stride if stem.patch_width is None else stem.patch_sides,
            data_format="channels_last",
            use_bias=stem.use_bias,
            kernel_initializer=kernel_initializer(config, initializer),
            name="input_patches",
            dtype=self.dtype_policy,
        )
        self.tokens = []
        self.registers = self.detection_tokens = self.mid_positions = None
        self.make_rest(initializer)

    def build(self, input_shape=None):
        stem = self.config.stem
        self.patches.build((None, None, None, stem.num_channels))
        for name in ("class_token", "distillation_token"):
            if getattr(stem, name):
                token = self.add_weight(
                    (self.config.embedding_dim,), self._embeddings, name=f"input_{name}"
                )
                self.tokens.append(token)
        if stem.num_registers:
            shape = (stem.num_registers, self.config.embedding_dim)
            self.registers = self.add_weight(shape, self._embeddings, name="input_registers")
        if stem.num_detection_tokens:
            shape = (stem.num_detection_tokens, self.config.embedding_dim)
            self.detection_tokens = self.add_weight(
                shape, self._embeddings, name="input_detection_tokens"
            )
        if stem.mid_positions:
            shape = (stem.mid_positions, 1, stem.num_states, self.config.embedding_dim)
            self.mid_positions = self.add_weight(
                shape, self._embeddings, name="input_mid_positions"
            )
        super().build(input_shape)

    def call(self, inputs, training=False):
        images = ops.cast(inputs["images"], self.compute_dtype)
        size = self.image_size(images)
        stem = self.config.stem
        x = self.patch_states(images, size, inputs, training)
        count, grid = len(self.tokens), stem.grid(size)
        if self.tokens:
            tokens = ops.stack([ops.cast(token, x.dtype) for token in self.tokens])
            x = ops.concatenate([_for_each(x, tokens), x], axis=1)
        if self.detection_tokens is not None:
            tokens = _for_each(x, ops.cast(self.detection_tokens, x.dtype))
            x = ops.concatenate([x, tokens], axis=1)
        x = self.on_grid(x, count, size)
        if self.registers is not None:
            registers = _for_each(x, ops.cast(self.registers, x.dtype))
            x = ops.concatenate([x[:, :count], registers, x[:, count:]], axis=1)
        side = self.config.only_side
        attention = side.attention
        on_grid = attention is not None and isinstance(attention.position, GridRotary)
        positions = places(grid, self.config.stem.num_tokens) if on_grid else None
        grid = grid if self.config.grid_bias or side.on_grid else None
        added = ()
        if self.mid_positions is not None:
            tables = ops.cast(self.mid_positions, "float32")
            tables = [tables[i, 0] for i in range(self.config.stem.mid_positions)]
            added = tuple(self.interpolated(each, count, size)[None] for each in tables)
            added = tuple(ops.cast(each, x.dtype) for each in added)
        states = self.finished(x, training)
        return Embedded(states, position_ids=positions, grid=grid, added=added)

    def patch_states(self, images, size: tuple[int, int], inputs, training: bool = False):
        """Return the projected patches of images, `(batch, patches, width)`, row by row.

        `inputs` are those of the call, for a stem that has further ones.
        """
        stem = self.config.stem
        if stem.stride == stem.patch_size and not stem.padding:
            return self._projected(images, size)
        around = (stem.padding, stem.padding)
        x = ops.pad(images, ((0, 0), around, around, (0, 0))) if stem.padding else images
        x = self.patches(x)
        return ops.reshape(x, (-1, x.shape[1] * x.shape[2], x.shape[3]))

    def _projected(self, images, size):
        """Project patches that do not overlap in one product, `(batch, patches, width)`."""
        rows, columns = self.config.stem.grid(size)
        (high, wide), channels = self.config.stem.patch_sides, self.config.stem.num_channels
        if self.config.stem.whole_patches:
            below, right = rows * high - size[0], columns * wide - size[1]
            images = ops.pad(images, ((0, 0), (0, below), (0, right), (0, 0)))
        images = images[:, : rows * high, : columns * wide]
        x = ops.reshape(images, (-1, rows, high, columns, wide, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        x = ops.reshape(x, (-1, rows * columns, high * wide * channels))
        return patch_product(x, self.patches)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolutionStem(ImageStem):
    """Convolutions over an image, each with activation and max pooling; each place is a state.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `ConvolutionStemConfig`.
        initializer: initializer of all weights. Defaults to He's normal initializer.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`.

    Returns:
        `Embedded`: a state for each place after the last pooling, row by row.

    Source: Hassani et al. 2021, "Escaping the Big Data Paradigm with Compact Transformers",
    section 3.2.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        self.activation = get_activation(stem.activation)
        self.convolutions = [
            keras.layers.Conv2D(
                width,
                stem.kernel_size,
                strides=step,
                padding="same",
                data_format="channels_last",
                use_bias=stem.use_bias,
                kernel_initializer=initializer or "he_normal",
                name=f"input_convolution_{i}",
                dtype=self.dtype_policy,
            )
            for i, (width, step) in enumerate(
                zip((*stem.filters, config.embedding_dim), stem.strides, strict=True)
            )
        ]
        self.make_rest(initializer)

    def build(self, input_shape=None):
        stem = self.config.stem
        for layer, channels in zip(
            self.convolutions, (stem.num_channels, *stem.filters), strict=True
        ):
            layer.build((None, None, None, channels))
        super().build(input_shape)

    def call(self, inputs, training=False):
        stem = self.config.stem
        x = inputs["images"]
        size = self.image_size(x)
        pools = zip(stem.pool_sizes, stem.pool_strides, strict=True)
        for layer, (pool_size, step) in zip(self.convolutions, pools, strict=True):
            x = self.activation(layer(x))
            if (pool_size, step) != (1, 1):
                x = ops.max_pool(x, pool_size, step, "same", data_format="channels_last")
        rows, columns = stem.grid(size)
        x = ops.reshape(x, (-1, rows * columns, self.config.embedding_dim))
        return Embedded(self.finished(self.on_grid(x, 0, size), training))


def _for_each(x, tokens):
    """Return the vectors of tokens `(count, width)` for each image of a batch."""
    return ops.broadcast_to(tokens[None], (ops.shape(x)[0], *tokens.shape))


def places(grid: tuple[int, int], tokens: int):
    """Return where each state of an image is, as `GridRotaryEmbedding` takes it.

    Args:
        grid: ints, rows and columns of the patches.
        tokens: int, number of states before the patches. Each is the only place of its own grid.

    Returns:
        Int32 `(1, tokens + rows * columns, 4)`: row, column, and the rows and columns of the grid.
    """
    found = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2)
    found = np.concatenate([found, np.broadcast_to(grid, found.shape)], axis=-1)
    found = np.concatenate([np.broadcast_to([0, 0, 1, 1], (tokens, 4)), found])
    return ops.convert_to_tensor(found[None], "int32")
