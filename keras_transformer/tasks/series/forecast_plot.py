"""Plots of forecasts with matplotlib."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.explanations.plots import make_figure
from keras_transformer.processors.series import Series

_KNOWN, _FORECAST = "#4477aa", "#ee6677"
_MOST_CHANNELS = 32


def draw_forecast(
    series: Series,
    forecast: Any,
    shown: int | None = None,
    quantiles: Sequence[float] | None = None,
) -> Any:
    """Draw the end of each channel of a series, followed by its forecast.

    Args:
        series: `Series`.
        forecast: the result of `forecast` for the series. With several quantiles the middle
            one is drawn as a line, and the lowest and highest as the edges of a band.
        shown: int, the number of known values to draw. Defaults to three times the forecast's.
        quantiles: floats or None, the quantiles of the forecast, which the legend names.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are more channels than fit into a plot.
    """
    count, length = series.values.shape[1], len(forecast)
    if count > _MOST_CHANNELS:
        raise ValueError(
            f"The series has {count} channels, but a plot has room for {_MOST_CHANNELS}: choose "
            "some of them."
        )
    lines = np.asarray(forecast, "float64").reshape(length, count, -1)
    shown = min(len(series.values), 3 * length if shown is None else shown)
    known = series.values[len(series.values) - shown :]
    before, after = np.arange(-shown, 0), np.arange(length)
    dated = series.dates is not None and len(series.dates) > 1  # One date gives no frequency.
    if dated:
        before, after = map(
            _timestamps, (series.dates[len(series.dates) - shown :], forecast.index)
        )
    figure, axes = make_figure(count, 1, figsize=(9, 1.2 + 1.8 * count), sharex=True)
    for name, axis, values, made in zip(
        series.names, axes[:, 0], known.T, np.moveaxis(lines, 1, 0), strict=True
    ):
        middle = made[:, made.shape[1] // 2]
        # Start at the last known value, so that the line has no gap.
        last = [values[-1]] if shown and np.isfinite(values[-1]) else []
        places = np.concatenate([before[len(before) - len(last) :], after])
        axis.plot(before, values, color=_KNOWN, label="known")
        axis.plot(places, [*last, *middle], color=_FORECAST, label="forecast")
        if made.shape[1] > 1:
            edges = (np.concatenate([last, made[:, place]]) for place in (0, -1))
            label = f"quantiles {quantiles[0]:g} to {quantiles[-1]:g}" if quantiles else None
            axis.fill_between(places, *edges, color=_FORECAST, alpha=0.25, linewidth=0, label=label)
        if count > 1 or series.kind != "array":
            axis.set_title(str(name).replace("$", r"\$"), fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    axes[0, 0].legend(fontsize=8, frameon=False)
    if dated:
        axes[-1, 0].tick_params(axis="x", rotation=20)
    return figure


def _timestamps(dates: Any) -> np.ndarray:
    """Convert dates or periods to the form that matplotlib draws."""
    dates = dates.to_timestamp() if hasattr(dates, "to_timestamp") else dates
    return dates.tz_localize(None).to_numpy() if dates.tz is not None else dates.to_numpy()
