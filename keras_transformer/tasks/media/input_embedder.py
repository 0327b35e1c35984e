"""Base class of embedders of images, videos or recordings, and of texts in the same space."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer.data import BucketedDataset
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_text,
    describe,
    shorten,
    with_article,
)
from keras_transformer.tasks.base.head import Head, sigmoid, softmax
from keras_transformer.tasks.base.pooling import pool_stem
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.arguments import warn_of_repeats
from keras_transformer.tasks.data.labels import check_weights, top_classes
from keras_transformer.tasks.data.text import (
    check_ends,
    check_equal,
    check_said,
    take_max_length,
    text_rows,
    token_batches,
)
from keras_transformer.tasks.media.input_classifier import num_tokens, rows_to_predict
from keras_transformer.tasks.media.sources import SourceProcessor
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW, PairAccuracy
from keras_transformer.training.losses.pair_losses import pair_loss

POOLINGS = ("first", "mean", "first_and_mean", "tokens", "pooler")


class InputVectorHead(Head):
    """Head of an embedder: the pooled states of an encoder, or a dual encoder's vectors.

    Args:
        task: as for `Head`.
        pooling, normalize: as for `ImageEmbedder`.
    """

    options = ("pooling", "normalize")
    predicts_by_tokens = True
    takes_records = False
    beside, learned, needs_beside = ("text", "caption", "captions", "sentence"), (), True

    def __init__(self, task, pooling: str | None, normalize: bool):
        super().__init__(task)
        config = task.backbone.config
        if task.is_dual and pooling is not None:
            raise ValueError(
                "`pooling` is for an Encoder: a DualEncoder's config defines how its vectors are "
                f"made. Received {shorten(pooling)}."
            )
        if not task.is_dual:
            usual = "first" if num_tokens(config) else "mean"
            pooling = pooling or ("pooler" if config.vector_pooling else usual)
            check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.normalize = check_bool("normalize", normalize)
        self.first_only = pooling == "first"

    def __call__(self, states, inputs, training: bool = False):
        backbone = self.task.backbone
        if isinstance(states, Mapping):
            if len(states) == 2:
                return backbone.both_similarities(states[backbone.source], states["texts"])
            (vectors,) = states.values()
        else:
            mask = backbone.stem.mask_of(inputs, ops.shape(states)[1])
            if self.pooling == "pooler":
                vectors = backbone.pool(states, padding_mask=mask)
            else:
                vectors = pool_stem(states, self.pooling, num_tokens(backbone.config), mask)
        vectors = ops.cast(vectors, "float32")
        return unit_vectors(vectors) if self.normalize else vectors

    def usual(self) -> dict[str, Any]:
        biased = self.task.backbone.config.similarity_bias
        loss = "pairwise_sigmoid" if biased else "contrastive"
        return {"optimizer": FineTuningAdamW(), "loss": loss, "metrics": [PairAccuracy()]}

    def metric_of(self, given):
        """Map the name `"accuracy"` to the accuracy of matching images or recordings to texts."""
        return PairAccuracy(given) if given in ("accuracy", "acc") else given


class InputEmbedder(Task):
    """A backbone that returns a vector for each input, and for each text it may read.

    Its inputs are images, videos or recordings.

    A subclass names its processor and the text of a label, and says which classifier and presets
    its errors recommend.
    """

    backbone_kinds = ("dual", "encoder")
    head_class = InputVectorHead
    processor_class: ClassVar[type[SourceProcessor]]
    task_options = InputVectorHead.options
    stem_example: ClassVar[str]  # a stem config, for the error if the backbone has no stem
    text_presets: ClassVar[str]  # presets that read texts too
    classifier: ClassVar[str]  # the task that learns classes
    label_template: ClassVar[str]  # the text for a label, by default

    pooling: str | None  # values of the head
    normalize: bool

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        tokenizer: Tokenizer | None = None,
        pooling: str | None = None,
        normalize: bool = True,
        name: str | None = None,
    ):
        joined = self.processor_class.joined(processor, tokenizer)
        self.is_dual = getattr(getattr(backbone, "config", None), "kind", None) == "dual"
        raw = self.processor_class.raw
        if joined is not None and not self.is_dual:
            if tokenizer is not None:
                raise ValueError(
                    f"A `tokenizer` is for a DualEncoder: an Encoder only reads {raw}."
                )
            joined = self.processor_class(joined.source)  # Ignore a tokenizer from the folder.
        super().__init__(backbone, joined, name=name)
        known = backbone.id_inputs[0] in self.processor_class.reads_arrays
        if not known or (self.is_dual and backbone.source != raw):
            raise ValueError(
                f"{type(self).__name__} needs a backbone that reads {raw}: give the config a "
                f"`stem`, such as {self.stem_example}."
            )
        self.set_head(pooling=pooling, normalize=normalize)

    def compile(self, optimizer="auto", loss="auto", *args, **kwargs):
        """Compile as `keras.Model.compile` does; losses of pairs may be given by name.

        Args:
            optimizer: as in `keras.Model.compile`.
            loss: `"contrastive"` or `"pairwise_sigmoid"`, or a loss on the logits `(pairs, pairs)`
                of a batch, such as `training.ContrastiveLoss`.
            *args: as in `keras.Model.compile`.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: if the loss has an unknown name.
        """
        super().compile(optimizer, pair_loss(loss, type(self).__name__), *args, **kwargs)

    # Batches of inputs and texts.

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch inputs, or a tuple of them and their texts. See `Task.make_dataset`.

        Args:
            x: images, videos or recordings; or a tuple of them and of texts that belong together
                pairwise.
            y: must be None: the targets are the texts.
            sample_weight: one number for each pair.
            **options: as in `Task.make_dataset`; `max_length` applies to texts.
        """
        raw, unit = self.processor_class.raw, self.processor_class.source_class.unit
        if y is not None:
            raise ValueError(
                f"{type(self).__name__} learns which {unit} and text belong together, and takes no "
                f"`y`: fit(({raw}, texts)). Classes are learned by "
                f"{with_article(self.classifier)}."
            )
        given, texts = self._require_processor().parts(x)
        if texts is None:
            if sample_weight is not None:
                raise ValueError(
                    f"`sample_weight` is for pairs of {raw} and texts: ({raw}, texts)."
                )
            options.pop("max_length", None)
            columns = {"place": np.zeros((len(given), 1), "int32")}
            options["max_buckets"] = 1
            return self._bucketed(
                columns, lambda a, _: (self._arrays_at(given, a["row"]),), **options
            )
        texts = text_rows(texts, "texts")
        check_equal(given, texts, (raw, "texts"))
        warn_of_repeats(texts, options.get("batch_size"))
        weights = check_weights("sample_weight", sample_weight, len(given), unit="pair")
        values = {} if weights is None else {"sample_weight": weights}

        def finish(inputs, arrays):
            inputs |= self._arrays_at(given, arrays["row"])
            return inputs, np.ones(len(arrays["row"]), "float32"), *(arrays[n] for n in values)

        return self._text_batches(texts, finish, values=values, **options)

    def to_predict(self, batch_size: int | None = None) -> dict:
        if batch_size is None:
            batch_size = rows_to_predict(self.backbone.config)
        return super().to_predict(batch_size)

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        """Return the backbone's arrays for inputs that the processor takes."""
        raise NotImplementedError

    def _arrays_at(self, given: Sequence, rows: Sequence[int]) -> dict:
        return self.arrays_of([given[i] for i in rows], rows)

    def _text_batches(self, texts: list[str], finish=None, **options) -> BucketedDataset:
        """Batch token ids. Models that read the last position, padding or not, get no mask."""
        self._needs_texts()
        side, tokenizer = self.backbone.config.side("decoder"), self.tokenizer
        max_length = take_max_length(self, options)
        ids = tokenizer.encode_batch(texts, max_length=max_length)
        (empty,) = tokenizer.encode_batch([""], max_length=max_length)
        check_said(texts, ids, empty, "`texts[{}]`".format)
        check_ends(side, ids)
        # Few lengths: padding texts costs less than encoding images, and compiling costs most.
        if options.get("shuffle"):
            options.setdefault("max_buckets", 2)
        whole = side.reads_padding
        if whole:
            longest = side.max_sequence_length
            options |= {"buckets": [longest], "max_length": longest}

        def finished(inputs, arrays):
            inputs = {n: a for n, a in inputs.items() if not (whole and n == "padding_mask")}
            return (inputs,) if finish is None else finish(inputs, arrays)

        return token_batches(self, {"token_ids": ids}, finished, **options)

    def _needs_texts(self) -> None:
        raw, name = self.processor_class.raw, type(self).__name__
        if not self.is_dual:
            raise ValueError(
                f"This model reads {raw} only. For texts use a model of {raw} and texts, such as "
                f"{self.text_presets}."
            )
        if self._require_processor().tokenizer is None:
            raise ValueError(
                f"This {name} has no tokenizer. To embed texts, make it with one: "
                f"{name}(backbone, processor, tokenizer)."
            )

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        pairs = isinstance(x, tuple) or self._holds_both(x)
        if not pairs and (self._takes(x) or isinstance(x, Mapping)):
            raw = self.processor_class.raw
            raise ValueError(
                f"{type(self).__name__} learns from {raw} and their texts, fit(({raw}, texts)), "
                f"received {describe(x)}. `validation_data` is (({raw}, texts),). For vectors of "
                f"{raw} use `predict`."
            )
        if isinstance(x, Mapping) and y is None:
            y = np.ones(len(x[self.backbone.id_inputs[0]]), "float32")
        return super()._batches(x, y, sample_weight, processing, **options)

    def _holds_both(self, x) -> bool:
        """Return whether `x` is a dict with the arrays of inputs and of texts."""
        return isinstance(x, Mapping) and {self.backbone.id_inputs[0], "token_ids"} <= {*x}

    @reads
    def predict(self, x, batch_size: int | None = None, *args, **kwargs) -> np.ndarray:
        """Return the vectors of inputs in order, as `keras.Model.predict` does.

        Args:
            x: images, videos or recordings, a dict of their arrays or of `token_ids`, or a dataset
                of such dicts.
            batch_size: int, the number of rows computed together. Defaults to 32 on a CPU, and on a
                GPU to a number that suits it.
            *args: as in `keras.Model.predict`.
            **kwargs: as in `keras.Model.predict`.

        Returns:
            Float `(rows, width)`.
        """
        if self._holds_both(x) or (isinstance(x, tuple) and self._takes(x)):
            raw = self.processor_class.raw
            raise ValueError(
                f"`predict` returns vectors of {raw} only. For similarities to texts use "
                f"similarity(encode({raw}), encode_texts(texts))."
            )
        return super().predict(x, batch_size, *args, **kwargs)

    # Embedding, similarity and zero-shot classification.

    @reads
    def encode(self, x, batch_size: int | None = None) -> np.ndarray:
        """Return the vectors of images, videos or recordings.

        Args:
            x: a list of what the processor can read, or one image, video or recording.
            batch_size: int, as for `predict`.

        Returns:
            Float32 `(rows, width)`; `(width,)` for a single one.
        """
        alone = self._require_processor().source.is_one(x)
        vectors = self.predict([x] if alone else x, batch_size, verbose=0)
        return vectors[0] if alone else vectors

    @reads
    def encode_texts(self, texts: str | Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Return the vectors of texts. The model must be one that reads texts too.

        Args:
            texts: a list of strings, or one string.
            batch_size: int, the number of texts computed together, as for `predict`.

        Returns:
            Float32 `(texts, width)`; `(width,)` for one string.

        Raises:
            ValueError: if the model reads no texts.
        """
        alone = isinstance(texts, str)
        rows = text_rows([texts] if alone else texts, "texts")
        dataset = self._text_batches(rows, **super().to_predict(batch_size))
        vectors = self.predict(dataset, verbose=0)
        return vectors[0] if alone else vectors

    @reads
    def similarity(self, vectors, text_vectors) -> np.ndarray:
        """Return the similarity of each vector to each text vector.

        Args:
            vectors: float `(rows, width)`, as `encode` returns them.
            text_vectors: float `(texts, width)`, as `encode_texts` returns them; for a model that
                reads no texts, the vectors of other rows.

        Returns:
            Float32 `(rows, texts)`: the cosine similarities. A model that reads texts multiplies
            them by its scale, and adds its bias if it has one. `classify` turns them into
            probabilities.
        """
        both = [np.atleast_2d(np.asarray(each, "float32")) for each in (vectors, text_vectors)]
        if self.is_dual:
            return ops.convert_to_numpy(self.backbone.similarity(*both))
        first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in both)
        return first @ second.T

    @reads
    def classify(
        self,
        x,
        labels: Sequence[str],
        template: str | Sequence[str] | None = None,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """Classify images, videos or recordings by any labels without training (zero-shot).

        With the loss `"contrastive"` (CLIP) the probabilities of the labels sum to 1; a model with
        `similarity_bias` (SigLIP) gives each label an independent probability.

        Args:
            x: a list of images, videos or recordings that the processor can read, or one of them.
            labels: strings, such as `["cat", "dog"]`.
            template: str, the text for a label, with `{}` in the place of the label; `"{}"` is the
                label alone. With a list of templates, the vectors of their texts are averaged.
                Defaults to `"a photo of a {}."` for images, `"a video of {}."` for videos, and
                `"This is a sound of {}."` for recordings.
            batch_size: int, as for `predict`.
            top_k: int, the number of most likely labels to return for each row; the number of
                labels or more returns all.
            threshold: float, drop labels with a lower probability.

        Returns:
            A `(label, probability)` for each row, or, with `top_k` or `threshold`, a list of them,
            the most likely first. For a single input, only its result.

        Raises:
            ValueError: if the model reads no texts, labels are missing or repeated, or a template
                has no place for the label.

        Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
        Supervision", sections 3.1.2 and 3.1.4; of sounds: Wu et al. 2022, "Large-scale Contrastive
        Language-Audio Pretraining with Feature Fusion and Keyword-to-Caption Augmentation", section
        4.3.
        """
        self._needs_texts()
        labels = checked_labels(labels)
        template = self.label_template if template is None else template
        vectors = self.encode_texts(label_texts(labels, template), batch_size)
        vectors = mean_over_templates(vectors, len(labels))
        alone = self._require_processor().source.is_one(x)
        found = self.predict([x] if alone else x, batch_size, verbose=0)
        logits = self.similarity(found, vectors)
        shares = (sigmoid if self.backbone.config.similarity_bias else softmax)(logits)
        found = top_classes(shares, labels, top_k, threshold)
        return found[0] if alone else found


def checked_labels(labels: Any) -> list[str]:
    """Return labels as a list. Raises ValueError if empty, or a label is invalid or repeated."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence) or not labels:
        raise ValueError(
            "`labels` must be a list of strings, such as ['cat', 'dog'], received "
            f"{describe(labels)}."
        )
    for i, label in enumerate(labels):
        check_text(f"labels[{i}]", label)
        if label in labels[:i]:
            raise ValueError(f"`labels` has {shorten(label)} twice: give each label once.")
    return list(labels)


def label_texts(labels: list[str], template: str | Sequence[str]) -> list[str]:
    """Return the text of each label in each template, grouped by template.

    Raises ValueError if there are no templates, or one has no place for the label.
    """
    templates = [template] if isinstance(template, str) else template
    if not isinstance(templates, Sequence) or not templates:
        raise ValueError(
            f"`template` must be a string or a list of strings, received {describe(template)}."
        )
    for i, each in enumerate(templates):
        check_text(f"template[{i}]", each)
        if "{}" not in each:
            raise ValueError(
                "`template` must have {} where the label goes, such as 'a photo of a {}.', "
                f"received {shorten(each)}."
            )
    return [each.replace("{}", label) for each in templates for label in labels]


def mean_over_templates(vectors: np.ndarray, count: int) -> np.ndarray:
    """Average the unit vectors of the texts of `label_texts` to one vector for each label."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units.reshape(-1, count, vectors.shape[1]).mean(axis=0)
