"""Beam search."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.generation.samplers import Limits, Sampler, is_end

_WORST = -1e9


class BeamState(NamedTuple):
    """The open and the ended hypotheses of every prompt."""

    tokens: Any  # int (prompts, beams, size), the open hypotheses, best first
    scores: Any  # float32 (prompts, beams), their summed log-probabilities
    ended_tokens: Any  # int (prompts, beams, size), the best ended hypotheses
    ended_scores: Any  # float32 (prompts, beams), with length penalty; _WORST for none
    finished: Any  # bool (prompts,)


@dataclasses.dataclass(frozen=True)
class BeamSearch(Sampler):
    """Keeps the `num_beams` likeliest beginnings and returns the best ended one.

    A hypothesis of `n` tokens, its end included, scores `log p / n ** length_penalty`. A prompt
    is finished when `num_beams` hypotheses have ended and no open one can beat the worst of them
    at its present length (with `early_stopping`: as soon as that many have ended).

    Args:
        num_beams: int.
        length_penalty: float, above 0 prefers longer outputs.
        early_stopping: bool.

    Raises:
        ValueError: if `num_beams` is not an integer of at least 1, or `length_penalty` no number.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    beam = kt.generation.BeamSearch(num_beams=5, length_penalty=1.0)
    translator.generate("a man rides a bike .", sampler=beam)
    ```

    Source: Sutskever et al. 2014, section 3.2; length penalty: Wu et al. 2016, section 7.
    """

    num_beams: int = 5
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self):
        if not isinstance(self.num_beams, int) or self.num_beams < 1:
            raise ValueError(
                f"`num_beams` must be an integer of at least 1, received {self.num_beams!r}."
            )
        if not isinstance(self.length_penalty, (int, float)):
            raise ValueError(
                f"`length_penalty` must be a number, received {self.length_penalty!r}."
            )

    @property
    def rows_per_prompt(self) -> int:
        return self.num_beams

    def start(self, prompts: int, size: int, limits: Limits) -> BeamState:
        tokens = ops.full((prompts, self.num_beams, size), limits.pad_id, "int32")
        worst = ops.full((prompts, self.num_beams), _WORST, "float32")
        # All rows of a prompt are equal at first: only one may count.
        first = ops.cast(ops.arange(self.num_beams) == 0, "float32")
        return BeamState(tokens, worst * (1 - first), tokens, worst, ops.zeros((prompts,), "bool"))

    def advance(self, state: BeamState, logits, step, limits: Limits):
        beams = self.num_beams
        prompts, vocabulary = state.tokens.shape[0], logits.shape[-1]
        log_probabilities = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        totals = ops.reshape(log_probabilities, (prompts, beams, vocabulary))
        totals = ops.reshape(totals + state.scores[..., None], (prompts, beams * vocabulary))

        # As many more than beams as can end, so that enough stay open if all the best ones do.
        count = min((1 + max(1, len(limits.end_ids))) * beams, beams * vocabulary)
        scores, places = ops.top_k(totals, count)
        parents, chosen = places // vocabulary, ops.cast(places % vocabulary, "int32")
        tokens = _set_column(_pick(state.tokens, parents), step, chosen)
        ended = ops.logical_or(is_end(chosen, limits), step + 1 >= limits.max_new_tokens)

        length = ops.cast(step + 1, "float32") ** self.length_penalty
        counts = ops.logical_and(ended, ops.arange(count) < beams)
        # With more beams than beginnings there are, the rest of the rows hold none.
        counts = ops.logical_and(counts, scores > _WORST / 2)
        counts = ops.logical_and(counts, ops.logical_not(state.finished)[:, None])
        ended_scores = ops.where(counts, scores / length, _WORST)
        ended_scores = ops.concatenate([state.ended_scores, ended_scores], axis=1)
        ended_tokens = ops.concatenate([state.ended_tokens, tokens], axis=1)
        ended_scores, kept = ops.top_k(ended_scores, beams)
        ended_tokens = _pick(ended_tokens, kept)

        scores, kept = ops.top_k(ops.where(ended, _WORST, scores), beams)
        parents = ops.take_along_axis(parents, kept, axis=1)
        enough = ended_scores[:, -1] > _WORST / 2
        if not self.early_stopping:
            enough = ops.logical_and(enough, ended_scores[:, -1] >= scores[:, 0] / length)
        finished = ops.logical_or(state.finished, enough)
        rows = parents + beams * ops.arange(prompts, dtype=parents.dtype)[:, None]
        state = BeamState(_pick(tokens, kept), scores, ended_tokens, ended_scores, finished)
        return state, ops.reshape(rows, (prompts * beams,))

    def last_tokens(self, state: BeamState, step):
        prompts, beams = state.tokens.shape[:2]
        column = ops.slice(state.tokens, (0, 0, step), (prompts, beams, 1))
        return ops.reshape(column, (prompts * beams,))

    def finished(self, state: BeamState):
        return state.finished

    def result(self, state: BeamState):
        return state.ended_tokens[:, 0]


def _pick(hypotheses, indices):
    """Of `(prompts, beams, size)` the beams `indices`, `(prompts, count)`."""
    return ops.take_along_axis(hypotheses, indices[..., None], axis=1)


def _set_column(hypotheses, step, tokens):
    return ops.slice_update(hypotheses, (0, 0, step), tokens[..., None])
