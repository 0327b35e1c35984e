"""The key/value cache of decoding: one object, one protocol."""

from typing import NamedTuple

import keras
from keras import ops


class Cache(NamedTuple):
    """What a decoder keeps of the tokens it has seen.

    The slots are shared: token by token all rows write the same slot, so that a write is one
    slice update. Prompts of different lengths are padded on the right; `filled` hides the padded
    slots and `positions` holds each row's own count, so that every row decodes as if alone.

    Fields:
        layers: a list with one dict a block, `{"self": (keys, values), "cross": (keys, values)}`,
            each `(rows, slots, num_key_value_heads, head_dim)`. `"cross"` is empty before the
            first call, and always for a decoder without cross-attention.
        filled: bool `(rows, slots)`, slots that hold a real token.
        positions: int `(rows, slots)`, the position of each slot's token in its row.
        lengths: int `(rows,)`, number of real tokens of each row.
        start: int scalar, the slot of the first token of the call under way.
        end: int scalar, the next free slot.

    Example:
    ```python
    import keras
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Cache

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
    filled: object
    positions: object
    lengths: object
    start: object
    end: object

    @classmethod
    def create(cls, backbone, rows: int, slots: int) -> "Cache":
        """An empty cache for a `Decoder` or `Seq2Seq` backbone."""
        config = backbone.config
        shape = (rows, slots, config.num_key_value_heads, config.head_dim)
        layers = [
            {
                "self": tuple(ops.zeros(shape, backbone.compute_dtype) for _ in range(2)),
                "cross": (),
            }
            for _ in backbone.decoder.order
        ]
        return cls(
            layers,
            filled=ops.zeros((rows, slots), "bool"),
            positions=ops.zeros((rows, slots), "int32"),
            lengths=ops.zeros((rows,), "int32"),
            start=ops.zeros((), "int32"),
            end=ops.zeros((), "int32"),
        )

    @staticmethod
    def count_bytes(config, rows: int, slots: int, source: int = 0, itemsize: int = 4) -> int:
        """What the keys and values of a cache take, in bytes.

        Args:
            config: `TransformerConfig` of a decoder or seq2seq.
            rows: int, sequences decoded together.
            slots: int, tokens of each.
            source: int, tokens of the encoder's input, for seq2seq.
            itemsize: int, bytes of a number: 4 for float32, 2 for float16 and bfloat16.
        """
        layers = config.num_decoder_layers or config.num_layers
        tokens = slots + (source if config.kind == "seq2seq" else 0)
        of_a_token = 2 * config.num_key_value_heads * config.head_dim
        return layers * rows * tokens * of_a_token * itemsize

    def reserve(self, inputs, mask) -> "Cache":
        """Slots and positions for the tokens of `inputs`, `(rows, length, ...)`.

        Args:
            inputs: tensor, for its shape.
            mask: bool `(rows, length)`, the real tokens, or None if all are.
        """
        shape = ops.shape(inputs)[:2]
        mask = ops.ones(shape, "bool") if mask is None else ops.cast(mask, "bool")
        counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        positions = ops.maximum(self.lengths[:, None] + counts - 1, 0)
        return self._replace(
            filled=ops.slice_update(self.filled, (0, self.end), mask),
            positions=ops.slice_update(self.positions, (0, self.end), positions),
            lengths=self.lengths + counts[:, -1],
            start=self.end,
            end=self.end + shape[1],
        )

    def new_positions(self, inputs):
        """Positions of the tokens of the call under way, int `(rows, length)`."""
        return ops.slice(self.positions, (0, self.start), ops.shape(inputs)[:2])

    def with_layers(self, layers: list) -> "Cache":
        """The cache after a call, with the blocks' keys and values."""
        return self._replace(layers=layers)

    def grow(self, slots: int) -> "Cache":
        """The same content in a cache of more slots."""
        extra = slots - self.filled.shape[1]

        def pad(tensor):
            return ops.pad(tensor, [(0, 0), (0, extra)] + [(0, 0)] * (len(tensor.shape) - 2))

        layers = [{**layer, "self": tuple(map(pad, layer["self"]))} for layer in self.layers]
        return self._replace(layers=layers, filled=pad(self.filled), positions=pad(self.positions))

    def repeat(self, times: int) -> "Cache":
        """Each row `times` times, one after the other."""
        if times == 1:
            return self
        layers, filled, positions, lengths = keras.tree.map_structure(
            lambda tensor: ops.repeat(tensor, times, axis=0), tuple(self[:4])
        )
        return Cache(layers, filled, positions, lengths, self.start, self.end)

    def reorder(self, rows) -> "Cache":
        """Row `i` continues what row `rows[i]` was. Both must be of the same prompt."""
        layers = [
            {**layer, "self": tuple(ops.take(x, rows, axis=0) for x in layer["self"])}
            for layer in self.layers
        ]
        return self._replace(layers=layers)
