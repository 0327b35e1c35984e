"""Pooling of token states to one vector."""

from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.position import sequence_positions
from keras_transformer.models.backbone import Backbone, as_mask

POOLINGS = ("mean", "first", "max", "last", "mean_sqrt_len", "weighted_mean")


def pool(states, padding_mask, pooling: str, prompt_lengths=None):
    """Pool the states `(batch, length, hidden_dim)` of real tokens to `(batch, hidden_dim)`.

    The first `prompt_lengths` tokens of each row, int `(batch, 1)`, are left out.
    """
    if pooling == "first":
        return states[:, 0] if prompt_lengths is None else states_at(states, prompt_lengths)[:, 0]
    mask = as_mask(states[..., 0], padding_mask)
    positions = sequence_positions(states)
    if prompt_lengths is not None:
        mask = mask & (positions >= prompt_lengths)
    if pooling == "last":
        return states_at(states, last_of(mask))[:, 0]
    if pooling == "max":
        lowest = ops.cast(-1e9 if states.dtype != "float16" else -6e4, states.dtype)
        return ops.max(ops.where(ops.expand_dims(mask, -1), states, lowest), axis=1)
    weights = ops.cast(mask, states.dtype)
    if pooling == "weighted_mean":
        weights = weights * ops.cast(positions + 1, states.dtype)
    number = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)
    total = ops.sum(states * ops.expand_dims(weights, -1), axis=1)
    return total / (ops.sqrt(number) if pooling == "mean_sqrt_len" else number)


def check_pooler(config: TransformerConfig, pooling: str, include_prompt: bool) -> None:
    """Raise ValueError if the backbone cannot provide `"pooler"` for padded batches of texts."""
    if pooling != "pooler":
        return
    if config.kind == "decoder" and config.vector_pooling is None:
        raise ValueError(
            "pooling='pooler' needs a backbone that pools, such as an Encoder with a `pooler`, or "
            "one with a `vector_pooling`."
        )
    if config.reads_padding:
        raise ValueError(
            "The backbone reads a text at its last place, padding or not (SigLIP), but a "
            "TextEmbedder pads texts to the longest of their batch. Load the model as an "
            "ImageEmbedder and call `encode_texts`, or pass pooling='mean'."
        )
    if not include_prompt:
        raise ValueError(
            "include_prompt=False cannot be combined with pooling='pooler': choose another pooling."
        )


def pooled_width(config: TransformerConfig, pooling: str) -> int:
    """Return the width of pooled vectors."""
    if pooling == "pooler":
        return config.vector_width
    return config.hidden_dim * (2 if pooling == "first_and_mean" else 1)


def pool_by(backbone: Backbone, states, ids):
    """Pool states with the backbone's `pool`, which for `"end"` pooling also needs the ids."""
    ends = backbone.config.vector_pooling == "end"
    return backbone.pool(states, ids) if ends else backbone.pool(states)


def pool_stem(states, pooling: str, tokens: int, mask=None):
    """Pool the states `(batch, length, hidden_dim)` of an image or audio to one vector per row.

    The first `tokens` states belong to special tokens. `"first"` is the first state, `"mean"` the
    mean without the special tokens, `"first_and_mean"` both concatenated, `"tokens"` the mean of
    the special tokens.
    """
    if pooling == "first":
        return states[:, 0]
    if pooling == "tokens":
        return ops.mean(states[:, :tokens], axis=1)
    mean = ops.mean(states[:, tokens:], axis=1) if mask is None else pool(states, mask, "mean")
    return mean if pooling == "mean" else ops.concatenate([states[:, 0], mean], axis=-1)


def last_of(mask):
    """Return the last True position of each row of a mask, int `(batch, 1)`; 0 if it has none."""
    places = sequence_positions(mask)
    return ops.max(ops.where(mask, places, 0), axis=1, keepdims=True)


def mask_of_ids(ids, padding_mask, wanted):
    """Mark real tokens with an id in `wanted`; in rows without one, all real tokens.

    Returns bool `(batch, length)`.
    """
    mask = as_mask(ids, padding_mask)
    found = mask & ops.any(
        ops.equal(ops.expand_dims(ids, -1), ops.convert_to_tensor(wanted, ids.dtype)), -1
    )
    return ops.where(ops.any(found, axis=1, keepdims=True), found, mask)


def states_at(states, positions):
    """Gather the states `(batch, count, hidden_dim)` at positions, int `(batch, count)`."""
    return ops.take_along_axis(states, ops.expand_dims(positions, -1), axis=1)
