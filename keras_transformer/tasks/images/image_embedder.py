"""Embeddings of images, and of texts in the same space: search and zero-shot classification."""

from collections.abc import Sequence

import keras

from keras_transformer.tasks.media.input_embedder import InputEmbedder
from keras_transformer.tasks.media.sources import PairProcessor


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
    label_template = "a photo of a {}."

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return self._require_processor().source.arrays(given, places=places)
