"""Embeddings of images, and of texts in the same space: search and zero-shot classification."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.tasks.media.input_embedder import InputEmbedder
from keras_transformer.tasks.media.sources import PairProcessor
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageEmbedder(InputEmbedder):
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
    processor_class = PairProcessor
    stem_example = "{'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}"
    text_presets = "the presets clip_vit_base_patch32 and siglip_base_patch16_224"
    classifier = "ImageClassifier"

    def __init__(
        self,
        backbone: Backbone,
        processor: ImageProcessor | None = None,
        tokenizer: Tokenizer | None = None,
        pooling: str | None = None,
        normalize: bool = True,
        name: str | None = None,
    ):
        super().__init__(backbone, processor, tokenizer, pooling, normalize, name)

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return self._require_processor().source.arrays(given, places=places)

    @reads
    def encode(self, images, batch_size: int | None = None) -> np.ndarray:
        """Return the vectors of images.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            batch_size: int, as for `predict`.

        Returns:
            Float32 `(images, width)`; `(width,)` for one image.
        """
        return super().encode(images, batch_size)

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
        return super().similarity(image_vectors, text_vectors)

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
        return super().classify(images, labels, template, batch_size, top_k, threshold)
