"""Base class of tasks that generate text for prompts."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.generation.constraints.constraints import TokenAutomaton
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.samplers import Sampler
from keras_transformer.generation.scoring import TokenScores
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.foreign_names import hint_on_foreign_arguments
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.tasks.text.explaining_text import explain_generation
from keras_transformer.tasks.text.generator import Generator, PromptFormat, of_generator
from keras_transformer.tokenizers import Tokenizer


class LanguageModel(Task):
    """Base class of tasks with a decoder, vocabulary logits and a method `generate`.

    The attribute `generator` is a `Generator`. A subclass sets `format_class`, its `PromptFormat`.
    """

    head_class = VocabularyHead
    format_class: ClassVar[type[PromptFormat]]
    task_options = ("end_ids",)

    end_ids = of_generator("end_ids")
    pad_id = of_generator("pad_id")
    engine = of_generator("engine")
    sampler = of_generator("sampler")
    compile_steps = of_generator("compile_steps")

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        end_ids: Sequence[int] | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, name=name)
        self.generator = Generator(self, self.format_class(self), end_ids)
        self.set_head()

    def compile(self, *args, sampler=None, **kwargs):
        """Compile as `keras.Model.compile` does, with a default sampler for `generate`.

        Omitted arguments keep their current values.

        Args:
            *args: as in `keras.Model.compile`.
            sampler: name or object, the default of `generate`. Initially it is the checkpoint's
                (`backbone.generation_config`), otherwise `"greedy"`.
            **kwargs: as in `keras.Model.compile`, and `pack_weights`, see docs/quantization.md.
                With `jit_compile=True` the steps of `generate` are compiled on PyTorch too: faster
                on a GPU, after about ten seconds for each shape. Other backends always compile
                them.
        """
        self.generator.compile(super().compile, *args, sampler=sampler, **kwargs)

    def compile_values(self) -> dict:
        return {**super().compile_values(), "sampler": self.generator._sampler}

    @hint_on_foreign_arguments
    @reads
    def generate(
        self,
        prompts,
        max_new_tokens: int | None = None,
        sampler: "str | Sampler | None" = None,
        batch_size: int = 32,
        return_prompt: bool = False,
        *,
        source: str | None = None,
        target: str | None = None,
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
        """Continue prompts, or translate sources.

        One call takes any number of prompts of any lengths; the result for a prompt does not depend
        on the others. They are decoded `batch_size` at a time, and prompts that finish make room
        for waiting ones.

        Args:
            prompts: a string, a list of strings, a list of ids, or a list of lists of ids; or a
                data set of strings, such as a `tf.data.Dataset`, which is read to its end.
            max_new_tokens: int, the most tokens of a continuation. Defaults to the checkpoint's
                limit (`backbone.generation_config`), otherwise to 64.
            sampler: `"greedy"`, `"beam"`, `"random"`, `"top_k"`, `"top_p"`, `"contrastive"`,
                `"speculative"`, or a sampler object. Defaults to the compiled one.
            batch_size: int, the number of prompts decoded together.
            return_prompt: bool, put the prompt before its continuation.
            source: str, the language of the texts, such as `"deu_Latn"`; one of the `languages` of
                a translation model. Defaults to the tokenizer's. A model that finds out the
                language of the source (MADLAD, Marian) takes none.
            target: str, the language to translate to. Defaults to the one that the checkpoint's
                generation config forces, if any.
            max_length: int, the most tokens of prompt and continuation, or of a translation.
            stop: a string or token id that ends a text, or a list of them. It is not part of the
                result.
            rules: `Rules`, what the text must or must not contain. Defaults to the checkpoint's.
                `Rules` given here replace them, except for a first or last token that only the
                checkpoint forces: `Rules()` turns off all other rules. A `constraint` turns off all
                of the checkpoint's rules.
            constraint: a JSON Schema as a dict, or the result of the method `constraint`. The text
                satisfies it.
            num_samples: int, the number of texts for each prompt: the best of beam search, or
                independent samples.
            seed: int from 0 to 2**64 - 1, for samplers that draw. Defaults to a random seed.
            stream: bool, return an iterator of pieces of text; for a list, of `(index, piece)`.
            return_details: bool, return `Completion`s with ids, log-probabilities and reasons.
            cache_dtype: the dtype of the cache, see `Cache.create`.
            global_positions: positions of prompt tokens with global attention, for an encoder with
                a window: a list of int for all prompts, such as `[0]`, or one for each prompt.
                Defaults to the first `global_tokens` of the model's config.
            verbose: bool, show a progress bar.
            explain: bool, return `Completion`s with an `explanation` of their steps, as `explain`
                returns it. It takes one more forward pass for each text.
            guidance_scale: float from -1000 to 1000, how far a text is led away from the texts that
                `negative_prompts` would give (classifier-free guidance): tokens are chosen by
                `scale * (p - n) + n`, where `p` and `n` are the log-probabilities after the prompt
                and after the negative prompt. It doubles the work and the cache of a step. Defaults
                to the checkpoint's, otherwise to 1: no guidance.
            negative_prompts: as `prompts`, one for all prompts or one for each; for a translation
                model, other sources. Defaults to the last token of each prompt; a translation
                model has no default.

        Returns:
            A string for a string, ids for ids; with `num_samples` above 1 a list of them. For
            several prompts, a list with the result for each.

        Raises:
            ValueError: if the model cannot take the prompts, ids, lengths or options, does not know
                a language, or a `guidance_scale` is combined with speculative decoding or
                contrastive search.
            FloatingPointError: if logits are NaN.
        """
        options = {
            "max_new_tokens": max_new_tokens, "sampler": sampler, "batch_size": batch_size,
            "max_length": max_length, "stop": stop, "rules": rules, "constraint": constraint,
            "num_samples": num_samples, "seed": seed, "cache_dtype": cache_dtype,
            "verbose": verbose, "guidance_scale": guidance_scale,
        }  # fmt: skip
        constrained = constraint is not None or getattr(rules, "automaton", None) is not None
        generator = self.generator.of_languages(source, target, constrained)
        return generator.generate(
            prompts, options, negative_prompts, global_positions, return_prompt=return_prompt,
            stream=stream, return_details=return_details, explain=explain,
        )  # fmt: skip

    def constraint(
        self,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        json_schema: dict | bool | None = None,
    ) -> TokenAutomaton:
        """Compile a constraint for `generate`, as `constraint` or `Rules(automaton=...)`.

        Args:
            regex: a regular expression in the syntax of Python's `re`; the whole text matches it.
            choices: list of strings; the text is one of them.
            json_schema: a JSON Schema, as a dict; the text is JSON that is valid under it.

        Returns:
            A `TokenAutomaton`; the same one for the same arguments, so that compiled functions are
            shared.

        Raises:
            ImportError: if a JSON Schema is given and jsonschema is not installed.
            ValueError: if the expression or schema is invalid, or no text that satisfies it can be
                spelled with the tokens of the vocabulary.

        Example:
        ```python
        import keras_transformer as kt

        translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
        either = translator.constraint(choices=["ein hund", "nein"])
        assert translator.generate("a dog", constraint=either) == "ein hund"
        ```
        """
        return self.generator.constraint(regex, choices, json_schema)

    @reads
    def explain(self, prompts, output=None, **options) -> Any:
        """Explain a text, or each step of generating one.

        Args:
            prompts: as for `generate`; or a dict of arrays, as for `predict`.
            output: the generated text, a string for each prompt, or its ids. By default a model
                that continues its prompt explains the prompt alone, and one that translates
                explains the text that `generate` writes.
            **options: as for `TextClassifier.explain`: `saliency`, `target`, `position`, `steps`,
                `baseline`, `top_k`, `vectors`, `max_attention`. Attributions are for the last
                generated token, or for the most likely next one.

        Returns:
            An `explanations.Explanation`, or a list of them for a list of prompts. Token `i` of
            `next_tokens` is the one generated after token `i`.

        Raises:
            ValueError: if the model cannot take the prompts or outputs.

        Example:
        ```python
        import keras_transformer as kt

        translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
        explanation = translator.explain("a man rides a bike .")
        assert "mann" in explanation.next_tokens
        steps, words = explanation.cross_attention.shape[2:]
        assert words == len(explanation.encoder_tokens)
        ```
        """
        return explain_generation(self, prompts, output, **options)

    def token_scores(
        self, pairs: list, further=None, input_rows=None, top_k: int = 0
    ) -> list[TokenScores]:
        """Return `TokenScores` of each continuation, with the `top_k` best tokens per position.

        Args:
            pairs: list of `(prompt, continuation)`, as ids.
            further: additional inputs of the backbone by name.
            input_rows: the row of `further` for each pair. Defaults to the index of the pair.
            top_k: int, the number of best tokens.
        """
        return self.generator.token_scores(pairs, further, input_rows, top_k)

    def next_scores(self, prompts: Sequence[list[int]]) -> list[np.ndarray]:
        """Return the log-probability of each token of the vocabulary after prompts.

        Args:
            prompts: lists of ids, none of them empty.

        Returns:
            For each prompt, float32 `(vocabulary_size,)`.
        """
        return self.generator.next_scores(prompts)

    def published_rules(self) -> Rules:
        """Return the rules of the checkpoint's generation config."""
        return self.generator.published_rules()

    def published_guidance(self) -> float:
        """Return the checkpoint's `guidance_scale`; 1 means no guidance."""
        return self.generator.published_guidance()

    def task_values(self) -> dict:
        return {**super().task_values(), "end_ids": list(self.end_ids)}
