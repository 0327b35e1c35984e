"""Base class of tasks that predict a map: numbers for each pixel of an image."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.models.runtime.steps import OutputLoss
from keras_transformer.processors import ImageProcessor
from keras_transformer.processors.image_files import image_size, read_map
from keras_transformer.support.checking import describe
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.media.augmentation import augmentation_of, layers_of
from keras_transformer.tasks.media.input_classifier import rows_to_predict


class MovedMaps(OutputLoss):
    """Keras's loss and metrics of an augmented batch, whose maps move with the images."""

    def batch(self, x, y, sample_weight, training):
        layers = self.model.augmentation.layers
        if training:
            images, y = map(ops.convert_to_tensor, (x["images"], y))  # JAX's steps get arrays
            moved = {"images": images, "segmentation_masks": y[..., None]}
            for layer in layers:
                moved = layer(dict(moved), training=True)
            y = ops.cast(moved["segmentation_masks"][..., 0], y.dtype)
            x = {**x, "images": moved["images"]}
        return x, y, sample_weight


class DenseTask(Task):
    """A backbone of image patches with a head that predicts numbers for each pixel.

    Images are of any size; they are read when a batch is made. Targets are maps, each of the size
    of its image: paths, bytes, Pillow images or arrays, which are resized and cropped with their
    images. In `fit` the processor must bring all images to one size.

    `compile(augmentation=[...])` takes layers of Keras that a training step applies to images and
    maps alike, such as `keras.layers.RandomFlip("horizontal")`.
    """

    backbone_kinds = ("encoder",)
    processor_class = ImageProcessor
    fill: ClassVar[float]  # the target of pixels that do not count
    augmentation: keras.Sequential | None

    def __init__(self, backbone, processor: ImageProcessor | None = None, name=None, **options):
        super().__init__(backbone, processor, name=name)
        if getattr(backbone.config.stem, "kind", None) != "patches":
            raise ValueError(
                f"{type(self).__name__} needs a backbone that reads patches of images: give the "
                "config a `stem`, such as {'kind': 'patches', 'image_size': [224, 224], "
                "'patch_size': 16}."
            )
        self.augmentation = None
        self.set_head(**options)

    def compile(self, *args, augmentation=None, **kwargs):
        """Compile as `keras.Model.compile` does, optionally with random augmentation.

        Args:
            *args: as in `keras.Model.compile`.
            augmentation: list of layers of Keras that move images and masks, such as
                `[keras.layers.RandomFlip("horizontal")]`, which a training step applies to images
                and maps in order. Defaults to the current value; `[]` removes it.
            **kwargs: as in `keras.Model.compile`.
        """
        if augmentation is not None:
            self.augmentation = augmentation_of(augmentation)
        super().compile(*args, **kwargs)

    def compile_values(self) -> dict:
        return {**super().compile_values(), "augmentation": layers_of(self.augmentation)}

    def training_loss(self):
        return super().training_loss() if self.augmentation is None else MovedMaps(self)

    def read_target(self, given: Any, place: str) -> np.ndarray:
        """Read the map of an image. Raises ValueError if it has invalid values."""
        return read_map(given, place)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Make batches of images and their maps. See `Task.make_dataset`.

        Args:
            x: images, as for `fit`.
            y: a map for each image, of the image's size.
            sample_weight: one number for each image.
            **options: as in `Task.make_dataset`.

        Raises:
            ValueError: if a map has another size than its image, or invalid values; all of them are
                read for this before any batch is made.
        """
        processor = self._require_processor()
        given = processor.rows(x)
        values = {}
        if y is not None:
            self._check_targets(given, y)
            weights = check_weights("sample_weight", sample_weight, len(given), unit="image")
            values = {} if weights is None else {"sample_weight": weights}

        def make_batch(arrays, masks):
            rows = arrays["row"]
            inputs = {"images": processor([given[i] for i in rows], places=rows)}
            if y is None:
                return (inputs,)
            maps = [self.read_target(y[i], f"y[{i}]") for i in rows]
            maps = np.stack([processor.map_pixels(each, self.fill) for each in maps])
            return inputs, maps, *(arrays[name] for name in values)

        columns = {"place": np.zeros((len(given), 1), "int32")}
        # Images without tiles have one size, whichever others are in the batch.
        options |= {"max_buckets": 1, "rowwise": getattr(processor, "tiling", True) is None}
        return self._bucketed(columns, make_batch, values=values, **options)

    def _check_targets(self, images: Sequence, maps: Any) -> None:
        counted = isinstance(maps, (list, tuple)) or hasattr(maps, "__len__")
        if isinstance(maps, (str, bytes, dict)) or not counted or len(maps) != len(images):
            raise ValueError(
                f"`y` must be a list of maps, one for each of {len(images)} images, received "
                f"{describe(maps)}."
            )
        for i in range(len(images)):
            shape = self.read_target(maps[i], f"y[{i}]").shape
            size = image_size(images[i], f"x[{i}]")
            if shape != tuple(size):
                raise ValueError(
                    f"`y[{i}]` has {shape[0]} x {shape[1]} pixels (height x width), but its image "
                    f"has {size[0]} x {size[1]}."
                )

    def to_predict(self, batch_size: int | None = None) -> dict[str, Any]:
        if batch_size is None:
            batch_size = rows_to_predict(self.backbone.config)
        return super().to_predict(batch_size)

    def maps(self, images: Sequence, batch_size: int | None = None) -> Iterator[tuple]:
        """Yield each image's height, width and map, in their order; images may differ in size.

        Args:
            images: images that the processor takes.
            batch_size: int, images of one size that are computed together. Defaults to 8.

        Yields:
            Tuples of the size `(height, width)` of the image, and the output for it.
        """
        processor = self._require_processor()
        if processor.crop_size is not None:
            raise ValueError(
                "The processor has a `crop_size`, so outputs would cover a part of each image. "
                "Give the task a processor without it."
            )
        rows, count = processor.rows(images), check_batch(batch_size)["batch_size"] or 8
        for first in range(0, len(rows), count):
            part = range(first, min(first + count, len(rows)))
            pixels = [processor.pixels(rows[i], f"x[{i}]") for i in part]
            found: dict[int, np.ndarray] = {}
            for shape in dict.fromkeys(each.shape for each in pixels):
                alike = [n for n, each in enumerate(pixels) if each.shape == shape]
                batch = processor.normalized(np.stack([pixels[n] for n in alike]))
                outputs = ops.convert_to_numpy(self.predict_on_batch({"images": batch}))
                found |= dict(zip(alike, outputs, strict=True))
            for n, i in enumerate(part):
                yield tuple(image_size(rows[i], f"x[{i}]")), found[n]
