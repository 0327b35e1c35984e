"""Embeddings of images, and of texts in the same space: search and zero-shot classification."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.data import BucketedDataset
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_text,
    describe,
    shorten,
)
from keras_transformer.tasks.base.head import Head, sigmoid, softmax
from keras_transformer.tasks.base.pooling import pool_stem
from keras_transformer.tasks.base.task import Task
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
from keras_transformer.tasks.media.sources import PairProcessor
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW, PairAccuracy
from keras_transformer.training.losses.pair_losses import pair_loss

POOLINGS = ("first", "mean", "first_and_mean", "tokens", "pooler")


class ImageVectorHead(Head):
    """The head of `ImageEmbedder`: the pooled states of an encoder, or a dual encoder's vectors.

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
                return backbone.similarity(states["images"], states["texts"])
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
        """Map the name `"accuracy"` to the accuracy of matching images to texts."""
        return PairAccuracy(given) if given in ("accuracy", "acc") else given


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageEmbedder(Task):
    """A backbone that returns a vector for each image, and for each text if it reads both.

    `predict` and `encode` return the vectors of images, `encode_texts` the vectors of texts, and
    `similarity` compares them. `classify` chooses among any labels without training (zero-shot):
    each label is written as a text, such as "a photo of a cat.".

    A model of images and texts trains on pairs: `fit((images, texts))`. It is compiled with AdamW
    (5e-5), the accuracy of matching an image to its text within the batch, and the loss
    `"contrastive"` (CLIP), or `"pairwise_sigmoid"` if the backbone has a `similarity_bias`
    (SigLIP).

    Args:
        backbone: a `DualEncoder`, such as CLIP; or an `Encoder` whose config has an image `stem`,
            such as DINOv2, which embeds images only.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays.
        tokenizer: `Tokenizer`, for a `DualEncoder`.
        pooling: for an `Encoder`: the state of the `"first"` token, the `"mean"` over the patches,
            `"first_and_mean"` concatenated, the mean of the class and distillation `"tokens"`, or
            the output of the backbone's `pool`, `"pooler"`. Defaults to `"pooler"` if the config
            has a `vector_pooling`, otherwise to `"first"` with a class token and to `"mean"`
            without.
        normalize: bool, scale vectors to length 1: their dot product is then the cosine similarity.
        name: str.

    Call arguments:
        inputs: dict with `images`, float `(batch, height, width, channels)`, or the arrays of
            images of any size, see `layers.stems.PatchSequenceStem`; or, for a `DualEncoder`, with
            `token_ids` and optionally `padding_mask`; or with both.

    Returns:
        Float `(batch, width)`; for both inputs the similarities `(images, texts)`, which are
        logits.

    Raises:
        ValueError: if the backbone reads no images, the pooling is unknown, or a pooling is given
            for a `DualEncoder`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    captions = ["a photo of a dark square.", "a photo of a bright square."]
    tokenizer = kt.Tokenizer.train(captions * 4, vocabulary_size=300)
    config = kt.TransformerConfig(
        kind="dual", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
        num_heads=4, intermediate_dim=64, position="learned", max_sequence_length=32,
        normalize_first=True, vector_dim=24,
        encoder={
            "vocabulary_size": 0, "vector_pooling": "first",
            "stem": {"kind": "patches", "image_size": [16, 16], "patch_size": 4},
        },
        decoder={"vector_pooling": "end", "vector_end_id": tokenizer.end_id},
    )
    embedder = kt.ImageEmbedder(
        kt.models.DualEncoder(config), kt.ImageProcessor(size=16), tokenizer
    )
    images = [np.full((16, 16, 3), value, "uint8") for value in (10, 240)]
    embedder.fit((images, captions), epochs=1, verbose=0)

    label, probability = embedder.classify(images[0], ["dark square", "bright square"])
    assert label in ("dark square", "bright square") and 0.5 <= probability <= 1
    vectors = embedder.encode(images)
    assert embedder.similarity(vectors, embedder.encode_texts(captions)).shape == (2, 2)
    ```

    Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", section 3.1; Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training".
    """

    alias = "image_embedding"
    backbone_kinds = ("dual", "encoder")
    head_class = ImageVectorHead
    processor_class = PairProcessor
    task_options = ImageVectorHead.options

    pooling: str | None  # values of the head
    normalize: bool

    def __init__(
        self,
        backbone: Backbone,
        processor: ImageProcessor | None = None,
        tokenizer: Tokenizer | None = None,
        pooling: str | None = None,
        normalize: bool = True,
        name: str | None = None,
    ):
        joined = self.processor_class.joined(processor, tokenizer)
        self.is_dual = getattr(getattr(backbone, "config", None), "kind", None) == "dual"
        if joined is not None and not self.is_dual:
            if tokenizer is not None:
                raise ValueError(
                    "A `tokenizer` is for a DualEncoder: an Encoder only reads images."
                )
            joined = self.processor_class(joined.source)  # Ignore a tokenizer from the folder.
        super().__init__(backbone, joined, name=name)
        if backbone.id_inputs[0] not in self.processor_class.reads_arrays:
            raise ValueError(
                "ImageEmbedder needs a backbone that reads images: give the config a `stem`, such "
                "as {'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}."
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
        super().compile(optimizer, pair_loss(loss), *args, **kwargs)

    # Batches of images and texts.

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch images, or a tuple of images and their texts. See `Task.make_dataset`.

        Args:
            x: images; or a tuple of images and texts that belong together pairwise.
            y: must be None: the targets are the texts.
            sample_weight: one number for each pair.
            **options: as in `Task.make_dataset`; `max_length` applies to texts.
        """
        if y is not None:
            raise ValueError(
                "ImageEmbedder learns which image and text belong together, and takes no `y`: "
                "fit((images, texts)). Classes are learned by an ImageClassifier."
            )
        images, texts = self._require_processor().parts(x)
        if texts is None:
            if sample_weight is not None:
                raise ValueError(
                    "`sample_weight` is for pairs of images and texts: (images, texts)."
                )
            options.pop("max_length", None)
            columns = {"place": np.zeros((len(images), 1), "int32")}
            options["max_buckets"] = 1
            return self._bucketed(
                columns, lambda a, _: (self._pixels(images, a["row"]),), **options
            )
        texts = text_rows(texts, "texts")
        check_equal(images, texts, ("images", "texts"))
        weights = check_weights("sample_weight", sample_weight, len(images), unit="pair")
        values = {} if weights is None else {"sample_weight": weights}

        def finish(inputs, arrays):
            inputs |= self._pixels(images, arrays["row"])
            return inputs, np.ones(len(arrays["row"]), "float32"), *(arrays[n] for n in values)

        return self._text_batches(texts, finish, values=values, **options)

    def to_predict(self, batch_size: int | None = None) -> dict:
        if batch_size is None:
            batch_size = rows_to_predict(self.backbone.config)
        return super().to_predict(batch_size)

    def _pixels(self, images: Sequence, rows: Sequence[int]) -> dict:
        source = self._require_processor().source
        return source.arrays([images[i] for i in rows], places=rows)

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
        whole = side.vector_pooling == "last"
        if whole:
            longest = side.max_sequence_length
            options |= {"buckets": [longest], "max_length": longest}

        def finished(inputs, arrays):
            inputs = {n: a for n, a in inputs.items() if not (whole and n == "padding_mask")}
            return (inputs,) if finish is None else finish(inputs, arrays)

        return token_batches(self, {"token_ids": ids}, finished, **options)

    def _needs_texts(self) -> None:
        if not self.is_dual:
            raise ValueError(
                "This model reads images only. For texts use a model of images and "
                "texts, such as the presets clip_vit_base_patch32 and siglip_base_patch16_224."
            )
        if self._require_processor().tokenizer is None:
            raise ValueError(
                "This ImageEmbedder has no tokenizer. To embed texts, make it with one: "
                "ImageEmbedder(backbone, processor, tokenizer)."
            )

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        pairs = isinstance(x, tuple) or self._holds_both(x)
        if not pairs and (self._takes(x) or isinstance(x, Mapping)):
            raise ValueError(
                f"ImageEmbedder learns from images and their texts, fit((images, texts)), received "
                f"{describe(x)}. `validation_data` is ((images, texts),). For vectors of images "
                "use `predict`."
            )
        if isinstance(x, Mapping) and y is None:
            y = np.ones(len(x[self.backbone.id_inputs[0]]), "float32")
        return super()._batches(x, y, sample_weight, processing, **options)

    def _holds_both(self, x) -> bool:
        """Return whether `x` is a dict with the arrays of images and of texts."""
        return isinstance(x, Mapping) and {self.backbone.id_inputs[0], "token_ids"} <= {*x}

    @reads
    def predict(self, x, batch_size: int | None = None, *args, **kwargs) -> np.ndarray:
        """Return the vectors of images in their order, as `keras.Model.predict` does.

        Args:
            x: images, a dict of `images` or of `token_ids`, or a dataset of such dicts.
            batch_size: int, the number of images computed together. Defaults to 32 on a CPU, and on
                a GPU to a number that suits it.
            *args: as in `keras.Model.predict`.
            **kwargs: as in `keras.Model.predict`.

        Returns:
            Float `(images, width)`.
        """
        if self._holds_both(x) or (isinstance(x, tuple) and self._takes(x)):
            raise ValueError(
                "`predict` returns vectors of images only. For similarities to texts use "
                "similarity(encode(images), encode_texts(texts))."
            )
        return super().predict(x, batch_size, *args, **kwargs)

    # Embedding, similarity and zero-shot classification.

    @reads
    def encode(self, images, batch_size: int | None = None) -> np.ndarray:
        """Return the vectors of images.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            batch_size: int, as for `predict`.

        Returns:
            Float32 `(images, width)`; `(width,)` for one image.
        """
        alone = self._require_processor().source.is_one(images)
        vectors = self.predict([images] if alone else images, batch_size, verbose=0)
        return vectors[0] if alone else vectors

    @reads
    def encode_texts(self, texts: str | Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """Return the vectors of texts. The model must be one of images and texts.

        Args:
            texts: a list of strings, or one string.
            batch_size: int, the number of texts computed together, as for `predict`.

        Returns:
            Float32 `(texts, width)`; `(width,)` for one string.

        Raises:
            ValueError: if the model embeds images only.
        """
        alone = isinstance(texts, str)
        rows = text_rows([texts] if alone else texts, "texts")
        dataset = self._text_batches(rows, **super().to_predict(batch_size))
        vectors = self.predict(dataset, verbose=0)
        return vectors[0] if alone else vectors

    @reads
    def similarity(self, image_vectors, text_vectors) -> np.ndarray:
        """Return the similarity of each image vector to each text vector.

        Args:
            image_vectors: float `(images, width)`, as `encode` returns them.
            text_vectors: float `(texts, width)`, as `encode_texts` returns them; for a model of
                images only, the vectors of other images.

        Returns:
            Float32 `(images, texts)`: the cosine similarities. A model of images and texts
            multiplies them by its trained scale, and adds its bias if it has one. `classify` turns
            them into probabilities.
        """
        both = [
            np.atleast_2d(np.asarray(each, "float32")) for each in (image_vectors, text_vectors)
        ]
        if self.is_dual:
            return ops.convert_to_numpy(self.backbone.similarity(*both))
        first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in both)
        return first @ second.T

    @reads
    def classify(
        self,
        images,
        labels: Sequence[str],
        template: str | Sequence[str] = "a photo of a {}.",
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """Classify images by any labels without training (zero-shot).

        With CLIP's loss the probabilities of the labels sum to 1; a model with `similarity_bias`
        (SigLIP) gives each label an independent probability.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            labels: strings, such as `["cat", "dog"]`.
            template: str, the text for a label, with `{}` in the place of the label; `"{}"` is the
                label alone. With a list of templates, the vectors of their texts are averaged.
            batch_size: int, as for `predict`.
            top_k: int, the number of most likely labels to return for each image; the number of
                labels or more returns all.
            threshold: float, drop labels with a lower probability.

        Returns:
            A `(label, probability)` for each image, or, with `top_k` or `threshold`, a list of
            them, the most likely first. For a single image, only its result.

        Raises:
            ValueError: if the model embeds images only, labels are missing or repeated, or a
                template has no place for the label.

        Source: Radford et al. 2021, sections 3.1.2 and 3.1.4.
        """
        self._needs_texts()
        labels = checked_labels(labels)
        vectors = self.encode_texts(label_texts(labels, template), batch_size)
        vectors = mean_over_templates(vectors, len(labels))
        alone = self._require_processor().source.is_one(images)
        found = self.predict([images] if alone else images, batch_size, verbose=0)
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
