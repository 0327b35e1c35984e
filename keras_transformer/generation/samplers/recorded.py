"""Random sampling that keeps the log-probability of each token, for reinforcement learning."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.generation.samplers.samplers import (
    Outputs,
    Random,
    RowLimits,
    RowState,
    apply_temperature,
    put_at,
)
from keras_transformer.kernels.values import full_tensor


class RecordedState(NamedTuple):
    """State of `RecordedRandom`."""

    tokens: Any  # int (rows, size)
    count: Any  # int (rows,)
    ended: Any  # bool (rows,)
    log_probabilities: Any  # float32 (rows, size)
    entropies: Any  # float32 (rows, size), in nats


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class RecordedRandom(Random):
    """Draws tokens as `Random` does, and keeps their log-probabilities and the entropies.

    Both are those of the model's whole distribution at the temperature: truncation and rules
    restrict which tokens are drawn, but not the probabilities that are kept. Thus they equal what a
    forward pass over the text gives, `log_softmax(logits / temperature)`.

    Its arguments are those of `Random`.

    Example: see `keras_transformer.CausalLM.fit_rewards`, which uses it.
    """

    takes_guidance: ClassVar[bool] = False
    reads_model_logits: ClassVar[bool] = True
    sized: ClassVar[dict[str, int]] = {"tokens": -1, "log_probabilities": -1, "entropies": -1}

    def start(self, rows: int, size: int, limits: RowLimits, prompt) -> RecordedState:
        nothing = full_tensor((rows, size), 0.0, "float32")
        return RecordedState(*super().start(rows, size, limits, prompt), nothing, nothing)

    def advance(self, state, logits, hidden, limits: RowLimits, model_logits):
        new, kept = super().advance(RowState(*state[:3]), logits, hidden, limits)
        place, open_ = state.count, new.count > state.count
        last = ops.minimum(place, new.tokens.shape[1] - 1)
        chosen = ops.take_along_axis(new.tokens, last[:, None], axis=1)
        scaled = apply_temperature(model_logits[:, 0], self.temperature)
        log_p = ops.log_softmax(scaled, axis=-1)
        of_chosen = ops.take_along_axis(log_p, chosen, axis=1)[:, 0]
        entropy = -ops.sum(ops.exp(log_p) * log_p, axis=-1)
        recorded = (
            put_at(old, place, value, open_)
            for old, value in (
                (state.log_probabilities, of_chosen),
                (state.entropies, entropy),
            )
        )
        return RecordedState(*new, *recorded), kept

    def outputs(self, state) -> Outputs:
        return (
            super()
            .outputs(state)
            ._replace(
                log_probabilities=state.log_probabilities[:, None],
                entropies=state.entropies[:, None],
            )
        )
