"""`SeriesProcessor`: tables and arrays of numbers over time to series, and forecasts back."""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.checking import describe, is_number, shorten
from keras_transformer.columns import is_column, is_frame
from keras_transformer.config import TransformerConfig
from keras_transformer.files import read_file, write_text
from keras_transformer.processors.processor import Processor

FILE = "series.json"
_LIMIT = 2**24


@dataclasses.dataclass
class Series:
    """A series as a processor reads it.

    Fields:
        values: float32 `(time, channels)`, NaN where one is missing.
        names: of the channels.
        dates: the index of a data frame, None without one.
        kind: what it was: `"frame"`, `"column"` or `"array"`.
    """

    values: np.ndarray
    names: list
    dates: Any = None
    kind: str = "array"


class SeriesProcessor(Processor):
    """Data frames, columns and arrays of numbers over time to float32 series.

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
        values = self.read(series).values.astype("float64")
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
            values = _values(given.to_numpy(), place, ["values"])
            return Series(values, [getattr(given, "name", None) or "value"], dates, "column")
        try:
            array = np.asarray(given, dtype="float64")
        except (TypeError, ValueError):
            raise ValueError(
                f"`{place}` must be a series of numbers: a data frame, or an array (time,) or "
                f"(time, channels), received {describe(given)}."
            ) from None
        names = list(range(array.shape[1])) if array.ndim == 2 else [0]
        return Series(_values(array, place, names), names)

    def scaled(self, values: np.ndarray, place: str = "x") -> np.ndarray:
        """Values `(time, channels)` with mean and deviation taken away."""
        if self.mean is None:
            return values
        if values.shape[1] != len(self.mean):
            raise ValueError(
                f"`{place}` has {values.shape[1]} channels, and the processor was adapted to "
                f"{len(self.mean)}."
            )
        return (values - np.float32(self.mean)) / np.float32(self.std)

    def unscaled(self, values: np.ndarray) -> np.ndarray:
        """The way back, of `(time, channels, ...)`."""
        if self.mean is None:
            return values
        shape = (1, -1) + (1,) * (values.ndim - 2)
        mean, std = (np.float32(x).reshape(shape) for x in (self.mean, self.std))
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
            values = json.loads(read_file(path, _LIMIT))
            if not isinstance(values, Mapping) or values.keys() - {"mean", "std"}:
                raise ValueError(f"it must be an object of mean and std, not {shorten(values)}.")
            return cls(**values)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None


def following_dates(dates: Any, count: int) -> Any:
    """The dates behind the last of an index, as far apart as those before; None without dates."""
    if dates is None:
        return None
    import pandas

    step = _frequency(dates[-50:])
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

        try:
            dates = _dates(pandas.DatetimeIndex(pandas.to_datetime(frame.iloc[:, 0])), place)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The first column of `{place}`, {frame.columns[0]!r}, holds neither numbers nor "
                f"dates: {error}."
            ) from None
        frame = frame.iloc[:, 1:]
    wrong = [name for i, name in enumerate(frame.columns) if not _is_numeric(frame.iloc[:, i])]
    if wrong:
        raise ValueError(f"The column {wrong[0]!r} of `{place}` does not hold numbers.")
    names = list(frame.columns)
    return Series(_values(frame.to_numpy("float64"), place, names), names, dates, "frame")


def _is_numeric(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") in "iufb"


def _dates(index: Any, place: str) -> Any:
    """The dates of an index, None if it has none. ValueError for dates that leave some out."""
    if index is None or getattr(getattr(index, "dtype", None), "kind", "") != "M":
        return None
    if len(index) < 3 or _frequency(index) is not None:
        return index
    steps = np.diff(index.to_numpy()).astype("timedelta64[s]").astype("int64")
    usual = int(np.median(steps))
    odd = np.flatnonzero(steps != usual)
    months = 28 * 86_400 <= usual <= 31 * 86_400 or usual >= 365 * 86_400
    if odd.size and not months:
        row = int(odd[0])
        raise ValueError(
            f"The dates of `{place}` are {usual:,} seconds apart, but rows {row} and {row + 1}, "
            f"{index[row]} and {index[row + 1]}, are not. Put the missing rows in, with NaN: "
            "`frame.asfreq(...)`."
        )
    return index


def _values(array: np.ndarray, place: str, names: list) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`{place}` must hold numbers, received {array.dtype}.")
    array = array.astype("float32")
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
    return array


def _numbers(name: str, given: Any) -> list[float] | None:
    if given is None:
        return None
    fits = isinstance(given, (list, tuple)) and given and all(map(is_number, given))
    if not fits or not np.isfinite(given).all():
        raise ValueError(f"`{name}` must be numbers, one a channel, received {shorten(given)}.")
    return [float(value) for value in given]
