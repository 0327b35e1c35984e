"""What lies in the memory of a device while a model trains or generates."""

import dataclasses
import math

from keras_transformer.checkpoints.shapes import Shapes, head_shapes, variable_shapes
from keras_transformer.config import TransformerConfig
from keras_transformer.generation import Cache
from keras_transformer.planning.activations import Rows, activations
from keras_transformer.planning.layout import numbers_on_a_device

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
        """The most that is there at a time.

        Gradients come to be where activations cease. On one device a weight is updated as soon as
        its gradient is there, so that only those of the embedding are kept. With several copies of
        the model gradients are kept to be summed all at once, into as many numbers again.

        Args:
            rematerialize: bool, whether activations are.
        """
        gradients = self.gradients if self.summed else 0
        activations = self.activations
        if rematerialize:
            activations = max(self.rematerialized, gradients + self.layer)
        held = self.weights + self.copies + self.optimizer + self.cache
        return held + max(activations, 2 * gradients, self.embedding_gradients)


def trained_shapes(config: TransformerConfig, training: bool = True) -> Shapes:
    """The variables of the backbone, and of the head that an encoder is trained with."""
    head = {"name": "MaskedLM"} if training and config.kind == "encoder" else {}
    heads = head_shapes(config, head)
    return variable_shapes(config) | {f"head/{path}": shape for path, shape in heads.items()}


def predicted_tokens(config: TransformerConfig, length: int) -> int:
    """Tokens of a row that a loss is taken of: all that a decoder gives out, or the masked ones."""
    return max(round(0.15 * length), 1) if config.kind == "encoder" else length


def training_memory(
    config: TransformerConfig,
    batch_size: int,
    source: int,
    target: int,
    dtype: str,
    optimizer: str,
    data_parallel: int,
    model_parallel: int,
) -> Memory:
    """Of a step of training."""
    variable, compute = DTYPES[dtype]
    numbers = numbers_on_a_device(trained_shapes(config), model_parallel)
    embedding = config.vocabulary_size * config.embedding_dim // model_parallel
    rows = Rows(
        count=batch_size // data_parallel,
        batch=batch_size,
        devices=data_parallel * model_parallel,
        source=source,
        target=target,
        predicted=predicted_tokens(config, target),
        itemsize=compute,
        model_parallel=model_parallel,
    )
    held = activations(config, rows)
    return Memory(
        weights=variable * numbers,
        optimizer=OPTIMIZER_STATES[optimizer] * variable * numbers,
        gradients=variable * numbers,
        embedding_gradients=2 * variable * embedding,
        activations=held.kept,
        rematerialized=held.rematerialized,
        layer=held.layer,
        copies=compute * numbers if compute != variable else 0,
        summed=data_parallel > 1,
    )


def generation_memory(
    config: TransformerConfig, rows: int, source: int, target: int, dtype: str, model_parallel: int
) -> Memory:
    """Of generating up to `target` tokens a row."""
    variable, compute = DTYPES[dtype]
    numbers = numbers_on_a_device(trained_shapes(config, training=False), model_parallel)
    cache = Cache.count_bytes(config, rows, target, source, compute)
    return Memory(
        weights=variable * numbers,
        cache=cache // model_parallel,
        copies=compute * numbers if compute != variable else 0,
    )


def count_parameters(config: TransformerConfig) -> int:
    """Parameters of the backbone: `backbone.count_params()`, without the backbone."""
    return sum(map(math.prod, variable_shapes(config).values()))
