"""Forecasts: windows, levels, missing values, quantiles, dates, saving, wrong series."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.tasks.series.windows import windows_of
from keras_transformer.training.losses.losses import QuantileLoss
from tests.layers.conftest import assert_close
from tests.layers.stems import assert_is_as_described
from tests.tasks import images
from tests.tasks.series import bolt, config, forecaster, waves


@pytest.fixture(scope="module")
def learned():
    keras.utils.set_random_seed(0)
    task = forecaster()
    task.processor.adapt(waves())
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(waves(), epochs=6, batch_size=32, seed=1, verbose=0)
    return task


def test_learns_and_is_saved(learned, tmp_path):
    known, truth = waves(300)[:280], waves(300)[280:]
    found = learned.forecast(known, horizon=20)  # more than it gives at once
    assert found.shape == (20, 2)
    assert np.abs((found - truth) / [1, 20]).max() <= 0.5
    scores = learned.evaluate(waves(300)[200:], verbose=0, return_dict=True)
    assert scores["loss"] <= 0.05 and scores["mean_absolute_error"] <= 0.2
    assert np.abs(learned.forecast(known, horizon=4) - found[:4]).max() <= 1e-5

    learned.save_to_preset(tmp_path / "preset")
    learned.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == learned.task_values()
        assert again.processor.mean == learned.processor.mean
        assert np.abs(again.forecast(known, horizon=20) - found).max() <= 1e-4


def test_scores_are_those_of_all_windows(learned):
    """The mean over all places, channels and steps, of the scaled values."""
    series = waves(300)[200:]
    scaled = learned.processor.scaled(series.astype("float32"))
    windows = np.lib.stride_tricks.sliding_window_view(scaled, 30, axis=0)  # (71, 2, 30)
    rows = windows.reshape(-1, 30)
    found = learned.predict({"values": rows[:, :24]}, verbose=0)[..., 0]
    expected = ((found - rows[:, 24:]) ** 2).mean(), np.abs(found - rows[:, 24:]).mean()
    scores = learned.evaluate(series, verbose=0, batch_size=7)
    assert np.abs(np.array(scores) - expected).max() <= 1e-5
    assert learned.make_dataset(series).num_rows == 71 * 2


def test_levels_and_scales_go_through(learned):
    """Ten times a series and seven more is forecast as ten times and seven more."""
    rows = waves(24).T.astype("float32")
    one = learned.predict({"values": rows}, verbose=0)
    other = learned.predict({"values": 10 * rows + 7}, verbose=0)
    assert np.abs(other - (10 * one + 7)).max() <= 0.05 * np.abs(10 * one).max() / 100
    constant = learned.predict({"values": np.full((1, 24), 5.0, "float32")}, verbose=0)
    assert np.abs(constant - 5).max() <= 0.1


@pytest.mark.one_backend
@pytest.mark.parametrize(("make", "level"), [(forecaster, 1e9), (bolt, -1e6)])
def test_a_high_level_loses_nothing(make, level):
    """A constant added to a series shifts its forecast, and changes no score and no step."""
    # Steps of 2**-10, which float64 holds at this level.
    random = np.random.default_rng(0).integers(-1024, 1024, (60, 1))
    series = np.concatenate([np.round(waves(60)[:, :1] * 1024), random], axis=1) / 1024
    series[40, 0] = np.nan
    high, task = series + level, make()
    first = task.forecast(series, horizon=9), task.predict(series, verbose=0)
    assert np.abs(task.forecast(high, horizon=9) - level - first[0]).max() <= 2e-4
    assert np.abs(task.predict(high, verbose=0) - level - first[1]).max() <= 2e-4
    arrays, y = {"values": np.nan_to_num(series[:24].T)}, np.zeros((2, 6, 1))
    shifted = {"values": arrays["values"] + level}
    found = task.predict(shifted, verbose=0) - level
    assert np.abs(found - task.predict(arrays, verbose=0)).max() <= 2e-4
    expected = task.evaluate(arrays, y, verbose=0)
    assert task.evaluate(shifted, y + level, verbose=0) == pytest.approx(expected, rel=1e-4)
    task.processor.adapt(series)
    spread = task.processor.std
    scaled = task.forecast(series, horizon=9), task.predict(series, verbose=0)
    task.processor.adapt(high)
    assert task.processor.std == pytest.approx(spread, rel=1e-6)
    assert np.abs(task.forecast(high, horizon=9) - level - scaled[0]).max() <= 2e-4
    assert np.abs(task.predict(high, verbose=0) - scaled[1]).max() <= 2e-4
    losses = []
    for given in (series, high):
        keras.utils.set_random_seed(0)
        losses.append(make().fit(given, verbose=0, seed=1).history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.one_backend
def test_percentages_at_usual_levels_are_of_the_values():
    """A level is taken away only where float32 would lose something."""
    task, series = forecaster(), 100 + waves(60)[:, 0]
    task.compile("adam", "mse", weighted_metrics=["mean_absolute_percentage_error"])
    found = task.evaluate(series, verbose=0)[1]
    windows = np.lib.stride_tricks.sliding_window_view(series, 30)
    made = task.predict({"values": windows[:, :24].astype("float32")}, verbose=0)[..., 0]
    expected = 100 * np.abs((made - windows[:, 24:]) / windows[:, 24:]).mean()
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.one_backend
def test_nothing_known_is_refused_or_counts_for_nothing():
    pandas = pytest.importorskip("pandas")
    task = forecaster()
    empty = waves(60)
    empty[:, 1] = np.nan
    frame = pandas.DataFrame(empty, columns=["a", "b"])
    verbs = (
        task.forecast, task.evaluate, task.fit, task.predict, task.processor.adapt, task.explain,
        task.plot,
    )  # fmt: skip
    for verb in verbs:
        with pytest.raises(ValueError, match="`x` has no value in 'b': all are missing"):
            verb(frame)
        with pytest.raises(ValueError, match="no value in 1"):
            verb(empty)
    for verb in verbs[:4]:
        with pytest.raises(ValueError, match=r"`x\[1\]` has no value in 1"):
            verb([waves(60), empty])
    gap = waves(90)
    gap[-24:, 0] = np.nan
    with pytest.raises(ValueError, match="no value in the last 24 rows of 0, which the model"):
        task.forecast(gap)
    # Windows of a gap alone: as if they were not there.
    gap = waves(120)[:, 0]
    gap[40:70] = np.nan
    inputs, _, weights = task.make_dataset(gap, batch_size=200)[0]
    unseen = ~np.asarray(inputs["observed"]).any(axis=1)
    assert unseen.sum() == 7 and not weights[unseen].any() and weights[~unseen].any()
    task.fit(gap, verbose=0)
    # NaN in tensors is missing too, and in arrays refused, as in targets.
    rows = waves(24).T.astype("float32")
    known = np.ones(rows.shape, "bool")
    rows[0, 3], known[0, 3] = np.nan, False
    expected = task.predict({"values": np.nan_to_num(rows), "observed": known}, verbose=0)
    found = to_numpy(task({"values": keras.ops.convert_to_tensor(rows)}))
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=2e-6)
    targets = np.zeros((2, 6, 1), "float32")
    for verb in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match="`values` must hold finite floats"):
            verb({"values": rows}, targets, verbose=0)
        with pytest.raises(ValueError, match=r"`y\[0, 0, 0\]` is NaN or infinite"):
            verb({"values": np.nan_to_num(rows)}, targets + np.nan, verbose=0)
    assert all(np.isfinite(to_numpy(v)).all() for v in task.weights)


@pytest.mark.one_backend
def test_one_figure_and_a_usual_size():
    pytest.importorskip("matplotlib")
    pandas = pytest.importorskip("pandas")
    task = kt.Forecaster.untrained(horizon=8, quantiles=[0.1, 0.5, 0.9])
    assert (task.context_length, task.horizon) == (32, 8)
    frame = pandas.DataFrame(
        waves(80), columns=["a", "$b"], index=pandas.period_range("2000-01", periods=80, freq="M")
    )
    figure = task.plot(frame, shown=30)
    axes = figure.axes
    assert [axis.get_title(loc="left") for axis in axes] == ["a", r"\$b"]
    known, forecast = axes[0].get_lines()
    shown = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert shown == ["known", "forecast", "quantiles 0.1 to 0.9"]
    np.testing.assert_allclose(known.get_ydata(), frame["a"][-30:])
    found = task.forecast(frame)
    assert isinstance(found.index, pandas.PeriodIndex) and str(found.index[0]) == "2006-09"
    np.testing.assert_allclose(forecast.get_ydata()[1:], found["a"][0.5], rtol=1e-5)
    assert forecast.get_ydata()[0] == frame["a"].iloc[-1]
    with pytest.raises(ValueError, match="`plot` draws one series"):
        task.plot([frame])
    with pytest.raises(ValueError, match="has 33 channels, but a plot has room for 32"):
        task.plot(np.tile(waves(40)[:, :1], 33))
    assert kt.Forecaster.untrained(3, 2).forecast(waves(9)[:, 0]).shape == (3,)


def test_missing_values(learned):
    series = waves()
    series[100, 0] = np.nan
    series[-3, 1] = np.nan
    assert np.isfinite(learned.evaluate(series, verbose=0)[0])
    found = learned.forecast(series)
    assert np.isfinite(found).all()
    # What stands in the place of a missing value changes nothing.
    rows, known = waves(24).T.astype("float32"), np.ones((2, 24), "bool")
    known[:, 5] = False
    one = learned.predict({"values": rows, "observed": known}, verbose=0)
    rows[:, 5] = 77
    other = learned.predict({"values": rows, "observed": known}, verbose=0)
    assert np.abs(one - other).max() <= 1e-4
    assert np.abs(one - learned.predict({"values": rows}, verbose=0)).max() > 0.01
    # A missing target counts for nothing.
    inputs, targets, weights = learned.make_dataset(series[70:110])[0]
    assert weights.min() == 0 and (targets[weights == 0] == 0).all()
    assert np.isfinite(inputs["values"]).all() and not inputs["observed"].all()


def test_quantiles():
    keras.utils.set_random_seed(0)
    task = forecaster(quantiles=[0.1, 0.5, 0.9], stride=3, repeat_last=True)
    task.compile(keras.optimizers.Adam(1e-2))
    random = np.random.default_rng(0)
    noise = random.normal(size=800)
    task.fit(noise, epochs=6, batch_size=64, seed=1, verbose=0)
    rows = np.lib.stride_tricks.sliding_window_view(random.normal(size=500), 30)
    found = task.predict({"values": rows[:, :24].astype("float32")}, verbose=0)
    assert found.shape == (471, 6, 3)
    below = (rows[:, 24:, None] < found).mean(axis=(0, 1))
    assert np.abs(below - [0.1, 0.5, 0.9]).max() <= 0.12
    assert task.forecast(noise, horizon=9).shape == (9, 3)
    assert task.forecast([noise, waves()])[1].shape == (6, 2, 3)


def test_longer_horizons_of_quantiles():
    """Each quantile is taken for known; of all that follows the quantiles are taken."""
    task, series = forecaster(quantiles=[0.1, 0.5, 0.9]), waves(60)[:, 0]
    first = task.forecast(series)
    paths = np.stack([task.forecast(np.concatenate([series, first[:, i]])) for i in range(3)])
    expected = np.quantile(np.moveaxis(paths, 0, 1).reshape(6, 9), [0.1, 0.5, 0.9], axis=1).T
    found = task.forecast(series, horizon=11)
    assert found.shape == (11, 3)
    assert np.abs(found - np.concatenate([first, expected])[:11]).max() <= 1e-4


def test_series_that_are_short_for_what_reads_what_is_known():
    """Missing values are seen as missing: in front of a series, and between its values."""
    task = forecaster(reads_observed=True, residual=True, end_token=True, class_token=True)
    series = waves(240)
    task.fit([series, series[:11]], epochs=1, verbose=0)
    short = task.forecast(series[:5])
    assert short.shape == (6, 2) and np.isfinite(short).all()
    rows = [series[:24, 0], series[:5, 0], series[:1, 0]]
    for row, found in zip(rows, task.forecast(rows), strict=True):
        filled = np.concatenate([np.full(24 - len(row), np.nan), row])
        assert np.abs(task.forecast(filled) - found).max() <= 1e-4
    # A value in the place of a missing one changes nothing, and that it is missing does.
    values, known = series[:24].T.astype("float32"), np.ones((2, 24), "bool")
    whole = task.predict({"values": values}, verbose=0)
    assert (
        np.abs(task.predict({"values": values, "observed": known}, verbose=0) - whole).max() < 1e-4
    )
    known[:, 3:11] = False
    one = task.predict({"values": values, "observed": known}, verbose=0)
    values[:, 3:11] = 33
    assert np.abs(task.predict({"values": values, "observed": known}, verbose=0) - one).max() < 1e-4
    assert np.abs(one - whole).max() > 1e-3


@pytest.mark.parametrize("quantiles", [(0.1, 0.5, 0.9), None])
def test_an_encoder_decoder(quantiles, tmp_path):
    """The decoder's one state is read, of series of any length with gaps."""
    keras.utils.set_random_seed(0)
    task = bolt(quantiles=quantiles)
    task.compile(keras.optimizers.Adam(3e-3))
    series = waves()
    series[100:104, 0] = np.nan
    task.processor.adapt(series)
    history = task.fit([series, series[:9]], epochs=3, batch_size=32, seed=1, verbose=0).history
    assert history["loss"][-1] < 0.95 * history["loss"][0]
    count = (3,) if quantiles else ()
    rows = [waves(300)[:280], waves(40)[:, :], waves(3)]
    found = task.forecast(rows, horizon=20)
    assert [each.shape for each in found] == [(20, 2, *count)] * 3
    for row, expected in zip(rows, found, strict=True):
        assert np.abs(task.forecast(row, horizon=20) - expected).max() <= 1e-3
    assert np.isfinite(task.evaluate(series, verbose=0)).all()
    arrays = {"values": np.ones((2, 24), "float32")}
    assert to_numpy(task(arrays)).shape == (2, 6, len(quantiles or (0,)))
    with pytest.raises(ValueError, match="Forecaster takes no 'decoder_token_ids'"):
        task({**arrays, "decoder_token_ids": np.zeros((2, 1), "int32")})
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert np.abs(again.forecast(rows[1], horizon=8) - found[1][:8]).max() <= 1e-3


