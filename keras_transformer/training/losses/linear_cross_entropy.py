"""Cross-entropy fused with the projection to the vocabulary, some of the positions at a time."""

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
    gradient: bool | str = True,
    chunk_bytes: int | None = None,
    sharing: Any = None,
) -> TokenSums:
    """Sum the cross-entropy of `states @ kernel.T + bias` without the whole product in memory.

    Args:
        states: float `(batch, length, dim)`.
        kernel: float `(vocabulary_size, dim)`, with the dtype of `states`.
        targets: int `(batch, length)`.
        weights: float `(batch, length)`, at least 0. Defaults to 1 each.
        bias: float `(vocabulary_size,)`, or None.
        label_smoothing: float in [0, 1), see `TokenCrossEntropy`.
        gradient: whether `loss` will be differentiated. False saves two matrix products. `"states"`
            stands for a kernel and a bias that are not trained: their gradients are not computed.
        chunk_bytes: int, approximate size of the logits that a device holds at a time. Defaults to
            16 MiB on a CPU, which fits into its caches, else to a share of the device's memory.
        sharing: the processes on PyTorch that have other rows of the kernel, each the next
            `len(kernel)` words, see `distribution.tensor_parallel.Sharing`. The bias is whole.

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
    if sharing is not None:
        first, held = sharing.index * len(kernel), len(kernel)
        states = sharing.enter(states)
        bias = None if bias is None else sharing.enter(bias)[first : first + held]
    arguments, targets, weights, width = _prepared(
        states, kernel, targets, weights, bias, chunk_bytes, sharing
    )

    def forward(*arguments):
        # Gradients are computed in this pass, so nothing has to be kept or computed again for
        # another.
        values, gradients = _of_tokens(
            arguments, targets, weights, label_smoothing, width, gradient, sharing
        )
        sums = [ops.sum(ops.where(weights > 0, value * weights, 0.0)) for value in values]
        return (*sums, ops.sum(weights)), gradients

    if not gradient:
        return TokenSums(*forward(*arguments)[0])

    @ops.custom_gradient
    def differentiated(*arguments):
        sums, gradients = forward(*arguments)
        # Not the arguments, which would stay in memory for the whole backward pass.
        dtypes = [argument.dtype for argument in arguments]

        def backward(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream  # PyTorch passes it by name
            # In float32: a sum over tokens, or a loss scale, may overflow float16.
            scale = ops.cast(upstream[0], "float32")
            scaled = [g if g is None else scale * ops.cast(g, "float32") for g in gradients]
            return _like(dtypes, scaled)

        return ops.stack(sums), backward  # stacked: PyTorch allows a single tensor only

    stacked = differentiated(*map(tensor_of, arguments))
    return TokenSums(stacked[0], *(ops.stop_gradient(stacked[i]) for i in range(1, 4)))


def linear_log_probabilities(
    states, kernel, targets, mask=None, bias=None, chunk_bytes: int | None = None
):
    """Compute the log-probability of each target without the whole `states @ kernel.T` in memory.

    The gradient with respect to states, kernel and bias computes the logits again, some of them at
    a time.

    Args:
        states: float `(batch, length, dim)`.
        kernel: float `(vocabulary_size, dim)`, with the dtype of `states`.
        targets: int `(batch, length)`.
        mask: bool or float `(batch, length)`, the targets to compute; others give 0. Defaults to
            all.
        bias: float `(vocabulary_size,)`, or None.
        chunk_bytes: int, as for `linear_cross_entropy`.

    Returns:
        float32 `(batch, length)`, in nats. Within a compiled program a target outside the
        vocabulary is NaN.

    Raises:
        ValueError: if a target within the mask is outside the vocabulary, where values are known.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import linear_log_probabilities

    states, kernel = np.zeros((2, 3, 4), "float32"), np.ones((10, 4), "float32")
    found = linear_log_probabilities(states, kernel, np.zeros((2, 3), "int32"))
    assert np.allclose(found, -np.log(10))
    ```
    """
    arguments, targets, weights, width = _prepared(states, kernel, targets, mask, bias, chunk_bytes)
    counted = ops.not_equal(weights, 0.0)

    @ops.custom_gradient
    def differentiated(*arguments):
        values, _ = _of_tokens(arguments, targets, weights, 0.0, width, gradient=False)

        def backward(*args, upstream=None):
            upstream = ops.cast(args[0] if upstream is None else upstream, "float32")
            # The gradient of cross-entropies that are weighted with what arrives from above.
            weights = ops.where(counted, -upstream, 0.0)
            _, gradients = _of_tokens(arguments, targets, weights, 0.0, width, gradient=True)
            return _like([argument.dtype for argument in arguments], gradients)

        return ops.where(counted, -values[1], 0.0), backward

    return differentiated(*map(tensor_of, arguments))


def _prepared(states, kernel, targets, weights, bias, chunk_bytes, sharing=None):
    """Return states, kernel and bias; the checked targets, their weights, the width of a chunk."""
    states, kernel = ops.convert_to_tensor(states), ops.convert_to_tensor(kernel)
    targets = checked_targets(targets, _words(kernel, sharing), weights)
    if weights is None:
        weights = ops.ones(ops.shape(targets), "float32")
    arguments = (states, kernel, *([] if bias is None else [ops.convert_to_tensor(bias)]))
    # The kernel's gradient is summed over devices in each chunk: use as few chunks as possible.
    chunk_bytes = (
        device().logits_bytes if chunk_bytes is None else chunk_bytes
    ) * devices_of_model()
    width = positions_at_a_time(ops.shape(states), kernel.shape[0], chunk_bytes)
    return arguments, targets, ops.cast(weights, "float32"), width


def _words(kernel, sharing) -> int:
    """Return the size of the vocabulary, of which a kernel may be a process's part."""
    return kernel.shape[0] * (1 if sharing is None else sharing.count)


def _like(dtypes, gradients) -> tuple:
    pairs = zip(gradients, dtypes, strict=True)
    return tuple(None if g is None else ops.cast(g, dtype) for g, dtype in pairs)


def _of_tokens(arguments, targets, weights, label_smoothing, width, gradient, sharing=None):
    """Return loss, cross-entropy and correctness of tokens, and the gradients of the loss.

    The gradients are those of the weighted sum of the losses with respect to states, kernel and
    bias; one that is not wanted is None.

    With p the softmax of the logits, w the weight and s the smoothing, the gradient with respect to
    the logits of a token is w (p - (1 - s) onehot(target) - s / V). Each pass over all logits costs
    as much as a tenth of a product, so w and the last term, equal for all words, are applied to
    smaller tensors.
    """
    with no_inner_remat(), onednn_matmul_scope(arguments[0]):
        return _in_chunks(
            *arguments[:2],
            arguments[2] if len(arguments) > 2 else None,
            targets, weights, label_smoothing, width, gradient, sharing,
        )  # fmt: skip


def _in_chunks(states, kernel, bias, targets, weights, label_smoothing, width, gradient, sharing):
    batch, length, dim = ops.shape(states)
    of_kernel = gradient is True
    vocabulary_size = _words(kernel, sharing)
    count = -(-length // width)
    # At a padded position neither infinite states nor a target outside the vocabulary matters.
    states = ops.where(weights[..., None] != 0, states, ops.zeros((), states.dtype))
    known, targets = within(targets, vocabulary_size)
    weights = ops.where(known, weights, 0.0)
    means = []  # of kernel and bias over the vocabulary: a pass over all of it, as float32
    if label_smoothing:
        parts = [ops.cast(x, "float32") for x in (kernel, bias) if x is not None]
        means = [ops.sum(part, axis=0) / vocabulary_size for part in parts]

    def in_chunks(x):
        x = ops.pad(x, [(0, 0), (0, count * width - length)] + [(0, 0)] * (len(x.shape) - 2))
        x = ops.reshape(x, (batch, count, width, *x.shape[2:]))
        return ops.moveaxis(x, 1, 0)

    def step(i, carry):
        found, by_states, by_kernel, by_bias = carry
        states, targets, weights = (x[i] for x in chunks)
        states = ops.reshape(states, (-1, dim))
        targets, weights = ops.reshape(targets, (-1, 1)), ops.reshape(weights, (-1, 1))
        here = None
        if sharing is not None:
            targets = targets - sharing.index * kernel.shape[0]
            here = ops.logical_and(targets >= 0, targets < kernel.shape[0])
            targets = ops.where(here, targets, 0)
        values, p = _of_chunk(states, kernel, bias, targets, label_smoothing, means, here, sharing)
        new = ops.reshape(ops.stack(values), (1, 3, batch, width))
        found = put(found, new, i, axis=0)
        if not gradient:
            return found, by_states, by_kernel, by_bias
        # Computed before the cast to fewer bits, in which p of an almost certain word rounds to 1.
        by_target = ops.exp(-values[1]) - (1.0 - label_smoothing)
        if here is not None:
            by_target = ops.where(here, by_target, ops.take_along_axis(p, targets, axis=-1))
        by_logits = with_one_replaced(p, targets, by_target)
        if of_kernel and bias is not None:
            by_bias = by_bias + ops.matmul(weights[:, 0], by_logits)
        by_logits = ops.cast(by_logits, states.dtype)
        new = ops.reshape(ops.matmul(by_logits, kernel), (1, batch, width, dim))
        by_states = put(by_states, new, i, axis=0)
        if of_kernel:
            by_kernel = by_kernel + _by_kernel(by_logits, states, weights)
        return found, by_states, by_kernel, by_bias

    chunks = tuple(map(in_chunks, (states, targets, weights)))
    nothing = ops.zeros((0,), "float32")
    carry = (
        ops.zeros((count, 3, batch, width), "float32"),
        ops.zeros_like(chunks[0]) if gradient else nothing,
        ops.zeros(kernel.shape, "float32") if of_kernel else nothing,
        ops.zeros(kernel.shape[:1], "float32") if of_kernel and bias is not None else nothing,
    )
    found, by_states, by_kernel, by_bias = ops.fori_loop(0, count, step, carry)
    found = ops.reshape(ops.moveaxis(found, 0, 2), (3, batch, count * width))[..., :length]
    # A target outside the vocabulary makes the loss NaN, as in `token_cross_entropy`.
    right = ops.where(known, 0.0, np.nan)
    values = (found[0] + right, found[1] + right, ops.where(known, found[2], 0.0))
    if not gradient:
        return values, None
    by_states = ops.reshape(ops.moveaxis(by_states, 0, 1), (batch, count * width, dim))
    by_states = ops.cast(by_states[:, :length], "float32")
    if label_smoothing:
        by_states = by_states - label_smoothing * means[0]
    total, weights = ops.sum(weights), weights[..., None]
    if not of_kernel:
        return values, [weights * by_states, None, *([] if bias is None else [None])]
    if label_smoothing:
        each = label_smoothing / vocabulary_size
        by_kernel = by_kernel - each * ops.sum(weights * ops.cast(states, "float32"), axis=(0, 1))
        by_bias = None if bias is None else by_bias - each * total
    return values, [weights * by_states, by_kernel, *([] if bias is None else [by_bias])]


def _by_kernel(by_logits, states, weights):
    if keras.backend.standardize_dtype(states.dtype) == "float16":
        # A sum over tokens overflows float16, however small the loss scale becomes.
        by_logits, states = ops.cast(by_logits, "float32"), ops.cast(states, "float32")
    weighted = ops.cast(weights, states.dtype) * states
    return ops.cast(ops.matmul(ops.transpose(by_logits), weighted), "float32")


def _of_chunk(states, kernel, bias, targets, label_smoothing, means, here=None, sharing=None):
    """Return loss, cross-entropy and correctness of tokens, each `(tokens, 1)`, and the softmax.

    With `sharing` the softmax is that of this process's words, and `here` says whose target is one.
    """
    logits = ops.cast(ops.matmul(states, ops.transpose(kernel)), "float32")
    if bias is not None:
        logits = logits + ops.cast(bias, "float32")
    largest = ops.max(logits, axis=-1, keepdims=True)
    picked = ops.take_along_axis(logits, targets, axis=-1)
    if sharing is None:
        p = ops.softmax(logits)
        above = -ops.log(ops.max(p, axis=-1, keepdims=True))  # log-sum-exp minus the largest logit
    else:
        largest = sharing.largest(largest)
        p = ops.exp(logits - largest)
        total = sharing.sum(ops.sum(p, axis=-1, keepdims=True))
        p, above = p / total, ops.log(total)
        picked = sharing.sum(ops.where(here, picked, 0.0))
    # Differences of logits first, which are exact however large the logits are.
    loss = cross_entropy = above + (largest - picked)
    if label_smoothing:
        mean = sum(means[1:], ops.matmul(ops.cast(states, "float32"), means[0][:, None]))
        mean = mean if sharing is None else sharing.sum(mean)
        below = (1.0 - label_smoothing) * (largest - picked) + label_smoothing * (largest - mean)
        loss = above + below
    return (loss, cross_entropy, ops.cast(picked >= largest, "float32")), p


def mean_of(sums: TokenSums):
    """Return the loss per unit of weight, like `TokenCrossEntropy`; 0 if the weight is 0."""
    return ops.divide_no_nan(sums.loss, sums.weight)
