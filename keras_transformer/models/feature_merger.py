"""States of images merged into those of tokens, in place of the placeholders among them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.stems import Input

PREFIX_MASK = Input("prefix_mask", "bool", (None,))
PLACED_STATES = Input("placed_states", "int32", (None,), of_tokens=False)
MIXED_STATES = Input("mixed_states", "int32", (None, 4), of_tokens=False)
MIXED_WEIGHTS = Input("mixed_weights", "float32", (None, 4), of_tokens=False)
OFFSETS = "placed_offsets"


def placed_inputs(config: TransformerConfig) -> tuple[Input, ...]:
    """Return the inputs of a side with placeholders that say what replaces them."""
    axes = position_axes(config)
    offsets = (Input(OFFSETS, "int32", (None, axes + 1), of_tokens=False),) if axes else ()
    return (PLACED_STATES, *offsets)


def position_axes(config: TransformerConfig) -> int:
    """Return the number of axes of the positions of placeholders, 0 if they have one number."""
    side = getattr(config, config.placeholders.side)
    positions = (getattr(block.mixer, "position", None) for block in side.every_block)
    axes = (getattr(position, "position_axes", None) for position in positions)
    return next((len(each.pairs) for each in axes if each is not None), 0)


def joined_states(images, sound):
    """Return the states of images, or None, and those of sound behind them, as of one input.

    Both are float `(inputs, states, width)`, and the result is `(1, all states, width)`.
    """
    tables = [ops.reshape(x, (1, -1, x.shape[-1])) for x in (images, sound) if x is not None]
    return ops.concatenate([ops.cast(x, sound.dtype) for x in tables], axis=1)


@dataclasses.dataclass(frozen=True)
class PlaceholderTokens:
    """Options of a config for placed states, the same in all passes.

    Args:
        token: int, the id of a placeholder.
        side: str, the side whose tokens they are, `"encoder"` or `"decoder"`.
        images: str, the side whose states, or those of the queries behind it, replace them.
        count: int, number of placeholders of an input of the encoder. None if it depends on the
            input.
        visibility: str, the config's `placeholder_visibility`.
        apart: bool, whether positions count only the other tokens.
        counted: bool, whether positions that are added to states are those of placed ones too.
        axes: int, number of axes of the positions, 0 if a position is one number.
    """

    token: int
    side: str
    images: str
    count: int | None
    visibility: str
    apart: bool
    counted: bool = False
    axes: int = 0

    @classmethod
    def from_config(cls, config: TransformerConfig) -> "PlaceholderTokens | None":
        """Read the options of a config; None without a `placeholder_id`."""
        if config.placeholder_id is None:
            return None
        part, axes = config.placeholders, position_axes(config)
        apart = getattr(config, part.side).position is not None and not part.counted
        count, images = config.num_placeholders, config.placed_side
        placed = part.token_id, part.side, images, count, part.visibility
        return cls(*placed, apart, part.counted, axes)

    def check(self, name: str, token_ids, mask, placed=None) -> None:
        """Raise ValueError if a row of NumPy ids has another number of placeholders.

        Args:
            name: name of the ids in errors.
            token_ids: int `(batch, length)`.
            mask: bool `(batch, length)`, or None.
            placed: int `(batch, most)`, the input `placed_states`, or None.
        """
        if placed is not None and self.apart:
            raise ValueError(
                "The positions of this model count only the tokens beside the states of one input: "
                f"leave out `{self.side}_placed_states`, and give each row one input."
            )
        if placed is None and self.count is None:
            raise ValueError(
                f"The images have different numbers of states: give `{self.side}_placed_states`, "
                "int (batch, most), which state replaces each placeholder of a row."
            )
        if not isinstance(token_ids, np.ndarray) or not isinstance(placed, np.ndarray | None):
            return
        places = token_ids == self.token
        if isinstance(mask, np.ndarray):
            places &= mask.astype("bool")
        counts, wanted = places.sum(axis=1).tolist(), [self.count] * len(places)
        given = f"the encoder makes {self.count} states of an input"
        if placed is not None:
            wanted = (placed >= 0).sum(axis=1).tolist()
        for row, (count, number) in enumerate(zip(counts, wanted, strict=True)):
            if count != number:
                if placed is not None:
                    given = f"`{self.side}_placed_states[{row}]` has {number} states"
                raise ValueError(
                    f"`{name}[{row}]` has {count} placeholders, tokens of the id {self.token}, and "
                    f"{given}: give each row that many."
                )


class FeatureMerger:
    """Placed states of one pass: their places, their visibility, and the tokens' positions.

    Args:
        known: `PlaceholderTokens`.
        inputs: the decoder's inputs: `token_ids`, and optionally `padding_mask`, `prefix_mask`,
            `position_ids` and `placed_states` int `(batch, most)`: which state replaces each
            placeholder of a row, counted over all inputs of the encoder, and -1 behind them.
            Without these, row `i` has the states of input `i`. With positions of several axes also
            `placed_offsets` int `(batch, most, axes + 1)`: what is added to the place of each
            placeholder in its row for its position on each axis, and, the last number, to the
            places of the tokens behind it. With a separator also `mixed_states` int `(batch,
            most_mixed, 4)` and `mixed_weights` float of the same shape: states that are weighted
            sums of four others, whose numbers follow that of the separator, row by row.
        states: float `(inputs, count, hidden_dim)`, or several times as wide, with the states that
            are added behind the first layers; None in a pass that places none, such as one that
            continues a cache, which holds them.
        separator: float `(hidden_dim,)`, a further state, whose number follows theirs; or None.
        hard: function of token ids and their states, which returns the states with those of tokens
            that have other embeddings; or None.
    """

    def __init__(
        self,
        known: PlaceholderTokens,
        inputs: Mapping[str, Any],
        states,
        separator=None,
        hard: Callable | None = None,
    ):
        self.known, self.inputs, self.states = known, inputs, states
        self.separator, self.hard = separator, hard
        self.places = self.counted = None
        if states is not None:
            places = ops.equal(inputs["token_ids"], known.token)
            if inputs.get("padding_mask") is not None:
                places = ops.logical_and(places, ops.cast(inputs["padding_mask"], "bool"))
            most, placed = known.count, inputs.get("placed_states")
            if placed is not None:
                most = ops.sum(ops.cast(placed >= 0, "int32"), axis=1, keepdims=True)
            counted = ops.cumsum(ops.cast(places, "int32"), axis=1)
            # Padding may have the same id.
            self.places = ops.logical_and(places, counted <= most)
            self.counted = ops.minimum(counted, most)

    @property
    def visibility(self) -> dict[str, Any]:
        """Fields of `AttentionMask` that say what each token sees despite causality."""
        kind, places, count = self.known.visibility, self.places, self.known.count
        if kind == "prompt" and self.inputs.get("prefix_mask") is not None:
            whole = ops.cast(self.inputs["prefix_mask"], "bool")
            last = ops.max(ops.where(whole, self._ends, 0), axis=1, keepdims=True)
            return {"prefix": ops.where(whole, last, 0)}
        if kind == "windows" and self.states is not None:
            # A state also sees those behind itself in its run, the places next to each other.
            ends = ops.where(self.places, ops.max(self._ends), self._ends - 1)
            others = ops.sort(ends, axis=1)  # the places of tokens, then the length
            before = self._ends - ops.cumsum(ops.cast(self.places, "int32"), axis=1)
            before = ops.where(self.places, before, 0)
            until = ops.take_along_axis(others, before, axis=1)
            prefix = ops.where(self.places, until, 0)
            return {"prefix": prefix, "prefix_start": self._ends, "prefix_in_windows": True}
        if kind != "states" or self.states is None:
            return {}
        # The states of an input are next to each other. A state also sees those behind itself; what
        # it sees before itself is up to causality and the window.
        start = self._ends - 1 - ops.maximum(self.counted - 1, 0) % count
        return {"prefix": ops.where(places, start + count, 0), "prefix_start": self._ends}

    @property
    def positions(self) -> dict[str, Any]:
        """The positions of all tokens, `(batch, length, axes)`, if they have several axes."""
        offsets = self.inputs.get(OFFSETS)
        if self.states is None or offsets is None:
            return {}
        which = ops.maximum(self.counted - 1, 0)[..., None]
        offsets = ops.take_along_axis(ops.cast(offsets, "int32"), which, axis=1)
        behind = ops.where(self.counted[..., None] > 0, offsets[..., -1:], 0)
        added = ops.where(self.places[..., None], offsets[..., :-1], behind)
        return {"position_ids": self._ends[..., None] - 1 + added}

    @property
    def _ends(self):
        """Numbers 1, 2, 3, ... for each row, even if its length is unknown."""
        return ops.cumsum(ops.ones_like(self.inputs["token_ids"], "int32"), axis=1)

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

    def embedded(self, stem, cache_positions=None, training: bool = False) -> tuple:
        """Embed the tokens with their stem, and put the placed states among them.

        Returns:
            `layers.stems.Embedded`, and the list of `put`.
        """
        inputs, positions = self.stem_inputs(cache_positions)
        options = {"cache_positions": positions, "layer_inputs": False, "training": training}
        if self.known.counted and self.states is not None:
            x = inputs.get("token_embeddings")
            x = stem.token_embedding(inputs["token_ids"]) if x is None else x
            x, added = self.put(x)
            inputs = {**inputs, "token_embeddings": x}
            return stem(inputs, **options), added
        embedded = stem(inputs, **options)
        states = embedded.states
        if self.hard is not None:
            states = self.hard(inputs["token_ids"], states)
        states, added = self.put(states)
        return embedded._replace(states=states), added

    def put(self, x) -> tuple:
        """Put the placed states into the tokens' states, `(batch, length, hidden_dim)`.

        Returns:
            The states, and a list of states of the same shape that are added to those behind each
            of the first layers: 0 for tokens that are not placed.
        """
        if self.states is None:
            return x, []
        which = ops.maximum(self.counted - 1, 0)
        states, placed = ops.cast(self.states, x.dtype), self.inputs.get("placed_states")
        if placed is None:
            states = ops.take_along_axis(states, which[..., None], axis=1)
        else:
            table = ops.reshape(states, (-1, states.shape[-1]))
            if self.separator is not None:
                table = self._with_further(table)
            index = ops.take_along_axis(ops.cast(placed, "int32"), which, axis=1)
            states = ops.take(table, ops.maximum(index, 0), axis=0)
        first, *added = ops.split(states, states.shape[-1] // x.shape[-1], axis=-1)
        places = self.places[..., None]
        return ops.where(places, first, x), [ops.where(places, each, 0) for each in added]

    def _with_further(self, table):
        """Return a table of states, followed by the separator and the mixed states."""
        parts = [table, ops.cast(self.separator, table.dtype)[None]]
        if self.inputs.get("mixed_states") is not None:
            mixed = ops.take(table, ops.cast(self.inputs["mixed_states"], "int32"), axis=0)
            weights = ops.cast(self.inputs["mixed_weights"], table.dtype)
            mixed = ops.sum(mixed * weights[..., None], axis=2)
            parts.append(ops.reshape(mixed, (-1, table.shape[-1])))
        return ops.concatenate(parts)
