"""The stems of frames whose convolutions are over frequencies too."""

import functools

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.mix_feed_forward import GridConvolution
from keras_transformer.layers.normalization import (
    CumulativeGroupNormalization,
    make_normalization,
)
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.frames import count_real, first_places
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem


class HalvedFrameStem(PositionedStem):
    """Base class of stems whose convolutions each halve the frames and the frequency bands."""

    @property
    def inputs(self):
        return (
            Input("frames", "float32", (None, self.config.stem.num_bins), required=True),
            Input("padding_mask", "bool", (None,)),
        )

    def mask_of_states(self, padding_mask, length):
        """Return the mask of `length` states, bool `(batch, length)`, from the frames' mask."""
        if padding_mask is None:
            return None
        return first_places(self.config.stem.count_states(count_real(padding_mask)), length)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SubsampledFrameStem(HalvedFrameStem):
    """Convolutions that halve the frames and the frequency bands, and a projection to the states.

    After the first one, a convolution is of each feature by itself, and a linear layer mixes the
    features of a place. No state of a recording depends on its padding.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `SubsampledFrameStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `frames`, float `(batch, length, num_bins)`, and optionally `padding_mask`,
            bool `(batch, length)`, True for the frames of the recording; padding follows them.

    Returns:
        `Embedded`: one state for `2 ** num_layers` frames, rounded up, with padding masked.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.layers.stems import SubsampledFrameStem

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="none",
        stem={"kind": "subsampled_frames", "num_bins": 8, "filters": 4, "num_layers": 2},
    )
    embedded = SubsampledFrameStem(config)({"frames": np.ones((1, 10, 8), "float32")})
    assert embedded.states.shape == (1, 3, 16)
    ```

    Source: Rekesh et al. 2023, "Fast Conformer with Linearly Scalable Attention for Efficient
    Speech Recognition", section 2.1, https://arxiv.org/abs/2305.05084.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem = config.stem
        kernels = {
            "kernel_initializer": kernel_initializer(config, initializer),
            "dtype": self.dtype_policy,
        }
        with no_inner_remat():
            self.convolution = keras.layers.Conv2D(
                stem.filters,
                stem.kernel_size,
                strides=2,
                data_format="channels_last",
                name="input_convolution",
                **kernels,
            )
            self.pairs = [
                (
                    GridConvolution(
                        stem.kernel_size, 2, name=f"input_depthwise_{i}", dtype=self.dtype_policy
                    ),
                    Dense(stem.filters, name=f"input_pointwise_{i}", **kernels),
                )
                for i in range(1, stem.num_layers)
            ]
            self.projection = Dense(config.embedding_dim, name="input_projection", **kernels)
        self.make_rest(initializer)

    def build(self, input_shape=None):
        stem = self.config.stem
        self.convolution.build((None, None, stem.num_bins, 1))
        for depthwise, pointwise in self.pairs:
            depthwise.build((None, None, None, stem.filters))
            pointwise.build((None, None, None, stem.filters))
        width = stem.filters * stem.count_states(stem.num_bins)
        self.projection.build((None, None, width))
        super().build(input_shape)

    def call(self, inputs, training=False):
        x = ops.cast(inputs["frames"], self.compute_dtype)[..., None]
        mask = inputs.get("padding_mask")
        real = None if mask is None else count_real(mask)
        # Equal padding on both sides: "same" would differ for an even length.
        around = (self.config.stem.kernel_size // 2,) * 2
        x = self.convolution(ops.pad(_masked(x, real), ((0, 0), around, around, (0, 0))))
        for depthwise, pointwise in self.pairs:
            real = _halved(real)
            x = _masked(depthwise(ops.relu(_masked(x, real))), _halved(real))
            x = pointwise(x)
        x = _masked(x, _halved(real))
        # The bands of a feature side by side, as published models flatten a map.
        x = ops.transpose(ops.relu(x), (0, 1, 3, 2))
        batch, length, *width = ops.shape(x)
        x = self.projection(ops.reshape(x, (batch, length, width[0] * width[1])))
        if self.config.stem.scaled:
            x = x * self.config.embedding_dim**0.5
        mask = self.mask_of_states(mask, length)
        return Embedded(self.positioned(x, training=training), padding_mask=mask)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolvedFrameStem(HalvedFrameStem):
    """Convolutions that halve the frames and the bands, each with a norm, and a projection.

    The norm is over the features of a place, or over all numbers of a frame and of those before it,
    before the activation. No state of a recording depends on its padding.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `ConvolvedFrameStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `frames`, float `(batch, length, num_bins)`, and optionally `padding_mask`,
            bool `(batch, length)`, True for the frames of the recording; padding follows them.

    Returns:
        `Embedded`: one state for two frames to the power of the number of convolutions, rounded up,
        with padding masked.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.layers.stems import ConvolvedFrameStem

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="none",
        stem={"kind": "convolved_frames", "num_bins": 8, "filters": [4, 2]},
    )
    embedded = ConvolvedFrameStem(config)({"frames": np.ones((1, 10, 8), "float32")})
    assert embedded.states.shape == (1, 3, 16)
    ```

    Source: Google DeepMind 2025 and 2026, the published code of Gemma 3n and of Gemma 4.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        kernels = {
            "use_bias": False,
            "kernel_initializer": kernel_initializer(config, initializer),
            "dtype": self.dtype_policy,
        }
        with no_inner_remat():
            self.convolutions = [
                keras.layers.Conv2D(
                    filters,
                    3,
                    strides=2,
                    data_format="channels_last",
                    name=f"input_convolution_{i}",
                    **kernels,
                )
                for i, filters in enumerate(config.stem.filters)
            ]
            epsilon = config.stem.norm_epsilon or config.normalization_epsilon
            make = functools.partial(make_normalization, "layer_norm_no_bias")
            if config.stem.norm == "cumulative_group":
                make = CumulativeGroupNormalization
            self.norms = [
                make(epsilon=epsilon, name=f"input_norm_{i}", dtype=self.dtype_policy)
                for i in range(len(config.stem.filters))
            ]
            self.projection = Dense(config.embedding_dim, name="input_projection", **kernels)
        self.make_rest(initializer)

    def build(self, input_shape=None):
        stem, before = self.config.stem, 1
        for filters, convolution, norm in zip(
            stem.filters, self.convolutions, self.norms, strict=True
        ):
            convolution.build((None, None, None, before))
            norm.build((None, None, None, filters))
            before = filters
        self.projection.build((None, None, before * stem.count_states(stem.num_bins)))
        super().build(input_shape)

    def call(self, inputs, training=False):
        x = ops.cast(inputs["frames"], self.compute_dtype)[..., None]
        mask = inputs.get("padding_mask")
        real = None if mask is None else count_real(mask)
        # Equal padding on both sides: Keras's "same" would differ for an even length.
        around = (1, 1) if self.config.stem.padding == "same" else (0, 2)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = ops.pad(_masked(x, real), ((0, 0), around, (1, 1), (0, 0)))
            x = ops.relu(norm(convolution(x)))
            real = _halved(real)
        batch, length, *width = ops.shape(x)
        x = self.projection(ops.reshape(x, (batch, length, width[0] * width[1])))
        mask = self.mask_of_states(mask, length)
        return Embedded(self.positioned(x, training=training), padding_mask=mask)


def _halved(real):
    """Return how many frames a convolution makes of `real` ones, rounded up."""
    return None if real is None else -(-real // 2)


def _masked(x, real):
    """Return a map `(batch, frames, bands, features)` with zeros in place of padding."""
    if real is None:
        return x
    return ops.where(first_places(real, ops.shape(x)[1])[..., None, None], x, ops.zeros_like(x))
