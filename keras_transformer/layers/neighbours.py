"""The states around each token, side by side: what a convolution over a text is a product with."""

from keras import ops

from keras_transformer.layers.masking import Visibility


def with_neighbours(states, size: int, visibility: Visibility):
    """The states of the `size` tokens of which each is the middle, zeros for those that are none.

    Args:
        states: float `(batch, length, dim)`.
        size: int, odd.
        visibility: `Visibility`, whose padding and other documents count as zeros.

    Returns:
        Float `(batch, length, size * dim)`.
    """
    length, half = ops.shape(states)[1], size // 2
    if visibility.padding is not None:
        states = ops.where(visibility.padding[..., None], states, ops.zeros_like(states))
    around = ops.pad(states, [[0, 0], [half, half], [0, 0]])
    parts = [around[:, i : i + length] for i in range(size)]
    packs = visibility.query_pack
    if packs is not None:
        others = ops.pad(packs, [[0, 0], [half, half]])
        of_same = [ops.equal(others[:, i : i + length], packs)[..., None] for i in range(size)]
        parts = [
            ops.where(same, x, ops.zeros_like(x)) for same, x in zip(of_same, parts, strict=True)
        ]
    return ops.concatenate(parts, axis=-1)
