"""One call of `generate`: from checked options through the scheduler to texts, or to pieces."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from keras_transformer.checking import shorten
from keras_transformer.generation.constraints import TokenAutomaton
from keras_transformer.generation.engine import Settings
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Sampler
from keras_transformer.generation.scheduler import Finished, Progress, Scheduler
from keras_transformer.generation.streaming import TextStream, without_stop

# Steps between two looks at the text so far: for stop strings, and for a reader.
_STEPS_TO_STOP, _STEPS_TO_SHOW = 16, 4


class Completion(NamedTuple):
    """What was generated, and what is known of it.

    Fields:
        text: str, or None for a model without a tokenizer.
        token_ids: list of int, without the end. A stop string's tokens are among them.
        finish_reason: `"end"` for an end id, `"stop"` for a stop string, `"length"`.
        score: float, what beam search ranks by; else None.
        log_probabilities: float array `(tokens,)`, natural logarithms of what the model gives each
            of `token_ids`, before rules and samplers change it; None unless asked for.
    """

    text: str | None
    token_ids: list[int]
    finish_reason: str
    score: float | None = None
    log_probabilities: Any = None


class Options(NamedTuple):
    """The checked arguments of `generate`."""

    limits: list[int]  # new tokens of each prompt
    sampler: Sampler
    rules: Any
    stop: tuple[str, ...]
    end_ids: tuple[int, ...]
    num_samples: int
    batch_size: int
    seed: int
    cache_dtype: str | None
    verbose: bool


def constrained(task, rules: Rules | None, constraint) -> Rules | None:
    """The rules of a call of `task.generate` with the automaton of its constraint."""
    if constraint is None or not isinstance(rules, Rules | None):
        return rules  # which is checked with the other arguments
    if rules is not None and rules.automaton is not None:
        raise ValueError("Give either `constraint` or rules with an `automaton`, not both.")
    if isinstance(constraint, (dict, bool)):
        constraint = task.constraint(json_schema=constraint)
    if not isinstance(constraint, TokenAutomaton):
        raise ValueError(
            "`constraint` must be a JSON Schema as a dict, or what the method `constraint` "
            f"returns, received {shorten(constraint)}."
        )
    return (rules or Rules()).with_automaton(constraint)


class GenerationCall:
    """Generates for `prompts`, lists of ids, with a `LanguageModel` and its checked `Options`."""

    def __init__(self, task, prompts: list[list[int]], options: Options):
        self.task = task
        self.prompts = prompts
        self.options = options
        config = task.backbone.config
        # Beam search has several results of one row; others take a row for each.
        ranked = not options.sampler.streams
        self.copies = 1 if ranked else options.num_samples
        self.rows: dict[tuple[int, int], _Row] = {}
        self.scheduler = Scheduler(
            task.engine,
            Settings(
                options.sampler,
                options.rules,
                options.end_ids,
                task.pad_id,
                options.cache_dtype,
                task.pack_weights,
            ),
            task._engine_inputs,
            options.batch_size,
            copies=self.copies,
            seed=options.seed,
            share_prefix=config.kind == "decoder",
            longest=config.max_sequence_length if config.position == "learned" else None,
        )

    def completions(self) -> list[list[Completion]]:
        """All results, `num_samples` for each prompt."""
        found: dict[int, list] = {}
        for event in self._events(_STEPS_TO_STOP if self.options.stop else None):
            if isinstance(event, Finished):
                found.setdefault(event.index, []).append(event)
        return [self._complete(sorted(found[i])) for i in range(len(self.prompts))]

    def pieces(self) -> Iterator[tuple[int, str]]:
        """Prompt and piece of text, as it comes; the rest of a prompt's text when it is done."""
        for event in self._events(_STEPS_TO_SHOW):
            piece = self._row(event).take(last=isinstance(event, Finished))
            if piece:
                yield event.index, piece

    def _events(self, steps: int | None) -> Iterator[Progress | Finished]:
        """What the scheduler tells, with rows stopped that came to a stop string."""
        bar = None
        if self.options.verbose:
            bar = keras.utils.Progbar(len(self.prompts) * self.copies, unit_name="text")
        for event in self.scheduler.run(self.prompts, self.options.limits, steps):
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
        return _Row(TextStream(self.task.tokenizer, prompt, self.options.stop))

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = self.options.end_ids
        return next((ids[:i] for i, token in enumerate(ids) if token in ends), ids)

    def _complete(self, found: list[Finished]) -> list[Completion]:
        """The results of one prompt."""
        index = found[0].index
        if self.options.sampler.streams:
            results = [(event.tokens[0] if event.tokens else [], None) for event in found]
        else:
            scores = found[0].scores or [None] * len(found[0].tokens)
            results = list(zip(found[0].tokens, scores, strict=True))[: self.options.num_samples]
        completions = []
        for tokens, score in results:
            ids = self._until_end(tokens)
            reason = "end" if len(ids) < len(tokens) else "length"
            if self.options.stop:
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
            completion._replace(text=without_stop(text, self.options.stop))
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
