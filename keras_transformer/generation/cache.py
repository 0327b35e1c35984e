"""The key/value cache of decoding."""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.layers.masking import Visibility, is_zero
from keras_transformer.layers.slots import Slots, put
from keras_transformer.planning.memory import cache_bytes

CACHE_DTYPES = ("float32", "float16", "bfloat16", "int8")


class Cache(NamedTuple):
    """What a decoder keeps of the tokens it has seen.

    A row is a prompt and what continues it. The slots are shared: all rows write the same slots,
    so that a write is one slice update. Prompts of different lengths are padded on the right;
    `filled` hides the padded slots and `positions` holds each row's own count, so that every row
    decodes as if alone.

    A row can have several branches: continuations of one prompt side by side (beams). They write
    a slot each and share the slots of what they have in common: `filled` says of each branch
    which slots are its past. So a beam changes its parent without any key being moved.

    Fields:
        layers: a list with one dict a layer, `{"self": tensors, "cross": tensors}`, each the
            tensors of `layers.slots.Slots`. `"cross"` is empty before the first call, and always
            for a decoder without cross-attention.
        source: bool `(rows, source_length)`, the real tokens of the encoder's input;
            `(rows, 0)` before the first call and without an encoder.
        filled: bool `(rows, branches, slots)`, the slots that a branch sees.
        positions: int `(rows, slots)`, the position of each slot's token in its row.
        lengths: int `(rows,)`, number of real tokens of each row, or of each of its branches.
        start: the slot of the first token of the call under way, an int or a tensor as `end`.
        end: the next free slot. An int as long as it is known while a function is compiled, and
            then only the slots before it are read; else an int scalar tensor.

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

    layers: list
    source: object
    filled: object
    positions: object
    lengths: object
    start: object
    end: object

    @classmethod
    def create(cls, backbone, rows: int, slots: int, dtype: str | None = None) -> "Cache":
        """An empty cache for a backbone with a decoder, of `backbone.cache_layers`.

        Args:
            backbone: the model.
            rows: int, sequences decoded together.
            slots: int, tokens there is room for.
            dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"int8"`, in which keys and values
                are kept. Defaults to the compute dtype of the model.
        """
        dtype = dtype or backbone.compute_dtype
        layers = [
            {"self": Slots.make(rows, heads, slots, head_dim, dtype).tensors, "cross": ()}
            for heads, head_dim in backbone.cache_layers
        ]
        return cls(
            layers,
            source=ops.zeros((rows, 0), "bool"),
            filled=ops.zeros((rows, 1, slots), "bool"),
            positions=ops.zeros((rows, slots), "int32"),
            lengths=ops.zeros((rows,), "int32"),
            start=0,
            end=0,
        )

    @staticmethod
    def count_bytes(config, rows: int, slots: int, source: int = 0, itemsize: int = 4) -> int:
        """What the keys and values of a cache take, in bytes.

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
        return self.filled.shape[0]

    @property
    def branches(self) -> int:
        return self.filled.shape[1]

    @property
    def slots(self) -> int:
        return self.filled.shape[2]

    def reserve(self, inputs, mask) -> "Cache":
        """Slots and positions for the tokens of `inputs`, `(rows, length, ...)`.

        With branches the tokens are one for each branch, else one after the other.

        Args:
            inputs: tensor, for its shape.
            mask: bool `(rows, length)`, the real tokens, or None if all are.
        """
        rows, length = inputs.shape[:2]
        if self.branches > 1:
            own = ops.broadcast_to(ops.eye(length, dtype="bool"), (rows, length, length))
            positions = ops.broadcast_to(self.lengths[:, None], (rows, length))
            counts = 1
        else:
            mask = ops.ones((rows, length), "bool") if mask is None else ops.cast(mask, "bool")
            counted = ops.cumsum(ops.cast(mask, "int32"), axis=1)
            positions = ops.maximum(self.lengths[:, None] + counted - 1, 0)
            own, counts = mask[:, None], counted[:, -1]
        return self._replace(
            filled=put(self.filled, own, self.end, axis=2),
            positions=put(self.positions, ops.cast(positions, "int32"), self.end, axis=1),
            lengths=self.lengths + counts,
            start=self.end,
            end=self.end + length,
        )

    def visibility(self, length: int) -> Visibility:
        """Which slots the `length` tokens of the call under way see, and the positions of both."""
        filled, keys, places = self.filled, self.positions, ops.arange(length, dtype="int32")
        if isinstance(self.end, int):
            filled, keys = filled[..., : self.end], keys[:, : self.end]
            positions = keys[:, self.start :]
        else:
            positions = ops.take(keys, self.start + places, axis=1)
        if self.branches == 1 and is_zero(self.start):  # as without a cache
            return Visibility(filled[:, 0], query_positions=positions, key_positions=keys)
        if self.branches == 1:
            slots = ops.arange(filled.shape[2], dtype="int32")
            own = (self.start + places)[None, :, None]
            filled = ops.logical_and(filled, slots[None, None] <= own)
        return Visibility(query_positions=positions, key_positions=keys, explicit=filled)

    def layer(self, i: int) -> dict:
        """The slots of layer `i`, for its block: `{"self": Slots, "cross": Slots or None}`."""
        layer = self.layers[i]
        cross = Slots(*layer["cross"]) if layer["cross"] else None
        return {"self": Slots(*layer["self"], next=self.start), "cross": cross}

    def with_layers(self, layers: list[dict], source=None) -> "Cache":
        """The cache after a call, with the slots that the blocks gave and the source's mask."""
        tensors = [
            {name: slots.tensors if slots else () for name, slots in layer.items()}
            for layer in layers
        ]
        return self._replace(layers=tensors, source=self.source if source is None else source)

    def part(self, first: int, last: int | None = None) -> "Cache":
        """The cache of one of several models that write the same slots: a part of the layers."""
        return self._replace(layers=self.layers[first:last])

    def join(self, other: "Cache") -> "Cache":
        """With the layers of `other` behind its own; the slots are the same."""
        return self._replace(layers=[*self.layers, *other.layers])

    def branch(self, branches: int) -> "Cache":
        """Each row with so many branches, which have all that it holds in common."""
        if branches == 1:
            return self
        # Not `ops.repeat`: on PyTorch its rows share memory, and could not be written.
        each = ops.zeros((branches,), "int32")
        return self._replace(filled=ops.take(self.filled, each, axis=1))

    def as_tensors(self) -> "Cache":
        """With `start` and `end` as tensors: what they are is not to be known to a compiler."""
        start, end = (ops.convert_to_tensor(x, dtype="int32") for x in (self.start, self.end))
        return self._replace(start=start, end=end)

    def continue_at(self, slot: int) -> "Cache":
        """With `slot`, which a compiler may know, as the next free one."""
        return self._replace(start=slot, end=slot)

    def continue_from(self, parents) -> "Cache":
        """Branch `i` continues what branch `parents[:, i]` was, int `(rows, branches)`."""
        return self._replace(
            filled=ops.take_along_axis(self.filled, ops.cast(parents, "int32")[..., None], axis=1)
        )

    def keep_first(self, counts, length: int) -> "Cache":
        """Of the last `length` tokens only the first `counts`, int `(rows,)`, of each row."""
        first = self.end - length
        slots = ops.arange(self.slots, dtype="int32")
        kept = slots[None, None] < (first + counts)[:, None, None]
        return self._replace(
            filled=ops.logical_and(self.filled, kept),
            lengths=self.lengths - (length - counts),
            end=first + ops.max(counts),
        )

    def grow(self, slots: int) -> "Cache":
        """The same content with room for `slots` tokens."""
        extra = slots - self.slots

        def pad(tensor, axis):
            widths = [(0, 0)] * len(tensor.shape)
            widths[axis] = (0, extra)
            return ops.pad(tensor, widths)

        layers = [
            {**layer, "self": tuple(pad(x, 2) for x in layer["self"])} for layer in self.layers
        ]
        return self._replace(
            layers=layers, filled=pad(self.filled, 2), positions=pad(self.positions, 1)
        )

    def in_use(self, window: int | None):
        """Bool `(rows, slots)`, the slots that a later token can still see."""
        used = ops.any(self.filled, axis=1)
        if window is None:
            return used
        return ops.logical_and(used, self.positions > self.lengths[:, None] - window)

    def compact(self, window: int | None = None) -> "Cache":
        """The slots in use moved to the front.

        What goes: the padding of short prompts, branches that no hypothesis continues, and what
        has left a sliding window.
        """
        used = self.in_use(window)
        places = ops.arange(self.slots, dtype="int32")
        order = ops.argsort(ops.where(used, places, places + self.slots), axis=1)
        order = ops.cast(order, "int32")
        filled = ops.logical_and(self.filled, used[:, None])

        def of_heads(tensor):
            return ops.take_along_axis(tensor, order[:, None, :, None], axis=2)

        return self._replace(
            layers=[
                {**layer, "self": tuple(map(of_heads, layer["self"]))} for layer in self.layers
            ],
            filled=ops.take_along_axis(filled, order[:, None], axis=2),
            positions=ops.take_along_axis(self.positions, order, axis=1),
            start=ops.zeros((), "int32"),
            end=ops.cast(ops.max(ops.sum(ops.cast(used, "int32"), axis=1)), "int32"),
        )

    def take_rows(self, rows) -> "Cache":
        """The rows `rows`, int `(count,)`, in that order; a row may come several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(self[:5]))
        return Cache(*taken, self.start, self.end)

    def append(self, other: "Cache") -> "Cache":
        """The rows of both, with as many slots and as long a source as the larger has."""
        layers = [
            {name: tuple(map(join_padded, mine[name], theirs[name])) for name in ("self", "cross")}
            for mine, theirs in zip(self.layers, other.layers, strict=True)
        ]
        return Cache(
            layers,
            source=join_padded(self.source, other.source),
            filled=join_padded(self.filled, other.filled),
            positions=join_padded(self.positions, other.positions),
            lengths=ops.concatenate([self.lengths, other.lengths], axis=0),
            start=ops.zeros((), "int32"),
            end=ops.cast(ops.maximum(self.end, other.end), "int32"),
        )


def join_padded(first, second):
    """The rows of both tensors, padded with zeros to the larger of each size."""
    sizes = [max(pair) for pair in zip(first.shape[1:], second.shape[1:], strict=True)]
    padded = []
    for tensor in (first, second):
        widths = [(0, size - old) for size, old in zip(sizes, tensor.shape[1:], strict=True)]
        more = any(extra for _, extra in widths)
        padded.append(ops.pad(tensor, [(0, 0), *widths]) if more else tensor)
    return ops.concatenate(padded, axis=0)
