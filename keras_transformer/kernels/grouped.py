"""Products of rows in groups, each with the matrix of its group, without padding the groups."""

from typing import Any, NamedTuple

import keras
from keras import ops

# Rows of a group at a time, the largest first. The rest of a group is rounded up to the last.
_BLOCKS = (256, 32)


class ExpertGroups(NamedTuple):
    """Order of the rows of a call, sorted by group.

    Row `i` is choice `i // tokens` of token `i % tokens`. Rows without a group come last.

    Fields:
        tokens: int or int scalar tensor, number of tokens.
        places: int `(rows,)`, the group of each row; the number of groups for a row without one.
        order: int `(rows,)`, the row at each place; None if the rows keep their order.
        inverse: int `(rows,)`, the place of each row.
        sizes: int `(groups,)`, number of rows of each group.
    """

    tokens: Any
    places: Any
    order: Any
    inverse: Any
    sizes: Any

    @classmethod
    def sort(cls, chosen, number: int) -> "ExpertGroups":
        """Sort the groups `chosen`, int `(tokens, choices)`, where `number` means no group."""
        places = ops.reshape(ops.transpose(chosen), (-1,))
        tokens = ops.shape(chosen)[0]
        rows = places.shape[0]
        if keras.backend.backend() != "torch" and isinstance(rows, int) and rows <= number:
            return cls(tokens, places, None, None, None)
        order = ops.cast(ops.argsort(places), "int32")
        inverse = ops.cast(ops.argsort(order), "int32")
        of_groups = places[:, None] == ops.arange(number, dtype="int32")
        sizes = ops.sum(ops.cast(of_groups, "int32"), axis=0)
        return cls(tokens, ops.take(places, order, axis=0), order, inverse, sizes)

    def gather(self, states):
        """Return the rows of `(tokens, dim)`, in the order of the groups."""
        choices = ops.shape(self.places)[0] // self.tokens
        if self.order is None:
            return ops.tile(states, (choices, 1))

        def back(inverse, gradient):
            gradient = ops.take(gradient, inverse, axis=0)
            return ops.sum(ops.reshape(gradient, (choices, self.tokens, states.shape[-1])), axis=0)

        return _taken(states, self.order % self.tokens, self.inverse, back)

    def spread(self, values):
        """Return a value for each row, `(rows, 1)`, from values `(tokens, choices)`."""
        rows = ops.reshape(ops.transpose(values), (-1, 1))
        if self.order is None:
            return rows

        def back(inverse, gradient):
            return ops.take(gradient, inverse, axis=0)

        return _taken(rows, self.order, self.inverse, back)

    def choices(self, rows):
        """Return rows in the order of the groups as `(choices, tokens, dim)`."""
        if self.order is not None:

            def back(order, gradient):
                return ops.take(gradient, order, axis=0)

            rows = _taken(rows, self.inverse, self.order, back)
        return ops.reshape(rows, (-1, self.tokens, rows.shape[-1]))

    def product(self, rows, kernels, biases=None):
        """Multiply sorted rows by the matrix of their group, and add its bias.

        Args:
            rows: float `(rows, in)`.
            kernels: float `(groups, in, out)`.
            biases: float `(groups, out)`, or None.
        """
        number = kernels.shape[0]
        if self.order is None:
            places = ops.minimum(self.places, number - 1)
            product = ops.matmul(rows[:, None], ops.take(kernels, places, axis=0))[:, 0]
        else:
            product = grouped_product(rows, kernels, self.sizes)
        if biases is None:
            return product
        # Biases are looked up by a product: the gradient of a gather adds one row at a time.
        of_groups = self.places[:, None] == ops.arange(number, dtype="int32")
        return product + ops.matmul(ops.cast(of_groups, biases.dtype), biases)


def _taken(x, places, back_places, back):
    """Gather `x` at `places`, with the gradient `back`: XLA's own adds one row at a time."""
    if keras.backend.backend() == "torch":
        return ops.take(x, places, axis=0)
    forward = lambda x, places, _: ops.take(x, places, axis=0)  # noqa: E731
    return _with_gradient(
        forward, lambda args, g: (back(args[2], g), None, None), x, places, back_places
    )


