"""The neck of an image encoder: two convolutions of the grid of its states."""

import keras
from keras import ops

from keras_transformer.config.prompted import PromptedMasks
from keras_transformer.layers.fusion import conv
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat

_EPSILON = 1e-6


class Neck(keras.layers.Layer):
    """A convolution of each state and one of its neighbours, each with a norm of the features.

    Args:
        values: `PromptedMasks`.
        hidden_dim: int, features of the states.
        grid: ints, rows and columns of the states.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, rows * columns, hidden_dim)`.

    Returns:
        Float `(batch, rows, columns, width)`.

    Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection",
    section 3; Kirillov et al. 2023, "Segment Anything", appendix A.
    """

    def __init__(self, values: PromptedMasks, hidden_dim: int, grid: tuple[int, int], **kwargs):
        super().__init__(**kwargs)
        self.values, self.hidden_dim, self.grid = values, hidden_dim, grid
        dtype = self.dtype_policy
        self.convolutions = [
            conv(values.width, size, f"convolution_{i}", dtype, bias=False)
            for i, size in ((1, 1), (2, 3))
        ]
        with no_inner_remat():
            self.norms = [
                make_normalization("layer_norm", _EPSILON, name=f"norm_{i}", dtype=dtype)
                for i in (1, 2)
            ]

    def build(self, states_shape=None):
        widths = (self.hidden_dim, self.values.width)
        for convolution, norm, width in zip(self.convolutions, self.norms, widths, strict=True):
            convolution.build((None, None, None, width))
            norm.build((None, None, None, self.values.width))
        self.built = True

    def call(self, states):
        x = ops.reshape(states, (-1, *self.grid, self.hidden_dim))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x))
        return x

    def compute_output_shape(self, states_shape):
        return (states_shape[0], *self.grid, self.values.width)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call
