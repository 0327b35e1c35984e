"""Floating point operations of a model, counted exactly for its matrix products.

A multiplication and an addition count as two operations. Memory-bound operations (norms, softmax)
are not counted.
"""

import collections
import math

from keras_transformer.config import ContinuousWindowBias, TransformerConfig
from keras_transformer.config.structure import (
    MASKED_LM_HEAD,
    Weight,
    before_blocks,
    block,
    input_weights,
    numbers_of_a_token,
    projector_weights,
    shaped_weights,
    sides,
    transform,
)
from keras_transformer.support.checking import check_int, describe

# Block kernels that are not multiplied once per token: score kernels, which are counted with the
# pairs, and the key kernel if keys are not used.
_NO_PRODUCTS = (("score", "additive"), ("score", "location"), ("key", "location"))


def flops_per_token(
    config: TransformerConfig,
    length: int,
    training: bool = True,
    *,
    target_length: int | None = None,
    **options,
) -> float:
    """Return `flops_per_sequence` divided by the number of tokens in a row.

    The arguments and errors are the same. For an encoder-decoder the divisor is the number of
    target tokens: if the source has the same length, the result is the cost of one source token and
    one target token.

    Returns:
        Float, floating point operations.

    Example:
    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.planning import flops_per_token

    gpt3 = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=12_288, num_layers=96, num_heads=96,
        intermediate_dim=49_152, position="learned", max_sequence_length=2048,
    )
    # Three passes of two operations for each of 175 billion parameters, and attention.
    assert 1.0 < flops_per_token(gpt3, 2048) / (6 * 175e9) < 1.06
    ```
    """
    total = flops_per_sequence(config, length, training, target_length=target_length, **options)
    return total / (length if config.kind != "seq2seq" else target_length or length)


def flops_per_sequence(
    config: TransformerConfig,
    length: int,
    training: bool = True,
    *,
    target_length: int | None = None,
    predicted_tokens: int | None = None,
    first_only: bool = False,
    rematerialized: bool = False,
) -> int:
    """Return the floating point operations of the matrix products for one batch row.

    Attention counts every pair of tokens, including masked pairs, as published utilization figures
    do. Training counts as three forward passes.

    Args:
        config: `TransformerConfig`.
        length: int, tokens in a row, including padding; source tokens for an encoder-decoder.
        training: bool, whether to count a training step; False counts one forward pass.
        target_length: int, target tokens, for an encoder-decoder. Defaults to `length`.
        predicted_tokens: int, tokens in a row that are projected to the vocabulary. Defaults to all
            tokens for a decoder and 0 for an encoder. For a masked language model, give the number
            of masked tokens.
        first_only: bool, whether only the state of an encoder's first token is computed in the last
            layer, see `Encoder`.
        rematerialized: bool, whether the blocks run forward twice, as under `keras.RematScope`.

    Returns:
        Int, floating point operations.

    Raises:
        ValueError: if a length is below 1 or beyond learned positions, if `target_length` is given
            for a model that is not an encoder-decoder, or if `first_only` is given for a model
            that is not an encoder.

    Example:
    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.planning import flops_per_sequence

    config = TransformerConfig(
        kind="encoder", vocabulary_size=100, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=16,
    )
    products = 4 * 8 * 8 + 2 * 8 * 16  # attention and feed-forward, for one token
    attention = 2 * 10 * 8  # scores and weighted sum of 10 values, for one token
    assert flops_per_sequence(config, 10, training=False) == 2 * 10 * (products + attention)
    ```

    Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    length, target = check_lengths(config, length, target_length)
    if first_only and config.kind != "encoder":
        raise ValueError(f"`first_only` needs kind='encoder', received kind={config.kind!r}.")
    if predicted_tokens is None:
        predicted_tokens = 0 if config.kind == "encoder" else target
    predicted_tokens = check_int("predicted_tokens", predicted_tokens, at_least=0, at_most=target)
    blocks, others = _forward_flops(config, length, target, first_only)
    others += 2 * predicted_tokens * config.embedding_dim * config.vocabulary_size
    others += 2 * predicted_tokens * _kernels(shaped_weights(transform(config), config.sides[-1]))
    if config.kind == "encoder":
        others += 2 * predicted_tokens * _kernels(shaped_weights(MASKED_LM_HEAD, config))
    passes = 3 if training else 1
    return passes * (blocks + others) + (blocks if training and rematerialized else 0)


def _forward_flops(config, length: int, target: int, first_only: bool) -> tuple[int, int]:
    """Return the operations of the blocks and of the stems, for one row and one forward pass."""
    placed = config.num_placeholders or length
    blocks, stems = 0, 2 * placed * _kernels(projector_weights(config))
    for side in sides(config):
        tokens, source = side.lengths(length, target)
        last = side.depth - 1
        alike = collections.Counter(
            (side.layer(i), side.states(i, tokens), first_only and i == last)
            for i in range(last + 1)
        )
        for (layer, states, only_first), count in alike.items():
            attended = [(states, states)] + ([(source, source)] if source else [])
            queries = 1 if only_first else states
            blocks += count * layer_flops(layer, queries, attended, side.source_dim)
        stems += 2 * tokens * _kernels(shaped_weights(before_blocks(side.side), side.config))
        for weight in input_weights(side.config):
            stems += 2 * side.config.stem.products.get(weight.path, 0) * math.prod(weight.shape)
        stems += 2 * side.side.input.pair_products
    return blocks, stems


def check_lengths(config: TransformerConfig, length, target_length) -> tuple[int, int]:
    """Return the length of a row and the length of the model's output, after checking them.

    Raises ValueError if a length does not fit the config.
    """
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    if config.kind == "dual":
        raise ValueError(
            "The sides of kind='dual' have separate batches: give `config.side('encoder')`, for "
            "images, or `config.side('decoder')`, for texts."
        )
    if target_length is not None and config.kind != "seq2seq":
        raise ValueError(
            f"`target_length` needs a model of kind 'seq2seq', received kind={config.kind!r}."
        )
    length = check_int("length", length, at_least=1, at_most=2**31 - 1)
    target = check_int("target_length", target_length, 1, 2**31 - 1, none=True) or length
    for name, value in (("length", length), ("target_length", target)):
        longest = max(config.num_positions, config.last_side.input.num_states or 0)
        if config.position == "learned" and value > longest:
            raise ValueError(
                f"`{name}` is {value} tokens, but the model has learned positions for {longest} "
                "only."
            )
    return length, target


def decoding_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Return the operations for the last of `target` tokens, with the other keys cached."""
    side = sides(config)[-1]
    attended = [(target, 1)] + ([(source, 0)] if side.source_dim else [])
    layers = (
        count * layer_flops(layer, 1, attended, side.source_dim, cached=True)
        for layer, count in collections.Counter(map(side.layer, range(side.depth))).items()
    )
    head = config.embedding_dim * config.vocabulary_size + _kernels(
        shaped_weights(transform(config), side.config)
    )
    return sum(layers) + 2 * head


