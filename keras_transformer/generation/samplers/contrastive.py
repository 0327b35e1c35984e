"""Contrastive search, which avoids tokens with hidden states like earlier ones."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.generation.samplers.samplers import (
    NEVER,
    Prompt,
    RowLimits,
    Sampler,
    is_end,
    named,
    put_at,
)
from keras_transformer.kernels.selection import argmax, log_sum, top_k
from keras_transformer.support.checking import MOST_TOKENS, check_fields, check_float, check_int

_FORBIDDEN = -1.0


class ContrastiveState(NamedTuple):
    """Tokens so far, candidates for the next token, and all earlier hidden states."""

    tokens: Any  # int (rows, size)
    count: Any  # int (rows,)
    ended: Any  # bool (rows,)
    candidates: Any  # int (rows, k)
    probabilities: Any  # float32 (rows, k), of the candidates; -1 if banned by rules
    prompt: Any  # float32 (rows, hidden_dim, length), states of length 1, zeros for padding
    in_prompt: Any  # bool (rows, length), which states of the prompt are real
    past: Any  # float32 (rows, hidden_dim, size), states of the tokens so far


@named("contrastive")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Contrastive(Sampler):
    """Chooses likely tokens whose hidden states differ from all earlier ones.

    Texts stay coherent without repeating themselves. Among the `top_k` likeliest tokens the one
    with the highest `(1 - a) p - a s` is chosen, where `a` is `penalty_alpha`, `p` the token's
    probability, and `s` the greatest cosine similarity of its hidden state to earlier ones. The
    candidates are branches of one row: each step runs the model on all of them.

    Args:
        top_k: int, number of candidates.
        penalty_alpha: float from 0 to 1. With 0 this is greedy search.

    Raises:
        ValueError: if a value is out of range.

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
    extra_steps: ClassVar[int] = 1  # the first step only finds candidates
    sized: ClassVar[dict[str, int]] = {"tokens": -1, "past": -1}

    def __post_init__(self):
        check_fields(self, check_int, "top_k", at_least=2, at_most=MOST_TOKENS)
        check_fields(self, check_float, "penalty_alpha", at_least=0, at_most=1)

    @property
    def branches(self) -> int:
        return self.top_k

    def start(self, rows: int, size: int, limits: RowLimits, prompt: Prompt) -> ContrastiveState:
        states = _normalized(prompt.hidden) * ops.cast(prompt.mask, "float32")[..., None]
        row = super().start(rows, size, limits, prompt)
        return ContrastiveState(
            row.tokens,
            row.count - 1,  # one less, since the first step only finds candidates
            row.ended,
            ops.zeros((rows, self.top_k), "int32"),
            ops.zeros((rows, self.top_k), "float32"),
            ops.transpose(states, (0, 2, 1)),
            ops.cast(prompt.mask, "bool"),
            ops.zeros((rows, states.shape[-1], size), "float32"),
        )

    def advance(self, state: ContrastiveState, logits, hidden, limits: RowLimits):
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

        # The next candidates follow the branch that was chosen.
        following = ops.take_along_axis(logits, best[..., None], axis=1)[:, 0]
        # Ranked by logits: probabilities near 1 can be equal where logits differ.
        likeliest, candidates = top_k(following, k)
        largest, above = log_sum(following)
        chances = ops.exp(likeliest - largest[:, None] - above[:, None])
        # Marks candidates that rules forbid, not those whose probability underflows float32.
        chances = ops.where(likeliest > NEVER / 2, chances, _FORBIDDEN)
        count = state.count + ops.cast(ops.logical_or(choosing, state.count < 0), "int32")
        new = ContrastiveState(tokens, count, ended, candidates, chances, *state[5:7], past)
        return new, ops.broadcast_to(best, (rows, k))

    def next_tokens(self, state: ContrastiveState):
        return state.candidates

    def counts(self, state: ContrastiveState):
        return ops.maximum(state.count, 0)


def _greatest(similarities, real):
    """Return the greatest cosine similarity `(rows, k)` over the places of real states."""
    return ops.max(ops.where(real[:, None], similarities, -1.0), axis=-1)


def _normalized(states):
    states = ops.cast(states, "float32")
    length = ops.sqrt(ops.sum(ops.square(states), axis=-1, keepdims=True))
    return states / ops.maximum(length, 1e-12)
