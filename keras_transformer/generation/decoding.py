"""What is computed when a sampler decodes: prompts, steps in a loop, and rows that move."""

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import keras
from keras import ops

from keras_transformer.checking import (
    MOST_TOKENS,
    check_choice,
    check_fields,
    check_flag,
    check_ids,
    check_int,
)
from keras_transformer.generation.cache import CACHE_DTYPES, Cache
from keras_transformer.generation.guidance import check_scale
from keras_transformer.generation.logits import broken
from keras_transformer.generation.program import Program
from keras_transformer.generation.samplers import Greedy, Limits, Outputs, Prompt, Sampler
from keras_transformer.generation.slot_space import longer, placed
from keras_transformer.kernels.compiling import compile_loop, compile_pass
from keras_transformer.kernels.programs import compile_function
from keras_transformer.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a batch is decoded. Equal settings share their compiled functions.

    Args:
        sampler: `Sampler`.
        rules: `Rules` or None, what changes the logits before the sampler sees them.
        end_ids: ints, a row ends with any of these ids.
        pad_id: int.
        cache_dtype: see `Cache.create`.
        pack_weights: bool, on PyTorch on a CPU keep a second copy of the weights, in the order in
            which they are read. Faster, for twice the memory.
        guidance_scale: float from -1000 to 1000. Unless it is 1 each row has a negative prompt, and
            the sampler sees the logits of `guidance.GuidedProgram`.

    Raises:
        ValueError: for values of other types, ids below 0, or a sampler that is not guided.

    Example: see `Engine`.
    """

    sampler: Sampler
    rules: Any = None
    end_ids: tuple[int, ...] = ()
    pad_id: int = 0
    cache_dtype: str | None = None
    pack_weights: bool = False
    guidance_scale: float = 1.0

    def __post_init__(self):
        if not isinstance(self.sampler, Sampler):
            raise ValueError(
                f"`sampler` must be a Sampler, such as Greedy(), received {self.sampler!r}."
            )
        check_cache_dtype(self.cache_dtype)
        check_fields(self, check_ids, "end_ids")
        check_fields(self, check_int, "pad_id", at_least=0, at_most=MOST_TOKENS)
        check_fields(self, check_flag, "pack_weights")
        check_fields(self, check_scale, "guidance_scale")
        if self.guided and not self.sampler.takes_guidance:
            raise ValueError(
                f"`guidance_scale` does not go with {type(self.sampler).__name__}, received "
                f"{self.guidance_scale}. Use Greedy(), Random() or BeamSearch(), or no guidance: "
                "guidance_scale=1."
            )

    @property
    def guided(self) -> bool:
        """Whether each row has a negative prompt."""
        return self.guidance_scale != 1

    @property
    def best_only(self) -> bool:
        """Whether the largest logit alone counts, and what is packed makes use of that."""
        greedy = type(self.sampler) is Greedy and self.rules is None and not self.guided
        return greedy and self.pack_weights and keras.backend.backend() == "torch"


def check_cache_dtype(value: Any) -> None:
    """ValueError unless it is None or a dtype that keys and values can be kept in."""
    check_choice("cache_dtype", value, CACHE_DTYPES, none=True)


class Given(NamedTuple):
    """What bounds the rows of a batch."""

    max_new_tokens: Any  # int32 (rows,)
    uniforms: Any  # float32 (rows, size * draws), see `Limits`
    tables: Any  # `AutomatonTables` of the rules, or ()
    choices: Any = ()  # float32 (rows, count), see `Limits`


class Report(NamedTuple):
    """What is looked at between two calls of the loop. All have a row for each prompt."""

    finished: Any  # bool (rows,)
    counts: Any  # int (rows,), tokens so far
    used: Any  # int (rows, spaces), slots of each space of the cache that are still seen
    found: Outputs


class DecodeState(NamedTuple):
    """What goes from one step to the next. The first four have a row for each prompt."""

    sampled: Any  # the sampler's state
    ruled: Any  # the state of the rules
    not_a_number: Any  # int (rows,), the first token with logits NaN or infinite, or -1
    not_ruled: Any  # int (rows,), the same of what the function of the rules gives
    cache: Cache
    steps: Any  # int scalar, steps made in the loop under way


class Decoding:
    """Plain functions of a program, a sampler and rules. What is given by keyword is static.

    Those that a batch goes through return its `DecodeState` and `Report`.
    """

    def __init__(self, program: Program, settings: Settings):
        self.program = program
        self.settings = settings
        self.sampler = settings.sampler

    def compiled(self) -> SimpleNamespace:
        """The functions compiled, and their sizes. They do not keep this object by a circle."""
        models = self.program.models
        packed = WeakValueDictionary() if self.settings.pack_weights else None
        return SimpleNamespace(
            prefill=compile_pass(self.prefill, *models, packed=packed),
            read_prefix=compile_function(self.read_prefix, *models),
            extend=compile_loop(self.goes_on, self.step, self.report, *models, packed=packed),
            grow=compile_function(self.grow, moves=True),
            grow_layer=compile_function(self.grow_layer, moves=True),
            compact=compile_function(self.compact, donate=(0,), moves=True),
            take_rows=compile_function(self.take_rows, moves=True),
            place=compile_function(self.place, donate=(0,), moves=True),
            place_larger=compile_function(self.place, moves=True),
            sizes=Sizes(),
            spaces=self.program.spaces,
        )

    def prefill(self, inputs, given: Given, prefix, *, slots: tuple, size: int, copies: int):
        """Prompts and the first new token, with `slots`, pairs of a space and a number."""
        program, sampler = self.program, self.sampler
        limits, rules = self._limits(given), self._rules(given)
        tokens, mask = program.backbone.prompt_tokens(inputs)
        rows, length = tokens.shape
        if prefix is None:
            room = {key: count if key else max(count, length) for key, count in slots}
            cache = program.new_cache(rows, room, self.settings.cache_dtype)
        else:
            room = {key: max(count, prefix.spaces[key].slots + length) for key, count in slots}
            cache = prefix.take_rows(ops.zeros((rows,), "int32")).as_full().grow(room)
        logits, hidden, cache = program.prefill(inputs, cache)
        cache = cache.fit(dict(slots))
        prompt = Prompt(tokens, mask, hidden)
        if copies > 1:
            each = ops.repeat(ops.arange(rows, dtype="int32"), copies)
            logits, *prompt = (ops.take(x, each, axis=0) for x in (logits, *prompt))
            prompt, rows = Prompt(*prompt), rows * copies
            cache = cache.take_rows(program.cache_rows(each))
        last = ops.sum(ops.cast(prompt.mask, "int32"), axis=1) - 1
        hidden = ops.take_along_axis(prompt.hidden, last[:, None, None], axis=1)
        sizes_of_rules = (sampler.branches, size, logits.shape[-1])
        state = DecodeState(
            sampler.start(rows, size, limits, prompt),
            () if rules is None else rules.start(*sizes_of_rules, prompt, limits),
            ops.full((rows,), -1, "int32"),
            ops.full((rows,), -1, "int32"),
            cache.branch(sampler.branches).as_tensors(),
            ops.zeros((), "int32"),
        )
        logits, hidden = (ops.repeat(x, sampler.branches, axis=1) for x in (logits, hidden))
        state = self._choose(state, logits, hidden, limits, rules)
        return self.report(state, given)

    def read_prefix(self, tokens):
        """The cache after tokens `(1, length)`, without room for more."""
        inputs = {"token_ids": tokens, "padding_mask": ops.ones(tokens.shape, "bool")}
        length = tokens.shape[1]
        # The next token sees itself and one less of the tokens before it than the window is long.
        room = {key: min(length, max(1, key - 1)) if key else length for key in self.program.spaces}
        cache = self.program.new_cache(1, room, self.settings.cache_dtype)
        return self.program.prefill(inputs, cache)[2].as_tensors()

    def goes_on(self, state, given: Given, steps, enough):
        """Whether another step is to be made: before `steps`, and `enough` rows are finished."""
        finished = ops.cast(self.sampler.finished(state.sampled, self._limits(given)), "int32")
        return ops.logical_and(state.steps < steps, ops.sum(finished) < enough)

    def step(self, state, given: Given, *_) -> DecodeState:
        """The state after one more step."""
        program, limits = self.program, self._limits(given)
        drafts = program.drafts_of(state.cache)
        sampled, drafts = self.sampler.propose(state.sampled, drafts, limits)
        cache = program.with_drafts(state.cache, drafts)
        logits, hidden, cache = program.step(self.sampler.next_tokens(sampled), cache)
        state = state._replace(sampled=sampled, cache=cache)
        return self._choose(state, logits, hidden, limits, self._rules(given))

    def report(self, state, given: Given, *_):
        """The state, and what is looked at of it."""
        sampler, sampled = self.sampler, state.sampled
        finished = sampler.finished(sampled, self._limits(given))
        used = [ops.sum(ops.cast(x, "int32"), axis=1) for x in state.cache.in_use().values()]
        used = ops.stack(used, axis=1)
        return state, Report(finished, sampler.counts(sampled), used, sampler.outputs(sampled))

    def grow(self, state, given: Given, *, extra: int, slots: tuple):
        """Room for `extra` more tokens, and `slots` in the cache, pairs of a space and a number.

        The layers that the cache has grow too: it may have none, for `grow_layer` one by one.
        """
        sampled, ruled, rules = state.sampled, state.ruled, self.settings.rules
        if extra:
            sampled = self.sampler.grow(sampled, extra, self.settings.pad_id)
            ruled = ruled if rules is None else rules.grow(ruled, extra, self.settings.pad_id)
        state = state._replace(sampled=sampled, ruled=ruled, cache=state.cache.grow(dict(slots)))
        return self.report(state, given)

    def grow_layer(self, layer: tuple, *, extra: int) -> tuple:
        """A layer of the cache with room for `extra` more tokens."""
        return tuple(longer(x, 2, extra) for x in layer)

    def compact(self, cache, *, slots: tuple):
        """The cache without what nothing sees any more in the spaces of `slots`, as for `grow`."""
        return cache.compact(dict(slots))

    def take_rows(self, state, given: Given, rows):
        """The rows `rows` of a state, int `(count,)`; a row may come several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(state[:4]))
        cache = state.cache.take_rows(self.program.cache_rows(rows))
        return self.report(DecodeState(*taken, cache, state.steps), given)

    def place(self, state, new, given: Given, rows):
        """A state with the rows of another in the places `rows`, int `(count,)`."""
        both = (tuple(state[:4]), tuple(new[:4]))
        joined = keras.tree.map_structure(lambda *pair: placed(*pair, rows), *both)
        cache = state.cache.place(new.cache, self.program.cache_rows(rows))
        return self.report(DecodeState(*joined, cache, state.steps), given)

    def _choose(self, state, logits, hidden, limits, rules):
        """The next tokens, of logits `(rows, branches or step_length, vocabulary_size)`."""
        sampler, count = self.sampler, self.sampler.counts(state.sampled)
        not_a_number = _first_broken(state.not_a_number, logits, count)
        ruled, not_ruled, options = state.ruled, state.not_ruled, {}
        if sampler.ranks_log_probabilities:
            # Not subtracted from a whole vocabulary, of which a few tokens are looked at.
            options["log_sum"] = self.program.log_sum(logits)
        if rules is not None:
            if options:
                for part in options["log_sum"]:
                    logits = logits - part[..., None]
                options["log_sum"] = (ops.zeros_like(part),) * 2
            logits = rules.apply(logits, ruled, limits)
            finished = sampler.finished(state.sampled, limits)
            not_ruled = ops.where(finished, not_ruled, _first_broken(not_ruled, logits, count))
        sampled, kept = sampler.advance(state.sampled, logits, hidden, limits, **options)
        if rules is not None:
            ruled = rules.advance(ruled, kept, sampler.next_tokens(sampled))
        cache = state.cache
        if kept is not None and sampler.step_length > 1:
            cache = cache.keep_first(kept, sampler.step_length)
        elif kept is not None:
            cache = cache.continue_from(self.program.for_cache(kept))
        return DecodeState(sampled, ruled, not_a_number, not_ruled, cache, state.steps + 1)

    def _limits(self, given: Given) -> Limits:
        return Limits(self.settings.end_ids, self.settings.pad_id, *given[:2], given.choices)

    def _rules(self, given: Given):
        rules = self.settings.rules
        return rules.with_automaton(given.tables) if given.tables else rules


def _first_broken(known, logits, count):
    """The first token with logits NaN or infinite, int `(rows,)`: one that is known, or this."""
    now = ops.logical_and(known < 0, ops.any(broken(logits), axis=-1))
    return ops.where(now, count, known)
