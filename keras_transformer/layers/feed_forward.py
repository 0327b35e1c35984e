"""Position-wise feed-forward layers, plain, gated and residual, and the table of activations."""

import functools
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import Dense as DensePart
from keras_transformer.kernels.activations import gelu
from keras_transformer.layers.arguments import ChecksCall, SavesArguments, own_layer
from keras_transformer.layers.dense import ClippedDense, Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool, check_int, shorten

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
    """Return the activation of this name. Raises ValueError if it is unknown."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(
            f"Unknown activation {shorten(name)}. Known are: {', '.join(map(repr, _ACTIVATIONS))}."
        )
    return _ACTIVATIONS[name]


def activated(activation: str | Callable, hidden, gate=None, limit: float | None = None):
    """Return `activation(gate) * hidden`, or `activation(hidden)` if there is no gate."""
    activation = activation if callable(activation) else get_activation(activation)
    if gate is None:
        return activation(hidden)
    if limit is not None:
        gate, hidden = ops.minimum(gate, limit), ops.clip(hidden, -limit, limit) + 1
    return activation(gate) * hidden


def above_quantile(values, share: float):
    """Return how far values lie above the quantile of a normal distribution, at least zero.

    Source: You et al. 2025, "Spark Transformer", https://arxiv.org/abs/2506.06644, section 3.1.
    """
    mean = ops.mean(values, axis=-1, keepdims=True)
    deviation = ops.std(values, axis=-1, keepdims=True)
    return ops.relu(values - (mean + deviation * NormalDist().inv_cdf(share)))


def check_gate(gated: bool, gate_limit: float | None) -> None:
    """Raise ValueError if `gate_limit` is given without a gate."""
    if gate_limit is not None and not gated:
        raise ValueError(
            f"`gate_limit` needs `gated`, received gate_limit={gate_limit} with gated=False."
        )


def build_function(function: Any, input_shape) -> None:
    """Build an activation if it is a layer that is not built yet."""
    if isinstance(function, keras.layers.Layer) and not function.built:
        function.build(input_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Two projections with an activation in between, applied to each position separately.

    `output(activation(intermediate(x)))`, or gated `output(activation(gate(x)) * intermediate(x))`.

    Args:
        intermediate_dim: int, width between the projections.
        output_dim: int, width of the output. Defaults to the width of the input.
        activation: `"relu"`, `"gelu"` (exact), `"gelu_tanh"`, `"silu"`, `"tanh"`, `"sigmoid"`,
            `"mish"`, `"quick_gelu"` (`x * sigmoid(1.702 x)`) or `"relu_squared"`; or a function or
            layer of your own. A layer belongs to one feed-forward layer: if it is given to a second
            one, that one uses a copy, with weights of its own.
        gated: bool, whether a third projection, the gate, multiplies the intermediate states.
        gate_limit: float, requires `gated`: the input of the activation is clipped from above to
            this value, the linear branch on both sides, and 1 is added to that branch (gpt-oss,
            Agarwal et al. 2025).
        use_bias: bool, whether the projections have biases.
        output_bias: bool, whether the last one has. Defaults to `use_bias`.
        softmax_gate: bool, whether the output is multiplied by a softmax, over its features, of a
            further projection of it.
        softmax_gate_first: bool, whether `softmax_gate` multiplies the input instead.
        gate_scale, output_scale: float, factors of the gate before its activation, and of the
            output (Falcon-H1).
        sparsity: float, requires `gated`: the share of the gate's values that become zero before
            its activation, if they are normally distributed (Gemma 3n).
        clipped: bool, whether the inputs and the outputs of the projections are clipped to ranges
            that no gradient trains (Gemma 4).
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(..., dim)`, such as `(batch, length, dim)`.

    Returns:
        Float `(..., output_dim)`.

    Raises:
        ValueError: if the activation is unknown, an option is out of range, or the width of the
            inputs differs from the first call.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import FeedForward

    assert FeedForward(64, activation="silu", gated=True)(np.ones((2, 5, 16))).shape == (2, 5, 16)
    ```

    Source: Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, "GLU Variants"; with
    `softmax_gate`: Ekambaram et al. 2023, "TSMixer", section 3.3.
    """

    option_rules: ClassVar = {
        "intermediate_dim": functools.partial(check_int, at_least=1),
        "output_dim": functools.partial(check_int, at_least=1),
        "output_bias": "feed_forward_output_bias",
        "gate_scale": "residual_scale",
        "output_scale": "residual_scale",
        "sparsity": "dropout",
    }
    axes: ClassVar = {"inputs": (..., "dim")}
    # The processes that have other features in between, see `distribution.tensor_parallel`.
    sharing: Any = None

    def __init__(
        self,
        intermediate_dim: int,
        output_dim: int | None = None,
        activation: str | Callable = "relu",
        gated: bool = False,
        gate_limit: float | None = None,
        use_bias: bool = True,
        kernel_initializer="glorot_uniform",
        output_bias: bool | None = None,
        softmax_gate: bool = False,
        gate_scale: float = 1.0,
        output_scale: float = 1.0,
        sparsity: float = 0.0,
        softmax_gate_first: bool = False,
        clipped: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        activation = own_layer(activation)
        if not callable(activation):
            get_activation(activation)
        check_gate(gated, gate_limit)
        if sparsity and not gated:
            raise ValueError(f"`sparsity` needs `gated`, received {sparsity} with gated=False.")
        if softmax_gate_first and not softmax_gate:
            raise ValueError("`softmax_gate_first` needs `softmax_gate`, received False.")
        if check_bool("clipped", clipped) and softmax_gate:
            raise ValueError("`clipped` and `softmax_gate` cannot be combined.")
        self.clipped = clipped
        self.gate_scale, self.output_scale, self.sparsity = gate_scale, output_scale, sparsity
        self.intermediate_dim = intermediate_dim
        self.output_dim = output_dim
        self.activation = activation
        self.gated = gated
        self.gate_limit = gate_limit
        self.use_bias = use_bias
        self.output_bias = use_bias if output_bias is None else output_bias
        self.softmax_gate, self.softmax_gate_first = softmax_gate, softmax_gate_first
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.intermediate_dense = self._projection(intermediate_dim, "intermediate")
        self.gate_dense = self._projection(intermediate_dim, "gate") if gated else None

    @classmethod
    def from_part(cls, part: DensePart, **kwargs) -> "FeedForward":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        names = ("activation", "gated", "gate_limit", "gate_scale", "output_scale")
        names += ("sparsity", "softmax_gate", "softmax_gate_first", "clipped")
        options = {n: getattr(part, n) for n in names}
        biases = {"use_bias": part.bias, "output_bias": part.output_bias}
        return cls(part.dim, **biases, **options, **kwargs)

    def _projection(self, units: int, name: str) -> Dense:
        biases = {"output": self.output_bias, "softmax_gate": True}
        kind = ClippedDense if self.clipped else Dense
        with no_inner_remat():
            return kind(
                units,
                use_bias=biases.get(name, self.use_bias),
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
        if self.softmax_gate:
            width = input_shape[-1]
            if not self.softmax_gate_first:
                width = self.output_dim or width
            self.softmax_gate_dense = self._projection(width, "softmax_gate")
            self.softmax_gate_dense.build((*input_shape[:-1], width))
        self.fixed = {"dim": input_shape[-1]}

    def call(self, inputs):
        if self.softmax_gate_first:
            inputs = inputs * ops.softmax(self.softmax_gate_dense(inputs), axis=-1)
        inputs = inputs if self.sharing is None else self.sharing.enter(inputs)
        hidden = self.intermediate_dense(inputs)
        gate = self.gate_dense(inputs) if self.gated else None
        gate = gate if gate is None or self.gate_scale == 1 else gate * self.gate_scale
        gate = above_quantile(gate, self.sparsity) if self.sparsity else gate
        outputs = self.output_dense(activated(self.activation, hidden, gate, self.gate_limit))
        if self.softmax_gate and not self.softmax_gate_first:
            outputs = outputs * ops.softmax(self.softmax_gate_dense(outputs), axis=-1)
        return outputs if self.output_scale == 1 else outputs * self.output_scale

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.output_dim or input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_transformer")
class ResidualFeedForward(FeedForward):
    """Feed-forward layer with a linear projection as its residual, to another width.

    `dropout(output(activation(intermediate(x)))) + residual(x)`.

    Args:
        intermediate_dim: int, width between the projections.
        output_dim: int, width of the output.
        activation: as in `FeedForward`.
        use_bias: bool, whether the projections have biases.
        dropout: float, dropout rate of the feed-forward layer's output.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(..., dim)`.

    Returns:
        Float `(..., output_dim)`.

    Raises:
        ValueError: if the activation is unknown.

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
        with no_inner_remat():
            self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        super().build(input_shape)
        self.residual_dense.build(input_shape)

    def call(self, inputs, training: bool = False):
        outputs = self.dropout_layer(super().call(inputs), training=training)
        return outputs + self.residual_dense(inputs)
