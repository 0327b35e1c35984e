"""A causal convolution of each feature by itself, over the last few tokens."""

import keras
from keras import ops

from keras_transformer.layers.neighbours import moved


class CausalConvolution(keras.layers.Layer):
    """Weighted sum of the states of the last tokens, with a weight for each feature.

    Args:
        size: int, number of tokens, including the token itself.
        use_bias: bool, whether to add a bias.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: list of `size` tensors `(batch, length, dim)`: the states of the tokens themselves,
            of the tokens before them, and so on.
    """

    def __init__(self, size: int, use_bias: bool, **kwargs):
        super().__init__(**kwargs)
        self.size, self.use_bias = size, use_bias

    def build(self, input_shape):
        shape = (self.size, input_shape[-1])
        self.kernel = self.add_weight(shape, "glorot_uniform", name="kernel")
        self.bias = self.add_weight(shape[1:], "zeros", name="bias") if self.use_bias else None

    def call(self, states):
        # The last row of the kernel belongs to the token itself, as in a convolution.
        total = sum(state * self.kernel[-1 - i] for i, state in enumerate(states))
        return total if self.bias is None else total + self.bias


def recent_states(x, size: int, padding=None, packs=None, before=None) -> tuple:
    """Return the last `size` states up to each token, and the states that the next call needs.

    Args:
        x: float `(batch, length, dim)`.
        size: int, number of tokens, including the token itself.
        padding: bool `(batch, length)`, True for real tokens; others count as zeros.
        packs: int `(batch, length)`, the packed document of each token; tokens of other documents
            count as zeros.
        before: float `(batch, size - 1, dim)`, the states before the first token of this call, in
            their order. Padding must then be behind the real tokens. Defaults to zeros.

    Returns:
        A list of `size` tensors `(batch, length, dim)`: the states of the tokens themselves, of the
        tokens before them, and so on; and float `(batch, size - 1, dim)`, the last states before
        the next token, or None without `before`.
    """
    if padding is not None:
        x = ops.where(padding[..., None], x, ops.zeros_like(x))
    if before is None:
        return [moved(x, i, packs) for i in range(size)], None
    length, rest = ops.shape(x)[1], size - 1
    joined = ops.concatenate([ops.cast(before, x.dtype), x], axis=1)
    found = [joined[:, rest - i : rest - i + length] for i in range(size)]
    if packs is not None:
        others = ops.pad(packs, [[0, 0], [rest, 0]], constant_values=-2)
        same = [ops.equal(others[:, rest - i : rest - i + length], packs) for i in range(size)]
        pairs = zip(same, found, strict=True)
        found = [ops.where(one[..., None], y, ops.zeros_like(y)) for one, y in pairs]
    if padding is None:
        return found, joined[:, length:]
    # The place behind the last real token; 0 without real tokens.
    places = ops.arange(length, dtype="int32") + 1
    end = ops.max(ops.where(padding, places[None], 0), axis=1)
    kept = end[:, None] + ops.arange(rest, dtype="int32")[None]
    return found, ops.take_along_axis(joined, kept[..., None], axis=1)
