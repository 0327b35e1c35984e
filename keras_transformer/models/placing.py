"""States of an encoder among those of a decoder, in the place of its placeholder tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.stems import Input

PREFIX_MASK = Input("prefix_mask", "bool", (None,))
# Positions that are added to states: what is placed has those of the encoder.
ADDED_POSITIONS = ("learned", "sinusoidal")


class Placing:
    """Where the states of one pass go, who sees them, and which positions are left.

    Args:
        config: `TransformerConfig` with a `placeholder_id`.
        inputs: those of the decoder: `token_ids`, and optionally `padding_mask`, `prefix_mask` and
            `position_ids`.
        states: float `(batch, num_placeholders, hidden_dim)`, None in a pass that continues a
            cache, which holds them.
    """

    def __init__(self, config: TransformerConfig, inputs: Mapping[str, Any], states):
        self.config, self.inputs, self.states = config, inputs, states
        self.places = self.counted = None
        if states is not None:
            places = ops.equal(inputs["token_ids"], config.placeholder_id)
            if inputs.get("padding_mask") is not None:
                places = ops.logical_and(places, ops.cast(inputs["padding_mask"], "bool"))
            counted = ops.cumsum(ops.cast(places, "int32"), axis=1)
            # Padding may have the same id.
            most = config.num_placeholders
            self.places = ops.logical_and(places, counted <= most)
            self.counted = ops.minimum(counted, most)

    @property
    def prefix(self):
        """How many first tokens each sees whatever causality, int `(batch, length)`, or None."""
        kind = self.config.placeholder_visibility
        if self.states is None or kind == "causal":
            return None
        whole = self.places if kind == "states" else ops.cast(self.inputs["prefix_mask"], "bool")
        ends = ops.arange(1, whole.shape[1] + 1, dtype="int32")[None]
        last = ops.max(ops.where(whole, ends, 0), axis=1, keepdims=True)
        return ops.where(whole, last, 0)

    def stem_inputs(self, cache_positions) -> tuple[Mapping[str, Any], Any]:
        """The inputs of the stem, and the positions that a cache counts, as the stem has them."""
        inputs = self.inputs
        if self.states is not None:  # The id may be none of the vocabulary.
            ids = ops.where(self.places, 0, inputs["token_ids"])
            inputs = {**inputs, "token_ids": ids}
        if self.config.side("decoder").position not in ADDED_POSITIONS:
            return inputs, cache_positions
        before = self.config.num_placeholders if self.states is None else self.counted
        if cache_positions is not None:
            return inputs, ops.maximum(cache_positions - before, 0)
        if inputs.get("position_ids") is not None:
            return inputs, None
        positions = ops.arange(self.places.shape[1], dtype="int32")[None] - before
        return {**inputs, "position_ids": ops.maximum(positions, 0)}, None

    def put(self, x):
        """The states of the tokens, `(batch, length, hidden_dim)`, with those that are placed."""
        if self.states is None:
            return x
        which = ops.maximum(self.counted - 1, 0)[..., None]
        states = ops.take_along_axis(ops.cast(self.states, x.dtype), which, axis=1)
        return ops.where(self.places[..., None], states, x)


def check_places(config: TransformerConfig, name: str, token_ids, mask) -> None:
    """ValueError for rows of ids, of NumPy, that have not as many placeholders as there are states.

    Args:
        config: `TransformerConfig` with a `placeholder_id`.
        name: what errors call the ids.
        token_ids: int `(batch, length)`.
        mask: bool `(batch, length)`, or None.
    """
    if not isinstance(token_ids, np.ndarray):
        return
    places = token_ids == config.placeholder_id
    if isinstance(mask, np.ndarray):
        places &= mask.astype("bool")
    wanted = config.num_placeholders
    for row, count in enumerate(places.sum(axis=1).tolist()):
        if count != wanted:
            raise ValueError(
                f"`{name}[{row}]` has {count} placeholders, tokens of the id "
                f"{config.placeholder_id}, and the encoder makes {wanted} states of an input: give "
                "each row as many."
            )
