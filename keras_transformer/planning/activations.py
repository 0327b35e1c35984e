"""Bytes of activations that a training step keeps from the forward pass for the backward pass.

The tensors counted are those that XLA keeps for this library's blocks, read from its compiled
programs. They differ from Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", section 4: normalization factors are copied, and masks are recomputed.
"""

import dataclasses
from typing import Any

from keras_transformer.config import Attention, RelativeSinusoids, TransformerConfig
from keras_transformer.config.structure import sides

# Tensors of feed-forward width kept for each activation: its input, intermediate values that the
# backward pass needs, and its output.
_OF_ACTIVATION = {
    "relu": 2,
    "gelu": 3,
    "gelu_tanh": 3,
    "silu": 3,
    "tanh": 1,
    "sigmoid": 1,
    "mish": 4,
    "quick_gelu": 3,
    "relu_squared": 2,
}
# Additional tensors of a gated layer: the linear branch and the product.
_OF_GATE = {"relu": 1, "relu_squared": 1}
_OF_OTHER_GATE = 2
# Bytes of logits computed at a time. On a CPU: small enough for its cache, large enough for
# efficient matrix products. On other devices: a share of their memory, for few and large products.
CHUNK_BYTES = 16 * 2**20
_LEAST_ON_DEVICE, _SHARE_OF_DEVICE = 256 * 2**20, 64
# Positions per chunk if the batch shape is known only to the compiler (TensorFlow).
_WIDTH_OF_UNKNOWN = 8
# Tensors kept for a normalization: its output, and the broadcast factors of its input.
_OF_NORM = {
    "layer_norm": 3,
    "layer_norm_no_bias": 3,
    "layer_norm_plus_one": 3,
    "rms_norm": 2,
    "rms_norm_plus_one": 2,
    "rms_norm_no_weight": 1,
    "batch_norm": 3,
}
_FLOAT32 = 4


@dataclasses.dataclass(frozen=True)
class Rows:
    """Sizes of one step: rows of a batch, sequence lengths, devices, and bytes per number.

    Fields:
        count: int, batch rows of one device.
        batch: int, batch rows of all devices.
        devices: int, number of devices.
        source: int, tokens of a row; for an encoder-decoder, of the encoder's input.
        target: int, tokens of a row of the output.
        predicted: int, tokens of a row that are projected to the vocabulary.
        itemsize: int, bytes of a number in the compute dtype.
        model_parallel: int, devices that share one copy of the model.
        fsdp: int, devices that see different rows and share the weights.
    """

    count: int
    batch: int
    devices: int
    source: int
    target: int
    predicted: int
    itemsize: int
    model_parallel: int
    fsdp: int = 1


def activations(
    config: TransformerConfig,
    rows: Rows,
    converted: tuple[int, int] | None = None,
    gathered: int = 0,
) -> dict[str, int]:
    """Return the activation bytes of one training step on a device, as fields of `Memory`.

    Args:
        config: the config.
        rows: sizes of the step.
        converted: for a frozen model, the bytes of integer matrices while they are floats: of the
            vocabulary during the loss, and of a kernel during its product. Defaults to None, if the
            whole model is trained.
        gathered: bytes of a block's weights and gradients while they are whole.
    """
    kept = inputs = largest = gradients = 0
    for side in sides(config):
        tokens, source = side.lengths(rows.source, rows.target)
        for i in range(side.depth):
            length = side.states(i, tokens)
            attended = source if side.side.layer(i).attends_to_source else None
            layer, gradient = _layer(side.layer(i), rows, length, attended)
            of_experts = _around_experts(side.layer(i), rows, length)
            kept += layer + of_experts[0]
            copies = 1 if side.side.altup is None else side.side.altup.copies
            of_inputs = rows.count * length * side.side.width(i) * rows.itemsize * copies
            kept += 2 * of_inputs if copies > 1 else 0  # the predicted ones, and the corrected
            inputs += of_inputs + of_experts[1]
            largest, gradients = max(largest, layer), max(gradients, gradient)
        around = _around(side.config, rows, tokens)
        around += rows.count * side.side.input.kept_numbers * rows.itemsize
        kept, inputs = kept + around, inputs + around
    loss = _loss(config, rows, converted is None)
    if converted is not None:
        loss, gradients = loss + converted[0], gradients + converted[1]
    gradients += gathered
    layer = largest + gradients
    return {
        "activations": kept + max(loss, gradients),
        "rematerialized": inputs + max(loss, layer),
        "layer": layer,
    }


