"""Depth estimation: a distance for each pixel of an image."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.layers.resampling import cubic_resampling
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.processors.image_files import read_map
from keras_transformer.tasks.heads.dense_head import DepthHead
from keras_transformer.tasks.images.dense import Maps
from keras_transformer.tasks.images.located import LocatedTask
from keras_transformer.tasks.images.map_plots import draw_depth


@dataclasses.dataclass(frozen=True)
class DepthMap:
    """The depths of an image.

    Attributes:
        depth: float32 `(height, width)`, of the size of the image.
        unit: `"metres"`; or `"nearness"` for relative depths, where more is nearer.
        image: the image as it was given.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    depth = np.full((8, 9), 2.5, "float32")
    result = kt.tasks.DepthMap(depth, "metres", np.zeros((8, 9, 3), "uint8"))
    assert result.plot().axes[1].images
    ```
    """

    depth: np.ndarray
    unit: str
    image: Any = dataclasses.field(repr=False)

    def plot(self) -> Any:
        """Draw the image beside its depths.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        return draw_depth(self.image, self.depth, self.unit)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DepthEstimator(LocatedTask):
    """A vision transformer with a head that estimates the depth of each pixel.

    The states of four blocks become one map (DPT). With `max_depth` outputs are metres. Without it
    they are relative: nearness up to a scale and a shift, and more is nearer.

    `fit` takes images and depth maps of their size: paths of PNG files with 8 or 16 bits, Pillow
    images, or arrays. For relative depths the maps hold nearness, such as disparities; with
    `max_depth` they hold metres. Values of 0 or below and NaN are unknown and do not count.

    Compiled with AdamW (5e-5) and the error relative to the known depth; the loss is
    `ScaleInvariantLogLoss` with `max_depth`, `AffineInvariantLoss` without. `compile` changes this,
    and takes an `augmentation`, which moves images and maps alike.

    Args:
        backbone: an `Encoder` whose config has a `stem` of patches.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays.
        decoder: dict of values of `layers.Fusion`. Defaults to four blocks at equal distances, and
            widths in proportion to the backbone's.
        max_depth: float, the largest depth in metres, or None.
        depth_features: int, the features before the last convolution.
        name: str.

    Call arguments:
        inputs: dict with `images`, float `(batch, height, width, channels)`, as the processor
            returns them.

    Returns:
        Float `(batch, height, width)`.

    Raises:
        ValueError: if the backbone does not read patches of images, or a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=2, num_heads=2,
        intermediate_dim=32, position="learned", normalize_first=True,
        stem={"kind": "patches", "image_size": [16, 16], "patch_size": 4},
    )
    estimator = kt.DepthEstimator(
        kt.models.Encoder(config), kt.ImageProcessor(size=16), max_depth=10.0
    )
    images = [np.full((20, 24, 3), value, "uint8") for value in (40, 220)]
    metres = [np.full((20, 24), value, "float32") for value in (2.0, 8.0)]
    estimator.fit(images, metres, epochs=1, verbose=0)
    result = estimator.estimate(images[0])
    assert result.depth.shape == (20, 24) and result.depth.max() <= 10
    ```

    Source: Ranftl et al. 2021, "Vision Transformers for Dense Prediction"; Yang et al. 2024, "Depth
    Anything V2".
    """

    alias = "depth_estimation"
    head_class = DepthHead
    task_options = DepthHead.options
    targets = Maps(fill=0.0)

    decoder: dict[str, Any]
    max_depth: float | None
    depth_features: int

    def __init__(
        self,
        backbone: Backbone,
        processor: ImageProcessor | None = None,
        decoder: Mapping[str, Any] | None = None,
        max_depth: float | None = None,
        depth_features: int = 32,
        name: str | None = None,
    ):
        options = {"max_depth": max_depth, "depth_features": depth_features}
        super().__init__(backbone, processor, name=name, decoder=decoder, **options)

    def read_target(self, given: Any, place: str) -> np.ndarray:
        """Read the map of an image. Raises ValueError if it has invalid values."""
        depth = np.nan_to_num(read_map(given, place).astype("float32"), posinf=0)
        if not (depth > 0).any():
            raise ValueError(f"`{place}` has no depth above 0, so nothing is known of its image.")
        if self.max_depth is not None and depth.max() > self.max_depth:
            raise ValueError(
                f"`{place}` has a depth of {depth.max():g}, but max_depth={self.max_depth:g} "
                "metres. Divide depths of another unit, such as millimetres, and set those that "
                "are too far to 0."
            )
        return depth

    @reads
    def estimate(self, images: Any, batch_size: int | None = None) -> DepthMap | list[DepthMap]:
        """Estimate the depths of images of any size.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            batch_size: int, images of one size that are computed together. Defaults to 8.

        Returns:
            A `DepthMap` for each image, of its size: outputs are interpolated bicubically. For one
            image, its `DepthMap`.

        Raises:
            ValueError: if an image cannot be read.
        """
        alone = self._require_processor().is_one(images)
        rows: Sequence = [images] if alone else images
        unit = "nearness" if self.max_depth is None else "metres"
        found = []
        for image, (size, depth) in zip(rows, self.outputs_of(rows, batch_size), strict=True):
            height, width = (cubic_resampling(*p) for p in zip(depth.shape, size, strict=True))
            found.append(DepthMap(height @ depth.astype("float32") @ width.T, unit, image))
        return found[0] if alone else found
