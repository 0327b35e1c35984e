"""The stem of videos: tubes, patches over several frames."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.resampling import cubic_resampling, linear_resampling
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem, patch_product


@keras.saving.register_keras_serializable(package="keras_transformer")
class TubeStem(PositionedStem):
    """Video cut into tubes, each projected linearly, with an optional trained token before them.

    A tube is a patch over several frames. Tubes do not overlap.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `TubeStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `videos`, float `(batch, frames, height, width, channels)`. Learned and
            sinusoidal positions are interpolated if the size differs from the config's.

    Returns:
        `Embedded`: a state for the class token if there is one, then one for each tube: in the
        order of the frames, and of the same frames row by row.

    Source: Arnab et al. 2021, "ViViT: A Video Vision Transformer", section 3.2, "tubelet
    embedding"; without a token: Tong et al. 2022, "VideoMAE", section 3.
    """

    known_sizes_from = 4

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        size = (stem.tube_frames, stem.patch_size, stem.patch_size)
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
        self.class_token = None
        self.make_rest(initializer)

    @property
    def inputs(self):
        channels = self.config.stem.num_channels
        return (Input("videos", "float32", (None, None, None, channels), required=True),)

    def build(self, input_shape=None):
        self.patches.build((None, None, None, None, self.config.stem.num_channels))
        if self.config.stem.class_token:
            shape = (self.config.embedding_dim,)
            self.class_token = self.add_weight(shape, self._embeddings, name="input_class_token")
        super().build(input_shape)

    def call(self, inputs, training=False):
        videos = ops.cast(inputs["videos"], self.compute_dtype)
        stem = self.config.stem
        sizes = zip(videos.shape[1:4], stem.video_size, strict=True)
        frames, height, width = (usual if given is None else given for given, usual in sizes)
        grid = stem.tube_grid((frames, height, width))
        x = self._projected(videos, grid)
        if self.class_token is not None:
            token = ops.cast(self.class_token, x.dtype)
            token = ops.broadcast_to(token, (ops.shape(x)[0], 1, x.shape[-1]))
            x = ops.concatenate([token, x], axis=1)
        x = self.finished(self._on_grid(x, grid), training)
        return Embedded(x, grid=grid if self.config.only_side.on_grid else None)

    def _projected(self, videos, grid):
        """Project the tubes in one product, `(batch, tubes, width)`."""
        stem = self.config.stem
        times, rows, columns = grid
        deep, side, channels = stem.tube_frames, stem.patch_size, stem.num_channels
        x = videos[:, : times * deep, : rows * side, : columns * side]
        x = ops.reshape(x, (-1, deep, rows, side, columns, side * channels))
        x = ops.transpose(x, (0, 2, 4, 1, 3, 5))
        x = ops.reshape(x, (-1, times * rows * columns, deep * side * side * channels))
        return patch_product(x, self.patches)

    def _on_grid(self, x, grid):
        """Add positions to states, the tubes of which form this grid."""
        stem, part = self.config.stem, self.config.only_side.position
        kind = getattr(part, "kind", None)
        if kind == "learned":
            vectors = ops.cast(self.position_embedding.embeddings, "float32")[part.offset :]
        elif kind == "sinusoidal":
            table = self.position_embedding.table(stem.num_positions, x.shape[-1])
            vectors = ops.convert_to_tensor(table)
        else:
            return self.with_positions(x)
        usual = stem.tube_grid(stem.video_size)
        if stem.positions == "frame":
            return x + ops.cast(self._of_frames(vectors, usual[1:], grid)[None], x.dtype)
        if grid != usual:
            first, places = vectors[: stem.num_tokens], vectors[stem.num_tokens :]
            times, rows, columns = (
                cubic_resampling(*pair) for pair in zip(usual, grid, strict=True)
            )
            places = ops.reshape(places, (*usual, -1))
            places = ops.einsum("ai,bj,ck,ijkd->abcd", times, rows, columns, places)
            places = ops.reshape(places, (-1, x.shape[-1]))
            vectors = ops.concatenate([first, places])
        return x + ops.cast(vectors[None], x.dtype)

    def _of_frames(self, vectors, usual: tuple[int, int], grid):
        """Return the vectors of the places of a frame, for each of the frames of a grid."""
        steps, *places = grid
        if tuple(places) != usual:
            rows, columns = (
                linear_resampling(*pair, antialiased=True)
                for pair in zip(usual, places, strict=True)
            )
            vectors = ops.reshape(vectors, (*usual, -1))
            vectors = ops.einsum("ai,bj,ijd->abd", rows, columns, vectors)
            vectors = ops.reshape(vectors, (-1, vectors.shape[-1]))
        return ops.tile(vectors, (steps, 1))
