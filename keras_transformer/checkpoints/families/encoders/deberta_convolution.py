"""Convolution of DeBERTa v2: He et al. 2020, https://arxiv.org/abs/2006.03654, section 5.

It is parallel to the first layer, with the same input.
"""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import ACTIVATIONS, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import MOST_LAYERS, TransformerConfig


def _read(values: Values) -> dict[str, Any]:
    size, depth = number(values, "conv_kernel_size", 0), number(values, "num_hidden_layers", 24)
    if size <= 0 or not 0 < depth <= MOST_LAYERS:  # the config itself refuses these
        return {}
    allowed = {"conv_groups": (1, (1,)), "conv_act": ("tanh", tuple(ACTIVATIONS))}
    for name, (default, known) in allowed.items():
        value = values.get(name, default)
        if value not in known:
            raise ValueError(
                f"{name}={value!r} for the convolution is not supported, only "
                f"{', '.join(map(repr, known))}."
            )
    activation = ACTIVATIONS[values.get("conv_act", "tanh")]
    first = {"convolution_size": size, "convolution_activation": activation}
    return {"layer_pattern": (first, *({} for _ in range(depth - 1)))}


def _write(config: TransformerConfig) -> dict[str, Any]:
    first = config.layer(0)
    if not first.convolution_size:
        return {"conv_kernel_size": 0}
    names = [name for name, ours in ACTIVATIONS.items() if ours == first.convolution_activation]
    return {"conv_kernel_size": first.convolution_size, "conv_act": names[0]}


@dataclasses.dataclass(frozen=True)
class _Kernel(WeightLine):
    """Kernel of a `torch.nn.Conv1d`, `(out, in, size)`; ours is `(size * in, out)`."""

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        inputs, width = ours
        return (width, width, inputs // width)

    def split(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(2, 1, 0).reshape(-1, array.shape[0])

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        width = arrays[0].shape[-1]
        return arrays[0].reshape(-1, width, width).transpose(2, 1, 0)


CONVERSION = Conversion(_read, _write)
WEIGHTS = (
    _Kernel("encoder/layer_0/convolution/kernel", "encoder.conv.conv.weight"),
    WeightLine("encoder/layer_0/convolution/bias", "encoder.conv.conv.bias"),
    *layers({"encoder/layer_0/convolution_norm": "encoder.conv.LayerNorm"}),
)
