"""The base of tasks that write text of what is none: images, sound."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.checking import check_int, check_text
from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.data import BucketedDataset
from keras_transformer.generation.scoring import pad_for
from keras_transformer.kerashub_names import refuse
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.tasks.asked import engine_inputs, scoring_inputs
from keras_transformer.tasks.explaining import Asked
from keras_transformer.tasks.labels import token_weights, weighed
from keras_transformer.tasks.language_model import LanguageModel
from keras_transformer.tasks.placeholders import placed_rows
from keras_transformer.tasks.sources import SourceProcessor, SourceRows
from keras_transformer.tasks.tables import TakesTables
from keras_transformer.tasks.text import (
    check_equal,
    check_said,
    take_max_length,
    text_rows,
    with_end,
)
from keras_transformer.tokenizers import Tokenizer


class SourceToText(TakesTables, LanguageModel):
    """An encoder whose input is images or sound, and a decoder that writes text.

    A subclass names its processor, what it may read (`reads_arrays`), and how arrays are made of
    what the processor gives (`arrays_of`), if it is more than the first input of the backbone.

    What the decoder is given before it writes is a prompt of ids, `prompt_rows`: the start, and
    what a user adds to it, such as a question. Where the config has a `source`, a prompt is what
    the encoder is given: it reads it and attends to the source.
    """

    backbone_kinds = ("seq2seq",)
    published_options = (END_IDS, START_ID)
    continues_prompts = False
    processor_class: ClassVar[type[SourceProcessor]]
    stem_example: ClassVar[str]
    source_unit: ClassVar[str]  # what errors call a source
    task_options = ("end_ids", "start_id")
    learned = ("text", "sentence", "transcription", "transcript")

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
        super().__init__(backbone, joined, end_ids, name=name)
        if backbone.id_inputs[0] not in self.reads_arrays:
            raise ValueError(
                f"{type(self).__name__} needs a backbone whose encoder reads {self.source_unit}s: "
                f"give the config encoder={{'vocabulary_size': 0, 'stem': {self.stem_example}}}."
            )
        if start_id is None and self.tokenizer is not None:
            start_id = self.tokenizer.start_id
        if start_id is None and backbone.places is None:  # else placeholders may be all there is
            start_id = self.pad_id
        most = backbone.config.sides[-1].vocabulary_size - 1
        self.start_id = check_int("start_id", start_id, at_least=0, at_most=most, none=True)

    @property
    def asks_encoder(self) -> bool:
        """Whether prompts are read by the encoder, and are none of the decoder's tokens."""
        return self.backbone.config.source is not None

    def arrays_of(
        self, sources: Sequence, places: Sequence[int] | None = None, learns: bool = False
    ) -> dict:
        """The arrays of the encoder, of sources as the processor takes them.

        `learns` says that texts are learned from them. Raises ValueError for one that holds none.
        """
        return {self.backbone.id_inputs[0]: self._require_processor().source(sources, places)}

    def prompt_rows(self, prompts: Any, count: int, **options) -> list[list[int]]:
        """What the decoder begins with, ids for each of `count` sources; of texts, one for each.

        Or what the encoder reads, if that `asks_encoder`. Raises TypeError for `options`, which
        only a subclass has.
        """
        refuse(f"{type(self).__name__}.generate", options)
        asked = self.asks_encoder
        if asked and prompts is None:
            raise ValueError(
                f"The encoder of this model reads a text beside each {self.source_unit}: give "
                "`prompts`, such as questions, one for each or one for all."
            )
        start = [] if self.start_id is None or asked else [self.start_id]
        encoded = [[]] * count if prompts is None else self._encoded_prompts(prompts, count)
        if self.backbone.places is not None:
            return placed_rows(self.backbone.places, encoded, start)
        return [[*start, *row] for row in encoded]

    def _encoded_prompts(self, prompts: Any, count: int) -> list[list[int]]:
        return self._encode_prompts(self._prompt_texts(prompts, count))

    def _prompt_texts(self, prompts: Any, count: int) -> list[str]:
        """A prompt for each of `count` sources, of one for each or one for all."""
        texts = [prompts] * count if isinstance(prompts, str) else text_rows(prompts, "prompts")
        if len(texts) != count:
            raise ValueError(
                f"Received {count} {self.source_unit}s and {len(texts)} prompts: give one prompt "
                f"for each {self.source_unit}, or one for all."
            )
        for place, text in enumerate(texts):
            check_text(f"prompts[{place}]", text)
        return texts

    def _encode_prompts(self, texts):
        return self.tokenizer.encode_batch(texts, special_tokens=self.asks_encoder)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Sources and their texts as batches, the decoder's input shifted by one.

        Args:
            x: sources, or a tuple of sources and prompts, such as questions.
            y: the texts to be written, one for each source.
            sample_weight: one number a source; or for each one for each token of its text, the
                end included.
            **options: those of the processor, and as for `Task.make_dataset`.
        """
        processor = self._require_processor()
        sources, prompts = processor.parts(x)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} learns from texts: give `y`, one for each "
                f"{self.source_unit}. What it writes is `generate`."
            )
        texts = text_rows(y, "y")
        check_equal(sources, texts, (f"{self.source_unit}s", "texts"))
        max_length = take_max_length(self, options, at_least=2)
        own = {name: options.pop(name) for name in processor.options if name in options}
        starts, asked = self.prompt_rows(prompts, len(sources), **own), {}
        if self.asks_encoder:
            for place, row in enumerate(starts):
                self.backbone.check_ids(**{f"prompts[{place}]": np.asarray(row)})
            asked, starts = {"asked": starts}, [[self.start_id]] * len(sources)
        room = max_length - max(map(self.positions_before, starts))
        if room < 2:
            raise ValueError(f"`max_length`={max_length} leaves no room behind the prompts.")
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
            if self._sees_prompt:
                inputs["decoder_prefix_mask"] = places <= skipped
            if asked:
                inputs["encoder_token_ids"] = arrays["asked"]
                inputs["encoder_padding_mask"] = masks["asked"]
            return inputs, arrays["targets"], weighed(learned.astype("float32"), arrays)

        padded = ("inputs", "targets", *asked)
        options |= {"pad_values": dict.fromkeys(padded, self.pad_id)}
        options |= {"paired_columns": asked} if asked else {}
        return self._bucketed(columns, make_batch, values=skipped, **options)

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
        """Texts of sources.

        Any number of sources go in one call; each gives what it gives alone.

        Args:
            sources: a list of what the processor takes, or one of them.
            prompts: what the decoder goes on with, such as questions: a list of strings, one for
                each source, or one string for all. Defaults to none.
            max_new_tokens: int, the most tokens of a text. Defaults to what the checkpoint says,
                else to 64 or the positions of the decoder; in `SpeechToText` at most to what its
                `tokens_per_second` gives each recording.
            sampler: as of `CausalLM.generate`, and so is all below but `batch_size`.
            batch_size: int, sources that are read and decoded together.
            max_length: int.
            stop: strings and token ids.
            rules: `Rules`.
            constraint: a JSON Schema, or what `constraint` returns.
            num_samples: int.
            seed: int.
            stream: bool.
            return_details: bool.
            cache_dtype: str.
            verbose: bool.
            explain: bool.
            **options: of the prompt, such as the `language` of speech.

        Returns:
            A string for one source; for a list a list of them; as `CausalLM.generate` with
            `num_samples`, `stream`, `return_details` or `explain`.

        Raises:
            ValueError: for sources that cannot be read, with their place, or options that the model
                cannot take.
        """
        processor, sources = self._require_processor(), self.held_inputs(sources, {})
        alone = processor.source.is_one(sources)
        sources = [sources] if alone else processor.source.rows(sources)
        rows = self.prompt_rows(prompts, len(sources), **options)
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
        """What `generate` returns, for prompts of ids."""
        further = SourceRows.of(self, sources)
        how = (True, alone, False, stream, return_details, explain)
        return self._completed(rows, options, further, *how)

    @reads
    def explain(self, sources, output=None, prompts=None, **options) -> Any:
        """What the model saw of a source, in each step of writing its text.

        Args:
            sources: as of `generate`; or a dict of arrays, as for `predict`.
            output: the text, a string for each source. Defaults to what `generate` writes.
            prompts: as of `generate`.
            **options: as of `CausalLM.explain`, and those of the prompt, as of `generate`.

        Returns:
            As `CausalLM.explain`. `encoder_tokens` are names of patches or frames.

        Raises:
            ValueError: as `generate`, and for sources and outputs of different numbers.
        """
        if isinstance(sources, Mapping):
            return super().explain(sources, **options)
        asked = {name: options.pop(name) for name in Asked.names if name in options}
        how = Asked.of(**asked)
        processor, sources = self._require_processor(), self.held_inputs(sources, {})
        alone = processor.source.is_one(sources)
        sources = [sources] if alone else processor.source.rows(sources)
        rows = self.prompt_rows(prompts, len(sources), **options)
        if output is None:
            found = self.written(sources, rows, {"batch_size": 8}, explain=how)
            found = [each.explanation for each in found]
        else:
            written = self._written_ids(output, rows, alone)
            further = SourceRows.of(self, sources)
            found = self.explained_texts(rows, written, how, further)
        return found[0] if alone else found

    @reads
    def score(self, sources, targets, prompts=None, per_token: bool = False, **options):
        """The log-probability of texts, their end included, given their sources.

        Args:
            sources: as of `generate`.
            targets: a string for each source; a string for one source alone.
            prompts: as of `generate`.
            per_token: bool, return the log-probability of each token of the text.
            **options: of the prompt, as of `generate`.

        Returns:
            As `Seq2SeqLM.score`.

        Raises:
            ValueError: for sources and targets of different numbers.
        """
        processor, sources = self._require_processor(), self.held_inputs(sources, {})
        alone = processor.source.is_one(sources)
        sources = [sources] if alone else processor.source.rows(sources)
        texts = [targets] if isinstance(targets, str) else text_rows(targets, "targets")
        check_equal(sources, texts, (f"{self.source_unit}s", "targets"))
        starts = self.prompt_rows(prompts, len(sources), **options)
        end = self.end_ids[0] if self.end_ids else None
        rows = with_end(processor.tokenizer.encode_targets(texts), end)
        further = SourceRows.of(self, sources)
        return self._scores(list(zip(starts, rows, strict=True)), per_token, alone, further)

    def positions_before(self, prompt: list[int]) -> int:
        if self.asks_encoder:
            return 0
        # The start takes the place of the last token, which is not read.
        places = self.backbone.places
        return len(prompt) - 1 - (places.count if places is not None and places.apart else 0)

    @property
    def _sees_prompt(self) -> bool:
        """Whether the tokens of a prompt see each other."""
        return self.backbone.config.placeholder_visibility == "prompt"

    def _to_texts(self, prompts, continuations):
        return self.tokenizer.decode_batch(continuations)

    def _engine_inputs(self, ids, mask):
        if self.asks_encoder:
            return engine_inputs(ids, mask, self.start_id)
        inputs = {"decoder_token_ids": ids, "decoder_padding_mask": mask}
        return inputs | ({"decoder_prefix_mask": mask} if self._sees_prompt else {})

    def _scoring_inputs(self, prompts, continuations):
        if self.asks_encoder:
            config = self.backbone.config
            return scoring_inputs(config, prompts, continuations, self.start_id, self.pad_id)
        rows = [[*p, *c[:-1]] for p, c in zip(prompts, continuations, strict=True)]
        ids, mask = pad_for(self.backbone.config.sides[-1], rows, self.pad_id)
        first = np.array([len(prompt) - 1 for prompt in prompts], "int64")
        inputs = self._engine_inputs(ids, mask)
        if self._sees_prompt:
            inputs["decoder_prefix_mask"] = np.arange(ids.shape[1]) <= first[:, None]
        return inputs, first
