"""Device memory of a model while it trains or generates."""

import dataclasses
import math
from collections.abc import Sequence

from keras_transformer.config import TransformerConfig
from keras_transformer.config.integer_dtype import IntegerDtype
from keras_transformer.config.structure import (
    MASKED_LM_HEAD,
    Weight,
    backbone,
    shaped_weights,
    sides,
)
from keras_transformer.config.weight import spread_axis
from keras_transformer.planning.activations import Rows, activations
from keras_transformer.planning.meshes import largest_block, numbers_on_a_device

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

_FLOAT32 = 4
# Bytes for each number of an integer kernel while it is converted: the integers, the floats, and
# the scale and the zero of each.
_CONVERTED = 1 + 3 * _FLOAT32

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
        adapters: weights of low-rank adapters, which alone are trained.
        gathered: the part of the activations for the weights of a block while they are whole, and
            their gradients, if devices that see different rows share the weights.
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
    adapters: int = 0
    gathered: int = 0

    def peak(self, rematerialize: bool = False) -> int:
        """Return the peak memory of a step, with or without rematerialized activations.

        Gradients take the place of activations that are no longer needed. On one device a weight is
        updated as soon as its gradient is known, so only the embedding gradients are kept. With
        several copies of the model all gradients are kept and summed at once, into buffers of the
        same size.
        """
        gradients = self.gradients if self.summed else 0
        activations = self.activations
        if self.gathered:
            return self._peak_of_shares(rematerialize)
        if rematerialize:
            activations = max(self.rematerialized, gradients + self.layer)
        held = self.weights + self.copies + self.optimizer + self.cache + self.adapters
        return held + max(activations, 2 * gradients, self.embedding_gradients)

    def _peak_of_shares(self, rematerialize: bool) -> int:
        """Return the peak if devices that see different rows share the weights.

        A gradient is summed and cut as soon as it is known, and its share is kept for the update;
        the last one is that of the token embedding.
        """
        activations = self.rematerialized if rematerialize else self.activations
        held = self.weights + self.optimizer + self.adapters
        return held + max(activations, self.gradients + self.embedding_gradients)


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
    weights, copies = _weights(backbone(config) + head, dtype, rows)
    embedding = config.vocabulary_size * config.embedding_dim // rows.model_parallel
    gathered = _gathered(config, rows, dtype)
    return Memory(
        weights=weights,
        optimizer=OPTIMIZER_STATES[optimizer] * weights,
        gradients=weights,
        embedding_gradients=2 * DTYPES[dtype][0] * embedding,
        **activations(config, rows, gathered=gathered),
        copies=copies if rows.fsdp == 1 else 0,
        summed=rows.devices > rows.model_parallel,
        gathered=gathered,
    )


def _gathered(config: TransformerConfig, rows: Rows, dtype: str, learns: bool = True) -> int:
    """Return the bytes of a block's weights while they are whole, and of their gradients."""
    if rows.fsdp == 1:
        return 0
    numbers = numbers_on_a_device(largest_block(config), rows.model_parallel)
    return dtypes(dtype)[1] * numbers * (2 if learns else 1)


def adapter_memory(
    config: TransformerConfig,
    rows: Rows,
    dtype: str,
    optimizer: str,
    rank: int,
    targets: Sequence[str],
) -> Memory:
    """Return the memory of a step that trains low-rank adapters of the dense layers `targets`.

    Integer weights become floats for each product. What a product needs for that, and the matrix of
    the vocabulary, which is converted once for the loss, count as activations.
    """
    found = backbone(config)
    weights, copies = _weights(found, dtype, rows)
    adapted = [w for w in found if w.path.endswith("/kernel") and w.path.split("/")[-2] in targets]
    adapters = sum(_FLOAT32 * rank * sum(weight.shape[-2:]) for weight in adapted)
    converted = (0, 0)
    if IntegerDtype.parse(dtype) is not None:
        numbers = [math.prod(weight.shape) for weight in found if _is_integer(weight)]
        kernels = [n for n in numbers if n != config.vocabulary_size * config.embedding_dim]
        vocabulary = config.vocabulary_size * config.embedding_dim * dtypes(dtype)[1]
        converted = (vocabulary, _CONVERTED * max(kernels, default=0))
    converted = tuple(x // rows.model_parallel for x in converted)
    gathered = _gathered(config, rows, dtype, learns=False)
    return Memory(
        weights=weights,
        optimizer=OPTIMIZER_STATES[optimizer] * adapters,
        gradients=adapters,
        **activations(config, rows, converted, gathered),
        copies=copies if rows.fsdp == 1 else 0,
        summed=rows.devices > rows.model_parallel,
        adapters=adapters,
        gathered=gathered,
    )


def generation_memory(config: TransformerConfig, rows: Rows, dtype: str) -> Memory:
    """Return the memory for generating up to `rows.target` tokens per row."""
    weights, copies = _weights(backbone(config), dtype, rows)
    cache = cache_bytes(config, rows.count, rows.target, rows.source, rows.itemsize)
    return Memory(weights=weights, cache=cache // rows.model_parallel, copies=copies)


def _weights(weights: list[Weight], dtype: str, rows: Rows) -> tuple[int, int]:
    """Return the bytes of the weights on a device, and of their copies in the compute dtype."""
    model_parallel, fsdp = rows.model_parallel, rows.fsdp
    variable, compute = dtypes(dtype)
    integer = IntegerDtype.parse(dtype)
    inside = [] if integer is None else [weight for weight in weights if _is_integer(weight)]
    total = 0
    for weight in inside:
        inputs, outputs = weight.shape if weight.path.endswith("kernel") else weight.shape[::-1]
        cut = weight.cut_axis(model_parallel)
        parts = 1 if cut is None else model_parallel
        parts *= 1 if spread_axis(weight.shape, cut, fsdp) is None else fsdp
        total += integer.bytes_of(inputs, outputs, variable) // parts
    numbers = numbers_on_a_device([w for w in weights if w not in inside], model_parallel, fsdp)
    return total + variable * numbers, compute * numbers if compute != variable else 0


def _is_integer(weight: Weight) -> bool:
    """Return whether `quantize` makes integers of a weight: a dense kernel or a token embedding."""
    *folders, name = weight.path.split("/")
    if name in ("embeddings", "reverse_embeddings"):
        return folders[-1].endswith("token_embedding")
    return name == "kernel" and len(weight.shape) == 2 and not folders[-1].endswith("convolution")


def dtypes(dtype: str) -> tuple[int, int]:
    """Return the bytes per float of the weights and of the computation of a dtype's name."""
    integer = IntegerDtype.parse(dtype)
    return DTYPES[dtype if integer is None else integer.floats or "float32"]


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
