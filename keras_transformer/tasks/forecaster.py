"""Forecasts of series of numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_choice, check_int, check_number
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors.series import SeriesProcessor
from keras_transformer.tasks.pooling import pool
from keras_transformer.tasks.series import MOST_HORIZON, ForecastsSeries, checked_quantiles
from keras_transformer.tasks.task import Task
from keras_transformer.training.losses import QuantileLoss

POOLINGS = ("mean", "max", "first")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Forecaster(ForecastsSeries, Task):
    """An encoder of series with a linear layer from its states to the values that follow.

    Each channel of a series is a row of its own, by the same weights. What a row has before is
    brought to the mean 0 and the deviation 1, and the forecast back; so a model knows no levels. A
    value that is missing, NaN, counts as the mean and plays no part in it.

    `fit` and `evaluate` take series and make windows of them: so many values as the stem reads, and
    the `horizon` that follow, one for each place. Their loss and scores are of the values as the
    processor scales them, `processor.adapt(training_part)`.

    Compiled with Adam (1e-3), the squared error and the absolute error; with quantiles with their
    loss.

    Args:
        backbone: an `Encoder` whose config has a `stem` of kind `"series"`.
        processor: `SeriesProcessor`; None for a task that takes arrays only.
        horizon: int, values that are forecast at once.
        quantiles: list of floats between 0 and 1, rising, such as `[0.1, 0.5, 0.9]`: the forecast
            is the value below which the truth is with each probability. None for one forecast,
            the mean by the squared error.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        name: str.
        pooling: `"mean"`, `"max"` or `"first"`, the one state that the last layer reads. None for
            all of them, side by side.

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
    Kim et al. 2022, "Reversible Instance Normalization"; quantiles: Koenker & Bassett 1978.
    """

    backbone_kinds = ("encoder",)
    processor_class = SeriesProcessor
    alias = "forecasting"
    published_as = ("ForPrediction",)
    takes_records = False
    task_options = ("horizon", "quantiles", "dropout", "pooling")

    def __init__(
        self,
        backbone: Backbone,
        processor: SeriesProcessor | None = None,
        horizon: int = 24,
        quantiles: Sequence[float] | None = None,
        dropout: float | None = None,
        name: str | None = None,
        pooling: str | None = None,
    ):
        self.horizon = check_int("horizon", horizon, 1, MOST_HORIZON)
        self.quantiles = checked_quantiles(quantiles)
        self.pooling = check_choice("pooling", pooling, POOLINGS, none=True)
        super().__init__(backbone, processor, name=name)
        if backbone.id_inputs != ("values",) or backbone.config.stem is None:
            raise ValueError(
                "Forecaster needs a backbone that reads series: give the config a `stem`, such as "
                "{'kind': 'series', 'context_length': 336, 'patch_length': 16}."
            )
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = backbone.config.dropout if dropout is None else dropout
        self.dropout_layer = self._dropout(self.dropout)
        (width, units) = self.head_shapes(backbone.config, self.task_values())["output/kernel"]
        self.output_dense = self._dense(units, "output", width=width)
        self.built = True
        loss = keras.losses.MeanSquaredError()
        metrics = [keras.metrics.MeanAbsoluteError(name="mean_absolute_error")]
        if self.quantiles is not None:
            loss, metrics = QuantileLoss(self.quantiles), []
        self.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=metrics)

    @property
    def context_length(self) -> int:
        """Values that a forecast is made of."""
        return self.backbone.config.stem.context_length

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        values = ops.cast(inputs["values"], "float32")
        observed = inputs.get("observed")
        known = ops.ones_like(values) if observed is None else ops.cast(observed, "float32")
        count = ops.maximum(ops.sum(known, axis=1, keepdims=True), 1.0)
        mean = ops.sum(values * known, axis=1, keepdims=True) / count
        centered = (values - mean) * known
        variance = ops.sum(ops.square(centered), axis=1, keepdims=True) / count
        scale = ops.sqrt(variance + 1e-5)
        given = {"values": ops.cast(centered / scale, self.compute_dtype)}
        states, collected = self.backbone_states(given, collect, training)
        outputs = ops.cast(self.head_outputs(states, inputs, training), "float32")
        outputs = outputs * scale[..., None] + mean[..., None]
        return (outputs, collected) if collect else outputs

    def head_outputs(self, states, inputs, training: bool):
        if self.pooling is None:
            flat = ops.reshape(states, (-1, states.shape[1] * states.shape[2]))
        else:
            flat = pool(states, None, self.pooling)
        outputs = self.output_dense(self.dropout_layer(flat, training=training))
        return ops.reshape(outputs, (-1, self.horizon, len(self.quantiles or (0,))))

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Windows of series as batches: what is known, and what follows.

        Args:
            x: a series or a list of them, as `SeriesProcessor` takes them.
            y: None: the targets are within the series. A missing target counts for nothing.
            sample_weight: None.
            **options: as for `Task.make_dataset`.
        """
        self._refuse_targets(y, sample_weight)
        context = self.context_length
        count, windows = self.windows(x, context, self.horizon, fewest=context)

        def make_batch(arrays, masks):
            whole = windows(arrays["row"])
            inputs = known_values(whole[:, :context])
            following = whole[:, context:, None]
            weights = np.isfinite(following[..., 0]).astype("float32")
            return inputs, np.nan_to_num(following), weights

        columns = {"place": np.zeros((count, 1), "int32")}
        return self._bucketed(columns, make_batch, **{**options, "max_buckets": 1})

    @reads
    def forecast(self, x, horizon: int | None = None, batch_size: int = 256):
        """What follows on series.

        Args:
            x: a series, or a list of them. One must have as many values as the model reads.
            horizon: int, values to forecast. Defaults to those that the model forecasts at once;
                more are made by taking forecasts for known, of quantiles the middle one.
            batch_size: int, rows computed together.

        Returns:
            For a data frame one with the dates that follow, a column for each channel, or with
            quantiles for each channel and quantile; for a column of a frame a column, or a frame of
            the quantiles; for an array `(horizon,)` or `(horizon, channels)`, with quantiles one
            axis more. For a list a list of these.

        Raises:
            ValueError: for a series that is too short, or has dates that leave some out.
        """
        horizon = check_int("horizon", horizon, 1, MOST_HORIZON, none=True) or self.horizon
        context = self.context_length

        def make(rows):
            return self._continued(np.stack(rows), horizon, batch_size)

        return self.forecasts(x, make, context, context, self.quantiles)

    def explained_inputs(self, x):
        """The last values of each channel of series: a row of its own."""
        if isinstance(x, Mapping):
            return super().explained_inputs(x)
        context, processor = self.context_length, self._require_processor()
        rows = [
            known_values(row[None, -context:])
            for values in self._scaled(processor.rows(x))
            for row in values.T
        ]
        for row in rows:
            if row["values"].shape[1] < context:
                raise ValueError(
                    f"A series has {row['values'].shape[1]} values, and the model reads {context}."
                )
        return rows, len(rows) == 1 and processor.is_one(x)

    def _continued(self, known: np.ndarray, horizon: int, batch_size: int) -> np.ndarray:
        """Forecasts `(rows, horizon, quantiles)` of rows of known values."""
        made: list[np.ndarray] = []
        while sum(part.shape[1] for part in made) < horizon:
            inputs = known_values(known[:, -self.context_length :])
            made.append(self.predict(inputs, batch_size=batch_size, verbose=0))
            middle = made[-1][..., made[-1].shape[-1] // 2]
            known = np.concatenate([known, middle], axis=1)
        return np.concatenate(made, axis=1)[:, :horizon]

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "horizon": values.get("horizon", 24),
            "quantiles": checked_quantiles(values.get("quantiles")),
            "pooling": values.get("pooling"),
        }

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        head = cls.head_values(config, values)
        horizon = check_int("horizon", head["horizon"], 1, MOST_HORIZON)
        units = horizon * len(head["quantiles"] or (0,))
        states = config.num_positions if head["pooling"] is None else 1
        width = states * config.hidden_dim
        return {"output/kernel": (width, units), "output/bias": (units,)}


def known_values(rows: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of rows `(batch, length)`, NaN where a value is missing."""
    observed = np.isfinite(rows)
    return {"values": np.nan_to_num(rows).astype("float32"), "observed": observed}
