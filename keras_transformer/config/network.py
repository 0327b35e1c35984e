"""Base of the configs of convolutional networks that make the states of an image."""

import math
from typing import NamedTuple

from keras_transformer.config.inputs import ImageStemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of
from keras_transformer.support.checking import shorten

__all__ = ["NetworkConvolution", "NetworkStemConfig", "halved"]

POSITIONS = ("shares", "counts")


class NetworkConvolution(NamedTuple):
    """A convolution of a network, which a frozen batch norm follows.

    Fields:
        name: str, of its layer.
        size: int, height and width of its kernel.
        inputs, outputs: ints, its features.
        step: int, its stride.
        grid: ints, rows and columns of its output for an image of the usual size.
        groups: int, groups of features that it computes apart.
        affine: bool, whether its output is multiplied by a trained number, and one is added.
    """

    name: str
    size: int
    inputs: int
    outputs: int
    step: int
    grid: tuple[int, int]
    groups: int = 1
    affine: bool = False


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that a stride of 2 leaves."""
    rows, columns = (-(-n // 2) for n in size)
    return rows, columns


@part
class NetworkStemConfig(ImageStemConfig):
    """Base class of convolutional networks with frozen batch norms.

    Each place of the last map is a state. Each attention adds the sines and cosines of the row and
    the column of a state to its queries and keys. A head may read the maps of earlier stages.
    """

    image_size: tuple | list = option(
        "usual height and width of an image, for plans; images may have any size.", (800, 1333)
    )
    widths: tuple | list = option("features of the output of each stage.", (256, 512, 1024, 2048))
    depths: tuple | list = option("number of blocks of each stage.", (3, 4, 6, 3))
    num_maps: int = option(
        "number of stages before the last one whose maps a head reads (RT-DETR).",
        0,
        least=0,
        most=8,
    )
    projection_norm: bool = option(
        "the projection to the states has a batch norm in place of a bias (RT-DETR).", False
    )
    positions: str = option(
        'what the sines and cosines are of: rows and columns as `"shares"` of the image without '
        'its padding (DETR), or their `"counts"`, for images without padding (RT-DETR).',
        "shares",
        choices=POSITIONS,
    )

    def check_stages(self, **multiples: int) -> None:
        """Raise ValueError unless each of these values has an integer for each of 1 to 8 stages.

        Args:
            **multiples: by the name of a value, what its numbers must be multiples of.
        """
        for name, each in multiples.items():
            values = getattr(self, name)
            fits = all(type(n) is int and 1 <= n <= 2**15 and n % each == 0 for n in values)
            if not fits or not 1 <= len(values) <= 8:
                of = f", multiples of {each}" if each > 1 else ""
                raise ValueError(
                    f"`{name}` of the stem must be 1 to 8 integers from 1 to 32,768{of}, one for "
                    f"each stage, received {shorten(values)}."
                )
        if len(self.widths) != len(self.depths) or sum(self.depths) > 2**10:
            raise ValueError(
                "`widths` and `depths` of the stem must have a number for each stage, and at most "
                f"1,024 blocks, received {shorten(self.widths)} and {shorten(self.depths)}."
            )
        if self.num_maps >= len(self.widths):
            raise ValueError(
                f"`num_maps` must be below the number of stages, {len(self.widths)}, received "
                f"{self.num_maps}."
            )

    def check_width(self, width: int) -> None:
        if width % 4:
            raise ValueError(
                f"A stem of kind {self.kind!r} needs states whose width is a multiple of 4, half "
                f"of it for the sines and cosines of rows, received {width}."
            )

    def grid(self, image_size):
        for _ in range(1 + len(self.widths)):
            image_size = halved(image_size)
        return image_size

    @property
    def attention_positions(self):
        return True

    @property
    def num_states(self):
        return math.prod(self.grid(self.image_size))

    @property
    def map_widths(self) -> tuple[int, ...]:
        """Features of the maps that a head reads."""
        last = len(self.widths) - 1
        return tuple(self.widths[last - self.num_maps : last])

    @property
    def convolutions(self) -> tuple[NetworkConvolution, ...]:
        """All convolutions but the projection to the states, block by block."""
        raise NotImplementedError

    @property
    def weights(self):
        found: list[Weight] = []
        for each in self.convolutions:
            sizes = [f"size_{each.size}"] * 2
            axes = (*sizes, f"features_{each.inputs // each.groups}", f"features_{each.outputs}")
            found += weight_of(f"{each.name}/kernel", *axes)
            for part_ in ("gamma", "beta", "moving_mean", "moving_variance"):
                found += weight_of(f"{each.name}_frozen_norm/{part_}", axes[-1])
            if each.affine:
                for part_ in ("scale", "bias"):
                    found += weight_of(f"{each.name}_affine/{part_}", "features_1")
        last, norm = f"features_{self.widths[-1]}", self.projection_norm
        found += dense_of("input_projection", last, "embedding_dim", bias=not norm)
        if norm:
            found += norm_of("input_projection_norm", "batch_norm", "embedding_dim")
        return tuple(found)

    def sizes(self, width):
        made = {"features_1": 1} if any(each.affine for each in self.convolutions) else {}
        for each in self.convolutions:
            made |= {f"size_{each.size}": each.size}
            for features in (each.inputs // each.groups, each.outputs):
                made |= {f"features_{features}": features}
        return made

    @property
    def products(self):
        counts = {f"{each.name}/kernel": math.prod(each.grid) for each in self.convolutions}
        return {**counts, "input_projection/kernel": self.num_states}
