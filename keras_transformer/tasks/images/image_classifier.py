"""Image classification."""

import keras

from keras_transformer.processors import ImageProcessor
from keras_transformer.tasks.media.input_classifier import InputClassHead, InputClassifier


class ImageClassHead(InputClassHead):
    """The head of `ImageClassifier`: a linear layer on one pooled state of each image."""

    published_as = ("ForImageClassification",)
    row_unit = "image"


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageClassifier(InputClassifier):
    """An image backbone with a linear layer on one pooled state, which gives logits of classes.

    `pooling="first"` is the state of the class token; `"mean"` the mean over the patches;
    `"first_and_mean"` both concatenated (DINOv2); `"tokens"` the mean of the class and distillation
    tokens; `"attention"` a weighted mean, with a softmax over a linear layer of the states as
    weights (CCT); `"pooler"` the output of the backbone's `pool` (BEiT; for a CLIP or SigLIP tower
    its vector).

    Images are paths, bytes, PIL images, arrays `(height, width, channels)` from 0 to 255, or
    anything else that `processors.ImageProcessor` takes, of any size. They are read when a batch is
    made.

    Labels are as for `TextClassifier`: class names or numbers, or a row of class probabilities for
    each image; with `multi_label` several classes; with `num_classes=1` numbers.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes this, and takes an
    `augmentation`.

    Args:
        backbone: an `Encoder` whose config has an image `stem`.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        pooling: str, see above. Defaults to `"first"` for a backbone with a class token and to
            `"mean"` for others; to `"pooler"` for one with `mean_pooler` or a `vector_pooling`.
        name: str.
        multi_label: bool, whether an image can have several classes.
        distilled: bool, for a backbone with a distillation token: the logits are the mean of two
            linear layers, on the states of the class and the distillation token (DeiT).
        hidden_activation, hidden_bias, block_norm: a hidden layer, as for `TextClassifier`.

    Call arguments:
        inputs: dict with `images`, float `(batch, height, width, channels)`, as the processor
            returns them; or of the arrays of images of any size, see
            `layers.stems.PatchSequenceStem`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: if the backbone reads no images, the number of classes is missing, the labels
            disagree with `num_classes`, or the pooling is unknown.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64, position="learned", normalize_first=True,
        stem={"kind": "patches", "image_size": [32, 32], "patch_size": 8},
    )
    processor = kt.ImageProcessor(size=32)
    classifier = kt.ImageClassifier(
        kt.models.Encoder(config), processor, labels=["dark", "bright"]
    )
    images = [np.full((40, 50, 3), value, "uint8") for value in (10, 240)]
    classifier.fit(images, ["dark", "bright"], epochs=1, verbose=0)
    label, probability = classifier.classify(images[0])
    assert label in ("dark", "bright") and 0.5 <= probability <= 1
    ```

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1; attention
    pooling: Hassani et al. 2021, section 3.3.
    """

    alias = "image_classification"
    head_class = ImageClassHead
    processor_class = ImageProcessor
    task_options = ImageClassHead.options
    stem_example = "{'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}"

    def arrays_of(self, given, places=None):
        return self._require_processor().arrays(given, places)
