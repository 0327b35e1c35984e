"""The sub-command forecast, which continues the series of a CSV file."""

import argparse

from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.cli.lines import load
from keras_transformer.support.files import atomic_file


@command(
    "forecast",
    f"""\
continue the series of a CSV file

Prints the forecast of each column of a CSV file, as CSV with the dates that follow. The first
column may hold dates; all others are numbers, empty where a value is missing. Needs pandas, and
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
        "number of rows to forecast (default: as many as the model forecasts in one pass)",
        type=positive,
        metavar="N",
    ),
    option("--plot", "write a plot of the end of each series and its forecast", metavar="PNG"),
)
def _forecast(options: argparse.Namespace) -> None:
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "`forecast` needs pandas to read CSV. Run `pip install pandas`."
        ) from None
    task = load("Forecaster", options.preset, trained=True, also=("SampledForecaster",))
    frame = pandas.read_csv(options.file)
    found = task.forecast(frame, horizon=options.horizon)
    label = None if found.index.name else "date"
    say(found.to_csv(index_label=label, float_format="%.12g"), end="")
    if options.plot:
        from keras_transformer.tasks.series.forecast_plot import draw_forecast

        with atomic_file(options.plot) as scratch:
            draw_forecast(task.processor.read(frame), found).savefig(scratch, dpi=120)


COMMANDS = (_forecast,)
