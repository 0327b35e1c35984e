"""Embeddings of videos, and of texts in the same space: search and zero-shot classification."""

from collections.abc import Sequence

import keras

from keras_transformer.tasks.media.input_embedder import InputEmbedder
from keras_transformer.tasks.media.sources import VideoPairProcessor
from keras_transformer.tasks.videos.video_classifier import arrays_of_videos


@keras.saving.register_keras_serializable(package="keras_transformer")
class VideoEmbedder(InputEmbedder):
    """A backbone that returns a vector for each video, and for each text if it reads both.

    `predict` and `encode` return the vectors of videos, `encode_texts` the vectors of texts, and
    `similarity` compares them. `classify` chooses among any labels without training (zero-shot):
    each label is written as a text, such as "a video of surfing.".

    Videos are paths, bytes, arrays `(frames, height, width, channels)` from 0 to 255, or anything
    else that `processors.VideoProcessor` takes, of any length and size. They are read when a batch
    is made, and of each only the frames that the model reads are kept.

    A model of videos and texts trains on pairs: `fit((videos, texts))`. It is compiled with AdamW
    (5e-5), the accuracy of matching a video to its text within the batch, and the loss
    `"contrastive"`, or `"pairwise_sigmoid"` if the backbone has a `similarity_bias`.

    Args:
        backbone: a `DualEncoder` of videos, such as VideoPrism's with texts; or an `Encoder` whose
            config has a `stem` of tubes, which embeds videos only.
        processor: `processors.VideoProcessor`, or None if the task only takes arrays.
        tokenizer: `Tokenizer`, for a `DualEncoder`.
        pooling: for an `Encoder`: the state of the `"first"` tube or class token, the `"mean"` over
            the tubes, `"first_and_mean"` concatenated, or the output of the backbone's `pool`,
            `"pooler"`. Defaults to `"pooler"` if the config has a `vector_pooling`, otherwise to
            `"first"` with a class token and to `"mean"` without.
        normalize: bool, scale vectors to length 1: their dot product is then the cosine similarity.
        name: str.

    Call arguments:
        inputs: dict with `videos`, float `(batch, frames, height, width, channels)`, as the
            processor returns them; or, for a `DualEncoder`, with `token_ids` and optionally
            `padding_mask`; or with both.

    Returns:
        Float `(batch, width)`; for both inputs the similarities `(videos, texts)`, which are
        logits.

    Raises:
        ValueError: if the backbone reads no videos, the pooling is unknown, or a pooling is given
            for a `DualEncoder`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    captions = ["a video of a sunrise.", "a video of a sunset."]
    tokenizer = kt.Tokenizer.train(captions * 4, vocabulary_size=300)
    config = kt.TransformerConfig(
        kind="dual", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
        num_heads=4, intermediate_dim=64, position="learned", max_sequence_length=32,
        normalize_first=True, vector_dim=24,
        encoder={
            "vocabulary_size": 0, "vector_pooling": "mean",
            "stem": {"kind": "tubes", "num_frames": 4, "frame_size": [16, 16], "patch_size": 8},
        },
        decoder={"vector_pooling": "end", "vector_end_id": tokenizer.end_id},
    )
    processor = kt.VideoProcessor(size=(16, 16), crop_size=None)
    embedder = kt.VideoEmbedder(kt.models.DualEncoder(config), processor, tokenizer)
    brighter = np.stack([np.full((20, 30, 3), 25 * i, "uint8") for i in range(10)])
    embedder.fit(([brighter, brighter[::-1]], captions), epochs=1, verbose=0)

    label, probability = embedder.classify(brighter, ["sunrise", "sunset"])
    assert label in ("sunrise", "sunset") and 0.5 <= probability <= 1
    vectors = embedder.encode([brighter, brighter[::-1]])
    assert embedder.similarity(vectors, embedder.encode_texts(captions)).shape == (2, 2)
    ```

    Source: Zhao et al. 2024, "VideoPrism: A Foundational Visual Encoder for Video Understanding",
    section 3.2.
    """

    alias = "video_embedding"
    processor_class = VideoPairProcessor
    stem_example = "{'kind': 'tubes', 'num_frames': 16, 'frame_size': [224, 224], 'patch_size': 16}"
    text_presets = "the preset videoprism_lvt_base_f16r288"
    classifier = "VideoClassifier"
    label_template = "a video of {}."  # as in the published demonstration of VideoPrism

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return arrays_of_videos(self.backbone, self._require_processor().source, given, places)
