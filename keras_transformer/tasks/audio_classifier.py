"""Classification of sound."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.checking import check_bool, check_int
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.models.backbone import Backbone
from keras_transformer.processors import AudioProcessor
from keras_transformer.structure import dense_of, norm_of, shapes_of
from keras_transformer.tasks.input_classifier import InputClassifier


def arrays_of_sound(
    backbone: Backbone,
    processor: AudioProcessor,
    recordings: Sequence,
    places: Sequence[int] | None = None,
    size: int | None = None,
    spoken: bool = False,
) -> dict:
    """Recordings as the arrays of a backbone: a spectrogram may be an image, samples have a mask.

    Waveforms are padded to `size` samples, if that is given. Raises ValueError for a recording that
    is silent though it is `spoken`, since there are words to be learned from it.
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
    features = processor.features_of(samples, size)
    main = backbone.id_inputs[0]
    side = "encoder_" if main.startswith("encoder_") else ""
    name = main.removeprefix(side)
    if name == "samples":
        lengths = np.array([[len(row)] for row in samples])
        mask = np.arange(features.shape[1]) < lengths
        return {main: features, f"{side}padding_mask": mask}
    if name == "images":  # Patches of it: frequencies are the rows, frames the columns.
        features = np.moveaxis(features, 1, 2)[..., None]
    return {main: np.ascontiguousarray(features)}


@keras.saving.register_keras_serializable(package="keras_transformer")
class AudioClassifier(InputClassifier):
    """A backbone of sound with a linear layer on one state of a recording. Returns logits.

    With `pooling="mean"` that is the mean over the states of the recording, and, but for waveforms,
    of the silence behind it up to the processor's length; with `"attention"` a mean whose weights
    are a softmax over a linear layer of the states. For patches of a spectrogram also `"first"`,
    the state of the class token, `"tokens"`, the mean of class and distillation token, and
    `"first_and_mean"`.

    Recordings are paths, bytes, arrays of samples, `(array, rate)`, or what else
    `processors.AudioProcessor` takes, of any lengths and rates. They are read when a batch is made;
    what is longer than the processor's length is cut.

    Labels are as for `TextClassifier`: names or numbers of classes, or a row for each recording
    with the probability of each class; with `multi_label` several; with `num_classes=1` numbers.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes that, and takes an
    `augmentation`.

    Args:
        backbone: an `Encoder` whose config has a `stem` of sound.
        processor: `processors.AudioProcessor`; None for a task that takes arrays only.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        pooling: str, see above. Defaults to `"first"` for a backbone with a class token and to
            `"mean"` for others.
        name: str.
        multi_label: bool, whether several classes of a recording may be right.
        distilled: bool, as for `ImageClassifier`.
        hidden_activation, hidden_bias, block_norm: a hidden layer, as for `TextClassifier`.
        output_norm: bool, a normalization of that state before the linear layer.
        projection_dim: int, the width of a further linear layer in front of it (wav2vec 2.0).
            Defaults to no such layer.

    Call arguments:
        inputs: dict of the array of the stem, such as `frames`, float `(batch, length, num_bins)`,
            as the processor makes it; of waveforms `samples` and `padding_mask`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: for a backbone without sound, no classes, labels that disagree with
            `num_classes`, or an unknown pooling.

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

    processor_class = AudioProcessor
    alias = "audio_classification"
    published_as = ("ForAudioClassification",)
    row_unit = "recording"
    reads_arrays = ("frames", "images", "samples")
    stem_example = "{'kind': 'frames', 'num_bins': 80, 'num_frames': 3000}"
    task_options = (*InputClassifier.task_options, "output_norm", "projection_dim")

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
        self.projection_dim = check_int("projection_dim", projection_dim, 1, 2**20, none=True)
        hidden = (hidden_activation, hidden_bias, block_norm)
        head = (num_classes, labels, dropout, pooling, name, multi_label, distilled)
        super().__init__(backbone, processor, *head, *hidden)
        self.projection = None
        if self.projection_dim is not None:
            if self.pooling == "first_and_mean" or self.distilled or self.hidden_dense is not None:
                raise ValueError(
                    "`projection_dim` is of one state: it needs another `pooling`, and no hidden "
                    "layer beside it."
                )
            self.projection = self._dense(self.projection_dim, "projection")
        self.output_norm = check_bool("output_norm", output_norm)
        self.output_normalization = None
        if self.output_norm:
            if self.pooling == "first_and_mean":
                raise ValueError("`output_norm` is of one state: it needs another `pooling`.")
            config = backbone.config
            self.output_normalization = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="output_norm",
                dtype=self.dtype_policy,
            )
            self.output_normalization.build((None, config.hidden_dim))

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return arrays_of_sound(self.backbone, self._require_processor(), given, places)

    def output_width(self, config: TransformerConfig) -> int:
        return self.projection_dim or super().output_width(config)

    def pooled(self, states, mask=None):
        state = super().pooled(states, mask)
        if self.output_normalization is not None:
            state = self.output_normalization(state)
        # Linear, as the mean is: so it need not be of each state.
        return state if self.projection is None else self.projection(state)

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {
            **super().head_values(config, values),
            "output_norm": bool(values.get("output_norm")),
            "projection_dim": values.get("projection_dim"),
        }

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        shapes = super().head_shapes(config, values)
        width = values.get("projection_dim")
        if width is not None:
            shapes |= shapes_of(dense_of("projection", "hidden_dim", "width"), config, width=width)
            shapes["output/kernel"] = (width, shapes["output/kernel"][1])
        if values.get("output_norm"):
            shapes |= shapes_of(norm_of("output_norm"), config)
        return shapes
