"""Forecasting of time series."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import dense_of, shapes_of
from keras_transformer.config.weight import residual_of
from keras_transformer.data import BucketedDataset
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.feed_forward import ResidualFeedForward
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.models import Encoder
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.series import SeriesProcessor
from keras_transformer.support.checking import check_bool, check_choice, check_int, check_number
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.base.input_adapter import SeriesAdapter
from keras_transformer.tasks.base.pooling import pool
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.series.windows import (
    MOST_HORIZON,
    checked_quantiles,
    forecasts,
    last_rows,
    padded,
    plot_forecast,
    usual_read_length,
    window_dataset,
    windows_of,
)
from keras_transformer.training.losses.losses import QuantileLoss

POOLINGS = ("mean", "max", "first", "last")
_WINDOWS = 2**14  # number of windows whose levels are computed at a time
_LARGEST = 1e17  # Its square, times the length of a window, is within float32.
_OF_DISTANCES = ("relative", "rotary", "alibi", "none")  # no absolute positions


class ForecastHead(Head):
    """The head of `Forecaster`: a layer from the states to the values that follow.

    Args:
        task: as for `Head`.
        horizon, quantiles, dropout, pooling: as for `Forecaster`.
        residual, quantiles_first, scale_epsilon: as for `Forecaster`.
        residual_bias, spread_horizon, symmetric, nonnegative: as for `Forecaster`.
    """

    options = (
        "horizon", "quantiles", "dropout", "pooling", "residual", "quantiles_first",
        "scale_epsilon", "residual_bias", "spread_horizon", "symmetric", "nonnegative",
    )  # fmt: skip
    published_as = ("ForPrediction",)
    takes_records = False

    def __init__(
        self,
        task,
        horizon: int,
        quantiles: Sequence[float] | None,
        dropout: float | None,
        pooling: str | None,
        residual: bool,
        quantiles_first: bool,
        scale_epsilon: float,
        residual_bias: bool,
        spread_horizon: int | None,
        symmetric: bool,
        nonnegative: bool,
    ):
        super().__init__(task)
        config = task.backbone.config
        self.horizon = check_int("horizon", horizon, 1, MOST_HORIZON)
        self.quantiles = checked_quantiles(quantiles)
        self.pooling = check_choice("pooling", pooling, POOLINGS, none=True)
        self.residual = check_bool("residual", residual)
        self.quantiles_first = check_bool("quantiles_first", quantiles_first)
        self.scale_epsilon = check_number("scale_epsilon", scale_epsilon, at_least=0)
        self.residual_bias = check_bool("residual_bias", residual_bias)
        self.spread_horizon = checked_spread(spread_horizon, self.horizon, self.quantiles)
        self.symmetric = checked_symmetric(symmetric, self.quantiles)
        self.nonnegative = check_bool("nonnegative", nonnegative)
        if self.spread_horizon is not None and quantiles_first:
            raise ValueError("`spread_horizon` and `quantiles_first` cannot be combined.")
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = config.dropout if dropout is None else dropout
        self.keep(dropout_layer=self.make_dropout(self.dropout))
        values = {name: getattr(self, name) for name in self.options}
        width, units = self._widths(config, values)
        made = self._residual_layer if self.residual else self._linear_layer
        self.keep(output_dense=made(width, units, "output"))
        if self.spread_horizon is not None:
            units = units // self.horizon * self.spread_horizon
            self.keep(spread_dense=made(width, units, "spread"))

    def _linear_layer(self, width: int, units: int, name: str):
        return self.make_dense(units, name, width=width)

    def _residual_layer(self, width: int, units: int, name: str) -> ResidualFeedForward:
        config = self.task.backbone.config.sides[-1]
        with no_inner_remat():
            layer = ResidualFeedForward(
                config.intermediate_dim,
                units,
                config.activation,
                use_bias=self.residual_bias,
                dropout=self.dropout,
                kernel_initializer=kernel_initializer(config),
                name=name,
                dtype=self.task.dtype_policy,
            )
        layer.build((None, width))
        return layer

    def __call__(self, states, inputs, training: bool = False):
        stem = self.task.stem_config
        if stem.joint_channels:
            places = states.shape[1] // stem.num_channels
            states = ops.reshape(states, (-1, places, states.shape[2]))
        outputs = self._outputs(states, training)
        if stem.joint_channels:
            outputs = ops.reshape(outputs, (-1, stem.num_channels, *outputs.shape[1:]))
        return outputs

    def _outputs(self, states, training: bool):
        """Return the values `(rows, horizon, quantiles)` of states `(rows, length, width)`."""
        if self.pooling is None:
            flat = ops.reshape(states, (-1, states.shape[1] * states.shape[2]))
        elif self.pooling == "last":
            flat = states[:, -1]
        else:
            flat = pool(states, None, self.pooling)
        flat = self.dropout_layer(flat, training=training)
        options = {"training": training} if self.residual else {}
        outputs = self.output_dense(flat, **options)
        count = len(self.quantiles or (0,))
        if self.spread_horizon is not None:
            spread = self.spread_dense(flat, **options)
            return self._around_the_middle(outputs, spread)
        if self.quantiles_first:
            return ops.swapaxes(ops.reshape(outputs, (-1, count, self.horizon)), 1, 2)
        return ops.reshape(outputs, (-1, self.horizon, count))

    def _around_the_middle(self, outputs, spread):
        """Return the middle quantile of `outputs`, and around it the others as in `spread`."""
        count = len(self.quantiles)
        # The first of the outputs of each step is a mean, which is not part of the forecast.
        outputs = ops.reshape(outputs, (-1, self.horizon, count + 1))[..., 1:]
        spread = ops.reshape(spread, (-1, self.spread_horizon, count + 1))[:, : self.horizon, 1:]
        middle = count // 2
        return spread - spread[..., middle : middle + 1] + outputs[..., middle : middle + 1]

    def usual(self) -> dict[str, Any]:
        loss = keras.losses.MeanSquaredError()
        metrics = [keras.metrics.MeanAbsoluteError(name="mean_absolute_error")]
        if self.quantiles is not None:
            loss, metrics = QuantileLoss(self.quantiles), []
        return {
            "optimizer": keras.optimizers.Adam(1e-3), "loss": loss, "weighted_metrics": metrics,
        }  # fmt: skip

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "horizon": values.get("horizon", 24),
            "quantiles": checked_quantiles(values.get("quantiles")),
            "pooling": values.get("pooling"),
            "residual": values.get("residual", False),
            "quantiles_first": values.get("quantiles_first", False),
            "scale_epsilon": values.get("scale_epsilon", 1e-5),
            "residual_bias": values.get("residual_bias", True),
            "spread_horizon": values.get("spread_horizon"),
            "symmetric": values.get("symmetric", False),
            "nonnegative": values.get("nonnegative", False),
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        width, units = cls._widths(config, values)
        head = cls.weight_values(config, values)
        lines, bias = dense_of, True
        if head["residual"]:
            lines, bias = residual_of, head["residual_bias"]
        table, spread_units = lines("output", "states", "units", bias), 0
        spread = checked_spread(head["spread_horizon"], head["horizon"], head["quantiles"])
        if spread is not None:
            table += lines("spread", "states", "spread_units", bias)
            spread_units = units // head["horizon"] * spread
        sizes = {"states": width, "units": units, "spread_units": spread_units}
        return shapes_of(table, config.sides[-1], **sizes)

    @classmethod
    def _widths(cls, config: TransformerConfig, values: Mapping[str, Any]) -> tuple[int, int]:
        """Return the input and the output width of the last layer."""
        head, side = cls.weight_values(config, values), config.sides[-1]
        horizon = check_int("horizon", head["horizon"], 1, MOST_HORIZON)
        one = head["pooling"] is not None or config.kind == "seq2seq"
        states = 1 if one else side.num_positions
        outputs = len(head["quantiles"] or (0,)) + (head["spread_horizon"] is not None)
        return states * side.hidden_dim, horizon * outputs


@keras.saving.register_keras_serializable(package="keras_transformer")
class Forecaster(Task):
    """An encoder of time series with a layer from its states to the values that follow.

    Each channel of a series is a separate row, and all share the same weights; if the stem has
    `joint_channels`, the channels of a series are one row and see each other. The known values of a
    channel are standardized (mean 0, standard deviation 1) and the forecast is scaled back, so the
    model does not depend on the level of a series. Missing values (NaN) are replaced by the mean,
    and do not count in it. A model whose stem reads which values are known (`reads_observed`) sees
    that they are missing, and takes series that are shorter than its context. In an
    encoder-decoder the head reads the state of the decoder's only token.

    `fit` and `evaluate` take series and cut them into windows, one at each position: as many values
    as the stem reads, and the `horizon` that follow. Loss and metrics are computed on values as
    scaled by the processor, see `processor.adapt(training_part)`.

    Compiled with Adam (1e-3), mean squared error and mean absolute error; with quantiles, with the
    quantile loss.

    Args:
        backbone: an `Encoder` whose config has a `stem` of kind `"series"`, or a `Seq2Seq` whose
            encoder has one.
        processor: `SeriesProcessor`, or None if the task only takes arrays.
        horizon: int, the number of values forecast in one pass.
        quantiles: list of floats between 0 and 1, ascending, such as `[0.1, 0.5, 0.9]`: for each
            the model forecasts the value that the truth falls below with that probability. None
            gives one forecast, the mean if the loss is the squared error.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        name: str.
        pooling: `"mean"`, `"max"`, `"first"` or `"last"`, how the states become the single state
            that the last layer reads. None concatenates all states.
        residual: bool, whether the last layer is a feed-forward layer, with the inner width and
            activation of the blocks, plus a linear layer as residual connection.
        quantiles_first: bool, whether the last layer's outputs are grouped by quantile rather than
            by value.
        scale_epsilon: float, added to the variance of a row. With 0 the standard deviation of a
            constant row is taken as 1e-5.
        residual_bias: bool, whether a `residual` last layer has biases.
        spread_horizon: int, at least `horizon`: a second last layer forecasts the quantiles of this
            many values. The first layer then gives the middle quantile, and the second one the
            distances of the others from it. Both have one more output for each value, a mean, which
            is not part of the forecast (TimesFM 2.5). Defaults to no such layer.
        symmetric: bool, whether a forecast is the mean of that of the values and of the negated
            forecast of the negated values, so that it does not depend on the sign (TimesFM 2.5).
            Takes twice the computation.
        nonnegative: bool, whether `forecast` returns no value below 0 for a channel that has none
            among the values that the model reads.

    Call arguments:
        inputs: dict with `values`, float `(batch, context_length)`, and optionally `observed`, bool
            `(batch, context_length)`, False for missing values. With `joint_channels` of the stem
            both are `(batch, num_channels, context_length)`.

    Returns:
        Float `(batch, horizon, quantiles)`, or `(batch, num_channels, horizon, quantiles)` with
            `joint_channels`; the last axis is 1 without quantiles.

    Raises:
        ValueError: if the backbone does not read series, quantiles are out of range, or the
            pooling is unknown.

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

    Source: Nie et al. 2023, "A Time Series is Worth 64 Words", section 3.1; standardization: Kim et
    al. 2022, "Reversible Instance Normalization"; quantiles: Koenker & Bassett 1978;
    encoder-decoder: Chronos-Bolt, as in the package chronos-forecasting.
    """

    alias = "forecasting"
    backbone_kinds = ("encoder", "seq2seq")
    head_class = ForecastHead
    processor_class = SeriesProcessor
    task_options = ForecastHead.options

    # Values of the head.
    horizon: int
    quantiles: list[float] | None
    dropout: float
    pooling: str | None
    residual: bool
    quantiles_first: bool
    scale_epsilon: float
    residual_bias: bool
    spread_horizon: int | None
    symmetric: bool
    nonnegative: bool

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
        residual_bias: bool = True,
        spread_horizon: int | None = None,
        symmetric: bool = False,
        nonnegative: bool = False,
    ):
        super().__init__(backbone, processor, name=name)
        self.stem_config = backbone.config.sides[0].stem
        if self.stem_config is None or self.stem_config.kind != "series":
            raise ValueError(
                "Forecaster needs a backbone that reads series: give the config a `stem`, such as "
                "{'kind': 'series', 'context_length': 336, 'patch_length': 16}."
            )
        if backbone.config.kind == "seq2seq":
            self.input_adapter = SeriesAdapter(backbone)
        self.set_head(
            horizon=horizon,
            quantiles=quantiles,
            dropout=dropout,
            pooling=pooling,
            residual=residual,
            quantiles_first=quantiles_first,
            scale_epsilon=scale_epsilon,
            residual_bias=residual_bias,
            spread_horizon=spread_horizon,
            symmetric=symmetric,
            nonnegative=nonnegative,
        )

    @classmethod
    def untrained(
        cls,
        horizon: int = 24,
        context_length: int | None = None,
        quantiles: Sequence[float] | None = None,
        dtype=None,
        **options,
    ) -> "Forecaster":
        """Make an untrained forecaster of a usual size, to train on your own series.

        It is a PatchTST with three layers of width 64 that read overlapping patches of at most 16
        values, about 100,000 weights. For other sizes construct it from a `TransformerConfig`.

        Args:
            horizon: int, the number of values forecast in one pass.
            context_length: int, the number of values that a forecast is based on. Defaults to four
                times the horizon, and at least 32.
            quantiles: list of floats, as in the constructor.
            dtype: dtype or dtype policy of the model.
            **options: further arguments of the constructor, such as `dropout`.

        Raises:
            ValueError: if values are out of range.

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
        """The number of values that a forecast is based on."""
        return self.stem_config.context_length

    @property
    def joint_channels(self) -> int | None:
        """The number of channels of a series that are one row, or None if each is a row."""
        return self.stem_config.num_channels if self.stem_config.joint_channels else None

    @property
    def fewest(self) -> int:
        return 1 if self.stem_config.reads_observed else self.context_length

    def read_length(self, count: int) -> int:
        # The last layer reads all encoder states, and absolute positions need rows of full length.
        places = self.backbone.config.sides[0].position not in _OF_DISTANCES
        one = self.input_adapter is not None or self.pooling == "last"
        whole = not one or places or not self.stem_config.reads_observed
        return self.context_length if whole else usual_read_length(count, self.context_length)

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        values = ops.cast(inputs["values"], "float32")
        known = ops.cast(ops.isfinite(values), "float32")
        if inputs.get("observed") is not None:
            known = known * ops.cast(inputs["observed"], "float32")
        values = ops.where(known > 0, values, 0.0)
        count = ops.maximum(ops.sum(known, axis=-1, keepdims=True), 1.0)
        mean = ops.sum(values * known, axis=-1, keepdims=True) / count
        centered = (values - mean) * known
        variance = ops.sum(ops.square(centered), axis=-1, keepdims=True) / count
        scale = ops.sqrt(variance + self.scale_epsilon)
        least = ops.where(ops.max(known, axis=-1, keepdims=True) > 0, 1e-5, 1.0)
        scale = ops.where(scale > 0, scale, least)
        given = {"values": ops.cast(centered / scale, self.compute_dtype)}
        if self.stem_config.reads_observed:
            given["observed"] = known > 0
        if self.symmetric:
            given = {
                name: ops.concatenate([x, -x if name == "values" else x], axis=0)
                for name, x in given.items()
            }
        states, collected = self.backbone_states(given, collect, training)
        outputs = ops.cast(self.head_outputs(states, inputs, training), "float32")
        if self.symmetric:
            rows = ops.shape(values)[0]
            outputs = (outputs[:rows] - ops.flip(outputs[rows:], axis=-1)) / 2
            collected = keras.tree.map_structure(lambda x: x[:rows], collected)
        outputs = outputs * scale[..., None] + mean[..., None]
        return (outputs, collected) if collect else outputs

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch windows of series: known values as inputs, following values as targets.

        Args:
            x: a series or a list of them, as for `SeriesProcessor`.
            y: must be None: the targets are part of the series. Missing targets have no weight.
            sample_weight: must be None: all values have the same weight.
            **options: as for `Task.make_dataset`.
        """
        return window_dataset(self, x, y, sample_weight, **options)

    def plot(self, x, horizon: int | None = None, *, shown: int | None = None, **options):
        """Draw the end of a series and its forecast, one plot for each channel.

        Args:
            x: a series, as for `forecast`.
            horizon: int, the number of values to forecast. Defaults to the model's horizon.
            shown: int, the number of known values to draw. Defaults to three times the horizon.
            **options: as for `forecast`. With several quantiles the lowest and highest are the
                edges of a band.

        Returns:
            A `matplotlib.figure.Figure`: a notebook shows it, and `savefig("next.png")` saves it.

        Raises:
            ImportError: if matplotlib is not installed.
            ValueError: as for `forecast`; or if there are several series, or over 32 channels.

        Example:
        ```python
        import numpy as np
        import keras_transformer as kt

        forecaster = kt.Forecaster.untrained(horizon=8, quantiles=[0.1, 0.5, 0.9])
        figure = forecaster.plot(np.sin(np.arange(80) * 0.5))
        figure.savefig("waves.png")
        ```
        """
        return plot_forecast(self, x, horizon, shown=shown, **options)

    def window_arrays(self, known: np.ndarray, following: np.ndarray) -> tuple:
        """Return inputs, targets and weights for windows.

        Args:
            known: float64 `(rows, context)`, with NaN for missing values; with `joint_channels`
                `(rows, channels, context)`. A channel without known values gets weight 0.
            following: float64 `(rows, horizon)`, like `known`.
        """
        level = level_of(known, following)
        weights = np.isfinite(following) & np.isfinite(known).any(axis=-1, keepdims=True)
        targets = np.where(weights, following - level, 0).astype("float32")
        return known_values(known - level), targets[..., None], weights.astype("float32")

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        if isinstance(y, np.ndarray) and y.dtype.kind == "f" and not np.isfinite(y).all():
            place = ", ".join(map(str, np.argwhere(~np.isfinite(y))[0]))
            raise ValueError(
                f"`y[{place}]` is NaN or infinite. Put 0 there, with a `sample_weight` of 0; or "
                "give series, in which missing targets have no weight."
            )
        if has_level(x):
            level = level_of(np.asarray(x["values"]), known=x.get("observed"))
            x = {**x, "values": x["values"] - level}
            more = y.ndim - level.ndim if isinstance(y, np.ndarray) else -1
            if more in (0, 1) and y.dtype.kind in "iuf":
                y = (y - level.reshape(*level.shape, *[1] * more)).astype("float32")
        return super()._batches(x, y, sample_weight, processing, **options)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None) -> np.ndarray:
        """Predict as `Task.predict` does; for series, the values after each window, as scaled.

        The result is float32, or float64 if the level of the values needs it.
        """
        level = np.zeros((0, 1))
        if has_level(x):
            level = level_of(np.asarray(x["values"]), known=x.get("observed"))
            x = {**x, "values": x["values"] - level}
        elif self._takes(x):
            count, windows = windows_of(self, self._require_processor().rows(x))
            numbers = np.array_split(np.arange(count), -(-count // _WINDOWS))
            level = np.concatenate([level_of(*windows(some)) for some in numbers])
        found = super().predict(x, batch_size, verbose, steps, callbacks)
        return found + level[: len(found), ..., None] if level.any() else found

    @reads
    def forecast(self, x, horizon: int | None = None, batch_size: int = 256):
        """Forecast the values that follow series.

        Args:
            x: a series, or a list of them. Each must have as many values as the model reads, unless
                the stem reads which values are known.
            horizon: int, the number of values to forecast. Defaults to the model's horizon. A
                longer horizon is reached by appending forecasts to the known values; with several
                quantiles each is continued, and the result is the quantiles of all continuations.
            batch_size: int, the number of rows computed together.

        Returns:
            For a data frame, a frame with the dates that follow and a column for each channel, or
            with quantiles for each channel and quantile; for a column of a frame, a column, or a
            frame of the quantiles; for an array, `(horizon,)` or `(horizon, channels)`, with a
            further axis for quantiles. For a list, a list of these.

        Raises:
            ValueError: if a series is too short, or its dates have gaps.

        Source: for quantiles, `ChronosBoltPipeline.predict` of chronos-forecasting 2.3.
        """
        horizon = check_int("horizon", horizon, 1, MOST_HORIZON, none=True) or self.horizon

        def make(rows):
            longest = max(row.shape[-1] for row in rows)
            known = np.stack([padded(row, longest) for row in rows])
            level = np.nanmean(known, axis=-1, keepdims=True)
            return self._continued(known - level, horizon, batch_size) + level[..., None]

        return forecasts(self, x, make, self.quantiles, self.nonnegative)

    def explained_inputs(self, x):
        """Return the last values of the series, as rows of the model."""
        if isinstance(x, Mapping):
            return super().explained_inputs(x)
        processor = self._require_processor()
        last = [row[None] for row in last_rows(self, processor.rows(x))]
        rows = [known_values(row - level_of(row)) for row in last]
        for row in rows:
            if row["values"].shape[-1] < self.fewest:
                raise ValueError(
                    f"A series has {row['values'].shape[-1]} values, but the model reads at least "
                    f"{self.fewest}."
                )
        return rows, len(rows) == 1 and processor.is_one(x)

    def _continued(self, known: np.ndarray, horizon: int, batch_size: int) -> np.ndarray:
        """Return forecasts `(rows, ..., horizon, quantiles)` of values `(rows, ..., time)`."""
        made = [self._following(known, batch_size)]
        levels, rows = self.quantiles or [0.5], len(known)
        known = np.repeat(known[:, None], len(levels), axis=1)
        while sum(part.shape[-2] for part in made) < horizon:
            known = np.concatenate([known, np.moveaxis(made[-1], -1, 1)], axis=-1)
            known = known[..., -self.context_length :]
            found = self._following(known.reshape(-1, *known.shape[2:]), batch_size)
            # For each row, the continuations of all its quantiles side by side.
            found = np.moveaxis(found.reshape(rows, len(levels), *found.shape[1:]), 1, -2)
            found = found.reshape(*found.shape[:-2], -1)
            found = np.quantile(found, levels, axis=-1).astype("float32")
            made.append(np.moveaxis(found, 0, -1))
        return np.concatenate(made, axis=-2)[..., :horizon, :]

    def _following(self, known: np.ndarray, batch_size: int) -> np.ndarray:
        """Return the forecast of one pass for rows of equal length."""
        length = self.read_length(known.shape[-1])
        inputs = known_values(padded(known[..., -length:], length))
        return self.predict(inputs, batch_size=batch_size, verbose=0)


def checked_spread(given: int | None, horizon: int, quantiles: list[float] | None) -> int | None:
    """Return `spread_horizon`. Raises ValueError if it does not fit the horizon and quantiles."""
    spread = check_int("spread_horizon", given, horizon, MOST_HORIZON, none=True)
    if spread is not None and len(quantiles or ()) % 2 == 0:
        raise ValueError(
            f"`spread_horizon` needs a middle one among the `quantiles`, received {quantiles}."
        )
    return spread


def checked_symmetric(given: bool, quantiles: list[float] | None) -> bool:
    """Return `symmetric`. Raises ValueError if the quantiles are not as far from 0 as from 1."""
    levels = np.array(quantiles or [0.5])
    if check_bool("symmetric", given) and np.abs(levels + levels[::-1] - 1).max() > 1e-6:
        raise ValueError(
            "symmetric=True needs `quantiles` that are as far from 0 as from 1, such as "
            f"[0.1, 0.5, 0.9], received {quantiles}."
        )
    return given


def known_values(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the model's inputs for rows `(batch, ..., length)`; NaN marks missing values."""
    observed = np.isfinite(rows)
    values = np.where(observed, rows, 0)
    if (largest := np.abs(values).max(initial=0)) > _LARGEST:
        raise ValueError(
            f"`x` has values of {largest:.3g}, whose variance float32 cannot hold: they may be up "
            f"to {_LARGEST:.0e}. Use a larger unit, or scale them by `processor.adapt(series)`."
        )
    return {"values": values.astype("float32"), "observed": observed}


