"""The base of the generating tasks: sampler, prompts, `generate`, scores."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.checking import (
    MOST_TOKENS,
    check_bool,
    check_flag,
    check_text,
    is_int,
    shorten,
)
from keras_transformer.columns import text_alone
from keras_transformer.generation import published, samplers
from keras_transformer.generation.constraints import Constraints, TokenAutomaton
from keras_transformer.generation.engine import Engine
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Sampler
from keras_transformer.generation.scoring import TokenScores, score_continuations
from keras_transformer.kerashub_names import answers_theirs
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import in_pieces, reads
from keras_transformer.tasks.explaining import Asked
from keras_transformer.tasks.explaining_text import ExplainsWritten
from keras_transformer.tasks.generating import Completion, GenerationCall
from keras_transformer.tasks.inputs import listed, padded_places
from keras_transformer.tasks.streams import is_data_set
from keras_transformer.tasks.task import PER_TOKEN
from keras_transformer.tasks.text import text_rows, tokenizer_of
from keras_transformer.tasks.token_predictor import TokenPredictor
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossEntropy


class IdsOfText(list):
    """Ids that are a text, so that what continues them is wanted as text."""


class LanguageModel(ExplainsWritten, TokenPredictor):
    """A decoder with the vocabulary's logits as output, and `generate`.

    A subclass says, of prompts as ids: `_encode_prompts` of texts, `_to_texts` of prompts and what
    was generated, `_engine_inputs` and `_scoring_inputs` (arrays, and where scores begin).
    """

    predict_options: ClassVar = PER_TOKEN
    generates = True
    task_options = ("end_ids",)
    continues_prompts: ClassVar[bool]  # whether what is generated follows on the prompt
    takes_guidance: ClassVar[bool] = False  # whether `generate` has a `guidance_scale`
    most_new_tokens: int = 64  # where neither the caller nor the checkpoint says it
    _sampler: Sampler | None = None  # of `compile`

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        end_ids: Sequence[int] | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, name=name)
        if end_ids is None:
            end = None if self.tokenizer is None else self.tokenizer.end_id
            end_ids = [] if end is None else [end]
        elif not isinstance(end_ids, (list, tuple)) or not all(map(is_int, end_ids)):
            raise ValueError(f"`end_ids` must be a list of token ids, received {shorten(end_ids)}.")
        if end_ids:
            backbone.check_ids(end_ids=np.asarray(end_ids))
        self.end_ids = tuple(map(int, end_ids))
        self.engine = Engine(backbone)
        self._constraints: Constraints | None = None
        self.built = True
        self.compile(
            optimizer=keras.optimizers.Adam(1e-4),
            loss=TokenCrossEntropy(),
            weighted_metrics=[Perplexity(), TokenAccuracy()],
        )

    def compile(self, *args, sampler=None, **kwargs):
        """As `keras.Model.compile`, and how `generate` works. What is not given does not change.

        Args:
            *args: as in `keras.Model.compile`.
            sampler: name or object, the default of `generate`. At first it is what the checkpoint
                says, `backbone.generation_config`, and else `"greedy"`.
            **kwargs: as in `keras.Model.compile`, and `pack_weights`, see docs/faster.md.
        """
        sampler = self._sampler if sampler is None else samplers.get(sampler)
        super().compile(*args, **kwargs)
        self.sampler = sampler

    def compile_values(self) -> dict:
        return {**super().compile_values(), "sampler": self._sampler}

    @answers_theirs
    @reads
    def generate(
        self,
        prompts,
        max_new_tokens: int | None = None,
        sampler: "str | Sampler | None" = None,
        batch_size: int = 32,
        return_prompt: bool = False,
        *,
        max_length: int | None = None,
        stop=None,
        rules: Rules | None = None,
        constraint: "TokenAutomaton | dict | None" = None,
        num_samples: int = 1,
        seed: int | None = None,
        stream: bool = False,
        return_details: bool = False,
        cache_dtype: str | None = None,
        global_positions=None,
        verbose: bool = False,
        explain: bool = False,
        guidance_scale: float | None = None,
        negative_prompts=None,
    ):
        """Continuations of prompts, or translations of sources.

        Any number of prompts of any lengths go in one call; each gives what it gives alone. They
        are decoded `batch_size` at a time, and those that are done make room for others.

        Args:
            prompts: a string, a list of strings, a list of ids, or a list of lists of ids; or a
                data set of strings, such as a `tf.data.Dataset`, which is read to its end.
            max_new_tokens: int, the most tokens of a continuation. Defaults to what the checkpoint
                says (`backbone.generation_config`), else to 64.
            sampler: `"greedy"`, `"beam"`, `"random"`, `"top_k"`, `"top_p"`, `"contrastive"`,
                `"speculative"`, or a sampler object. Defaults to that of `compile`.
            batch_size: int, prompts decoded together.
            return_prompt: bool, put the prompt before its continuation.
            max_length: int, the most tokens of prompt and continuation, or of a translation.
            stop: strings and token ids that end a text, one or a list. They are not part of it.
            rules: `Rules`, what the text must or must not contain. Defaults to those of the
                checkpoint. `Rules` that are given replace these, except for a first or last token
                that the checkpoint forces and they do not; so `Rules()` turns the others off. A
                `constraint` turns all of them off.
            constraint: a JSON Schema as a dict, or what `constraint` returns. The text is valid.
            num_samples: int, texts for each prompt: the best of beam search, else drawn ones.
            seed: int from 0 to 2**64 - 1, for samplers that draw. Defaults to a drawn one.
            stream: bool, return an iterator of pieces of text; for a list of `(place, piece)`.
            return_details: bool, return `Completion`s with ids, log-probabilities and reasons.
            cache_dtype: the dtype of the cache, see `Cache.create`.
            global_positions: places in the prompt of tokens that see all and are seen by all, for
                an encoder with a window: a list of int for all prompts, as `[0]`, or one for each
                prompt. Defaults to the first `global_tokens` of the model's config.
            verbose: bool, show a progress bar.
            explain: bool, return `Completion`s with an `explanation` of their steps, as `explain`
                gives it: one more pass for each.
            guidance_scale: float from -1000 to 1000, how far a text is led away from what
                `negative_prompts` would give (classifier-free guidance): tokens are chosen by
                `scale * (p - n) + n`, where `p` and `n` are the log-probabilities behind the prompt
                and behind the negative prompt. Doubles the work and the cache of a step. Defaults
                to what the checkpoint says, else to 1: no guidance.
            negative_prompts: as `prompts`, one for all prompts or one for each; of a translator
                they are other sources. Defaults to the last token of each prompt; a translator
                has no default.

        Returns:
            A string for a string, ids for ids; with `num_samples` above 1 a list of them; for a
            list a list of these.

        Raises:
            ValueError: for prompts, ids, lengths or options that the model cannot take, or a
                `guidance_scale` with speculative decoding or contrastive search.
            FloatingPointError: if logits are not numbers.
        """
        options = {
            "max_new_tokens": max_new_tokens, "sampler": sampler, "batch_size": batch_size,
            "max_length": max_length, "stop": stop, "rules": rules, "constraint": constraint,
            "num_samples": num_samples, "seed": seed, "cache_dtype": cache_dtype,
            "verbose": verbose, "guidance_scale": guidance_scale,
        }  # fmt: skip
        rows, as_text, single = self._prompt_ids(prompts)
        options["negative_prompts"] = self._negative_ids(negative_prompts, len(rows))
        further = self.global_inputs(global_positions, rows)
        how = (as_text, single, return_prompt, stream, return_details, explain)
        return self._completed(rows, options, further, *how)

    def _completed(
        self, rows, options: dict, further, as_text, single, return_prompt, stream, return_details,
        explain: "bool | Asked" = False,
    ):  # fmt: skip
        """What `generate` returns for ids; `options` are those of a `GenerationCall`."""
        stream = check_flag("stream", stream)
        return_details = check_flag("return_details", return_details)
        return_prompt = check_flag("return_prompt", return_prompt)
        if not isinstance(explain, Asked):
            explain = Asked.of() if check_flag("explain", explain) else None
        if explain is not None:
            self.check_explained_texts(rows, [[] for _ in rows], explain, further)
        return_details = return_details or explain is not None
        call = GenerationCall(self, rows, further=further, **options)
        whole = call.num_samples > 1 or return_details or return_prompt
        if stream and (whole or self.tokenizer is None):
            raise ValueError(
                "`stream=True` gives pieces of text: it needs a tokenizer, and does not go with "
                "`num_samples`, `return_details`, `explain` or `return_prompt`."
            )
        if stream:
            pieces = in_pieces(self, "generate", call.pieces())
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
        """The texts that `generate` may give, for its `constraint` or `Rules(automaton=...)`.

        Args:
            regex: a regular expression, as of Python's `re`, that the whole text must match.
            choices: list of strings, one of which the text must be.
            json_schema: a JSON Schema, as a dict, against which the text must validate.

        Returns:
            A `TokenAutomaton`; the same one for the same arguments, so that compiled functions are
            shared.

        Raises:
            ImportError: for a JSON Schema if jsonschema is not installed.
            ValueError: for an invalid expression or schema, or a text that the tokens cannot make.

        Example:
        ```python
        import keras_transformer as kt

        translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
        either = translator.constraint(choices=["ein hund", "nein"])
        assert translator.generate("a dog", constraint=either) == "ein hund"
        ```
        """
        tokenizer = tokenizer_of(self)
        if self._constraints is None:
            self._constraints = Constraints.of(tokenizer, self.continues_prompts)
        return self._constraints.make(regex, choices, json_schema)

    def _with_steps(self, prompt, completion: Completion, how, further, place) -> Completion:
        """A completion with the explanation of the steps that wrote it, its end included."""
        ends = self.end_ids[:1] if completion.finish_reason == "end" else ()
        written = [*completion.token_ids, *ends]
        explanation = self.explained_text(prompt, written, how, further, place)
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
        """The input of the backbone that `global_positions` are, for rows of an argument."""
        if places is None:
            return {}
        wanted = "encoder_global_positions"
        if wanted not in {array.name for array in self.backbone.input_arrays}:
            raise ValueError(
                "`global_positions` says which tokens see all beside the window of an encoder, and "
                "this model has no encoder with a window: leave it out."
            )
        return {wanted: padded_places("global_positions", places, rows, name)}

    def _scores(self, pairs: list, per_token: bool, single: bool, further=None):
        """The log-probability of each continuation, or of each of its tokens; alone for one."""
        per_token = check_bool("per_token", per_token)
        scores: Any = self._log_probabilities(pairs, further)
        if not per_token:
            scores = np.asarray([row.sum(dtype="float64") for row in scores])
        return scores[0] if single else scores

    def _log_probabilities(
        self, pairs: list[tuple[list[int], list[int]]], further=None, owners=None
    ) -> list[np.ndarray]:
        """Of every token of each continuation its log-probability behind the prompt.

        `owners` are the rows of `further` that the pairs belong to, if not one each.
        """
        found = self.token_scores(pairs, further, owners)
        return [scores.log_probabilities for scores in found]

    def token_scores(
        self, pairs: list[tuple[list[int], list[int]]], further=None, owners=None, top_k: int = 0
    ) -> list[TokenScores]:
        """`TokenScores` of every continuation, with the `top_k` likeliest tokens at each place."""
        make, options = self._scoring_inputs, (further or {}, owners, top_k)
        return score_continuations(self.engine, make, pairs, self.pad_id, *options)

    def positions_before(self, prompt: list[int]) -> int:
        """How many positions of the decoder a prompt takes from what is generated."""
        return len(prompt) if self.continues_prompts else 0

    @property
    def sampler(self) -> Sampler:
        """That of `generate` when it is not told: `compile`'s, or else the checkpoint's."""
        if self._sampler is not None:
            return self._sampler
        return published.sampler_of(self.backbone.generation_config)

    @sampler.setter
    def sampler(self, sampler: Sampler | None) -> None:
        self._sampler = sampler

    def published_rules(self) -> Rules:
        """The rules that the checkpoint asks for."""
        return published.rules_of(self.backbone.generation_config, self.continues_prompts)

    def published_guidance(self) -> float:
        """Return the `guidance_scale` that the checkpoint asks for, 1 for none."""
        values = self.backbone.generation_config if self.takes_guidance else None
        return published.guidance_of(values)

    def published_limits(self, max_length: int | None) -> tuple[int, int | None]:
        """The most new tokens, and of the whole text, where the caller gave this length or none."""
        said = published.limits_of(self.backbone.generation_config, self.continues_prompts)
        most = MOST_TOKENS if max_length is None and said[1] is not None else self.most_new_tokens
        return said[0] or most, said[1]

    @property
    def pad_id(self) -> int:
        """The id that fills rows after their end."""
        return 0 if self.tokenizer is None else self.tokenizer.pad_id or 0

    def _prompt_ids(self, prompts, name="prompts") -> tuple[list[list[int]], bool, bool]:
        """Rows of ids of the argument `name`, whether they were text, and one prompt alone."""
        if isinstance(prompts, IdsOfText):
            return [list(prompts)], True, True
        prompts = text_alone(prompts)
        if isinstance(prompts, str):
            check_text(name, prompts)
            return self._encode_prompts([prompts]), True, True
        rows = listed(prompts, name)
        if keras.ops.is_tensor(rows):
            rows = keras.ops.convert_to_numpy(rows)
        if hasattr(rows, "__array__"):  # also a tensor of another backend
            rows = np.asarray(rows).tolist()
        if is_data_set(rows):
            rows = self.processor_class.whole(self, rows, {})
        if isinstance(rows, (list, tuple)) and not rows:
            raise ValueError(f"`{name}` is empty: there must be at least one prompt.")
        if not isinstance(rows, (list, tuple)):
            raise ValueError(
                f"`{name}` must be a string, a list of strings, or lists of token ids, received "
                f"{str(prompts)[:60]!r} of type {type(prompts).__name__}."
            )
        if all(is_int(token) for token in rows):
            return [[int(token) for token in rows]], False, True
        if all(isinstance(row, (list, tuple, np.ndarray)) for row in rows):
            for place, row in enumerate(rows):
                if not all(is_int(token) for token in row):
                    raise ValueError(f"`{name}[{place}]` must hold token ids, received {row!r}.")
            return [[int(token) for token in row] for row in rows], False, False
        texts = text_rows(rows, name)
        for place, text in enumerate(texts):
            check_text(f"{name}[{place}]", text)
        return self._encode_prompts(texts), True, False

    def _negative_ids(self, negative_prompts, count: int) -> list[list[int]] | None:
        """Return ids of the negative prompt of each of `count` prompts, or None."""
        if negative_prompts is None:
            return None
        rows, _, single = self._prompt_ids(negative_prompts, "negative_prompts")
        if single:
            return rows * count
        if len(rows) != count:
            raise ValueError(
                f"Received {count} prompts and {len(rows)} `negative_prompts`: give one for each "
                "prompt, or one alone for all."
            )
        return rows

    def task_values(self) -> dict:
        return {**super().task_values(), "end_ids": list(self.end_ids)}
