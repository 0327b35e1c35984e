"""Beam search, plain or in diverse groups."""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.samplers.samplers import (
    Outputs,
    Prompt,
    RowLimits,
    Sampler,
    is_end,
    named,
    put_at,
)
from keras_transformer.kernels.indexing import lines_at
from keras_transformer.kernels.selection import top_k
from keras_transformer.kernels.values import full_tensor
from keras_transformer.support.checking import (
    LARGEST_PENALTY,
    MOST_TOKENS,
    check_fields,
    check_float,
    check_int,
)

_WORST = -1e9
# Score of an absent ended hypothesis, and lowest score of a real one: with a negative length
# penalty scores grow with the length.
_NONE, _LOWEST = -3e38, -1e37
_STEEPEST = 100.0


class BeamState(NamedTuple):
    """Open and ended hypotheses of one group of beams, for every prompt."""

    tokens: Any  # int (rows, beams, size), the open hypotheses, best first
    scores: Any  # float32 (rows, beams), their summed log-probabilities
    ended_tokens: Any  # int (rows, beams, size), the best ended hypotheses
    ended_counts: Any  # int (rows, beams)
    ended_scores: Any  # float32 (rows, beams), with length penalty; _NONE if absent
    count: Any  # int (rows,), tokens of the open hypotheses
    finished: Any  # bool (rows,)


