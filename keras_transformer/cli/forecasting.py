"""The sub-command that forecasts: forecast."""

import argparse

from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.cli.lines import load
from keras_transformer.files import atomic_file


@command(
    "forecast",
    f"""\
continue the series of a CSV file

Prints what follows on the columns of a CSV file, as CSV with the dates that follow. The first
column may hold dates; all others are numbers, empty where one is missing. It needs pandas, and
matplotlib for --plot.

{ABOUT_PRESET}
examples:
  keras-transformer forecast --preset my_forecaster ETTh1.csv > next.csv
  keras-transformer forecast --preset my_forecaster loads.csv --horizon 96 --plot out.png
""",
    option("--preset", "the model", required=True, metavar="PRESET"),
    option("file", "the CSV file", metavar="FILE"),
    option(
        "--horizon",
        "rows to forecast (default: as many as the model gives at once)",
        type=positive,
        metavar="N",
    ),
    option("--plot", "write a picture of the end of each series and its forecast", metavar="PNG"),
)
def _forecast(options: argparse.Namespace) -> None:
    try:
        import pandas
    except ImportError:
        raise ImportError("`forecast` reads CSV by pandas. Run `pip install pandas`.") from None
    task = load("Forecaster", options.preset, trained=True, also=("SampledForecaster",))
    frame = pandas.read_csv(options.file)
    found = task.forecast(frame, horizon=options.horizon)
    say(found.to_csv(index_label=None if found.index.name else "date"), end="")
    if options.plot:
        _draw(frame, found, task, options.plot)


def _draw(frame, found, task, path: str) -> None:
    """The end of each series, and its forecast behind it."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    series = task.processor.read(frame)
    shown = min(len(series.values), 3 * len(found))
    before = range(-shown, 0) if series.dates is None else series.dates[-shown:]
    after = range(len(found)) if series.dates is None else found.index
    count = len(series.names)
    figure, axes = pyplot.subplots(
        count, 1, figsize=(9, 1.8 * count), squeeze=False, sharex=True, layout="constrained"
    )
    for channel, (name, axis) in enumerate(zip(series.names, axes[:, 0], strict=True)):
        axis.plot(before, series.values[-shown:, channel], color="#4477aa", label="known")
        forecast = found[name].to_numpy()
        lines = forecast.reshape(len(found), -1)
        axis.plot(after, lines[:, lines.shape[1] // 2], color="#ee6677", label="forecast")
        if lines.shape[1] > 1:
            axis.fill_between(after, lines[:, 0], lines[:, -1], color="#ee6677", alpha=0.25)
        axis.set_title(str(name), fontsize=9, loc="left")
    axes[0, 0].legend(fontsize=8, frameon=False)
    with atomic_file(path) as scratch:
        figure.savefig(scratch, dpi=120)
    pyplot.close(figure)


COMMANDS = (_forecast,)
