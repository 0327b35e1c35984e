"""The sub-command that forecasts: forecast."""

import argparse

from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive, say
from keras_transformer.cli.lines import load
from keras_transformer.files import atomic_file
from keras_transformer.tasks.forecast_plot import draw_forecast


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
    label = None if found.index.name else "date"
    say(found.to_csv(index_label=label, float_format="%.12g"), end="")
    if options.plot:
        with atomic_file(options.plot) as scratch:
            draw_forecast(task.processor.read(frame), found).savefig(scratch, dpi=120)


COMMANDS = (_forecast,)
