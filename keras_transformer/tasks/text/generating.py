"""One call of `generate`: checked options, scheduling, and the resulting texts or text pieces."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.generation.constraints.constraints import TokenAutomaton
from keras_transformer.generation.engine import Settings, check_cache_dtype
from keras_transformer.generation.program import check_scale
from keras_transformer.generation.rules.rules import NO_RULES, Rules
from keras_transformer.generation.samplers import samplers
from keras_transformer.generation.scheduler import Finished, Progress, Scheduler
from keras_transformer.generation.streaming import TextStream, check_stop, without_stop
from keras_transformer.support.checking import (
    MOST_TOKENS,
    check_flag,
    check_int,
    check_seed,
    shorten,
)

# Decoding steps between two checks of the generated text: for stop strings, and for streaming.
_STEPS_TO_STOP, _STEPS_TO_SHOW = 16, 4


class Completion(NamedTuple):
    """A generated text with its details.

    Fields:
        text: str, or None if the model has no tokenizer.
        token_ids: list of int, without the end id but including the tokens of a stop string.
        finish_reason: `"end"` for an end id, `"stop"` for a stop string, `"length"` for the limit.
        score: float, the score that beam search ranks by; None with other samplers.
        log_probabilities: float array `(tokens,)`, the model's log-probability of each of
            `token_ids`, before rules and samplers; None unless requested.
        explanation: `explanations.Explanation` of the steps of generation; None unless requested.
    """

    text: str | None
    token_ids: list[int]
    finish_reason: str
    score: float | None = None
    log_probabilities: Any = None
    explanation: Any = None


class Sample(NamedTuple):
    """A drawn text as reinforcement learning needs it.

    Fields:
        completion: `Completion`.
        drawn_ids: list of int, its `token_ids`, and the end id if one was drawn.
        log_probabilities: float32 `(drawn,)`, see `samplers.recorded.RecordedRandom`.
        entropies: float32 `(drawn,)`, in nats.
    """

    completion: Completion
    drawn_ids: list[int]
    log_probabilities: np.ndarray
    entropies: np.ndarray


class GenerationCall:
    """One call of `generate` with `prompts` as lists of ids; other arguments as for `generate`.

    `further` holds additional inputs of the backbone by name, with a row for each prompt. `most`
    caps the number of new tokens of each prompt, in addition to the common limit. `generator` is
    the task's, or the one of other languages.
    """

    def __init__(
        self, task, prompts: list[list[int]], *, further, max_new_tokens=None, sampler=None,
        batch_size=32, max_length=None, stop=None, rules=None, constraint=None, num_samples=1,
        seed=None, cache_dtype=None, verbose=False, most: Sequence[int] | None = None,
        guidance_scale=None, negative_prompts: Sequence[list[int]] | None = None, generator=None,
    ):  # fmt: skip
        self.task = task
        self.generator = generator = task.generator if generator is None else generator
        self.prompts = prompts
        self.sampler = sampler = generator.sampler if sampler is None else samplers.get(sampler)
        given, rules = rules, _with_constraint(generator, rules, constraint)
        max_new_tokens = check_int("max_new_tokens", max_new_tokens, 1, MOST_TOKENS, none=True)
        batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        self.num_samples = check_int("num_samples", num_samples, 1, MOST_TOKENS)
        max_length = check_int("max_length", max_length, 1, MOST_TOKENS, none=True)
        # A default limit is capped at what the model supports.
        said, capped = "", max_new_tokens is None and not generator.continues_prompts
        if max_new_tokens is None:
            max_new_tokens, longest = generator.published_limits(max_length)
            if max_length is None and longest is not None:
                max_length, said = longest, " of the checkpoint's generation config"
        self.verbose = check_flag("verbose", verbose)
        for place, row in enumerate(prompts):
            if not row:
                raise ValueError(f"`prompts[{place}]` is empty: there must be at least one token.")
            task.backbone.check_ids(**{f"prompts[{place}]": np.asarray(row)})
        self.further = further
        self._check_sampler()
        check_cache_dtype(cache_dtype)
        if seed is not None:
            seed = check_seed("seed", seed, bits=64)
        elif sampler.draws:
            seed = int(keras.random.randint((), 0, 2**31 - 1))
        self.stop, stop_ids = ((), ()) if stop is None else check_stop(stop)
        if self.stop and task.tokenizer is None:
            raise ValueError("A model without a tokenizer stops at token ids, not at strings.")
        if stop_ids:
            task.backbone.check_ids(stop=np.asarray(stop_ids))
        self.end_ids = (*generator.end_ids, *stop_ids)
        each = [max_new_tokens] * len(prompts)
        if most is not None:
            each = [min(pair) for pair in zip(each, most, strict=True)]
        self.limits = self._limits(each, max_length, said, capped)
        if rules is not None:
            self._check_rules(rules, given, complete=constraint is not None)
        self.negative_prompts, guidance_scale = self._guidance(guidance_scale, negative_prompts)
        config = task.backbone.config.sides[-2:][0]  # The side that reads the prompt.
        # Beam search returns several results for one row; other samplers need a row for each.
        self.copies = self.num_samples if sampler.streams else 1
        self.rows: dict[tuple[int, int], _Row] = {}
        self.scheduler = Scheduler(
            generator.engine,
            Settings(
                sampler, rules, self.end_ids, generator.pad_id, cache_dtype, task.pack_weights,
                guidance_scale, generator.compile_steps,
            ),
            generator.format.engine_inputs,
            batch_size,
            copies=self.copies,
            seed=seed or 0,
            share_prefix=config.kind == "decoder" and not _by_length(config),
            longest=config.max_sequence_length if config.position == "learned" else None,
            further=self.further,
        )  # fmt: skip

    def _guidance(self, scale: float | None, given) -> tuple[list[list[int]] | None, float]:
        """Return the negative prompts (None without guidance) and the guidance scale."""
        generator, asked = self.generator, scale is not None
        scale = generator.published_guidance() if scale is None else scale
        scale = check_scale("guidance_scale", scale)
        if scale == 1:
            if given is not None and not asked:
                raise ValueError(
                    "`negative_prompts` need a `guidance_scale`, the strength with which texts are "
                    "led away from them: give one, such as guidance_scale=1.5."
                )
            return None, scale
        said = f"guidance_scale={scale}"
        said += "" if asked else " of the checkpoint's generation config"
        if self.further:
            raise ValueError(
                f"{said} cannot be combined with `global_positions`, which do not cover the "
                "negative prompts. Leave one of them out."
            )
        if given is None and not generator.continues_prompts:
            raise ValueError(
                f"{said} needs `negative_prompts` here: sources that the text is led away from. "
                'Pass negative_prompts="" for an empty source, or guidance_scale=1 for no guidance.'
            )
        negative = [row[-1:] for row in self.prompts] if given is None else list(given)
        self._check_negative(negative)
        return negative, scale

    def _check_negative(self, negative: list[list[int]]) -> None:
        """Raise ValueError if the model cannot take the negative prompts."""
        config = self.task.backbone.config.sides[-1]
        room = config.max_sequence_length if config.position == "learned" else float("inf")
        for place, (row, limit) in enumerate(zip(negative, self.limits, strict=True)):
            name = f"negative_prompts[{place}]"
            if not row:
                raise ValueError(f"`{name}` is empty: there must be at least one token.")
            self.task.backbone.check_ids(**{name: np.asarray(row)})
            before = self.generator.positions_before(row)
            if before + limit > room:
                raise ValueError(
                    f"`{name}` has {before} tokens, and with {limit} new ones needs more positions "
                    f"than the model has, {room}. Shorten it, or lower `max_new_tokens`."
                )

    def _check_rules(self, rules: Rules, given: Rules | None, complete: bool) -> None:
        """Raise ValueError if no text can satisfy the rules; `given` are the caller's rules.

        With `complete`, the limit must leave room for a whole text of the constraint; otherwise the
        text may be cut.
        """
        limit = min(self.limits)
        rules.check_limit(limit)
        if given is not None and given.min_new_tokens > limit:
            raise ValueError(
                f"`min_new_tokens` of the rules is {given.min_new_tokens}, but the limit of new "
                f"tokens is {limit}: raise `max_new_tokens` or `max_length`."
            )
        if given is not None and given.forced_prefix:
            ends: set = set(given.forced_prefix).intersection(self.end_ids)
            text = self.task.tokenizer.decode(given.forced_prefix) if self.stop else ""
            ends.update(string for string in self.stop if string in text)
            if ends:
                raise ValueError(
                    f"`forced_prefix` of the rules has {next(iter(ends))!r}, which ends the text: "
                    "nothing would be generated after it. Shorten the prefix."
                )
        if not isinstance(rules.automaton, TokenAutomaton):
            return
        fewest = rules.automaton.shortest_behind(rules.forced_prefix)
        if fewest is None:
            raise ValueError(
                "No text of `constraint` begins with the `forced_prefix` of the rules: give only "
                "one of them."
            )
        if complete and limit < fewest:
            raise ValueError(
                f"The shortest text of `constraint` has {fewest} tokens, and the limit is {limit}: "
                "raise `max_new_tokens` or `max_length`."
            )

    def _check_sampler(self) -> None:
        sampler, number = self.sampler, self.num_samples
        vocabulary = self.task.backbone.config.vocabulary_size
        if sampler.branches > vocabulary:
            raise ValueError(
                f"{sampler} follows {sampler.branches} continuations, but the vocabulary has "
                f"only {vocabulary} tokens."
            )
        if number > 1 and sampler.streams and not sampler.draws:
            raise ValueError(
                f"num_samples={number} of {sampler} would all be the same. Use a sampler "
                'that draws, such as "top_p", or beam search for the best few.'
            )
        if not sampler.streams and number > sampler.branches:
            raise ValueError(
                f"num_samples={number} needs at least as many beams, received {sampler}."
            )

    def _limits(
        self, max_new_tokens: list[int], max_length: int | None, said: str, capped: bool
    ) -> list[int]:
        """Return the largest number of new tokens for each prompt."""
        # The limits of the generating side: a seq2seq's encoder may have others.
        config, continues = self.task.backbone.config.sides[-1], self.generator.continues_prompts
        room = config.max_sequence_length if config.position == "learned" else float("inf")
        limits = []
        for place, (row, limit) in enumerate(zip(self.prompts, max_new_tokens, strict=True)):
            before = self.generator.positions_before(row)
            if max_length is not None:
                limit = min(limit, max_length - before)
            limit = min(limit, room - before) if capped and room > before else limit
            if limit < 1:
                raise ValueError(
                    f"`prompts[{place}]` has {len(row)} tokens: max_length="
                    f"{max_length}{said} leaves no room for a new one."
                )
            if before + limit > room:
                if not continues:
                    behind = f" after a prompt of {before}" if before else ""
                    raise ValueError(
                        f"max_new_tokens={limit}{behind} needs more positions than the model has, "
                        f"{room}."
                    )
                raise ValueError(
                    f"`prompts[{place}]` has {before} tokens, and with {limit} new ones needs "
                    f"more positions than the model has, {room}. Shorten "
                    "the prompt, or lower `max_new_tokens`."
                )
            limits.append(limit)
        return limits

    def completions(self, details: bool = False) -> list[list[Completion]]:
        """Return all results, `num_samples` for each prompt."""
        completions = [self._complete(found) for found in self._found()]
        if not details:
            return completions
        # One pass over all texts gives the model's log-probability of each token.
        pairs = [
            (prompt, completion.token_ids)
            for prompt, several in zip(self.prompts, completions, strict=True)
            for completion in several
        ]
        counts = [len(several) for several in completions]
        input_rows = np.repeat(np.arange(len(counts)), counts)
        scores = iter(self.generator.log_probabilities(pairs, self.further, input_rows))
        return [[c._replace(log_probabilities=next(scores)) for c in cs] for cs in completions]

    def samples(self) -> list[list[Sample]]:
        """Return `num_samples` `Sample`s for each prompt; the sampler is a `RecordedRandom`."""
        results = []
        for found in self._found():
            several = []
            for event, completion in zip(found, self._complete(found), strict=True):
                count = len(completion.token_ids) + (completion.finish_reason == "end")
                values = (event.tokens[0], event.log_probabilities, event.entropies)
                several.append(Sample(completion, *(value[:count] for value in values)))
            results.append(several)
        return results

    def _found(self) -> list[list[Finished]]:
        """Run to the end, and return what was found for each prompt, in the samples' order."""
        found: dict[int, list] = {}
        for event in self._events(_STEPS_TO_STOP if self.stop else None):
            if isinstance(event, Finished):
                found.setdefault(event.index, []).append(event)
        return [sorted(found[i], key=lambda event: event.copy) for i in range(len(self.prompts))]

    def pieces(self) -> Iterator[tuple[int, str]]:
        """Yield pairs of prompt index and new text; when a prompt finishes, all remaining text."""
        for event in self._events(_STEPS_TO_SHOW):
            piece = self._row(event).take(last=isinstance(event, Finished))
            if piece:
                yield event.index, piece

    def _events(self, steps: int | None) -> Iterator[Progress | Finished]:
        """Yield the scheduler's events, and stop rows that reached a stop string."""
        bar = None
        if self.verbose:
            bar = keras.utils.Progbar(len(self.prompts) * self.copies, unit_name="text")
        events = self.scheduler.run(self.prompts, self.limits, steps, self.negative_prompts)
        for event in events:
            if bar is not None and isinstance(event, Finished):
                bar.add(1)
            if steps is not None:
                row = self._row(event)
                tokens = event.tokens
                if isinstance(event, Finished):
                    tokens = tokens[0] if tokens else []
                row.push(self._until_end(tokens))
                if row.stopped and isinstance(event, Progress):
                    self.scheduler.stop(event.index, event.copy)
            yield event

    def _row(self, event: Progress | Finished) -> "_Row":
        key = (event.index, event.copy)
        if key not in self.rows:
            self.rows[key] = self._new_row(event.index)
        return self.rows[key]

    def _new_row(self, index: int) -> "_Row":
        prompt = self.prompts[index] if self.generator.continues_prompts else ()
        return _Row(TextStream(self.task.tokenizer, prompt, self.stop))

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = self.end_ids
        return next((ids[:i] for i, token in enumerate(ids) if token in ends), ids)

    def _complete(self, found: list[Finished]) -> list[Completion]:
        """Return the results of one prompt."""
        index = found[0].index
        if self.sampler.streams:
            results = [(event.tokens[0] if event.tokens else [], None) for event in found]
        else:
            scores = found[0].scores or [None] * len(found[0].tokens)
            results = list(zip(found[0].tokens, scores, strict=True))[: self.num_samples]
        completions = []
        for tokens, score in results:
            ids = self._until_end(tokens)
            reason = "end" if len(ids) < len(tokens) else "length"
            if self.stop:
                row = self._new_row(index)
                row.push(ids)
                if row.stopped:
                    ids, reason = ids[: row.count], "stop"
            completions.append(Completion(None, ids, reason, score))
        if self.task.tokenizer is None:
            return completions
        ids = [completion.token_ids for completion in completions]
        texts = self.generator.format.decode([self.prompts[index]] * len(ids), ids)
        return [
            completion._replace(text=without_stop(text, self.stop) if self.stop else text)
            for completion, text in zip(completions, texts, strict=True)
        ]


