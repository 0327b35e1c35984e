"""Base class of tasks whose targets lie in an image, and are resized and moved with it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.models.runtime.runtime import OutputLoss
from keras_transformer.processors import ImageProcessor
from keras_transformer.processors.image_files import image_size
from keras_transformer.support.checking import describe
from keras_transformer.tasks.base.input_adapter import QueryAdapter
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.media.augmentation import augmentation_of, layers_of
from keras_transformer.tasks.media.input_classifier import rows_to_predict


class MovedTargets(OutputLoss):
    """Keras's loss and metrics of a batch; an augmentation moves targets with the images."""

    def batch(self, x, y, sample_weight, training):
        if training and self.model.augmentation is not None:
            if x.get("padding_mask") is not None:
                raise ValueError(
                    "`augmentation` needs images of one size: give the processor a `size` of "
                    "height and width, or a `crop_size`."
                )
            images, y = map(ops.convert_to_tensor, (x["images"], y))  # JAX's steps get arrays
            images, y = self.model.targets.moved(images, y, self.model.augmentation.layers)
            x = {**x, "images": images}
        return x, y, sample_weight


class Targets:
    """Targets of images: how they are read, checked and moved."""

    name: ClassVar[str]  # of the targets of an image, in errors

    def read(self, task, images: Sequence, given: Sequence) -> Callable[[int], np.ndarray]:
        """Check the targets of all images, and return a function that makes those of one image.

        Args:
            task: the `LocatedTask`, with a processor.
            images: images that the processor takes.
            given: targets, as many as images.

        Returns:
            A function from the number of an image to its targets in the processed image, an array
            of the same shape for all images of that size.

        Raises:
            ValueError: if targets are invalid; the message names the image.
        """
        raise NotImplementedError

    def moved(self, images, targets, layers: Sequence) -> tuple:
        """Apply layers of Keras to images, float `(batch, height, width, channels)`, and targets.

        Returns:
            The images and targets after the last layer, of the same dtypes.
        """
        raise NotImplementedError


class LocatedTask(Task):
    """A backbone of image patches with a head whose targets lie in the image.

    Images are of any size; they are read when a batch is made. In `fit` the processor must bring
    all images to one size, unless the backbone takes a `padding_mask`: smaller images of a batch
    are then padded. A subclass states its `targets`.

    `compile(augmentation=[...])` takes layers of Keras that a training step applies to images and
    targets alike, such as `keras.layers.RandomFlip("horizontal")`.
    """

    backbone_kinds = ("encoder",)
    processor_class = ImageProcessor
    stem_kinds: ClassVar[tuple[str, ...]] = ("patches",)  # of the side with the images
    targets: ClassVar[Targets]
    augmentation: keras.Sequential | None

    def __init__(self, backbone, processor: ImageProcessor | None = None, name=None, **options):
        super().__init__(backbone, processor, name=name)
        if getattr(backbone.config.sides[0].stem, "kind", None) not in self.stem_kinds:
            raise ValueError(
                f"{type(self).__name__} needs a backbone that reads patches of images: give the "
                "config a `stem`, such as {'kind': 'patches', 'image_size': [224, 224], "
                "'patch_size': 16}."
            )
        if backbone.config.last_side.input.is_set:
            self.input_adapter = QueryAdapter(backbone)
        self.augmentation = None
        self.set_head(**options)

    def compile(self, *args, augmentation=None, **kwargs):
        """Compile as `keras.Model.compile` does, optionally with random augmentation.

        Args:
            *args: as in `keras.Model.compile`.
            augmentation: list of layers of Keras that move images and targets, such as
                `[keras.layers.RandomFlip("horizontal")]`, which a training step applies in order.
                Defaults to the current value; `[]` removes it.
            **kwargs: as in `keras.Model.compile`.
        """
        if augmentation is not None:
            self.augmentation = augmentation_of(augmentation)
        super().compile(*args, **kwargs)

    def compile_values(self) -> dict:
        return {**super().compile_values(), "augmentation": layers_of(self.augmentation)}

    def training_loss(self):
        return super().training_loss() if self.augmentation is None else MovedTargets(self)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Make batches of images and their targets. See `Task.make_dataset`.

        Args:
            x: images, as for `fit`.
            y: targets of each image, as for `fit`.
            sample_weight: one number for each image.
            **options: as in `Task.make_dataset`.

        Raises:
            ValueError: if targets do not fit their image; all of them are read for this before any
                batch is made.
        """
        processor = self._require_processor()
        given = processor.rows(x)
        values = {}
        if y is not None:
            self._check_count(given, y)
            target_of = self.targets.read(self, given, y)
            weights = check_weights("sample_weight", sample_weight, len(given), unit="image")
            values = {} if weights is None else {"sample_weight": weights}

        padded = any(each.name == "padding_mask" for each in self.input_interface.input_arrays)

        def make_batch(arrays, masks):
            rows = arrays["row"]
            chosen = [given[i] for i in rows]
            if padded:
                inputs = processor.padded(chosen, places=rows)
            else:
                inputs = {"images": processor(chosen, places=rows)}
            if y is None:
                return (inputs,)
            targets = np.stack([target_of(i) for i in rows])
            return inputs, targets, *(arrays[name] for name in values)

        columns = {"place": np.zeros((len(given), 1), "int32")}
        # Images without tiles have one size, whichever others are in the batch.
        options |= {"max_buckets": 1, "rowwise": getattr(processor, "tiling", True) is None}
        return self._bucketed(columns, make_batch, values=values, **options)

    def _check_count(self, images: Sequence, given: Any) -> None:
        counted = isinstance(given, (list, tuple)) or hasattr(given, "__len__")
        counted = counted and not isinstance(given, (str, bytes, dict))
        if not counted or len(given) != len(images):
            received = f"{len(given)}" if counted else describe(given)
            raise ValueError(
                f"`y` must be a list of {self.targets.name}, one for each of {len(images)} images, "
                f"received {received}."
            )

    def to_predict(self, batch_size: int | None = None) -> dict[str, Any]:
        if batch_size is None:
            batch_size = rows_to_predict(self.backbone.config)
        return super().to_predict(batch_size)

    def outputs_of(self, images: Sequence, batch_size: int | None = None) -> Iterator[tuple]:
        """Yield each image's height, width and output, in their order; images may differ in size.

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
