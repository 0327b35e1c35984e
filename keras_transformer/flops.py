"""Floating point operations of a model: those of its matrix products, counted exactly.

What is no matrix product (normalization, softmax, dropout, the optimizer) is left out, as is usual
for the utilization of a device: it is bound by the bandwidth of the memory, not by arithmetic. A
multiplication and an addition are two operations.
"""

from keras_transformer.checking import check_int, describe
from keras_transformer.config import TransformerConfig


def flops_per_token(
    config: TransformerConfig,
    length: int,
    training: bool = True,
    *,
    target_length: int | None = None,
    predicted_tokens: int | None = None,
    first_only: bool = False,
    rematerialized: bool = False,
) -> float:
    """Operations for each token of full rows, those of the products of matrices.

    `flops_per_sequence` by the number of tokens: of the row, or for an encoder-decoder of the
    target, so that a source of the same length gives the operations of a pair of tokens.

    Args: as of `flops_per_sequence`.

    Returns:
        Float.

    Raises:
        ValueError: as `flops_per_sequence`.

    Example:
    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.planning import flops_per_token

    gpt3 = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=12_288, num_layers=96, num_heads=96,
        intermediate_dim=49_152, position="learned", max_sequence_length=2048,
        normalize_first=True,
    )
    # Three times two for each of 175 billion parameters, and the attention to 2,048 tokens.
    assert 1.0 < flops_per_token(gpt3, 2048) / (6 * 175e9) < 1.06
    ```

    Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    total = flops_per_sequence(
        config,
        length,
        training,
        target_length=target_length,
        predicted_tokens=predicted_tokens,
        first_only=first_only,
        rematerialized=rematerialized,
    )
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

    Attention counts every pair of tokens, also those that a causal mask or a window hides: they
    are computed, and so they are counted in the published figures of utilization. Training is
    three times the pass forward, since each product has two more for its gradients.

    Args:
        config: `TransformerConfig`.
        length: int, tokens of a row, padding included; of the source for an encoder-decoder.
        training: bool, False for one pass forward.
        target_length: int, tokens of the target, for an encoder-decoder. Defaults to `length`.
        predicted_tokens: int, tokens of a row that are projected to the vocabulary. Defaults to
            all that a decoder gives out, and for an encoder to none: what a classifier does. For
            a masked language model it is the number of masked tokens, and counts its head.
        first_only: bool, the state of an encoder's first token alone, see `Encoder`: what
            `TextClassifier` computes.
        rematerialized: bool, count the pass forward of the blocks once more, as
            `keras.RematScope(mode="full")` makes it. For what a device does, not for its
            utilization.

    Returns:
        Int.

    Raises:
        ValueError: for lengths below 1, a `target_length` without a target, or `first_only` of
            no encoder.

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
    length = check_int("length", length, at_least=1)
    target_length = check_int("target_length", target_length, at_least=1, none=True)
    target = check_lengths(config, length, target_length)
    if first_only and config.kind != "encoder":
        raise ValueError(f"`first_only` is of an encoder, received kind={config.kind!r}.")
    blocks = _blocks(config, length, target, first_only)
    if predicted_tokens is None:
        predicted_tokens = 0 if config.kind == "encoder" else target
    predicted_tokens = check_int("predicted_tokens", predicted_tokens, at_least=0, at_most=target)
    others = 2 * predicted_tokens * config.embedding_dim * config.vocabulary_size
    if config.kind == "encoder":
        others += 2 * predicted_tokens * config.hidden_dim * config.embedding_dim
        if config.embedding_projection:
            others += 2 * length * config.embedding_dim * config.hidden_dim
    passes = 3 if training else 1
    return passes * (blocks + others) + (blocks if training and rematerialized else 0)


def check_lengths(config: TransformerConfig, length: int, target_length: int | None) -> int:
    """The tokens of a row that a model gives out states for. ValueError for none."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    if target_length is not None and config.kind != "seq2seq":
        raise ValueError(
            f"`target_length` needs a model of kind 'seq2seq', received kind={config.kind!r}."
        )
    target = length if target_length is None else target_length
    for name, value in (("length", length), ("target_length", target)):
        check_int(name, value, at_least=1, at_most=2**31 - 1)
        longest = config.max_sequence_length
        if config.position == "learned" and value > longest:
            raise ValueError(
                f"`{name}` is {value} tokens, but the model has learned positions for {longest} "
                "only."
            )
    return target


def _blocks(config: TransformerConfig, source: int, target: int, first_only: bool) -> int:
    """Of one pass forward through all blocks."""
    feed_forward = (3 if config.gated else 2) * config.hidden_dim * config.intermediate_dim
    if config.kind != "seq2seq":
        layer = _attention(config, target, target) + 2 * target * feed_forward
        states = 1 if first_only else target
        last = _attention(config, states, target) + 2 * states * feed_forward
        return (config.num_layers - 1) * layer + last
    encoder = _attention(config, source, source) + 2 * source * feed_forward
    decoder = _attention(config, target, target) + _attention(config, target, source)
    decoder += 2 * target * feed_forward
    return config.num_layers * encoder + config.num_decoder_layers * decoder


def _attention(config: TransformerConfig, queries: int, keys: int) -> int:
    """Of the attention of `queries` tokens to `keys` tokens: projections, scores, sums."""
    inner = config.num_heads * config.head_dim
    shared = config.num_key_value_heads * config.head_dim
    read = 1 if config.score == "location" else 2  # by slot: no product with the keys is needed
    projections = config.hidden_dim * (queries * 2 * inner + keys * read * shared)
    if config.score == "general":  # a bilinear form: the queries go through a matrix
        projections += queries * inner * config.head_dim
    return 2 * projections + 2 * 2 * queries * keys * inner