class _Row:
    """The text of one row, token by token, up to the first stop string."""

    def __init__(self, stream: TextStream):
        self.stream = stream
        self.count = 0  # tokens seen, up to the one that ends a stop string
        self._pieces: list[str] = []

    @property
    def stopped(self) -> bool:
        return self.stream.stopped

    def push(self, tokens: list[int]) -> None:
        """Take all tokens of the row so far, and process the new ones."""
        for token in tokens[self.count :]:
            if self.stopped:
                return
            self._pieces.append(self.stream.push([token]))
            self.count += 1

    def take(self, last: bool) -> str:
        """Return the text since the last call."""
        pieces, self._pieces = self._pieces, []
        return "".join(pieces) + (self.stream.finish() if last else "")


def _by_length(config) -> bool:
    """Return True if the states of a prefix depend on the length of the whole text."""
    return any(layer.rotary_scaling in ("dynamic", "longrope") for layer in config.layers)


def _with_constraint(generator, rules: Rules | None, constraint) -> Rules | None:
    """Merge the caller's rules, the constraint's automaton and the checkpoint's rules."""
    if not isinstance(rules, Rules | None):
        raise ValueError(
            "`rules` must be a keras_transformer.generation.Rules, received "
            f"{type(rules).__name__}."
        )
    if constraint is not None:
        if rules is not None and rules.automaton is not None:
            raise ValueError("Give either `constraint` or rules with an `automaton`, not both.")
        if isinstance(constraint, (dict, bool)):
            constraint = generator.constraint(json_schema=constraint)
        if not isinstance(constraint, TokenAutomaton):
            raise ValueError(
                "`constraint` must be a JSON Schema as a dict, or the result of the method "
                f"`constraint`, received {shorten(constraint)}."
                + (" For a pattern use `constraint(regex=...)`." * isinstance(constraint, str))
            )
        rules = (rules or Rules()).with_automaton(constraint)
    if rules is not None and rules.automaton is not None:
        return rules
    published = generator.published_rules()
    if rules is not None and rules.forced_prefix and generator.format.first_ids:
        raise ValueError(
            "The translation begins with the token of its `target`: give either `target` or rules "
            "with a `forced_prefix`, not both."
        )
    if rules is not None:
        forced = {"forced_prefix": (), "forced_end": None}
        missing = [name for name, none in forced.items() if getattr(rules, name) == none]
        forced = {name: getattr(published, name) for name in missing}
        published = dataclasses.replace(rules, **forced)
    return None if published == NO_RULES else published
