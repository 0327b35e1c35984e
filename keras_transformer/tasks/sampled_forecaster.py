"""Forecasts of series by a language model of their values."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.checking import check_int, check_number
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Random
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors.bins import END_ID, PAD_ID, UniformBins
from keras_transformer.processors.series import SeriesProcessor
from keras_transformer.tasks.explaining import Explains
from keras_transformer.tasks.language_model import LanguageModel
from keras_transformer.tasks.series import (
    MOST_HORIZON,
    ForecastsSeries,
    checked_quantiles,
    padded,
)
from keras_transformer.tasks.task import Task


@keras.saving.register_keras_serializable(package="keras_transformer")
class SampledForecaster(ForecastsSeries, LanguageModel):
    """An encoder-decoder that reads values as tokens, and draws those that follow (Chronos).

    Each channel of a series is a row of its own. Its values are divided by the mean of their
    absolute values, and each is the token of its bin. What follows is drawn several times, token by
    token; forecasts are quantiles of what was drawn. A value that is missing, NaN, is not seen.

    `fit` and `evaluate` take series and make windows of them: up to `context_length` values, and
    the `horizon` that follow, one for each place. Their loss is the cross-entropy of the tokens.

    Args:
        backbone: a `Seq2Seq` of tokens: those of values behind `num_special` others, of which 0 is
            the padding, with which the decoder starts, and 1 the end.
        processor: `SeriesProcessor`; None for a task that takes arrays only.
        horizon: int, values that are drawn at once.
        context_length: int, the most values that are read.
        low, high: float, the centers of the first and of the last bin, of scaled values.
        num_tokens: int, those of values and what is in front of them. Defaults to the vocabulary.
        num_special: int, tokens in front of those of values.
        num_samples: int, how often `forecast` draws.
        temperature, top_k, top_p: of the drawing, see `generation.Random`.
        name: str.

    Call arguments:
        inputs: dict, as for `Seq2Seq`; `encoder_padding_mask` is False for what is missing.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Raises:
        ValueError: for a backbone that reads no tokens, or values out of range.

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

    backbone_kinds = ("seq2seq",)
    processor_class = SeriesProcessor
    alias = "sampled_forecasting"
    published_as = ("ForConditionalGeneration",)
    reads_arrays = ()  # A backbone alone is published as a model of text.
    takes_records = False
    continues_prompts = False
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

    weights_of_classes = Task.weights_of_classes  # Its tokens are values.

    def window_arrays(self, known, following):
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
        """What follows on series.

        Args:
            x: a series, or a list of them, of any lengths.
            horizon: int, values to forecast. Defaults to those that the model draws at once; more
                are made by taking medians for known.
            batch_size: int, rows drawn together.
            num_samples: int, how often each row is drawn. Defaults to that of the task.
            quantiles: list of floats between 0 and 1, rising, such as `[0.1, 0.5, 0.9]`. None for
                the median alone.
            seed: int from 0 to 2**63 - 1. Defaults to a drawn one.

        Returns:
            As `Forecaster.forecast`.

        Raises:
            ValueError: for a series that has no values, or dates that leave some out.
        """
        quantiles = checked_quantiles(quantiles)

        def make(rows):
            drawn = self._paths(rows, horizon, batch_size, num_samples, seed)
            return np.moveaxis(np.quantile(drawn, quantiles or [0.5], axis=1), 0, -1)

        return self.forecasts(x, make, quantiles)

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
        """The series that were drawn, of which `forecast` gives quantiles; arguments as there.

        Returns:
            Float `(num_samples, horizon, channels)`, of the series' dtype; for a column, or an
            array `(time,)`, `(num_samples, horizon)`. For a list a list of these.
        """
        processor = self._require_processor()
        series, first, found = processor.rows(x), 0, []
        one = processor.is_one(x)
        drawn = self._paths(self._last(series), horizon, batch_size, num_samples, seed)
        for each, given in zip(series, [x] if one else x, strict=True):
            count = each.values.shape[1]
            made = np.moveaxis(drawn[first : first + count], 0, -1)  # (samples, horizon, channels)
            made = processor.unscaled(made.transpose(1, 2, 0)).transpose(2, 0, 1)
            made = made.astype(each.dtype)
            found.append(made[..., 0] if np.ndim(given) == 1 else made)
            first += count
        return found[0] if one else found

    def explain(self, x, **options) -> Any:
        """What the model saw before the first value that it draws; see `TextClassifier.explain`.

        Args:
            x: as of `forecast`. Each channel of a series is an input of its own.
            **options: as there.
        """
        return Explains.explain(self, x, **options)

    def explained_inputs(self, x):
        """The last values of each channel of series, and the start of what is drawn."""
        if isinstance(x, Mapping):
            return super().explained_inputs(x)
        processor, rows = self._require_processor(), []
        for row in self._last(processor.rows(x)):
            inputs = self._read(row[None])[0]
            rows.append({**inputs, "decoder_token_ids": np.array([[self.start_id]], "int32")})
        return rows, len(rows) == 1 and processor.is_one(x)

    def _paths(self, rows, horizon, batch_size, num_samples, seed) -> np.ndarray:
        """Draw what follows rows of any lengths, float `(rows, num_samples, horizon)`."""
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
            drawn = self._completed(starts, options, inputs, False, False, False, False, False)
            ids = np.array(drawn).reshape(len(known), -1, count)
            made.append(self.bins.decode(ids, scale))
            known = np.concatenate([known, np.median(made[-1], axis=1)], axis=1)
            seed = None if seed is None else seed + 1
        return np.concatenate(made, axis=-1)

    def _read(self, context: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The arrays of the encoder for rows of values, and their scales."""
        ids, known, scale = self.bins.encode(context)
        ids, known = _with_end(ids, known)
        return {"encoder_token_ids": ids, "encoder_padding_mask": known}, scale

    def positions_before(self, prompt: list[int]) -> int:
        return len(prompt) - 1

    def _engine_inputs(self, ids, mask):
        return {"decoder_token_ids": ids, "decoder_padding_mask": mask}


def _with_end(ids: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens `(rows, length)` and which are known, with the end behind them."""
    ends = np.full((len(ids), 1), END_ID, ids.dtype)
    return np.concatenate([ids, ends], axis=1), np.concatenate([known, ends > 0], axis=1)
