"""Common code of forecasting tasks: training windows, and forecasts in the form of the input.

A forecasting task has a `SeriesProcessor` and these attributes and methods:

- `context_length`, the largest number of values that it reads;
- `horizon`, the number of values that it forecasts in one pass;
- `joint_channels`, the number of channels of a series that are one row of the model, or None if
  each channel is a row;
- `fewest`, the smallest number of values that a forecast can be based on;
- `read_length(count)`, how many values to read if the longest series has `count`;
- `window_arrays(known, following)`, the inputs, targets and weights of windows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.processors.series import Series, following_dates
from keras_transformer.support.checking import check_int, check_number, shorten
from keras_transformer.tasks.series.forecast_plot import draw_forecast

MOST_HORIZON = 2**20


def usual_read_length(count: int, context_length: int) -> int:
    """Return how many values to read if the longest series has `count`."""
    # Use few lengths, since JAX and TensorFlow compile a program for each.
    return min(1 << (max(count, 1) - 1).bit_length(), context_length)


def window_dataset(task, x, y=None, sample_weight=None, **options) -> BucketedDataset:
    """Batch windows of series, see `Forecaster.make_dataset`."""
    task._refuse_targets(y, "series")
    if sample_weight is not None:
        raise ValueError(
            f"{type(task).__name__} takes no `sample_weight` for series: all values have the same "
            "weight. To ignore a value, set it to NaN; to weight values, give arrays of windows, "
            "as `make_dataset` returns them."
        )
    count, windows = windows_of(task, task._require_processor().rows(x))

    def make_batch(arrays, masks):
        return task.window_arrays(*windows(arrays["row"]))

    columns = {"place": np.zeros((count, 1), "int32")}
    return task._bucketed(columns, make_batch, rowwise=True, **{**options, "max_buckets": 1})


def plot_forecast(task, x, horizon: int | None = None, *, shown: int | None = None, **options):
    """Draw the end of a series and its forecast, see `Forecaster.plot`."""
    shown = check_int("shown", shown, at_least=1, none=True)
    processor = task._require_processor()
    if not processor.is_one(x):
        raise ValueError("`plot` draws one series, received a list: give one of its series.")
    series = processor.read(x)
    quantiles = options.get("quantiles", getattr(task, "quantiles", None))
    return draw_forecast(series, task.forecast(x, horizon, **options), shown, quantiles)


def forecasts(
    task,
    x: Any,
    make: Callable[[list[np.ndarray]], np.ndarray],
    quantiles: Sequence[float] | None,
    nonnegative: bool = False,
):
    """Forecast series, and return the forecasts in the form of the input.

    Args:
        task: the task.
        x: a series, or a list of them.
        make: function from the rows of `last_rows` to forecasts `(rows, horizon, quantiles)`, with
            `joint_channels` `(rows, channels, horizon, quantiles)`.
        quantiles: list of floats, the quantiles in the last axis. None if there is only one
            forecast.
        nonnegative: bool, whether a channel without values below 0 gets no forecast below 0.
    """
    processor = task._require_processor()
    series = processor.rows(x)
    for number, each in enumerate(series):
        if len(each.values) < task.fewest:
            name = "x" if processor.is_one(x) else f"x[{number}]"
            raise ValueError(
                f"`{name}` has {len(each.values)} values, but the model reads at least "
                f"{task.fewest}."
            )
    found = make(last_rows(task, series))
    if task.joint_channels:
        found = found.reshape(-1, *found.shape[2:])
    results, first, one = [], 0, processor.is_one(x)
    for each, given in zip(series, [x] if one else x, strict=True):
        count = each.values.shape[1]
        made = np.moveaxis(found[first : first + count], 0, 1)
        made = processor.unscaled(made)
        if nonnegative:
            least = np.nanmin(each.values[-task.context_length :], axis=0)
            made = np.where((least >= 0)[None, :, None], np.maximum(made, 0), made)
        made = _as_given(made.astype(each.dtype), each, quantiles)
        results.append(made[:, 0] if each.kind == "array" and np.ndim(given) == 1 else made)
        first += count
    return results[0] if one else results


def last_rows(task, series: list[Series]) -> list[np.ndarray]:
    """Return the last values that the model reads of each channel of series, scaled, as float64.

    With `joint_channels` a row is `(channels, time)`, else `(time,)`. Raises ValueError if all of
    them are missing in a channel.
    """
    rows: list[np.ndarray] = []
    for number, (each, values) in enumerate(zip(series, scaled(task, series), strict=True)):
        found = values[-task.context_length :].T
        for name, row in zip(each.names, found, strict=True):
            if np.isnan(row).all():
                place = "x" if len(series) == 1 else f"x[{number}]"
                raise ValueError(
                    f"`{place}` has no value in the last {len(row)} rows of {name!r}, which "
                    "the model reads: all are missing (NaN)."
                )
        rows += [found] if task.joint_channels else [*found]
    return rows


def windows_of(task, series: list[Series]) -> tuple[int, Callable]:
    """Return the number of windows of series, and a function that gathers windows by index.

    A window is the known and the following values of one channel, `(context,)` and `(horizon,)`, or
    with `joint_channels` of all channels, `(channels, context)` and `(channels, horizon)`. A series
    shorter than a window gives one window, padded with NaN at the front, if it has at least
    `task.fewest` values followed by those of the horizon.
    """
    rows, counts, joint = scaled(task, series), [], task.joint_channels
    context = task.read_length(max(map(len, rows)) - task.horizon)
    size, fewest = context + task.horizon, task.fewest + task.horizon
    for number, values in enumerate(rows):
        if len(values) < fewest:
            raise ValueError(
                f"Series {number} has {len(values)} values; a window takes {task.fewest} and "
                f"{task.horizon} that follow, {fewest} in all."
            )
        rows[number] = values = padded(values.T, max(size, len(values))).T
        counts.append((len(values) - size + 1) * (1 if joint else values.shape[1]))
    ends = np.cumsum(counts)
    first = np.cumsum([0, *(values.size for values in rows)])
    channels = np.array([values.shape[1] for values in rows])
    flat, steps = np.concatenate([values.ravel() for values in rows]), np.arange(size)

    def take(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        series = np.searchsorted(ends, numbers, side="right")
        width = channels[series]
        # Windows are numbered by position and then by channel, in the order of values in memory.
        number = numbers - (ends - counts)[series]
        begin = (first[series] + (number * width if joint else number))[:, None]
        along = width[:, None] * steps
        if joint:
            begin, along = begin[..., None] + np.arange(joint)[:, None], along[:, None]
        found = flat[begin + along]
        return found[..., :context], found[..., context:]

    return int(ends[-1]), take


def scaled(task, series: list[Series]) -> list[np.ndarray]:
    """Return the values of series as the processor of a task scales them."""
    places = ["x" if len(series) == 1 else f"x[{i}]" for i in range(len(series))]
    for place, each in zip(places, series, strict=True):
        count = each.values.shape[1]
        if task.joint_channels not in (None, count):
            raise ValueError(
                f"`{place}` has {count} channels, but the model is for series of "
                f"{task.joint_channels}, which see each other."
            )
    pairs = zip(series, places, strict=True)
    return [task.processor.scaled(each.values, place) for each, place in pairs]


def padded(values: np.ndarray, length: int) -> np.ndarray:
    """Pad values `(..., time)` with NaN at the front to a length."""
    missing = [(0, 0)] * (values.ndim - 1) + [(length - values.shape[-1], 0)]
    return np.pad(values, missing, constant_values=np.nan)


def checked_quantiles(quantiles: Any) -> list[float] | None:
    """Return quantiles as floats. Raises ValueError unless they ascend between 0 and 1."""
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
    """Convert forecasts `(horizon, channels, quantiles)` to the type of the input series."""
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