def _around(config: TransformerConfig, rows: Rows, length: int) -> int:
    """Return the bytes kept before the first and after the last layer of a stack."""
    tokens, item = rows.count * length, rows.itemsize
    norm = _OF_NORM[config.normalization] * item
    width = item + (norm if config.embedding_normalization else 0)
    total = tokens * config.embedding_dim * width
    if config.embedding_projection:
        total += tokens * config.hidden_dim * item
    if config.final_normalization:
        total += tokens * config.hidden_dim * norm
    return total


def _layer(config: TransformerConfig, rows: Rows, length: int, source: int | None):
    """Return the bytes that one layer keeps and the bytes of its largest gradient."""
    tokens, item, parts = rows.count * length, rows.itemsize, rows.model_parallel
    sublayers = (2 if source is None else 3) - (config.only_side.block.feed_forward is None)
    each = 2 if config.normalize_first and config.normalize_output else 1
    count = sublayers * each - (not config.attention_normalization) - config.share_normalization
    norms = count * _OF_NORM[config.normalization]
    residuals = sublayers
    if config.parallel_residual:  # one input, one sum
        norms, residuals = norms - (not config.share_normalization), 1
    if config.convolution_size:  # neighbours, activation, norm and sum
        norms += each * _OF_NORM[config.normalization]
        residuals += 1 + config.convolution_size + _OF_ACTIVATION[config.convolution_activation]
    whole = tokens * config.hidden_dim * item * (norms + residuals)
    mixer = config.only_side.block.mixer
    keys = mixer.num_keys(length)
    cut = _attention(config, rows, length, keys)
    scores = length * mixer.num_seen(keys)
    if source is not None:
        cut += _attention(config, rows, length, source)
        scores = max(scores, length * source)
    inner = tokens * config.intermediate_dim * item
    if config.num_experts:
        chosen = config.experts_per_token
        inner = tokens * (chosen * config.expert_dim + config.shared_expert_dim) * item
        whole += 2 * tokens * chosen * config.hidden_dim * item  # expert inputs and outputs
    count = _OF_ACTIVATION[config.activation]
    if config.gated:
        count += _OF_GATE.get(config.activation, _OF_OTHER_GATE)
    cut += inner * count
    gradient = inner
    if mixer.attends:
        additive = isinstance(mixer, Attention) and mixer.score == "additive"
        of_pairs = mixer.head_dim * item if additive else _FLOAT32
        gradient = max(inner, rows.count * mixer.num_heads * scores * of_pairs)
    return whole + cut // parts, gradient // parts


def _around_experts(config: TransformerConfig, rows: Rows, length: int) -> tuple[int, int]:
    """Return additional bytes kept by the expert loops, without and with rematerialization.

    They are the gradients of all expert matrices, which are updated after the last loop, and copies
    of the loops' input and output rows, some of the hidden width and some of the expert width.
    """
    if not config.num_experts:
        return 0, 0
    matrices = 3 if config.gated else 2
    kernels = matrices * config.num_experts * config.expert_dim * config.hidden_dim * _FLOAT32
    chosen = rows.count * length * config.experts_per_token * rows.itemsize
    kept, computed_again = (
        (of_states * config.hidden_dim + of_inner * config.expert_dim) * chosen + kernels
        for of_states, of_inner in ((3, matrices / 2), (4, matrices))
    )
    return int(kept) // rows.model_parallel, int(computed_again) // rows.model_parallel