def _with_gradient(forward, backward, *args):
    """Return `forward(*args)`, with the gradients `backward(args, gradient)`.

    Keras's custom gradients capture enclosing variables, which a rematerialized block must not.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.custom_gradient(
            lambda *args: (forward(*args), lambda gradient: backward(args, gradient))
        )(*args)
    import jax

    function = jax.custom_vjp(forward)
    function.defvjp(lambda *args: (forward(*args), args), backward)
    return function(*args)


def grouped_product(rows, kernels, sizes):
    """Multiply each row by the matrix of its group.

    Args:
        rows: float `(rows, in)`, the rows of group 0 first, then group 1, and so on. The results of
            rows after the last group are arbitrary.
        kernels: float `(groups, in, out)`.
        sizes: int `(groups,)`, number of rows of each group.

    Returns:
        Float `(rows, out)`.

    Source: Gale et al. 2022, "MegaBlocks", section 4, for blocks instead of a capacity.
    """
    if keras.backend.backend() == "torch":
        from keras_transformer.kernels.torch_grouped import product

        return product(rows, kernels, sizes, False)

    def forward(rows, kernels, sizes):
        return _product(rows, kernels, sizes, turned=False)

    def backward(args, gradient):
        rows, kernels, sizes = args
        by_rows = _product(gradient, kernels, sizes, turned=True)
        return by_rows, _by_kernels(rows, gradient, sizes), None

    return _with_gradient(forward, backward, rows, kernels, sizes)


def _product(rows, kernels, sizes, turned: bool):
    width = kernels.shape[1 if turned else 2]

    def step(kernel, start, size, end, out):
        block = _at(padded, start, size)
        # Results past the end of the group are overwritten by the following groups.
        return _put(out, ops.matmul(block, kernel), start)

    def of_group(group, start, end, out):
        kernel = _at(kernels, group, 1)[0]
        kernel = ops.transpose(kernel) if turned else kernel
        return _in_blocks(step, kernel, start, end, out)

    padded = ops.pad(rows, [(0, _BLOCKS[0]), (0, 0)])
    out = ops.zeros((ops.shape(padded)[0], width), rows.dtype)
    return _over_groups(of_group, sizes, out)[: ops.shape(rows)[0]]


def _by_kernels(rows, gradients, sizes):
    """Return the gradient of the matrices: for each group its rows times their gradients."""

    def step(_, start, size, end, total):
        real = (start + ops.arange(size, dtype="int32") < end)[:, None]
        block = ops.where(real, _at(rows, start, size), ops.zeros((), rows.dtype))
        product = ops.matmul(ops.transpose(block), _at(gradients, start, size))
        return total + ops.cast(product, "float32")

    def of_group(group, start, end, out):
        total = ops.zeros(out.shape[1:], "float32")
        total = _in_blocks(step, None, start, end, total)
        return _put(out, ops.cast(total, out.dtype)[None], group)

    shape = (sizes.shape[0], rows.shape[1], gradients.shape[1])
    dtype = rows.dtype
    rows, gradients = (ops.pad(x, [(0, _BLOCKS[0]), (0, 0)]) for x in (rows, gradients))
    return _over_groups(of_group, sizes, ops.zeros(shape, dtype))


def _over_groups(body, sizes, carry):
    """Run `carry = body(group, start, end, carry)` for each group that has rows, in order."""
    number = sizes.shape[0]
    groups = ops.arange(number, dtype="int32")
    present = ops.cast(sizes > 0, "int32")
    order = ops.cast(ops.argsort(groups - number * present), "int32")
    ends = ops.cumsum(sizes)

    def step(i, carry):
        group = order[i]
        return body(group, ends[group] - sizes[group], ends[group], carry)

    return ops.fori_loop(0, ops.sum(present), step, carry)


def _in_blocks(step, kernel, start, end, carry):
    """Run `carry = step(kernel, start, size, end, carry)` for the blocks of a group."""
    for size in _BLOCKS:
        last = size == _BLOCKS[-1]
        count = (end - start + (size - 1 if last else 0)) // size

        def block(i, carry, start=start, size=size):
            return step(kernel, start + i * size, size, end, carry)

        carry = ops.fori_loop(0, count, block, carry)
        start = start + count * size
    return carry


def _at(x, start, size: int):
    """Return `size` rows of `x` from row `start`, a scalar tensor."""
    starts = [start] + [0] * (len(x.shape) - 1)
    return ops.slice(x, starts, (size, *x.shape[1:]))


def _put(x, rows, start):
    return ops.slice_update(x, [start] + [0] * (len(x.shape) - 1), rows)
