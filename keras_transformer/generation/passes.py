"""What the engine compiles: the pass over prompts, the loop of steps, and what moves rows."""

import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.generation.cache import Cache, join_padded
from keras_transformer.generation.choosing import broken, log_sum
from keras_transformer.generation.compiling import compile_function, compile_loop
from keras_transformer.generation.samplers import Limits, Outputs, Prompt
from keras_transformer.generation.settings import Settings
from keras_transformer.sizes import Sizes


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


def make_functions(backbone, settings: Settings) -> dict:
    """The functions of an `Engine`, compiled for each set of shapes.

    Args:
        backbone: a `Decoder` or `Seq2Seq`.
        settings: `Settings`, whose rules may be of any automaton.

    Returns:
        The functions by name, and as `"sizes"` the `Sizes` that they were compiled for.
    """
    sampler, general = settings.sampler, settings.rules
    models = (backbone, *sampler.models)  # all write the same slots, each with its own layers
    own = len(backbone.cache_layers)
    windows = [model.config.window for model in models]
    window = None if None in windows else max(windows)

    def limits_of(max_new_tokens, uniforms):
        return Limits(settings.end_ids, settings.pad_id, max_new_tokens, uniforms)

    def rules_of(tables):
        return general.with_automaton(tables) if tables else general

    def report(state, max_new_tokens, uniforms, *_):
        counts = sampler.counts(state.sampled)
        finished = sampler.finished(state.sampled, limits_of(max_new_tokens, uniforms))
        used = ops.sum(ops.cast(state.cache.in_use(window), "int32"), axis=1)
        found = sampler.outputs(state.sampled)
        return state, Report(finished, counts, max_new_tokens - counts, used, found)

    def choose(state, hidden, limits, rules):
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
            last = first + len(model.cache_layers)
            hidden, after = model(inputs, cache=cache.part(first, last))
            states.append(hidden)
            caches.append(after)
            first = last
        return states[0], functools.reduce(Cache.join, caches)

    def prefill(inputs, max_new_tokens, uniforms, tables, shape, prefix):
        limits, rules = limits_of(max_new_tokens, uniforms), rules_of(tables)
        _, slots, copies = shape.shape
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
        sizes_of_rules = (sampler.branches, slots, backbone.config.vocabulary_size)
        state = DecodeState(
            sampler.start(rows, slots, limits, prompt),
            () if rules is None else rules.start(*sizes_of_rules, prompt, limits),
            ops.full((rows,), -1, "int32"),
            ops.full((rows,), -1, "int32"),
            cache.branch(sampler.branches).as_tensors(),
            ops.zeros((), "int32"),
        )
        state = choose(state, ops.repeat(hidden, sampler.branches, axis=1), limits, rules)
        return report(state, max_new_tokens, uniforms)

    def prefix(tokens):
        return read({"token_ids": tokens}, new_cache(1, tokens.shape[1]))[1]

    def unfinished(state, max_new_tokens, uniforms, tables, steps, enough):
        limits = limits_of(max_new_tokens, uniforms)
        finished = ops.cast(sampler.finished(state.sampled, limits), "int32")
        return ops.logical_and(state.steps < steps, ops.sum(finished) < enough)

    def step(state, max_new_tokens, uniforms, tables, steps, enough):
        limits = limits_of(max_new_tokens, uniforms)
        sampled, others = sampler.propose(state.sampled, state.cache.part(own), limits)
        inputs = backbone.step_inputs(sampler.next_tokens(sampled))
        hidden, cache = backbone(inputs, cache=state.cache.part(0, own))
        state = state._replace(sampled=sampled, cache=cache.join(others))
        return choose(state, hidden, limits, rules_of(tables))

    def grow(state, shape):
        _, extra, slots = shape.shape
        sampled, ruled = state.sampled, state.ruled
        if extra:
            sampled = sampler.grow(sampled, extra, settings.pad_id)
            ruled = ruled if general is None else general.grow(ruled, extra, settings.pad_id)
        return state._replace(sampled=sampled, ruled=ruled, cache=state.cache.grow(slots))

    def replace(state, new, order):
        joined = take_rows(join_rows(tuple(state[:4]), tuple(new[:4])), order)
        cache = state.cache.append(new.cache).take_rows(order)
        return DecodeState(*joined, cache, state.steps)

    return {
        "prefill": compile_function(prefill, *models),
        "prefix": compile_function(prefix, *models),
        "extend": compile_loop(unfinished, step, report, *models, pack=settings.pack_weights),
        "grow": compile_function(grow),
        "compact": compile_function(lambda cache: cache.compact(window), donate=(0,)),
        "replace": compile_function(replace),
        "sizes": Sizes(),
    }


def take_rows(structure, rows):
    """Of every tensor the rows `rows`, int `(count,)`."""
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), structure)


def join_rows(first, second):
    """The rows of both, tensor by tensor."""
    return keras.tree.map_structure(join_padded, first, second)
