"""The sub-layers that a Conformer's block has beside attention and a feed-forward layer."""

import keras
from keras import ops

from keras_transformer.config import Conformer, Dense, Norm
from keras_transformer.layers.arguments import SavesArguments, layer_of, part_of
from keras_transformer.layers.dense import ClippedDense
from keras_transformer.layers.dense import Dense as DenseLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.normalization import make_normalization, normalized
from keras_transformer.layers.remat import no_inner_remat


class DepthwiseConvolution(keras.layers.Layer):
    """A convolution of each feature by itself, over the states of a recording.

    Args:
        size: int, number of states that it sees.
        causal: bool, whether these are a state and those before it, rather than as many before it
            as behind it.
        use_bias: bool, whether to add a bias.
        kernel_initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, length, dim)`.
    """

    def __init__(
        self,
        size: int,
        causal: bool,
        use_bias: bool = False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.size, self.causal, self.use_bias = size, causal, use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape):
        shape = (self.size, input_shape[-1])
        self.kernel = self.add_weight(shape, self.kernel_initializer, name="kernel")
        if self.use_bias:
            self.bias = self.add_weight(input_shape[-1:], "zeros", name="bias")

    def call(self, x):
        behind = 0 if self.causal else self.size // 2
        x = ops.pad(x, ((0, 0), (self.size - 1 - behind, behind), (0, 0)))
        kernel = ops.expand_dims(ops.cast(self.kernel, x.dtype), 2)
        x = ops.depthwise_conv(x, kernel, data_format="channels_last")
        return x + ops.cast(self.bias, x.dtype) if self.use_bias else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConformerSublayers(SavesArguments, keras.layers.Layer):
    """A feed-forward layer, a convolution and a norm; called with the name of one of them.

    Args:
        part: `config.Conformer`.
        feed_forward: `config.Dense`, the feed-forward layer; the convolution has its activation.
        norm: `config.Norm`, of all norms.
        dropout: float, rate on what is added to the states.
        norms_outputs: bool, whether to normalize what the feed-forward layer gives.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the dropout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`, False for padding, which the convolution reads as zeros.
        which: `"feed_forward"`, `"convolution"` or `"norm"`.

    Returns:
        Float `(batch, length, hidden_dim)`: the states with half of what the feed-forward layer
        gives, those with what the convolution gives, or the normalized states.

    Example:
    ```python
    import numpy as np
    from keras_transformer import config
    from keras_transformer.layers.conformer import ConformerSublayers

    layer = ConformerSublayers(config.Conformer(size=3), config.Dense(dim=16))
    assert layer(np.ones((1, 5, 8)), which="convolution").shape == (1, 5, 8)
    ```

    Source: Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech
    Recognition", https://arxiv.org/abs/2005.08100, section 2.
    """

    def __init__(
        self,
        part: Conformer | dict,
        feed_forward: Dense | dict,
        norm: Norm | dict | None = None,
        dropout: float = 0.0,
        norms_outputs: bool = False,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.part = part_of("part", part, Conformer)
        wide = part_of("feed_forward", feed_forward, Dense)
        self.kind = part_of("norm", norm or Norm(), Norm)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.activation = get_activation(wide.activation)
        self.dense_class = ClippedDense if wide.clipped else DenseLayer
        self.first_output_norm = None
        options = {"dtype": self.dtype_policy}
        with no_inner_remat():
            self.first = layer_of(wide).from_part(
                wide, kernel_initializer=self.kernel_initializer.clone(), name="first", **options
            )
            self.depthwise_convolution = DepthwiseConvolution(
                self.part.size,
                self.part.causal,
                self.part.use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name="depthwise_convolution",
                **options,
            )
            self.dropout_layer = Dropout(dropout, seed=seed, **options)
            names = ["first_norm", "convolution_norm", "depthwise_norm", "final_norm"]
            names += ["first_output_norm"] * norms_outputs
            types = dict.fromkeys(names, self.kind.type)
            if self.part.norm == "batch":
                types["depthwise_norm"] = "batch_norm"
            for name, kind in types.items():
                norm = make_normalization(kind, self.kind.epsilon, name=name, **options)
                setattr(self, name, norm)

    def _dense(self, units: int, name: str) -> DenseLayer:
        with no_inner_remat():
            return self.dense_class(
                units,
                use_bias=self.part.use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, states_shape):
        width = states_shape[-1]
        self.expansion = self._dense(2 * width, "expansion")
        self.output_dense = self._dense(width, "output")
        norms = (self.first_norm, self.convolution_norm, self.depthwise_norm, self.final_norm)
        denses = (self.first, self.expansion, self.depthwise_convolution, self.output_dense)
        for layer in (*norms, self.first_output_norm, *denses):
            if layer is not None:
                layer.build(states_shape)
        self.built = True

    def call(self, states, mask=None, which: str = "convolution", training: bool = False):
        if which == "norm":
            return normalized(self.final_norm, states, training)
        if which == "feed_forward":
            added = self.first(normalized(self.first_norm, states, training))
            if self.first_output_norm is not None:
                added = normalized(self.first_output_norm, added, training)
            added = 0.5 * added
        else:
            normed = normalized(self.convolution_norm, states, training)
            added = self._convolved(normed, mask, training)
        return states + self.dropout_layer(added, training=training)

    def _convolved(self, x, mask, training: bool):
        x, gate = ops.split(self.expansion(x), 2, axis=-1)
        x = x * ops.sigmoid(gate)
        if mask is not None:
            x = ops.where(mask[..., None], x, ops.zeros_like(x))
        x = normalized(self.depthwise_norm, self.depthwise_convolution(x), training, mask)
        return self.output_dense(self.activation(x))

    def compute_output_shape(self, states_shape):
        return tuple(states_shape)
