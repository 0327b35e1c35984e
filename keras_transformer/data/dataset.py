"""`BucketedDataset`: batches of variable-length rows, padded to few lengths. NumPy only."""

import concurrent.futures
import copy
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np

from keras_transformer.data.batches import (
    check_columns,
    compose,
    compose_even,
    in_order,
    padded_to_sizes,
)
from keras_transformer.data.buckets import bucket_of, choose_buckets, given_buckets, length_limits
from keras_transformer.data.packing import Packs
from keras_transformer.data.token_rows import TokenRows
from keras_transformer.kernels.batches import sent
from keras_transformer.kernels.device import device
from keras_transformer.support.checking import check_bool, check_int, check_seed, describe, shorten
from keras_transformer.support.sizes import ShapeBuckets, round_rows_down, round_size

_MOST = 2**31 - 1  # the most rows or tokens in a batch
# With even batches each further bucket costs another launch of all operations, so it must save at
# least this many positions.
_LEAST_SAVING = 4096


class BucketedDataset(keras.utils.PyDataset):
    """Rows of token ids as batches that are padded to a few bucket lengths.

    Each batch holds rows of one bucket, and every batch of a bucket has the same shape, so a model
    is compiled once per bucket. Leftover rows of a bucket move up to the next longer one, so at
    most one batch of an epoch is smaller. The shapes of an epoch's batches never change, only the
    rows that they hold. While the data is iterated, a thread prepares the next batch during the
    model's computation.

    The batches of an epoch depend only on `(seed, epoch)`. `on_epoch_end`, which `fit` calls,
    advances `epoch`. Set `epoch` to see the order of any other epoch, and `first_batch` to skip the
    first batches of the next epoch, as `ResumableRun` does. Pass `shuffle=False` to the `fit` of a
    model of your own: by default Keras shuffles the batches again, which cannot be reproduced.

    Args:
        columns: dict from name to rows; a row is a list (or 1-D array) of ints. The columns
            describe the same tokens, so the lengths of their rows agree. `TokenRows` are used as
            they are, so rows on disk stay there.
        make_batch: function of `(arrays, masks)` that returns a batch for Keras: `x`, `(x, y)` or
            `(x, y, sample_weight)`. `arrays` holds each column padded, int32 `(batch, length)`,
            each of `values`, `(batch, ...)`, and `"row"`, int `(batch,)`, the row indices. `masks`
            holds a mask for each column, bool `(batch, length)`, False for padding.
        paired_columns: dict as `columns`, for the second side of rows that have two lengths (source
            and target). Buckets are then pairs of lengths.
        values: dict of arrays `(rows, ...)` by name that are not padded (labels, weights).
        pad_values: dict from column name to padding id. Defaults to 0 for each column.
        batch_size: the number of rows in a batch. Defaults to 32.
        batch_tokens: instead of `batch_size`, the most positions of a batch, padding included (of
            either side, for paired columns), so that batches of short rows are larger. A longer
            row is a batch by itself.
        even: bool, for prediction, with `batch_tokens` and without `shuffle`: each bucket is split
            into batches with equally many rows, and leftover rows do not move up to a longer
            bucket, since with large batches most rows would. With `sizes`, numbers of rows and
            lengths are rounded up to common sizes. Defaults to False.
        buckets: bucket lengths to use instead of the best ones for these rows: ints, or pairs.
        max_buckets, multiple, least_saving: see `choose_buckets`. Default to 6, 8 and 0; without
            `shuffle` on PyTorch, which does not compile each shape, to 12, 4 and 0.
        max_length: int, or a pair for paired columns, the length that longer rows are truncated to.
            Defaults to no limit. `num_truncated` counts the truncated rows.
        pack_length: int, packs several rows into one of this length, on either side (see
            `pack_rows`), in the same way in all epochs. `arrays` then also holds `"pack_ids"`, the
            index of a token's row within the pack, -1 for padding, and `"position_ids"`, its
            position in that row; for paired columns also `"paired_pack_ids"` and
            `"paired_position_ids"`. All are int32 `(batch, pack_length)`.
        sizes: `ShapeBuckets`, for prediction: batches are padded to available sizes, by repeating
            the last row of a batch. `restore_order` drops the repeated rows.
        shuffle: bool, make new batches in a new order in each epoch. If False, the default, rows
            are sorted by length; `order` and `restore_order` recover the original order.
        seed: int that, with the epoch, determines the shuffling. Defaults to 0.
        rowwise: bool, says that `make_batch` makes each row of a batch from the arrays of that row
            alone. A process of `distribution.shard_of` then makes only its own rows; otherwise it
            makes the whole batch and keeps its share. Defaults to False.

    Raises:
        ValueError: if there are no rows, a row is empty, the numbers or lengths of rows disagree, a
            row is longer than the last given bucket or `pack_length`, `values` or `buckets` are
            combined with `pack_length`, or an option is out of range.

    Example:
    ```python
    from keras_transformer.data import BucketedDataset

    def make_batch(arrays, masks):  # a classifier's
        x = {"token_ids": arrays["token_ids"], "padding_mask": masks["token_ids"]}
        return x, arrays["label"]

    dataset = BucketedDataset(
        {"token_ids": [[5, 6, 7], [8], [9] * 20]}, make_batch, values={"label": [0, 1, 1]},
        batch_size=2, multiple=8,
    )
    x, y = dataset[0]
    assert x["token_ids"].tolist() == [[8, 0, 0, 0, 0, 0, 0, 0], [5, 6, 7, 0, 0, 0, 0, 0]]
    assert y.tolist() == [1, 0]
    ```
    """

    def __init__(
        self,
        columns: dict,
        make_batch: Callable,
        *,
        paired_columns: dict | None = None,
        values: dict | None = None,
        pad_values: dict[str, int] | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        buckets: Sequence | None = None,
        max_buckets: int | None = None,
        multiple: int | None = None,
        least_saving: int = 0,
        max_length: int | tuple[int, int] | None = None,
        pack_length: int | None = None,
        sizes: ShapeBuckets | None = None,
        even: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        rowwise: bool = False,
    ):
        super().__init__()
        batch_size, batch_tokens = check_batch(batch_size, batch_tokens).values()
        _check_kinds(make_batch, columns=columns, paired_columns=paired_columns, values=values,
                     pad_values=pad_values)  # fmt: skip
        if pack_length is not None and (values or buckets is not None):
            raise ValueError(
                "`pack_length` packs several rows into one, so it cannot be combined with "
                "`buckets`, or with `values`, which belong to single rows. Leave one out."
            )
        if check_bool("even", even) and (shuffle or batch_tokens is None):
            raise ValueError("`even=True` needs `batch_tokens`, and `shuffle=False`.")
        self.make_batch = make_batch
        self.shuffle = check_bool("shuffle", shuffle)
        self._even, self._sizes = even, sizes
        self.seed = check_seed("seed", seed)
        self.rowwise = check_bool("rowwise", rowwise)
        sides = [columns] if paired_columns is None else [columns, paired_columns]
        self._sides = [{n: _token_rows(n, rows) for n, rows in side.items()} for side in sides]
        self._values = {name: np.asarray(value) for name, value in (values or {}).items()}
        self._pad_values = {
            name: check_int(f"pad_values[{name!r}]", id, -(2**31), 2**31 - 1)
            for name, id in (pad_values or {}).items()
        }
        check_columns(self._sides, self._values, self._pad_values)

        full = np.stack([next(iter(side.values())).lengths for side in self._sides], axis=1)
        limits = length_limits(max_length, len(sides))
        self._lengths = np.minimum(full, limits)
        self.num_truncated = int((full > self._lengths).any(axis=1).sum())
        self._packs = None
        if pack_length is not None:
            self._packs = Packs(self._lengths, pack_length)
            self._lengths, buckets = self._packs.lengths, [[self._packs.length] * len(sides)]
        chosen = (max_buckets, multiple, max_length, least_saving)
        buckets = self._choose(*chosen) if buckets is None else given_buckets(buckets, len(sides))
        self._fill(buckets, batch_size, batch_tokens)
        self._limits = limits.tolist()
        self.epoch = self.first_batch = 0
        self._composed = (None, None)
        self._fetched = None  # number of batches fetched in the running pass; None outside of one
        self._last_fetched = -1
        self._prepared = (None, None)  # which batch is next, how it is made, and its future
        self._num_batches = len(self._batches())

    def _choose(self, max_buckets, multiple, max_length, least_saving) -> tuple:
        """Choose the buckets with the least padding; more of them if shapes are not compiled."""
        many = not self.shuffle and not device().compiles_shapes
        lengths = self._lengths
        if self._even and max_buckets is None:
            # GPU kernels are fastest with lengths that are multiples of 16.
            multiple, least_saving = 16, max(least_saving, _LEAST_SAVING)
            if self._sizes is not None:
                multiple = 8
                known, where = np.unique(lengths, return_inverse=True)
                lengths = np.array([*map(round_size, known)])[where].reshape(lengths.shape)
        max_buckets = (12 if many else 6) if max_buckets is None else max_buckets
        multiple = (4 if many else 8) if multiple is None else multiple
        return choose_buckets(lengths, max_buckets, multiple, max_length, least_saving)

    def _fill(self, buckets: Sequence, batch_size: int, batch_tokens: int | None):
        """Put the rows into the buckets."""
        places = bucket_of(self._lengths, buckets)
        # Use occupied buckets only: no rows move up into a bucket without rows of its own.
        occupied = np.unique(places)
        self._shapes = [tuple(buckets[place]) for place in occupied]
        self._batch_rows = [
            (batch_size or 32) if batch_tokens is None else max(1, batch_tokens // max(shape))
            for shape in self._shapes
        ]
        if self._even and self._sizes is not None:
            self._batch_rows = list(map(round_rows_down, self._batch_rows))
        by_length = np.lexsort(self._lengths.T)  # the last column counts most; ties keep order
        self._members = [by_length[places[by_length] == place] for place in occupied]

    @property
    def buckets(self) -> tuple:
        """The bucket lengths in use: ints, or pairs for paired columns."""
        single = len(self._sides) == 1
        return tuple(shape[0] if single else shape for shape in self._shapes)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The arrays `(rows, ...)` that are not padded, by name."""
        return self._values

    @property
    def num_rows(self) -> int:
        """Number of rows in an epoch, before packing."""
        return len(self._lengths if self._packs is None else self._packs.row_lengths)

    @property
    def most_rows(self) -> int:
        """Largest number of rows that a batch may have."""
        return max(self._batch_rows)

    @property
    def tokens_per_epoch(self) -> int:
        """Number of positions in an epoch that are not padding, over both sides."""
        return int(self._lengths.sum())

    @property
    def mean_lengths(self) -> tuple[float, ...]:
        """Mean number of tokens of a row, before packing, for each side."""
        return tuple(float(total) / self.num_rows for total in self._lengths.sum(axis=0))

    @property
    def padding_share(self) -> float:
        """Padded positions as a fraction of all positions of an epoch."""
        positions = sum(len(rows) * sum(shape) for shape, rows in self._batches())
        return 1.0 - self.tokens_per_epoch / positions

    @property
    def order(self) -> np.ndarray:
        """Row index of each row in this epoch's batches. Raises ValueError if rows are packed."""
        if self._packs is not None:
            raise ValueError("Packed rows have no order: make the dataset without `pack_length`.")
        return np.concatenate([rows for _, rows in self._batches()])

    def restore_order(self, outputs):
        """Return outputs for this epoch's batches in the original order of the rows.

        `outputs` is an array `(rows, ...)`, as from `predict`, or a list with an entry for each
        row. Raises ValueError if the number of outputs is not that of the rows in the batches.
        """
        if len(outputs) != len(self.order):
            raise ValueError(
                f"Expected {len(self.order)} outputs, one for each row, got {len(outputs)}."
            )
        return in_order(outputs, self.order)

    def restoring(self) -> Callable:
        """Return a function that restores this epoch's order even after the epoch has ended.

        It takes arrays, or nested structures of arrays. Outputs for only some of the rows, or for
        packed rows, are returned unchanged.
        """
        order = () if self._packs is not None else self.order
        return lambda outputs: keras.tree.map_structure(
            lambda array: in_order(array, order) if len(array) == len(order) else array, outputs
        )

    def of_one_length(self) -> "BucketedDataset":
        """Return the same batches padded to one length, so that their outputs can be stacked."""
        longest = tuple(map(max, zip(*self._shapes, strict=True)))
        dataset = copy.copy(self)
        dataset._shapes = [longest] * len(self._shapes)
        dataset._composed = (None, None)
        dataset._sizes = dataset._fetched = None
        dataset._prepared = (None, None)
        return dataset

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in a whole epoch."""
        return self._num_batches

    def content(self) -> Iterator[np.ndarray]:
        """Yield the arrays that hold the rows, in whatever order and batches they are read."""
        for column in (column for side in self._sides for column in side.values()):
            yield column.lengths
            yield from column.blocks
        yield from self._values.values()

    @property
    def description(self) -> dict:
        """Values that identify the batches: a run that resumes compares them with its own."""
        checksum = 0
        for array in self.content():
            checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
        return {
            "rows": self.num_rows,
            "batches": self._num_batches,
            "shapes": [list(shape) for shape in self._shapes],
            "batch_rows": self._batch_rows,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "content": checksum,
        }

    def __len__(self):
        return self._num_batches - self.first_batch

    def __getitem__(self, index):
        return self.fetch(index, self.make_rows)

    def fetch(self, index: int, make: Callable):
        """Return the batch `index`, as `make` makes it from its padded lengths and its rows.

        `dataset[index]` is `dataset.fetch(index, dataset.make_rows)`. Another function may make
        some of the rows only.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"There is no batch {index}: the dataset has {len(self)} batches.")
        self._note_fetch(index)
        place = index + self.first_batch if index >= 0 else index + self._num_batches
        batches = self._batches()
        if self._fetched is None:
            return make(*batches[place])
        (ready, prepared), self._prepared = self._prepared, (None, None)
        taken = ready == (self.epoch, place, make)
        batch = prepared.result() if taken else sent(make(*batches[place]))
        if place + 1 < len(batches):
            # A new thread is cheap, and after a fork there is no stale pool.
            maker = concurrent.futures.ThreadPoolExecutor(1)
            future = maker.submit(lambda next: sent(make(*next)), batches[place + 1])
            maker.shutdown(wait=False)
            self._prepared = ((self.epoch, place + 1, make), future)
        return batch

    def examples_of_shapes(self, make: Callable | None = None) -> Iterator:
        """Yield one batch of each shape in an epoch, in the order of first occurrence.

        `make` is as in `fetch`, and defaults to `make_rows`.
        """
        make = self.make_rows if make is None else make
        seen = set()
        for shape, rows in self._batches():
            if (shape, len(rows)) not in seen:
                seen.add((shape, len(rows)))
                yield make(shape, rows)

    def make_rows(self, shape: tuple, rows: np.ndarray):
        """Make the batch of some rows, int `(batch,)`, padded to `shape`, a length a side."""
        arrays = {"row": rows, **{name: value[rows] for name, value in self._values.items()}}
        masks = {}
        for i, (side, length, real) in enumerate(
            zip(self._sides, shape, self._lengths[rows].T, strict=True)
        ):
            mask = np.arange(length) < real[:, None]
            if self._packs is None:
                which, places = rows[:, None], np.arange(length)
            else:
                which, places, pack_ids = self._packs.places(rows, i, mask)
                prefix = "paired_" * i
                arrays[f"{prefix}pack_ids"] = pack_ids
                arrays[f"{prefix}position_ids"] = places.astype("int32")
            for name, column in side.items():
                pad = np.int32(self._pad_values.get(name, 0))
                arrays[name] = np.where(mask, column.ids_at(which, places), pad)
                masks[name] = mask
        return self.make_batch(arrays, masks)

    def on_epoch_begin(self):
        self._fetched = 0

    def on_epoch_end(self):
        # `fit` also calls this before its first epoch, on JAX and PyTorch after fetching a batch:
        # only a complete pass counts.
        if self._fetched is not None and self._fetched >= len(self):
            self.epoch += 1
            self.first_batch = 0
        self._fetched, self._prepared = None, (None, None)

    def _note_fetch(self, index):
        if self._fetched is None:
            return
        if self.shuffle and index not in (0, self._last_fetched + 1):
            warnings.warn(
                "Keras shuffles the batches of this BucketedDataset, which shuffles by itself: "
                "pass shuffle=False to fit, or the order of the batches cannot be repeated.",
                stacklevel=2,
            )
        self._fetched += 1
        self._last_fetched = index

    def _batches(self):
        """Return this epoch's batches as a list of `(padded lengths, row indices)`."""
        epoch, batches = self._composed
        if epoch != self.epoch:
            epoch = int(self.epoch)
            rng = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
            parts = (self._shapes, self._members, self._batch_rows)
            if self._even:
                batches = compose_even(*parts, padded=self._sizes is not None)
            else:
                batches = compose(*parts, rng)
            if self._sizes is not None:
                batches = padded_to_sizes(batches, self._sizes, self._limits, self._even)
            self._composed = (epoch, batches)
        return batches


def _token_rows(name, rows) -> TokenRows:
    if not isinstance(rows, TokenRows):
        rows = TokenRows.from_lists(rows, name)
    if len(rows) and rows.lengths.min() < 1:
        raise ValueError(f"Row {int(rows.lengths.argmin())} of column {name!r} is empty.")
    return rows


def check_batch(batch_size, batch_tokens=None) -> dict[str, int | None]:
    """Check `batch_size` and `batch_tokens`, of which one may be given. Return both by name."""
    if batch_size is not None and batch_tokens is not None:
        raise ValueError(
            f"`batch_size` ({shorten(batch_size)}) counts rows, and `batch_tokens` "
            f"({shorten(batch_tokens)}) counts tokens instead: give one of them."
        )
    options = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    return {n: check_int(n, v, at_least=1, at_most=_MOST, none=True) for n, v in options.items()}


def _check_kinds(make_batch, **dicts) -> None:
    for name, value in dicts.items():
        if not isinstance(value, Mapping) and (value is not None or name == "columns"):
            raise ValueError(f"`{name}` must be a dict, received {describe(value)}.")
    if not callable(make_batch):
        raise ValueError(f"`make_batch` must be a function, received {describe(make_batch)}.")
