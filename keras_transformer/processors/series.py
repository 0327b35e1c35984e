"""`SeriesProcessor`: tables and arrays of numbers over time to series, and forecasts back."""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.checking import describe, is_number, load_json, shorten
from keras_transformer.columns import is_column, is_frame
from keras_transformer.config import TransformerConfig
from keras_transformer.files import read_file, write_text
from keras_transformer.processors.processor import Processor

FILE = "series.json"
MOST_VALUES = 2**27  # of a series, all channels: 1 GB of float64
_LIMIT = 2**24


@dataclasses.dataclass
class Series:
    """A series as a processor reads it.

    Fields:
        values: float64 `(time, channels)`, NaN where one is missing. A model computes in float32,
            which at a level of 1e9 knows steps of 64: what is alike is taken away before.
        names: of the channels.
        dates: the index of a data frame, None without one.
        kind: what it was: `"frame"`, `"column"` or `"array"`.
        dtype: that of forecasts, float32 of a series of float32 or less, and else float64.
    """

    values: np.ndarray
    names: list
    dates: Any = None
    kind: str = "array"
    dtype: str = "float64"


class SeriesProcessor(Processor):
    """Data frames, columns and arrays of numbers over time to series.

    A data frame is of pandas; its dates are its index, or its first column if that holds dates.
    Each other column is a channel. An array is `(time,)` or `(time, channels)`. A value that is
    missing is NaN.

    Args:
        mean, std: a float for each channel, by which `adapt` makes them alike, for training and
            scores. None for none; a model scales each window by itself in any case.

    Raises:
        ValueError: for values out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.SeriesProcessor()
    processor.adapt(np.stack([np.arange(9), 100 - np.arange(9)], axis=1))
    assert processor.mean == [4.0, 96.0]
    ```
    """

    kind = "series processor"
    raw = "series"
    files = (FILE,)

    def __init__(self, mean: Sequence[float] | None = None, std: Sequence[float] | None = None):
        if (mean is None) != (std is None):
            raise ValueError("`mean` and `std` go together: give both, or None for both.")
        self.mean, self.std = _numbers("mean", mean), _numbers("std", std)
        if self.mean is not None and len(self.mean) != len(self.std):
            raise ValueError(f"`mean` has {len(self.mean)} numbers and `std` {len(self.std)}.")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"`std` must be above 0, received {shorten(self.std)}.")

    def adapt(self, series: Any) -> None:
        """Takes mean and deviation of each channel from a series, as Keras's layers do.

        Args:
            series: as for `read`; the part that a model is trained on. A channel that is constant
                keeps its scale.
        """
        values = self.read(series).values
        mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        self.mean = mean.tolist()
        self.std = np.where(std > 0, std, 1.0).tolist()

    @classmethod
    def of_published(cls) -> "SeriesProcessor":
        return cls()

    @classmethod
    def takes(cls, x: Any) -> bool:
        """Whether `x` is a series, or a list of them; valid or not."""
        return isinstance(x, (np.ndarray, list)) or is_frame(x) or is_column(x)

    @staticmethod
    def is_one(x: Any) -> bool:
        """Whether `x` is a single series."""
        return not isinstance(x, list) or all(is_number(value) for value in x)

    def rows(self, x: Any) -> list[Series]:
        """Several series, or one, as a list."""
        rows = [x] if self.is_one(x) else x
        if not rows:
            raise ValueError("`x` has no series.")
        names = ["x"] if self.is_one(x) else [f"x[{i}]" for i in range(len(rows))]
        return [self.read(row, name) for row, name in zip(rows, names, strict=True)]

    def read(self, given: Any, place: str = "x") -> Series:
        """A series of what a user has. ValueError for what is none; `place` is its name there."""
        if is_frame(given):
            return _of_frame(given, place)
        if is_column(given):
            dates = _dates(getattr(given, "index", None), place)
            array = np.asarray(given.to_numpy())
            name = getattr(given, "name", None)
            names = ["value" if name is None else name]
            values = _values(array, place, names)
            return Series(values, names, dates, "column", _dtype([array.dtype]))
        try:
            array = np.asarray(given)
            # Complex numbers would lose a part: they are none of a series.
            array = array.astype("float64") if array.dtype.kind not in "iufbc" else array
        except (TypeError, ValueError):
            raise ValueError(
                f"`{place}` must be a series of numbers: a data frame, or an array (time,) or "
                f"(time, channels), received {describe(given)}."
            ) from None
        names = list(range(array.shape[1])) if array.ndim == 2 else [0]
        return Series(_values(array, place, names), names, dtype=_dtype([array.dtype]))

    def scaled(self, values: np.ndarray, place: str = "x") -> np.ndarray:
        """Take mean and deviation away from values `(time, channels)`, in float64."""
        if self.mean is None:
            return values
        if values.shape[1] != len(self.mean):
            raise ValueError(
                f"`{place}` has {values.shape[1]} channels, and the processor was adapted to "
                f"{len(self.mean)}."
            )
        return (values - np.array(self.mean)) / np.array(self.std)

    def unscaled(self, values: np.ndarray) -> np.ndarray:
        """The way back, of `(time, channels, ...)`."""
        if self.mean is None:
            return values
        shape = (1, -1) + (1,) * (values.ndim - 2)
        mean, std = (np.array(x).reshape(shape) for x in (self.mean, self.std))
        return values * std + mean

    def check(self, config: TransformerConfig) -> None:
        stem = config.sides[0].stem
        if config.kind != "seq2seq" if stem is None else stem.kind != "series":
            raise ValueError(
                "A SeriesProcessor belongs to a model whose config has a `stem` of kind 'series', "
                "or to an encoder-decoder of tokens."
            )

    def save(self, directory: str) -> None:
        values = {"mean": self.mean, "std": self.std}
        write_text(Path(directory, FILE), json.dumps(values, indent=2) + "\n")

    @classmethod
    def from_files(cls, directory: str) -> "SeriesProcessor":
        path = Path(directory, FILE)
        try:
            values = load_json(read_file(path, _LIMIT))
            if not isinstance(values, Mapping) or values.keys() - {"mean", "std"}:
                raise ValueError(f"it must be an object of mean and std, not {shorten(values)}.")
            return cls(**values)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None


