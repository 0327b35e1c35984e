"""Floating point operations of a model: those of its matrix products, counted exactly.

A multiplication and an addition are two. What is bound by memory (norms, softmax) is left out.
"""

import math

from keras_transformer.checking import check_int, describe
from keras_transformer.config import TransformerConfig
from keras_transformer.structure import (
    MASKED_LM_HEAD,
    STEM,
    TRANSFORM,
    Weight,
    block,
    input_weights,
    of,
    projector_weights,
    sides,
)

# Kernels of blocks that nothing is multiplied with once for each token: those of scores that are
# counted with the pairs, and that of keys which are not read.
_NO_PRODUCTS = (("score", "additive"), ("score", "location"), ("key", "location"))


def flops_per_token(
    config: TransformerConfig,
    length: int,
    training: bool = True,
    *,
    target_length: int | None = None,
    **options,
) -> float:
    """`flops_per_sequence` divided by the tokens of the row; its arguments and errors.

    For an encoder-decoder these are the tokens of the target, so that a source of the same length
    gives the operations of a pair of tokens.

    Returns:
        Float.

    Example:
    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.planning import flops_per_token

    gpt3 = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=12_288, num_layers=96, num_heads=96,
        intermediate_dim=49_152, position="learned", max_sequence_length=2048,
    )
    # Three times two for each of 175 billion parameters, and the attention to 2,048 tokens.
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
    """Operations for one row of a batch, those of the products of matrices.

    Attention counts every pair of tokens, also those that a mask hides, as published figures of
    utilization do. Training is three times the forward pass.

    Args:
        config: `TransformerConfig`.
        length: int, tokens of a row, padding included; of the source for an encoder-decoder.
        training: bool, False for one forward pass.
        target_length: int, tokens of the target, for an encoder-decoder. Defaults to `length`.
        predicted_tokens: int, tokens of a row that are projected to the vocabulary. Defaults to
            all of a decoder and none of an encoder; of a masked language model the masked ones.
        first_only: bool, the state of an encoder's first token alone, see `Encoder`.
        rematerialized: bool, count the forward pass of the blocks twice, for `keras.RematScope`.

    Returns:
        Int.

    Raises:
        ValueError: for lengths below 1, a `target_length` for a model without a target, or
            `first_only` for a decoder.

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
        raise ValueError(f"`first_only` is of an encoder, received kind={config.kind!r}.")
    if predicted_tokens is None:
        predicted_tokens = 0 if config.kind == "encoder" else target
    predicted_tokens = check_int("predicted_tokens", predicted_tokens, at_least=0, at_most=target)
    blocks, others = _forward_flops(config, length, target, first_only)
    others += 2 * predicted_tokens * config.embedding_dim * config.vocabulary_size
    others += 2 * predicted_tokens * _kernels(of(TRANSFORM, config.sides[-1]))
    if config.kind == "encoder":
        others += 2 * predicted_tokens * _kernels(of(MASKED_LM_HEAD, config))
    passes = 3 if training else 1
    return passes * (blocks + others) + (blocks if training and rematerialized else 0)


def _forward_flops(config, length: int, target: int, first_only: bool) -> tuple[int, int]:
    """Those of the blocks and of the stems, for one row and one pass."""
    placed = config.num_placeholders or length
    blocks, stems = 0, 2 * placed * _kernels(projector_weights(config))
    for side in sides(config):
        tokens, source = side.lengths(length, target)
        for i in range(side.depth):
            queries = 1 if first_only and i == side.depth - 1 else tokens
            attended = [(tokens, tokens)] + ([(source, source)] if source else [])
            blocks += layer_flops(side.layer(i), queries, attended, side.source_dim)
        stems += 2 * tokens * _kernels(of(STEM, side.config))
        for weight in input_weights(side.config):
            stems += 2 * side.config.stem.products.get(weight.path, 0) * math.prod(weight.shape)
    return blocks, stems


def check_lengths(config: TransformerConfig, length, target_length) -> tuple[int, int]:
    """The tokens of a row, and those that a model gives out states for. ValueError for none."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    if config.kind == "dual":
        raise ValueError(
            "The sides of kind='dual' have rows of their own: give `config.side('encoder')`, of "
            "images, or `config.side('decoder')`, of texts."
        )
    if target_length is not None and config.kind != "seq2seq":
        raise ValueError(
            f"`target_length` needs a model of kind 'seq2seq', received kind={config.kind!r}."
        )
    length = check_int("length", length, at_least=1, at_most=2**31 - 1)
    target = check_int("target_length", target_length, 1, 2**31 - 1, none=True) or length
    for name, value in (("length", length), ("target_length", target)):
        longest = config.num_positions
        if config.position == "learned" and value > longest:
            raise ValueError(
                f"`{name}` is {value} tokens, but the model has learned positions for {longest} "
                "only."
            )
    return length, target


def decoding_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Operations for the last of `target` tokens, with keys and values of the others in a cache."""
    side = sides(config)[-1]
    attended = [(target, 1)] + ([(source, 0)] if side.source_dim else [])
    layers = (layer_flops(side.layer(i), 1, attended, side.source_dim) for i in range(side.depth))
    head = config.embedding_dim * config.vocabulary_size + _kernels(of(TRANSFORM, side.config))
    return sum(layers) + 2 * head


def layer_flops(
    config: TransformerConfig, queries: int, attended: list[tuple[int, int]], source_dim: int | None
) -> int:
    """Those of a layer's forward pass; `attended` keys, and those projected, of each attention."""
    parts = dict(zip(("self_attention", "cross_attention"), attended, strict=False))
    total = 0
    for weight in block(config, source_dim):
        part, name, *_ = (*weight.path.split("/"), "")  # One of the block itself has no layer.
        once = name.startswith("position_")  # for all tokens of a batch
        if (
            weight.path.endswith("/kernel")
            and not once
            and (name, config.score) not in _NO_PRODUCTS
        ):
            tokens = parts[part][1] if name in ("key", "value") else queries
            total += 2 * tokens * weight.numbers_of_a_token(config)
    pairs = queries * sum(keys for keys, _ in attended)
    if config.disentangled:  # queries and keys with each relative position
        total += (
            2
            * (queries + attended[0][0])
            * config.relative_num_buckets
            * config.head_dim
            * config.num_heads
        )
    return total + 2 * 2 * pairs * config.num_heads * config.head_dim


def _kernels(weights: list[Weight]) -> int:
    """The sizes of the kernels of projections, together."""
    return sum(math.prod(w.shape) for w in weights if w.path.endswith("/kernel"))
