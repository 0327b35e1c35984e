"""Gathers from tensors and writes into them, by the fastest way of each backend.

PyTorch writes into the tensor itself; on other backends the result is a new tensor, which XLA
stores in place of the old one.
"""

import functools

from keras import ops

from keras_transformer.kernels.device import on


def taken(tensor, slots):
    """Gather `slots`, int `(rows, count)`, from `(rows, heads, all, size)`."""
    return ops.take_along_axis(tensor, slots[:, None, :, None], axis=2)


def of_rows(tensor, places):
    """Gather `places`, int32 `(rows, count)`, from `(rows, all, size)`; these sizes are known.

    Returns `(rows, count, size)`. The number of rows may be unknown, also in an exported graph,
    where PyTorch's gathering along an axis would fix it.
    """
    (_, total, size), count = tensor.shape, places.shape[1]
    first = ops.arange(ops.shape(tensor)[0], dtype="int32")[:, None] * total
    places = ops.reshape(ops.cast(places, "int32") + first, (-1,))
    taken = ops.take(ops.reshape(tensor, (-1, size)), places, axis=0)
    return ops.reshape(taken, (-1, count, size))


def overlapping(x, span: int, size: int, length):
    """Cut `(rows, all, ...)` into overlapping parts, one per block: `(parts, span * size, ...)`.

    Args:
        x: tensor whose second axis has `span - 1` blocks more than a row has parts.
        span: int, number of blocks in a part.
        size: int, number of places in a block.
        length: int or scalar tensor, number of places at which parts begin: a multiple of `size`.
    """
    if on("torch"):
        # A row becomes a view: neighbouring parts share memory.
        return x.unfold(1, span * size, size).movedim(-1, 2).flatten(0, 1)

    def blocks(start: int):
        part = x[:, start : start + length]
        return ops.reshape(part, (-1, size, *ops.shape(part)[2:]))

    return ops.concatenate([blocks(i) for i in range(0, span * size, size)], axis=1)


def columns(tensor, places):
    """Gather the columns `places`, int `(count,)`, from `(rows, slots)`, the same in each row."""
    if on("torch"):  # Keras's function looks at the sizes, which a traced program must not.
        return tensor.index_select(1, places)
    return ops.take(tensor, places, axis=1)


def put(tensor, values, index, axis: int):
    """Return `tensor` with `values` along `axis` from `index` on, where they must fit.

    On PyTorch `tensor` itself is changed, without a copy.
    """
    if on("torch"):
        import torch

        values = values.to(tensor.dtype)
        if isinstance(index, int):
            tensor.narrow(axis, index, values.shape[axis]).copy_(values)
            return tensor
        places = index + torch.arange(values.shape[axis], device=tensor.device)
        return tensor.index_copy_(axis, places, values)
    start = [0] * len(tensor.shape)
    start[axis] = index
    return ops.slice_update(tensor, start, values)


def put_rows(tensor, values, rows):
    """Return `tensor` with `values` in its rows `rows`, int `(count,)`.

    On PyTorch `tensor` itself is changed, without a copy.
    """
    if 0 in tensor.shape:  # TensorFlow cannot write to an empty tensor
        return tensor
    values = ops.cast(values, tensor.dtype)
    if on("torch"):
        return tensor.index_copy_(0, rows.long(), values)
    return ops.scatter_update(tensor, rows[:, None], values)


def lines_at(lines, places):
    """Gather the lines at places `(rows, k)` from `(rows, count, size)`: `(rows, k, size)`."""
    if on("torch"):  # Keras's gather needs an index for each number
        return lines[ops.arange(lines.shape[0])[:, None], places]
    return ops.take_along_axis(lines, places[..., None], axis=1)


def _with_dense_gradient(embeddings, ids):
    """Gather rows as `keras.ops.take` does.

    TensorFlow's gradient of a gather is sparse, with one entry per token. Keras's optimizers square
    the entries before those of a repeated token are summed, so Adam's steps and clipping by norm
    would differ from other backends. A product makes the gradient dense.
    """
    return ops.take(ops.multiply(embeddings, 1.0), ids, axis=0)


# Returns the rows of an embedding matrix, by the ids.
look_up = _with_dense_gradient if on("tensorflow") else functools.partial(ops.take, axis=0)


def picked_by(logits, ids):
    """Gather from `(..., size)` the number at each of `ids`, int `(...)`.

    TensorFlow's gradient of a gather is a slow scatter, so there comparison picks the numbers.
    Measured forward and backward with a 128-wide projection, 256 x 24 tokens, 8,000 words, 2 cores:
    TensorFlow 593 ms by gather and 398 ms by comparison, but JAX 405 and 461, PyTorch 969 and
    1,141.
    """
    ids = ops.expand_dims(ids, -1)
    if on("tensorflow"):
        is_picked = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), ids)
        return ops.sum(ops.where(is_picked, logits, 0.0), axis=-1)
    return ops.squeeze(ops.take_along_axis(logits, ids, axis=-1), axis=-1)


def with_one_replaced(x, columns, values):
    """Replace one number in each row of `x`, `(rows, all)`; on PyTorch in place.

    Args:
        x: tensor.
        columns: int `(rows, 1)`, the column of the number.
        values: the new numbers, `(rows, 1)`.
    """
    if on("torch"):
        return x.scatter_(1, columns.long(), values)
    rows = ops.arange(ops.shape(x)[0], dtype="int32")
    return ops.scatter_update(x, ops.stack([rows, columns[:, 0]], axis=1), values[:, 0])
