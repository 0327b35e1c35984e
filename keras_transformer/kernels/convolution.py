"""Convolutions: in groups of channels, and of maps without copies of them."""

import keras
from keras import ops

from keras_transformer.kernels.device import on


def grouped_convolution(layer: keras.layers.Conv1D, x):
    """Apply a layer with `groups`, without padding and activation, to `(batch, length, dim)`.

    TensorFlow's gradient of a grouped convolution takes ten times as long as separate convolutions.
    """
    if not on("tensorflow"):
        return layer(x)
    kernels = ops.split(ops.cast(layer.kernel, x.dtype), layer.groups, axis=-1)
    parts = ops.split(x, layer.groups, axis=-1)
    made = [
        ops.conv(part, kernel, data_format="channels_last")
        for part, kernel in zip(parts, kernels, strict=True)
    ]
    return ops.concatenate(made, axis=-1) + ops.cast(layer.bias, x.dtype)


def centered_convolution(layer: keras.layers.Conv2D, x):
    """Apply a layer without bias and activation, centered at each place of maps.

    Beside a map are zeros, whatever the stride and the layer's `padding`: on both sides alike, for
    an even size one more behind it. On PyTorch Keras's layer would copy its input to channels
    first, and back.

    Args:
        layer: the layer, with `data_format="channels_last"`, and as many `groups` as features, or
            one.
        x: float `(batch, rows, columns, features)`.

    Returns:
        Float `(batch, rows / strides, columns / strides, filters)`, rounded up.
    """
    sides = [((size - 1) // 2, size // 2) for size in layer.kernel_size]
    even = any(before != after for before, after in sides)
    x = ops.cast(x, layer.compute_dtype)
    kernel = ops.cast(layer.kernel, x.dtype)
    if on("torch"):
        import torch

        if layer.kernel_size == layer.strides == (1, 1):
            return torch.matmul(x, kernel[0, 0])
        # Transposed as a matrix, which takes an eighth of the time that the operation would take.
        *sizes, filters = kernel.shape
        kernel = kernel.reshape(-1, filters).t().contiguous().view(filters, *sizes)
        x, kernel = x.permute(0, 3, 1, 2), kernel.permute(0, 3, 1, 2)
        if even:
            x = torch.nn.functional.pad(x, (*sides[1], *sides[0]))
        found = torch.nn.functional.conv2d(
            x,
            kernel,
            stride=layer.strides,
            padding=0 if even else [before for before, _ in sides],
            groups=layer.groups,
        )
        return found.permute(0, 2, 3, 1)
    if any(map(any, sides)):
        x = ops.pad(x, ((0, 0), *sides, (0, 0)))
    if layer.groups > 1:
        kernel = ops.transpose(kernel, (0, 1, 3, 2))
        return ops.depthwise_conv(x, kernel, layer.strides, "valid", data_format="channels_last")
    return ops.conv(x, kernel, layer.strides, "valid", data_format="channels_last")


def same_convolution(x, kernel, step: int = 1):
    """Convolve maps with the padding that TensorFlow calls "same".

    Beside a map are zeros, as few as each place of the result needs; an odd one is below it and on
    its right. As `centered_convolution` it copies no map on PyTorch, unless it has such a row.

    Args:
        x: float `(batch, rows, columns, features)`.
        kernel: float `(size, size, features, filters)`; or `(size, size, features)`, which
            convolves each feature by itself.
        step: int, the stride.

    Returns:
        Float `(batch, rows / step, columns / step, filters)`, rounded up.
    """
    size, depthwise = kernel.shape[0], len(kernel.shape) == 3
    if size == step == 1 and not depthwise:
        return ops.matmul(x, kernel[0, 0])
    if not on("torch"):
        if depthwise:
            options = {"padding": "same", "data_format": "channels_last"}
            return ops.depthwise_conv(x, kernel[..., None], step, **options)
        return ops.conv(x, kernel, step, "same", data_format="channels_last")
    import torch

    needed = [max((-(-n // step) - 1) * step + size - n, 0) for n in x.shape[1:3]]
    x = x.permute(0, 3, 1, 2)
    around = [n // 2 for n in needed]
    if any(n % 2 for n in needed):
        (above, left), (rows, columns) = around, needed
        x = torch.nn.functional.pad(x, (left, columns - left, above, rows - above))
        around = [0, 0]
    kernel = kernel[:, :, None] if depthwise else kernel
    groups = x.shape[1] if depthwise else 1
    # Transposed as a matrix, see `centered_convolution`.
    *sizes, filters = kernel.shape
    kernel = kernel.reshape(-1, filters).t().contiguous().view(filters, *sizes)
    kernel = kernel.permute(0, 3, 1, 2)
    found = torch.nn.functional.conv2d(x, kernel, stride=step, padding=around, groups=groups)
    return found.permute(0, 2, 3, 1)


def halved_maximum(x):
    """Return the maximum of three by three places around every second place of maps.

    Takes float `(batch, rows, columns, features)` and returns as many rows and columns as half of
    them, rounded up. As `centered_convolution` it copies no map on PyTorch.
    """
    if on("torch"):
        import torch

        return torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)
    x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=float("-inf"))
    return ops.max_pool(x, 3, 2, "valid", data_format="channels_last")
