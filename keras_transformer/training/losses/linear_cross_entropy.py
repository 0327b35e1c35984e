"""Cross-entropy fused with the projection to the vocabulary, a few positions at a time."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.distribution.layout import devices_of_model
from keras_transformer.kernels.device import device
from keras_transformer.kernels.indexing import put, with_one_replaced
from keras_transformer.kernels.products import onednn_matmul_scope
from keras_transformer.kernels.values import tensor_of
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.planning.activations import positions_at_a_time
from keras_transformer.training.losses.losses import checked_targets, within


class TokenSums(NamedTuple):
    """Weighted sums over the tokens of a batch, float32 scalars. Only `loss` has a gradient."""

    loss: Any
    cross_entropy: Any
    correct: Any
    weight: Any


def linear_cross_entropy(
    states,
    kernel,
    targets,
    weights=None,
    bias=None,
    label_smoothing: float = 0.0,
    gradient: bool = True,
    chunk_bytes: int | None = None,
) -> TokenSums:
    """Sum the cross-entropy of `states @ kernel.T + bias` without the whole product in memory.

    Args:
        states: float `(batch, length, dim)`.
        kernel: float `(vocabulary_size, dim)`, with the dtype of `states`.
        targets: int `(batch, length)`.
        weights: float `(batch, length)`, at least 0. Defaults to 1 each.
        bias: float `(vocabulary_size,)`, or None.
        label_smoothing: float in [0, 1), see `TokenCrossEntropy`.
        gradient: bool, whether `loss` will be differentiated. False saves two matrix products.
        chunk_bytes: int, approximate size of the logits that a device holds at a time. Defaults to
            16 MiB on a CPU, which fits into its caches, else to a share of the device's memory.

    Returns:
        `TokenSums`. Within a compiled program a target outside the vocabulary makes the losses NaN.

    Raises:
        ValueError: if a target of nonzero weight is outside the vocabulary. Checked only outside of
            compiled programs, where values are known.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import linear_cross_entropy

    states, kernel = np.zeros((2, 3, 4), "float32"), np.ones((10, 4), "float32")
    sums = linear_cross_entropy(states, kernel, np.zeros((2, 3), "int32"))
    assert abs(float(sums.loss / sums.weight) - np.log(10)) < 1e-5
    ```

    Source: the gradient is computed in the forward pass, as in Hsu et al. 2024, "Liger Kernel",
    section 3.2.
    """
    states, kernel = ops.convert_to_tensor(states), ops.convert_to_tensor(kernel)
    targets = checked_targets(targets, kernel.shape[0], weights)
    if weights is None:
        weights = ops.ones(ops.shape(targets), "float32")
    weights = ops.cast(weights, "float32")
    arguments = (states, kernel, *([] if bias is None else [ops.convert_to_tensor(bias)]))
    # The kernel's gradient is summed over devices in each chunk: use as few chunks as possible.
    chunk_bytes = (
        device().logits_bytes if chunk_bytes is None else chunk_bytes
    ) * devices_of_model()
    width = positions_at_a_time(ops.shape(states), kernel.shape[0], chunk_bytes)

    def forward(states, kernel, bias=None):
        # Gradients are computed in this pass, so nothing has to be kept or computed again for
        # another.
        with no_inner_remat(), onednn_matmul_scope(states):
            return _sums(states, kernel, bias, targets, weights, label_smoothing, width, gradient)

    if not gradient:
        return TokenSums(*forward(*arguments)[0])
    stacked = _with_gradients(forward, arguments)
    return TokenSums(stacked[0], *(ops.stop_gradient(stacked[i]) for i in range(1, 4)))


def _with_gradients(forward, arguments):
    """Return the sums of `forward`, the first with the gradients that `forward` returns too."""

    @ops.custom_gradient
    def differentiated(*arguments):
        sums, gradients = forward(*arguments)

        def backward(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream  # PyTorch passes it by name
            # In float32: a sum over tokens, or a loss scale, may overflow float16.
            scale = ops.cast(upstream[0], "float32")
            return tuple(
                ops.cast(scale * ops.cast(g, "float32"), argument.dtype)
                for g, argument in zip(gradients, arguments, strict=True)
            )

        return ops.stack(sums), backward  # stacked: PyTorch allows a single tensor only

    return differentiated(*map(tensor_of, arguments))


def _sums(states, kernel, bias, targets, weights, label_smoothing, width, gradient):
    """Return the sums, and the gradients of the first with respect to states, kernel and bias.

    With p the softmax of the logits, w the weight and s the smoothing, the gradient with respect to
    the logits of a token is w (p - (1 - s) onehot(target) - s / V). Each pass over all logits costs
    as much as a tenth of a product, so w and the last term, equal for all words, are applied to
    smaller tensors.
    """
    batch, length, dim = ops.shape(states)
    vocabulary_size = kernel.shape[0]
    count = -(-length // width)
    # At a padded position neither infinite states nor a target outside the vocabulary matters.
    states = ops.where(weights[..., None] > 0, states, ops.zeros((), states.dtype))
    known, targets = within(targets, vocabulary_size)
    total, weights = ops.sum(weights), ops.where(known, weights, 0.0)
    means = [ops.mean(ops.cast(x, "float32"), axis=0) for x in (kernel, bias) if x is not None]

    def in_chunks(x):
        x = ops.pad(x, [(0, 0), (0, count * width - length)] + [(0, 0)] * (len(x.shape) - 2))
        x = ops.reshape(x, (batch, count, width, *x.shape[2:]))
        return ops.moveaxis(x, 1, 0)

    def step(i, carry):
        sums, by_states, by_kernel, by_bias = carry
        states, targets, weights = (x[i] for x in chunks)
        states = ops.reshape(states, (-1, dim))
        targets, weights = ops.reshape(targets, (-1, 1)), ops.reshape(weights, (-1, 1))
        values, p = _of_tokens(states, kernel, bias, targets, label_smoothing, means)
        added = zip(sums, values, strict=True)
        sums = tuple(old + ops.sum(value * weights) for old, value in added)
        if not gradient:
            return sums, by_states, by_kernel, by_bias
        # Computed before the cast to fewer bits, in which p of an almost certain word rounds to 1.
        by_target = ops.exp(-values[1]) - (1.0 - label_smoothing)
        by_logits = with_one_replaced(p, targets, by_target)
        if bias is not None:
            by_bias = by_bias + ops.matmul(weights[:, 0], by_logits)
        by_logits = ops.cast(by_logits, states.dtype)
        new = ops.reshape(ops.matmul(by_logits, kernel), (1, batch, width, dim))
        by_states = put(by_states, new, i, axis=0)
        return sums, by_states, by_kernel + _by_kernel(by_logits, states, weights), by_bias

    chunks = tuple(map(in_chunks, (states, targets, weights)))
    zero, nothing = ops.zeros((), "float32"), ops.zeros((0,), "float32")
    carry = (
        (zero, zero, zero),
        ops.zeros_like(chunks[0]) if gradient else nothing,
        ops.zeros(kernel.shape, "float32") if gradient else nothing,
        ops.zeros((vocabulary_size,), "float32") if gradient and bias is not None else nothing,
    )
    sums, by_states, by_kernel, by_bias = ops.fori_loop(0, count, step, carry)
    # A target outside the vocabulary makes the loss NaN, as in `token_cross_entropy`.
    loss, cross_entropy, correct = sums
    right = ops.where(ops.all(known), 0.0, np.nan)
    sums = (loss + right, cross_entropy + right, correct, total)
    if not gradient:
        return sums, None
    by_states = ops.reshape(ops.moveaxis(by_states, 0, 1), (batch, count * width, dim))
    by_states = ops.cast(by_states[:, :length], "float32") - label_smoothing * means[0]
    total = ops.sum(weights)
    weights, each = weights[..., None], label_smoothing / vocabulary_size
    by_kernel = by_kernel - each * ops.sum(weights * ops.cast(states, "float32"), axis=(0, 1))
    by_bias = [] if bias is None else [by_bias - each * total]
    return sums, [weights * by_states, by_kernel, *by_bias]


def _by_kernel(by_logits, states, weights):
    if keras.backend.standardize_dtype(states.dtype) == "float16":
        # A sum over tokens overflows float16, however small the loss scale becomes.
        by_logits, states = ops.cast(by_logits, "float32"), ops.cast(states, "float32")
    weighted = ops.cast(weights, states.dtype) * states
    return ops.cast(ops.matmul(ops.transpose(by_logits), weighted), "float32")


def _of_tokens(states, kernel, bias, targets, label_smoothing, means):
    """Return loss, cross-entropy and correctness of tokens, each `(tokens, 1)`, and the softmax."""
    logits = ops.cast(ops.matmul(states, ops.transpose(kernel)), "float32")
    if bias is not None:
        logits = logits + ops.cast(bias, "float32")
    largest = ops.max(logits, axis=-1, keepdims=True)
    p = ops.softmax(logits)
    above = -ops.log(ops.max(p, axis=-1, keepdims=True))  # log-sum-exp minus the largest logit
    picked = ops.take_along_axis(logits, targets, axis=-1)
    # Differences of logits first, which are exact however large the logits are.
    loss = cross_entropy = above + (largest - picked)
    if label_smoothing:
        mean = sum(means[1:], ops.matmul(ops.cast(states, "float32"), means[0][:, None]))
        below = (1.0 - label_smoothing) * (largest - picked) + label_smoothing * (largest - mean)
        loss = above + below
    return (loss, cross_entropy, ops.cast(picked >= largest, "float32")), p


def mean_of(sums: TokenSums):
    """Return the loss per unit of weight, like `TokenCrossEntropy`; 0 if the weight is 0."""
    return ops.divide_no_nan(sums.loss, sums.weight)
