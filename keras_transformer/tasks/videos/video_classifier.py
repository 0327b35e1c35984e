"""Video classification."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.models.backbone import Backbone
from keras_transformer.processors import VideoProcessor
from keras_transformer.tasks.media.input_classifier import InputClassHead, InputClassifier


class VideoClassHead(InputClassHead):
    """The head of `VideoClassifier`: a linear layer on one pooled state of each video."""

    options = (*InputClassHead.options, "output_norm")
    published_as = ("ForVideoClassification",)
    row_unit = "video"
    # VideoMAE's, which differs from the epsilon of its blocks.
    output_norm_epsilon: ClassVar[float] = 1e-5

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().weight_values(config, values),
            "output_norm": bool(values.get("output_norm")),
        }


def arrays_of_videos(
    backbone: Backbone,
    processor: VideoProcessor,
    given: Sequence,
    places: Sequence[int] | None = None,
) -> dict:
    """Return the arrays of videos, with as many frames as a backbone reads; see `VideoProcessor`.

    Args:
        backbone: the backbone, whose first side reads them.
        processor: the processor.
        given: the videos.
        places: their row numbers, for error messages.
    """
    count = backbone.config.sides[0].stem.num_frames
    return {"videos": processor(given, places=places, num_frames=count)}


@keras.saving.register_keras_serializable(package="keras_transformer")
class VideoClassifier(InputClassifier):
    """A video backbone with a linear layer on one pooled state, which gives logits of classes.

    `pooling="first"` is the state of the class token, or of the first tube; `"mean"` the mean over
    the tubes; `"first_and_mean"` both concatenated; `"attention"` a weighted mean, with a softmax
    over a linear layer of the states as weights; `"pooler"` the output of the backbone's `pool`.

    Videos are paths, bytes, arrays `(frames, height, width, channels)` from 0 to 255, lists of
    images, or anything else that `processors.VideoProcessor` takes, of any length and size. They
    are read when a batch is made, and of each only the frames that the model reads are kept.

    Labels are as for `TextClassifier`: class names or numbers, or a row of class probabilities for
    each video; with `multi_label` several classes; with `num_classes=1` numbers.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes this, and takes an
    `augmentation` of layers that read `(batch, frames, height, width, channels)`.

    Args:
        backbone: an `Encoder` whose config has a `stem` of tubes.
        processor: `processors.VideoProcessor`, or None if the task only takes arrays.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        pooling: str, see above. Defaults to `"first"` for a backbone with a class token and to
            `"mean"` for others.
        name: str.
        multi_label: bool, whether a video can have several classes.
        distilled: bool, only False: stems of tubes have no distillation token.
        hidden_activation, hidden_bias, block_norm: a hidden layer, as for `TextClassifier`.
        output_norm: bool, normalize the pooled state before the linear layer (VideoMAE).

    Call arguments:
        inputs: dict with `videos`, float `(batch, frames, height, width, channels)`, as the
            processor returns them.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: if the backbone reads no videos, the number of classes is missing, the labels
            disagree with `num_classes`, or the pooling is unknown.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64, position="sinusoidal", normalize_first=True,
        stem={"kind": "tubes", "num_frames": 4, "frame_size": [16, 16], "patch_size": 8},
    )
    processor = kt.VideoProcessor(size=(16, 16), crop_size=None)
    classifier = kt.VideoClassifier(
        kt.models.Encoder(config), processor, labels=["rising", "falling"]
    )
    brighter = np.stack([np.full((20, 30, 3), 25 * i, "uint8") for i in range(10)])
    classifier.fit([brighter, brighter[::-1]], ["rising", "falling"], epochs=1, verbose=0)
    label, probability = classifier.classify(brighter)
    assert label in ("rising", "falling") and 0.5 <= probability <= 1
    ```

    Source: Arnab et al. 2021, "ViViT: A Video Vision Transformer", section 3; Tong et al. 2022,
    "VideoMAE".
    """

    alias = "video_classification"
    head_class = VideoClassHead
    processor_class = VideoProcessor
    task_options = VideoClassHead.options
    stem_example = "{'kind': 'tubes', 'num_frames': 16, 'frame_size': [224, 224], 'patch_size': 16}"

    output_norm: bool  # a value of the head

    def __init__(
        self,
        backbone: Backbone,
        processor: VideoProcessor | None = None,
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
        )

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        return arrays_of_videos(self.backbone, self._require_processor(), given, places)
