"""Convolutions over the grid of patches behind a block."""

import keras

from keras_transformer.config import Bottleneck, Norm
from keras_transformer.layers.arguments import SavesArguments, own_layer, part_of
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import activated
from keras_transformer.layers.merging import as_map, as_states
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat


@keras.saving.register_keras_serializable(package="keras_transformer")
class BottleneckResidual(SavesArguments, keras.layers.Layer):
    """Add three convolutions of the states of a grid to them, see `config.Bottleneck`.

    Args:
        part: `config.Bottleneck`.
        norm: `config.Norm`, the kind of the three norms.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, rows * columns, hidden_dim)`.
        grid: ints, rows and columns of the patches.

    Returns:
        Float `(batch, rows * columns, hidden_dim)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import Bottleneck
    from keras_transformer.layers.bottleneck import BottleneckResidual

    assert BottleneckResidual(Bottleneck(dim=4))(np.ones((1, 6, 8)), grid=(2, 3)).shape == (1, 6, 8)
    ```

    Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection",
    section 3.
    """

    def __init__(
        self,
        part: Bottleneck | dict,
        norm: Norm | dict | None = None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, Bottleneck)
        self.kind = part_of("norm", norm or Norm(), Norm)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.activation = own_layer(self.part.activation)

    def build(self, states_shape):
        inner, width, dtype = self.part.dim, states_shape[-1], self.dtype_policy

        def options(name):
            kernel = self.kernel_initializer.clone()
            return {"use_bias": False, "kernel_initializer": kernel, "name": name, "dtype": dtype}

        with no_inner_remat():
            self.input_dense = Dense(inner, **options("input"))
            self.convolution = keras.layers.Conv2D(
                inner, 3, padding="same", data_format="channels_last", **options("convolution")
            )
            self.output_dense = Dense(width, **options("output"))
            norms = [
                make_normalization(
                    self.kind.type, self.part.epsilon, name=f"{name}_norm", dtype=dtype, **own
                )
                for name, own in {
                    "input": {}, "convolution": {}, "output": {"gamma_initializer": "zeros"},
                }.items()
            ]  # fmt: skip
        self.input_norm, self.convolution_norm, self.output_norm = norms
        self.input_dense.build(states_shape)
        self.convolution.build((None, None, None, inner))
        self.output_dense.build((None, None, inner))
        for norm, dim in zip(norms, (inner, inner, width), strict=True):
            norm.build((None, None, dim))
        self.built = True

    def call(self, states, grid: tuple[int, int]):
        x = activated(self.activation, self.input_norm(self.input_dense(states)))
        x = as_states(self.convolution(as_map(x, grid)))
        x = activated(self.activation, self.convolution_norm(x))
        return states + self.output_norm(self.output_dense(x))

    def compute_output_shape(self, states_shape):
        return tuple(states_shape)
