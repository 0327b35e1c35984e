"""Audio classification."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.models.backbone import Backbone
from keras_transformer.processors import AudioProcessor
from keras_transformer.tasks.media.input_classifier import InputClassHead, InputClassifier


def arrays_of_sound(
    backbone: Backbone,
    processor: AudioProcessor,
    recordings: Sequence,
    places: Sequence[int] | None = None,
    size: int | None = None,
    spoken: bool = False,
) -> dict:
    """Return the backbone's input arrays; waveforms and masked frames come with a padding mask.

    These are padded to those of `size` samples, if given. `spoken` means that the recordings have
    texts to be learned: raises ValueError if a recording is silent.
    """
    samples = processor.read(recordings, places)
    if spoken:
        numbers = range(len(samples)) if places is None else places
        for place, row in zip(numbers, samples, strict=True):
            row = row[: processor.most_samples]
            if row.min() == row.max():
                raise ValueError(
                    f"`x[{place}]` is silent: each of its {len(row):,} samples is {row[0]:g}. Its "
                    "text cannot be learned from it: remove the row."
                )
    main = backbone.id_inputs[0]
    if processor.fusion:
        return dict(zip((main, "pieces", "is_longer"), processor.fused(samples), strict=True))
    features = processor.features_of(samples, size)
    side = "encoder_" if main.startswith("encoder_") else ""
    name = main.removeprefix(side)
    if name == "samples" or processor.is_masked:
        count = processor.count_frames if processor.is_masked else int
        lengths = np.array([[count(len(row))] for row in samples])
        mask = np.arange(features.shape[1]) < lengths
        return {main: features, f"{side}padding_mask": mask}
    if name == "images":  # Patches of the spectrogram: rows are frequencies, columns are frames.
        features = np.moveaxis(features, 1, 2)[..., None]
    return {main: np.ascontiguousarray(features)}


class AudioClassHead(InputClassHead):
    """The head of `AudioClassifier`: a linear layer on one pooled state of each recording."""

    options = (*InputClassHead.options, "output_norm", "projection_dim")
    published_as = ("ForAudioClassification",)
    row_unit = "recording"

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().weight_values(config, values),
            "output_norm": bool(values.get("output_norm")),
            "projection_dim": values.get("projection_dim"),
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class AudioClassifier(InputClassifier):
    """An audio backbone with a linear layer on one pooled state, which gives logits of classes.

    `pooling="mean"` is the mean over the states of the recording and, except for waveforms and
    masked frames, of the silence that pads it to the processor's length. `"attention"` is a
    weighted mean, with a softmax over a linear layer of the states as weights. For patches of a
    spectrogram there are also `"first"`, the state of the class token, `"tokens"`, the mean of the
    class and distillation tokens, and `"first_and_mean"`, the class token's state and the mean
    concatenated.

    Recordings are paths, bytes, arrays of samples, `(array, rate)`, or anything else that
    `processors.AudioProcessor` takes, of any length and rate. They are read when a batch is made,
    and cut to the processor's length.

    Labels are as for `TextClassifier`: class names or numbers, or a row of class probabilities for
    each recording; with `multi_label` several classes; with `num_classes=1` numbers.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes this, and takes an
    `augmentation`.

    Args:
        backbone: an `Encoder` whose config has an audio `stem`.
        processor: `processors.AudioProcessor`, or None if the task only takes arrays.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        pooling: str, see above. Defaults to `"first"` for a backbone with a class token and to
            `"mean"` for others.
        name: str.
        multi_label: bool, whether a recording can have several classes.
        distilled: bool, as for `ImageClassifier`.
        hidden_activation, hidden_bias, block_norm: a hidden layer, as for `TextClassifier`.
        output_norm: bool, normalize the pooled state before the linear layer.
        projection_dim: int, the width of another linear layer before the last one (wav2vec 2.0).
            Defaults to no such layer.

    Call arguments:
        inputs: dict with the input of the stem, such as `frames`, float
            `(batch, length, num_bins)`, as the processor returns it; for waveforms `samples` and
            `padding_mask`; for masked frames `frames` and `padding_mask`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: if the backbone reads no audio, the number of classes is missing, the labels
            disagree with `num_classes`, or the pooling is unknown.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64, position="sinusoidal", normalize_first=True,
        stem={"kind": "frames", "num_bins": 40, "num_frames": 50},
    )
    processor = kt.AudioProcessor(num_bins=40, length=50)  # half a second
    classifier = kt.AudioClassifier(kt.models.Encoder(config), processor, labels=["low", "high"])
    tones = [np.sin(np.arange(8000) * pitch) for pitch in (0.1, 0.8)]
    classifier.fit(tones, ["low", "high"], epochs=1, verbose=0)
    label, probability = classifier.classify((tones[0], 16_000))
    assert label in ("low", "high") and 0.5 <= probability <= 1
    ```

    Source: Gong et al. 2021, "AST: Audio Spectrogram Transformer", section 2.1.
    """

    alias = "audio_classification"
    head_class = AudioClassHead
    processor_class = AudioProcessor
    task_options = AudioClassHead.options

    output_norm: bool  # values of the head
    projection_dim: int | None
    stem_example = "{'kind': 'frames', 'num_bins': 80, 'num_frames': 3000}"

    def __init__(
        self,
        backbone: Backbone,
        processor: AudioProcessor | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        pooling: str | None = None,
        name: str | None = None,
        multi_label: bool = False,
        distilled: bool = False,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
        output_norm: bool = False,
        projection_dim: int | None = None,
    ):
        super().__init__(
            backbone,
            processor,
            num_classes,
            labels,
            dropout,
            pooling,
            name,
            multi_label,
            distilled,
            hidden_activation,
            hidden_bias,
            block_norm,
            output_norm=output_norm,
            projection_dim=projection_dim,
        )

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return arrays_of_sound(self.backbone, self._require_processor(), given, places)
