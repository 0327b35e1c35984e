"""Sequence-to-sequence language models: translation and summarization."""

import keras
import numpy as np

from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.data.packing import packed_inputs
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.checking import check_int, check_text, shorten
from keras_transformer.tasks.data.labels import check_weights, token_weights, weighed
from keras_transformer.tasks.data.text import (
    check_equal,
    check_said,
    encode_rows,
    pair_rows,
    take_max_length,
    text_columns,
    text_rows,
    tokenizer_of,
    with_end,
)
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.tasks.text.generator import PromptFormat, engine_inputs, scoring_inputs
from keras_transformer.tasks.text.language_model import LanguageModel
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.languages import check_languages
from keras_transformer.training import Denoising, SpanCorruption
from keras_transformer.training.objectives import generator_of


class TargetTokenHead(VocabularyHead):
    """The head of `Seq2SeqLM`: logits of the next token of a target."""

    published_as = ("ForConditionalGeneration",)
    published_options = (END_IDS, START_ID)


class SourceFormat(PromptFormat):
    """The format of prompts that the encoder reads as sources."""

    takes_guidance = True

    def __init__(self, task: keras.Model, source: str | None = None, target: str | None = None):
        super().__init__(task)
        self.source, self.target = source, target
        self._start_ids: tuple[int, ...] | None = None  # None: the task's `start_id`

    def of_languages(self, source, target, constrained=False):
        tokenizer = self.task.tokenizer
        check_languages(tokenizer, source, target)
        found = type(self)(self.task, source, target)
        if target is None:
            found.takes_ids = source is None
            return found
        languages, token = tokenizer.languages, tokenizer.languages.ids[target]
        found.takes_ids = source is None and languages.target != "source"
        if languages.target == "start":
            found._start_ids, found.first_ids = (token,), ()
        elif languages.target == "forced" and constrained:
            # The text of a constraint begins after the language.
            found._start_ids, found.first_ids = (self.task.start_id, token), ()
        elif languages.target == "forced":
            found.first_ids = (token,)
        return found

    @property
    def start_ids(self) -> tuple[int, ...]:
        """The ids that the decoder starts from."""
        return (self.task.start_id,) if self._start_ids is None else self._start_ids

    def encode(self, texts):
        tokenizer = tokenizer_of(self.task)
        if self.source is None and self.target is None:
            return tokenizer.encode_batch(texts)
        return tokenizer.languages.encode(tokenizer, texts, self.source, self.target)

    def positions_before(self, prompt):
        return len(self.start_ids) - 1

    def engine_inputs(self, ids, mask):
        return engine_inputs(ids, mask, *self.start_ids)

    def scoring_inputs(self, prompts, continuations):
        config, pad_id = self.task.backbone.config, self.task.pad_id
        return scoring_inputs(config, prompts, continuations, pad_id, *self.start_ids)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Seq2SeqLM(LanguageModel):
    """An encoder-decoder that trains on pairs of source and target, and translates sources.

    Compiled with Adam (1e-4), token cross-entropy, perplexity and accuracy; `compile` changes
    this, and takes the default `sampler`.

    Args:
        backbone, tokenizer, name: as for `Task`.
        start_id: int, the id that the decoder starts from. Defaults to the tokenizer's start id,
            else to its padding id.
        end_ids: list of int, ids that each end a target. Defaults to the tokenizer's end id.

    Call arguments:
        inputs: dict, as for `Seq2Seq`.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    german = translator.generate(["a man rides a bike ."], sampler="beam")
    assert "mann" in german[0]
    ```

    Source: Vaswani et al. 2017, section 3.
    """

    alias = "seq2seq_lm"
    backbone_kinds = ("seq2seq",)
    head_class = TargetTokenHead
    format_class = SourceFormat
    task_options = ("end_ids", "start_id")

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, end_ids, name=name)
        if start_id is None and self.tokenizer is not None:
            start_id = self.tokenizer.start_id
        self.start_id = self.pad_id if start_id is None else start_id
        most = backbone.config.vocabulary_size - 1
        self.start_id = check_int("start_id", self.start_id, at_least=0, at_most=most)

    @property
    def languages(self) -> tuple[str, ...]:
        """The names of the languages that `generate` takes as `source` and `target`."""
        found = None if self.tokenizer is None else self.tokenizer.languages
        return () if found is None else found.names

    def make_dataset(
        self, x, y=None, sample_weight=None, *, objective=None, **options
    ) -> BucketedDataset:
        """Batch sources and targets, with the decoder's input shifted by one.

        Args:
            x: sources; without `y` a tuple of sources and targets; with an `objective` texts.
            y: targets.
            sample_weight: one number for each pair; or for each pair an array with one number for
                each token of its target, including the end. With an `objective`, one number for
                each text.
            objective: `training.SpanCorruption` or `training.Denoising`, which makes sources and
                targets from texts, different ones in each epoch unless `shuffle=False`.
            **options: as for `Task.make_dataset`.
        """
        tokenizer = tokenizer_of(self)
        if objective is not None and not isinstance(objective, (SpanCorruption, Denoising)):
            raise ValueError(
                "`objective` must be a training.SpanCorruption or training.Denoising, received "
                f"{shorten(objective)}."
            )
        if objective is not None:
            self._refuse_targets(y)
            return self._dataset_of_texts(x, objective, sample_weight, **options)
        texts = _sources_and_targets(x, y)
        max_length = take_max_length(self, options, at_least=2)

        def encode(texts, place):
            sources, targets = texts
            rows = tokenizer.encode_batch(sources, max_length=max_length)
            (empty,) = tokenizer.encode_batch([""], max_length=max_length)
            check_said(sources, rows, empty, lambda i: f"{place(i)}, the source,")
            encoded = self._encode_targets(targets)
            (empty,) = self._encode_targets([""])
            check_said(targets, encoded, empty, lambda i: f"{place(i)}, the target,")
            targets = with_end([row[: max_length - 1] for row in encoded], tokenizer.end_id)
            return {
                "sources": rows,
                "targets": [[self.start_id, *row] for row in targets],
            }

        rows = encode_rows(
            self, texts, encode, max_length=max_length, start_id=self.start_id, first=self._first()
        ).columns
        targets = rows["targets"]
        paired = {"inputs": targets.without_last(), "targets": targets.without_first()}
        counts = paired["targets"].lengths
        paired |= token_weights(sample_weight, counts, max_length, "pair")

        def make_batch(arrays, masks):
            batch = {
                "encoder_token_ids": arrays["sources"],
                "encoder_padding_mask": masks["sources"],
                "decoder_token_ids": arrays["inputs"],
                "decoder_padding_mask": masks["inputs"],
                **packed_inputs(arrays, "encoder_"),
                **packed_inputs(arrays, "decoder_", paired=True),
            }
            counted = masks["targets"].astype("float32")
            return batch, arrays["targets"], weighed(counted, arrays)

        return self._bucketed(
            {"sources": rows["sources"]},
            make_batch,
            paired_columns=paired,
            pad_values=dict.fromkeys(("sources", "inputs", "targets"), self.pad_id),
            rowwise=True,
            **options,
        )

    def _dataset_of_texts(self, x, objective, sample_weight, **options) -> BucketedDataset:
        tokenizer = tokenizer_of(self)
        if options.get("pack_length") is not None:
            raise ValueError("`pack_length` cannot be combined with `objective`: leave it out.")
        make = objective.bind(tokenizer, self.start_id)
        max_length = take_max_length(self, options, at_least=2)
        # Room for the special tokens that the template adds to a source, and the end of a target.
        room = max(len(tokenizer.encode("")), 1)
        longest = max_length - room

        def encode(texts, place):
            rows = tokenizer.encode_batch(*texts, special_tokens=False, max_length=longest)
            check_said(*texts, rows, [], place)
            return {"tokens": rows}

        columns = encode_rows(self, text_columns(x), encode, longest=longest).columns
        # The tokens of a corrupted text change each time, so they cannot have their own weights.
        weights = check_weights("sample_weight", sample_weight, len(columns["tokens"]))
        values = {} if weights is None else {"row_weights": weights}

        def make_batch(arrays, masks):
            random = generator_of(dataset, arrays)
            inputs, targets, counted = make(arrays["tokens"], masks["tokens"], random)
            if values:
                counted = counted * arrays["row_weights"][:, None]
            return inputs, targets, counted

        dataset = self._bucketed(columns, make_batch, values=values, rowwise=True, **options)
        return dataset

    @reads
    def score(
        self,
        sources,
        targets,
        per_token: bool = False,
        global_positions=None,
        *,
        source: str | None = None,
        target: str | None = None,
    ):
        """Return the log-probability of targets, including their end, given their sources.

        Args:
            sources: a string or a list of strings, or lists of ids.
            targets: one for each source.
            per_token: bool, return the log-probability of each token of the target.
            global_positions: as in `generate`, for the sources.
            source: str, the language of the sources, as in `generate`.
            target: str, the language of the targets. If they begin with its token, that is scored
                too.

        Returns:
            The natural logarithm of each target's probability, float64 `(targets,)`; a float for a
            string. With `per_token` a list of float32 arrays; an array for a string.

        Raises:
            ValueError: if the numbers of sources and targets differ, or one is empty.
        """
        generator = self.generator.of_languages(source, target)
        rows, as_text, single = generator.prompt_ids(sources, "sources")
        if as_text:
            texts = [targets] if isinstance(targets, str) else text_rows(targets, "targets")
            for place, text in enumerate(texts):
                check_text(f"targets[{place}]", text)
            targets = self._encode_targets(texts, generator)
        else:
            targets = self.generator.prompt_ids(targets, "targets")[0]
        check_equal(rows, targets, ("sources", "targets"))
        for name, lists in (("sources", rows), ("targets", targets)):
            for place, row in enumerate(lists):
                if not row:
                    raise ValueError(f"`{name}[{place}]` is empty: give at least one token.")
                self.backbone.check_ids(**{f"{name}[{place}]": np.asarray(row)})
        targets = with_end(targets, self.end_ids[0] if self.end_ids else None)
        further = self.generator.global_inputs(global_positions, rows, "sources")
        return generator.scores(list(zip(rows, targets, strict=True)), per_token, single, further)

    def _first(self) -> list[int]:
        """Return the ids that begin every target, such as the language token of mBART-50."""
        return list(self.published_rules().forced_prefix)

    def _encode_targets(self, texts, generator=None):
        rules = (self.generator if generator is None else generator).published_rules()
        first = rules.forced_prefix
        return [[*first, *row] for row in tokenizer_of(self).encode_targets(texts)]


def _sources_and_targets(x, y) -> Records | tuple[list[str], list[str]]:
    """Return `Records` with two columns, or two lists of texts."""
    if isinstance(x, Records):
        if len(x.columns) != 2:
            raise ValueError(
                f"Seq2SeqLM needs sources and targets: read(..., x=..., y=...), received {x}."
            )
        return x
    if y is None:
        if not isinstance(x, tuple) or len(x) != 2:
            raise ValueError(
                "Seq2SeqLM needs sources and targets: give `y`, or x=(x, y). To translate sources, "
                "call `generate(sources)`. To train it on texts without targets, give `fit` the "
                "batches of `make_dataset(texts, objective=...)`, with `training.SpanCorruption()` "
                "or `training.Denoising()`."
            )
        x, y = x
    return pair_rows(x, y, ("x", "y"), ("sources", "targets"))
