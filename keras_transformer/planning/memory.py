"""What lies in the memory of a device while a model trains or generates."""

import dataclasses
import math

from keras_transformer.config import TransformerConfig
from keras_transformer.planning.activations import Rows, activations
from keras_transformer.planning.meshes import numbers_on_a_device
from keras_transformer.structure import MASKED_LM_HEAD, Weight, backbone, of, sides

# Numbers that an optimizer of Keras keeps for each weight, with its default options.
OPTIMIZER_STATES = {"adamw": 2, "adam": 2, "lion": 1, "rmsprop": 1, "sgd": 0}

# Bytes of a number of the weights, and of one of the computation, by Keras's dtype policies.
DTYPES = {
    "float32": (4, 4),
    "mixed_bfloat16": (4, 2),
    "mixed_float16": (4, 2),
    "bfloat16": (2, 2),
    "float16": (2, 2),
}


# Tokens that one call of the loop of generation adds to a row; then a window is looked after.
LOOP_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Fields:
        weights: of the model, and of the head that an encoder is trained with.
        optimizer: the optimizer's states.
        gradients: of all weights.
        embedding_gradients: of the token embedding, by the projection to the vocabulary and by
            the tokens looked up.
        activations: what a step keeps without rematerialization.
        rematerialized: what it keeps with `keras.RematScope(mode="full")`.
        layer: of that, what is there of one layer while it is computed again.
        cache: keys and values, while a model generates.
        copies: of the weights in the dtype of the computation, which mixed precision makes.
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
        """The most that is there at a time, with activations rematerialized or not.

        Gradients come to be where activations cease. On one device a weight is updated as soon as
        its gradient is there, so that only those of the embedding are kept. With several copies of
        the model gradients are kept to be summed all at once, into as many numbers again.
        """
        gradients = self.gradients if self.summed else 0
        activations = self.activations
        if rematerialize:
            activations = max(self.rematerialized, gradients + self.layer)
        held = self.weights + self.copies + self.optimizer + self.cache
        return held + max(activations, 2 * gradients, self.embedding_gradients)


def predicted_tokens(config: TransformerConfig, length: int) -> int:
    """Tokens of a row that a loss is taken of: all that a decoder gives out, or the masked ones.

    None of a model without tokens.
    """
    if not config.sides[-1].vocabulary_size:
        return 0
    return max(round(0.15 * length), 1) if config.kind == "encoder" else length


def training_memory(config: TransformerConfig, rows: Rows, dtype: str, optimizer: str) -> Memory:
    """Of a step of training. An encoder is trained with the head of a masked language model.

    One without tokens has no head: that of classes is small beside it.
    """
    masks = config.kind == "encoder" and config.vocabulary_size
    head = of(MASKED_LM_HEAD, config) if masks else []
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
    """Of generating up to `rows.target` tokens a row."""
    weights, copies = _weights(backbone(config), dtype, rows.model_parallel)
    cache = cache_bytes(config, rows.count, rows.target, rows.source, rows.itemsize)
    return Memory(weights=weights, cache=cache // rows.model_parallel, copies=copies)


def _weights(weights: list[Weight], dtype: str, model_parallel: int) -> tuple[int, int]:
    """Bytes of the weights on a device, and of their copies in the dtype of the computation."""
    variable, compute = DTYPES[dtype]
    numbers = numbers_on_a_device(weights, model_parallel)
    return variable * numbers, compute * numbers if compute != variable else 0


def cache_bytes(
    config: TransformerConfig, rows: int, slots: int, source: int = 0, itemsize: int = 4
) -> int:
    """Keys and values of so many rows, see `generation.Cache.count_bytes`."""
    side, total = sides(config)[-1], 0
    for i in range(side.depth):
        layer = side.layer(i)
        tokens = slots if layer.reach is None else min(slots, layer.reach - 1 + LOOP_TOKENS)
        tokens += source if side.source_dim else 0
        of_a_head = layer.head_dim * itemsize + (4 if itemsize == 1 else 0)
        total += rows * tokens * 2 * layer.num_key_value_heads * of_a_head
    return total


def count_parameters(config: TransformerConfig) -> int:
    """Parameters of the backbone: `backbone.count_params()`, without the backbone."""
    return sum(math.prod(weight.shape) for weight in backbone(config))
