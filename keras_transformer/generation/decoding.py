"""What is computed when a sampler decodes: prompts, steps in a loop, and rows that move."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.checking import MOST_TOKENS, check_flag, check_ids, check_int
from keras_transformer.generation.cache import CACHE_DTYPES, Cache, join_padded
from keras_transformer.generation.logits import broken, log_sum
from keras_transformer.generation.program import Program, compile_loop
from keras_transformer.generation.samplers import Limits, Outputs, Prompt, Sampler
from keras_transformer.programs import compile_function
from keras_transformer.sizes import Sizes


class _Fields(NamedTuple):
    sampler: Sampler
    rules: Any
    end_ids: tuple[int, ...]
    pad_id: int
    cache_dtype: str | None
    pack_weights: bool


class Settings(_Fields):
    """What a compiled function is made for. Equal settings share theirs.

    Args:
        sampler: `Sampler`.
        rules: `Rules` or None, what changes the logits before the sampler sees them.
        end_ids: ints, a row ends with any of these ids.
        pad_id: int.
        cache_dtype: see `Cache.create`.
        pack_weights: bool, see `compile_loop`.

    Raises:
        ValueError: for values of other types, or ids below 0.
    """

    def __new__(
        cls,
        sampler: Sampler,
        rules: Any = None,
        end_ids: tuple[int, ...] = (),
        pad_id: int = 0,
        cache_dtype: str | None = None,
        pack_weights: bool = False,
    ):
        if not isinstance(sampler, Sampler):
            raise ValueError(
                f"`sampler` must be a Sampler, such as Greedy(), received {sampler!r}."
            )
        return super().__new__(
            cls,
            sampler,
            rules,
            check_ids("end_ids", end_ids),
            check_int("pad_id", pad_id, 0, MOST_TOKENS),
            check_cache_dtype(cache_dtype),
            check_flag("pack_weights", pack_weights),
        )


def check_cache_dtype(value: Any) -> str | None:
    """`value`, the dtype that keys and values are kept in, or None. ValueError for others."""
    if value is not None and (not isinstance(value, str) or value not in CACHE_DTYPES):
        raise ValueError(
            f"`cache_dtype` must be one of {', '.join(map(repr, CACHE_DTYPES))}, received "
            f"{value!r}."
        )
    return value


class Report(NamedTuple):
    """What is looked at between two calls of the loop. All have a row for each prompt."""

    finished: Any  # bool (rows,)
    counts: Any  # int (rows,), tokens so far
    remaining: Any  # int (rows,), tokens to the limit
    used: Any  # int (rows,), slots of the cache that are still seen
    found: Outputs


class DecodeState(NamedTuple):
    """What goes from one step to the next. The first four have a row for each prompt."""

    sampled: Any  # the sampler's state
    ruled: Any  # the state of the rules
    not_a_number: Any  # int (rows,), the first token with logits NaN or infinite, or -1
    not_ruled: Any  # int (rows,), the same of what the function of the rules gives
    cache: Cache
    steps: Any  # int scalar, steps made in the loop under way
    report: Any = ()  # `Report`, between two calls of the loop

    @property
    def size(self) -> int:
        """The room for new tokens."""
        return self.report.found.tokens.shape[-1]


class Compiled(NamedTuple):
    """The functions of a `Decoding`, compiled for each set of shapes, and for which sizes."""

    prefill: Callable
    read_prefix: Callable
    extend: Callable
    grow: Callable
    compact: Callable
    replace: Callable
    sizes: Sizes


class Decoding:
    """Plain functions of a program, a sampler and rules.

    `max_new_tokens` and `uniforms` are those of `Limits`, `tables` the automaton of the rules or
    `()`. What is given by keyword is static.

    Args:
        program: `Program`.
        settings: `Settings`, whose rules may be of any automaton.
    """

    def __init__(self, program: Program, settings: Settings):
        self.program = program
        self.settings = settings
        self.sampler = settings.sampler

    def compiled(self) -> Compiled:
        """The functions compiled. What is compiled does not keep this object alive by a circle."""
        models = self.program.models
        return Compiled(
            compile_function(self.prefill, *models),
            compile_function(self.read_prefix, *models),
            compile_loop(
                self.goes_on, self.step, self.report, *models, pack=self.settings.pack_weights
            ),
            compile_function(self.grow, moves=True),
            compile_function(self.compact, donate=(0,), moves=True),
            compile_function(self.replace, moves=True),
            Sizes(),
        )

    def prefill(self, inputs, max_new_tokens, uniforms, tables, prefix, *, slots: int, copies: int):
        """The state after prompts and the first new token, and its `Report`."""
        program, sampler = self.program, self.sampler
        limits, rules = self._limits(max_new_tokens, uniforms), self._rules(tables)
        tokens, mask = program.backbone.prompt_tokens(inputs)
        rows = tokens.shape[0]
        if prefix is None:
            cache = program.new_cache(rows, slots, self.settings.cache_dtype)
        else:
            cache = prefix.take_rows(ops.zeros((rows,), "int32")).grow(slots)
            cache = cache.continue_at(prefix.slots)
        logits, hidden, cache = program.prefill(None, inputs, cache)
        prompt = Prompt(tokens, mask, hidden)
        if copies > 1:
            each = ops.repeat(ops.arange(rows, dtype="int32"), copies)
            logits, *prompt = (ops.take(x, each, axis=0) for x in (logits, *prompt))
            prompt, cache, rows = Prompt(*prompt), cache.take_rows(each), rows * copies
        last = ops.sum(ops.cast(prompt.mask, "int32"), axis=1) - 1
        hidden = ops.take_along_axis(prompt.hidden, last[:, None, None], axis=1)
        sizes_of_rules = (sampler.branches, slots, logits.shape[-1])
        state = DecodeState(
            sampler.start(rows, slots, limits, prompt),
            () if rules is None else rules.start(*sizes_of_rules, prompt, limits),
            ops.full((rows,), -1, "int32"),
            ops.full((rows,), -1, "int32"),
            cache.branch(sampler.branches).as_tensors(),
            ops.zeros((), "int32"),
        )
        logits, hidden = (ops.repeat(x, sampler.branches, axis=1) for x in (logits, hidden))
        state = self._choose(state, logits, hidden, limits, rules)
        return self.report(state, max_new_tokens, uniforms)

    def read_prefix(self, tokens):
        """The cache after tokens `(1, length)`, without room for more."""
        inputs = {"token_ids": tokens, "padding_mask": ops.ones(tokens.shape, "bool")}
        cache = self.program.new_cache(1, tokens.shape[1], self.settings.cache_dtype)
        return self.program.prefill(None, inputs, cache).cache

    def goes_on(self, state, max_new_tokens, uniforms, tables, steps, enough):
        """Whether another step is to be made: before `steps`, and `enough` rows are finished."""
        limits = self._limits(max_new_tokens, uniforms)
        finished = ops.cast(self.sampler.finished(state.sampled, limits), "int32")
        return ops.logical_and(state.steps < steps, ops.sum(finished) < enough)

    def step(self, state, max_new_tokens, uniforms, tables, *_):
        """The state after one more step."""
        program, limits = self.program, self._limits(max_new_tokens, uniforms)
        drafts = program.drafts_of(state.cache)
        sampled, drafts = self.sampler.propose(state.sampled, drafts, limits)
        cache = program.with_drafts(state.cache, drafts)
        logits, hidden, cache = program.step(None, self.sampler.next_tokens(sampled), cache)
        state = state._replace(sampled=sampled, cache=cache)
        return self._choose(state, logits, hidden, limits, self._rules(tables))

    def report(self, state, max_new_tokens, uniforms, *_):
        """The state, and what is looked at of it."""
        counts = self.sampler.counts(state.sampled)
        limits = self._limits(max_new_tokens, uniforms)
        finished = self.sampler.finished(state.sampled, limits)
        used = ops.sum(ops.cast(state.cache.in_use(self.program.window), "int32"), axis=1)
        found = self.sampler.outputs(state.sampled)
        return state, Report(finished, counts, max_new_tokens - counts, used, found)

    def grow(self, state, *, extra: int, slots: int):
        """The state with room for `extra` more tokens, and with `slots` in the cache."""
        sampled, ruled, rules = state.sampled, state.ruled, self.settings.rules
        if extra:
            sampled = self.sampler.grow(sampled, extra, self.settings.pad_id)
            ruled = ruled if rules is None else rules.grow(ruled, extra, self.settings.pad_id)
        return state._replace(sampled=sampled, ruled=ruled, cache=state.cache.grow(slots))

    def compact(self, cache):
        """The cache without the slots that nothing sees any more."""
        return cache.compact(self.program.window)

    def replace(self, state, new, order):
        """Of the rows of both states, one after the other, those of `order`, int `(count,)`."""
        joined = keras.tree.map_structure(
            lambda *pair: ops.take(join_padded(*pair), order, axis=0),
            tuple(state[:4]),
            tuple(new[:4]),
        )
        cache = state.cache.append(new.cache).take_rows(order)
        return DecodeState(*joined, cache, state.steps)

    def _choose(self, state, logits, hidden, limits, rules):
        """The next tokens, of logits `(rows, branches or step_length, vocabulary_size)`."""
        sampler, count = self.sampler, self.sampler.counts(state.sampled)
        first_broken = ops.logical_and(ops.any(broken(logits), axis=-1), state.not_a_number < 0)
        ruled, not_ruled, options = state.ruled, state.not_ruled, {}
        if sampler.ranks_log_probabilities:
            # Not subtracted from a whole vocabulary, of which a few tokens are looked at.
            options["log_sum"] = log_sum(logits)
        if rules is not None:
            if options:
                logits = logits - options["log_sum"][..., None]
                options["log_sum"] = ops.zeros_like(options["log_sum"])
            logits = rules.apply(logits, ruled, limits)
            going = ops.logical_not(sampler.finished(state.sampled, limits))
            fresh = ops.logical_and(going, state.not_ruled < 0)
            no_numbers = ops.logical_and(ops.any(broken(logits), axis=-1), fresh)
            not_ruled = ops.where(no_numbers, count, not_ruled)
        sampled, kept = sampler.advance(state.sampled, logits, hidden, limits, **options)
        if rules is not None:
            ruled = rules.advance(ruled, kept, sampler.next_tokens(sampled))
        cache = state.cache
        if kept is not None and sampler.step_length > 1:
            cache = cache.keep_first(kept, sampler.step_length)
        elif kept is not None:
            cache = cache.continue_from(kept)
        not_a_number = ops.where(first_broken, count, state.not_a_number)
        return DecodeState(sampled, ruled, not_a_number, not_ruled, cache, state.steps + 1)

    def _limits(self, max_new_tokens, uniforms) -> Limits:
        return Limits(self.settings.end_ids, self.settings.pad_id, max_new_tokens, uniforms)

    def _rules(self, tables):
        rules = self.settings.rules
        return rules.with_automaton(tables) if tables else rules
