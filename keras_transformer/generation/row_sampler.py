"""A sampler whose rows say how their tokens are chosen: unlike requests share a batch."""

import dataclasses
from typing import ClassVar

from keras import ops

from keras_transformer.generation.logits import COLD, NEVER, draw, keep
from keras_transformer.generation.samplers import Limits, Sampler, uniform_of
from keras_transformer.kernels.selection import argmax, best, ordered


@dataclasses.dataclass(frozen=True)
class RowRandom(Sampler):
    """As `Greedy` or `Random`, by the temperature and the `top_p` of each row.

    They are the `choices` of `Limits`, float32 `(rows, 2)`, arguments of what is compiled: other
    numbers are no other program. A row with a temperature below 1e-5 takes the likeliest token.

    Args:
        cuts: bool, whether a row's `top_p` is looked at: it costs an order of the vocabulary.

    Example:
    ```python
    import numpy as np
    from keras_transformer.generation.row_sampler import RowRandom
    from keras_transformer.generation.samplers import Limits
    from keras import ops

    choices = np.array([[0.0, 1.0], [1.0, 0.5]], "float32")
    limits = Limits((), 0, None, np.full((2, 1), 0.9, "float32"), choices)
    logits = np.log(np.array([[0.2, 0.7, 0.1], [0.2, 0.7, 0.1]], "float32"))
    chosen = RowRandom(cuts=True).choose(ops.array(logits), ops.zeros((2,), "int32"), limits)
    assert ops.convert_to_numpy(chosen).tolist() == [1, 1]
    ```
    """

    cuts: bool = False

    draws: ClassVar[int] = 1

    def choose(self, logits, count, limits: Limits):
        temperature, top_p = limits.choices[:, :1], limits.choices[:, 1:2]
        cold = temperature < COLD
        possible = logits > NEVER / 2
        drawn = keep(logits / ops.where(cold, 1.0, temperature), possible)
        if self.cuts:
            kept = best(ordered(drawn), top_p, ops.softmax(drawn, axis=-1))
            drawn = keep(drawn, ops.logical_or(kept, top_p >= 1))
        drawn = draw(ops.softmax(drawn, axis=-1), uniform_of(limits, count))
        return ops.where(cold[:, 0], argmax(logits), drawn)
