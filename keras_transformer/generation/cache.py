"""The key/value cache of decoding."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.generation.slot_space import SlotSpace, placed
from keras_transformer.layers.masking import Visibility
from keras_transformer.layers.slots import Slots
from keras_transformer.planning.memory import cache_bytes

CACHE_DTYPES = ("float32", "float16", "bfloat16", "int8")

# The key of the space of layers that see everything; of the others it is their window.
EVERYTHING = 0


class Cache(NamedTuple):
    """What a decoder keeps of the tokens it has seen.

    A row is a prompt and its continuation. All rows write the same slots, so that a write is one
    slice update. Prompts of different lengths are padded on the right; `filled` masks the padded
    slots, and `positions` has each row's own count, so that every row decodes as if alone.

    A row can have several branches: continuations of one prompt side by side (beams). They write
    a slot each and share the slots of what they have in common: `filled` says for each branch
    which slots are its past. So a beam changes its parent without any key being moved.

    Layers that see equally far back share a space of slots. Each space frees the slots that no
    later token can see, so that layers with a window cache their window alone. Of a prompt longer
    than its slots, a space keeps the tokens that a later token can see.

    Fields:
        spaces: dict of `SlotSpace`, with `filled`, `positions`, `start` and `end`: by the window of
            their layers, 0 for those that see everything.
        cross: list, for each layer the tensors of the `layers.slots.Slots` of cross-attention;
            `()` before the first call, and always for a decoder without cross-attention.
        source: bool `(rows, source_length)`, the real tokens of the encoder's input;
            `(rows, 0)` before the first call and without an encoder.
        lengths: int `(rows,)`, number of real tokens of each row, or of each of its branches.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Cache
    import keras

    backbone = kt.models.Decoder(kt.TransformerConfig(
        kind="decoder", vocabulary_size=50, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32,
    ))
    ids = np.array([[3, 4, 5]])
    whole = backbone({"token_ids": ids})
    cache = Cache.create(backbone, rows=1, slots=8)
    _, cache = backbone({"token_ids": ids[:, :2]}, cache=cache)
    last, cache = backbone({"token_ids": ids[:, 2:]}, cache=cache)
    assert float(keras.ops.max(keras.ops.abs(whole[:, 2:] - last))) < 1e-5
    ```
    """

    spaces: dict[int, SlotSpace]
    cross: list[tuple]
    source: Any
    lengths: Any

    @classmethod
    def create(
        cls, backbone, rows: int, slots: int | Mapping[int, int], dtype: str | None = None
    ) -> "Cache":
        """An empty cache for a backbone with a decoder, of `backbone.cache_layers`.

        Args:
            backbone: the model.
            rows: int, sequences decoded together.
            slots: int, tokens there is room for; or a number for each of `spaces`.
            dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"int8"`, in which keys and values
                are kept. Defaults to the compute dtype of the model.
        """
        dtype = dtype or backbone.compute_dtype
        spaces = {}
        for key in spaces_of(backbone):
            room = slots[key] if isinstance(slots, Mapping) else slots
            layers = {
                i: Slots.make(rows, heads, room, head_dim, dtype).tensors
                for i, (heads, head_dim, *window) in enumerate(backbone.cache_layers)
                if _key(*window) == key
            }
            spaces[key] = SlotSpace.empty(layers, rows, room)
        return cls(
            spaces,
            cross=[()] * len(backbone.cache_layers),
            source=ops.zeros((rows, 0), "bool"),
            lengths=ops.zeros((rows,), "int32"),
        )

    @staticmethod
    def count_bytes(config, rows: int, slots: int, source: int = 0, itemsize: int = 4) -> int:
        """What the keys and values of a cache take while text is generated, in bytes.

        A layer with a window keeps no more than its window and the tokens of one call of the loop,
        64, however many there are.

        Args:
            config: `TransformerConfig` of a decoder or seq2seq.
            rows: int, sequences decoded together.
            slots: int, tokens of each.
            source: int, tokens of the encoder's input, for seq2seq.
            itemsize: int, bytes of a number: 4 for float32, 2 for float16 and bfloat16. 1 for
                int8, to which the scales come: 4 bytes for each key and each value of a head.
        """
        return cache_bytes(config, rows, slots, source, itemsize)

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def branches(self) -> int:
        return next(iter(self.spaces.values())).filled.shape[1]

    @property
    def slots(self) -> int:
        """Those of the largest space."""
        return max(space.slots for space in self.spaces.values())

    @property
    def layers(self) -> list[dict]:
        """A dict for each layer, `{"self": tensors, "cross": tensors}`."""
        return [
            {"self": self.spaces[self.space_of(i)].layers[i], "cross": cross}
            for i, cross in enumerate(self.cross)
        ]

    def reserve(self, inputs, mask) -> "Cache":
        """Slots and positions for the tokens of `inputs`, `(rows, length, ...)`.

        With branches the tokens are one for each branch, else one after the other.

        Args:
            inputs: tensor, for its shape.
            mask: bool `(rows, length)`, the real tokens, or None if all are.
        """
        rows, length = ops.shape(inputs)[:2]
        if self.branches > 1:
            own = ops.broadcast_to(ops.eye(length, dtype="bool"), (rows, length, length))
            positions = ops.broadcast_to(self.lengths[:, None], (rows, length))
            counts = 1
        else:
            mask = ops.ones((rows, length), "bool") if mask is None else ops.cast(mask, "bool")
            counted = ops.cumsum(ops.cast(mask, "int32"), axis=1)
            positions = ops.maximum(self.lengths[:, None] + counted - 1, 0)
            own, counts = mask[:, None], counted[:, -1]
        lengths = self.lengths + counts
        spaces = {
            key: space.reserve(own, positions, key or None, lengths)
            for key, space in self.spaces.items()
        }
        return self._replace(spaces=spaces, lengths=lengths)

    def visibilities(self, length: int) -> dict[int, Visibility]:
        """For each space which slots the `length` tokens of the call under way see."""
        return {key: space.visibility(length) for key, space in self.spaces.items()}

    def space_of(self, i: int) -> int:
        """The key of the space of layer `i`."""
        return next(key for key, space in self.spaces.items() if i in space.layers)

    def layer(self, i: int) -> dict:
        """The slots of layer `i`, for its block: `{"self": Slots, "cross": Slots or None}`."""
        space = self.spaces[self.space_of(i)]
        cross = Slots(*self.cross[i]) if self.cross[i] else None
        kept = None if isinstance(space.kept, tuple) else space.kept
        own = Slots(*space.layers[i], next=space.start, kept=kept)
        return {"self": own, "cross": cross}

    def with_layers(self, layers: list[dict], source=None) -> "Cache":
        """The cache after a call, with the slots that the blocks gave and the source's mask."""
        spaces = {}
        for key, space in self.spaces.items():
            own = {i: layers[i]["self"].tensors for i in space.layers}
            spaces[key] = space.with_layers(own, key or None, self.lengths)
        cross = [layer["cross"].tensors if layer["cross"] else () for layer in layers]
        source = self.source if source is None else source
        return self._replace(spaces=spaces, cross=cross, source=source)

    def part(self, first: int, last: int | None = None) -> "Cache":
        """The cache of one of several models that write the same slots: a part of the layers."""
        numbers = range(len(self.cross))[first:last]
        part = self._each(
            lambda space: space._replace(
                layers={i - first: layer for i, layer in space.layers.items() if i in numbers}
            )
        )
        return part._replace(cross=self.cross[first:last])

    def join(self, other: "Cache") -> "Cache":
        """With the layers of `other` behind its own; the slots are the same."""
        first, spaces = len(self.cross), dict(self.spaces)
        for key, space in other.spaces.items():
            layers = {first + i: layer for i, layer in space.layers.items()}
            mine = spaces.get(key, space._replace(layers={}))
            spaces[key] = mine._replace(layers={**mine.layers, **layers})
        spaces = {key: spaces[key] for key in sorted(spaces)}
        return self._replace(spaces=spaces, cross=[*self.cross, *other.cross])

    def branch(self, branches: int) -> "Cache":
        """Each row with so many branches, which have all that it holds in common."""
        if branches == 1:
            return self
        # Not `ops.repeat`: on PyTorch its rows share memory, and could not be written.
        each = ops.zeros((branches,), "int32")
        return self._each(lambda space: space._replace(filled=ops.take(space.filled, each, axis=1)))

    def as_tensors(self) -> "Cache":
        """With `start` and `end` as tensors, on whose values no compiled function depends."""

        def converted(space):
            start, end = (ops.convert_to_tensor(x, "int32") for x in (space.start, space.end))
            return space._replace(start=start, end=end)

        return self._each(converted)

    def as_full(self) -> "Cache":
        """With all slots taken, as Python integers: the next tokens come behind them."""
        return self._each(lambda space: space._replace(start=space.slots, end=space.slots))

    def continue_from(self, parents) -> "Cache":
        """Branch `i` continues what branch `parents[:, i]` was, int `(rows, branches)`."""
        parents = ops.cast(parents, "int32")[..., None]
        return self._each(
            lambda space: space._replace(filled=ops.take_along_axis(space.filled, parents, axis=1))
        )

    def keep_first(self, counts, length: int) -> "Cache":
        """Of the last `length` tokens only the first `counts`, int `(rows,)`, of each row."""
        kept = self._each(lambda space: space.keep_first(counts, length))
        return kept._replace(lengths=self.lengths - (length - counts))

    def grow(self, slots: int | Mapping[int, int]) -> "Cache":
        """The same content with room for `slots` tokens, or for a number for each space."""
        if not isinstance(slots, Mapping):
            slots = dict.fromkeys(self.spaces, slots)
        spaces = {key: space.grow(slots[key]) for key, space in self.spaces.items()}
        return self._replace(spaces=spaces)

    def replace_layers(self, layers: Mapping[int, dict]) -> "Cache":
        """With those layers in each space, whatever their slots."""
        spaces = {key: self.spaces[key]._replace(layers=own) for key, own in layers.items()}
        return self._replace(spaces=spaces)

    def in_use(self) -> dict:
        """For each space bool `(rows, slots)`, the slots that a later token can still see."""
        return {key: space.in_use(key or None, self.lengths) for key, space in self.spaces.items()}

    def compact(self, slots: Mapping[int, int] | None = None) -> "Cache":
        """The slots in use moved to the front.

        What goes: the padding of short prompts, branches that no hypothesis continues, and what
        has left a sliding window.

        Args:
            slots: of which spaces, and how many slots they keep: as many as are in use, or more.
                Defaults to all spaces, with those that they have.
        """
        if slots is None:
            slots = {key: space.slots for key, space in self.spaces.items()}
        used, spaces = self.in_use(), dict(self.spaces)
        spaces.update({key: spaces[key].compact(used[key], count) for key, count in slots.items()})
        return self._replace(spaces=spaces)

    def fit(self, slots: Mapping[int, int]) -> "Cache":
        """Compact where a space has more slots than it is to have."""
        larger = {key: count for key, count in slots.items() if self.spaces[key].slots > count}
        return self.compact(larger) if larger else self

    def take_rows(self, rows) -> "Cache":
        """The rows `rows`, int `(count,)`, in that order; a row may come several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(self[1:]))
        spaces = {key: space.take_rows(rows) for key, space in self.spaces.items()}
        return Cache(spaces, *taken)

    def place(self, other: "Cache", rows) -> "Cache":
        """With the rows of `other` in the places `rows`, int `(count,)`.

        It has as many slots and as long a source as the larger. On PyTorch what this cache holds
        may be written.
        """
        rest = keras.tree.map_structure(
            lambda mine, theirs: placed(mine, theirs, rows), tuple(self[1:]), tuple(other[1:])
        )
        spaces = {key: space.place(other.spaces[key], rows) for key, space in self.spaces.items()}
        return Cache(spaces, *rest)

    def _each(self, change: Callable[[SlotSpace], SlotSpace]) -> "Cache":
        return self._replace(spaces={key: change(space) for key, space in self.spaces.items()})


def spaces_of(*backbones) -> list[int]:
    """The keys of the spaces of a cache for these models."""
    return sorted({_key(*window) for model in backbones for _, _, *window in model.cache_layers})


def _key(window: int | None = None) -> int:
    return EVERYTHING if window is None else window
