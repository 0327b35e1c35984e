"""Image classification."""

import keras

from keras_transformer.processors import ImageProcessor
from keras_transformer.tasks.input_classifier import InputClassifier


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageClassifier(InputClassifier):
    """A backbone of images with a linear layer on one state of an image. Returns logits.

    With `pooling="first"` that is the state of the class token; with `"mean"` the mean over the
    patches; with `"first_and_mean"` both side by side (DINOv2); with `"tokens"` the mean of class
    and distillation token; with `"attention"` a mean whose weights are a softmax over a linear
    layer of the states (CCT); with `"pooler"` what the backbone's `pool` gives (BEiT; the vector of
    a tower of CLIP or SigLIP).

    Images are paths, bytes, PIL images, arrays `(height, width, channels)` of 0 to 255, or what
    else `processors.ImageProcessor` takes, of any sizes. They are read when a batch is made.

    Labels are as for `TextClassifier`: names or numbers of classes, or a row for each image with
    the probability of each class; with `multi_label` several; with `num_classes=1` numbers.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes that, and takes an
    `augmentation`.

    Args:
        backbone: an `Encoder` whose config has a `stem` of images.
        processor: `processors.ImageProcessor`; None for a task that takes arrays only.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        pooling: str, see above. Defaults to `"first"` for a backbone with a class token and to
            `"mean"` for others; to `"pooler"` for one with `mean_pooler` or a `vector_pooling`.
        name: str.
        multi_label: bool, whether several classes of an image may be right.
        distilled: bool, for a backbone with a distillation token: two linear layers, on the states
            of both tokens, whose mean the logits are (DeiT).
        hidden_activation, hidden_bias, block_norm: a hidden layer, as for `TextClassifier`.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`, as the processor makes
            them.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: for a backbone without images, no classes, labels that disagree with
            `num_classes`, or an unknown pooling.

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

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1; the pooling by
    attention: Hassani et al. 2021, section 3.3.
    """

    processor_class = ImageProcessor
    alias = "image_classification"
    published_as = ("ForImageClassification",)
    row_unit = "image"
    reads_arrays = ("images",)
    stem_example = "{'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}"
