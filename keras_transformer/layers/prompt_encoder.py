"""Prompts as states: points, the corners of boxes, and masks."""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.config.prompted import POINT_KINDS, SCALE, PromptedMasks
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.fusion import conv
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat

# Labels of points beside 0, not on the object, and 1, on it.
PADDING, NO_POINT, FIRST_CORNER, LAST_CORNER = -10, -1, 2, 3


class PromptEncoder(keras.layers.Layer):
    """States of points, of the corners of boxes, of masks, and of the places of an image.

    The state of a place has sines and cosines of random frequencies; a trained vector says whether
    it is on the object, beside it, or a corner of its box.

    Args:
        values: `PromptedMasks`.
        image_size: ints, height and width of the images that points are on.
        grid: ints, rows and columns of their states.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        points: float `(batch, count, 2)`, x and y in pixels.
        labels: int `(batch, count)`: 1 for a point on the object, 0 for one that is not, 2 and 3
            for the upper left and the lower right corner of a box, -1 for the state that follows
            points without a box, and -10 for padding.

    Returns:
        Float `(batch, count, width)`.

    Source: Kirillov et al. 2023, "Segment Anything", appendix A; frequencies: Tancik et al. 2020,
    "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains".
    """

    def __init__(
        self, values: PromptedMasks, image_size: tuple[int, int], grid: tuple[int, int], **kwargs
    ):
        # Else points, and the frequencies, would be rounded to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        self.values, self.image_size, self.grid = values, tuple(image_size), grid
        dtype, channels = self.dtype_policy, values.mask_channels
        self.activation = get_activation(values.prompt_activation)
        self.convolutions = [
            conv(channels // SCALE, 2, "mask_1", dtype, strides=2),
            conv(channels, 2, "mask_2", dtype, strides=2),
            conv(values.width, 1, "mask_3", dtype),
        ]
        with no_inner_remat():
            self.norms = [
                make_normalization("layer_norm", values.epsilon, name=f"mask_norm_{i}", dtype=dtype)
                for i in (1, 2)
            ]

    def build(self, points_shape=None, labels_shape=None):
        width, channels = self.values.width, self.values.mask_channels
        normal = keras.initializers.RandomNormal(stddev=1.0)
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.frequencies = self.add_weight(
            (2, width // 2), normal, name="frequencies", trainable=False
        )
        self.kinds = [
            self.add_weight((1, width), small.clone(), name=f"point_{i}")
            for i in range(POINT_KINDS)
        ]
        self.no_point = self.add_weight((1, width), small.clone(), name="no_point")
        self.no_mask = self.add_weight((1, width), small.clone(), name="no_mask")
        for layer, inputs in zip(self.convolutions, (1, channels // SCALE, channels), strict=True):
            layer.build((None, None, None, inputs))
        for norm, features in zip(self.norms, (channels // SCALE, channels), strict=True):
            norm.build((None, None, None, features))
        self.built = True

    def call(self, points, labels):
        height, width = self.image_size
        sizes = ops.convert_to_tensor([width, height], "float32")
        places = (ops.cast(points, "float32") + 0.5) / sizes
        labels = ops.cast(labels, "int32")[..., None]
        states = self._of_places(places)
        states = ops.where(labels == NO_POINT, ops.cast(self.no_point, "float32")[0], states)
        kinds = ops.clip(labels[..., 0], 0, POINT_KINDS - 1)
        vectors = ops.concatenate([ops.cast(each, "float32") for each in self.kinds])
        added = ops.take(vectors, kinds, axis=0)
        states = ops.where(labels >= 0, states + added, states)
        states = ops.where(labels == PADDING, 0.0, states)
        return ops.cast(states, self.compute_dtype)

    def image_positions(self):
        """Return the states of the places of an image, float `(rows * columns, width)`."""
        rows, columns = self.grid
        y, x = ((np.arange(n, dtype="float32") + 0.5) / n for n in (rows, columns))
        places = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
        return ops.cast(self._of_places(ops.convert_to_tensor(places)), self.compute_dtype)

    def of_masks(self, masks=None, given=None):
        """Return what is added to the states of an image, float `(batch or 1, places or 1, width)`.

        Args:
            masks: float `(batch, 4 * rows, 4 * columns)`, logits. With None no prompt has
                a mask.
            given: bool `(batch,)`, whether each prompt has a mask.
        """
        none = ops.cast(self.no_mask, self.compute_dtype)[None]
        if masks is None:
            return none
        x = ops.expand_dims(ops.cast(masks, self.compute_dtype), -1)
        for layer, norm in zip(self.convolutions, self.norms, strict=False):
            x = self.activation(norm(layer(x)))
        x = self.convolutions[-1](x)
        x = ops.reshape(x, (-1, math.prod(self.grid), self.values.width))
        return ops.where(ops.cast(given, "bool")[:, None, None], x, none)

    def _of_places(self, places):
        """Return the states of places from 0 to 1, float32."""
        turns = ops.matmul(2 * places - 1, ops.cast(self.frequencies, "float32"))
        turns = 2 * math.pi * turns
        return ops.concatenate([ops.sin(turns), ops.cos(turns)], axis=-1)

    def compute_output_shape(self, points_shape, labels_shape=None):
        return (*points_shape[:-1], self.values.width)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call
