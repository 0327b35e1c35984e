"""What tasks of series share: windows to learn from, and forecasts as what the series was."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.checking import check_int, check_number, shorten
from keras_transformer.data import BucketedDataset
from keras_transformer.processors.series import Series, following_dates
from keras_transformer.tasks.forecast_plot import draw_forecast

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
        """Inputs, targets and weights of windows, `(rows, context)` and `(rows, horizon)`.

        What is known is float64, NaN where it is missing. A window in which nothing is known counts
        for nothing.
        """
        raise NotImplementedError

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Windows of series as batches: what is known, and what follows.

        Args:
            x: a series or a list of them, as `SeriesProcessor` takes them.
            y: None: the targets are within the series. A missing target counts for nothing.
            sample_weight: None, since every value counts alike.
            **options: as for `Task.make_dataset`.
        """
        self._refuse_targets(y, "series")
        if sample_weight is not None:
            raise ValueError(
                f"{type(self).__name__} weighs every value of its series alike: no "
                "`sample_weight`. A value that is NaN counts for nothing; arrays of windows, as "
                "`make_dataset` gives them, may have weights."
            )
        count, windows = self._windows(self._require_processor().rows(x))

        def make_batch(arrays, masks):
            return self.window_arrays(*windows(arrays["row"]))

        columns = {"place": np.zeros((count, 1), "int32")}
        return self._bucketed(columns, make_batch, **{**options, "max_buckets": 1})

    def plot(self, x, horizon: int | None = None, *, shown: int | None = None, **options):
        """Draw the end of a series and its forecast, a picture for each channel.

        Args:
            x: a series, as for `forecast`.
            horizon: int, values to forecast. Defaults to those that the model forecasts at once.
            shown: int, known values that are drawn. Defaults to three times the horizon.
            **options: those of `forecast`. Of several quantiles the lowest and the highest are the
                edges of a band.

        Returns:
            A `matplotlib.figure.Figure`: a notebook shows it, and `savefig("next.png")` keeps it.

        Raises:
            ImportError: without matplotlib.
            ValueError: as `forecast`; for several series, or more than 32 channels.

        Example:
        ```python
        import numpy as np
        import keras_transformer as kt

        forecaster = kt.Forecaster.untrained(horizon=8, quantiles=[0.1, 0.5, 0.9])
        figure = forecaster.plot(np.sin(np.arange(80) * 0.5))
        figure.savefig("waves.png")
        ```
        """
        shown = check_int("shown", shown, at_least=1, none=True)
        processor = self._require_processor()
        if not processor.is_one(x):
            raise ValueError("`plot` draws one series: give one of the list.")
        series = processor.read(x)
        return draw_forecast(series, self.forecast(x, horizon, **options), shown)

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
                each channel of each series, float64.
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
        found = make(self._last(series))
        results, first, one = [], 0, processor.is_one(x)
        for each, given in zip(series, [x] if one else x, strict=True):
            count = each.values.shape[1]
            made = np.moveaxis(found[first : first + count], 0, 1)
            made = _as_given(processor.unscaled(made).astype(each.dtype), each, quantiles)
            results.append(made[:, 0] if each.kind == "array" and np.ndim(given) == 1 else made)
            first += count
        return results[0] if one else results

    def _last(self, series: list[Series]) -> list[np.ndarray]:
        """Return the last values of each channel of series, scaled, as many as a model reads.

        ValueError for a channel in which none of them is known.
        """
        rows = []
        for number, (each, values) in enumerate(zip(series, self._scaled(series), strict=True)):
            for name, row in zip(each.names, values[-self.context_length :].T, strict=True):
                if np.isnan(row).all():
                    place = "x" if len(series) == 1 else f"x[{number}]"
                    raise ValueError(
                        f"`{place}` has no value in the last {len(row)} rows of {name!r}, which "
                        "the model reads: all are missing (NaN)."
                    )
                rows.append(row)
        return rows

    def _windows(self, series: list[Series]) -> tuple[int, Callable]:
        """The number of windows of series, and what gives those of some numbers.

        A window is what is known and what follows, `(context,)` and `(horizon,)` values of one
        channel; of a series with at least the fewest and the horizon, but fewer than a window,
        there is one, with NaN in front.
        """
        rows, counts = self._scaled(series), []
        context = self.read_length(max(map(len, rows)) - self.horizon)
        size, fewest = context + self.horizon, self.fewest + self.horizon
        for number, values in enumerate(rows):
            if len(values) < fewest:
                raise ValueError(
                    f"Series {number} has {len(values)} values; a window takes {self.fewest} and "
                    f"{self.horizon} that follow, {fewest} in all."
                )
            rows[number] = values = padded(values.T, max(size, len(values))).T
            counts.append((len(values) - size + 1) * values.shape[1])
        ends = np.cumsum(counts)
        first = np.cumsum([0, *(values.size for values in rows)])
        channels = np.array([values.shape[1] for values in rows])
        flat, steps = np.concatenate([values.ravel() for values in rows]), np.arange(size)

        def take(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            series = np.searchsorted(ends, numbers, side="right")
            width = channels[series]
            # A number counts places, and at each place channels, as the values lie.
            begin = first[series] + numbers - (ends - counts)[series]
            found = flat[begin[:, None] + width[:, None] * steps]
            return found[:, :context], found[:, context:]

        return int(ends[-1]), take

    def _scaled(self, series: list[Series]) -> list[np.ndarray]:
        one = len(series) == 1
        return [
            self.processor.scaled(each.values, "x" if one else f"x[{i}]")
            for i, each in enumerate(series)
        ]


def padded(values: np.ndarray, length: int) -> np.ndarray:
    """Values `(..., time)` with NaN in front of them, to a length."""
    missing = [(0, 0)] * (values.ndim - 1) + [(length - values.shape[-1], 0)]
    return np.pad(values, missing, constant_values=np.nan)


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
