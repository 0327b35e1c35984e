"""Key and value slots: the cache of one attention layer between decoding steps."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.indexing import put, taken
from keras_transformer.layers.arguments import agree, known_shape, show_shape

_LARGEST_INT8 = 127.0


@dataclasses.dataclass(frozen=True)
class KeyValueCache:
    """Keys and values that one attention layer has seen, and free slots for more.

    Both are `(rows, heads, slots, head_dim)`: a head's keys are contiguous, so the products of
    attention need no transposed copy. In int8, each key and each value has a scale.

    Keras sees an opaque object and not a structure of tensors, so that a layer does not cast
    compressed keys and values to its compute dtype.

    Fields:
        keys, values: tensors `(rows, heads, slots, head_dim)`.
        key_scales, value_scales: float32 `(rows, heads, slots, 1)` for int8, else None.
        next: int or int scalar tensor, the first free slot, where the next keys are written. If it
            is an int, later slots are not read. None if the slots are full, as for the states of an
            encoder.
        kept: int `(rows, slots)`, the indices of the new tokens to keep if there are more of them
            than slots. None keeps all.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MultiHeadAttention
    from keras_transformer.layers.attention.key_value_cache import KeyValueCache

    attention = MultiHeadAttention(num_heads=2, head_dim=4, causal=True)
    slots = KeyValueCache.make(rows=1, heads=2, slots=8, head_dim=4, dtype="float32")
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
    def make(cls, rows: int, heads: int, slots: int, head_dim: int, dtype: str) -> "KeyValueCache":
        """Return empty slots that store numbers as `dtype`, a floating point dtype or `"int8"`."""
        stored = [ops.zeros((rows, heads, slots, head_dim), dtype) for _ in range(2)]
        if dtype == "int8":
            stored += [ops.zeros((rows, heads, slots, 1), "float32") for _ in range(2)]
        return cls(*stored, next=0)

    def like(self, slots: int) -> "KeyValueCache":
        """Return `slots` empty slots of the same kind."""
        rows, heads, _, head_dim = ops.shape(self.keys)
        dtype = keras.backend.standardize_dtype(self.keys.dtype)
        return self.make(rows, heads, slots, head_dim, dtype)

    def check_fit(self, states: tuple | None, heads: int, head_dim: int) -> None:
        """Raise ValueError if an attention's keys and values do not fit these slots.

        Args:
            states: shape of the queries, `(batch, length, dim)`, or None if it is unknown.
            heads: number of key and value heads of the attention.
            head_dim: width of a head.
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
        """Return the stored tensors, for `KeyValueCache(*tensors, next=...)`."""
        kept = (self.keys, self.values, self.key_scales, self.value_scales)
        return kept[:2] if self.key_scales is None else kept

    def write(self, keys, values) -> "KeyValueCache":
        """Write new keys and values `(rows, length, heads, head_dim)` to the next slots."""
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
        return KeyValueCache(
            *(
                write(kept, ops.cast(x, kept.dtype), start, axis=2)
                for kept, x in zip(self.tensors, new, strict=True)
            ),
            next=end,
        )

    def write_halves(self, states) -> "KeyValueCache":
        """Write states `(rows, length, dim)`, in two halves as the key and value of one head."""
        return self.write(*(half[:, :, None] for half in ops.split(states, 2, axis=-1)))

    def after(self, length) -> "KeyValueCache":
        """Return the same slots with `length` more of them taken, which hold new tokens already."""
        return dataclasses.replace(self, next=self.next + length)

    def full(self) -> "KeyValueCache":
        """Return the same slots, read-only."""
        return dataclasses.replace(self, next=None)

    def read(self, dtype: str) -> tuple:
        """Return keys and values `(rows, heads, slots, head_dim)`, up to the last written slot."""
        known = isinstance(self.next, int)
        kept = tuple(x[:, :, : self.next] for x in self.tensors) if known else self.tensors
        if self.key_scales is None:
            return tuple(ops.cast(x, dtype) for x in kept)
        scaled = zip(kept[:2], kept[2:], strict=True)
        return tuple(ops.cast(ops.cast(x, "float32") * scale, dtype) for x, scale in scaled)


def write(tensor, values, index, axis: int):
    """Return `tensor` with `values` written along `axis`, the axis of slots, from `index` on.

    The values are appended if `index` is past the last slot or the number of slots is dynamic;
    exported graphs need this.
    """
    size = tensor.shape[axis]
    if size is None or (not ops.is_tensor(index) and index == size):
        return ops.concatenate([tensor, ops.cast(values, tensor.dtype)], axis=axis)
    return put(tensor, values, index, axis)


def _quantized(x) -> tuple:
    x = ops.cast(x, "float32")
    scale = ops.maximum(ops.max(ops.abs(x), axis=-1, keepdims=True), 1e-8) / _LARGEST_INT8
    return ops.cast(ops.round(x / scale), "int8"), scale
