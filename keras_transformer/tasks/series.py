"""What tasks of series share: windows to learn from, and forecasts as what the series was."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.checking import check_number, shorten
from keras_transformer.data import BucketedDataset
from keras_transformer.processors.series import Series, following_dates

MOST_HORIZON = 2**20


class ForecastsSeries:
    """Mixin of a task whose processor is a `SeriesProcessor`.

    The task has a `context_length`, the most values that are read, and a `horizon`.
    """

    @property
    def fewest(self) -> int:
        """The fewest values that a forecast is made of."""
        return 1

    def read_length(self, count: int) -> int:
        """How many values are read where the longest series has so many."""
        # Few lengths, each of which is a program on JAX and TensorFlow.
        return min(1 << (max(count, 1) - 1).bit_length(), self.context_length)

    def window_arrays(self, known: np.ndarray, following: np.ndarray) -> tuple:
        """Inputs, targets and weights of windows, `(rows, context)` and `(rows, horizon)`."""
        raise NotImplementedError

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Windows of series as batches: what is known, and what follows.

        Args:
            x: a series or a list of them, as `SeriesProcessor` takes them.
            y: None: the targets are within the series. A missing target counts for nothing.
            sample_weight: None.
            **options: as for `Task.make_dataset`.
        """
        self._refuse_targets(y, sample_weight)
        rows = self._scaled(self._require_processor().rows(x))
        context = self.read_length(max(map(len, rows)) - self.horizon)
        count, windows = self._windows(rows, context)

        def make_batch(arrays, masks):
            whole = windows(arrays["row"])
            return self.window_arrays(whole[:, :context], whole[:, context:])

        columns = {"place": np.zeros((count, 1), "int32")}
        return self._bucketed(columns, make_batch, **{**options, "max_buckets": 1})

    def forecasts(
        self,
        x: Any,
        make: Callable[[list[np.ndarray]], np.ndarray],
        quantiles: Sequence[float] | None,
    ):
        """What follows on series, as `forecast` returns it.

        Args:
            x: a series, or a list of them.
            make: gives `(rows, horizon, quantiles)` for rows, the last `context_length` values of
                each channel of each series.
            quantiles: list of floats, whose columns the forecasts have. None for one forecast.
        """
        processor = self._require_processor()
        series = processor.rows(x)
        for number, each in enumerate(series):
            if len(each.values) < self.fewest:
                name = "x" if processor.is_one(x) else f"x[{number}]"
                raise ValueError(
                    f"`{name}` has {len(each.values)} values, and the model reads {self.fewest}."
                )
        most = self.context_length
        found = make([row for values in self._scaled(series) for row in values[-most:].T])
        results, first, one = [], 0, processor.is_one(x)
        for each, given in zip(series, [x] if one else x, strict=True):
            count = each.values.shape[1]
            made = np.moveaxis(found[first : first + count], 0, 1)
            made = _as_given(processor.unscaled(made), each, quantiles)
            results.append(made[:, 0] if each.kind == "array" and np.ndim(given) == 1 else made)
            first += count
        return results[0] if one else results

    def _windows(
        self, rows: list[np.ndarray], context: int
    ) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
        """The number of windows of series, and what gives those of some numbers.

        Each is `(context + horizon,)` values of one channel; of a series with at least the fewest
        and the horizon, but fewer than a window, there is one, with NaN in front.
        """
        windows, horizon, fewest = [], self.horizon, self.fewest
        for number, values in enumerate(rows):
            if len(values) < fewest + horizon:
                raise ValueError(
                    f"Series {number} has {len(values)} values; a window takes {fewest} and "
                    f"{horizon} that follow, {fewest + horizon} in all."
                )
            rows[number] = values = padded(values.T, max(context + horizon, len(values))).T
            starts = np.arange(len(values) - context - horizon + 1)
            channels = np.arange(values.shape[1])
            places = np.stack(np.meshgrid(starts, channels, indexing="ij"), -1).reshape(-1, 2)
            windows.append(np.insert(places, 0, number, axis=1))
        places = np.concatenate(windows).astype("int32")
        length = np.arange(context + horizon)
        first = np.cumsum([0, *(values.size for values in rows)])
        steps = np.array([values.shape[1] for values in rows])
        flat = np.concatenate([values.ravel() for values in rows])

        def take(numbers: np.ndarray) -> np.ndarray:
            series, start, channel = places[numbers].T
            step = steps[series]
            return flat[(first[series] + start * step + channel)[:, None] + step[:, None] * length]

        return len(places), take

    def _scaled(self, series: list[Series]) -> list[np.ndarray]:
        one = len(series) == 1
        return [
            self.processor.scaled(each.values, "x" if one else f"x[{i}]")
            for i, each in enumerate(series)
        ]


def padded(values: np.ndarray, length: int) -> np.ndarray:
    """Values `(..., time)` with NaN in front of them, to a length."""
    missing = [(0, 0)] * (values.ndim - 1) + [(length - values.shape[-1], 0)]
    return np.pad(values, missing, constant_values=np.float32("nan"))


def checked_quantiles(quantiles: Any) -> list[float] | None:
    """Quantiles as a list of floats. ValueError unless they rise between 0 and 1."""
    if quantiles is None:
        return None
    several = isinstance(quantiles, (list, tuple)) and len(quantiles) > 0
    found = [check_number("quantiles", q, above=0, below=1) for q in quantiles] if several else []
    if not found or sorted(set(found)) != found:
        raise ValueError(
            f"`quantiles` must be rising numbers between 0 and 1, received {shorten(quantiles)}."
        )
    return found


def _as_given(values: np.ndarray, series: Series, quantiles: Sequence[float] | None):
    """Forecasts `(horizon, channels, quantiles)` as what the series was."""
    if series.kind == "array":
        return values if quantiles else values[..., 0]
    import pandas

    dates = following_dates(series.dates, len(values))
    if quantiles is None:
        frame = pandas.DataFrame(values[..., 0], index=dates, columns=series.names)
    else:
        names = pandas.MultiIndex.from_product([series.names, quantiles])
        frame = pandas.DataFrame(values.reshape(len(values), -1), index=dates, columns=names)
    return frame if series.kind == "frame" else frame[series.names[0]]