def test_one_batch_of_windows():
    """A single batch of a data set is accepted too; weights apply to each value."""
    task = forecaster()
    series = waves(60)
    series[40, 1] = np.nan
    dataset = task.make_dataset(series, batch_size=16)
    inputs, targets, weights = dataset[0]
    expected = task.evaluate(dataset, verbose=0)[0]
    parts = [dataset[i] for i in range(len(dataset))]
    losses = [task.test_on_batch(*part)[0] * len(part[1]) for part in parts]
    assert weights.shape == targets.shape[:2] == (16, 6)
    assert abs(sum(losses) / dataset.num_rows - expected) <= 1e-4 * expected
    first = task.train_on_batch(inputs, targets, weights)[0]
    assert abs(float(first) - float(losses[0]) / 16) <= 1e-4 * float(first)
    with pytest.raises(ValueError, match="`sample_weight` must be one number a row, 16 in all"):
        task.train_on_batch(inputs, targets, weights[:, :5])


def test_adapters_and_mixed_precision():
    task = forecaster(dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    before = [np.array(v) for v in task.backbone.non_trainable_weights]
    task.fit(waves(80), verbose=0, validation_data=waves(60))
    for old, new in zip(before, task.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert task.forecast(waves()).dtype == np.float64  # the dtype of the series
    assert task.forecast(waves().astype("float32")).dtype == np.float32


@pytest.mark.parametrize(
    "values",
    [
        {"reads_observed": True, "residual": True, "end_token": True},
        {"context_length": 23, "reads_observed": True, "class_token": True, "end_token": True},
    ],
)
def test_weights_and_pieces_of_what_is_known(values, tmp_path):
    made = config(**values)
    length = made.stem.context_length
    rows = np.random.default_rng(2).normal(size=(2, length)).astype("float32")
    known = np.ones(rows.shape, "bool")
    known[0, :-7] = known[1, 2] = False
    inputs = {"values": rows, "observed": known}
    assert_is_as_described(made, inputs, tmp_path)
    stem = kt.models.Encoder(made.replace(position="none")).stem
    found = stem(inputs)
    tokens = int(made.stem.class_token), int(made.stem.end_token)
    expected = np.ones((2, 4 + sum(tokens)), "bool")
    expected[0, tokens[0] : tokens[0] + 2] = False
    assert (to_numpy(found.padding_mask) == expected).all()
    # Each piece by the layer itself, what it has not filled with what is missing.
    filled = np.pad(np.stack([rows * known, known]), ((0, 0), (0, 0), (24 - length, 0)))
    pieces = np.concatenate([*filled.reshape(2, 2, 4, 6)], axis=-1).astype("float32")
    states = to_numpy(found.states)[:, tokens[0] : tokens[0] + 4]
    assert np.abs(states - to_numpy(stem.patches(pieces))).max() <= 1e-5
    if tokens[1]:
        token = to_numpy(stem.tokens["end"])
        assert np.abs(to_numpy(found.states)[:, -1] - token).max() <= 1e-6


@pytest.mark.parametrize("values", [{}, {"stride": 4, "repeat_last": True, "use_bias": False}])
def test_weights_and_pieces(values, tmp_path):
    made = config(**values)
    rows = np.random.default_rng(2).normal(size=(2, 24)).astype("float32")
    assert_is_as_described(made, {"values": rows}, tmp_path)
    plain = kt.models.Encoder(made.replace(position="none")).stem
    kernel = np.random.default_rng(0).normal(size=(6, 16)).astype("float32")
    plain.patches.kernel.assign(kernel)
    for length in (24, 21):
        rows = np.random.default_rng(1).normal(size=(3, length)).astype("float32")
        whole = rows
        step = values.get("stride", 6)
        if values:
            whole = np.concatenate([rows, np.repeat(rows[:, -1:], step, axis=1)], axis=1)
        ends = range(whole.shape[1], 5, -step)
        expected = np.stack([whole[:, end - 6 : end] @ kernel for end in ends][::-1], axis=1)
        assert np.abs(to_numpy(plain({"values": rows}).states) - expected).max() <= 1e-5


def test_loss_of_quantiles():
    truth, found = np.array([[[2.0]], [[0.0]]]), np.array([[[1.0, 4.0]], [[1.0, -1.0]]])
    expected = np.mean([0.2 * 1, 0.3 * 2, 0.8 * 1, 0.7 * 1])
    assert abs(float(QuantileLoss([0.2, 0.7])(truth, found)) - expected) <= 1e-6


@pytest.mark.one_backend
def test_data_frames(learned):
    pandas = pytest.importorskip("pandas")
    dates = pandas.date_range("2024-01-31 20:00", periods=280, freq="h")
    frame = pandas.DataFrame(waves(280), columns=["a", "b"], index=dates)
    expected = learned.forecast(waves(280))
    found = learned.forecast(frame)
    assert list(found.columns) == ["a", "b"] and np.abs(found.to_numpy() - expected).max() <= 1e-5
    following = pandas.date_range(dates[-1], periods=7, freq="h")[1:]
    assert (found.index == following).all()
    of_column = frame.reset_index().rename(columns={"index": "date"})
    of_column["date"] = of_column["date"].astype(str)
    assert (learned.forecast(of_column).index == following).all()
    months = pandas.date_range("2000-01-31", periods=280, freq="ME")
    found = learned.forecast(frame.set_index(months))
    assert (found.index == pandas.date_range(months[-1], periods=7, freq="ME")[1:]).all()
    bare = learned.forecast(frame.reset_index(drop=True))
    assert list(bare.index) == list(range(6))
    task = forecaster(quantiles=[0.1, 0.9])
    assert list(task.forecast(frame).columns) == [("a", 0.1), ("a", 0.9), ("b", 0.1), ("b", 0.9)]
    assert task.forecast(frame["a"]).shape == (6, 2)
    alone = forecaster()
    assert alone.forecast(frame["b"]).name == "b"


@pytest.mark.one_backend
def test_wrong_series(learned):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)})
    gap = frame.set_index(pandas.date_range("2024", periods=61, freq="h").delete(7))
    infinite = frame.copy()
    infinite.loc[5, "b"] = np.inf
    text = frame.assign(b="x")
    hours = pandas.date_range("2024", periods=60, freq="h")
    column = frame.assign(when=hours.astype(str))[["when", "a", "b"]]
    months = pandas.period_range("2000-01", periods=61, freq="M").delete(7)
    doubled = hours.delete(59).insert(3, hours[2])
    for series, message in (
        (frame.set_index(hours[::-1]), r"not in order: row 1, .*`frame.sort_index\(\)`"),
        (column[::-1], r"not in order: row 1, .*`frame.sort_values\('when'\)`"),
        (frame.set_index(doubled), r"02:00:00 twice, in rows 2 and 3.*~frame.index.duplicated"),
        (column.assign(when=doubled), r"twice, in rows 2 and 3.*drop_duplicates\('when'\)`"),
        (frame.set_index(hours.insert(5, None)[:60]), "Row 5 of `x` has no date"),
        (frame.set_index(months), "one period of M apart, but rows 6 and 7, .*period_range"),
        (frame.set_index(months[::-1]), "not in order"),
        (waves(20), "`x` has 20 values, but the model reads at least 24"),
        ([waves(30), waves(9)], r"`x\[1\]` has 9 values"),
        (np.zeros((40, 3)), "has 3 channels, but the processor was adapted to 2"),
        (np.zeros((4, 4, 4)), "must be of shape .time,. or .time, channels."),
        (np.zeros((0, 2)), "and not empty"),
        (gap, "1 hour apart, but rows 6 and 7, .*frame.asfreq"),
        (infinite, "`x` is infinite in row 5 of 'b'"),
        (text, "The column 'b' of `x` does not hold numbers"),
        (text[["b", "a"]], "The first column of `x`, 'b', holds neither numbers nor dates"),
        (["a", "b"], r"must be a series of numbers"),
        (waves() + 1j, "must hold numbers, received complex128"),
        (waves() * 1e30, r"values of .*e\+30, whose variance float32 cannot hold"),
    ):
        with pytest.raises(ValueError, match=message):
            learned.forecast(series)
    with pytest.raises(ValueError, match="Series 0 has 29 values; a window takes 24 and 6"):
        learned.fit(waves(29), verbose=0)
    with pytest.raises(ValueError, match="makes its targets"):
        learned.fit(waves(), np.zeros(240), verbose=0)
    with pytest.raises(ValueError, match="needs a backbone that reads series"):
        kt.Forecaster(kt.models.Encoder(images.patches()))
    with pytest.raises(ValueError, match="`quantiles` must be rising numbers"):
        forecaster(quantiles=[0.9, 0.1])
    with pytest.raises(ValueError, match="is too short for patch_length=30"):
        config(patch_length=30)
    with pytest.raises(ValueError, match="stride=1000000000 must be at most context_length=24"):
        config(stride=10**9, repeat_last=True)  # which would be put behind each series
    with pytest.raises(ValueError, match="hold 16,911,450,112 numbers, more than 67,108,864"):
        config(context_length=2**20, patch_length=2**14, stride=1)
    with pytest.raises(ValueError, match="patches do not overlap: leave stride=3 out"):
        config(reads_observed=True, stride=3)
    with pytest.raises(ValueError, match="A `residual` projection has biases"):
        config(residual=True, use_bias=False)
    with pytest.raises(ValueError, match="`scale_epsilon` must be a number"):
        kt.Forecaster(kt.models.Encoder(config()), scale_epsilon=-1)
    with pytest.raises(ValueError, match="`std` must be above 0"):
        kt.SeriesProcessor([1.0], [0.0])


