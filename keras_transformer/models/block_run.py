"""Calls the blocks of a model one after the other, with a cache or without."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_transformer.layers.arguments import with_further
from keras_transformer.layers.masking import Visibility

# What may be collected of a pass: all that `collect` of a backbone takes.
COLLECTED = ("states", "attention", "queries", "keys")


@dataclasses.dataclass(frozen=True)
class OpaqueCache:
    """A cache as one object: Keras refuses an argument that holds tensors and numbers."""

    cache: Any


class BlockRun:
    """One pass of tokens through the blocks of a decoder, with a cache or without.

    It is for the `call` of a decoder of your own, see `DecoderBase`. Without a cache each block
    gets the padding mask, the positions and the documents of the inputs. With one, the tokens
    follow those that the cache holds, and each block gets its keys and values, and writes new ones.

    Args:
        x: `(batch, length)` or `(batch, length, dim)`, the tokens or their states; for their shape.
        inputs: the inputs of the decoder: of these `padding_mask`, `position_ids`, `pack_ids`, and
            `prefix`, see `Visibility`.
        cache: what `call` was given, or None.
        collect: tuple of `"states"`, `"attention"`, `"queries"` and `"keys"`, what to collect of
            each block: its inputs, the weights of its attention, and the projections whose products
            are their scores, of each head, normalized and rotated.

    Attributes:
        visibility: `layers.Visibility`, which tokens see which. With a cache each of its spaces has
            one of its own in `visibilities`, and this is the first of them.
        grid: ints, the rows and columns of the grid that the states are of, or None.
        positions: int `(batch, length)`, of each token in its row, for layers that are added to
            the embedding; None for 0, 1, 2, ...

    Example: see `DecoderBase`.
    """

    def __init__(self, x, inputs: Mapping[str, Any], cache=None, collect: tuple[str, ...] = ()):
        self.grid = inputs.get("grid")
        self.cache = cache = cache.cache if isinstance(cache, OpaqueCache) else cache
        self.collected: dict[str, list] = {name: [] for name in collect}
        self._kept: list = []
        names = ("padding_mask", "pack_ids", "position_ids", "global_positions")
        padding, packs, positions, of_all = map(inputs.get, names)
        self.visibility = Visibility(
            padding,
            query_pack=packs,
            query_positions=positions,
            global_positions=of_all,
            prefix=inputs.get("prefix"),
        )
        self.visibilities = {None: self.visibility}
        if cache is not None:
            self.cache = cache.reserve(x, padding)
            self.visibilities = {
                key: visibility._replace(query_pack=packs, prefix=inputs.get("prefix"))
                for key, visibility in self.cache.visibilities(ops.shape(x)[1]).items()
            }
            self.visibility = next(iter(self.visibilities.values()))

    @property
    def positions(self):
        return self.visibility.query_positions

    @property
    def space(self) -> int | None:
        """The key in `visibilities` of the next block."""
        return None if self.cache is None else self.cache.space_of(len(self._kept))

    @property
    def cache_positions(self):
        """The positions that the cache counts; None without one."""
        return None if self.cache is None else self.positions

    def __call__(self, block, x, **options):
        """The states behind a block, an `EncoderBlock` or a `DecoderBlock`.

        Args:
            block: the block. Blocks are called in the same order in every pass; one that is called
                twice counts as two.
            x: float `(batch, length, dim)`.
            **options: further arguments of the block, e.g. `training`.
        """
        visibility = self.visibilities[self.space]
        if self.cache is None and block.rotary is None:
            visibility = visibility._replace(query_positions=None)
        if block.window is None:
            visibility = visibility._replace(global_positions=None)
        options = {"visibility": visibility, **options}
        if "states" in self.collected:
            self.collected["states"].append(x)
        within = [name for name in ("queries", "keys") if name in self.collected]
        if "attention" in self.collected:
            options["return_attention_scores"] = True
        if within:
            options["return_projections"] = True
        if self.cache is not None:
            options["cache"] = self.cache.layer(len(self._kept))
        result = block(x, **options)
        if self.cache is not None:
            *result, kept = result
            self._kept.append(kept)
        if within:
            *result, projections = result
            for side, given in projections.items():
                for name in within:
                    self._collect(side, name, given[name])
        if "attention" in self.collected:
            *result, weights = result
            for side, given in weights.items():
                self._collect(side, "attention", given)
        return result[0] if isinstance(result, (tuple, list)) else result

    def _collect(self, side: str, name: str, given) -> None:
        """Puts what one attention of a block gave beside those of the blocks before."""
        name = name if side == "self" else f"cross_{name}"
        self.collected.setdefault(name, []).append(given)

    def outputs(self, x, source=None):
        """What `call` returns: the states, and the updated cache and what was collected, if any.

        Args:
            x: float `(batch, length, dim)`.
            source: bool `(batch, source_length)`, the mask of encoder states that were given.
        """
        if "states" in self.collected:
            self.collected["states"].append(x)
        cache = None if self.cache is None else self.cache.with_layers(self._kept, source)
        return with_further(x, cache, self.collected or None)
