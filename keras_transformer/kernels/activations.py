"""Activations that a backend would otherwise compute with more operations than needed."""

import math

from keras import ops

from keras_transformer.kernels.device import on


def gelu(x):
    """Return the exact GELU.

    On JAX it is computed by erf in float32, with a third of the operations of JAX's own erfc.
    """
    if not on("jax"):
        return ops.gelu(x, approximate=False)
    wide = ops.cast(x, "float32")
    return ops.cast(0.5 * wide * (1 + ops.erf(wide * math.sqrt(0.5))), x.dtype)