def layer_flops(
    config: TransformerConfig,
    queries: int,
    attended: list[tuple[int, int]],
    source_dim: int | None,
    cached: bool = False,
) -> int:
    """Return the forward operations of one layer.

    `attended` has a pair for self-attention and one for cross-attention: the number of keys, and
    the number of keys that are projected in this call. With `cached` there is one query, and the
    other keys are in a cache.
    """
    one = config.only_side.block
    mixer, score = one.mixer, getattr(one.mixer, "score", None)
    parts = dict(zip((mixer.name, "cross_attention"), attended, strict=False))
    has_network = isinstance(getattr(mixer, "score_bias", None), ContinuousWindowBias)
    total = 0
    for weight in block(config, source_dim):
        part, name, *_ = (
            *weight.path.split("/"),
            "",
        )  # a weight of the block itself has no name of a layer
        # Computed once for all tokens of a batch.
        once = name.startswith("position_") or (name == "relative" and has_network)
        if weight.path.endswith("/kernel") and not once and (name, score) not in _NO_PRODUCTS:
            of_keys = name in ("key", "value", "reduction")
            tokens = mixer.num_keys(parts[part][1]) if of_keys else queries
            if one.merged_attention and source_dim is not None and name in ("key", "value"):
                tokens += attended[1][1]  # the encoder's states, by the same projections
            total += 2 * tokens * numbers_of_a_token(weight, one)
    keys = attended[0][0]
    width = config.hidden_dim
    pairs = mixer.pair_products(queries, keys, width)
    total += 2 * (mixer.cached_products(keys, width) if cached else pairs)
    if source_dim is not None and one.attends_to_source:
        pairs = one.cross_attention.pair_products(queries, attended[1][0], width)
        total += 2 * pairs
    return total


def _kernels(weights: list[Weight]) -> int:
    """Return the total size of the projection kernels."""
    return sum(math.prod(w.shape) for w in weights if w.path.endswith("/kernel"))
