"""Grouped products on PyTorch, as custom operations that read the sizes of groups when they run.

In a traced (`torch_tracing`) or compiled graph each is one operation. See `grouped`.
"""

import torch

from keras_transformer.kernels.torch_products import by_onednn, suits


@torch.library.custom_op("keras_transformer::grouped_product", mutates_args=())
def product(
    rows: torch.Tensor, kernels: torch.Tensor, sizes: torch.Tensor, turned: bool
) -> torch.Tensor:
    """Multiply each row by the matrix of its group, or by the transposed matrix."""
    kernels = kernels.transpose(1, 2) if turned else kernels
    out = rows.new_empty(rows.shape[0], kernels.shape[2])
    end = 0
    for group, start, end in _places(sizes):
        out[start:end] = _times(rows[start:end], kernels[group])
    out[end:] = 0
    return out


@torch.library.custom_op("keras_transformer::grouped_by_kernels", mutates_args=())
def by_kernels(rows: torch.Tensor, others: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return for each group the product of its transposed rows and its rows of `others`."""
    out = rows.new_empty(sizes.shape[0], rows.shape[1], others.shape[1])
    out[sizes == 0] = 0
    for group, start, end in _places(sizes):
        out[group] = _times(rows[start:end].t(), others[start:end])
    return out


def _places(sizes: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return the groups that have rows, with their first row and their end."""
    ends = sizes.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    places = zip(range(len(ends)), starts, ends, strict=True)
    return [(group, start, end) for group, start, end in places if end > start]


def _times(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return by_onednn(left, right) if suits(left, right) else left @ right


@product.register_fake
def _(rows, kernels, sizes, turned):
    return rows.new_empty(rows.shape[0], kernels.shape[1 if turned else 2])


@by_kernels.register_fake
def _(rows, others, sizes):
    return rows.new_empty(sizes.shape[0], rows.shape[1], others.shape[1])


def _keep(ctx, inputs, output):
    *tensors, ctx.turned = inputs if isinstance(inputs[-1], bool) else (*inputs, None)
    ctx.save_for_backward(*tensors)


def _of_product(context, gradient):
    rows, kernels, sizes = context.saved_tensors
    by_rows = by_matrix = None
    if context.needs_input_grad[0]:
        by_rows = product(gradient, kernels, sizes, not context.turned)
    if context.needs_input_grad[1]:
        pair = (gradient, rows) if context.turned else (rows, gradient)
        by_matrix = by_kernels(*(x.contiguous() for x in pair), sizes)
    return by_rows, by_matrix, None, None


def _of_by_kernels(context, gradient):
    rows, others, sizes = context.saved_tensors
    return product(others, gradient, sizes, True), product(rows, gradient, sizes, False), None


product.register_autograd(_of_product, setup_context=_keep)
by_kernels.register_autograd(_of_by_kernels, setup_context=_keep)
