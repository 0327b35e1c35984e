"""Speculative decoding, which drafts several tokens and checks them in one pass of the model."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.generation.cache import has_states
from keras_transformer.generation.samplers.samplers import (
    Outputs,
    Prompt,
    RowLimits,
    Sampler,
    apply_temperature,
    draw,
    is_end,
    named,
)
from keras_transformer.kernels.selection import argmax
from keras_transformer.models.backbone import Backbone
from keras_transformer.support.checking import MOST_TRACED, check_fields, check_float, check_int

# Indices of the random numbers of a token.
_ACCEPT, _CHOOSE, _DRAFT = range(3)


class SpeculativeState(NamedTuple):
    """New tokens of every row, and the drafts of the current step."""

    tokens: Any  # int (rows, size)
    count: Any  # int (rows,)
    ended: Any  # bool (rows,)
    passes: Any  # int (rows,), how often the model ran
    text: Any  # int (rows, prompt + size), prompts and new tokens; () with a draft model
    length: Any  # int (rows,), lengths of the prompts; () with a draft model
    drafts: Any  # int (rows, num_draft_tokens), -1 if missing; (rows, 0) between steps
    chances: Any = ()  # float32 (rows, num_draft_tokens, vocabulary_size), drafts' distributions


@named("speculative")
@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Speculative(Sampler):
    """Decodes greedily or samples, in fewer passes of the model.

    Before each pass some tokens are drafted: by a smaller model, or by lookup: the tokens that
    followed an earlier occurrence of the last tokens in the prompt and its continuation. One pass
    of the model computes its own logits after each draft. The first drafts on which the model
    agrees are kept, and one token of its own is added: 1 to `num_draft_tokens + 1` tokens per pass.

    At temperature 0 the tokens equal those of `Greedy`, unless logits differ by no more than the
    rounding of a pass of another length. At higher temperatures each token has the same
    distribution as sampling from the model alone.

    Lookup suits outputs that repeat their input: summaries, answers from a text, edited code.

    Args:
        draft: a backbone with the vocabulary and the kind of the model. Defaults to None, lookup.
        num_draft_tokens: int, number of tokens drafted for a pass.
        max_ngram: int, greatest number of last tokens whose earlier occurrence is looked up.
        temperature: float, divides the logits before a token is drawn. 0 takes the likeliest.

    Raises:
        ValueError: if a value is out of range or the draft is not a decoder. When generation
            starts: if the draft has another vocabulary or is of another kind than the model, if one
            of them has recurrent mixers, or if rules change the logits.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Engine, Settings, Speculative

    backbone = kt.CausalLM.from_preset("gpt_tiny_shakespeare").backbone
    inputs = {"token_ids": np.array([[3, 4, 5, 3, 4]]), "padding_mask": np.ones((1, 5), bool)}
    settings = Settings(Speculative(num_draft_tokens=2))
    outputs = Engine(backbone).generate(inputs, settings, max_new_tokens=6)
    assert outputs.counts.tolist() == [[6]] and 2 <= outputs.passes[0] <= 6
    ```

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding",
    sections 2.1 to 2.3; lookup: Saxena 2023, "Prompt Lookup Decoding".
    """

    draft: Any = None
    num_draft_tokens: int = 4
    max_ngram: int = 3
    temperature: float = 0.0

    takes_guidance: ClassVar[bool] = False
    sized: ClassVar[dict[str, int]] = {"tokens": -1, "text": -1}

    def __post_init__(self):
        counts = ("num_draft_tokens", "max_ngram")
        check_fields(self, check_int, *counts, at_least=1, at_most=MOST_TRACED)
        check_fields(self, check_float, "temperature", at_least=0)
        if self.draft is None:
            return
        if not isinstance(self.draft, Backbone):
            raise ValueError(
                f"`draft` must be a backbone, received {type(self.draft).__name__}. If it is a "
                "task, give its `backbone`."
            )
        if self.draft.config.kind == "encoder":
            raise ValueError(
                "`draft` must be a backbone with a decoder, received one of kind 'encoder'."
            )

    @property
    def reads_prompt(self) -> bool:
        return self.draft is None

    @property
    def step_length(self) -> int:
        return self.num_draft_tokens + 1

    @property
    def draws(self) -> int:
        if self.temperature == 0:
            return 0
        return 2 if self.draft is None else 3

    @property
    def models(self) -> tuple:
        return () if self.draft is None else (self.draft,)

    def check(self, backbone, rules) -> None:
        if rules is not None:
            raise ValueError(
                "Rules that change the logits do not go with `Speculative`. Use another sampler, "
                "or leave the rules out: `rules=Rules()` also drops a checkpoint's rules."
            )
        for name, model in (("The model", backbone), ("`draft`", self.draft)):
            if model is not None and has_states(model):
                raise ValueError(
                    f"{name} has recurrent mixers, whose states cannot lose a draft that was "
                    "rejected: `Speculative` needs models of attention alone. Use another sampler, "
                    "such as Greedy()."
                )
        if self.draft is None:
            return
        for name in ("vocabulary_size", "kind"):
            mine, theirs = getattr(self.draft.config, name), getattr(backbone.config, name)
            if mine != theirs:
                raise ValueError(
                    f"`draft` has {name}={mine!r}, but the model that it drafts for has "
                    f"{theirs!r}. Both must be the same."
                )

    def start(self, rows: int, size: int, limits: RowLimits, prompt: Prompt) -> SpeculativeState:
        row = super().start(rows, size, limits, prompt)
        text = length = ()
        if self.draft is None:
            text = ops.concatenate([ops.cast(prompt.tokens, "int32"), row.tokens], axis=1)
            length = ops.sum(ops.cast(prompt.mask, "int32"), axis=1)
        nothing = ops.zeros((rows, 0), "int32")
        return SpeculativeState(*row, ops.zeros((rows,), "int32"), text, length, nothing)

    def propose(self, state: SpeculativeState, cache, limits: RowLimits):
        if self.draft is None:
            lengths = state.length + state.count
            drafts = look_up(state.text, lengths, self.num_draft_tokens, self.max_ngram)
            return state._replace(drafts=drafts), cache
        # One step more than drafts, so that both caches hold the same tokens.
        token, drafts, chances = self.next_tokens(state), [], []
        numbers = self._numbers(state.count, limits)
        for i in range(self.step_length):
            hidden, cache = self.draft(self.draft.step_inputs(token), cache=cache)
            if i == self.num_draft_tokens:
                break
            logits = ops.cast(self.draft.logits(hidden[:, 0]), "float32")
            if self.temperature == 0:
                token = argmax(logits)[:, None]
            else:
                chances.append(ops.softmax(apply_temperature(logits, self.temperature), axis=-1))
                token = draw(chances[-1], numbers[:, i, _DRAFT])[:, None]
            drafts.append(token)
        chances = ops.stack(chances, axis=1) if chances else ()
        return state._replace(drafts=ops.concatenate(drafts, axis=1), chances=chances), cache

    def next_tokens(self, state: SpeculativeState):
        drafts = ops.maximum(state.drafts, 0)
        return ops.concatenate([super().next_tokens(state), drafts], axis=1)

    def advance(self, state: SpeculativeState, logits, hidden, limits: RowLimits):
        judge = self._compare if self.temperature == 0 else self._sample
        chosen, accepted = judge(state, logits, limits)
        places = ops.arange(logits.shape[1], dtype="int32")[None]
        # The number of tokens of `chosen` to keep: the accepted drafts and one more, up to the
        # limit or an end id.
        number = ops.minimum(accepted + 1, limits.max_new_tokens - state.count)
        ends = ops.logical_and(is_end(chosen, limits), places < number[:, None])
        end = ops.min(ops.where(ends, places, logits.shape[1]), axis=1)
        open_ = ops.logical_not(self.finished(state, limits))
        number = ops.where(open_, ops.minimum(number, end + 1), 0)
        ended = ops.logical_and(open_, end < logits.shape[1])
        text = state.text
        if self.draft is None:
            text = put_run(text, state.length + state.count, chosen, number)
        new = SpeculativeState(
            put_run(state.tokens, state.count, chosen, number),
            state.count + number,
            ops.logical_or(state.ended, ended),
            state.passes + ops.cast(open_, "int32"),
            text,
            state.length,
            state.drafts[:, :0],
        )
        # The cache keeps the token before the drafts and the accepted drafts.
        return new, number if state.drafts.shape[1] else None

    def _compare(self, state: SpeculativeState, logits, limits: RowLimits):
        """Return the likeliest tokens, int `(rows, length)`, and how many of them were drafted."""
        chosen = argmax(logits)
        return chosen, _leading(state.drafts == chosen[:, :-1])

    def _sample(self, state: SpeculativeState, logits, limits: RowLimits):
        """Return accepted drafts and the token after them, int `(rows, length)`, and their number.

        Source: Leviathan et al. 2023, section 2.3 and algorithm 1.
        """
        length, vocabulary = logits.shape[1:]
        numbers = self._numbers(state.count, limits)
        chances = ops.softmax(apply_temperature(logits, self.temperature), axis=-1)
        drafts, drafted = state.drafts, state.chances
        if isinstance(drafted, tuple):  # looked up: a draft has probability 1
            ids = ops.arange(vocabulary, dtype="int32")
            drafted = ops.cast(ids[None, None] == drafts[..., None], "float32")
        ids = ops.maximum(drafts, 0)[..., None]
        mine = ops.take_along_axis(chances[:, :-1], ids, axis=2)[..., 0]
        theirs = ops.take_along_axis(drafted, ids, axis=2)[..., 0]
        agreed = numbers[:, : length - 1, _ACCEPT] * theirs < mine
        accepted = _leading(ops.logical_and(agreed, drafts >= 0))
        # The token after the accepted drafts is one that the model chooses more often than the
        # draft.
        place = accepted[:, None, None]
        drafted = ops.pad(drafted, ((0, 0), (0, 1), (0, 0)))
        mine = ops.take_along_axis(chances, place, axis=1)[:, 0]
        rest = ops.maximum(mine - ops.take_along_axis(drafted, place, axis=1)[:, 0], 0.0)
        number = ops.take_along_axis(numbers, place, axis=1)[:, 0, _CHOOSE]
        behind = ops.arange(length, dtype="int32")[None] >= accepted[:, None]
        drafts = ops.pad(drafts, ((0, 0), (0, 1)))
        # A draft that was rejected through rounding alone leaves no rest: `draw` decides by the
        # same sum that it draws from.
        token = draw(rest, number, instead=mine)
        return ops.where(behind, token[:, None], drafts), accepted

    def _numbers(self, count, limits: RowLimits):
        """Return the random numbers of a step's tokens, `(rows, step_length, draws)`."""
        if self.draws == 0:
            return None
        # The random numbers of a token do not depend on the step: a rejected draft does not
        # influence the tokens before it, so its numbers can be used again.
        uniforms = limits.uniforms
        uniforms = ops.reshape(uniforms, (uniforms.shape[0], -1, self.draws))
        places = count[:, None] + ops.arange(self.step_length, dtype="int32")[None]
        places = ops.minimum(places, uniforms.shape[1] - 1)
        return ops.take_along_axis(uniforms, places[..., None], axis=1)

    def outputs(self, state: SpeculativeState) -> Outputs:
        return super().outputs(state)._replace(passes=state.passes)


def put_run(tokens, places, values, counts):
    """Write the first `counts` of values `(rows, length)` at `places` of tokens `(rows, size)`."""
    index = ops.arange(tokens.shape[1], dtype="int32")[None] - places[:, None]
    written = ops.logical_and(index >= 0, index < counts[:, None])
    index = ops.clip(index, 0, values.shape[1] - 1)
    return ops.where(written, ops.take_along_axis(values, index, axis=1), tokens)


def _leading(hits):
    """Count the leading True values of `(rows, length)`, int32 `(rows,)`."""
    return ops.cast(ops.sum(ops.cumprod(ops.cast(hits, "int32"), axis=1), axis=1), "int32")


def look_up(texts, lengths, count: int, max_ngram: int):
    """Guess the next tokens from an earlier occurrence of a text's last ones, `(rows, count)`.

    The longest match of the last tokens counts, up to `max_ngram` of them, and among equally long
    matches the last one. A copy that reaches the end of the text continues with the copied tokens:
    a text that repeats a part is expected to go on repeating it. Rows without a match are -1.
    """
    texts = ops.cast(ops.convert_to_tensor(texts), "int32")
    lengths = ops.cast(ops.convert_to_tensor(lengths), "int32")[:, None]
    size = texts.shape[1]
    places = ops.arange(size, dtype="int32")[None]
    # How many tokens before and at each place equal the last tokens of the text.
    same = ops.logical_and(places < lengths - 1, places >= 0)
    matched = ops.zeros_like(texts)
    for back in range(min(max_ngram, size)):
        last = ops.take_along_axis(texts, ops.maximum(lengths - 1 - back, 0), axis=1)
        shifted = ops.pad(texts[:, : size - back], ((0, 0), (back, 0)), constant_values=-1)
        same = ops.logical_and(same, shifted == last)
        matched = matched + ops.cast(same, "int32")
    # The longest match, and among equally long ones the last, combined in one number.
    best = ops.max(matched * size + places, axis=1, keepdims=True)
    found, start = best >= size, best % size + 1
    period = ops.maximum(lengths - start, 1)
    steps = ops.arange(count, dtype="int32")[None] % period
    guessed = ops.take_along_axis(texts, ops.minimum(start + steps, size - 1), axis=1)
    return ops.where(found, guessed, -1)
