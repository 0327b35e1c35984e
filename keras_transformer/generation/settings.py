"""What a compiled function of the engine is made for."""

from typing import Any, NamedTuple

from keras_transformer.generation import values
from keras_transformer.generation.cache import CACHE_DTYPES
from keras_transformer.generation.samplers import Sampler


class _Fields(NamedTuple):
    sampler: Sampler
    rules: Any
    end_ids: tuple[int, ...]
    pad_id: int
    cache_dtype: str | None
    pack_weights: bool


class Settings(_Fields):
    """What a compiled function is made for. Equal settings share theirs.

    Args:
        sampler: `Sampler`.
        rules: `Rules` or None, what changes the logits before the sampler sees them.
        end_ids: ints, a row ends with any of these ids.
        pad_id: int.
        cache_dtype: see `Cache.create`.
        pack_weights: bool, see `compile_loop`.

    Raises:
        ValueError: for values of other types, or ids below 0.
    """

    def __new__(
        cls,
        sampler: Sampler,
        rules: Any = None,
        end_ids: tuple[int, ...] = (),
        pad_id: int = 0,
        cache_dtype: str | None = None,
        pack_weights: bool = False,
    ):
        if not isinstance(sampler, Sampler):
            raise ValueError(
                f"`sampler` must be a Sampler, such as Greedy(), received {sampler!r}."
            )
        return super().__new__(
            cls,
            sampler,
            rules,
            values.ids("end_ids", end_ids),
            values.integer("pad_id", pad_id),
            check_cache_dtype(cache_dtype),
            values.flag("pack_weights", pack_weights),
        )


def check_cache_dtype(value: Any) -> str | None:
    """`value`, the dtype that keys and values are kept in, or None. ValueError for others."""
    if value is not None and (not isinstance(value, str) or value not in CACHE_DTYPES):
        raise ValueError(
            f"`cache_dtype` must be one of {', '.join(map(repr, CACHE_DTYPES))}, received "
            f"{value!r}."
        )
    return value
