"""`SeriesProcessor`: converts tables and arrays of values over time to series."""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import describe, is_number, load_json, shorten
from keras_transformer.support.columns import is_column, is_frame
from keras_transformer.support.files import read_file, write_text

FILE = "series.json"
MOST_VALUES = 2**27  # in a series, all channels: 1 GB of float64
_LIMIT = 2**24


@dataclasses.dataclass
class Series:
    """A series as a processor returns it.

    Fields:
        values: float64 `(time, channels)`, NaN if missing. It is not float32, in which models
            compute, since numbers near 1e9 are 64 apart there: a common offset is subtracted first.
        names: list of the names of the channels.
        dates: pandas index of the dates or periods, or None.
        kind: str, type of the input: `"frame"`, `"column"` or `"array"`.
        dtype: str, dtype of forecasts: `"float32"` for a series of float32 or float16, otherwise
            `"float64"`.
    """

    values: np.ndarray
    names: list
    dates: Any = None
    kind: str = "array"
    dtype: str = "float64"


class SeriesProcessor(Processor):
    """Convert data frames, columns and arrays of numbers over time to series.

    The dates of a pandas data frame are its index, or its first column if that has dates; each
    other column is a channel. An array is `(time,)` or `(time, channels)`. A missing value is NaN.

    Args:
        mean, std: list with a float for each channel, which `adapt` computes: channels are
            standardized by them for training and scores. None disables this; a model scales each
            window itself in any case.

    Raises:
        ValueError: if a value is out of range.

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
    reads_arrays = ()  # a published backbone alone is a text model
    files = (FILE,)

    def __init__(self, mean: Sequence[float] | None = None, std: Sequence[float] | None = None):
        if (mean is None) != (std is None):
            raise ValueError("`mean` and `std` go together: give both or neither.")
        self.mean, self.std = _numbers("mean", mean), _numbers("std", std)
        if self.mean is not None and len(self.mean) != len(self.std):
            raise ValueError(f"`mean` has {len(self.mean)} numbers and `std` {len(self.std)}.")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"`std` must be above 0, received {shorten(self.std)}.")

    def adapt(self, series: Any) -> None:
        """Compute the mean and standard deviation of each channel, like `adapt` of Keras's layers.

        Args:
            series: one series, as for `read`: the part on which a model is trained. A constant
                channel gets the deviation 1.
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
        """Return whether `x` is a series or a list of series, even if it is invalid."""
        return isinstance(x, (np.ndarray, list)) or is_frame(x) or is_column(x)

    @staticmethod
    def is_one(x: Any) -> bool:
        """Return whether `x` is a single series."""
        return not isinstance(x, list) or all(is_number(value) for value in x)

    def rows(self, x: Any) -> list[Series]:
        """Convert one series, or a list of series, to a list of `Series`."""
        rows = [x] if self.is_one(x) else x
        if not rows:
            raise ValueError("`x` has no series.")
        names = ["x"] if self.is_one(x) else [f"x[{i}]" for i in range(len(rows))]
        return [self.read(row, name) for row, name in zip(rows, names, strict=True)]

    def read(self, given: Any, place: str = "x") -> Series:
        """Convert user input to a series. Raises ValueError if it is invalid, naming `place`."""
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
            # Complex numbers would lose their imaginary part, so they are refused.
            array = array.astype("float64") if array.dtype.kind not in "iufbc" else array
        except (TypeError, ValueError):
            raise ValueError(
                f"`{place}` must be a series of numbers: a data frame, or an array (time,) or "
                f"(time, channels), received {describe(given)}."
            ) from None
        names = list(range(array.shape[1])) if array.ndim == 2 else [0]
        return Series(_values(array, place, names), names, dtype=_dtype([array.dtype]))

    def scaled(self, values: np.ndarray, place: str = "x") -> np.ndarray:
        """Standardize values `(time, channels)` by mean and standard deviation, in float64."""
        if self.mean is None:
            return values
        if values.shape[1] != len(self.mean):
            raise ValueError(
                f"`{place}` has {values.shape[1]} channels, but the processor was adapted to "
                f"{len(self.mean)}."
            )
        return (values - np.array(self.mean)) / np.array(self.std)

    def unscaled(self, values: np.ndarray) -> np.ndarray:
        """Undo `scaled` for values `(time, channels, ...)`."""
        if self.mean is None:
            return values
        shape = (1, -1) + (1,) * (values.ndim - 2)
        mean, std = (np.array(x).reshape(shape) for x in (self.mean, self.std))
        return values * std + mean

    def check(self, config: TransformerConfig) -> None:
        stem = config.sides[0].stem
        if config.kind != "seq2seq" if stem is None else stem.kind != "series":
            raise ValueError(
                "A SeriesProcessor needs a model whose config has a `stem` of kind 'series', "
                "or an encoder-decoder of tokens."
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
    """Return the next `count` dates or periods after an index, with the same step.

    Returns None if there are no dates, or only one, since the step is then unknown.
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
    """Return pandas's name for the step between dates; None if pandas does not find one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about return values in later releases
        return dates.inferred_freq if len(dates) > 2 else None


def _of_frame(frame: Any, place: str) -> Series:
    if not hasattr(frame, "iloc"):
        raise ValueError(
            f"`{place}` must be a pandas data frame, received {type(frame)}. Convert it with "
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
    """Return an index if it has dates or periods, else None; `column` is their column, if any.

    Raises ValueError if a date is missing, repeated or out of order, or if steps differ.
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
        unit = _in_words(usual)
        if (
            28 * 86_400 <= usual <= 31 * 86_400 or usual >= 365 * 86_400
        ):  # months and years differ in length
            return index
    odd = np.flatnonzero(steps != usual)
    if odd.size:
        row = int(odd[0])
        frame = "frame" if column is None else f"frame.set_index({column!r})"
        how = f"{frame}.reindex(pandas.period_range({str(index[0])!r}, {str(index[-1])!r}, freq="
        how = f"{how}{index.freqstr!r}))" if periods else f"{frame}.asfreq({_step(usual)!r})"
        raise ValueError(
            f"The dates of `{place}` are {unit} apart, but rows {row} and {row + 1}, "
            f"{index[row]} and {index[row + 1]}, are not. Insert the missing rows, with NaN: "
            f"`{how}`."
        )
    return index


def _in_words(seconds: float) -> str:
    """Return a time in the largest unit that it is a whole number of, such as `"2 days"`."""
    units = {"days": 86_400, "hours": 3600, "minutes": 60}
    for name, size in units.items():
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count:,} {name if count > 1 else name[:-1]}"
    return f"{seconds:,.10g} seconds"


def _step(seconds: float) -> str:
    """Return the name of a step in pandas, such as `"h"`."""
    import pandas

    return pandas.tseries.frequencies.to_offset(pandas.Timedelta(seconds=seconds)).freqstr


def _check_order(index: Any, place: str, column: Any) -> None:
    """Check that dates increase. Raises ValueError if one is missing, repeated or out of order."""
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
            f"after {index[row]}. Sort them: `frame.{how}`."
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
        raise ValueError(f"`{name}` must be numbers, one per channel, received {shorten(given)}.")
    return [float(value) for value in given]
