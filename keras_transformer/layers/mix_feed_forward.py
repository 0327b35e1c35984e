"""A feed-forward layer with a convolution over the grid of patches."""

import keras
from keras import ops

from keras_transformer.config import MixFeedForward as MixFeedForwardPart
from keras_transformer.layers.feed_forward import FeedForward, activated
from keras_transformer.layers.merging import as_map, as_states


class GridConvolution(keras.layers.Layer):
    """Convolve each feature by itself over a grid, with zeros around it.

    Args:
        size: int, rows and columns of the kernel, an odd number.
        stride: int, rows and columns from one place of the result to the next.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, rows, columns, dim)`; so is the result, whose rows and columns are
            divided by the stride and rounded up.
    """

    def __init__(self, size: int, stride: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.size, self.stride = size, stride

    def build(self, inputs_shape):
        dim, areas = inputs_shape[-1], self.size**2
        scale = keras.initializers.RandomUniform(-((3 / areas) ** 0.5), (3 / areas) ** 0.5)
        self.kernel = self.add_weight((self.size, self.size, dim), scale, name="kernel")
        self.bias = self.add_weight((dim,), "zeros", name="bias")

    def call(self, inputs):
        kernel = ops.cast(self.kernel, inputs.dtype)[..., None]
        padding = "same"
        if self.stride > 1:  # equal on both sides: "same" would differ for an even length
            around, padding = (self.size // 2,) * 2, "valid"
            inputs = ops.pad(inputs, ((0, 0), around, around, (0, 0)))
        x = ops.depthwise_conv(
            inputs, kernel, strides=self.stride, padding=padding, data_format="channels_last"
        )
        return x + ops.cast(self.bias, x.dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MixFeedForward(FeedForward):
    """Feed-forward layer with a convolution of each feature over the grid, before the activation.

    Args:
        intermediate_dim: int, width between the projections.
        kernel_size: int, rows and columns of the patches that the convolution sees, an odd number.
        **kwargs: other arguments of `FeedForward`, such as `activation`.

    Call arguments:
        inputs: float `(batch, rows * columns, dim)`.
        grid: ints, rows and columns.

    Returns:
        Float `(batch, rows * columns, output_dim)`.

    Raises:
        ValueError: if the states are not those of the grid.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.mix_feed_forward import MixFeedForward

    layer = MixFeedForward(24, activation="gelu")
    assert layer(np.ones((2, 3 * 4, 16)), grid=(3, 4)).shape == (2, 12, 16)
    ```

    Source: Xie et al. 2021, "SegFormer", section 3.1.
    """

    def __init__(self, intermediate_dim: int, kernel_size: int = 3, **kwargs):
        super().__init__(intermediate_dim, **kwargs)
        self.kernel_size = kernel_size
        self.convolution = GridConvolution(kernel_size, name="convolution", dtype=self.dtype_policy)

    @classmethod
    def from_part(cls, part: MixFeedForwardPart, **kwargs) -> "MixFeedForward":
        options = {"activation": part.activation, "use_bias": part.bias}
        return cls(part.dim, part.kernel_size, **options, **kwargs)

    def build(self, input_shape):
        super().build(input_shape)
        self.convolution.build((None, None, None, self.intermediate_dim))

    def call(self, inputs, grid: tuple[int, int]):
        x = self.convolution(as_map(self.intermediate_dense(inputs), grid))
        return self.output_dense(activated(self.activation, as_states(x)))
