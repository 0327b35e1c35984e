"""Cache for decoding: keys and values of tokens, and states of recurrent mixers."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.indexing import columns, lines_at, put_rows, taken
from keras_transformer.layers.attention.key_value_cache import KeyValueCache, write
from keras_transformer.layers.attention.masking import AttentionMask, is_static_zero
from keras_transformer.layers.mixers.states import JointCache, MixerStates
from keras_transformer.planning.memory import cache_bytes
from keras_transformer.support.former_names import FormerName


class CachedLayer(NamedTuple):
    """Sizes of what a cache keeps for one layer: an item of `backbone.cache_layers`.

    Fields:
        heads, width: ints, number of key and value heads, and their width; 0 for a layer that has
            no keys of its own.
        window: int, number of tokens that are kept; None keeps all.
        states: shapes of the states that a recurrent mixer keeps of each row instead of tokens.
    """

    heads: int
    width: int
    window: int | None = None
    states: tuple[tuple[int, ...], ...] = ()

    @property
    def group(self) -> int:
        """Key of the layer's group in `Cache.groups`."""
        return EVERYTHING if self.window is None else self.window

    def slots(self, rows: int, count: int, dtype: str) -> tuple:
        """Return the tensors of `count` empty slots; a layer without own keys has none."""
        if not self.heads:
            return ()
        return KeyValueCache.make(rows, self.heads, count, self.width, dtype).tensors


