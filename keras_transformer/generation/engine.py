"""The decode engine: the whole prompt at once, then token by token in a compiled loop."""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.generation import values
from keras_transformer.generation.cache import Cache, join_padded
from keras_transformer.generation.choosing import broken, log_sum
from keras_transformer.generation.compiling import compile_function, compile_loop
from keras_transformer.generation.samplers import Limits, Outputs, Prompt, Sampler
from keras_transformer.generation.settings import Settings

# Shapes come from this ladder, so that inputs of similar sizes share compiled functions.
_LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

# So many samplers, rules and ends are kept compiled: a request may bring a constraint of its own.
_MOST_COMPILED = 32


def round_up(size: int) -> int:
    """The next size of the ladder; above it, multiples of 512."""
    for step in _LADDER:
        if size <= step:
            return step
    return -(-size // 512) * 512


def round_slots(slots: int) -> int:
    """Slots of a cache: multiples that keep what is read beyond the filled part small."""
    multiple = 32 if slots <= 512 else 128 if slots <= 2048 else 512
    return -(-slots // multiple) * multiple


def steps_of(sampler: Sampler, remaining: int) -> int:
    """Steps in one call of the loop, at most `remaining`, rounded up.

    So many that a call costs little beside them, and so few that the cache starts small and an
    interruption is heard soon.
    """
    return min(
        round_up(remaining), 16 if sampler.branches > 1 else max(8, 64 // sampler.step_length)
    )


class DecodeState(NamedTuple):
    """What goes from one step to the next. All but the last two have a row for each prompt."""

    sampled: Any  # the sampler's state
    ruled: Any  # the state of the rules
    not_a_number: Any  # int (rows,), the first token with logits NaN or infinite, or -1
    not_ruled: Any  # int (rows,), the same of what the function of the rules gives
    cache: Cache
    steps: Any  # int scalar, steps made in the loop under way


class Engine:
    """Steps of generation with a backbone that follows the cache protocol.

    The protocol: `backbone(inputs, cache=cache)` returns states and the updated cache;
    `backbone.logits`; `backbone.prompt_tokens(inputs)` the ids and mask that the decoder starts
    from; and `backbone.step_inputs(tokens)` the inputs of one further step.

    `generate` decodes one batch to its end. `Scheduler.run` decodes many prompts, and lets
    others take the place of those that are done.

    Args:
        backbone: a `Decoder` or `Seq2Seq`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Engine, Greedy, Settings

    backbone = kt.models.Decoder(kt.TransformerConfig(
        kind="decoder", vocabulary_size=50, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32,
    ))
    inputs = {"token_ids": np.array([[3, 4]]), "padding_mask": np.ones((1, 2), bool)}
    outputs = Engine(backbone).generate(inputs, Settings(Greedy()), max_new_tokens=5)
    assert outputs.tokens.shape == (1, 1, 5)
    ```
    """

    def __init__(self, backbone):
        self.backbone = backbone
        self._compiled: dict = {}
        self._lengths: dict[int, set[int]] = {}

    def generate(
        self,
        inputs: dict[str, np.ndarray],
        settings: Settings,
        max_new_tokens: int,
        uniforms: np.ndarray | None = None,
    ) -> Outputs:
        """New tokens for one batch of prompts.

        Args:
            inputs: the backbone's inputs, NumPy arrays, rows padded on the right.
            settings: `Settings`.
            max_new_tokens: int.
            uniforms: float32 `(rows, max_new_tokens * draws)`, for samplers that draw, see
                `Limits`.

        Returns:
            `Outputs` of NumPy arrays; rows end with an end id or with pads.
        """
        rows = len(next(iter(inputs.values())))
        max_new_tokens = values.integer("max_new_tokens", max_new_tokens, 1)
        limit = np.full((rows,), max_new_tokens, "int32")
        width = max_new_tokens * settings.sampler.draws
        uniforms = np.zeros((rows, 0), "float32") if uniforms is None else np.asarray(uniforms)
        if width and (uniforms.ndim != 2 or len(uniforms) != rows or uniforms.shape[1] < width):
            raise ValueError(
                f"{settings.sampler} draws: `uniforms` must have the shape ({rows}, {width}), "
                f"received {uniforms.shape}."
            )
        steps, size = steps_of(settings.sampler, max_new_tokens), max_new_tokens
        state = self.prefill(inputs, settings, limit, uniforms, size, steps)
        while not self.finished(state, settings, limit).all():
            state = self.make_room(state, settings, steps)
            state = self.extend(state, settings, limit, uniforms, steps, rows)
        return self.outputs(state, settings)

    def prefill(
        self,
        inputs: dict,
        settings: Settings,
        max_new_tokens: np.ndarray,
        uniforms: np.ndarray,
        size: int,
        steps: int,
        prefix: Cache | None = None,
        copies: int = 1,
    ) -> DecodeState:
        """The state after the prompts and the first new token.

        Args:
            inputs: the backbone's inputs, `prompts` rows, padded on the right.
            settings: `Settings`.
            max_new_tokens: int32 `(prompts * copies,)`.
            uniforms: float32 `(prompts * copies, size * draws)`, see `Limits`.
            size: int, room for new tokens.
            steps: int, room in the cache for so many steps.
            prefix: a cache of one row with what stands before every prompt, from `read_prefix`.
            copies: int, rows of each prompt, one after the other.
        """
        inputs = {name: ops.convert_to_tensor(array) for name, array in inputs.items()}
        length = self.backbone.prompt_tokens(inputs)[0].shape[1]
        slots = (0 if prefix is None else prefix.slots) + length
        slots = round_slots(slots + settings.sampler.slots_per_step * (steps + 1))
        sizes = ops.zeros((0, size, slots, copies), "int8")  # static for every compiler
        function = self._functions(settings)["prefill"]
        return function(inputs, *_tensors(max_new_tokens, uniforms), sizes, prefix)

    def padded_length(self, rows: int, length: int, longest: int | None) -> int:
        """To how many tokens to pad so many prompts, the longest of which has `length`.

        To a length that was compiled before if it is not much longer: a second of compiling buys
        a lot of padding.
        """
        near = max(64, 2 * length)
        known = [n for n in self._lengths.setdefault(rows, set()) if length <= n <= near]
        length = min(known, default=round_up(length))
        length = length if longest is None else min(length, longest)
        self._lengths[rows].add(length)
        return length

    def read_prefix(self, ids: list[int], settings: Settings) -> Cache:
        """The cache of tokens that many prompts begin with: one row without room for more."""
        tokens = ops.convert_to_tensor(np.asarray([ids], "int32"))
        return self._functions(settings)["prefix"](tokens)

    def extend(
        self,
        state: DecodeState,
        settings: Settings,
        max_new_tokens: np.ndarray,
        uniforms: np.ndarray,
        steps: int,
        enough: int,
    ) -> DecodeState:
        """At most `steps` more steps, fewer if `enough` rows are finished before."""
        numbers = (ops.convert_to_tensor(x, dtype="int32") for x in (steps, enough))
        state = state._replace(steps=ops.zeros((), "int32"))
        limits = _tensors(max_new_tokens, uniforms)
        return self._functions(settings)["extend"](state, *limits, *numbers)

    def make_room(
        self, state: DecodeState, settings: Settings, steps: int, remaining: int | None = None
    ) -> DecodeState:
        """The state with slots for `steps` more steps, of `remaining` in all.

        Slots that nothing sees any more are given back first: padding, dead branches, rejected
        tokens, what has left the window of a model that has one.
        """
        needed = steps * settings.sampler.slots_per_step
        end = int(state.cache.end)
        if end + needed <= state.cache.slots:
            return state
        used = int(self._functions(settings)["count_used"](state.cache))
        if used <= 0.75 * end:
            cache = self._functions(settings)["compact"](state.cache)
            state, end = state._replace(cache=cache), used
        if end + needed <= state.cache.slots:
            return state
        # Half as many again, so that it is seldom; but not for steps that will not come.
        slots = round_slots(end + max(needed, end // 2))
        if remaining is not None:
            remaining = max(remaining, steps) * settings.sampler.slots_per_step
            slots = min(slots, round_slots(end + remaining))
        return state._replace(cache=state.cache.grow(slots))

    def replace_rows(
        self, state: DecodeState, settings: Settings, kept: np.ndarray, new: DecodeState
    ) -> DecodeState:
        """The rows `kept`, int `(count,)`, and behind them those of `new`."""
        kept = ops.convert_to_tensor(kept, dtype="int32")
        return self._functions(settings)["replace"](state, kept, new)

    def finished(self, state: DecodeState, settings: Settings, max_new_tokens) -> np.ndarray:
        """Bool `(rows,)`, the rows that are done. FloatingPointError for broken logits."""
        places = ops.convert_to_numpy(state.not_a_number)
        places = places[(places >= 0) & (max_new_tokens > 0)]
        if places.size:
            raise FloatingPointError(
                f"The logits of new token {places.min() + 1} are NaN or infinite: the model's "
                "weights hold such values, or it overflows in its dtype "
                f"({self.backbone.compute_dtype}). Check the weights, or load with "
                'dtype="float32".'
            )
        places = ops.convert_to_numpy(state.not_ruled)
        if (places >= 0).any():
            raise FloatingPointError(
                f"The `function` of the rules gave NaN or infinity for new token "
                f"{places[places >= 0].min() + 1}, of logits that were numbers. To ban a token "
                "give it -infinity or -1e30."
            )
        limits = Limits(settings.end_ids, settings.pad_id, *_tensors(max_new_tokens, None))
        return ops.convert_to_numpy(settings.sampler.finished(state.sampled, limits))

    def counts(self, state: DecodeState, settings: Settings) -> np.ndarray:
        """Int `(rows,)`, the tokens that each row has so far."""
        return ops.convert_to_numpy(settings.sampler.counts(state.sampled))

    def outputs(self, state: DecodeState, settings: Settings) -> Outputs:
        """What has been found so far, as NumPy arrays."""
        found = settings.sampler.outputs(state.sampled)
        return Outputs(*(x if x is None else ops.convert_to_numpy(x) for x in found))

    def compiled_once(self, key, make):
        """What `make` gave for this key the first time."""
        if key not in self._compiled:
            if len(self._compiled) >= _MOST_COMPILED:  # the oldest goes
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = make()
        return self._compiled[key]

    def _functions(self, settings: Settings) -> dict:
        def make():
            settings.sampler.check(self.backbone, settings.rules)
            return self._compile(settings)

        return self.compiled_once(settings, make)

    def _compile(self, settings: Settings) -> dict:
        backbone, sampler, rules = self.backbone, settings.sampler, settings.rules
        models = (backbone, *sampler.models)  # all write the same slots, each with its own layers
        own = len(backbone.decoder.order)
        windows = [model.config.window for model in models]
        window = None if None in windows else max(windows)

        def limits_of(max_new_tokens, uniforms):
            return Limits(settings.end_ids, settings.pad_id, max_new_tokens, uniforms)

        def choose(state, hidden, limits):
            """The next tokens from states `(rows, branches or step_length, hidden_dim)`."""
            logits = ops.cast(backbone.logits(hidden), "float32")
            count = sampler.counts(state.sampled)
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

        def new_cache(rows, slots):
            caches = [Cache.create(model, rows, slots, settings.cache_dtype) for model in models]
            return functools.reduce(Cache.join, caches)

        def read(inputs, cache):
            """The backbone's states of the prompts, and the cache after all models read them."""
            first, states, caches = 0, [], []
            for model in models:
                last = first + len(model.decoder.order)
                hidden, after = model(inputs, cache=cache.part(first, last))
                states.append(hidden)
                caches.append(after)
                first = last
            return states[0], functools.reduce(Cache.join, caches)

        def prefill(inputs, max_new_tokens, uniforms, sizes, prefix):
            limits = limits_of(max_new_tokens, uniforms)
            _, size, slots, copies = sizes.shape
            tokens, mask = backbone.prompt_tokens(inputs)
            rows = tokens.shape[0]
            if prefix is None:
                cache = new_cache(rows, slots)
            else:
                cache = prefix.take_rows(ops.zeros((rows,), "int32")).grow(slots)
                cache = cache.continue_at(prefix.slots)
            hidden, cache = read(inputs, cache)
            prompt = Prompt(tokens, mask, hidden)
            if copies > 1:
                each = ops.repeat(ops.arange(rows, dtype="int32"), copies)
                prompt = Prompt(*(ops.take(x, each, axis=0) for x in prompt))
                cache, rows = cache.take_rows(each), rows * copies
            last = ops.sum(ops.cast(prompt.mask, "int32"), axis=1) - 1
            hidden = ops.take_along_axis(prompt.hidden, last[:, None, None], axis=1)
            sizes_of_rules = (sampler.branches, size, backbone.config.vocabulary_size)
            state = DecodeState(
                sampler.start(rows, size, limits, prompt),
                () if rules is None else rules.start(*sizes_of_rules, prompt, limits),
                ops.full((rows,), -1, "int32"),
                ops.full((rows,), -1, "int32"),
                cache.branch(sampler.branches).as_tensors(),
                ops.zeros((), "int32"),
            )
            return choose(state, ops.repeat(hidden, sampler.branches, axis=1), limits)

        def prefix(tokens):
            return read({"token_ids": tokens}, new_cache(1, tokens.shape[1]))[1]

        def unfinished(state, max_new_tokens, uniforms, steps, enough):
            limits = limits_of(max_new_tokens, uniforms)
            finished = ops.cast(sampler.finished(state.sampled, limits), "int32")
            return ops.logical_and(state.steps < steps, ops.sum(finished) < enough)

        def step(state, max_new_tokens, uniforms, steps, enough):
            limits = limits_of(max_new_tokens, uniforms)
            sampled, others = sampler.propose(state.sampled, state.cache.part(own), limits)
            inputs = backbone.step_inputs(sampler.next_tokens(sampled))
            hidden, cache = backbone(inputs, cache=state.cache.part(0, own))
            state = state._replace(sampled=sampled, cache=cache.join(others))
            return choose(state, hidden, limits)

        def count_used(cache):
            return ops.max(ops.sum(ops.cast(cache.in_use(window), "int32"), axis=1))

        def replace(state, rows, new):
            joined = join_rows(take_rows(tuple(state[:4]), rows), tuple(new[:4]))
            cache = state.cache.take_rows(rows).append(new.cache)
            return DecodeState(*joined, cache, state.steps)

        return {
            "prefill": compile_function(prefill, *models),
            "prefix": compile_function(prefix, *models),
            "extend": compile_loop(unfinished, step, *models, pack=settings.pack_weights),
            "count_used": compile_function(count_used),
            "compact": compile_function(lambda cache: cache.compact(window), donate=(0,)),
            "replace": compile_function(replace),
        }


def take_rows(structure, rows):
    """Of every tensor the rows `rows`, int `(count,)`."""
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), structure)


def join_rows(first, second):
    """The rows of both, tensor by tensor."""
    return keras.tree.map_structure(join_padded, first, second)


def _tensors(max_new_tokens, uniforms) -> tuple:
    limit = ops.convert_to_tensor(max_new_tokens, dtype="int32")
    return limit, None if uniforms is None else ops.convert_to_tensor(uniforms, dtype="float32")
