"""Random sampling, with what keeps unlikely tokens out of it."""

import dataclasses
from typing import ClassVar

from keras import ops

from keras_transformer.generation.choosing import draw, top_k
from keras_transformer.generation.samplers import Limits, RowSampler

_NEVER = -1e30
# Halvings of an interval that holds a threshold: what is left of it is less than float32 tells.
_HALVINGS = 32


@dataclasses.dataclass(frozen=True)
class Random(RowSampler):
    """Draws each token from the model's distribution, sharpened and cut as asked.

    The cuts are made in the order of the arguments, each on what the one before has left. A token
    that has the same probability as the last one kept is kept too.

    Args:
        temperature: float above 0, divides the logits: below 1 likely tokens become likelier.
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
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise ValueError(f"`top_k` must be an integer of at least 1 or None, received {k!r}.")
        for name, low, high in (
            ("temperature", 0, float("inf")),
            ("top_p", 0, 1),
            ("min_p", -1, 1),
            ("typical_p", 0, 1),
        ):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not low < value <= high or (name == "min_p" and value < 0):
                expected = {"temperature": "above 0", "min_p": "from 0 to 1"}
                raise ValueError(
                    f"`{name}` must be a number {expected.get(name, 'above 0, at most 1')}, "
                    f"received {value!r}. For the likeliest token at every step, use Greedy()."
                )

    def choose(self, logits, count, limits: Limits):
        return draw(ops.softmax(self.filtered(logits), axis=-1), _uniform(limits, count))

    def filtered(self, logits):
        """Logits `(..., vocabulary_size)`, scaled, with tokens that are cut off at -1e30."""
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            worst = top_k(logits, self.top_k)[0][..., -1:]
            logits = _keep(logits, logits >= worst)
        if self.top_p < 1:
            surprise = -ops.log_softmax(logits, axis=-1)
            logits = _keep(logits, surprise <= _threshold(surprise, logits, self.top_p))
        if self.min_p > 0:
            likeliest = ops.max(logits, axis=-1, keepdims=True)
            logits = _keep(logits, ops.exp(logits - likeliest) >= self.min_p)
        if self.typical_p < 1:
            surprise = -ops.log_softmax(logits, axis=-1)
            possible = logits > _NEVER / 2
            expected = ops.where(possible, ops.exp(-surprise) * surprise, 0.0)
            expected = ops.sum(expected, axis=-1, keepdims=True)
            distance = ops.where(possible, ops.abs(surprise - expected), -_NEVER)
            near = distance <= _threshold(distance, logits, self.typical_p)
            logits = _keep(logits, ops.logical_and(near, possible))
        return logits


def _uniform(limits: Limits, count):
    """Each row's number for its next token."""
    last = limits.uniforms.shape[1] - 1
    return ops.take_along_axis(limits.uniforms, ops.minimum(count, last)[:, None], axis=1)[:, 0]


def _keep(logits, kept):
    return ops.where(kept, logits, _NEVER)


def _threshold(key, logits, mass: float):
    """The least value so that the tokens whose `key` is not above it have `mass` together.

    Found by halving: sorting a vocabulary takes ten times as long. `(..., 1)`.
    """
    probabilities = ops.softmax(logits, axis=-1)
    # A token that has no share is not to widen the interval.
    counted = probabilities > 0
    low = ops.min(ops.where(counted, key, -_NEVER), axis=-1, keepdims=True)
    high = ops.max(ops.where(counted, key, _NEVER), axis=-1, keepdims=True)

    def reached(value):
        held = ops.where(key <= value, probabilities, 0.0)
        return ops.sum(held, axis=-1, keepdims=True) >= mass

    enough = reached(low)
    least = low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        up = reached(middle)
        low, high = ops.where(up, low, middle), ops.where(up, middle, high)
    return ops.where(enough, least, high)
