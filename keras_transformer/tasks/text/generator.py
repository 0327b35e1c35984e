"""The text generator of a task: prompts, `generate`, samplers, constraints and scores."""

import copy
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.explanations.explaining import ExplainOptions
from keras_transformer.generation import published
from keras_transformer.generation.constraints.constraints import Constraints, TokenAutomaton
from keras_transformer.generation.engine import Engine
from keras_transformer.generation.rules.rules import NO_RULES, Rules
from keras_transformer.generation.samplers import samplers
from keras_transformer.generation.samplers.samplers import Greedy, Sampler
from keras_transformer.generation.scoring import (
    TokenScores,
    pad_for,
    score_continuations,
    score_next,
)
from keras_transformer.models.runtime.read_write_lock import locked_stream
from keras_transformer.support.checking import (
    MOST_TOKENS,
    check_bool,
    check_flag,
    check_text,
    is_int,
    shorten,
)
from keras_transformer.support.columns import text_alone
from keras_transformer.tasks.data.arguments import listed, padded_places
from keras_transformer.tasks.data.streams import is_data_set
from keras_transformer.tasks.data.text import text_rows, tokenizer_of
from keras_transformer.tasks.text.explaining_text import check_explained_texts, explained_text
from keras_transformer.tasks.text.generating import Completion, GenerationCall


class IdsOfText(list):
    """Token ids of a prompt that was given as text: its continuation is returned as text."""


