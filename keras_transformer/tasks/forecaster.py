"""Forecasts of series of numbers."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_bool, check_choice, check_int, check_number
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.feed_forward import ResidualFeedForward
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.remat import one_piece
from keras_transformer.models import Encoder
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors.series import SeriesProcessor
from keras_transformer.structure import dense_of, shapes_of
from keras_transformer.tasks.one_input import OneSeries
from keras_transformer.tasks.pooling import pool
from keras_transformer.tasks.series import (
    MOST_HORIZON,
    ForecastsSeries,
    checked_quantiles,
    padded,
)
from keras_transformer.tasks.task import Task
from keras_transformer.training.losses import QuantileLoss
from keras_transformer.weight import residual_of

POOLINGS = ("mean", "max", "first")
_WINDOWS = 2**14  # that are looked at at once
_LARGEST = 1e17  # Its square, times the length of a window, is within float32.
_OF_DISTANCES = ("relative", "rotary", "alibi", "none")  # Positions that are of no place in a row.


@keras.saving.register_keras_serializable(package="keras_transformer")
class Forecaster(ForecastsSeries, Task):
    """An encoder of series with a layer from its states to the values that follow.

    Each channel of a series is a row of its own, by the same weights. What a row has before is
    brought to the mean 0 and the deviation 1, and the forecast back; so a model knows no levels. A
    value that is missing, NaN, counts as the mean and plays no part in it; a model whose stem
    reads which values are known (`reads_observed`) sees that it is missing, and takes series that
    are shorter than it reads. Of an encoder-decoder the state of the decoder's one token is read.

    `fit` and `evaluate` take series and make windows of them: so many values as the stem reads, and
    the `horizon` that follow, one for each place. Their loss and scores are of the values as the
    processor scales them, `processor.adapt(training_part)`.

    Compiled with Adam (1e-3), the squared error and the absolute error; with quantiles with their
    loss.

    Args:
        backbone: an `Encoder` whose config has a `stem` of kind `"series"`, or a `Seq2Seq` whose
            encoder has one.
        processor: `SeriesProcessor`; None for a task that takes arrays only.
        horizon: int, values that are forecast at once.
        quantiles: list of floats between 0 and 1, rising, such as `[0.1, 0.5, 0.9]`: the forecast
            is the value below which the truth is with each probability. None for one forecast,
            the mean by the squared error.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        name: str.
        pooling: `"mean"`, `"max"` or `"first"`, the one state that the last layer reads. None for
            all of them, side by side.
        residual: bool, whether the last layer is a feed-forward layer, as wide within as those of
            the blocks and with their activation, and a linear layer beside it.
        quantiles_first: bool, whether the last layer gives all values of a quantile side by side,
            and not all quantiles of a value.
        scale_epsilon: float, added to the variance of a row. With 0 a constant row has the
            deviation 1e-5.

    Call arguments:
        inputs: dict of `values`, float `(batch, context_length)`, and optionally `observed`, bool
            likewise, False for what is missing.

    Returns:
        Float `(batch, horizon, quantiles)`, of one without quantiles.

    Raises:
        ValueError: for a backbone that reads no series, quantiles out of range, or an unknown
            pooling.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="learned", normalize_first=True,
        stem={"kind": "series", "context_length": 24, "patch_length": 6},
    )
    forecaster = kt.Forecaster(kt.models.Encoder(config), kt.SeriesProcessor(), horizon=6)
    series = np.sin(np.arange(120) * 0.5)
    forecaster.fit(series, epochs=1, verbose=0)
    assert forecaster.forecast(series, horizon=10).shape == (10,)
    ```

    Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1; the scale of a window:
    Kim et al. 2022, "Reversible Instance Normalization"; quantiles: Koenker & Bassett 1978; of an
    encoder-decoder: Chronos-Bolt, as the package chronos-forecasting has it.
    """

    backbone_kinds = ("encoder", "seq2seq")
    processor_class = SeriesProcessor
    alias = "forecasting"
    published_as = ("ForPrediction",)
    takes_records = False
    task_options = (
        "horizon", "quantiles", "dropout", "pooling", "residual", "quantiles_first",
        "scale_epsilon",
    )  # fmt: skip

    def __init__(
        self,
        backbone: Backbone,
        processor: SeriesProcessor | None = None,
        horizon: int = 24,
        quantiles: Sequence[float] | None = None,
        dropout: float | None = None,
        name: str | None = None,
        pooling: str | None = None,
        residual: bool = False,
        quantiles_first: bool = False,
        scale_epsilon: float = 1e-5,
    ):
        self.horizon = check_int("horizon", horizon, 1, MOST_HORIZON)
        self.quantiles = checked_quantiles(quantiles)
        self.pooling = check_choice("pooling", pooling, POOLINGS, none=True)
        self.residual = check_bool("residual", residual)
        self.quantiles_first = check_bool("quantiles_first", quantiles_first)
        self.scale_epsilon = check_number("scale_epsilon", scale_epsilon, at_least=0)
        super().__init__(backbone, processor, name=name)
        self.stem_config = backbone.config.sides[0].stem
        if self.stem_config is None or self.stem_config.kind != "series":
            raise ValueError(
                "Forecaster needs a backbone that reads series: give the config a `stem`, such as "
                "{'kind': 'series', 'context_length': 336, 'patch_length': 16}."
            )
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = backbone.config.dropout if dropout is None else dropout
        self.dropout_layer = self._dropout(self.dropout)
        width, units = self._widths(backbone.config, self.task_values())
        self.output_dense = (
            self._residual_layer(width, units)
            if self.residual
            else self._dense(units, "output", width=width)
        )
        if backbone.config.kind == "seq2seq":
            self.one_input = OneSeries(backbone)
        self.built = True
        loss = keras.losses.MeanSquaredError()
        metrics = [keras.metrics.MeanAbsoluteError(name="mean_absolute_error")]
        if self.quantiles is not None:
            loss, metrics = QuantileLoss(self.quantiles), []
        self.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=metrics)

    @classmethod
    def untrained(
        cls,
        horizon: int = 24,
        context_length: int | None = None,
        quantiles: Sequence[float] | None = None,
        dtype=None,
        **options,
    ) -> "Forecaster":
        """Make a forecaster of a usual size, to be trained on one's own series.

        It is a PatchTST: three layers of 64 values that read overlapping pieces of at most 16
        values, some 100,000 weights. For another size make it of a `TransformerConfig`.

        Args:
            horizon: int, values that are forecast at once.
            context_length: int, values that a forecast is made of. Defaults to four times the
                horizon, and at least 32.
            quantiles: list of floats, as of the class.
            dtype: dtype or dtype policy of the model.
            **options: others of the class, such as `dropout`.

        Raises:
            ValueError: for values out of range.

        Example:
        ```python
        import numpy as np
        import keras_transformer as kt

        series = np.sin(np.arange(200) * 0.5)
        forecaster = kt.Forecaster.untrained(horizon=8)
        forecaster.processor.adapt(series)
        forecaster.fit(series, epochs=1, verbose=0)
        assert forecaster.forecast(series).shape == (8,)
        ```

        Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1, with smaller
        layers.
        """
        horizon = check_int("horizon", horizon, 1, MOST_HORIZON)
        length = check_int("context_length", context_length, 2, MOST_HORIZON, none=True)
        length = length or max(4 * horizon, 32)
        patch = min(16, length // 2)
        config = TransformerConfig(
            kind="encoder",
            vocabulary_size=0,
            hidden_dim=64,
            num_layers=3,
            num_heads=4,
            intermediate_dim=128,
            position="learned",
            normalize_first=True,
            dropout=0.1,
            stem={
                "kind": "series",
                "context_length": length,
                "patch_length": patch,
                "stride": (patch + 1) // 2,
                "repeat_last": True,
            },
        )
        backbone = Encoder(config, dtype=dtype)
        return cls(backbone, SeriesProcessor(), horizon, quantiles, **options)

    @property
    def context_length(self) -> int:
        """Values that a forecast is made of."""
        return self.stem_config.context_length

    @property
    def fewest(self) -> int:
        return 1 if self.stem_config.reads_observed else self.context_length

    def read_length(self, count: int) -> int:
        # The last layer reads all states of an encoder, and places in a row are of whole rows.
        places = self.backbone.config.sides[0].position not in _OF_DISTANCES
        whole = self.one_input is None or places or not self.stem_config.reads_observed
        return self.context_length if whole else super().read_length(count)

    def _residual_layer(self, width: int, units: int) -> ResidualFeedForward:
        config = self.backbone.config.sides[-1]
        with one_piece():
            layer = ResidualFeedForward(
                config.intermediate_dim,
                units,
                config.activation,
                dropout=self.dropout,
                kernel_initializer=kernel_initializer(config),
                name="output",
                dtype=self.dtype_policy,
            )
        layer.build((None, width))
        return layer

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        values = ops.cast(inputs["values"], "float32")
        known = ops.cast(ops.isfinite(values), "float32")
        if inputs.get("observed") is not None:
            known = known * ops.cast(inputs["observed"], "float32")
        values = ops.where(known > 0, values, 0.0)
        count = ops.maximum(ops.sum(known, axis=1, keepdims=True), 1.0)
        mean = ops.sum(values * known, axis=1, keepdims=True) / count
        centered = (values - mean) * known
        variance = ops.sum(ops.square(centered), axis=1, keepdims=True) / count
        scale = ops.sqrt(variance + self.scale_epsilon)
        least = ops.where(ops.max(known, axis=1, keepdims=True) > 0, 1e-5, 1.0)
        scale = ops.where(scale > 0, scale, least)
        given = {"values": ops.cast(centered / scale, self.compute_dtype)}
        if self.stem_config.reads_observed:
            given["observed"] = known > 0
        states, collected = self.backbone_states(given, collect, training)
        outputs = ops.cast(self.head_outputs(states, inputs, training), "float32")
        outputs = outputs * scale[..., None] + mean[..., None]
        return (outputs, collected) if collect else outputs

    def head_outputs(self, states, inputs, training: bool):
        if self.pooling is None:
            flat = ops.reshape(states, (-1, states.shape[1] * states.shape[2]))
        else:
            flat = pool(states, None, self.pooling)
        flat = self.dropout_layer(flat, training=training)
        options = {"training": training} if self.residual else {}
        outputs = self.output_dense(flat, **options)
        count = len(self.quantiles or (0,))
        if self.quantiles_first:
            return ops.swapaxes(ops.reshape(outputs, (-1, count, self.horizon)), 1, 2)
        return ops.reshape(outputs, (-1, self.horizon, count))

    def window_arrays(self, known, following):
        level = level_of(known, following)
        weights = np.isfinite(following) & np.isfinite(known).any(axis=1, keepdims=True)
        targets = np.where(weights, following - level, 0).astype("float32")
        return known_values(known - level), targets[..., None], weights.astype("float32")

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        if isinstance(y, np.ndarray) and y.dtype.kind == "f" and not np.isfinite(y).all():
            place = ", ".join(map(str, np.argwhere(~np.isfinite(y))[0]))
            raise ValueError(
                f"`y[{place}]` is NaN or infinite. Put 0 there, with a `sample_weight` of 0; or "
                "give series, in which a missing target counts for nothing."
            )
        if has_level(x):
            level = level_of(np.asarray(x["values"]), known=x.get("observed"))
            x = {**x, "values": x["values"] - level}
            if isinstance(y, np.ndarray) and y.dtype.kind in "iuf" and y.ndim in (2, 3):
                y = (y - level.reshape(-1, *[1] * (y.ndim - 1))).astype("float32")
        return super()._batches(x, y, sample_weight, processing, **options)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None) -> np.ndarray:
        """Predict as `Task.predict`; for series, what follows each window, in scaled units.

        The result is float32, and float64 where the level of the values asks for it.
        """
        level = np.zeros((0, 1))
        if has_level(x):
            level = level_of(np.asarray(x["values"]), known=x.get("observed"))
            x = {**x, "values": x["values"] - level}
        elif self._takes(x):
            count, windows = self._windows(self._require_processor().rows(x))
            numbers = np.array_split(np.arange(count), -(-count // _WINDOWS))
            level = np.concatenate([level_of(*windows(some)) for some in numbers])
        found = super().predict(x, batch_size, verbose, steps, callbacks)
        return found + level[: len(found), :, None] if level.any() else found

    @reads
    def forecast(self, x, horizon: int | None = None, batch_size: int = 256):
        """What follows on series.

        Args:
            x: a series, or a list of them. One must have as many values as the model reads,
                unless its stem reads which are known.
            horizon: int, values to forecast. Defaults to those that the model forecasts at once;
                more are made by taking forecasts for known. Each of several quantiles is, and the
                forecasts are the quantiles of what follows on all of them.
            batch_size: int, rows computed together.

        Returns:
            For a data frame one with the dates that follow, a column for each channel, or with
            quantiles for each channel and quantile; for a column of a frame a column, or a frame of
            the quantiles; for an array `(horizon,)` or `(horizon, channels)`, with quantiles one
            axis more. For a list a list of these.

        Raises:
            ValueError: for a series that is too short, or has dates that leave some out.

        Source: of quantiles the package chronos-forecasting 2.3, `ChronosBoltPipeline.predict`.
        """
        horizon = check_int("horizon", horizon, 1, MOST_HORIZON, none=True) or self.horizon

        def make(rows):
            longest = max(map(len, rows))
            known = np.stack([padded(row, longest) for row in rows])
            level = np.nanmean(known, axis=1, keepdims=True)
            return self._continued(known - level, horizon, batch_size) + level[..., None]

        return self.forecasts(x, make, self.quantiles)

    def explained_inputs(self, x):
        """The last values of each channel of series: a row of its own."""
        if isinstance(x, Mapping):
            return super().explained_inputs(x)
        processor = self._require_processor()
        last = [row[None] for row in self._last(processor.rows(x))]
        rows = [known_values(row - level_of(row)) for row in last]
        for row in rows:
            if row["values"].shape[1] < self.fewest:
                raise ValueError(
                    f"A series has {row['values'].shape[1]} values, and the model reads at least "
                    f"{self.fewest}."
                )
        return rows, len(rows) == 1 and processor.is_one(x)

    def _continued(self, known: np.ndarray, horizon: int, batch_size: int) -> np.ndarray:
        """Forecasts `(rows, horizon, quantiles)` of rows of known values."""
        made = [self._following(known, batch_size)]
        levels, rows = self.quantiles or [0.5], len(known)
        known = np.repeat(known[:, None], len(levels), axis=1)
        while sum(part.shape[1] for part in made) < horizon:
            known = np.concatenate([known, np.swapaxes(made[-1], 1, 2)], axis=2)
            known = known[..., -self.context_length :]
            found = self._following(known.reshape(-1, known.shape[2]), batch_size)
            # Of each row what follows on each of its quantiles, side by side.
            found = found.reshape(rows, len(levels), self.horizon, len(levels))
            found = np.swapaxes(found, 1, 2).reshape(rows, self.horizon, -1)
            found = np.quantile(found, levels, axis=2).astype("float32")
            made.append(np.moveaxis(found, 0, 2))
        return np.concatenate(made, axis=1)[:, :horizon]

    def _following(self, known: np.ndarray, batch_size: int) -> np.ndarray:
        """What the model gives at once, of rows of any one length."""
        length = self.read_length(known.shape[1])
        inputs = known_values(padded(known[:, -length:], length))
        return self.predict(inputs, batch_size=batch_size, verbose=0)

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "horizon": values.get("horizon", 24),
            "quantiles": checked_quantiles(values.get("quantiles")),
            "pooling": values.get("pooling"),
            "residual": values.get("residual", False),
            "quantiles_first": values.get("quantiles_first", False),
            "scale_epsilon": values.get("scale_epsilon", 1e-5),
        }

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        width, units = cls._widths(config, values)
        lines = residual_of if cls.head_values(config, values)["residual"] else dense_of
        table = lines("output", "states", "units")
        return shapes_of(table, config.sides[-1], states=width, units=units)

    @classmethod
    def _widths(cls, config: TransformerConfig, values: dict[str, Any]) -> tuple[int, int]:
        """Numbers that the last layer is given and gives."""
        head, side = cls.head_values(config, values), config.sides[-1]
        horizon = check_int("horizon", head["horizon"], 1, MOST_HORIZON)
        one = head["pooling"] is not None or config.kind == "seq2seq"
        states = 1 if one else side.num_positions
        return states * side.hidden_dim, horizon * len(head["quantiles"] or (0,))


def known_values(rows: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of rows `(batch, length)`, NaN where a value is missing."""
    observed = np.isfinite(rows)
    values = np.where(observed, rows, 0)
    if (largest := np.abs(values).max(initial=0)) > _LARGEST:
        raise ValueError(
            f"`x` has values of {largest:.3g}, whose variance float32 cannot hold: they may be up "
            f"to {_LARGEST:.0e}. Give them in a larger unit, or with `processor.adapt(series)`."
        )
    return {"values": values.astype("float32"), "observed": observed}


def has_level(x: Any) -> bool:
    """Return whether it holds float64 arrays for a backbone, whose level float32 may lose."""
    values = x.get("values") if isinstance(x, Mapping) else None
    return isinstance(values, np.ndarray) and values.dtype == "float64" and values.ndim == 2


def level_of(*windows: np.ndarray, known: Any = None) -> np.ndarray:
    """Return the level that is subtracted from each window in float64, `(rows, 1)`.

    It is 0 for all windows but those of which float32 would lose something: in which the mean is
    beyond 256 deviations. So scores that are not of differences, such as percentages, stay as they
    are for all others.

    Args:
        windows: float64 `(rows, length)`, what is known and, if given, what follows, NaN where a
            value is missing.
        known: bool `(rows, length)`, which values of the first are known. Defaults to all that are
            finite.
    """
    first = windows[0] if known is None else np.where(known, windows[0], np.nan)
    whole = np.concatenate([first, *windows[1:]], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows in which nothing is known
        level = np.nanmean(first, axis=1, keepdims=True)
        deviation = np.nanstd(whole, axis=1, keepdims=True)
    deviation = np.where(deviation > 0, deviation, 1)
    return np.where(np.abs(level) > 256 * deviation, level, 0)
