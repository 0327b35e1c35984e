"""Contrastive search."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.checking import MOST_TOKENS, check_fields, check_float, check_int
from keras_transformer.generation.logits import NEVER
from keras_transformer.generation.samplers import (
    Limits,
    Prompt,
    Sampler,
    is_end,
    named,
    put_at,
)
from keras_transformer.kernels.selection import argmax, log_sum, top_k

_FORBIDDEN = -1.0


class ContrastiveState(NamedTuple):
    """The tokens so far, the candidates for the next one, and all states before them."""

    tokens: Any  # int (rows, size)
    count: Any  # int (rows,)
    ended: Any  # bool (rows,)
    candidates: Any  # int (rows, k)
    probabilities: Any  # float32 (rows, k), of the candidates; -1 for one that rules forbid
    prompt: Any  # float32 (rows, hidden_dim, length), states of length 1, zeros for padding
    in_prompt: Any  # bool (rows, length), which of them are states
    past: Any  # float32 (rows, hidden_dim, size), those of the tokens so far


@named("contrastive")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Contrastive(Sampler):
    """Chooses likely tokens whose states differ from all before: coherent, not repetitive.

    Of the `top_k` likeliest tokens that with the highest `(1 - a) p - a s` is taken, where `a` is
    `penalty_alpha`, `p` the token's probability and `s` the greatest cosine similarity of its
    state to those before it. The candidates are branches of one row: each step runs the model on
    all of them.

    Args:
        top_k: int, number of candidates.
        penalty_alpha: float from 0 to 1. With 0 this is greedy search.

    Raises:
        ValueError: for values that are out of range.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    sampler = kt.generation.Contrastive(top_k=4, penalty_alpha=0.6)
    translator.generate("a man rides a bike .", sampler=sampler)
    ```

    Source: Su et al. 2022, "A Contrastive Framework for Neural Text Generation", section 3.2.
    """

    top_k: int = 4
    penalty_alpha: float = 0.6

    reads_prompt: ClassVar[bool] = True
    takes_guidance: ClassVar[bool] = False
    extra_steps: ClassVar[int] = 1  # the first one only names candidates
    sized: ClassVar[dict[str, int]] = {"tokens": -1, "past": -1}

    def __post_init__(self):
        check_fields(self, check_int, "top_k", at_least=2, at_most=MOST_TOKENS)
        check_fields(self, check_float, "penalty_alpha", at_least=0, at_most=1)

    @property
    def branches(self) -> int:
        return self.top_k

    def start(self, rows: int, size: int, limits: Limits, prompt: Prompt) -> ContrastiveState:
        states = _normalized(prompt.hidden) * ops.cast(prompt.mask, "float32")[..., None]
        row = super().start(rows, size, limits, prompt)
        return ContrastiveState(
            row.tokens,
            row.count - 1,  # one behind: the candidates of the first step are not chosen from yet
            row.ended,
            ops.zeros((rows, self.top_k), "int32"),
            ops.zeros((rows, self.top_k), "float32"),
            ops.transpose(states, (0, 2, 1)),
            ops.cast(prompt.mask, "bool"),
            ops.zeros((rows, states.shape[-1], size), "float32"),
        )

    def advance(self, state: ContrastiveState, logits, hidden, limits: Limits):
        rows, k = state.candidates.shape
        states = _normalized(hidden)
        written = ops.arange(state.tokens.shape[1], dtype="int32") < state.count[:, None]
        similarity = ops.maximum(
            _greatest(ops.matmul(states, state.prompt), state.in_prompt),
            _greatest(ops.matmul(states, state.past), written),
        )
        alpha = self.penalty_alpha
        scores = (1 - alpha) * state.probabilities - alpha * similarity
        best = argmax(ops.where(state.probabilities >= 0, scores, -2.0))[:, None]

        choosing = ops.logical_and(state.count >= 0, ops.logical_not(self.finished(state, limits)))
        chosen = ops.take_along_axis(state.candidates, best, axis=1)[:, 0]
        place = ops.maximum(state.count, 0)
        tokens = put_at(state.tokens, place, chosen, choosing)
        ended = ops.logical_or(state.ended, ops.logical_and(choosing, is_end(chosen, limits)))
        chosen_state = ops.take_along_axis(states, best[..., None], axis=1)[:, 0]
        past = put_at(state.past, place, chosen_state, choosing)

        # The next candidates are those of the branch that was chosen.
        following = ops.take_along_axis(logits, best[..., None], axis=1)[:, 0]
        # Chosen by their logits: probabilities near 1 are equal where logits are not.
        likeliest, candidates = top_k(following, k)
        largest, above = log_sum(following)
        chances = ops.exp(likeliest - largest[:, None] - above[:, None])
        # One that rules forbid, and not one whose probability is too small for float32.
        chances = ops.where(likeliest > NEVER / 2, chances, _FORBIDDEN)
        count = state.count + ops.cast(ops.logical_or(choosing, state.count < 0), "int32")
        new = ContrastiveState(tokens, count, ended, candidates, chances, *state[5:7], past)
        return new, ops.broadcast_to(best, (rows, k))

    def next_tokens(self, state: ContrastiveState):
        return state.candidates

    def counts(self, state: ContrastiveState):
        return ops.maximum(state.count, 0)


def _greatest(similarities, real):
    """Return the greatest cosine similarity `(rows, k)`, of places that hold a state."""
    return ops.max(ops.where(real[:, None], similarities, -1.0), axis=-1)


def _normalized(states):
    states = ops.cast(states, "float32")
    length = ops.sqrt(ops.sum(ops.square(states), axis=-1, keepdims=True))
    return states / ops.maximum(length, 1e-12)
