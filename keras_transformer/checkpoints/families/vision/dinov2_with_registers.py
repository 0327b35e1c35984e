"""Dinov2WithRegisters: Darcet et al. 2023, https://arxiv.org/abs/2309.16588.

DINOv2 with further trained states between the class token and the patches, without positions.
"""

import dataclasses

import numpy as np

from keras_transformer.checkpoints.families.base.images import patches, registers
from keras_transformer.checkpoints.families.vision.dinov2 import DINOV2, MASK, WIDTH
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import TransformerConfig


def _mask(config: TransformerConfig) -> dict[str, np.ndarray]:
    return {MASK: np.zeros((1, config.hidden_dim), "float32")}


DINOV2_WITH_REGISTERS = dataclasses.replace(
    DINOV2,
    model_type="dinov2_with_registers",
    architecture="Dinov2WithRegistersModel",
    conversions=(
        registers(patches(224, 16, interpolation="bicubic_antialiased"), 4),
        WIDTH,
    ),
    weights=(
        *DINOV2.weights,
        WeightLine("encoder/input_registers", "embeddings.register_tokens", row=1),
    ),
    computed=_mask,
    names=dataclasses.replace(DINOV2.names, prefixes=("dinov2_with_registers.",)),
)
