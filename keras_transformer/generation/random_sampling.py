"""Random sampling, with what keeps unlikely tokens out of it."""

import dataclasses
import math
from typing import ClassVar

import keras
from keras import ops

from keras_transformer.generation import values
from keras_transformer.generation.choosing import draw
from keras_transformer.generation.cutting import NEVER, best, keep, ordered, sharpened
from keras_transformer.generation.samplers import Limits, RowSampler


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Random(RowSampler):
    """Draws each token from the model's distribution, sharpened and cut as asked.

    The cuts are made in the order of the arguments, each on what the one before has left. A token
    that has the same probability as the last one kept is kept too, and none leaves out its first
    token: the likeliest, of `typical_p` the most typical.

    Args:
        temperature: float above 0, divides the logits: below 1 likely tokens become likelier.
            Below 1e-5, less than logits in float32 can tell, the likeliest token is drawn.
        top_k: int, only the `k` likeliest tokens. None for all.
        top_p: float in (0, 1], only the likeliest tokens that together have this probability.
        min_p: float in [0, 1], only tokens with at least this share of the likeliest one's
            probability.
        typical_p: float in (0, 1], only the tokens whose information is nearest to what is
            expected, that together have this probability.

    Raises:
        ValueError: for values that are out of range.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    sampler = kt.generation.Random(temperature=0.7, top_p=0.9)
    first = translator.generate("a man rides a bike .", sampler=sampler, seed=1)
    assert first == translator.generate("a man rides a bike .", sampler=sampler, seed=1)
    ```

    Source: top-k: Fan et al. 2018, section 5.4; top-p: Holtzman et al. 2020, section 3.1; min-p:
    Nguyen et al. 2024, section 3; typical: Meister et al. 2023, section 3.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0

    draws: ClassVar[int] = 1

    def __post_init__(self):
        k = self.top_k
        if k is not None:
            k = values.integer("top_k", k, 1, hint=" or None")
        hint = " For the likeliest token at every step, use Greedy()."
        share = "a number above 0, at most 1"
        values.put(
            self,
            temperature=values.number(
                "temperature", self.temperature, "a number above 0", 0, math.inf, True, hint
            ),
            top_k=k,
            top_p=values.number("top_p", self.top_p, share, 0, 1, True, hint),
            min_p=values.number("min_p", self.min_p, "a number from 0 to 1", 0, 1, False, hint),
            typical_p=values.number("typical_p", self.typical_p, share, 0, 1, True, hint),
        )

    def choose(self, logits, count, limits: Limits):
        return draw(ops.softmax(self.filtered(logits), axis=-1), _uniform(limits, count))

    def filtered(self, logits):
        """Logits `(..., vocabulary_size)`, scaled, with tokens that are cut off at -1e30."""
        logits = sharpened(logits, self.temperature)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = keep(logits, best(ordered(logits), self.top_k))
        if self.top_p < 1:
            chances = ops.softmax(logits, axis=-1)
            logits = keep(logits, best(ordered(logits), self.top_p, chances))
        if self.min_p > 0:
            share = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
            count = ops.sum(ops.cast(share >= self.min_p, "int32"), axis=-1, keepdims=True)
            # The likeliest has a share of 1, but for rounding.
            logits = keep(logits, best(ordered(logits), ops.maximum(count, 1)))
        if self.typical_p < 1:
            chances = ops.softmax(logits, axis=-1)
            surprise = -ops.log_softmax(logits, axis=-1)
            possible = logits > NEVER / 2
            expected = ops.where(possible, chances * surprise, 0.0)
            expected = ops.sum(expected, axis=-1, keepdims=True)
            distance = ops.where(possible, ops.abs(surprise - expected), -NEVER)
            logits = keep(logits, best(ordered(-distance), self.typical_p, chances))
        return logits


def _uniform(limits: Limits, count):
    """Each row's number for its next token."""
    last = limits.uniforms.shape[1] - 1
    return ops.take_along_axis(limits.uniforms, ops.minimum(count, last)[:, None], axis=1)[:, 0]