class CacheGroup(NamedTuple):
    """The cache slots of the layers with one window size: their keys, values and positions.

    All rows write the same slots, so that a write is one slice update.

    Fields:
        layers: dict from the number of each layer to the tensors of its `layers.KeyValueCache`,
            `()` for a recurrent mixer, and for a layer with the keys of an earlier one.
        valid: bool `(rows, branches, slots)`, the slots that a branch sees.
        positions: int `(rows, slots)`, the position of each slot's token in its row.
        start: the slot of the first token of the current call, an int or a tensor, as `end`.
        end: the next free slot. An int if its value is known during compilation: then only the
            slots before it are read. Else an int scalar tensor.
        kept: int `(rows, slots)`, the tokens to keep if a call writes more tokens to an empty group
            of a window than it has slots. Until the call ends, `valid` and `positions` describe
            all tokens of the call. Else `()`, so that no tensor is added.
    """

    layers: dict[int, tuple]
    valid: Any
    positions: Any
    start: Any
    end: Any
    kept: Any = ()

    @classmethod
    def empty(cls, layers: dict[int, tuple], rows: int, slots: int) -> "CacheGroup":
        valid = ops.zeros((rows, 1, slots), "bool")
        return cls(layers, valid, ops.zeros((rows, slots), "int32"), start=0, end=0)

    @property
    def slots(self) -> int:
        return self.valid.shape[2]

    def reserve(self, own, positions, window: int | None, lengths) -> "CacheGroup":
        """Reserve the next slots for tokens at `positions` `(rows, length)`.

        `lengths` are the row lengths with these tokens. `own`, bool `(rows, branches, length)`,
        says which of the tokens each branch sees.
        """
        if (
            is_static_zero(self.end)
            and window is not None
            and window - 1 <= self.slots < own.shape[2]
        ):
            positions = ops.cast(positions, "int32")
            group = self._replace(valid=own, positions=positions, start=0, end=own.shape[2])
            return group._replace(kept=_used_first(group.live_slots(window, lengths), self.slots))
        return self._replace(
            valid=write(self.valid, own, self.end, axis=2),
            positions=write(self.positions, ops.cast(positions, "int32"), self.end, axis=1),
            start=self.end,
            end=self.end + ops.shape(own)[2],
        )

    def with_layers(self, layers: dict[int, tuple], window: int | None, lengths) -> "CacheGroup":
        """Return the group after a call, with the tensors that its layers returned."""
        after = self._replace(layers=layers, kept=())
        if isinstance(self.kept, tuple):
            return after
        return after._ordered(self.live_slots(window, lengths), self.kept)

    def visibility(self, length: int) -> AttentionMask:
        """Return which slots the `length` tokens of the current call see, and all positions."""
        valid, keys, places = self.valid, self.positions, ops.arange(length, dtype="int32")
        if isinstance(self.end, int):
            valid, keys = valid[..., : self.end], keys[:, : self.end]
            positions = keys[:, self.start :]
        else:
            positions = columns(keys, self.start + places)
        branches = valid.shape[1]
        if branches == 1 and is_static_zero(self.start):  # the same as without a cache
            return AttentionMask(valid[:, 0], query_positions=positions, key_positions=keys)
        if branches == 1:
            slots = ops.arange(ops.shape(valid)[2], dtype="int32")
            own = (self.start + places)[None, :, None]
            valid = ops.logical_and(valid, slots[None, None] <= own)
        return AttentionMask(query_positions=positions, key_positions=keys, explicit=valid)

    def accept(self, counts, length: int) -> "CacheGroup":
        """Keep only the first `counts`, int `(rows,)`, of the last `length` tokens of each row."""
        first = self.end - length
        slots = ops.arange(self.slots, dtype="int32")
        kept = slots[None, None] < (first + counts)[:, None, None]
        valid = ops.logical_and(self.valid, kept)
        return self._replace(valid=valid, end=first + ops.max(counts))

    def grow(self, slots: int) -> "CacheGroup":
        """Return the same content with room for `slots` tokens."""
        extra = slots - self.slots
        if not extra:
            return self
        return self._replace(
            layers={
                i: tuple(longer(x, 2, extra) for x in layer) for i, layer in self.layers.items()
            },
            valid=longer(self.valid, 2, extra),
            positions=longer(self.positions, 1, extra),
        )

    def live_slots(self, window: int | None, lengths):
        """Return the slots that later tokens can see, bool `(rows, slots)`, given row `lengths`."""
        used = ops.any(self.valid, axis=1)
        if window is None:
            return used
        return ops.logical_and(used, self.positions > lengths[:, None] - window)

    def compact(self, used, slots: int) -> "CacheGroup":
        """Move the slots `used`, bool `(rows, slots)`, to the front, and keep `slots` of them."""
        order = _used_first(used, slots)
        layers = {i: tuple(taken(x, order) for x in layer) for i, layer in self.layers.items()}
        return self._replace(layers=layers)._ordered(used, order)

    def _ordered(self, used, order) -> "CacheGroup":
        """Reorder `valid` and `positions` to match layers that are already in this order."""
        valid = ops.logical_and(self.valid, used[:, None])
        return self._replace(
            valid=ops.take_along_axis(valid, order[:, None], axis=2),
            positions=ops.take_along_axis(self.positions, order, axis=1),
            start=ops.zeros((), "int32"),
            end=ops.cast(ops.max(ops.sum(ops.cast(used, "int32"), axis=1)), "int32"),
        )

    def take_rows(self, rows) -> "CacheGroup":
        """Take the rows `rows`, int `(count,)`, in that order; a row may occur several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(self[:3]))
        return CacheGroup(*taken, self.start, self.end)

    def place(self, other: "CacheGroup", rows) -> "CacheGroup":
        """Put the rows of `other` in the places `rows`; the result has the larger slot count."""
        return CacheGroup(
            {
                i: tuple(
                    put_padded_rows(*pair, rows)
                    for pair in zip(layer, other.layers[i], strict=True)
                )
                for i, layer in self.layers.items()
            },
            valid=put_padded_rows(self.valid, other.valid, rows),
            positions=put_padded_rows(self.positions, other.positions, rows),
            start=ops.zeros((), "int32"),
            end=ops.cast(ops.maximum(self.end, other.end), "int32"),
        )


def longer(tensor, axis: int, extra: int):
    """Append `extra` zeros along an axis."""
    widths = [(0, 0)] * len(tensor.shape)
    widths[axis] = (0, extra)
    return ops.pad(tensor, widths)


def _used_first(used, slots: int):
    """Order all slots with the `used` ones, bool `(rows, all)`, first; return the first `slots`."""
    count = used.shape[1]
    places = ops.arange(count, dtype="int32")
    order = ops.argsort(ops.where(used, places, places + count), axis=1)
    return ops.cast(order, "int32")[:, :slots]


def put_padded_rows(tensor, rows_of, places):
    """Put the rows of another tensor in `places`, int `(count,)`; both are padded to the larger.

    On PyTorch `tensor` itself may be written in place.
    """
    sizes = [max(pair) for pair in zip(tensor.shape[1:], rows_of.shape[1:], strict=True)]
    padded = []
    for each in (tensor, rows_of):
        widths = [(0, size - old) for size, old in zip(sizes, each.shape[1:], strict=True)]
        more = any(extra for _, extra in widths)
        padded.append(ops.pad(each, [(0, 0), *widths]) if more else each)
    return put_rows(*padded, places)


CACHE_DTYPES = ("float32", "float16", "bfloat16", "int8")

# Key of the group of the layers without a window. Other groups have their window as key.
EVERYTHING = 0


class Cache(NamedTuple):
    """Keys and values of the tokens that a decoder has seen.

    A row is a prompt and its continuation. All rows write to the same slots, so that a write is one
    slice update. Prompts of different lengths are padded on the right; `valid` masks the padded
    slots, and `positions` counts per row, so that every row decodes as if alone.

    A row can have several branches: continuations of one prompt side by side (beams). Each branch
    writes to slots of its own, and branches share the slots of their common past: `valid` says for
    each branch which slots belong to it. A beam can thus change its parent without moving any key.

    Layers with the same window share a group of slots. Each group frees the slots that no later
    token can see, so that a layer with a window only caches its window. If a prompt is longer than
    a group, the group keeps the tokens that a later token can see.

    A recurrent mixer keeps states of a fixed size for each branch instead, and belongs to the group
    of window 1, whose slots no later token sees. Its states cannot lose a token again, so that
    `accept` refuses them.

    Fields:
        groups: dict from window to `CacheGroup` (with `valid`, `positions`, `start` and `end`);
            the key is 0 for layers without a window.
        cross: list of the tensors of each layer's `layers.KeyValueCache` of cross-attention; a
            layer has `()` before the first call, and always without cross-attention.
        source: bool `(rows, source_length)`, the real tokens of the encoder's input;
            `(rows, 0)` before the first call and without an encoder.
        lengths: int `(rows,)`, number of real tokens of each row, or of each of its branches; the
            position of the next token, if tokens had positions of their own.
        states: list of the tensors of each layer's `MixerStates`, `()` without a recurrent mixer.
        padding: bool `(rows, length)`, the real tokens of the current call; `()` between calls and
            if all are real.

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

    groups: dict[int, CacheGroup]
    cross: list[tuple]
    source: Any
    lengths: Any
    states: list[tuple]
    padding: Any = ()

    # Names of the first release.
    spaces = FormerName("spaces", "groups")
    in_use = FormerName("in_use", "live_slots")
    keep_first = FormerName("keep_first", "accept")
    continue_from = FormerName("continue_from", "reorder_branches")

    @classmethod
    def create(
        cls, backbone, rows: int, slots: int | Mapping[int, int], dtype: str | None = None
    ) -> "Cache":
        """Create an empty cache for the layers that `backbone.cache_layers` lists.

        Args:
            backbone: the model.
            rows: int, sequences decoded together.
            slots: int, capacity in tokens, or a dict from keys of `groups` to capacities.
            dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"int8"`, the dtype of keys and
                values. Defaults to the compute dtype of the model.
        """
        dtype = dtype or backbone.compute_dtype
        groups = {}
        cached = [CachedLayer(*layer) for layer in backbone.cache_layers]
        for key in cache_group_keys(backbone):
            capacity = slots[key] if isinstance(slots, Mapping) else slots
            layers = {
                i: layer.slots(rows, capacity, dtype)
                for i, layer in enumerate(cached)
                if layer.group == key
            }
            groups[key] = CacheGroup.empty(layers, rows, capacity)
        return cls(
            groups,
            cross=[()] * len(cached),
            source=ops.zeros((rows, 0), "bool"),
            lengths=ops.zeros((rows,), "int32"),
            states=[
                MixerStates.make(rows, layer.states).tensors if layer.states else ()
                for layer in cached
            ],
        )

    @staticmethod
    def count_bytes(config, rows: int, slots: int, source: int = 0, itemsize: int = 4) -> int:
        """Count the bytes of the keys, values and states of a cache during generation.

        A layer with a window keeps no more than its window and the 64 tokens of one call of the
        decoding loop, however many tokens there are.

        Args:
            config: `TransformerConfig` of a decoder or seq2seq.
            rows: int, sequences decoded together.
            slots: int, number of tokens of each row.
            source: int, number of tokens of the encoder's input, for seq2seq.
            itemsize: int, bytes per number: 4 for float32, 2 for float16 and bfloat16, 1 for int8.
                For int8 the scales are counted too: 4 bytes for each key and value of a head.
        """
        return cache_bytes(config, rows, slots, source, itemsize)

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def branches(self) -> int:
        return next(iter(self.groups.values())).valid.shape[1]

    @property
    def slots(self) -> int:
        """Number of slots in the largest group."""
        return max(group.slots for group in self.groups.values())

    @property
    def layers(self) -> list[dict]:
        """Tensors of each layer, `{"self": tensors, "cross": tensors}`: slots, or states."""
        return [
            {"self": (*self.groups[self.group_of(i)].layers[i], *self.states[i]), "cross": cross}
            for i, cross in enumerate(self.cross)
        ]

    def reserve(self, inputs, mask, positions=None) -> "Cache":
        """Reserve slots and positions for the tokens of `inputs`, `(rows, length, ...)`.

        With several branches `inputs` have one token per branch; else the tokens follow each other.

        Args:
            inputs: tensor, used for its shape only.
            mask: bool `(rows, length)`, the real tokens, or None if all are.
            positions: int `(rows, length)`, positions of the tokens. The next token follows on the
                largest. None counts the real tokens.
        """
        rows, length = ops.shape(inputs)[:2]
        alone = self.branches == 1 and mask is not None
        padding = ops.cast(mask, "bool") if alone else ()
        if self.branches > 1:
            own = ops.broadcast_to(ops.eye(length, dtype="bool"), (rows, length, length))
            positions = ops.broadcast_to(self.lengths[:, None], (rows, length))
            counts = 1
        else:
            mask = ops.ones((rows, length), "bool") if mask is None else ops.cast(mask, "bool")
            own, given = mask[:, None], positions
            counted = ops.cumsum(ops.cast(mask, "int32"), axis=1)
            positions = ops.maximum(self.lengths[:, None] + counted - 1, 0)
            counts = counted[:, -1]
            if given is not None:
                positions = ops.cast(given, "int32")
                last = ops.max(ops.where(mask, positions, -1), axis=1)
                counts = last + 1 - self.lengths
        lengths = self.lengths + counts
        groups = {
            key: group.reserve(own, positions, key or None, lengths)
            for key, group in self.groups.items()
        }
        return self._replace(groups=groups, lengths=lengths, padding=padding)

    def visibilities(self, length: int) -> dict[int, AttentionMask]:
        """Return which slots of each group the `length` tokens of the current call see."""
        return {key: group.visibility(length) for key, group in self.groups.items()}

    def group_of(self, i: int) -> int:
        """Return the key of the group of layer `i`."""
        return next(key for key, group in self.groups.items() if i in group.layers)

    def layer(self, i: int) -> dict:
        """Return the `KeyValueCache` of layer `i`, or None, under `"self"` and `"cross"`.

        For a recurrent mixer `"self"` is its `MixerStates`, and for several mixers side by side
        the `JointCache` of both.
        """
        states = None
        if self.states[i]:
            padding = None if isinstance(self.padding, tuple) else self.padding
            states = MixerStates(self.states[i], padding)
        group = self.groups[self.group_of(i)]
        cross = KeyValueCache(*self.cross[i]) if self.cross[i] else None
        kept = None if isinstance(group.kept, tuple) else group.kept
        tensors = group.layers[i]  # a layer with the keys of another one has none
        own = KeyValueCache(*tensors, next=group.start, kept=kept) if tensors else None
        both = own if states is None else JointCache(own, states).single
        return {"self": both, "cross": cross}

    def with_layers(self, layers: list[dict], source=None) -> "Cache":
        """Return the cache after a call, with the new slots of the layers and the source mask."""
        groups, kept = {}, [_keys_and_states(layer["self"]) for layer in layers]
        for key, group in self.groups.items():
            own = {i: before and kept[i][0].tensors for i, before in group.layers.items()}
            groups[key] = group.with_layers(own, key or None, self.lengths)
        cross = [layer["cross"].tensors if layer["cross"] else () for layer in layers]
        states = [
            after.tensors if before else ()
            for before, (_, after) in zip(self.states, kept, strict=True)
        ]
        source = self.source if source is None else source
        return self._replace(groups=groups, cross=cross, source=source, states=states, padding=())

    def part(self, first: int, last: int | None = None) -> "Cache":
        """Return the cache of layers `first` to `last`: one of several models that share slots."""
        numbers = range(len(self.cross))[first:last]
        part = self._each(
            lambda group: group._replace(
                layers={i - first: layer for i, layer in group.layers.items() if i in numbers}
            )
        )
        return part._replace(cross=self.cross[first:last], states=self.states[first:last])

    def join(self, other: "Cache") -> "Cache":
        """Append the layers of `other`, a cache with the same slots."""
        first, groups = len(self.cross), dict(self.groups)
        for key, group in other.groups.items():
            layers = {first + i: layer for i, layer in group.layers.items()}
            mine = groups.get(key, group._replace(layers={}))
            groups[key] = mine._replace(layers={**mine.layers, **layers})
        groups = {key: groups[key] for key in sorted(groups)}
        return self._replace(
            groups=groups,
            cross=[*self.cross, *other.cross],
            states=[*self.states, *other.states],
        )

    def branch(self, branches: int) -> "Cache":
        """Give each row this many branches, which share all slots of the row."""
        if branches == 1:
            return self
        # Not `ops.repeat`: on PyTorch its rows share memory and could not be written to.
        each = ops.zeros((branches,), "int32")
        cache = self._each(lambda group: group._replace(valid=ops.take(group.valid, each, axis=1)))
        return cache._replace(states=_map(self.states, lambda x: ops.take(x, each, axis=1)))

    def as_tensors(self) -> "Cache":
        """Convert `start` and `end` to tensors, whose values do not trigger a compilation."""

        def converted(group):
            start, end = (ops.convert_to_tensor(x, "int32") for x in (group.start, group.end))
            return group._replace(start=start, end=end)

        return self._each(converted)

    def as_full(self) -> "Cache":
        """Set `start` and `end` to the number of slots, as Python ints: all slots are taken."""
        return self._each(lambda group: group._replace(start=group.slots, end=group.slots))

    def reorder_branches(self, parents) -> "Cache":
        """Let branch `i` continue the past of branch `parents[:, i]`, int `(rows, branches)`."""
        parents = ops.cast(parents, "int32")

        def reordered(x):
            lines = ops.reshape(x, (*x.shape[:2], -1))
            return ops.reshape(lines_at(lines, parents), x.shape)

        cache = self._each(
            lambda group: group._replace(
                valid=ops.take_along_axis(group.valid, parents[..., None], axis=1)
            )
        )
        return cache._replace(states=_map(self.states, reordered))

    def accept(self, counts, length: int) -> "Cache":
        """Keep only the first `counts`, int `(rows,)`, of the last `length` tokens of each row.

        Raises ValueError if a layer has a recurrent mixer, whose states cannot lose a token.
        """
        if any(self.states):
            raise ValueError(
                "The cache holds states of recurrent mixers, from which no token can be removed. "
                "Decode without drafts."
            )
        kept = self._each(lambda group: group.accept(counts, length))
        return kept._replace(lengths=self.lengths - (length - counts))

    def grow(self, slots: int | Mapping[int, int]) -> "Cache":
        """Return the same content with room for `slots` tokens: one number, or one per group."""
        if not isinstance(slots, Mapping):
            slots = dict.fromkeys(self.groups, slots)
        groups = {key: group.grow(slots[key]) for key, group in self.groups.items()}
        return self._replace(groups=groups)

    def replace_layers(self, layers: Mapping[int, dict]) -> "Cache":
        """Replace the layers of each group; the new layers may have another number of slots."""
        groups = {key: self.groups[key]._replace(layers=own) for key, own in layers.items()}
        return self._replace(groups=groups)

    def live_slots(self) -> dict:
        """Return the slots of each group that a later token can still see, bool `(rows, slots)`."""
        return {
            key: group.live_slots(key or None, self.lengths) for key, group in self.groups.items()
        }

    def compact(self, slots: Mapping[int, int] | None = None) -> "Cache":
        """Move the slots in use to the front.

        This drops the padding of short prompts, branches that no hypothesis continues, and tokens
        that have left a sliding window.

        Args:
            slots: dict from groups to the number of slots they keep, at least the slots in use.
                Defaults to all groups with their present sizes.
        """
        if slots is None:
            slots = {key: group.slots for key, group in self.groups.items()}
        used, groups = self.live_slots(), dict(self.groups)
        groups.update({key: groups[key].compact(used[key], count) for key, count in slots.items()})
        return self._replace(groups=groups)

    def fit(self, slots: Mapping[int, int]) -> "Cache":
        """Compact the groups that have more slots than given."""
        larger = {key: count for key, count in slots.items() if self.groups[key].slots > count}
        return self.compact(larger) if larger else self

    def take_rows(self, rows) -> "Cache":
        """Take the rows `rows`, int `(count,)`, in that order; a row may occur several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(self[1:]))
        groups = {key: group.take_rows(rows) for key, group in self.groups.items()}
        return Cache(groups, *taken)

    def place(self, other: "Cache", rows) -> "Cache":
        """Put the rows of `other` in the places `rows`, int `(count,)`.

        Slots and source become as long as the longer of the two. On PyTorch the tensors of this
        cache may be written in place.
        """
        rest = keras.tree.map_structure(
            lambda mine, theirs: put_padded_rows(mine, theirs, rows),
            tuple(self[1:]),
            tuple(other[1:]),
        )
        groups = {key: group.place(other.groups[key], rows) for key, group in self.groups.items()}
        return Cache(groups, *rest)

    def _each(self, change: Callable[[CacheGroup], CacheGroup]) -> "Cache":
        return self._replace(groups={key: change(group) for key, group in self.groups.items()})


def cache_group_keys(*backbones) -> list[int]:
    """Return the keys of `Cache.groups` for these models."""
    return sorted({CachedLayer(*x).group for model in backbones for x in model.cache_layers})


def has_states(backbone) -> bool:
    """Return whether a model has recurrent mixers, whose states cannot lose a token again."""
    return any(CachedLayer(*layer).states for layer in backbone.cache_layers)


def _map(states: list[tuple], function: Callable) -> list[tuple]:
    """Apply a function to each tensor of the states of all layers."""
    return [tuple(map(function, tensors)) for tensors in states]


def _keys_and_states(kept: Any) -> tuple[KeyValueCache | None, MixerStates | None]:
    """Return what a layer keeps of tokens, and what it keeps of all of them together."""
    if isinstance(kept, KeyValueCache):
        return kept, None
    joint = JointCache.of(kept)
    return joint.keys, joint.states
