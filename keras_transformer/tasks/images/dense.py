"""Targets that are maps: numbers for each pixel of an image."""

import numpy as np
from keras import ops

from keras_transformer.processors.image_files import image_size
from keras_transformer.tasks.images.located import Targets


class Maps(Targets):
    """Maps of the size of their image, which are resized and cropped with it.

    The task's `read_target` reads and checks the map of an image.

    Args:
        fill: float, the number of pixels that do not count.
    """

    name = "maps"

    def __init__(self, fill: float):
        self.fill = fill

    def read(self, task, images, given):
        def map_of(i: int) -> np.ndarray:
            return task.read_target(given[i], f"y[{i}]")

        for i in range(len(images)):
            shape = map_of(i).shape
            size = image_size(images[i], f"x[{i}]")
            if shape != tuple(size):
                raise ValueError(
                    f"`y[{i}]` has {shape[0]} x {shape[1]} pixels (height x width), but its image "
                    f"has {size[0]} x {size[1]}."
                )

        def target_of(i: int) -> np.ndarray:
            return task.processor.map_pixels(map_of(i), self.fill)

        return target_of

    def moved(self, images, targets, layers):
        moved = {"images": images, "segmentation_masks": targets[..., None]}
        for layer in layers:
            moved = layer(dict(moved), training=True)
        return moved["images"], ops.cast(moved["segmentation_masks"][..., 0], targets.dtype)
