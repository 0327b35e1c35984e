"""Embeddings of recordings, and of texts in the same space: search and zero-shot classification."""

from collections.abc import Sequence

import keras

from keras_transformer.tasks.media.input_embedder import InputEmbedder
from keras_transformer.tasks.media.sources import RecordingPairProcessor
from keras_transformer.tasks.speech.audio_classifier import arrays_of_sound


@keras.saving.register_keras_serializable(package="keras_transformer")
class AudioEmbedder(InputEmbedder):
    """A backbone that returns a vector for each recording, and for each text if it reads both.

    `predict` and `encode` return the vectors of recordings, `encode_texts` the vectors of texts,
    and `similarity` compares them. `classify` chooses among any labels without training
    (zero-shot): each label is written as a text, such as "This is a sound of a dog.".

    Recordings are paths, bytes, arrays of samples, `(array, rate)`, or anything else that
    `processors.AudioProcessor` takes, of any length and rate. They are read when a batch is made,
    and cut to the processor's length, from their beginning.

    A model of recordings and texts trains on pairs: `fit((recordings, texts))`. It is compiled with
    AdamW (5e-5), the accuracy of matching a recording to its text within the batch, and the loss
    `"contrastive"`, or `"pairwise_sigmoid"` if the backbone has a `similarity_bias`.

    Args:
        backbone: a `DualEncoder` of sound, such as CLAP; or an `Encoder` whose config has an audio
            `stem`, such as wav2vec 2.0, which embeds recordings only.
        processor: `processors.AudioProcessor`, or None if the task only takes arrays.
        tokenizer: `Tokenizer`, for a `DualEncoder`.
        pooling: for an `Encoder`: the state of the `"first"` token, the `"mean"` over the states of
            the recording, `"first_and_mean"` concatenated, the mean of the class and distillation
            `"tokens"`, or the output of the backbone's `pool`, `"pooler"`. Defaults to `"pooler"`
            if the config has a `vector_pooling`, otherwise to `"first"` with a class token and to
            `"mean"` without.
        normalize: bool, scale vectors to length 1: their dot product is then the cosine similarity.
        name: str.

    Call arguments:
        inputs: dict with the input of the stem, such as `frames`, float
            `(batch, length, num_bins)`, as the processor returns it; or, for a `DualEncoder`, with
            `token_ids` and optionally `padding_mask`; or with both.

    Returns:
        Float `(batch, width)`; for both inputs the similarities, which are logits:
        `(recordings, texts)`, or `(recordings, texts, 2)` if the config has a
        `similarity_text_scale`, with the scale of recordings, whose texts compete, and that of
        texts.

    Raises:
        ValueError: if the backbone reads no sound, the pooling is unknown, or a pooling is given
            for a `DualEncoder`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    captions = ["This is a sound of a low tone.", "This is a sound of a high tone."]
    tokenizer = kt.Tokenizer.train(captions * 4, vocabulary_size=300)
    config = kt.TransformerConfig(
        kind="dual", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
        num_heads=4, intermediate_dim=64, position="learned", max_sequence_length=32,
        normalize_first=True, vector_dim=24,
        encoder={
            "vocabulary_size": 0, "vector_pooling": "mean",
            "stem": {
                "kind": "folded_frames", "num_bins": 16, "image_size": [32, 32], "patch_size": 4,
            },
        },
        decoder={"vector_pooling": "end", "vector_end_id": tokenizer.end_id},
    )
    processor = kt.AudioProcessor("decibel_mel", num_bins=16, length=51)  # half a second
    embedder = kt.AudioEmbedder(kt.models.DualEncoder(config), processor, tokenizer)
    tones = [np.sin(np.arange(8000) * pitch) for pitch in (0.1, 0.8)]
    embedder.fit((tones, captions), epochs=1, verbose=0)

    label, probability = embedder.classify((tones[0], 16_000), ["a low tone", "a high tone"])
    assert label in ("a low tone", "a high tone") and 0.5 <= probability <= 1
    vectors = embedder.encode(tones)
    assert embedder.similarity(vectors, embedder.encode_texts(captions)).shape == (2, 2)
    ```

    Source: Wu et al. 2022, "Large-scale Contrastive Language-Audio Pretraining with Feature Fusion
    and Keyword-to-Caption Augmentation", section 3; the texts of labels: section 4.3.
    """

    alias = "audio_embedding"
    processor_class = RecordingPairProcessor
    stem_example = "{'kind': 'folded_frames', 'num_bins': 64, 'image_size': [256, 256]}"
    text_presets = "the preset clap_htsat_unfused"
    classifier = "AudioClassifier"
    label_template = "This is a sound of {}."

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return arrays_of_sound(self.backbone, self._require_processor().source, given, places)
