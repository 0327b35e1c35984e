"""Forecasting of time series by sampling from a language model of values."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.explanations.explaining import explain
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.samplers import Random
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.bins import END_ID, PAD_ID, UniformBins
from keras_transformer.processors.series import SeriesProcessor
from keras_transformer.support.checking import check_int, check_number
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.tasks.series.windows import (
    MOST_HORIZON,
    checked_quantiles,
    forecasts,
    last_rows,
    padded,
    plot_forecast,
    usual_read_length,
    window_dataset,
)
from keras_transformer.tasks.text.generator import PromptFormat
from keras_transformer.tasks.text.language_model import LanguageModel


class ValueTokenHead(VocabularyHead):
    """The head of `SampledForecaster`: logits of the token of the next value."""

    published_as = ("ForConditionalGeneration",)
    takes_records = False
    weights_of_classes = Head.weights_of_classes  # Its tokens are values, not classes.


class ValueFormat(PromptFormat):
    """The format of values that the encoder reads; the decoder starts from the padding token."""

    def engine_inputs(self, ids, mask):
        return {"decoder_token_ids": ids, "decoder_padding_mask": mask}

    def positions_before(self, prompt: list[int]) -> int:
        return len(prompt) - 1


@keras.saving.register_keras_serializable(package="keras_transformer")
class SampledForecaster(LanguageModel):
    """An encoder-decoder that reads values as tokens, and samples the next values (Chronos).

    Each channel of a series is a separate row. Its values are divided by the mean of their absolute
    values, and each becomes the token of its bin. Continuations are sampled several times, token by
    token; forecasts are quantiles of the samples. Missing values (NaN) are masked.

    `fit` and `evaluate` take series and cut them into windows, one at each position: up to
    `context_length` values, and the `horizon` that follow. The loss is the cross-entropy of tokens.

    Args:
        backbone: a `Seq2Seq` with a vocabulary of `num_special` special tokens followed by tokens
            of values. Token 0 is the padding, which also starts the decoder, and 1 the end.
        processor: `SeriesProcessor`, or None if the task only takes arrays.
        horizon: int, the number of values sampled at a time.
        context_length: int, the maximum number of values that are read.
        low, high: float, the centers of the first and last bin, in scaled values.
        num_tokens: int, the number of special and value tokens. Defaults to the vocabulary size.
        num_special: int, the number of special tokens, which precede the value tokens.
        num_samples: int, the number of samples that `forecast` draws.
        temperature, top_k, top_p: sampling options, see `generation.Random`.
        name: str.

    Call arguments:
        inputs: dict, as for `Seq2Seq`; `encoder_padding_mask` is False for missing values.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Raises:
        ValueError: if the backbone does not read tokens, or values are out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=100, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="relative",
    )
    backbone = kt.models.Seq2Seq(config)
    forecaster = kt.SampledForecaster(
        backbone, kt.SeriesProcessor(), horizon=6, context_length=24, low=-3, high=3
    )
    series = np.sin(np.arange(60) * 0.5)
    forecaster.fit(series, epochs=1, verbose=0)
    found = forecaster.forecast(series, num_samples=3, quantiles=[0.1, 0.5, 0.9], seed=1)
    assert found.shape == (6, 3)
    ```

    Source: Ansari et al. 2024, "Chronos: Learning the Language of Time Series", section 3.
    """

    alias = "sampled_forecasting"
    joint_channels = None
    backbone_kinds = ("seq2seq",)
    head_class = ValueTokenHead
    format_class = ValueFormat
    processor_class = SeriesProcessor
    start_id = PAD_ID
    task_options = (
        "horizon", "context_length", "low", "high", "num_tokens", "num_special", "num_samples",
        "temperature", "top_k", "top_p",
    )  # fmt: skip

    def __init__(
        self,
        backbone: Backbone,
        processor: SeriesProcessor | None = None,
        horizon: int = 64,
        context_length: int = 512,
        low: float = -15.0,
        high: float = 15.0,
        num_tokens: int | None = None,
        num_special: int = 2,
        num_samples: int = 20,
        temperature: float = 1.0,
        top_k: int | None = 50,
        top_p: float | None = 1.0,
        name: str | None = None,
    ):
        self.horizon = check_int("horizon", horizon, 1, MOST_HORIZON)
        self.context_length = check_int("context_length", context_length, 1, MOST_HORIZON)
        self.num_samples = check_int("num_samples", num_samples, 1, MOST_HORIZON)
        self.low = check_number("low", low)
        self.high = check_number("high", high, above=self.low)
        super().__init__(backbone, processor, [END_ID], name=name)
        if backbone.id_inputs != ("encoder_token_ids", "decoder_token_ids"):
            raise ValueError("SampledForecaster needs a backbone whose encoder reads token ids.")
        size = backbone.config.vocabulary_size
        self.num_tokens = check_int("num_tokens", num_tokens, 6, size, none=True) or size
        self.num_special = check_int("num_special", num_special, 2, self.num_tokens - 4)
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.sampler = Random(temperature=temperature, top_k=top_k, top_p=top_p)
        self.bins = UniformBins(self.low, self.high, self.num_tokens, self.num_special)

    def task_values(self) -> dict[str, Any]:
        return Task.task_values(self)

    @property
    def fewest(self) -> int:
        """The smallest number of values that a forecast can be based on."""
        return 1

    def read_length(self, count: int) -> int:
        """Return how many values to read if the longest series has `count`."""
        return usual_read_length(count, self.context_length)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch windows of series: known values as inputs, following values as targets.

        See `Forecaster.make_dataset`.
        """
        return window_dataset(self, x, y, sample_weight, **options)

    def plot(self, x, horizon: int | None = None, *, shown: int | None = None, **options):
        """Draw the end of a series and its forecast. See `Forecaster.plot`."""
        return plot_forecast(self, x, horizon, shown=shown, **options)

    def window_arrays(self, known: np.ndarray, following: np.ndarray) -> tuple:
        """Return inputs, targets and weights for windows. See `Forecaster.window_arrays`."""
        inputs, scale = self._read(known)
        ids, given, _ = self.bins.encode(following, scale)
        targets, weights = _with_end(ids, given)
        weights &= np.isfinite(known).any(axis=1, keepdims=True)
        starts = np.full((len(ids), 1), self.start_id, "int32")
        inputs["decoder_token_ids"] = np.concatenate([starts, ids], axis=1)
        return inputs, targets, weights.astype("float32")

    @reads
    def forecast(
        self,
        x,
        horizon: int | None = None,
        batch_size: int = 32,
        *,
        num_samples: int | None = None,
        quantiles: Sequence[float] | None = None,
        seed: int | None = None,
    ):
        """Forecast the values that follow series.

        Args:
            x: a series, or a list of them, of any lengths.
            horizon: int, the number of values to forecast. Defaults to the model's horizon. A
                longer horizon is reached by appending medians to the known values.
            batch_size: int, the number of rows sampled together.
            num_samples: int, the number of samples of each row. Defaults to the task's.
            quantiles: list of floats between 0 and 1, ascending, such as `[0.1, 0.5, 0.9]`. None
                gives the median.
            seed: int from 0 to 2**63 - 1. Defaults to a random seed.

        Returns:
            As `Forecaster.forecast`.

        Raises:
            ValueError: if a series has no values, or its dates have gaps.
        """
        quantiles = checked_quantiles(quantiles)

        def make(rows):
            drawn = self._paths(rows, horizon, batch_size, num_samples, seed)
            return np.moveaxis(np.quantile(drawn, quantiles or [0.5], axis=1), 0, -1)

        return forecasts(self, x, make, quantiles)

    @reads
    def generate(
        self,
        x,
        horizon: int | None = None,
        batch_size: int = 32,
        *,
        num_samples: int | None = None,
        seed: int | None = None,
    ):
        """Return sampled continuations. `forecast` returns their quantiles.

        Arguments are as for `forecast`.

        Returns:
            Float `(num_samples, horizon, channels)`, of the series' dtype; for a column, or an
            array `(time,)`, `(num_samples, horizon)`. For a list, a list of these.
        """
        processor = self._require_processor()
        series, first, found = processor.rows(x), 0, []
        one = processor.is_one(x)
        drawn = self._paths(last_rows(self, series), horizon, batch_size, num_samples, seed)
        for each, given in zip(series, [x] if one else x, strict=True):
            count = each.values.shape[1]
            made = np.moveaxis(drawn[first : first + count], 0, -1)  # (samples, horizon, channels)
            made = processor.unscaled(made.transpose(1, 2, 0)).transpose(2, 0, 1)
            made = made.astype(each.dtype)
            found.append(made[..., 0] if np.ndim(given) == 1 else made)
            first += count
        return found[0] if one else found

    def explain(self, x, **options) -> Any:
        """Explain the pass before the first sampled value; see `TextClassifier.explain`.

        Args:
            x: as for `forecast`. Each channel of a series is a separate input.
            **options: as for `TextClassifier.explain`.
        """
        return explain(self, x, **options)

    def explained_inputs(self, x):
        """Return the last values of each channel of series, and the decoder's start token."""
        if isinstance(x, Mapping):
            return super().explained_inputs(x)
        processor, rows = self._require_processor(), []
        for row in last_rows(self, processor.rows(x)):
            inputs = self._read(row[None])[0]
            rows.append({**inputs, "decoder_token_ids": np.array([[self.start_id]], "int32")})
        return rows, len(rows) == 1 and processor.is_one(x)

    def _paths(self, rows, horizon, batch_size, num_samples, seed) -> np.ndarray:
        """Sample continuations of rows of any length, float `(rows, num_samples, horizon)`."""
        horizon = check_int("horizon", horizon, 1, MOST_HORIZON, none=True) or self.horizon
        samples = check_int("num_samples", num_samples, 1, MOST_HORIZON, none=True)
        seed = check_int("seed", seed, 0, 2**63 - 1, none=True)
        longest = max(map(len, rows))
        known = np.stack([padded(row, longest) for row in rows])
        made: list[np.ndarray] = []
        while (left := horizon - sum(part.shape[-1] for part in made)) > 0:
            longest = self.read_length(known.shape[1])
            inputs, scale = self._read(padded(known[:, -longest:], longest))
            count = min(left, self.horizon)
            options = {
                "max_new_tokens": count, "batch_size": batch_size, "seed": seed,
                "num_samples": samples or self.num_samples,
                "rules": Rules(min_new_tokens=count),
            }  # fmt: skip
            starts = [[self.start_id]] * len(known)
            drawn = self.generator.completed(starts, options, inputs)
            ids = np.array(drawn).reshape(len(known), -1, count)
            made.append(self.bins.decode(ids, scale))
            known = np.concatenate([known, np.median(made[-1], axis=1)], axis=1)
            seed = None if seed is None else seed + 1
        return np.concatenate(made, axis=-1)

    def _read(self, context: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the encoder's arrays for rows of values, and their scales."""
        ids, known, scale = self.bins.encode(context)
        ids, known = _with_end(ids, known)
        return {"encoder_token_ids": ids, "encoder_padding_mask": known}, scale


def _with_end(ids: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Append the end token to tokens `(rows, length)` and to the mask of known values."""
    ends = np.full((len(ids), 1), END_ID, ids.dtype)
    return np.concatenate([ids, ends], axis=1), np.concatenate([known, ends > 0], axis=1)
