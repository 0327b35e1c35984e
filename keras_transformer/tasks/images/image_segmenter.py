"""Semantic segmentation: a class for each pixel of an image."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.layers.fusion import linear_weights
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.processors.image_files import read_map
from keras_transformer.support.checking import shorten
from keras_transformer.tasks.heads.dense_head import IGNORED, SegmentHead
from keras_transformer.tasks.images.dense import Maps
from keras_transformer.tasks.images.located import LocatedTask
from keras_transformer.tasks.images.map_plots import draw_segments


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """The classes of the pixels of an image.

    Attributes:
        classes: uint8 `(height, width)`, of the size of the image.
        labels: list of str, the name of each class.
        image: the image as it was given.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    classes = np.array([[0, 1], [1, 1]], "uint8")
    result = kt.tasks.Segmentation(classes, ["ground", "object"], np.zeros((2, 2, 3), "uint8"))
    assert result.share("object") == 0.75
    ```
    """

    classes: np.ndarray
    labels: list[str]
    image: Any = dataclasses.field(repr=False)

    def share(self, label: str) -> float:
        """Return the share of pixels of a class. Raises ValueError if the name is unknown."""
        if label not in self.labels:
            raise ValueError(f"`label` must be one of {shorten(self.labels)}, received {label!r}.")
        return float((self.classes == self.labels.index(label)).mean())

    def plot(self) -> Any:
        """Draw the image beside the classes of its pixels.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        return draw_segments(self.image, self.classes, self.labels)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageSegmenter(LocatedTask):
    """A vision transformer with a head that gives each pixel a class.

    The states of four blocks become one map (DPT), or those of all stages if the backbone has them
    (SegFormer), and a convolution gives logits of classes.

    `fit` takes images and masks of their size, which hold the number of a class for each pixel:
    paths of PNG files (grey or with a palette), Pillow images, or arrays. Pixels of 255 do not
    count.

    Compiled with AdamW (5e-5), cross-entropy, and the mean over classes of the intersection over
    union (`keras.metrics.MeanIoU`). `compile` changes this, and takes an `augmentation`, which
    moves images and masks alike.

    Args:
        backbone: an `Encoder` whose config has a `stem` of patches.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays.
        num_classes: int, at most 255. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        decoder: dict of values of `layers.Fusion`. Defaults to four blocks at equal distances, and
            widths in proportion to the backbone's. For a backbone with stages of `StageFusion`.
        name: str.

    Call arguments:
        inputs: dict with `images`, float `(batch, height, width, channels)`, as the processor
            returns them.

    Returns:
        Float `(batch, height, width, num_classes)`, logits.

    Raises:
        ValueError: if the backbone does not read patches of images, the number of classes is
            missing or above 255, or a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=2, num_heads=2,
        intermediate_dim=32, position="learned", normalize_first=True,
        stem={"kind": "patches", "image_size": [16, 16], "patch_size": 4},
    )
    segmenter = kt.ImageSegmenter(
        kt.models.Encoder(config), kt.ImageProcessor(size=16), labels=["ground", "object"]
    )
    image = np.zeros((20, 24, 3), "uint8")
    image[5:12, 8:20] = 255
    mask = (image[..., 0] > 0).astype("uint8")
    segmenter.fit([image] * 4, [mask] * 4, epochs=1, verbose=0)
    result = segmenter.segment(image)
    assert result.classes.shape == (20, 24) and 0 <= result.share("object") <= 1
    ```

    Source: Ranftl et al. 2021, "Vision Transformers for Dense Prediction", section 4.2; stages: Xie
    et al. 2021, "SegFormer", section 3.2.
    """

    alias = "image_segmentation"
    head_class = SegmentHead
    task_options = SegmentHead.options
    targets = Maps(fill=IGNORED)

    num_classes: int
    labels: list[str] | None
    dropout: float
    decoder: dict[str, Any]

    def __init__(
        self,
        backbone: Backbone,
        processor: ImageProcessor | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        decoder: Mapping[str, Any] | None = None,
        name: str | None = None,
    ):
        options = {"num_classes": num_classes, "labels": labels, "dropout": dropout}
        super().__init__(backbone, processor, name=name, decoder=decoder, **options)

    @property
    def label_names(self) -> list[str]:
        """The name of each class; the number as a string if there are no `labels`."""
        return self.head.label_names

    def read_target(self, given: Any, place: str) -> np.ndarray:
        """Read the map of an image. Raises ValueError if it has invalid values."""
        classes = read_map(given, place)
        wrong = classes[((classes < 0) | (classes >= self.num_classes)) & (classes != IGNORED)]
        if wrong.size or classes.dtype.kind == "f":
            found = f"{wrong[0]:g}" if wrong.size else "floats"
            raise ValueError(
                f"`{place}` must hold classes from 0 to {self.num_classes - 1}, and {IGNORED} for "
                f"pixels that do not count, received {found}."
            )
        return classes

    @reads
    def segment(
        self, images: Any, batch_size: int | None = None
    ) -> Segmentation | list[Segmentation]:
        """Return the likeliest class of each pixel of images of any size.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            batch_size: int, images of one size that are computed together. Defaults to 8.

        Returns:
            A `Segmentation` for each image, of its size: logits are interpolated linearly. For one
            image, its `Segmentation`.

        Raises:
            ValueError: if an image cannot be read.
        """
        alone = self._require_processor().is_one(images)
        rows: Sequence = [images] if alone else images
        found = []
        for image, (size, logits) in zip(rows, self.outputs_of(rows, batch_size), strict=True):
            classes = likeliest(logits.astype("float32"), size)
            found.append(Segmentation(classes, self.label_names, image))
        return found[0] if alone else found


def likeliest(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the class with the greatest logit of each pixel, uint8, in another size.

    Logits are interpolated a class at a time, since those of all classes in the size of a photo are
    gigabytes.
    """
    height, width = (
        linear_weights(*pair, kept="edges") for pair in zip(logits.shape, size, strict=False)
    )
    classes, greatest = np.zeros(size, "uint8"), np.full(size, -np.inf, "float32")
    for number in range(logits.shape[-1]):
        own = height @ logits[..., number] @ width.T
        classes[own > greatest] = number
        np.maximum(greatest, own, out=greatest)
    return classes
