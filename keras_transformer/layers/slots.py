"""Keys and values in slots: how attention keeps them between the steps of decoding."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_transformer.checking import agree, known_shape, show_shape
from keras_transformer.kernels.indexing import put, taken

_LARGEST_INT8 = 127.0


@dataclasses.dataclass(frozen=True)
class Slots:
    """The keys and values that one attention layer has seen, and room for more.

    Both are `(rows, heads, slots, head_dim)`: a head's keys lie side by side, and the products of
    attention need no transposed copy. Kept as int8, each key and each value has a scale.

    To Keras this is an object and not a structure of tensors, so that a layer does not cast what
    is kept in fewer bytes to its compute dtype.

    Fields:
        keys, values: tensors `(rows, heads, slots, head_dim)`.
        key_scales, value_scales: float32 `(rows, heads, slots, 1)` for int8, else None.
        next: int or int scalar tensor, the first free slot, where the next keys are written. The
            slots from an int on are not read. None for slots that are full, as those of an
            encoder's states.
        kept: int `(rows, slots)`, of the next tokens, more than there are slots, those that are
            kept. None where all are.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MultiHeadAttention
    from keras_transformer.layers.slots import Slots

    attention = MultiHeadAttention(num_heads=2, head_dim=4, causal=True)
    slots = Slots.make(rows=1, heads=2, slots=8, head_dim=4, dtype="float32")
    states, slots = attention(np.ones((1, 3, 8), "float32"), cache=slots)
    assert slots.keys.shape == (1, 2, 8, 4) and slots.next == 3
    ```
    """

    keys: Any
    values: Any
    key_scales: Any = None
    value_scales: Any = None
    next: Any = None
    kept: Any = None

    @classmethod
    def make(cls, rows: int, heads: int, slots: int, head_dim: int, dtype: str) -> "Slots":
        """Return empty slots that keep numbers as `dtype`: a floating point dtype or `"int8"`."""
        stored = [ops.zeros((rows, heads, slots, head_dim), dtype) for _ in range(2)]
        if dtype == "int8":
            stored += [ops.zeros((rows, heads, slots, 1), "float32") for _ in range(2)]
        return cls(*stored, next=0)

    def like(self, slots: int) -> "Slots":
        """Empty slots of the same kind, of another number."""
        rows, heads, _, head_dim = ops.shape(self.keys)
        dtype = keras.backend.standardize_dtype(self.keys.dtype)
        return self.make(rows, heads, slots, head_dim, dtype)

    def check_fit(self, states: tuple | None, heads: int, head_dim: int) -> None:
        """Raise ValueError if an attention's keys and values cannot be kept here.

        Args:
            states: shape of its queries, `(batch, length, dim)`, or None if it is unknown.
            heads: its number of heads of keys and values.
            head_dim: the width of a head.
        """
        shape = known_shape(self.keys)
        rows = "batch" if states is None else states[0]
        needed = (rows, heads, "slots", head_dim)
        if shape is not None and not agree(shape, needed):
            raise ValueError(
                f"The keys of a `cache` for this attention must be of shape {show_shape(needed)}, "
                f"received {show_shape(shape)}."
            )

    @property
    def tensors(self) -> tuple:
        """What is kept, for `Slots(*tensors, next=...)`."""
        kept = (self.keys, self.values, self.key_scales, self.value_scales)
        return kept[:2] if self.key_scales is None else kept

    def write(self, keys, values) -> "Slots":
        """With new keys and values `(rows, length, heads, head_dim)` in the next slots."""
        start = 0 if self.next is None else self.next
        end = start + ops.shape(keys)[1]
        new = [ops.transpose(x, (0, 2, 1, 3)) for x in (keys, values)]
        if self.kept is not None:
            new = [taken(x, self.kept) for x in new]
        length, slots = new[0].shape[2], self.keys.shape[2]
        known = all(isinstance(x, int) for x in (start, length, slots))
        if known and start < slots < start + length:
            raise ValueError(
                f"The cache has {slots} slots, of which {slots - start} are free: there is no room "
                f"for {length} more tokens."
            )
        if self.key_scales is not None:
            (keys, key_scales), (values, value_scales) = map(_quantized, new)
            new = [keys, values, key_scales, value_scales]
        return Slots(
            *(
                write(kept, ops.cast(x, kept.dtype), start, axis=2)
                for kept, x in zip(self.tensors, new, strict=True)
            ),
            next=end,
        )

    def full(self) -> "Slots":
        """The same slots, to be read only."""
        return dataclasses.replace(self, next=None)

    def read(self, dtype: str) -> tuple:
        """Keys and values `(rows, heads, slots, head_dim)`, as far as is known to be written."""
        known = isinstance(self.next, int)
        kept = tuple(x[:, :, : self.next] for x in self.tensors) if known else self.tensors
        if self.key_scales is None:
            return tuple(ops.cast(x, dtype) for x in kept)
        scaled = zip(kept[:2], kept[2:], strict=True)
        return tuple(ops.cast(ops.cast(x, "float32") * scale, dtype) for x, scale in scaled)


def write(tensor, values, index, axis: int):
    """`tensor` with `values` along the slots `axis` from `index` on.

    Where there is no room, `index` being behind the last slot or there being any number of slots,
    they are joined: in graphs that are exported.
    """
    size = tensor.shape[axis]
    if size is None or (not ops.is_tensor(index) and index == size):
        return ops.concatenate([tensor, ops.cast(values, tensor.dtype)], axis=axis)
    return put(tensor, values, index, axis)


def _quantized(x) -> tuple:
    x = ops.cast(x, "float32")
    scale = ops.maximum(ops.max(ops.abs(x), axis=-1, keepdims=True), 1e-8) / _LARGEST_INT8
    return ops.cast(ops.round(x / scale), "int8"), scale
