"""Rules, which change the scores of tokens before a sampler chooses among them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.rules import banning
from keras_transformer.generation.rules.banning import BANNED
from keras_transformer.generation.samplers.samplers import (
    Prompt,
    RowLimits,
    broken,
    put_at,
    with_room,
)
from keras_transformer.kernels.values import full_tensor
from keras_transformer.support.checking import (
    LARGEST_PENALTY,
    MOST_TOKENS,
    MOST_TRACED,
    check_bool,
    check_fields,
    check_float,
    check_ids,
    check_int,
    check_words,
    describe,
    shorten,
)

# Penalty of a branch that continues although all its tokens are banned. Far larger than differences
# between a sampler's scores, but far smaller than the penalty of an absent hypothesis.
_RELUCTANCE = 1e5
# Largest factor by which the logit of an end is raised: far above the score of any other token,
# and within float32 after the multiplication.
_MOST_RAISED = 1e12


class RulesState(NamedTuple):
    """State of the rules for every row; fields that no rule needs are `()`."""

    count: Any  # int (rows,), new tokens so far
    seen: Any  # bool (rows, branches, vocabulary_size), tokens of prompt and text
    used: Any  # int (rows, branches, vocabulary_size), count of each new token
    prompt: Any  # int (rows, length), padded on the right
    prompt_lengths: Any  # int (rows,)
    tokens: Any  # int (rows, branches, size), new tokens
    place: Any  # int (rows, branches), the state of the automaton, -1 after a banned token


@dataclasses.dataclass(frozen=True)
class Rules:
    """Constraints on a generated text. Equal rules share compiled functions.

    Rules change logits, or log-probabilities for a sampler that ranks whole sequences. They are
    applied in this order: biases of sequences, penalties, bans, forced tokens, the function, the
    automaton. A banned token scores -1e30. If all tokens are banned, all bans but the automaton's
    are lifted.

    Args:
        repetition_penalty: float above 0. Positive logits of tokens that the decoder has read or
            written are divided by it, negative ones multiplied. Values above 1 discourage
            repetition.
        presence_penalty: float, subtracted from the logits of all tokens generated before.
        frequency_penalty: float, subtracted from a token's logit once for each time that the token
            was generated before.
        no_repeat_ngram_size: int, length of the token sequences that may not occur twice, including
            sequences in the prompt of a decoder. 0 disables it.
        bad_words: sequences of ids that may not be completed. A lone end id is ignored.
        bad_first: ids, end ids included, that the first new token may not be.
        min_new_tokens: int, a text cannot end before this many tokens.
        forced_prefix: ids, the first new tokens. They score 0.
        function: called as `function(logits, tokens, counts)`, with logits float32
            `(rows, branches, vocabulary_size)`, the new tokens so far, int32
            `(rows, branches, size)` filled up with pads, and their number, int32 `(rows,)`. Returns
            new logits. It is traced into a compiled loop, so it must consist of `keras.ops` and
            runs in Python only during compilation; pass the same function again, not a new lambda.
            It sees banned tokens and can allow them; -infinity bans a token. NaN or +infinity is an
            error.
        automaton: `TokenAutomaton` of the allowed texts. Its bans are never lifted, and a text is
            complete at its limit if the automaton allows one that is short enough.
        forced_end: id, the last token of a text that reaches its limit. It scores 0.
        renormalize: bool, turn the final scores into log-probabilities. This only changes the texts
            of beam search, which sums scores.
        sequence_bias: pairs of a sequence of ids and a float, or a dict with tuples of ids as keys.
            The float is added to the logit of a sequence's last token where the ids before it have
            just been read or written: a positive float makes the sequence likelier.
        exponential_decay_length_penalty: pair of an int `start` and a float `factor` above 0. From
            `n > start` new tokens on, the logit of an end is raised by
            `abs(logit) * (factor ** (n - start) - 1)`: a factor above 1 makes texts shorter.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Engine, Greedy, Settings
    from keras_transformer.generation.rules.rules import Rules

    backbone = kt.CausalLM.from_preset("gpt_tiny_shakespeare").backbone
    rules = Rules(no_repeat_ngram_size=1, bad_words=[[7], [8, 9]], forced_prefix=[5])
    inputs = {"token_ids": np.array([[3, 4]]), "padding_mask": np.ones((1, 2), bool)}
    tokens = Engine(backbone).generate(inputs, Settings(Greedy(), rules), 6).tokens[0, 0]
    assert tokens[0] == 5 and len({3, 4, *tokens.tolist()}) == 8
    ```

    Source: repetition: Keskar et al. 2019, section 4.1; n-grams: Paulus et al. 2018, section 2.5;
    automaton: Willard & Louf 2023, section 3.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words: Sequence[Sequence[int]] = ()
    bad_first: Sequence[int] = ()
    min_new_tokens: int = 0
    forced_prefix: Sequence[int] = ()
    function: Callable | None = None
    automaton: Any = None
    forced_end: int | None = None
    renormalize: bool = False
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Sequence[int], float]] = ()
    exponential_decay_length_penalty: tuple[int, float] | None = None

    def __post_init__(self):
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        bounds = {"at_least": -LARGEST_PENALTY, "at_most": LARGEST_PENALTY}
        check_fields(self, check_float, *names, **bounds)
        if self.repetition_penalty < 1 / LARGEST_PENALTY:
            raise ValueError(
                "`repetition_penalty` must be from 1e-6 to 1e6, and 1 disables it, "
                f"received {self.repetition_penalty}."
            )
        check_fields(self, check_int, "no_repeat_ngram_size", at_least=0, at_most=MOST_TRACED)
        check_fields(self, check_int, "min_new_tokens", at_least=0, at_most=MOST_TOKENS)
        check_fields(self, check_ids, "forced_prefix", "bad_first")
        check_fields(self, check_words, "bad_words")
        if self.forced_end is not None:
            check_fields(self, check_int, "forced_end", at_least=0)
        check_fields(self, check_bool, "renormalize")
        check_fields(self, _check_biases, "sequence_bias")
        check_fields(self, _check_length_penalty, "exponential_decay_length_penalty")
        if self.function is not None:
            _check_function(self.function)
        fields = ("transitions", "token_classes", "accepting")
        if self.automaton is not None and not all(hasattr(self.automaton, x) for x in fields):
            raise ValueError(f"`automaton` must be a TokenAutomaton, received {self.automaton!r}.")

    @property
    def forced_tokens(self) -> int:
        """Number of forced tokens at the beginning and the end of a text."""
        return len(self.forced_prefix) + (self.forced_end is not None)

    def check_limit(self, limit: int) -> None:
        """Raise ValueError if `limit` new tokens have no room for the forced tokens."""
        if self.forced_tokens > limit:
            raise ValueError(
                f"The rules force {self.forced_tokens} tokens (`forced_prefix`, `forced_end`), but "
                f"the limit of new tokens is {limit}: raise `max_new_tokens` or `max_length`, or "
                "force fewer tokens."
            )

    @property
    def reads_prompt(self) -> bool:
        """Whether the tokens of the prompt matter, all of which `start` then needs."""
        return self.repetition_penalty != 1 or self._reads_text

    @property
    def _reads_text(self) -> bool:
        """Whether the order of earlier tokens matters."""
        sequences = (*self.bad_words, *(ids for ids, _ in self.sequence_bias))
        return self.no_repeat_ngram_size > 0 or any(len(ids) > 1 for ids in sequences)

    def with_automaton(self, automaton) -> "Rules":
        """Return a copy with another automaton, a `TokenAutomaton` or its `AutomatonTables`."""
        return dataclasses.replace(self, automaton=automaton)

    def check(self, vocabulary_size: int) -> None:
        """Raise ValueError if the rules name tokens that a model does not have."""
        for name, ids in (
            ("forced_prefix", self.forced_prefix),
            ("bad_first", self.bad_first),
            ("bad_words", [token for word in self.bad_words for token in word]),
            ("sequence_bias", [token for word, _ in self.sequence_bias for token in word]),
            ("forced_end", () if self.forced_end is None else (self.forced_end,)),
        ):
            if ids and max(ids) >= vocabulary_size:
                raise ValueError(
                    f"`{name}` has the id {max(ids)}, but the model's vocabulary has only "
                    f"{vocabulary_size} tokens: ids are from 0 to {vocabulary_size - 1}."
                )

    def start(
        self, branches: int, size: int, vocabulary_size: int, prompt: Prompt, limits: RowLimits
    ) -> RulesState:
        """Return the state before the first of `size` new tokens, with `branches` per prompt."""
        self.check(vocabulary_size)
        rows = prompt.tokens.shape[0]
        tokens, mask = ops.cast(prompt.tokens, "int32"), ops.cast(prompt.mask, "bool")
        lengths = ops.sum(ops.cast(mask, "int32"), axis=1)
        seen = used = new = place = ()
        if self.repetition_penalty != 1:
            seen = banning.marks(tokens[:, None], mask[:, None], vocabulary_size)
            seen = ops.tile(seen, (1, branches, 1))
        if self.presence_penalty or self.frequency_penalty:
            used = ops.zeros((rows, branches, vocabulary_size), "int32")
        if self._reads_text or self.function is not None:
            new = full_tensor((rows, branches, size), limits.pad_id, "int32")
        if self.automaton is not None:
            place = ops.zeros((rows, branches), "int32")
        prompts = (tokens, lengths) if self._reads_text else ((), ())
        return RulesState(ops.zeros((rows,), "int32"), seen, used, *prompts, new, place)

    def apply(self, logits, state: RulesState, limits: RowLimits):
        """Return the scores of the next tokens from logits `(rows, branches, vocabulary_size)`.

        They are NaN where `function` returns NaN or infinity.
        """
        ruled = self._ruled(logits, state, limits)
        return ops.log_softmax(ruled, axis=-1) if self.renormalize else ruled

    def _ruled(self, logits, state: RulesState, limits: RowLimits):
        logits = self._penalized(self._biased(logits, state), state, limits)
        ruled = logits
        for banned in self._bans(state, logits.shape[-1], limits):
            ruled = ops.where(banned, BANNED, ruled)
        if self.forced_prefix:
            ruled = self._forced(ruled, state)
        if self.forced_end is not None:
            at_limit = state.count == ops.cast(limits.max_new_tokens, "int32") - 1
            ruled = ops.where(at_limit[:, None, None], _only(self.forced_end, ruled), ruled)
        if self.function is not None:
            ruled, no_numbers = self._called(ruled, state)
        allowed = None
        if self.automaton is not None:
            size = logits.shape[-1]
            allowed = banning.allowed(self.automaton, state.place, size, limits, state.count)
            ruled = ops.where(allowed, ruled, BANNED)
        elif self.function is None and not self.no_repeat_ngram_size and not self.bad_words:
            return ruled
        lifted = logits - _RELUCTANCE
        lifted = lifted if allowed is None else ops.where(allowed, lifted, BANNED)
        ruled = ops.where(ops.max(ruled, axis=-1, keepdims=True) > BANNED / 2, ruled, lifted)
        # Neither a ban nor lifting it may hide NaN or infinity that the function returned.
        return ruled if self.function is None else ops.where(no_numbers[..., None], np.nan, ruled)

    def advance(self, state: RulesState, parents, tokens) -> RulesState:
        """Return the state after `tokens`, where each branch continues its parent.

        `parents` and `tokens` are int `(rows, branches)`; without `parents` each branch continues
        itself.
        """
        if parents is not None:
            state = _continued(state, ops.cast(parents, "int32"))
        tokens = ops.cast(tokens, "int32")
        changed = {"count": state.count + 1}
        if self.repetition_penalty != 1:
            here = _is_token(tokens, state.seen.shape[-1])
            changed["seen"] = ops.logical_or(state.seen, here)
        if self.presence_penalty or self.frequency_penalty:
            here = _is_token(tokens, state.used.shape[-1])
            changed["used"] = state.used + ops.cast(here, "int32")
        if self._reads_text or self.function is not None:
            changed["tokens"] = put_at(state.tokens, state.count, tokens)
        if self.automaton is not None:
            changed["place"] = banning.follow(self.automaton, state.place, tokens)
        return state._replace(**changed)

    @staticmethod
    def grow(state: RulesState, extra: int, pad_id: int) -> RulesState:
        """Return the state with room for `extra` more new tokens."""
        return with_room(state, {"tokens": -1}, extra, pad_id)

    def _biased(self, logits, state: RulesState):
        """Add the biases of sequences to the tokens that would complete them."""
        if single := {ids[0]: bias for ids, bias in self.sequence_bias if len(ids) == 1}:
            biases = np.zeros((1, 1, logits.shape[-1]), "float32")
            biases[..., list(single)] = list(single.values())
            logits = logits + banning.constant(biases)
        longer = [(ids, bias) for ids, bias in self.sequence_bias if len(ids) > 1]
        if not longer:
            return logits
        recent = _recent(state, max(len(ids) for ids, _ in longer) - 1)
        # Biases of sequences with the same last token add up, in a column for that token.
        last = sorted({ids[-1] for ids, _ in longer})
        columns = np.zeros(logits.shape[-1], "int32")
        columns[last] = np.arange(1, len(last) + 1)
        total = 0.0
        for length in sorted({len(ids) for ids, _ in longer}):
            of_length = [(ids, bias) for ids, bias in longer if len(ids) == length]
            table = np.zeros((len(of_length), len(last) + 1), "float32")
            for row, (ids, bias) in enumerate(of_length):
                table[row, 1 + last.index(ids[-1])] = bias
            _, same = banning.completed_words(recent, [ids for ids, _ in of_length])
            total = total + ops.matmul(ops.cast(same, "float32"), banning.constant(table))
        return logits + ops.take(total, banning.constant(columns), axis=-1)

    def _penalized(self, logits, state: RulesState, limits: RowLimits):
        if self.repetition_penalty != 1:
            penalty = self.repetition_penalty
            penalized = ops.where(logits < 0, logits * penalty, logits / penalty)
            logits = ops.where(state.seen, penalized, logits)
        if self.frequency_penalty:
            logits = logits - self.frequency_penalty * ops.cast(state.used, "float32")
        if self.presence_penalty:
            logits = logits - self.presence_penalty * ops.cast(state.used > 0, "float32")
        if self.exponential_decay_length_penalty is not None and limits.end_ids:
            start, factor = self.exponential_decay_length_penalty
            steps = ops.cast(ops.maximum(state.count - start, 0), "float32")
            raised = ops.minimum(ops.power(factor, steps), _MOST_RAISED)[:, None, None] - 1
            raised = ops.where(banning.mask_of(limits.end_ids, logits.shape[-1]), raised, 0.0)
            logits = logits + ops.abs(logits) * raised
        return logits

    def _bans(self, state: RulesState, size: int, limits: RowLimits) -> list:
        """Return bool masks of banned tokens that broadcast to `(rows, branches, size)`."""
        completed = []
        # A lone end id is not a bad word, as in Transformers.
        words = [word for word in self.bad_words if word not in [(x,) for x in limits.end_ids]]
        if self.no_repeat_ngram_size or any(len(word) > 1 for word in words):
            width = max([self.no_repeat_ngram_size, *map(len, self.bad_words)]) - 1
            recent = _recent(state, width)
            if self.no_repeat_ngram_size:
                n, text, length = self.no_repeat_ngram_size, _text(state), _lengths(state)
                completed.append(banning.repeated_ngrams(text, length, recent, n))
            for count in sorted({len(word) for word in words if len(word) > 1}):
                of_length = [word for word in words if len(word) == count]
                completed.append(banning.completed_words(recent, of_length))
        bans = []
        if completed:
            tokens, where = (ops.concatenate(x, axis=-1) for x in zip(*completed, strict=True))
            bans.append(banning.marks(tokens, where, size))
        single = [word[0] for word in words if len(word) == 1]
        if single:
            bans.append(banning.mask_of(single, size))
        if self.bad_first:
            at_first = (state.count == 0)[:, None, None]
            bans.append(ops.logical_and(at_first, banning.mask_of(self.bad_first, size)))
        if self.min_new_tokens and limits.end_ids:
            early = (state.count < self.min_new_tokens)[:, None, None]
            bans.append(ops.logical_and(early, banning.mask_of(limits.end_ids, size)))
        return bans

    def _forced(self, logits, state: RulesState):
        prefix = banning.constant(np.array(self.forced_prefix, "int32"))
        last = len(self.forced_prefix) - 1
        token = ops.take(prefix, ops.minimum(state.count, last))[:, None, None]
        return ops.where((state.count <= last)[:, None, None], _only(token, logits), logits)

    def _called(self, logits, state: RulesState):
        """Call the function; return its result and a bool mask of rows with NaN or infinity."""
        result = self.function(logits, state.tokens, state.count)
        found = tuple(getattr(result, "shape", ()))
        if found != tuple(logits.shape):
            raise ValueError(
                "`function` must return logits of the shape that it was given, "
                f"{tuple(logits.shape)}, but returned {found or type(result).__name__}."
            )
        result = ops.cast(ops.convert_to_tensor(result), "float32")
        result = ops.where(result < BANNED, BANNED, result)  # -infinity is a ban
        return result, broken(result)


def _check_function(function: Any) -> None:
    """Raise ValueError unless `function` can be called with logits, tokens and counts."""
    if not callable(function):
        raise ValueError(f"`function` must be callable, received {describe(function)}.")
    try:
        inspect.signature(function).bind("logits", "tokens", "counts")
    except TypeError as error:
        raise ValueError(
            "`function` is called as `function(logits, tokens, counts)` with three arrays, and "
            f"{getattr(function, '__name__', type(function).__name__)} cannot be: {error}."
        ) from None
    except ValueError:  # some functions written in C have no signature
        pass


def _text(state: RulesState):
    """Join prompts and new tokens without a gap, int `(rows, branches, length + size)`."""
    rows, branches, size = state.tokens.shape
    width = state.prompt.shape[1]
    prompt = ops.broadcast_to(state.prompt[:, None], (rows, branches, width))
    places = ops.arange(width + size, dtype="int32")[None]
    lengths = state.prompt_lengths[:, None]
    behind = ops.minimum(places + width - lengths, width + size - 1)
    places = ops.where(places < lengths, places, behind)[:, None]
    return ops.take_along_axis(ops.concatenate([prompt, state.tokens], axis=-1), places, axis=-1)


def _lengths(state: RulesState):
    """Count the tokens of each row so far, int `(rows,)`."""
    return state.prompt_lengths + state.count


def _recent(state: RulesState, width: int):
    """Return the last tokens of branches, int `(rows, branches, width)`, padded with -1."""
    places = _lengths(state)[:, None] + ops.arange(-width, 0, dtype="int32")[None]
    recent = ops.take_along_axis(_text(state), ops.maximum(places, 0)[:, None], axis=-1)
    return ops.where((places >= 0)[:, None], recent, -1)


def _check_biases(name: str, given: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return pairs of token ids and a bias. Raises ValueError if they are invalid or repeated."""
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, (list, tuple)) or any(
        not isinstance(pair, (list, tuple)) or len(pair) != 2 for pair in pairs
    ):
        raise ValueError(
            f"`{name}` must be pairs of token ids and a number, as [([5, 7], -2.0)], or a dict "
            f"{{(5, 7): -2.0}}, received {describe(given)}."
        )
    sequences = check_words(name, [ids for ids, _ in pairs])
    if len(set(sequences)) < len(sequences):
        raise ValueError(f"`{name}` has the same sequence of ids twice: {shorten(sequences)}.")
    bounds = {"at_least": -LARGEST_PENALTY, "at_most": LARGEST_PENALTY}
    biases = [check_float(f"{name}[{i}][1]", bias, **bounds) for i, (_, bias) in enumerate(pairs)]
    return tuple(zip(sequences, biases, strict=True))


def _check_length_penalty(name: str, given: Any) -> tuple[int, float] | None:
    """Return a start and a factor, or None. Raises ValueError if they are invalid."""
    if given is None:
        return None
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ValueError(
            f"`{name}` must be a pair of a number of tokens and a factor, as (20, 1.05), received "
            f"{describe(given)}."
        )
    start = check_int(f"{name}[0]", given[0], 0, MOST_TOKENS)
    factor = check_float(f"{name}[1]", given[1], above=0, at_most=LARGEST_PENALTY)
    return start, factor


def _continued(state: RulesState, parents) -> RulesState:
    """Return the state in which each branch continues its parent."""
    rows, branches = parents.shape
    places = parents + ops.arange(rows, dtype="int32")[:, None] * branches
    places = ops.reshape(places, (rows * branches,))

    def pick(tensor):
        # Whole rows are copied, which is faster than `take_along_axis`.
        lines = ops.reshape(tensor, (rows * branches, *tensor.shape[2:]))
        return ops.reshape(ops.take(lines, places, axis=0), tensor.shape)

    of_branches = {name: getattr(state, name) for name in ("seen", "used", "tokens", "place")}
    return state._replace(**keras.tree.map_structure(pick, of_branches))


def _only(token, logits):
    """Return scores that ban every token but one."""
    columns = ops.arange(logits.shape[-1], dtype="int32")[None, None]
    return ops.where(columns == token, 0.0, BANNED)


def _is_token(tokens, size: int):
    return ops.arange(size, dtype="int32")[None, None] == tokens[..., None]


# The rules of a checkpoint that has none.
NO_RULES = Rules()
