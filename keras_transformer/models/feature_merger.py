"""Encoder states merged into the states of a decoder, in place of its placeholder tokens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.stems import Input

PREFIX_MASK = Input("prefix_mask", "bool", (None,))


@dataclasses.dataclass(frozen=True)
class PlaceholderTokens:
    """Options of a config for placed states, the same in all passes.

    Args:
        token: int, the id of a placeholder.
        count: int, number of placeholders in a row.
        visibility: str, the config's `placeholder_visibility`.
        apart: bool, whether positions count only the other tokens.
    """

    token: int
    count: int
    visibility: str
    apart: bool

    @classmethod
    def from_config(cls, config: TransformerConfig) -> "PlaceholderTokens | None":
        """Read the options of a config; None without a `placeholder_id`."""
        if config.placeholder_id is None:
            return None
        apart = config.decoder.position is not None
        visibility = config.placeholder_visibility
        return cls(config.placeholder_id, config.num_placeholders, visibility, apart)

    def check(self, name: str, token_ids, mask) -> None:
        """Raise ValueError if a row of NumPy ids has another number of placeholders.

        Args:
            name: name of the ids in errors.
            token_ids: int `(batch, length)`.
            mask: bool `(batch, length)`, or None.
        """
        if not isinstance(token_ids, np.ndarray):
            return
        places = token_ids == self.token
        if isinstance(mask, np.ndarray):
            places &= mask.astype("bool")
        for row, count in enumerate(places.sum(axis=1).tolist()):
            if count != self.count:
                raise ValueError(
                    f"`{name}[{row}]` has {count} placeholders, tokens of the id {self.token}, and "
                    f"the encoder makes {self.count} states of an input: give each row that many."
                )


class FeatureMerger:
    """Placed states of one pass: their places, their visibility, and the tokens' positions.

    Args:
        known: `PlaceholderTokens`.
        inputs: the decoder's inputs: `token_ids`, and optionally `padding_mask`, `prefix_mask` and
            `position_ids`.
        states: float `(batch, count, hidden_dim)`; None in a pass that continues a cache, which
            holds them.
    """

    def __init__(self, known: PlaceholderTokens, inputs: Mapping[str, Any], states):
        self.known, self.inputs, self.states = known, inputs, states
        self.places = self.counted = None
        if states is not None:
            places = ops.equal(inputs["token_ids"], known.token)
            if inputs.get("padding_mask") is not None:
                places = ops.logical_and(places, ops.cast(inputs["padding_mask"], "bool"))
            counted = ops.cumsum(ops.cast(places, "int32"), axis=1)
            # Padding may have the same id.
            self.places = ops.logical_and(places, counted <= known.count)
            self.counted = ops.minimum(counted, known.count)

    @property
    def prefix(self):
        """Number of first tokens that each token sees despite causality, `(batch, length)`."""
        kind = self.known.visibility
        if self.states is None or kind == "causal":
            return None
        whole = self.places if kind == "states" else ops.cast(self.inputs["prefix_mask"], "bool")
        last = ops.max(ops.where(whole, self._ends, 0), axis=1, keepdims=True)
        return ops.where(whole, last, 0)

    @property
    def _ends(self):
        """Numbers 1, 2, 3, ... for each row, even if its length is unknown."""
        return ops.cumsum(ops.ones_like(self.counted), axis=1)

    def stem_inputs(self, cache_positions) -> tuple[Mapping[str, Any], Any]:
        """Return the stem's inputs, and the cache's positions, which leave out placed states."""
        inputs = self.inputs
        if self.states is not None:  # the id may be outside the vocabulary
            ids = ops.where(self.places, 0, inputs["token_ids"])
            inputs = {**inputs, "token_ids": ids}
        if not self.known.apart:
            return inputs, cache_positions
        before = self.known.count if self.states is None else self.counted
        if cache_positions is not None:
            return inputs, ops.maximum(cache_positions - before, 0)
        if inputs.get("position_ids") is not None:
            return inputs, None
        positions = ops.maximum(self._ends - 1 - before, 0)
        return {**inputs, "position_ids": positions}, None

    def put(self, x):
        """Put the placed states into the tokens' states, `(batch, length, hidden_dim)`."""
        if self.states is None:
            return x
        which = ops.maximum(self.counted - 1, 0)[..., None]
        states = ops.take_along_axis(ops.cast(self.states, x.dtype), which, axis=1)
        return ops.where(self.places[..., None], states, x)