def test_channels_that_see_each_other(tmp_path):
    """With `joint_channels` a row is a series, whose channels have scales of their own."""
    task = forecaster(num_channels=2, joint_channels=True, quantiles=[0.1, 0.5, 0.9])
    series = waves().astype("float32")
    count, windows = windows_of(task, task.processor.rows([series, series[:35]]))
    known, following = windows(np.array([0, 3, count - 1]))
    assert count == 211 + 6 and known.shape == (3, 2, 24) and following.shape == (3, 2, 6)
    assert (known[1] == series[3:27].T).all() and (following[2] == series[29:35].T).all()

    task.fit([series, series[:35]], epochs=1, seed=0, verbose=0)
    expected = task.forecast(series, horizon=14)
    assert expected.shape == (14, 2, 3)
    both = task.forecast([series[:60], series], horizon=14)
    assert_close(both[1], expected, atol=1e-4)
    changed = series.copy()
    changed[:, 1] += 30 * np.sin(np.arange(240))
    difference = task.forecast(changed) - expected[:6]
    assert (np.abs(difference).max(axis=(0, 2)) > 1e-3).all()
    scaled = task.forecast(series * np.array([1, 10]) + np.array([0, 5]))
    assert_close(scaled, expected[:6] * [[[1], [10]]] + [[[0], [5]]], atol=1e-2)
    missing = series.copy()
    missing[-3:, 1] = np.nan
    assert np.isfinite(task.forecast(missing)).all()

    high = series.astype("float64") + np.array([1e9, 0])
    assert_close(task.forecast(high) - [[[1e9], [0]]], expected[:6], atol=1e-2)
    predicted = task.predict(series, verbose=0)
    assert predicted.shape == (211, 2, 6, 3)
    assert_close(predicted[0], np.swapaxes(task.forecast(series[:24]), 0, 1), atol=1e-4)
    task.save_to_preset(tmp_path)
    assert_close(kt.Forecaster.from_preset(tmp_path).forecast(series), expected[:6], atol=1e-4)
    with pytest.raises(ValueError, match="`x` has 3 channels, but the model is for series of 2"):
        task.forecast(np.concatenate([series, series[:, :1]], axis=1))
    with pytest.raises(ValueError, match="neither with `reads_observed`"):
        config(num_channels=2, joint_channels=True, reads_observed=True)
