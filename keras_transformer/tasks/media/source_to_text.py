"""Base class of tasks that generate text from images or audio."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.data import BucketedDataset
from keras_transformer.explanations.explaining import ExplainOptions
from keras_transformer.generation.constraints.constraints import TokenAutomaton
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.scoring import pad_for
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.feature_merger import PlaceholderTokens
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import check_int, check_text
from keras_transformer.support.foreign_names import refuse
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import token_weights, weighed
from keras_transformer.tasks.data.text import (
    check_equal,
    check_said,
    take_max_length,
    text_rows,
    with_end,
)
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.tasks.media.sources import SourceProcessor, SourceRows
from keras_transformer.tasks.text.explaining_text import explained_texts, written_ids
from keras_transformer.tasks.text.generator import (
    Generator,
    PromptFormat,
    engine_inputs,
    of_generator,
    scoring_inputs,
)
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training.objectives import PermutedOrders, generator_of


class SourceTextHead(VocabularyHead):
    """The head of `SourceToText`: logits of the next token of a text about a source."""

    published_options = (END_IDS, START_ID)
    learned = ("text", "sentence", "transcription", "transcript")


class MediaSourceFormat(PromptFormat):
    """The format of prompts that the decoder continues, or that the encoder reads.

    The encoder reads them if the config has a `source`, whose states it reads too.
    """

    def encode(self, texts):
        return self.task.tokenizer.encode_batch(texts, special_tokens=self.task.asks_encoder)

    def decode(self, prompts, continuations):
        return self.task.tokenizer.decode_batch(continuations)

    def engine_inputs(self, ids, mask):
        task = self.task
        if task.asks_encoder:
            return engine_inputs(ids, mask, task.start_id)
        inputs = {"decoder_token_ids": ids, "decoder_padding_mask": mask}
        return inputs | ({"decoder_prefix_mask": mask} if self.sees_prompt else {})

    def scoring_inputs(self, prompts, continuations):
        task = self.task
        config, pad_id = task.backbone.config, task.pad_id
        if task.asks_encoder:
            return scoring_inputs(config, prompts, continuations, pad_id, task.start_id)
        rows = [[*p, *c[:-1]] for p, c in zip(prompts, continuations, strict=True)]
        ids, mask = pad_for(config.sides[-1], rows, pad_id)
        first = np.array([len(prompt) - 1 for prompt in prompts], "int64")
        inputs = self.engine_inputs(ids, mask)
        if self.sees_prompt:
            inputs["decoder_prefix_mask"] = np.arange(ids.shape[1]) <= first[:, None]
        return inputs, first

    def positions_before(self, prompt: list[int]) -> int:
        if self.task.asks_encoder:
            return 0
        # The first generated token takes the position of the last prompt token.
        places = self.task.backbone.placeholder_tokens
        return len(prompt) - 1 - (places.count if places is not None and places.apart else 0)

    @property
    def sees_prompt(self) -> bool:
        """True if the tokens of a prompt attend to each other in both directions."""
        return self.task.backbone.config.placeholder_visibility == "prompt"


class SourceToText(Task):
    """An encoder that reads images or audio, and a decoder that generates text.

    The attribute `generator` is a `Generator`. A subclass names its head and its processor, and
    overrides `arrays_of` if the encoder has more inputs than the processor's output.

    The decoder starts from a prompt of ids, made by `prompt_rows`: the start id and the user's
    text, such as a question. If the config has a `source`, the encoder reads the prompt instead,
    and attends to the source, or has its states among those of the prompt.
    """

    backbone_kinds = ("seq2seq",)
    head_class = SourceTextHead
    format_class: ClassVar[type[PromptFormat]] = MediaSourceFormat
    processor_class: ClassVar[type[SourceProcessor]]
    stem_example: ClassVar[str]
    task_options = ("end_ids", "start_id")

    end_ids = of_generator("end_ids")
    pad_id = of_generator("pad_id")
    engine = of_generator("engine")
    sampler = of_generator("sampler")
    compile_steps = of_generator("compile_steps")

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
        name: str | None = None,
    ):
        joined = self.processor_class.joined(processor, tokenizer)
        super().__init__(backbone, joined, name=name)
        if not self.takes_backbone(backbone):
            raise ValueError(
                f"{type(self).__name__} needs a backbone whose encoder reads "
                f"{self.source_unit}s: "
                f"give the config encoder={{'vocabulary_size': 0, 'stem': {self.stem_example}}}."
            )
        self.generator = Generator(self, self.format_class(self), end_ids)
        if start_id is None and self.tokenizer is not None:
            start_id = self.tokenizer.start_id
        # A model with placeholders may have no start id.
        if start_id is None and backbone.placeholder_tokens is None:
            start_id = self.pad_id
        most = backbone.config.sides[-1].vocabulary_size - 1
        self.start_id = check_int("start_id", start_id, at_least=0, at_most=most, none=True)
        self.set_head()

    def compile(self, *args, sampler=None, **kwargs):
        """Compile as `LanguageModel.compile` does, with a default `sampler`."""
        self.generator.compile(super().compile, *args, sampler=sampler, **kwargs)

    def compile_values(self) -> dict:
        return {**super().compile_values(), "sampler": self.generator._sampler}

    @property
    def source_unit(self) -> str:
        """The name of a source in errors."""
        return self.processor_class.source_class.unit

    def constraint(
        self,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        json_schema: dict | bool | None = None,
    ) -> TokenAutomaton:
        """Compile a constraint for `generate`. See `CausalLM.constraint`."""
        return self.generator.constraint(regex, choices, json_schema)

    def published_rules(self) -> Rules:
        """Return the rules of the checkpoint's generation config."""
        return self.generator.published_rules()

    def task_values(self) -> dict:
        return {**super().task_values(), "end_ids": list(self.end_ids)}

    @property
    def asks_encoder(self) -> bool:
        """True if the encoder reads the prompts, which are then not part of the decoder's input."""
        return self.backbone.config.source is not None

    def arrays_of(
        self, sources: Sequence, places: Sequence[int] | None = None, learns: bool = False
    ) -> dict:
        """Return the encoder's arrays for sources that the processor takes.

        `learns` means that the arrays are for training: raises ValueError if there is nothing to
        learn from a source, such as a silent recording.
        """
        return {self.backbone.id_inputs[0]: self._require_processor().source(sources, places)}

    @property
    def source_inputs(self) -> tuple[str, ...]:
        """Names of the arrays that `arrays_of` returns."""
        prefix, (stem, _) = next(iter(self.backbone.sides.items()))
        return tuple(f"{prefix}{each.name}" for each in stem.inputs)

    def asked(self, sources: Any, prompts: Any, **options) -> tuple[Sequence, list, bool]:
        """Return the sources, the prompt of each as ids, and whether one source was given alone.

        `options` are those of `prompt_rows`.
        """
        processor, sources = self._require_processor(), self.held_inputs(sources, {})
        alone = processor.source.is_one(sources)
        sources = [sources] if alone else processor.source.rows(sources)
        return *self.prompted(sources, prompts, **options), alone

    def prompted(self, sources: Sequence, prompts: Any, **options) -> tuple[Sequence, list]:
        """Return the sources as `arrays_of` takes them, and the prompt of each as ids.

        `options` are those of `prompt_rows`.
        """
        return sources, self.prompt_rows(prompts, len(sources), **options)

    def prompt_rows(self, prompts: Any, count: int, **options) -> list[list[int]]:
        """Return the ids that the decoder starts from, for each of `count` sources.

        If `asks_encoder` is True, the ids are the encoder's input instead. `prompts` are texts, one
        for each source or one for all. `options` are for subclasses: raises TypeError if there are
        any here.
        """
        refuse(f"{type(self).__name__}.generate", options)
        asked = self.asks_encoder
        places = self.backbone.placeholder_tokens
        if asked and prompts is None and places is not None:
            prompts = ""
        if asked and prompts is None:
            raise ValueError(
                f"The encoder of this model reads a text beside each {self.source_unit}: give "
                "`prompts`, such as questions, one for each or one for all."
            )
        start = [] if self.start_id is None or asked else [self.start_id]
        encoded = [[]] * count if prompts is None else self._encoded_prompts(prompts, count)
        if places is not None:
            return placed_rows(places, encoded, start)
        return [[*start, *row] for row in encoded]

    def _encoded_prompts(self, prompts: Any, count: int) -> list[list[int]]:
        return self.generator.format.encode(self._prompt_texts(prompts, count))

    def _prompt_texts(self, prompts: Any, count: int) -> list[str]:
        """Return a prompt for each of `count` sources, given one for each or one for all."""
        texts = [prompts] * count if isinstance(prompts, str) else text_rows(prompts, "prompts")
        if len(texts) != count:
            raise ValueError(
                f"Received {count} {self.source_unit}s and {len(texts)} prompts: give one prompt "
                f"for each {self.source_unit}, or one for all."
            )
        for place, text in enumerate(texts):
            check_text(f"prompts[{place}]", text)
        return texts

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch sources and their texts, with the decoder's input shifted by one.

        Args:
            x: sources, or a tuple of sources and prompts, such as questions.
            y: the texts to generate, one for each source.
            sample_weight: one number for each source; or for each source an array with one number
                for each token of its text, including the end.
            **options: the processor's options, and as for `Task.make_dataset`; and for models whose
                decoder has a `query_stream` `num_orders`, see `training.PermutedOrders`. It is 6 in
                `fit`, and 1 otherwise.
        """
        processor = self._require_processor()
        orders = self._orders(options)
        sources, prompts = processor.parts(x)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} learns from texts: give `y`, one for each "
                f"{self.source_unit}. To generate texts, call `generate`."
            )
        texts = text_rows(y, "y")
        check_equal(sources, texts, (f"{self.source_unit}s", "texts"))
        max_length = take_max_length(self, options, at_least=2)
        own = {name: options.pop(name) for name in processor.options if name in options}
        (sources, starts), asked = self.prompted(sources, prompts, **own), {}
        if self.asks_encoder:
            for place, row in enumerate(starts):
                self.backbone.check_ids(**{f"prompts[{place}]": np.asarray(row)})
            asked, starts = {"asked": starts}, [[self.start_id]] * len(sources)
        if orders.number > 1 and any(len(start) != 1 for start in starts):
            raise ValueError(
                "Texts that continue a prompt are learned from left to right: give `num_orders=1`, "
                "or leave out the prompts."
            )
        room = max_length - max(map(self.generator.positions_before, starts))
        if room < 2:
            raise ValueError(
                f"`max_length`={max_length} leaves no room after the prompts: raise it."
            )
        encoded = processor.tokenizer.encode_targets(texts)
        (empty,) = processor.tokenizer.encode_targets([""])
        check_said(texts, encoded, empty, "`y[{}]`".format)
        ends = with_end([row[: room - 1] for row in encoded], processor.tokenizer.end_id)
        rows = [[*start, *end] for start, end in zip(starts, ends, strict=True)]
        skipped = {"skipped": np.array([len(start) - 1 for start in starts], "int32")}
        columns = {"inputs": [row[:-1] for row in rows], "targets": [row[1:] for row in rows]}
        lengths = list(map(len, ends))
        before = skipped["skipped"]
        columns |= token_weights(sample_weight, lengths, room, self.source_unit, before)

        def make_batch(arrays, masks):
            given = [sources[i] for i in arrays["row"]]
            inputs = self.arrays_of(given, arrays["row"], learns=True)
            inputs["decoder_token_ids"] = arrays["inputs"]
            inputs["decoder_padding_mask"] = masks["inputs"]
            places, skipped = np.arange(arrays["inputs"].shape[1]), arrays["skipped"][:, None]
            learned = masks["inputs"] & (places >= skipped)
            if self.generator.format.sees_prompt:
                inputs["decoder_prefix_mask"] = places <= skipped
            if asked:
                inputs["encoder_token_ids"] = arrays["asked"]
                inputs["encoder_padding_mask"] = masks["asked"]
            targets, weights = arrays["targets"], weighed(learned.astype("float32"), arrays)
            if orders.number > 1:
                rows = (arrays["inputs"], targets, masks["inputs"], weights)
                random = generator_of(dataset, arrays)
                found, targets, weights = orders(*rows, random, self.pad_id)
                inputs |= {f"decoder_{name}": array for name, array in found.items()}
            return inputs, targets, weights

        padded = ("inputs", "targets", *asked)
        options |= {"pad_values": dict.fromkeys(padded, self.pad_id)}
        options |= {"paired_columns": asked} if asked else {}
        dataset = self._bucketed(columns, make_batch, values=skipped, **options)
        return dataset

    def _orders(self, options: dict) -> PermutedOrders:
        """Take the orders in which texts are learned out of the options of a data set."""
        streamed, given = (
            self.backbone.config.decoder.has_query_stream,
            options.pop("num_orders", None),
        )
        if given is None:
            return PermutedOrders(6 if streamed and "shuffle" in options else 1)
        orders = PermutedOrders(given)
        if orders.number > 1 and not streamed:
            raise ValueError(
                "`num_orders` needs a model whose decoder has a `query_stream`, such as PARSeq: "
                "others write from left to right."
            )
        return orders

    @reads
    def generate(
        self,
        sources,
        prompts=None,
        max_new_tokens: int | None = None,
        sampler=None,
        batch_size: int = 8,
        *,
        max_length: int | None = None,
        stop=None,
        rules=None,
        constraint=None,
        num_samples: int = 1,
        seed: int | None = None,
        stream: bool = False,
        return_details: bool = False,
        cache_dtype: str | None = None,
        verbose: bool = False,
        explain: bool = False,
        **options,
    ):
        """Generate texts from sources.

        One call takes any number of sources; the result for each does not depend on the others.

        Args:
            sources: a list of sources that the processor can read, or one source.
            prompts: texts that the decoder continues, such as questions: a list of strings, one for
                each source, or one string for all. Defaults to no prompt.
            max_new_tokens: int, the maximum number of tokens of a text. Defaults to the
                checkpoint's limit, otherwise to 64 or the decoder's number of positions if that is
                smaller. The default of `SpeechToText` is capped for each recording by
                `tokens_per_second`.
            sampler: as for `CausalLM.generate`, like all arguments below except `batch_size`.
            batch_size: int, the number of sources encoded and decoded together.
            max_length: int.
            stop: strings and token ids.
            rules: `Rules`.
            constraint: a JSON Schema, or the result of `constraint`.
            num_samples: int.
            seed: int.
            stream: bool.
            return_details: bool.
            cache_dtype: str.
            verbose: bool.
            explain: bool.
            **options: options of the prompt, such as the `language` of speech.

        Returns:
            A string for one source; a list of strings for a list; with `num_samples`, `stream`,
            `return_details` or `explain` as for `CausalLM.generate`.

        Raises:
            ValueError: if a source cannot be read (names its index), or the model does not support
                an option.
        """
        sources, rows, alone = self.asked(sources, prompts, **options)
        given = {
            "max_new_tokens": max_new_tokens, "sampler": sampler, "batch_size": batch_size,
            "max_length": max_length, "stop": stop, "rules": rules, "constraint": constraint,
            "num_samples": num_samples, "seed": seed, "cache_dtype": cache_dtype,
            "verbose": verbose,
        }  # fmt: skip
        return self.written(sources, rows, given, alone, stream, return_details, explain)

    def written(
        self, sources, rows: list[list[int]], options: dict, alone=False, stream=False,
        return_details=False, explain=False,
    ):  # fmt: skip
        """Return the result of `generate`, given prompts as ids."""
        further = SourceRows.by_name(self, sources)
        return self.generator.completed(
            rows, options, further, True, alone, stream=stream, return_details=return_details,
            explain=explain,
        )  # fmt: skip

    @reads
    def explain(self, sources, output=None, prompts=None, **options) -> Any:
        """Explain each step of generating the text of a source.

        Args:
            sources: as for `generate`; or a dict of arrays, as for `predict`.
            output: the text, a string for each source. Defaults to the result of `generate`.
            prompts: as for `generate`.
            **options: as for `CausalLM.explain`, and options of the prompt, as for `generate`.

        Returns:
            As `CausalLM.explain`. `encoder_tokens` are labels of patches or frames.

        Raises:
            ValueError: as for `generate`, and if the numbers of sources and outputs differ.
        """
        if isinstance(sources, Mapping):
            return super().explain(sources, **options)
        asked = {name: options.pop(name) for name in ExplainOptions.names if name in options}
        how = ExplainOptions.checked(**asked)
        sources, rows, alone = self.asked(sources, prompts, **options)
        if output is None:
            found = self.written(sources, rows, {"batch_size": 8}, explain=how)
            found = [each.explanation for each in found]
        else:
            written = written_ids(self.generator, output, rows, alone)
            further = SourceRows.by_name(self, sources)
            found = explained_texts(self.generator, rows, written, how, further)
        return found[0] if alone else found

    @reads
    def score(self, sources, targets, prompts=None, per_token: bool = False, **options):
        """Return the log-probability of texts, including their end, given their sources.

        Args:
            sources: as for `generate`.
            targets: a string for each source; a single string for one source.
            prompts: as for `generate`.
            per_token: bool, return the log-probability of each token of the text.
            **options: options of the prompt, as for `generate`.

        Returns:
            As `Seq2SeqLM.score`.

        Raises:
            ValueError: if the numbers of sources and targets differ.
        """
        sources, starts, alone = self.asked(sources, prompts, **options)
        texts = [targets] if isinstance(targets, str) else text_rows(targets, "targets")
        check_equal(sources, texts, (f"{self.source_unit}s", "targets"))
        end = self.end_ids[0] if self.end_ids else None
        rows = with_end(self._require_processor().tokenizer.encode_targets(texts), end)
        further = SourceRows.by_name(self, sources)
        return self.generator.scores(
            list(zip(starts, rows, strict=True)), per_token, alone, further
        )


PROMPT = "{prompt}"


def check_template(template: str | None) -> str | None:
    """Return `template`, or None. Raises ValueError if it has no place for the prompt."""
    if template is not None:
        check_text("template", template)
        if PROMPT not in template:
            raise ValueError(
                f"`template` must contain {PROMPT!r} where the prompt goes, received {template!r}."
            )
    return template


def in_template(template: str | None, texts: Sequence[str], token: str | None) -> list[str]:
    """Put texts into the template, except texts that already contain the placeholder `token`."""
    return [
        text if template is None or (token and token in text) else template.replace(PROMPT, text)
        for text in texts
    ]


def placed_rows(
    places: PlaceholderTokens, rows: Sequence[list[int]], start: list[int]
) -> list[list[int]]:
    """Return prompts with one placeholder for each encoder state, and the start ids of a text.

    A single placeholder is repeated. If a prompt has no placeholders, they precede the start ids.

    Args:
        places: the backbone's description of its placeholders.
        rows: ids of each prompt.
        start: ids that begin a text.

    Raises:
        ValueError: if a prompt has another number of placeholders; names its index.
    """
    token, wanted = places.token, places.count
    placed = [token] * wanted
    made = []
    for place, row in enumerate(rows):
        count = row.count(token)
        if count == 0:
            made.append([*placed, *start, *row])
        elif count == 1:
            at = row.index(token)
            made.append([*start, *row[:at], *placed, *row[at + 1 :]])
        elif count == wanted:
            made.append([*start, *row])
        else:
            raise ValueError(
                f"`prompts[{place}]` has {count} placeholders (tokens with the id {token}): give "
                f"one, which stands for all {wanted} states of an input, or {wanted} of them, or "
                "none to put them in front of the prompt."
            )
    return made