def has_level(x: Any) -> bool:
    """Return True if `x` holds float64 inputs, whose level float32 may not represent exactly."""
    values = x.get("values") if isinstance(x, Mapping) else None
    return isinstance(values, np.ndarray) and values.dtype == "float64" and values.ndim in (2, 3)


def level_of(*windows: np.ndarray, known: Any = None) -> np.ndarray:
    """Return the level that is subtracted from each window in float64, `(rows, ..., 1)`.

    It is 0 except for windows in which float32 would lose precision, since their mean exceeds 256
    standard deviations. Metrics that depend on the level, such as percentage errors, are therefore
    unchanged for all other windows.

    Args:
        windows: float64 `(rows, ..., length)`, the known values and, if given, the following ones;
            NaN for missing values.
        known: bool `(rows, ..., length)`, which values of the first array are known. Defaults to
            the finite ones.
    """
    first = windows[0] if known is None else np.where(known, windows[0], np.nan)
    whole = np.concatenate([first, *windows[1:]], axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # from rows without known values
        level = np.nanmean(first, axis=-1, keepdims=True)
        deviation = np.nanstd(whole, axis=-1, keepdims=True)
    deviation = np.where(deviation > 0, deviation, 1)
    return np.where(np.abs(level) > 256 * deviation, level, 0)
