"""Vectors of images, and of texts in the same space: search, and classes that are told by texts."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_bool, check_choice, describe, shorten
from keras_transformer.data import BucketedDataset
from keras_transformer.layers.unit_vectors import unit_vectors
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.tasks.input_classifier import num_tokens
from keras_transformer.tasks.labels import check_weights, likeliest
from keras_transformer.tasks.pooling import pool_stem
from keras_transformer.tasks.sources import PairProcessor
from keras_transformer.tasks.tables import TakesTables
from keras_transformer.tasks.task import Task, sigmoid, softmax
from keras_transformer.tasks.text import (
    check_ends,
    check_equal,
    check_said,
    take_max_length,
    text_rows,
    token_batches,
)
from keras_transformer.tasks.zero_shot import checked_labels, label_texts, mean_over_templates
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW, PairAccuracy
from keras_transformer.training.pair_losses import pair_loss

POOLINGS = ("first", "mean", "first_and_mean", "tokens", "pooler")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageEmbedder(TakesTables, Task):
    """A vector of each image, and of a model of images and texts a vector of each text too.

    `predict` and `encode` give the vectors of images, `encode_texts` those of texts, and
    `similarity` compares them. `classify` finds the likeliest of any labels, without training
    (zero-shot): each label is a text, such as "a photo of a cat.".

    A model of images and texts learns from both, row by row: `fit((images, texts))`. It is compiled
    with AdamW (5e-5), the accuracy of finding an image's text in its batch, and the loss
    `"contrastive"` (CLIP), or `"pairwise_sigmoid"` for a backbone with `similarity_bias` (SigLIP).

    Args:
        backbone: a `DualEncoder`, such as CLIP's; or an `Encoder` whose config has a `stem` of
            images, such as DINOv2's, which has vectors of images alone.
        processor: `processors.ImageProcessor`; None for a task that takes arrays only.
        tokenizer: `Tokenizer`, for a `DualEncoder`.
        pooling: of an `Encoder`: the state of the `"first"` token, the `"mean"` over the patches,
            `"first_and_mean"` side by side, the mean of class and distillation `"tokens"`, or what
            `pool` of the backbone gives, `"pooler"`. Defaults to that for one that has a
            `vector_pooling`, else to `"first"` with a class token and to `"mean"` without.
        normalize: bool, vectors of length 1, whose dot product is the cosine.
        name: str.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`; or, for a `DualEncoder`,
            of `token_ids` and optionally `padding_mask`; or of both.

    Returns:
        Float `(batch, width)`; of both the similarities `(images, texts)`, which are logits.

    Raises:
        ValueError: for a backbone without images, an unknown pooling, or one of a `DualEncoder`.

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

    backbone_kinds = ("dual", "encoder")
    processor_class = PairProcessor
    alias = "image_embedding"
    reads_arrays = ("images",)
    task_options = ("pooling", "normalize")
    takes_records = False
    beside, learned, needs_beside = ("text", "caption", "captions", "sentence"), (), True

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
                raise ValueError("A `tokenizer` is for a DualEncoder: an Encoder reads images.")
            joined = self.processor_class(joined.source)  # Without what lies in the folder.
        super().__init__(backbone, joined, name=name)
        if backbone.id_inputs[0] not in self.reads_arrays:
            raise ValueError(
                "ImageEmbedder needs a backbone that reads images: give the config a `stem`, such "
                "as {'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}."
            )
        if self.is_dual and pooling is not None:
            raise ValueError(
                "`pooling` is for an Encoder: a DualEncoder's config says how its vectors are "
                f"made. Received {shorten(pooling)}."
            )
        if not self.is_dual:
            usual = "first" if num_tokens(backbone.config) else "mean"
            pooling = pooling or ("pooler" if backbone.config.vector_pooling else usual)
            check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.normalize = check_bool("normalize", normalize)
        self.first_only = pooling == "first"
        self.built = True
        loss = "pairwise_sigmoid" if backbone.config.similarity_bias else "contrastive"
        self.compile(FineTuningAdamW(), loss, metrics=[PairAccuracy()])

    def compile(self, optimizer="auto", loss="auto", *args, **kwargs):
        """As `keras.Model.compile`, and a loss may be named.

        Args:
            optimizer: as in `keras.Model.compile`.
            loss: `"contrastive"` or `"pairwise_sigmoid"`, or a loss of the logits `(pairs, pairs)`
                of a batch, such as `training.ContrastiveLoss`.
            *args: as in `keras.Model.compile`.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for another name.
        """
        super().compile(optimizer, pair_loss(loss), *args, **kwargs)

    def metric_of(self, given):
        """Accuracy by name is that of finding an image's text."""
        return PairAccuracy(given) if given in ("accuracy", "acc") else given

    def head_outputs(self, states, inputs, training: bool):
        if isinstance(states, Mapping):
            if len(states) == 2:
                return self.backbone.similarity(states["images"], states["texts"])
            (vectors,) = states.values()
        elif self.pooling == "pooler":
            vectors = self.backbone.pool(states)
        else:
            vectors = pool_stem(states, self.pooling, num_tokens(self.backbone.config))
        vectors = ops.cast(vectors, "float32")
        return unit_vectors(vectors) if self.normalize else vectors

    # Images and texts as batches.

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Images, or a tuple of images and their texts, as batches. See `Task.make_dataset`.

        Args:
            x: images; or a tuple of images and texts, of which the i-th belong together.
            y: None: what is learned is in the texts.
            sample_weight: one number a pair.
            **options: as in `Task.make_dataset`, `max_length` for texts.
        """
        if y is not None:
            raise ValueError(
                "ImageEmbedder learns which image and text belong together, and takes no `y`: "
                "fit((images, texts)). Classes are learned by an ImageClassifier."
            )
        images, texts = self._require_processor().parts(x)
        if texts is None:
            if sample_weight is not None:
                raise ValueError("`sample_weight` is of images and their texts: (images, texts).")
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

    def _pixels(self, images: Sequence, rows: Sequence[int]) -> dict:
        source = self._require_processor().source
        return {"images": source([images[i] for i in rows], places=rows)}

    def _text_batches(self, texts: list[str], finish=None, **options) -> BucketedDataset:
        """Batches of ids. A model that reads the last place, padding or not, gets no mask."""
        self._needs_texts()
        side, tokenizer = self.backbone.config.side("decoder"), self.tokenizer
        max_length = take_max_length(self, options)
        ids = tokenizer.encode_batch(texts, max_length=max_length)
        (empty,) = tokenizer.encode_batch([""], max_length=max_length)
        check_said(texts, ids, empty, "`texts[{}]`".format)
        check_ends(side, ids)
        if options.get("shuffle"):  # Images cost more than the padding of texts, and programs most.
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
                "This model reads images alone. Texts in the same space have those of images and "
                "texts, such as the presets clip_vit_base_patch32 and siglip_base_patch16_224."
            )
        if self._require_processor().tokenizer is None:
            raise ValueError(
                "This ImageEmbedder has no tokenizer. Give a text to one that is made with it: "
                "ImageEmbedder(backbone, processor, tokenizer)."
            )

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        pairs = isinstance(x, tuple) or (isinstance(x, Mapping) and {"images", "token_ids"} <= {*x})
        if not pairs and (self._takes(x) or isinstance(x, Mapping)):
            raise ValueError(
                f"ImageEmbedder learns from images and their texts, fit((images, texts)), received "
                f"{describe(x)}. `validation_data` is ((images, texts),). Vectors of images are "
                "what `predict` gives."
            )
        if isinstance(x, Mapping) and y is None:
            y = np.ones(len(x["images"]), "float32")
        return super()._batches(x, y, sample_weight, processing, **options)

    @reads
    def predict(self, x, batch_size: int | None = None, *args, **kwargs) -> np.ndarray:
        """The vectors of images, in their order, as `keras.Model.predict`.

        Args:
            x: images, a dict of `images` or of `token_ids`, or a dataset of such.
            batch_size: int.
            *args: as in `keras.Model.predict`.
            **kwargs: as in `keras.Model.predict`.

        Returns:
            Float `(images, width)`.
        """
        both = isinstance(x, Mapping) and {"images", "token_ids"} <= {*x}
        if both or (isinstance(x, tuple) and self._takes(x)):
            raise ValueError(
                "`predict` gives vectors, of images alone. How near images and texts are is "
                "similarity(encode(images), encode_texts(texts))."
            )
        return super().predict(x, batch_size, *args, **kwargs)

    # What it is asked.

    @reads
    def encode(self, images, batch_size: int | None = None) -> np.ndarray:
        """The vectors of images.

        Args:
            images: a list of what `ImageProcessor` takes, or one image.
            batch_size: int.

        Returns:
            Float32 `(images, width)`; of one image `(width,)`.
        """
        alone = self._require_processor().source.is_one(images)
        vectors = self.predict([images] if alone else images, batch_size, verbose=0)
        return vectors[0] if alone else vectors

    @reads
    def encode_texts(self, texts: str | Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """The vectors of texts, of a model of images and texts.

        Args:
            texts: a list of strings, or one string.
            batch_size: int.

        Returns:
            Float32 `(texts, width)`; of one string `(width,)`.

        Raises:
            ValueError: for a model of images alone.
        """
        alone = isinstance(texts, str)
        rows = text_rows([texts] if alone else texts, "texts")
        dataset = self._text_batches(rows, sizes=self._sizes, batch_size=batch_size)
        vectors = self.predict(dataset, verbose=0)
        return vectors[0] if alone else vectors

    @reads
    def similarity(self, image_vectors, text_vectors) -> np.ndarray:
        """How near vectors are to each other.

        Args:
            image_vectors: float `(images, width)`, as `encode` gives them.
            text_vectors: float `(texts, width)`, of texts; or of other images for a model of images
                alone.

        Returns:
            Float32 `(images, texts)`: the cosine of each two; of a model of images and texts times
            its trained scale, plus its bias if it has one, of which `classify` makes probabilities.
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
        """The likeliest of some labels for each image, and its probability: no training is needed.

        With the loss of CLIP the probabilities of the labels are 1 together; a model with
        `similarity_bias` (SigLIP) gives each label one by itself.

        Args:
            images: a list of what `ImageProcessor` takes, or one image.
            labels: strings, such as `["cat", "dog"]`.
            template: the text of a label, with `{}` in its place; `"{}"` for the label alone. Of a
                list of templates the vectors are averaged.
            batch_size: int.
            top_k: int, the likeliest labels of each image; as many as there are, or more, for all.
            threshold: float, labels below this probability are left out.

        Returns:
            One `(label, probability)` an image, or, with `top_k` or `threshold`, a list of them,
            the likeliest first; for one image its result alone.

        Raises:
            ValueError: for a model of images alone, no labels or one that is given twice, or a
                template without a place for them.

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
        found = likeliest(shares, labels, top_k, threshold)
        return found[0] if alone else found
