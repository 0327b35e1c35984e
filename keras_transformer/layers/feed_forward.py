"""The position-wise feed-forward layer, plain, gated and residual; the table of activations."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.checking import check_int, shorten
from keras_transformer.config_checks import check_gate
from keras_transformer.kernels.activations import gelu
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, own_layer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.remat import Rematerializable, one_piece

_ACTIVATIONS = {
    "relu": ops.relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(ops.gelu, approximate=True),
    "silu": ops.silu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "mish": lambda x: x * ops.tanh(ops.softplus(x)),
    "quick_gelu": lambda x: x * ops.sigmoid(1.702 * x),
    "relu_squared": lambda x: ops.square(ops.relu(x)),
}


def get_activation(name: str) -> Callable:
    """The activation of this name. ValueError for an unknown one."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(
            f"Unknown activation {shorten(name)}. Known are: {', '.join(map(repr, _ACTIVATIONS))}."
        )
    return _ACTIVATIONS[name]


def activated(activation: str | Callable, hidden, gate=None, limit: float | None = None):
    """What is between the projections: the activation, of the gate if there is one."""
    activation = activation if callable(activation) else get_activation(activation)
    if gate is None:
        return activation(hidden)
    if limit is not None:
        gate, hidden = ops.minimum(gate, limit), ops.clip(hidden, -limit, limit) + 1
    return activation(gate) * hidden


def build_function(function: Any, input_shape) -> None:
    """Make the weights of an activation, if it is a layer without them."""
    if isinstance(function, keras.layers.Layer) and not function.built:
        function.build(input_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Two projections with an activation between, at each position alone.

    `output(activation(intermediate(x)))`, or gated `output(activation(gate(x)) * intermediate(x))`.

    Args:
        intermediate_dim: int, the width between.
        output_dim: int, width of the output. Defaults to that of the input.
        activation: `"relu"`, `"gelu"` (exact), `"gelu_tanh"`, `"silu"`, `"tanh"`, `"sigmoid"`,
            `"mish"`, `"quick_gelu"` (`x * sigmoid(1.702 x)`) or `"relu_squared"`; or a function or
            layer of your own. A layer belongs to one feed-forward layer: a second one that is given
            it has a copy, with weights of its own.
        gated: bool.
        gate_limit: float, with `gated` alone: the input of the activation is at most this, the
            linear branch is clipped to it on both sides, and 1 is added to that branch (gpt-oss,
            Agarwal et al. 2025).
        use_bias: bool.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(..., dim)`, such as `(batch, length, dim)`.

    Returns:
        Float `(..., output_dim)`.

    Raises:
        ValueError: for an unknown activation, an option that is out of range, or inputs of another
            width than the first ones.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import FeedForward

    assert FeedForward(64, activation="silu", gated=True)(np.ones((2, 5, 16))).shape == (2, 5, 16)
    ```

    Source: Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, "GLU Variants".
    """

    option_rules: ClassVar = {"output_dim": functools.partial(check_int, at_least=1)}
    axes: ClassVar = {"inputs": (..., "dim")}

    def __init__(
        self,
        intermediate_dim: int,
        output_dim: int | None = None,
        activation: str | Callable = "relu",
        gated: bool = False,
        gate_limit: float | None = None,
        use_bias: bool = True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        activation = own_layer(activation)
        if not callable(activation):
            get_activation(activation)
        check_gate(gated, gate_limit)
        self.intermediate_dim = intermediate_dim
        self.output_dim = output_dim
        self.activation = activation
        self.gated = gated
        self.gate_limit = gate_limit
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.intermediate_dense = self._projection(intermediate_dim, "intermediate")
        self.gate_dense = self._projection(intermediate_dim, "gate") if gated else None

    def _projection(self, units: int, name: str) -> Dense:
        with one_piece():
            return Dense(
                units,
                use_bias=self.use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

    def build(self, input_shape):
        self.intermediate_dense.build(input_shape)
        build_function(self.activation, (*input_shape[:-1], self.intermediate_dim))
        if self.gated:
            self.gate_dense.build(input_shape)
        self.output_dense = self._projection(self.output_dim or input_shape[-1], "output")
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))
        self.fixed = {"dim": input_shape[-1]}

    def call(self, inputs):
        hidden = self.intermediate_dense(inputs)
        gate = self.gate_dense(inputs) if self.gated else None
        return self.output_dense(activated(self.activation, hidden, gate, self.gate_limit))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.output_dim or input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_transformer")
class ResidualFeedForward(FeedForward):
    """A feed-forward layer and a linear one beside it, to another width.

    `dropout(output(activation(intermediate(x)))) + residual(x)`.

    Args:
        intermediate_dim: int, the width between.
        output_dim: int, width of the output.
        activation: as of `FeedForward`.
        use_bias: bool.
        dropout: float, rate of what the feed-forward layer gives.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(..., dim)`.

    Returns:
        Float `(..., output_dim)`.

    Raises:
        ValueError: for an unknown activation.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.feed_forward import ResidualFeedForward

    assert ResidualFeedForward(64, 24)(np.ones((2, 5, 16))).shape == (2, 5, 24)
    ```

    Source: Das et al. 2023, "Long-term Forecasting with TiDE", section 4, without its norm.
    """

    def __init__(
        self,
        intermediate_dim: int,
        output_dim: int,
        activation: str | Callable = "relu",
        use_bias: bool = True,
        dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            intermediate_dim,
            output_dim,
            activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        self.residual_dense = self._projection(output_dim, "residual")
        with one_piece():
            self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        super().build(input_shape)
        self.residual_dense.build(input_shape)

    def call(self, inputs, training: bool = False):
        outputs = self.dropout_layer(super().call(inputs), training=training)
        return outputs + self.residual_dense(inputs)