class PromptFormat:
    """Conversion of prompts to inputs of the model, and of generated ids to texts.

    Args:
        task: the task; the format only holds a weak reference to it.
    """

    continues_prompts: ClassVar[bool] = False  # whether the generated text continues the prompt
    takes_ids: bool = True  # whether prompts may be ids, and not only texts
    first_ids: tuple[int, ...] | None = None  # ids that texts begin with; None: the checkpoint's
    takes_guidance: ClassVar[bool] = False  # whether `generate` has a `guidance_scale`
    most_new_tokens: int = 64  # if neither the caller nor the checkpoint gives a limit

    def __init__(self, task: keras.Model):
        self._task = weakref.ref(task)

    @property
    def task(self) -> Any:
        return self._task()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of prompts."""
        return tokenizer_of(self.task).encode_batch(texts)

    def decode(self, prompts: list[list[int]], continuations: list[list[int]]) -> list[str]:
        """Return the texts of ids that were generated for prompts."""
        return tokenizer_of(self.task).decode_batch(continuations)

    def of_languages(
        self, source: str | None, target: str | None, constrained: bool = False
    ) -> "PromptFormat":
        """Return the format of sources and targets of these languages.

        `constrained` tells whether a constraint describes the whole generated text. Raises
        ValueError if the model does not know the languages.
        """
        raise ValueError(
            "`source` and `target` are the languages of a translation model, a `Seq2SeqLM`: "
            "leave them out here."
        )

    def engine_inputs(self, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs that generation starts from; `ids` and `mask` are `(rows, length)`."""
        raise NotImplementedError

    def scoring_inputs(
        self, prompts: list[list[int]], continuations: list[list[int]]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the inputs for scoring whole texts, and where the scores of each row begin."""
        raise NotImplementedError

    def positions_before(self, prompt: list[int]) -> int:
        """Return the number of decoder positions that a prompt takes up."""
        return len(prompt) if self.continues_prompts else 0


class Generator:
    """Text generation of a task: prompts, sampling, constraints and scores.

    Args:
        task: the task; the generator only holds a weak reference to it.
        format: `PromptFormat`.
        end_ids: list of int, ids that each end a text. Defaults to the tokenizer's end id.
    """

    def __init__(self, task: keras.Model, format: PromptFormat, end_ids=None):
        self._task = weakref.ref(task)
        self.format = format
        backbone = task.backbone
        if end_ids is None:
            end = None if task.tokenizer is None else task.tokenizer.end_id
            end_ids = [] if end is None else [end]
        elif not isinstance(end_ids, (list, tuple)) or not all(map(is_int, end_ids)):
            raise ValueError(f"`end_ids` must be a list of token ids, received {shorten(end_ids)}.")
        if end_ids:
            backbone.check_ids(end_ids=np.asarray(end_ids))
        self.end_ids = tuple(map(int, end_ids))
        self.engine = Engine(backbone)
        self.compile_steps = False
        self._constraints: Constraints | None = None
        self._sampler: Sampler | None = None  # set by `compile` of the task

    @property
    def task(self) -> Any:
        return self._task()

    @property
    def backbone(self):
        return self.task.backbone

    @property
    def tokenizer(self):
        return self.task.tokenizer

    @property
    def continues_prompts(self) -> bool:
        return self.format.continues_prompts

    @property
    def takes_guidance(self) -> bool:
        return self.format.takes_guidance

    def positions_before(self, prompt: list[int]) -> int:
        """Return the number of decoder positions that a prompt takes up."""
        return self.format.positions_before(prompt)

    def compile(self, compile, *args, sampler=None, **kwargs) -> None:
        """Set the default sampler, and compile the task with its method `compile`."""
        sampler = self._sampler if sampler is None else samplers.get(sampler)
        compile(*args, **kwargs)
        self._sampler = sampler
        if kwargs.get("jit_compile", "auto") != "auto":
            self.compile_steps = kwargs["jit_compile"]

    def of_languages(
        self, source: str | None, target: str | None, constrained: bool = False
    ) -> "Generator":
        """Return a generator of translations between two languages, see `PromptFormat`."""
        if source is None and target is None:
            return self
        generator = copy.copy(self)
        generator.format = self.format.of_languages(source, target, constrained)
        return generator

    def generate(self, prompts, options: dict, negative_prompts, global_positions, **how):
        """Return the result of `generate` for prompts.

        `options` are arguments of `GenerationCall`; `how` are `return_prompt`, `stream`,
        `return_details` and `explain`.
        """
        rows, as_text, single = self.prompt_ids(prompts)
        negative = self._negative_ids(negative_prompts, len(rows))
        further = self.global_inputs(global_positions, rows)
        options = {**options, "negative_prompts": negative}
        return self.completed(rows, options, further, as_text, single, **how)

    def completed(
        self, rows, options: dict, further, as_text=False, single=False, return_prompt=False,
        stream=False, return_details=False, explain: bool | ExplainOptions = False,
    ):  # fmt: skip
        """Return the result of `generate` for ids; `options` are arguments of `GenerationCall`."""
        stream = check_flag("stream", stream)
        return_details = check_flag("return_details", return_details)
        return_prompt = check_flag("return_prompt", return_prompt)
        if not isinstance(explain, ExplainOptions):
            explain = ExplainOptions.checked() if check_flag("explain", explain) else None
        if explain is not None:
            check_explained_texts(self, rows, [[] for _ in rows], explain, further)
        return_details = return_details or explain is not None
        call = GenerationCall(self.task, rows, further=further, generator=self, **options)
        whole = call.num_samples > 1 or return_details or return_prompt
        if stream and (whole or self.tokenizer is None):
            raise ValueError(
                "`stream=True` gives pieces of text: it needs a tokenizer, and cannot be combined "
                "with `num_samples`, `return_details`, `explain` or `return_prompt`."
            )
        if stream:
            pieces = locked_stream(self.task, "generate", call.pieces())
            return (piece for _, piece in pieces) if single else pieces
        outputs: list = []
        for i, completions in enumerate(call.completions(return_details)):
            row = rows[i]
            if explain is not None:
                completions = [self._with_steps(row, c, explain, further, i) for c in completions]
            if return_prompt:
                completions = [self._with_prompt(row, c) for c in completions]
            if not return_details:
                completions = [c.text if as_text else c.token_ids for c in completions]
            outputs.append(completions if call.num_samples > 1 else completions[0])
        return outputs[0] if single else outputs

    def constraint(
        self,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        json_schema: dict | bool | None = None,
    ) -> TokenAutomaton:
        """Compile a constraint, see `LanguageModel.constraint`."""
        tokenizer = tokenizer_of(self.task)
        shared = self.task.generator  # a generator of other languages is a copy of it
        if shared._constraints is None:
            shared._constraints = Constraints.from_tokenizer(tokenizer, self.continues_prompts)
        return shared._constraints.make(regex, choices, json_schema)

    def _with_steps(self, prompt, completion: Completion, how, further, place) -> Completion:
        """Add the explanation of the steps that generated a completion, including its end id."""
        ends = self.end_ids[:1] if completion.finish_reason == "end" else ()
        written = [*completion.token_ids, *ends]
        explanation = explained_text(self, prompt, written, how, further, place)
        return completion._replace(explanation=explanation)

    def _with_prompt(self, prompt: list[int], completion: Completion) -> Completion:
        ids = prompt + completion.token_ids
        if completion.text is None:
            return completion._replace(token_ids=ids)
        text = completion.text
        if self.continues_prompts:
            text = self.tokenizer.decode(prompt) + text
        else:
            text = self.tokenizer.decode_batch([ids])[0]
        return completion._replace(text=text, token_ids=ids)

    def global_inputs(self, places, rows: list[list[int]], name="prompts") -> dict:
        """Return the backbone's input for the argument `global_positions`, given as `places`.

        `rows` are the prompts, and `name` is their name in errors.
        """
        if places is None:
            return {}
        wanted = "encoder_global_positions"
        if wanted not in {array.name for array in self.backbone.input_arrays}:
            raise ValueError(
                "`global_positions` are the tokens with global attention in an encoder with a "
                "window, and this model has no such encoder: leave them out."
            )
        return {wanted: padded_places("global_positions", places, rows, name)}

    def scores(self, pairs: list, per_token: bool, single: bool, further=None):
        """Return the log-probability of each continuation, or with `per_token` of its tokens.

        With `single`, return the only result rather than a list.
        """
        per_token = check_bool("per_token", per_token)
        scores: Any = self.log_probabilities(pairs, further)
        if not per_token:
            scores = np.asarray([row.sum(dtype="float64") for row in scores])
        return scores[0] if single else scores

    def log_probabilities(
        self, pairs: list[tuple[list[int], list[int]]], further=None, input_rows=None
    ) -> list[np.ndarray]:
        """Return the log-probability of each token of each continuation, given its prompt.

        `input_rows` gives the row of `further` for each pair. Defaults to the index of the pair.
        """
        found = self.token_scores(pairs, further, input_rows)
        return [scores.log_probabilities for scores in found]

    def token_scores(
        self,
        pairs: list[tuple[list[int], list[int]]],
        further=None,
        input_rows=None,
        top_k: int = 0,
    ) -> list[TokenScores]:
        """Return `TokenScores` of each continuation, with the `top_k` best tokens per position."""
        make, options = self.format.scoring_inputs, (further or {}, input_rows, top_k)
        return score_continuations(self.engine, make, pairs, self.pad_id, *options)

    def next_scores(self, prompts: Sequence[list[int]]) -> list[np.ndarray]:
        """Return the log-probability of each token of the vocabulary after each prompt."""
        return score_next(self.engine, self.format.scoring_inputs, prompts, self.pad_id)

    @property
    def sampler(self) -> Sampler:
        """The default sampler of `generate`: the compiled one, otherwise the checkpoint's."""
        if self._sampler is not None:
            return self._sampler
        values = self.backbone.generation_config
        return published.sampler_of(values) if values else Greedy()

    @sampler.setter
    def sampler(self, sampler: Sampler | None) -> None:
        self._sampler = sampler

    def published_rules(self) -> Rules:
        """Return the rules of the checkpoint's generation config, and of the target's language."""
        values = self.backbone.generation_config
        rules = published.rules_of(values, self.continues_prompts) if values else NO_RULES
        first = self.format.first_ids
        return rules if first is None else dataclasses.replace(rules, forced_prefix=first)

    def published_guidance(self) -> float:
        """Return the checkpoint's `guidance_scale`; 1 means no guidance."""
        values = self.backbone.generation_config if self.takes_guidance else None
        return published.guidance_of(values) if values else 1.0

    def published_limits(self, max_length: int | None) -> tuple[int, int | None]:
        """Return the limits of new tokens and of the text's length, given the caller's limit."""
        said = published.limits_of(self.backbone.generation_config, self.continues_prompts)
        most = (
            MOST_TOKENS
            if max_length is None and said[1] is not None
            else self.format.most_new_tokens
        )
        return said[0] or most, said[1]

    @property
    def pad_id(self) -> int:
        """The padding id, which also fills rows after their end."""
        return 0 if self.tokenizer is None else self.tokenizer.pad_id or 0

    def prompt_ids(self, prompts, name="prompts") -> tuple[list[list[int]], bool, bool]:
        """Return rows of ids, whether prompts were given as text, and whether as a single one."""
        if isinstance(prompts, IdsOfText):
            return [list(prompts)], True, True
        prompts = prompts if isinstance(prompts, (str, list)) else text_alone(prompts)
        if isinstance(prompts, str):
            check_text(name, prompts)
            return self.format.encode([prompts]), True, True
        rows = listed(prompts, name)
        if keras.ops.is_tensor(rows):
            rows = keras.ops.convert_to_numpy(rows)
        if hasattr(rows, "__array__"):  # also a tensor of another backend
            rows = np.asarray(rows).tolist()
        if is_data_set(rows):
            rows = self.task.processor_class.load_dataset(self.task, rows, {})
        if isinstance(rows, (list, tuple)) and not rows:
            raise ValueError(f"`{name}` is empty: there must be at least one prompt.")
        if not isinstance(rows, (list, tuple)):
            raise ValueError(
                f"`{name}` must be a string, a list of strings, or lists of token ids, received "
                f"{str(prompts)[:60]!r} of type {type(prompts).__name__}."
            )
        alone = all(is_int(token) for token in rows)
        if not self.format.takes_ids and (alone or not isinstance(rows[0], str)):
            raise ValueError(
                f"`{name}` must be texts here: ids already have the tokens of their languages. "
                "Give texts, or leave out `source` and `target`."
            )
        if alone:
            return [[int(token) for token in rows]], False, True
        if all(isinstance(row, (list, tuple, np.ndarray)) for row in rows):
            for place, row in enumerate(rows):
                if not all(is_int(token) for token in row):
                    raise ValueError(f"`{name}[{place}]` must hold token ids, received {row!r}.")
            return [[int(token) for token in row] for row in rows], False, False
        texts = text_rows(rows, name)
        for place, text in enumerate(texts):
            check_text(f"{name}[{place}]", text)
        return self.format.encode(texts), True, False

    def _negative_ids(self, negative_prompts, count: int) -> list[list[int]] | None:
        """Return the ids of the negative prompt for each of `count` prompts, or None."""
        if negative_prompts is None:
            return None
        rows, _, single = self.prompt_ids(negative_prompts, "negative_prompts")
        if single:
            return rows * count
        if len(rows) != count:
            raise ValueError(
                f"Received {count} prompts and {len(rows)} `negative_prompts`: give one for each "
                "prompt, or one for all."
            )
        return rows


def of_generator(name: str) -> property:
    """Return a property of a task that reads and writes an attribute of its generator."""
    return property(
        lambda task: getattr(task.generator, name),
        lambda task, value: setattr(task.generator, name, value),
    )


def engine_inputs(ids: np.ndarray, mask: np.ndarray, *start_ids: int) -> dict[str, np.ndarray]:
    """Return the inputs that generation starts from; `ids` and `mask` are `(prompts, length)`."""
    return {
        "encoder_token_ids": ids,
        "encoder_padding_mask": mask,
        "decoder_token_ids": np.tile(np.array([start_ids], "int32"), (len(ids), 1)),
    }


def scoring_inputs(
    config: TransformerConfig, prompts: list, continuations: list, pad_id: int, *start_ids: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the inputs for scoring whole texts, and the position where each row's scores begin."""
    reads, writes = config.sides[-2:]
    before = [[*start_ids, *row[:-1]] for row in continuations]
    inputs = {}
    for name, side, rows in (("encoder", reads, prompts), ("decoder", writes, before)):
        ids, mask = pad_for(side, rows, pad_id)
        inputs |= {f"{name}_token_ids": ids, f"{name}_padding_mask": mask}
    return inputs, np.full((len(prompts),), len(start_ids) - 1, "int64")
