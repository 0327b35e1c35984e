"""Forecast several series: the hourly loads of an electricity transformer.

python examples/forecasting.py --train --output runs/my_forecaster
python examples/forecasting.py --preset runs/my_forecaster --file loads.csv --picture out.png

With --train a model learns from the first 12 months of the file. The next 4 months are for
validation after each epoch, and the 4 months after them for the score: the mean squared and
absolute errors over all windows, of values scaled to mean 0 and deviation 1 on the first part (Zhou
et al. 2021, Nie et al. 2023). The picture shows the forecast of a window of the last part over the
true values.
"""

import pathlib

from runs import start

import keras_transformer as kt
from example_data import DATA_DIR

import keras
from absl import app, flags
from keras import ops

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "patchtst_etth1_96", "Forecaster to score and draw.")
flags.DEFINE_string("file", None, "CSV with a column of dates. Defaults to ett/ETTh1.csv.")
flags.DEFINE_boolean("train", False, "Train a model.")
flags.DEFINE_string("output", "runs/forecaster", "Folder for the trained preset.")
flags.DEFINE_string("picture", "forecast.png", "Path of the picture.")
flags.DEFINE_integer("context", 512, "Hours that the model reads.", lower_bound=24)
flags.DEFINE_integer("horizon", 96, "Hours that it forecasts.", lower_bound=1)
flags.DEFINE_integer("layers", 3, "Layers of the encoder.", lower_bound=1)
flags.DEFINE_integer("width", 16, "Width of the states.", lower_bound=4)
flags.DEFINE_integer("heads", 4, "Attention heads.", lower_bound=1)
flags.DEFINE_float("dropout", 0.3, "Dropout rate.")
flags.DEFINE_integer("epochs", 14, "Passes over the windows.", lower_bound=1)
flags.DEFINE_integer("batch_size", 896, "Rows of a step: windows times channels.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 2e-4, "Initial rate; falls by a tenth per epoch from the third."
)
flags.DEFINE_integer("seed", 1, "Seed of weights and order.")

# Rows of the three parts: 12, 4 and 4 months of 30 days.
_MONTH = 30 * 24
TRAIN, VALIDATION, TEST = (slice(a * _MONTH, b * _MONTH) for a, b in ((0, 12), (12, 16), (16, 20)))


def read():
    """Return the table, with its dates as index."""
    import pandas

    path = pathlib.Path(FLAGS.file or pathlib.Path(DATA_DIR.value or ".", "ett", "ETTh1.csv"))
    if not path.is_file():
        raise app.UsageError(
            f"There is no file {path}. Give --file, or --data_dir a folder with ett/ETTh1.csv of "
            "the public repository zhouhaoyi/ETDataset."
        )
    frame = pandas.read_csv(path)
    return frame.set_index(pandas.to_datetime(frame.iloc[:, 0])).iloc[:, 1:]


def make_forecaster() -> kt.Forecaster:
    """Build a model with the sizes of the flags and random weights."""
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=FLAGS.heads,
        intermediate_dim=8 * FLAGS.width,
        position="learned",
        normalization="batch_norm",
        activation="gelu",
        dropout=FLAGS.dropout,
        stem={
            "kind": "series",
            "context_length": FLAGS.context,
            "patch_length": 16,
            "stride": 8,
            "repeat_last": True,
        },
    )
    forecaster = kt.Forecaster(kt.models.Encoder(config), kt.SeriesProcessor(), FLAGS.horizon)
    # So the first forecasts are the mean of the window, not noise.
    forecaster.output_dense.kernel.assign(ops.zeros_like(forecaster.output_dense.kernel))
    return forecaster


def part(frame, rows: slice, context: int):
    """Return the rows of a part, preceded by the context of its first window."""
    return frame.iloc[max(rows.start - context, 0) : rows.stop]


def train(frame) -> kt.Forecaster:
    """Train a forecaster and save it."""
    keras.utils.set_random_seed(FLAGS.seed)
    forecaster = make_forecaster()
    forecaster.processor.adapt(frame.iloc[TRAIN])
    forecaster.compile(keras.optimizers.Adam(FLAGS.learning_rate))
    slower = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: FLAGS.learning_rate * 0.9 ** max(0, epoch - 2)
    )
    print(f"{forecaster.count_params():,} parameters", flush=True)
    forecaster.fit(
        frame.iloc[TRAIN], epochs=FLAGS.epochs, batch_size=FLAGS.batch_size, verbose=2,
        validation_data=part(frame, VALIDATION, FLAGS.context), callbacks=[slower],
        seed=FLAGS.seed,
    )  # fmt: skip
    # Windows are scaled one by one, so the scales of this table are not needed for other data.
    forecaster.processor.mean = forecaster.processor.std = None
    forecaster.save_to_preset(FLAGS.output, dtype="float16")
    print(f"The forecaster is in {FLAGS.output}.")
    return forecaster


def draw(forecaster: kt.Forecaster, frame) -> None:
    """Draw the forecast of a window of the last part over the true values."""
    from matplotlib import pyplot

    context, horizon = forecaster.context_length, forecaster.horizon
    begin = TEST.start + (TEST.stop - TEST.start) // 2
    known, truth = frame.iloc[begin - context : begin], frame.iloc[begin : begin + horizon]
    found = forecaster.forecast(known)
    shown = known.iloc[-2 * horizon :]
    figure, axes = pyplot.subplots(
        len(frame.columns), 1, figsize=(9, 1.6 * len(frame.columns)), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, name in zip(axes[:, 0], frame.columns, strict=True):
        axis.plot(shown.index, shown[name], color="#4477aa", label="known")
        axis.plot(truth.index, truth[name], color="#bbbbbb", label="truth")
        axis.plot(found.index, found[name], color="#ee6677", label="forecast")
        axis.set_title(str(name), fontsize=9, loc="left")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", fontsize=8, frameon=False, ncols=3)
    figure.savefig(FLAGS.picture, dpi=120)
    pyplot.close(figure)


def main(_):
    frame = read()
    forecaster = train(frame) if FLAGS.train else kt.Forecaster.from_preset(FLAGS.preset)
    forecaster.processor.adapt(frame.iloc[TRAIN])
    rows = part(frame, TEST, forecaster.context_length)
    squared, absolute = forecaster.evaluate(rows, batch_size=4096, verbose=0)[:2]
    windows = len(rows) - forecaster.context_length - forecaster.horizon + 1
    print(f"{windows:,} windows of the last part: MSE {squared:.3f}, MAE {absolute:.3f}")
    draw(forecaster, frame)
    print(f"The picture is in {FLAGS.picture}.")


if __name__ == "__main__":
    start(main)
