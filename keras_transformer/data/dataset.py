"""`BucketedDataset`: batches of variable-length rows, padded to few lengths. NumPy only."""

import concurrent.futures
import copy
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np

from keras_transformer.checking import check_bool, check_int, check_seed, describe, shorten
from keras_transformer.data.batches import check_columns, compose, in_order, padded_to_sizes
from keras_transformer.data.buckets import bucket_of, choose_buckets, given_buckets, length_limits
from keras_transformer.data.packing import Packs
from keras_transformer.data.token_rows import TokenRows
from keras_transformer.kernels.batches import sent
from keras_transformer.sizes import Sizes

_MOST = 2**31 - 1  # rows or tokens of a batch


class BucketedDataset(keras.utils.PyDataset):
    """Rows of token ids as batches that are padded to a few bucket lengths.

    Each batch holds rows of one bucket, and every batch of a bucket has the same shape, so a
    model is compiled once per bucket. Rows left over in a bucket are moved up to the next
    longer one: at most one batch of an epoch is smaller. The shapes of an epoch's batches
    never change, only which rows they hold. In a pass over the data a thread makes the next batch
    while the model computes.

    The batches of an epoch depend on `(seed, epoch)` alone. `on_epoch_end` advances `epoch`, as
    `fit` calls it; set `epoch` to see the order of any other, and `first_batch` to pass over the
    first of the next epoch's batches, as `ResumableRun` does. Pass `shuffle=False` to the `fit` of
    a model of your own: Keras's default shuffles the batches again, which cannot be repeated.

    Args:
        columns: dict of name to rows; a row is a list (or 1-D array) of ints. The columns
            describe the same tokens, so the lengths of their rows agree. `TokenRows` are taken
            as they are, so that what is on disk stays there.
        make_batch: function of `(arrays, masks)` that returns what Keras takes as a batch:
            `x`, `(x, y)` or `(x, y, sample_weight)`. `arrays` holds each column padded, int32
            `(batch, length)`, each of `values`, `(batch, ...)`, and `"row"`, int `(batch,)`, the
            numbers of the rows. `masks` holds for each
            column, bool `(batch, length)`, where it is not padding.
        paired_columns: as `columns`, for the other side of rows that have two lengths (source
            and target). Buckets then are pairs of lengths.
        values: dict of name to array `(rows, ...)`: what is not padded (labels, weights).
        pad_values: dict of column name to padding id. Default 0.
        batch_size: rows of a batch. Defaults to 32.
        batch_tokens: instead of `batch_size`: the most positions of a batch, padding included
            (of either side, for paired columns), so that short rows come in larger batches. A
            row longer than that is a batch by itself.
        buckets: bucket lengths to use, rather than the best for these rows: ints, or pairs.
        max_buckets, multiple, least_saving: see `choose_buckets`. Default 6, 8 and 0; without
            `shuffle`, where nothing depends on them, 12 and 4 on PyTorch, which compiles nothing
            for a shape.
        max_length: int, or a pair for paired columns, the length that longer rows are truncated
            to. Defaults to no limit. `num_truncated` says how many rows were.
        pack_length: int, puts several rows in one of this length, on either side (see
            `pack_rows`), in all epochs the same. `arrays` then also holds `"pack_ids"`, which of
            the rows in its place a token is of, -1 for padding, and `"position_ids"`, its place
            in that row; for paired columns also `"paired_pack_ids"` and `"paired_position_ids"`.
            All int32 `(batch, pack_length)`.
        sizes: `Sizes`, to predict with: batches are padded to those at hand, the last row of a
            batch again and again until it has the rows. `restore_order` drops what is too much.
        shuffle: new batches in a new order each epoch. If not, rows come sorted by length;
            `order` and `restore_order` lead back to the order given.
        seed: int that, with the epoch, determines the shuffling.

    Raises:
        ValueError: for no rows, an empty row, columns or values whose numbers or lengths of rows
            disagree, a row longer than the last of given buckets or than `pack_length`, `values`
            or `buckets` with `pack_length`, or options out of range.

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
        sizes: Sizes | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        batch_size, batch_tokens = check_batch(batch_size, batch_tokens).values()
        _check_kinds(make_batch, columns=columns, paired_columns=paired_columns, values=values,
                     pad_values=pad_values)  # fmt: skip
        if pack_length is not None and (values or buckets is not None):
            raise ValueError(
                "With `pack_length` there are no other buckets, and no `values`, of which each "
                "would belong to a row of tokens, and not to several."
            )
        self.make_batch = make_batch
        self.shuffle = check_bool("shuffle", shuffle)
        self.seed = check_seed("seed", seed)
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
        self._sizes, self._limits = sizes, limits.tolist()
        self.epoch = self.first_batch = 0
        self._composed = (None, None)
        self._fetched = None  # batches that Keras fetched in the running pass; None outside one
        self._last_fetched = -1
        self._prepared = (None, None)  # the place of the next batch, and its future
        self._num_batches = len(self._batches())

    def _choose(self, max_buckets, multiple, max_length, least_saving) -> tuple:
        """The buckets that pad least; more of them where nothing is compiled, nor depends on it."""
        many = not self.shuffle and keras.backend.backend() == "torch"
        max_buckets = (12 if many else 6) if max_buckets is None else max_buckets
        multiple = (4 if many else 8) if multiple is None else multiple
        return choose_buckets(self._lengths, max_buckets, multiple, max_length, least_saving)

    def _fill(self, buckets: Sequence, batch_size: int, batch_tokens: int | None):
        """Puts the rows into the buckets."""
        places = bucket_of(self._lengths, buckets)
        # Occupied buckets only: nothing is ever moved up into one without rows of its own.
        occupied = np.unique(places)
        self._shapes = [tuple(buckets[place]) for place in occupied]
        self._batch_rows = [
            (batch_size or 32) if batch_tokens is None else max(1, batch_tokens // max(shape))
            for shape in self._shapes
        ]
        by_length = np.lexsort(self._lengths.T)  # the last column counts most, ties keep order
        self._members = [by_length[places[by_length] == place] for place in occupied]

    @property
    def buckets(self) -> tuple:
        """The bucket lengths in use: ints, or pairs for paired columns."""
        single = len(self._sides) == 1
        return tuple(shape[0] if single else shape for shape in self._shapes)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The arrays `(rows, ...)` of what is not padded, by name."""
        return self._values

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, as they were given."""
        return len(self._lengths if self._packs is None else self._packs.row_lengths)

    @property
    def tokens_per_epoch(self) -> int:
        """Positions of an epoch that are not padding, both sides counted."""
        return int(self._lengths.sum())

    @property
    def mean_lengths(self) -> tuple[float, ...]:
        """The mean number of tokens of a row as it was given, of each side."""
        return tuple(float(total) / self.num_rows for total in self._lengths.sum(axis=0))

    @property
    def padding_share(self) -> float:
        """Padded positions divided by all positions of an epoch, from 0 to 1."""
        positions = sum(len(rows) * sum(shape) for shape, rows in self._batches())
        return 1.0 - self.tokens_per_epoch / positions

    @property
    def order(self) -> np.ndarray:
        """Which row each row of this epoch's batches is, int `(rows,)`; ValueError if packed."""
        if self._packs is not None:
            raise ValueError("Packed rows have no order: make the dataset without `pack_length`.")
        return np.concatenate([rows for _, rows in self._batches()])

    def restore_order(self, outputs):
        """Outputs for this epoch's batches, in the order in which the rows were given.

        They are an array `(rows, ...)`, as from `predict`, or a list with an entry for each row;
        ValueError for another number.
        """
        if len(outputs) != len(self.order):
            raise ValueError(f"Expected {len(self.order)} outputs, one a row, got {len(outputs)}.")
        return in_order(outputs, self.order)

    def restoring(self) -> Callable:
        """A function that does what `restore_order` does now, also once the epoch has ended.

        It takes arrays, or structures of them. Outputs for fewer rows than all, or for packed
        ones, stay as they are.
        """
        order = () if self._packs is not None else self.order
        return lambda outputs: keras.tree.map_structure(
            lambda array: in_order(array, order) if len(array) == len(order) else array, outputs
        )

    def of_one_length(self) -> "BucketedDataset":
        """The same batches, all of the longest length: so their outputs go in one array."""
        longest = tuple(map(max, zip(*self._shapes, strict=True)))
        dataset = copy.copy(self)
        dataset._shapes = [longest] * len(self._shapes)
        dataset._composed = (None, None)
        dataset._sizes = dataset._fetched = None
        dataset._prepared = (None, None)
        return dataset

    @property
    def batches_per_epoch(self) -> int:
        """Batches of a whole epoch."""
        return self._num_batches

    @property
    def description(self) -> dict:
        """Values that differ when the batches differ."""
        checksum = 0
        columns = [column for side in self._sides for column in side.values()]
        arrays = [array for column in columns for array in (column.lengths, *column.blocks)]
        for array in [*arrays, *self._values.values()]:
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
        if not -len(self) <= index < len(self):
            raise IndexError(f"Batch {index} of a dataset of {len(self)} batches.")
        self._note_fetch(index)
        place = index + self.first_batch if index >= 0 else index + self._num_batches
        batches = self._batches()
        if self._fetched is None:
            return self._make(*batches[place])
        (ready, prepared), self._prepared = self._prepared, (None, None)
        taken = ready == (self.epoch, place)
        batch = prepared.result() if taken else sent(self._make(*batches[place]))
        if place + 1 < len(batches):
            # A thread of its own costs little, and a fork of the process loses no pool.
            maker = concurrent.futures.ThreadPoolExecutor(1)
            future = maker.submit(lambda next: sent(self._make(*next)), batches[place + 1])
            maker.shutdown(wait=False)
            self._prepared = ((self.epoch, place + 1), future)
        return batch

    def examples_of_shapes(self) -> Iterator:
        """One batch of each shape that an epoch has, in the order in which they come first."""
        seen = set()
        for shape, rows in self._batches():
            if (shape, len(rows)) not in seen:
                seen.add((shape, len(rows)))
                yield self._make(shape, rows)

    def _make(self, shape, rows):
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
        # `fit` also calls this before its first epoch, on JAX and PyTorch after looking at a
        # batch: only a pass that was served whole counts.
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
        """This epoch's batches: a list of (lengths, row indices)."""
        epoch, batches = self._composed
        if epoch != self.epoch:
            epoch = int(self.epoch)
            rng = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
            batches = compose(self._shapes, self._members, self._batch_rows, rng)
            if self._sizes is not None:
                batches = padded_to_sizes(batches, self._sizes, self._limits)
            self._composed = (epoch, batches)
        return batches


def _token_rows(name, rows) -> TokenRows:
    if not isinstance(rows, TokenRows):
        rows = TokenRows.of(rows, name)
    if len(rows) and rows.lengths.min() < 1:
        raise ValueError(f"Row {int(rows.lengths.argmin())} of column {name!r} is empty.")
    return rows


def check_batch(batch_size, batch_tokens=None) -> dict[str, int | None]:
    """Batch size and batch tokens by name. ValueError for wrong ones."""
    if batch_size is not None and batch_tokens is not None:
        raise ValueError(
            f"`batch_size` ({shorten(batch_size)}) is a number of rows and `batch_tokens` "
            f"({shorten(batch_tokens)}) one of tokens in its place: give one of them."
        )
    options = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    return {n: check_int(n, v, at_least=1, at_most=_MOST, none=True) for n, v in options.items()}


def _check_kinds(make_batch, **dicts) -> None:
    for name, value in dicts.items():
        if not isinstance(value, Mapping) and (value is not None or name == "columns"):
            raise ValueError(f"`{name}` must be a dict, received {describe(value)}.")
    if not callable(make_batch):
        raise ValueError(f"`make_batch` must be a function, received {describe(make_batch)}.")
