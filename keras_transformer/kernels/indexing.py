"""Gathers from tensors and writes into them, as each backend does them fastest.

PyTorch writes into a tensor itself; on the others the result is a new one, which XLA puts in the
place of the old.
"""

from keras import ops

from keras_transformer.kernels.device import on


def taken(tensor, slots):
    """Gather `slots`, int `(rows, count)`, from `(rows, heads, all, size)`."""
    return ops.take_along_axis(tensor, slots[:, None, :, None], axis=2)


def overlapping(x, span: int, size: int, length):
    """Cut `(rows, all, ...)` into overlapping parts, one a block: `(parts, span * size, ...)`.

    Args:
        x: tensor whose second axis has `span - 1` blocks more than there are parts of a row.
        span: int, the blocks of a part.
        size: int, the places of a block.
        length: int or scalar tensor, the places at which parts begin: a multiple of `size`.
    """
    if on("torch"):
        # Of one row a view: neighbours share their places in memory.
        return x.unfold(1, span * size, size).movedim(-1, 2).flatten(0, 1)

    def blocks(start: int):
        part = x[:, start : start + length]
        return ops.reshape(part, (-1, size, *ops.shape(part)[2:]))

    return ops.concatenate([blocks(i) for i in range(0, span * size, size)], axis=1)


def columns(tensor, places):
    """Gather the columns `places`, int `(count,)`, from `(rows, slots)`: the same of each row."""
    if on("torch"):  # Keras looks at the sizes, which a program may not.
        return tensor.index_select(1, places)
    return ops.take(tensor, places, axis=1)


def put(tensor, values, index, axis: int):
    """`tensor` with `values` along `axis` from `index` on, where there is room.

    On PyTorch `tensor` itself is written, without a copy.
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
    """`tensor` with `values` in its rows `rows`, int `(count,)`.

    On PyTorch `tensor` itself is written, without a copy.
    """
    if 0 in tensor.shape:  # of which TensorFlow can write nothing
        return tensor
    values = ops.cast(values, tensor.dtype)
    if on("torch"):
        return tensor.index_copy_(0, rows.long(), values)
    return ops.scatter_update(tensor, rows[:, None], values)


def lines_at(lines, places):
    """Gather the lines at places `(rows, k)` from `(rows, count, size)`: `(rows, k, size)`."""
    if on("torch"):  # Keras's own looks at a place for each number
        return lines[ops.arange(lines.shape[0])[:, None], places]
    return ops.take_along_axis(lines, places[..., None], axis=1)


def look_up(embeddings, ids):
    """The rows `ids` of a matrix of embeddings, with the same gradient on every backend.

    TensorFlow's gradient of a gather is sparse: one entry a token. Keras's optimizers square the
    entries before those of a repeated token are summed, so that Adam's steps and the clipping by
    norm would differ from the other backends'. A product makes the gradient dense.
    """
    if on("tensorflow"):
        embeddings = ops.multiply(embeddings, 1.0)
    return ops.take(embeddings, ids, axis=0)


def with_one_replaced(x, columns, values):
    """`x` `(rows, columns)` with one number of each row replaced. PyTorch does it in place."""
    if on("torch"):
        return x.scatter_(1, columns.long(), values)
    rows = ops.arange(ops.shape(x)[0], dtype="int32")
    return ops.scatter_update(x, ops.stack([rows, columns[:, 0]], axis=1), values[:, 0])