@named("beam")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class BeamSearch(Sampler):
    """Keeps the `num_beams` likeliest hypotheses, and returns the best that have ended.

    A hypothesis of `n` tokens, its end included, scores `log p / n ** length_penalty`. A prompt is
    finished when `num_beams` hypotheses have ended and no open hypothesis can beat the worst of
    them. Groups of beams search one after the other, and a token's score is lowered by
    `diversity_penalty` for each time that earlier groups have chosen it in the same step.

    Args:
        num_beams: int, at most the size of the vocabulary.
        length_penalty: float, above 0 prefers longer outputs.
        early_stopping: bool or `"never"`, the best score that an open hypothesis is assumed to
            reach. False assumes the score at its present length, `"never"` the score at the
            greatest length if longer is better. With True a prompt is finished as soon as
            `num_beams` hypotheses have ended.
        num_groups: int, a divisor of `num_beams`. Defaults to 1, plain beam search.
        diversity_penalty: float, above 0 if there are several groups.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    beam = kt.generation.BeamSearch(num_beams=5, length_penalty=1.0)
    translator.generate("a man rides a bike .", sampler=beam)
    ```

    Source: Sutskever et al. 2014, section 3.2; length penalty: Wu et al. 2016, section 7; groups:
    Vijayakumar et al. 2016, "Diverse Beam Search", section 3.
    """

    num_beams: int = 5
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_groups: int = 1
    diversity_penalty: float = 0.0

    streams: ClassVar[bool] = False
    ranks_log_probabilities: ClassVar[bool] = True
    sized: ClassVar[dict[str, int]] = {"tokens": -1, "ended_tokens": -1}

    def __post_init__(self):
        check_fields(self, check_int, "num_beams", "num_groups", at_least=1, at_most=MOST_TOKENS)
        steep = {"at_least": -_STEEPEST, "at_most": _STEEPEST}
        check_fields(self, check_float, "length_penalty", **steep)
        check_fields(self, check_float, "diversity_penalty", at_least=0, at_most=LARGEST_PENALTY)
        check_fields(self, _check_early_stopping, "early_stopping")
        if self.num_beams % self.num_groups:
            raise ValueError(
                f"`num_beams` must be a multiple of `num_groups`, received {self.num_beams} and "
                f"{self.num_groups}."
            )
        if (self.num_groups > 1) != (self.diversity_penalty > 0):
            raise ValueError(
                "Groups and `diversity_penalty` go together: give both, `num_groups` above 1 and "
                f"a penalty above 0, or neither. Received {self.num_groups} and "
                f"{self.diversity_penalty}."
            )

    @property
    def branches(self) -> int:
        return self.num_beams

    def start(
        self, rows: int, size: int, limits: RowLimits, prompt: Prompt
    ) -> tuple[BeamState, ...]:
        beams = self.num_beams // self.num_groups
        tokens = full_tensor((rows, beams, size), limits.pad_id, "int32")
        worst = full_tensor((rows, beams), _WORST, "float32")
        # All branches of a prompt are equal at first, so only one may count.
        first = ops.cast(ops.arange(beams) == 0, "float32")
        none = ops.zeros((rows, beams), "int32")
        count, finished = ops.zeros((rows,), "int32"), ops.zeros((rows,), "bool")
        ended = full_tensor((rows, beams), _NONE, "float32")
        group = BeamState(tokens, worst * (1 - first), tokens, none, ended, count, finished)
        return (group,) * self.num_groups

    def advance(
        self, state: tuple[BeamState, ...], logits, hidden, limits: RowLimits, log_sum=None
    ):
        beams, vocabulary = self.num_beams // self.num_groups, logits.shape[-1]
        groups, parents, used = [], [], None
        for i, group in enumerate(state):
            own = logits[:, i * beams : (i + 1) * beams]
            largest, above = (part[:, i * beams : (i + 1) * beams] for part in log_sum)
            if used is not None:
                own = own - self.diversity_penalty * used[:, None]
            choosing = ops.cast(ops.logical_not(group.finished), "float32")[:, None]
            group, chosen_parents = self._advance_group(
                group, own, largest, group.scores - above, limits
            )
            groups.append(group)
            parents.append(chosen_parents + i * beams)
            if i + 1 < len(state):
                here = ops.one_hot(_last(group), vocabulary, dtype="float32")
                here = ops.sum(here, axis=1) * choosing
                used = here if used is None else used + here
        return tuple(groups), ops.concatenate(parents, axis=1)

    def _advance_group(self, state: BeamState, logits, largest, before, limits: RowLimits):
        """Advance by `logits`, `(rows, beams, vocabulary_size)`, and scores of their beams.

        A token's score is its logit minus `largest` plus `before`, each `(rows, beams)`.
        """
        rows, beams, vocabulary = logits.shape
        # Enough candidates to leave `beams` open hypotheses even if all of the best ones end.
        count = min((1 + max(1, len(limits.end_ids))) * beams, beams * vocabulary)
        own = min(count, vocabulary)
        logits, tokens = top_k(logits, own)  # the best of each beam include the best overall
        totals = logits - largest[..., None] + before[..., None]
        totals = ops.reshape(totals, (rows, beams * own))
        scores, places = top_k(totals, count)
        parents = places // own
        chosen = ops.take_along_axis(ops.reshape(tokens, (rows, beams * own)), places, axis=1)
        tokens = put_at(lines_at(state.tokens, parents), state.count, chosen)
        length = state.count + 1
        full = length >= limits.max_new_tokens
        at_end = is_end(chosen, limits)
        ended = ops.logical_or(at_end, full[:, None])

        penalty = self._penalty(length)[:, None]
        counts = ops.logical_and(ended, ops.arange(count) < beams)
        # If there are fewer candidates than beams, the other branches hold no hypothesis.
        counts = ops.logical_and(counts, scores > _WORST / 2)
        counts = ops.logical_and(counts, ops.logical_not(state.finished)[:, None])
        ended_scores = ops.where(counts, ops.maximum(scores / penalty, _LOWEST), _NONE)
        ended_scores = ops.concatenate([state.ended_scores, ended_scores], axis=1)
        ended_tokens = ops.concatenate([state.ended_tokens, tokens], axis=1)
        lengths = ops.broadcast_to(length[:, None], (rows, count))
        ended_counts = ops.concatenate([state.ended_counts, lengths], axis=1)
        ended_scores, kept = top_k(ended_scores, beams)
        ended_counts = ops.take_along_axis(ended_counts, kept, axis=1)
        ended_counts = ops.where(ended_scores > _NONE / 2, ended_counts, 0)

        # Hypotheses of full length stay open too: later groups are penalized for their tokens.
        scores, open_ = top_k(ops.where(at_end, _WORST, scores), beams)
        reachable = penalty
        if self.early_stopping == "never" and self.length_penalty > 0:
            reachable = self._penalty(limits.max_new_tokens)[:, None]
        enough = ended_scores[:, -1] > _NONE / 2
        if self.early_stopping is not True:
            better = ended_scores[:, -1] >= (scores / reachable)[:, 0]
            enough = ops.logical_and(enough, better)
        finished = ops.logical_or(state.finished, ops.logical_or(enough, full))
        new = BeamState(
            lines_at(tokens, open_),
            scores,
            lines_at(ended_tokens, kept),
            ended_counts,
            ended_scores,
            ops.where(state.finished, state.count, length),
            finished,
        )
        return new, ops.take_along_axis(parents, open_, axis=1)

    def _penalty(self, length):
        """Return the divisor of scores at this length, limited so that it is not 0 or infinite."""
        return ops.clip(ops.cast(length, "float32") ** self.length_penalty, 1e-30, 1e30)

    def grow(self, state: tuple[BeamState, ...], extra: int, pad_id: int):
        return tuple(super(BeamSearch, self).grow(group, extra, pad_id) for group in state)

    def next_tokens(self, state: tuple[BeamState, ...]):
        return ops.concatenate([_last(group) for group in state], axis=1)

    def counts(self, state: tuple[BeamState, ...]):
        return state[0].count

    def finished(self, state: tuple[BeamState, ...], limits: RowLimits):
        every = functools.reduce(ops.logical_and, [group.finished for group in state])
        return ops.logical_or(limits.max_new_tokens <= 0, every)

    def outputs(self, state: tuple[BeamState, ...]) -> Outputs:
        scores = ops.concatenate([group.ended_scores for group in state], axis=1)
        scores, order = top_k(scores, self.num_beams)
        counts = ops.concatenate([group.ended_counts for group in state], axis=1)
        tokens = ops.concatenate([group.ended_tokens for group in state], axis=1)
        return Outputs(lines_at(tokens, order), ops.take_along_axis(counts, order, axis=1), scores)


def _check_early_stopping(name: str, value: Any) -> bool | str:
    if not isinstance(value, (bool, np.bool_)) and str(value) != "never":
        raise ValueError(f'`{name}` must be True, False or "never", received {value!r}.')
    return value if value == "never" else bool(value)


def _last(state: BeamState):
    """Return the last token of each open hypothesis, int `(rows, beams)`."""
    last = ops.maximum(state.count - 1, 0)
    last = ops.broadcast_to(last[:, None, None], (*state.tokens.shape[:2], 1))
    return ops.take_along_axis(state.tokens, last, axis=2)[..., 0]
