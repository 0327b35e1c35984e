"""Slots that the rows of a batch share, for the layers that see equally far back."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.indexing import columns, put_rows, taken
from keras_transformer.layers.masking import Visibility, is_zero
from keras_transformer.layers.slots import write


class SlotSpace(NamedTuple):
    """The slots of some layers, and what they hold.

    All rows write the same slots, so that a write is one slice update.

    Fields:
        layers: dict, for the number of each layer the tensors of its `layers.slots.Slots`.
        filled: bool `(rows, branches, slots)`, the slots that a branch sees.
        positions: int `(rows, slots)`, the position of each slot's token in its row.
        start: the slot of the first token of the call under way, an int or a tensor as `end`.
        end: the next free slot. An int as long as it is known while a function is compiled, and
            then only the slots before it are read; else an int scalar tensor.
        kept: int `(rows, slots)`, while a call is under way that fills an empty space of a window
            with more tokens than it has slots: the tokens that it keeps of them. Until its end
            `filled` and `positions` are those of all. Else `()`, which is no tensor.
    """

    layers: dict[int, tuple]
    filled: Any
    positions: Any
    start: Any
    end: Any
    kept: Any = ()

    @classmethod
    def empty(cls, layers: dict[int, tuple], rows: int, slots: int) -> "SlotSpace":
        filled = ops.zeros((rows, 1, slots), "bool")
        return cls(layers, filled, ops.zeros((rows, slots), "int32"), start=0, end=0)

    @property
    def slots(self) -> int:
        return self.filled.shape[2]

    def reserve(self, own, positions, window: int | None, lengths) -> "SlotSpace":
        """The next slots for tokens at `positions` `(rows, length)` of rows with `lengths` then.

        `own`, bool `(rows, branches, length)`, says which of them each branch sees.
        """
        if is_zero(self.end) and window is not None and window - 1 <= self.slots < own.shape[2]:
            positions = ops.cast(positions, "int32")
            space = self._replace(filled=own, positions=positions, start=0, end=own.shape[2])
            return space._replace(kept=_used_first(space.in_use(window, lengths), self.slots))
        return self._replace(
            filled=write(self.filled, own, self.end, axis=2),
            positions=write(self.positions, ops.cast(positions, "int32"), self.end, axis=1),
            start=self.end,
            end=self.end + ops.shape(own)[2],
        )

    def with_layers(self, layers: dict[int, tuple], window: int | None, lengths) -> "SlotSpace":
        """After a call, with what its layers gave."""
        after = self._replace(layers=layers, kept=())
        if isinstance(self.kept, tuple):
            return after
        return after._ordered(self.in_use(window, lengths), self.kept)

    def visibility(self, length: int) -> Visibility:
        """Which slots the `length` tokens of the call under way see, and the positions of both."""
        filled, keys, places = self.filled, self.positions, ops.arange(length, dtype="int32")
        if isinstance(self.end, int):
            filled, keys = filled[..., : self.end], keys[:, : self.end]
            positions = keys[:, self.start :]
        else:
            positions = columns(keys, self.start + places)
        branches = filled.shape[1]
        if branches == 1 and is_zero(self.start):  # as without a cache
            return Visibility(filled[:, 0], query_positions=positions, key_positions=keys)
        if branches == 1:
            slots = ops.arange(ops.shape(filled)[2], dtype="int32")
            own = (self.start + places)[None, :, None]
            filled = ops.logical_and(filled, slots[None, None] <= own)
        return Visibility(query_positions=positions, key_positions=keys, explicit=filled)

    def keep_first(self, counts, length: int) -> "SlotSpace":
        """Of the last `length` tokens only the first `counts`, int `(rows,)`, of each row."""
        first = self.end - length
        slots = ops.arange(self.slots, dtype="int32")
        kept = slots[None, None] < (first + counts)[:, None, None]
        filled = ops.logical_and(self.filled, kept)
        return self._replace(filled=filled, end=first + ops.max(counts))

    def grow(self, slots: int) -> "SlotSpace":
        """The same content with room for `slots` tokens."""
        extra = slots - self.slots
        if not extra:
            return self
        return self._replace(
            layers={
                i: tuple(longer(x, 2, extra) for x in layer) for i, layer in self.layers.items()
            },
            filled=longer(self.filled, 2, extra),
            positions=longer(self.positions, 1, extra),
        )

    def in_use(self, window: int | None, lengths):
        """Bool `(rows, slots)`, what a later token can see of rows with so many tokens."""
        used = ops.any(self.filled, axis=1)
        if window is None:
            return used
        return ops.logical_and(used, self.positions > lengths[:, None] - window)

    def compact(self, used, slots: int) -> "SlotSpace":
        """The slots `used`, bool `(rows, slots)`, moved to the front; so many are kept."""
        order = _used_first(used, slots)
        layers = {i: tuple(taken(x, order) for x in layer) for i, layer in self.layers.items()}
        return self._replace(layers=layers)._ordered(used, order)

    def _ordered(self, used, order) -> "SlotSpace":
        """What is filled, and the positions, in the order that the layers have already."""
        filled = ops.logical_and(self.filled, used[:, None])
        return self._replace(
            filled=ops.take_along_axis(filled, order[:, None], axis=2),
            positions=ops.take_along_axis(self.positions, order, axis=1),
            start=ops.zeros((), "int32"),
            end=ops.cast(ops.max(ops.sum(ops.cast(used, "int32"), axis=1)), "int32"),
        )

    def take_rows(self, rows) -> "SlotSpace":
        """The rows `rows`, int `(count,)`, in that order; a row may come several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(self[:3]))
        return SlotSpace(*taken, self.start, self.end)

    def place(self, other: "SlotSpace", rows) -> "SlotSpace":
        """With the rows of `other` in the places `rows`, and as many slots as the larger has."""
        return SlotSpace(
            {
                i: tuple(placed(*pair, rows) for pair in zip(layer, other.layers[i], strict=True))
                for i, layer in self.layers.items()
            },
            filled=placed(self.filled, other.filled, rows),
            positions=placed(self.positions, other.positions, rows),
            start=ops.zeros((), "int32"),
            end=ops.cast(ops.maximum(self.end, other.end), "int32"),
        )


def longer(tensor, axis: int, extra: int):
    """With `extra` zeros behind an axis."""
    widths = [(0, 0)] * len(tensor.shape)
    widths[axis] = (0, extra)
    return ops.pad(tensor, widths)


def _used_first(used, slots: int):
    """The first `slots` of all, int `(rows, slots)`, those `used`, bool `(rows, all)`, first."""
    count = used.shape[1]
    places = ops.arange(count, dtype="int32")
    order = ops.argsort(ops.where(used, places, places + count), axis=1)
    return ops.cast(order, "int32")[:, :slots]


def placed(tensor, rows_of, places):
    """`tensor` with the rows of another in `places`, int `(count,)`; both padded to the larger.

    On PyTorch `tensor` itself may be written.
    """
    sizes = [max(pair) for pair in zip(tensor.shape[1:], rows_of.shape[1:], strict=True)]
    padded = []
    for each in (tensor, rows_of):
        widths = [(0, size - old) for size, old in zip(sizes, each.shape[1:], strict=True)]
        more = any(extra for _, extra in widths)
        padded.append(ops.pad(each, [(0, 0), *widths]) if more else each)
    return put_rows(*padded, places)
