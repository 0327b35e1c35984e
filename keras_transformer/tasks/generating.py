"""One call of `generate`: from checked options through the scheduler to texts, or to pieces."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.checking import MOST_TOKENS, check_flag, check_int, check_seed, shorten
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import TokenAutomaton
from keras_transformer.generation.decoding import check_cache_dtype
from keras_transformer.generation.engine import Settings
from keras_transformer.generation.guidance import check_scale
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.scheduler import Finished, Progress, Scheduler
from keras_transformer.generation.streaming import TextStream, check_stop, without_stop

# Steps between two looks at the text so far: for stop strings, and for a reader.
_STEPS_TO_STOP, _STEPS_TO_SHOW = 16, 4


class Completion(NamedTuple):
    """What was generated, and what is known of it.

    Fields:
        text: str, or None for a model without a tokenizer.
        token_ids: list of int, without the end. A stop string's tokens are among them.
        finish_reason: `"end"` for an end id, `"stop"` for a stop string, `"length"`.
        score: float, what beam search ranks by; else None.
        log_probabilities: float array `(tokens,)`, what the model gives each of `token_ids`,
            before rules and samplers change it; None unless asked for.
        explanation: `explanations.Explanation`, what the model saw in each step; None unless asked
            for.
    """

    text: str | None
    token_ids: list[int]
    finish_reason: str
    score: float | None = None
    log_probabilities: Any = None
    explanation: Any = None


class GenerationCall:
    """Generates for `prompts`, lists of ids, with a `LanguageModel`; arguments as in `generate`.

    `further` are inputs of the backbone by name, of a row for each prompt, and `most` the most new
    tokens of each, whatever is said of all.
    """

    def __init__(
        self, task, prompts: list[list[int]], *, further, max_new_tokens=None, sampler=None,
        batch_size=32, max_length=None, stop=None, rules=None, constraint=None, num_samples=1,
        seed=None, cache_dtype=None, verbose=False, most: Sequence[int] | None = None,
        guidance_scale=None, negative_prompts: Sequence[list[int]] | None = None,
    ):  # fmt: skip
        self.task = task
        self.prompts = prompts
        self.sampler = sampler = task.sampler if sampler is None else samplers.get(sampler)
        given, rules = rules, _with_constraint(task, rules, constraint)
        max_new_tokens = check_int("max_new_tokens", max_new_tokens, 1, MOST_TOKENS, none=True)
        batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        self.num_samples = check_int("num_samples", num_samples, 1, MOST_TOKENS)
        max_length = check_int("max_length", max_length, 1, MOST_TOKENS, none=True)
        # What nobody asked for is no more than the model can.
        said, capped = "", max_new_tokens is None and not task.continues_prompts
        if max_new_tokens is None:
            max_new_tokens, longest = task.published_limits(max_length)
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
        self.end_ids = (*task.end_ids, *stop_ids)
        each = [max_new_tokens] * len(prompts)
        if most is not None:
            each = [min(pair) for pair in zip(each, most, strict=True)]
        self.limits = self._limits(each, max_length, said, capped)
        if rules is not None:
            self._check_rules(rules, given, complete=constraint is not None)
        self.negative_prompts, guidance_scale = self._guidance(guidance_scale, negative_prompts)
        config = task.backbone.config.sides[-2:][0]  # What reads a prompt.
        # Beam search has several results of one row; others take a row for each.
        self.copies = self.num_samples if sampler.streams else 1
        self.rows: dict[tuple[int, int], _Row] = {}
        self.scheduler = Scheduler(
            task.engine,
            Settings(
                sampler, rules, self.end_ids, task.pad_id, cache_dtype, task.pack_weights,
                guidance_scale,
            ),
            task._engine_inputs,
            batch_size,
            copies=self.copies,
            seed=seed or 0,
            share_prefix=config.kind == "decoder" and not _by_length(config),
            longest=config.max_sequence_length if config.position == "learned" else None,
            further=self.further,
        )  # fmt: skip

    def _guidance(self, scale: float | None, given) -> tuple[list[list[int]] | None, float]:
        """Return the negative prompt of each prompt, None without guidance, and the scale."""
        task, asked = self.task, scale is not None
        scale = task.published_guidance() if scale is None else scale
        scale = check_scale("guidance_scale", scale)
        if scale == 1:
            if given is not None and not asked:
                raise ValueError(
                    "`negative_prompts` are what a text is led away from by `guidance_scale`: give "
                    "one, such as guidance_scale=1.5."
                )
            return None, scale
        said = f"guidance_scale={scale}"
        said += "" if asked else " of the checkpoint's generation config"
        if self.further:
            raise ValueError(
                f"{said} does not go with `global_positions`, which say nothing of the negative "
                "prompts. Leave out one of the two."
            )
        if given is None and not task.continues_prompts:
            raise ValueError(
                f"{said} needs `negative_prompts` here: other sources, which the text is led away "
                'from. negative_prompts="" is an empty source, guidance_scale=1 no guidance.'
            )
        negative = [row[-1:] for row in self.prompts] if given is None else list(given)
        self._check_negative(negative)
        return negative, scale

    def _check_negative(self, negative: list[list[int]]) -> None:
        """Raise ValueError for negative prompts that the model cannot take."""
        config = self.task.backbone.config.sides[-1]
        room = config.max_sequence_length if config.position == "learned" else float("inf")
        for place, (row, limit) in enumerate(zip(negative, self.limits, strict=True)):
            name = f"negative_prompts[{place}]"
            if not row:
                raise ValueError(f"`{name}` is empty: there must be at least one token.")
            self.task.backbone.check_ids(**{name: np.asarray(row)})
            before = self.task.positions_before(row)
            if before + limit > room:
                raise ValueError(
                    f"`{name}` has {before} tokens, and with {limit} new ones needs more positions "
                    f"than the model has, {room}. Shorten it, or lower `max_new_tokens`."
                )

    def _check_rules(self, rules: Rules, given: Rules | None, complete: bool) -> None:
        """Raise ValueError if no text can follow the rules; `given` are those of the caller.

        With `complete` a text of the constraint must fit into the limit; else it is cut.
        """
        limit = min(self.limits)
        rules.check_limit(limit)
        if given is not None and given.min_new_tokens > limit:
            raise ValueError(
                f"`min_new_tokens` of the rules is {given.min_new_tokens}, and the limit of new "
                f"tokens is {limit}: raise `max_new_tokens` or `max_length`."
            )
        if given is not None and given.forced_prefix:
            ends: set = set(given.forced_prefix).intersection(self.end_ids)
            text = self.task.tokenizer.decode(given.forced_prefix) if self.stop else ""
            ends.update(string for string in self.stop if string in text)
            if ends:
                raise ValueError(
                    f"`forced_prefix` of the rules has {next(iter(ends))!r}, which ends a text: "
                    "nothing behind it would be written."
                )
        if not isinstance(rules.automaton, TokenAutomaton):
            return
        fewest = rules.automaton.shortest_behind(rules.forced_prefix)
        if fewest is None:
            raise ValueError(
                "No text of `constraint` begins with the `forced_prefix` of the rules: give one of "
                "the two."
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
                f"{vocabulary} tokens only."
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
        """The most new tokens of each prompt."""
        # Of the side that writes: those of a seq2seq may differ.
        config, continues = self.task.backbone.config.sides[-1], self.task.continues_prompts
        room = config.max_sequence_length if config.position == "learned" else float("inf")
        limits = []
        for place, (row, limit) in enumerate(zip(self.prompts, max_new_tokens, strict=True)):
            before = self.task.positions_before(row)
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
                    behind = f" behind a prompt of {before}" if before else ""
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
        """All results, `num_samples` for each prompt."""
        found: dict[int, list] = {}
        for event in self._events(_STEPS_TO_STOP if self.stop else None):
            if isinstance(event, Finished):
                found.setdefault(event.index, []).append(event)
        completions = [self._complete(sorted(found[i])) for i in range(len(self.prompts))]
        if not details:
            return completions
        # What the model gives each token: one pass over all of them.
        pairs = [
            (prompt, completion.token_ids)
            for prompt, several in zip(self.prompts, completions, strict=True)
            for completion in several
        ]
        counts = [len(several) for several in completions]
        owners = np.repeat(np.arange(len(counts)), counts)
        scores = iter(self.task._log_probabilities(pairs, self.further, owners))
        return [[c._replace(log_probabilities=next(scores)) for c in cs] for cs in completions]

    def pieces(self) -> Iterator[tuple[int, str]]:
        """Prompt and piece of text, as it comes; the rest of a prompt's text when it is done."""
        for event in self._events(_STEPS_TO_SHOW):
            piece = self._row(event).take(last=isinstance(event, Finished))
            if piece:
                yield event.index, piece

    def _events(self, steps: int | None) -> Iterator[Progress | Finished]:
        """What the scheduler tells, with rows stopped that came to a stop string."""
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
        prompt = self.prompts[index] if self.task.continues_prompts else ()
        return _Row(TextStream(self.task.tokenizer, prompt, self.stop))

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = self.end_ids
        return next((ids[:i] for i, token in enumerate(ids) if token in ends), ids)

    def _complete(self, found: list[Finished]) -> list[Completion]:
        """The results of one prompt."""
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
        texts = self.task._to_texts([self.prompts[index]] * len(ids), ids)
        return [
            completion._replace(text=without_stop(text, self.stop))
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
        """`tokens` are all of the row so far."""
        for token in tokens[self.count :]:
            if self.stopped:
                return
            self._pieces.append(self.stream.push([token]))
            self.count += 1

    def take(self, last: bool) -> str:
        """The text that was not taken yet."""
        pieces, self._pieces = self._pieces, []
        return "".join(pieces) + (self.stream.finish() if last else "")


def _by_length(config) -> bool:
    """Whether what is computed of a text's beginning depends on how long the text is."""
    return any(layer.rotary_scaling in ("dynamic", "longrope") for layer in config.layers)


def _with_constraint(task, rules: Rules | None, constraint) -> Rules | None:
    """The rules with the automaton of a constraint, and with what the checkpoint says."""
    if not isinstance(rules, Rules | None):
        raise ValueError(
            "`rules` must be a keras_transformer.generation.Rules, received "
            f"{type(rules).__name__}."
        )
    if constraint is not None:
        if rules is not None and rules.automaton is not None:
            raise ValueError("Give either `constraint` or rules with an `automaton`, not both.")
        if isinstance(constraint, (dict, bool)):
            constraint = task.constraint(json_schema=constraint)
        if not isinstance(constraint, TokenAutomaton):
            raise ValueError(
                "`constraint` must be a JSON Schema as a dict, or what the method `constraint` "
                f"returns, received {shorten(constraint)}."
                + (" Of a pattern it is `constraint(regex=...)`." * isinstance(constraint, str))
            )
        rules = (rules or Rules()).with_automaton(constraint)
    if rules is not None and rules.automaton is not None:
        return rules
    published = task.published_rules()
    if rules is not None:
        forced = {"forced_prefix": (), "forced_end": None}
        missing = [name for name, none in forced.items() if getattr(rules, name) == none]
        forced = {name: getattr(published, name) for name in missing}
        published = dataclasses.replace(rules, **forced)
    return None if published == Rules() else published