def _attention(config: TransformerConfig, rows: Rows, queries: int, keys: int) -> int:
    """Return the bytes kept for queries, keys, values and scores of all heads."""
    side, mixer = config.only_side, config.only_side.block.mixer
    if not isinstance(mixer, Attention):
        total = rows.count * queries * mixer.kept_numbers(side.hidden_dim) * rows.itemsize
        attending = (each for each in mixer.every_mixer if each.attends)
        return total + sum(_of_pairs(each, rows, queries, keys) for each in attending)
    dropped = config.attention_dropout > 0
    heads, shared, size = config.num_heads, config.num_key_value_heads, config.head_dim
    if shared == 1 and not dropped:  # the fused kernel takes one key head per query head
        shared = heads
    of_queries = rows.count * queries * heads * size * rows.itemsize
    of_keys = rows.count * keys * shared * size * rows.itemsize
    total = (2 + 2 * config.attention_gate) * of_queries + 2 * of_keys
    if config.query_key_norm:
        total += _OF_NORM[config.normalization] * (of_queries + of_keys)
    pairs = rows.count * heads * queries * keys
    total += _of_pairs(mixer, rows, queries, keys)
    if config.disentangled:  # scores with all relative positions, and the scores of the pairs
        total += rows.count * heads * (queries + keys) * config.relative_num_buckets * rows.itemsize
        total += 2 * pairs * rows.itemsize
    if isinstance(getattr(mixer, "score_bias", None), RelativeSinusoids):
        total += rows.count * heads * queries * 2 * keys * rows.itemsize  # with each distance
        total += 2 * pairs * rows.itemsize
    if config.score == "general":  # the queries multiplied by the matrix
        total += of_queries
    elif config.score == "location":  # keys are not used
        total -= of_keys
    elif config.score == "cosine":  # all in float32, before and after the normalization
        total += 2 * (of_queries + of_keys) * _FLOAT32 // rows.itemsize + pairs * _FLOAT32
    elif config.score == "scaled_cosine":
        total += 2 * (of_queries + of_keys) * _FLOAT32 // rows.itemsize
    elif config.score == "additive":  # a hidden layer for each pair
        total += 2 * pairs * size * rows.itemsize
    return total


def _of_pairs(mixer: Any, rows: Rows, queries: int, keys: int) -> int:
    """Return the bytes kept for the scores of all pairs of queries and keys.

    The attention weights are kept, and in float32 the mask. In other precisions JAX's own attention
    keeps the scores with and without the mask. With dropout, the scores before it are kept too.
    """
    in_float32 = rows.itemsize == _FLOAT32
    others = _FLOAT32 if mixer.dropout > 0 else 1 if in_float32 else 2 * _FLOAT32
    pairs = rows.count * mixer.num_heads * queries * mixer.num_seen(keys)
    return pairs * (others + rows.itemsize)


def _loss(config: TransformerConfig, rows: Rows, learns: bool = True) -> int:
    """Return the bytes for a chunk of logits, their gradients and the kernel gradient.

    In a loop over chunks the kernel gradient counts three times. A kernel that does not learn has
    none; beside it XLA keeps the logits, their exponentials and the softmax at once.
    """
    if not rows.predicted:
        return 0
    vocabulary = config.vocabulary_size
    shape = (rows.batch, rows.predicted)
    width = positions_at_a_time(shape, vocabulary, rows.devices * CHUNK_BYTES)
    looped = width < rows.predicted
    logits = rows.count * width * vocabulary * _FLOAT32
    kernel = vocabulary * config.embedding_dim * _FLOAT32
    states = rows.count * rows.predicted * config.embedding_dim * rows.itemsize
    by_bias = config.output_bias or config.kind == "encoder"
    kernels = (3 if looped and not config.tie_embeddings else 1) if learns else 0
    cut = (3 if by_bias or not learns else 2) * logits + kernels * kernel
    return cut // rows.model_parallel + (2 * states if looped else 0)


def chunk_bytes_of(memory: int | None, is_cpu: bool) -> int:
    """Return the bytes of logits to compute at a time on a device with this memory.

    `memory` is None if it is unknown.
    """
    if is_cpu:
        return CHUNK_BYTES
    return max(_LEAST_ON_DEVICE, (memory or 0) // _SHARE_OF_DEVICE)


def positions_at_a_time(shape, vocabulary_size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return how many positions a chunk holds.

    A chunk covers all rows, so that a batch axis that is sharded over devices stays whole.
    """
    batch, length = shape[:2]
    if not isinstance(batch, int) or not isinstance(length, int):
        return _WIDTH_OF_UNKNOWN
    fitting = max(1, chunk_bytes // (4 * batch * vocabulary_size))
    return -(-length // -(-length // fitting))  # chunks as equal as possible