def following_dates(dates: Any, count: int) -> Any:
    """Return the dates or periods that follow an index, as far apart as those in it.

    None without dates, and for a single date, of which nothing tells how far the next is.
    """
    if dates is None:
        return None
    import pandas

    if isinstance(dates, pandas.PeriodIndex):
        return pandas.period_range(dates[-1] + 1, periods=count, freq=dates.freq)
    step = dates.freq or _frequency(dates[-50:])
    if step is None and len(dates) < 2:
        return None
    step = dates[-1] - dates[-2] if step is None else step
    return pandas.date_range(dates[-1], periods=count + 1, freq=step)[1:]


def _frequency(dates: Any) -> Any:
    """How far apart dates are, as pandas says it; None if it does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it will return in a later release
        return dates.inferred_freq if len(dates) > 2 else None


def _of_frame(frame: Any, place: str) -> Series:
    if not hasattr(frame, "iloc"):
        raise ValueError(
            f"`{place}` must be a data frame of pandas, received {type(frame)}. Convert it with "
            "`to_pandas()`."
        )
    dates = _dates(frame.index, place)
    if dates is None and len(frame.columns) > 1 and not _is_numeric(frame.iloc[:, 0]):
        import pandas

        first = frame.iloc[:, 0]
        try:
            periods = isinstance(first.dtype, pandas.PeriodDtype)
            first = pandas.PeriodIndex(first) if periods else pandas.to_datetime(first)
            dates = pandas.Index(first)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The first column of `{place}`, {frame.columns[0]!r}, holds neither numbers nor "
                f"dates: {error}."
            ) from None
        dates = _dates(dates, place, frame.columns[0])
        frame = frame.iloc[:, 1:]
    wrong = [name for i, name in enumerate(frame.columns) if not _is_numeric(frame.iloc[:, i])]
    if wrong:
        raise ValueError(f"The column {wrong[0]!r} of `{place}` does not hold numbers.")
    names = list(frame.columns)
    values = _values(frame.to_numpy("float64"), place, names)
    return Series(values, names, dates, "frame", _dtype(frame.dtypes))


def _is_numeric(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") in "iufb"


def _dtype(dtypes: Any) -> str:
    """Return the dtype of forecasts for columns of these dtypes."""
    small = ("float16", "float32")
    return "float32" if all(str(dtype).lower() in small for dtype in dtypes) else "float64"


def _dates(index: Any, place: str, column: Any = None) -> Any:
    """Return the dates or periods of an index, or None. `column` names where they come from.

    ValueError for dates that are missing, not in order or doubled, or that leave some out.
    """
    periods = hasattr(index, "to_timestamp")
    if not periods and getattr(getattr(index, "dtype", None), "kind", "") != "M":
        return None
    _check_order(index, place, column)
    if len(index) < 3 or (not periods and _frequency(index) is not None):
        return index
    if periods:
        steps, usual, unit = np.diff(index.asi8), 1, f"one period of {index.freqstr}"
    else:
        steps = (index[1:] - index[:-1]).total_seconds().to_numpy()
        usual = float(np.median(steps))
        unit = f"{usual:,.10g} seconds"
        if 28 * 86_400 <= usual <= 31 * 86_400 or usual >= 365 * 86_400:  # months and years
            return index
    odd = np.flatnonzero(steps != usual)
    if odd.size:
        row = int(odd[0])
        frame = "frame" if column is None else f"frame.set_index({column!r})"
        how = f"{frame}.reindex(pandas.period_range({str(index[0])!r}, {str(index[-1])!r}, freq="
        how = f"{how}{index.freqstr!r}))" if periods else f"{frame}.asfreq({_step(usual)!r})"
        raise ValueError(
            f"The dates of `{place}` are {unit} apart, but rows {row} and {row + 1}, "
            f"{index[row]} and {index[row + 1]}, are not. Put the missing rows in, with NaN: "
            f"`{how}`."
        )
    return index


def _step(seconds: float) -> str:
    """Write a step as pandas does, such as `"h"`."""
    import pandas

    return pandas.tseries.frequencies.to_offset(pandas.Timedelta(seconds=seconds)).freqstr


def _check_order(index: Any, place: str, column: Any) -> None:
    """Check that dates rise. Raises ValueError if one is missing, doubled or out of order."""
    missing = np.flatnonzero(index.isna())
    if missing.size:
        how = "frame.index.notna()" if column is None else f"frame[{column!r}].notna()"
        raise ValueError(
            f"Row {missing[0]} of `{place}` has no date. Leave such rows out: `frame[{how}]`."
        )
    if index.is_monotonic_increasing and index.is_unique:
        return
    numbers = index.asi8
    if index.is_unique:
        row = int(np.flatnonzero(numbers[1:] < numbers[:-1])[0])
        how = "sort_index()" if column is None else f"sort_values({column!r})"
        raise ValueError(
            f"The dates of `{place}` are not in order: row {row + 1}, {index[row + 1]}, comes "
            f"behind {index[row]}. Sort them: `frame.{how}`."
        )
    second = int(np.flatnonzero(index.duplicated())[0])
    first = int(np.flatnonzero(numbers[:second] == numbers[second])[0])
    how = "[~frame.index.duplicated()]" if column is None else f".drop_duplicates({column!r})"
    raise ValueError(
        f"`{place}` has the date {index[second]} twice, in rows {first} and {second}. If it holds "
        "several series, give each by itself, in a list; else keep one row of each date: "
        f"`frame{how}`."
    )


def _values(array: np.ndarray, place: str, names: list) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`{place}` must hold numbers, received {array.dtype}.")
    if array.size > MOST_VALUES:
        raise ValueError(
            f"`{place}` has {array.size:,} values; a series may have {MOST_VALUES:,}. Give the "
            "last of them, or a list of parts."
        )
    array = array.astype("float64")
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"`{place}` must be of shape (time,) or (time, channels), and not empty, received "
            f"{array.shape}."
        )
    infinite = np.argwhere(np.isinf(array))
    if infinite.size:
        row, channel = infinite[0]
        raise ValueError(f"`{place}` is infinite in row {row} of {names[channel]!r}.")
    empty = np.flatnonzero(np.isnan(array).all(axis=0))
    if empty.size:
        raise ValueError(
            f"`{place}` has no value in {names[empty[0]]!r}: all are missing (NaN). Leave that "
            "channel out."
        )
    return array


def _numbers(name: str, given: Any) -> list[float] | None:
    if given is None:
        return None
    fits = isinstance(given, (list, tuple)) and given and all(map(is_number, given))
    if not fits or not np.isfinite(given).all():
        raise ValueError(f"`{name}` must be numbers, one a channel, received {shorten(given)}.")
    return [float(value) for value in given]
