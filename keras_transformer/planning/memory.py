"""Device memory of a model while it trains or generates."""

import dataclasses
import math

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import (
    MASKED_LM_HEAD,
    Weight,
    backbone,
    shaped_weights,
    sides,
)
from keras_transformer.planning.activations import Rows, activations
from keras_transformer.planning.meshes import numbers_on_a_device

# Numbers that a Keras optimizer keeps for each number of a weight, with its default options.
OPTIMIZER_STATES = {"adamw": 2, "adam": 2, "lion": 1, "rmsprop": 1, "sgd": 0}

# Bytes per number of the weights and of the computation, by Keras dtype policy.
DTYPES = {
    "float32": (4, 4),
    "mixed_bfloat16": (4, 2),
    "mixed_float16": (4, 2),
    "bfloat16": (2, 2),
    "float16": (2, 2),
}


# Tokens that one call of the generation loop adds to a row before the window is checked.
LOOP_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of one device, in bytes.

    Fields:
        weights: weights of the model, and of the head that an encoder is trained with.
        optimizer: the optimizer's states.
        gradients: gradients of all weights.
        embedding_gradients: gradients of the token embedding, from the projection to the vocabulary
            and from the token lookup.
        activations: activations that a step keeps without rematerialization.
        rematerialized: activations that a step keeps with `keras.RematScope(mode="full")`.
        layer: the part of `rematerialized` needed for one layer while it is recomputed.
        cache: keys, values and states, during generation.
        copies: copies of the weights in the compute dtype, which mixed precision makes.
        summed: bool, whether gradients are summed over several copies of the model.
    """

    weights: int
    optimizer: int = 0
    gradients: int = 0
    embedding_gradients: int = 0
    activations: int = 0
    rematerialized: int = 0
    layer: int = 0
    cache: int = 0
    copies: int = 0
    summed: bool = False

    def peak(self, rematerialize: bool = False) -> int:
        """Return the peak memory of a step, with or without rematerialized activations.

        Gradients take the place of activations that are no longer needed. On one device a weight is
        updated as soon as its gradient is known, so only the embedding gradients are kept. With
        several copies of the model all gradients are kept and summed at once, into buffers of the
        same size.
        """
        gradients = self.gradients if self.summed else 0
        activations = self.activations
        if rematerialize:
            activations = max(self.rematerialized, gradients + self.layer)
        held = self.weights + self.copies + self.optimizer + self.cache
        return held + max(activations, 2 * gradients, self.embedding_gradients)


def predicted_tokens(config: TransformerConfig, length: int) -> int:
    """Return how many tokens of a row enter the loss: all for a decoder, 15 % for an encoder.

    It is 0 for a model without tokens.
    """
    if not config.sides[-1].vocabulary_size:
        return 0
    return max(round(0.15 * length), 1) if config.kind == "encoder" else length


def training_memory(config: TransformerConfig, rows: Rows, dtype: str, optimizer: str) -> Memory:
    """Return the memory of a training step. An encoder is trained as a masked language model.

    A model without tokens is counted without its head, since the head of a classifier is small.
    """
    masks = config.kind == "encoder" and config.vocabulary_size
    head = shaped_weights(MASKED_LM_HEAD, config) if masks else []
    weights, copies = _weights(backbone(config) + head, dtype, rows.model_parallel)
    embedding = config.vocabulary_size * config.embedding_dim // rows.model_parallel
    return Memory(
        weights=weights,
        optimizer=OPTIMIZER_STATES[optimizer] * weights,
        gradients=weights,
        embedding_gradients=2 * DTYPES[dtype][0] * embedding,
        **activations(config, rows),
        copies=copies,
        summed=rows.devices > rows.model_parallel,
    )


def generation_memory(config: TransformerConfig, rows: Rows, dtype: str) -> Memory:
    """Return the memory for generating up to `rows.target` tokens per row."""
    weights, copies = _weights(backbone(config), dtype, rows.model_parallel)
    cache = cache_bytes(config, rows.count, rows.target, rows.source, rows.itemsize)
    return Memory(weights=weights, cache=cache // rows.model_parallel, copies=copies)


def _weights(weights: list[Weight], dtype: str, model_parallel: int) -> tuple[int, int]:
    """Return the bytes of the weights on a device, and of their copies in the compute dtype."""
    variable, compute = DTYPES[dtype]
    numbers = numbers_on_a_device(weights, model_parallel)
    return variable * numbers, compute * numbers if compute != variable else 0


def cache_bytes(
    config: TransformerConfig, rows: int, slots: int, source: int = 0, itemsize: int = 4
) -> int:
    """Return the bytes of cached keys, values and states, see `generation.Cache.count_bytes`."""
    side, total = sides(config)[-1], 0
    for i in range(side.depth):
        mixer = side.side.layer(i).mixer
        heads, width, receptive_field, *states = mixer.cached(side.side.hidden_dim)
        total += sum(4 * rows * math.prod(shape) for shapes in states for shape in shapes)
        tokens = slots if receptive_field is None else min(slots, receptive_field - 1 + LOOP_TOKENS)
        tokens += source if side.source_dim else 0
        of_a_head = width * itemsize + (4 if itemsize == 1 else 0)
        total += rows * tokens * 2 * heads * of_a_head
    return total


def count_parameters(config: TransformerConfig) -> int:
    """Return the number of parameters of a backbone from its config, without building it.

    It equals `backbone.count_params()`.
    """
    return sum(math.prod(weight.shape) for weight in backbone(config))
