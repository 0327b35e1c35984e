"""Prompts for objects on an image, points, boxes and masks: checks, and the arrays of a batch."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.layers.prompt_encoder import (
    FIRST_CORNER,
    LAST_CORNER,
    NO_POINT,
    PADDING,
)
from keras_transformer.processors.media import array_of, is_tensor
from keras_transformer.processors.prompted import PromptedImageProcessor
from keras_transformer.support.checking import describe, shorten

KINDS = ("points", "labels", "boxes", "masks")
MOST_PROMPTS, MOST_POINTS = 2**12, 2**8  # of an image, and of a prompt
_EVERY = 4  # numbers of points that a batch is padded to are multiples of this


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One object that is asked for.

    Fields:
        points: float `(count, 2)`, x and y in pixels of the image.
        labels: int `(count,)`, 1 for points on the object and 0 for others.
        box: float `(4,)`, left, top, right and bottom, or None.
        mask: float32 `(rows, columns)`, logits of an earlier answer, or None.
    """

    points: np.ndarray
    labels: np.ndarray
    box: np.ndarray | None
    mask: np.ndarray | None

    def tokens(
        self, processor: PromptedImageProcessor, size: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return places on the resized image, float32 `(count, 2)`, and their labels."""
        places, labels = [self.points], [self.labels]
        if self.box is not None:
            places.append(self.box.reshape(2, 2))
            labels.append(np.array([FIRST_CORNER, LAST_CORNER]))
        made = processor.places(np.concatenate(places), size)
        if self.box is None and len(self.points):
            made = np.concatenate([made, np.zeros((1, 2), "float32")])
            labels.append(np.array([NO_POINT]))
        return made, np.concatenate(labels).astype("int32")


def read_prompts(
    given: Mapping[str, Any], size: tuple[int, int], low: tuple[int, int], place: str = ""
) -> list[Prompt]:
    """Check the prompts of an image.

    Args:
        given: dict with some of `points`, `labels`, `boxes` and `masks`, as for
            `PromptedSegmenter.segment`.
        size: ints, height and width of the image.
        low: ints, rows and columns of a mask prompt.
        place: str, the name of the image in errors if there are several.

    Raises:
        ValueError: if there is no prompt, numbers of prompts differ, a label is neither 0 nor 1, a
            box is empty or upside down, a place is outside of the image, or a mask has another
            size.
    """
    of = f" of {place}" if place else ""
    given = {name: each for name, each in given.items() if each is not None}
    points = _points(given.pop("points", None), size, of)
    if points is None and "labels" in given:
        raise ValueError(f"`labels`{of} are those of `points`, which are not given.")
    labels = None if points is None else _labels(given.pop("labels", None), points, of)
    boxes, masks = _boxes(given.get("boxes"), size, of), _masks(given.get("masks"), low, of)
    counts = {
        name: len(each)
        for name, each in (("points", points), ("boxes", boxes), ("masks", masks))
        if each is not None
    }
    if not counts:
        raise ValueError(f"There is no prompt{of}: give `points`, `boxes` or `masks`.")
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"Prompts{of} have one entry for each object in all that is given, received "
            f"{', '.join(f'{count} `{name}`' for name, count in counts.items())}. Points of one "
            "object are [[[x, y], [x, y]]]."
        )
    count = next(iter(counts.values()))
    if not 1 <= count <= MOST_PROMPTS:
        raise ValueError(f"Give 1 to {MOST_PROMPTS:,} prompts{of}, received {count:,}.")
    none = np.zeros((0, 2)), np.zeros(0, "int32")
    return [
        Prompt(
            none[0] if points is None else points[i],
            none[1] if labels is None else labels[i],
            None if boxes is None else boxes[i],
            None if masks is None else masks[i],
        )
        for i in range(count)
    ]


def _depth(given: Any) -> int:
    """Return how many lists are within each other, at most 4."""
    if is_tensor(given) or isinstance(given, np.ndarray):
        return given.ndim
    if not isinstance(given, (list, tuple)):
        return 0
    return min(1 + max((_depth(each) for each in given), default=0), 4)


def _numbers(name: str, given: Any, width: int, of: str) -> np.ndarray:
    """Return finite floats `(count, width)`. Raises ValueError if they are something else."""
    try:
        array = np.asarray(array_of(given), "float64")
    except (ValueError, TypeError):
        array = np.zeros(0)
    if array.ndim != 2 or array.shape[1] != width or not np.isfinite(array).all():
        raise ValueError(
            f"`{name}`{of} must be {width} finite numbers each, received {shorten(given)}."
        )
    return array


def _entries(name: str, given: Any, most: int, of: str) -> list:
    """Return the entries of an argument with an axis of prompts."""
    if isinstance(given, np.ndarray) or is_tensor(given):
        given = list(array_of(given))
    if not isinstance(given, (list, tuple)) or len(given) > MOST_PROMPTS:
        raise ValueError(
            f"`{name}`{of} must be a list of at most {most:,} prompts, received {describe(given)}."
        )
    return list(given)


def _points(given: Any, size: tuple[int, int], of: str) -> list[np.ndarray] | None:
    if given is None:
        return None
    depth = _depth(given)
    if not 1 <= depth <= 3:
        raise ValueError(
            f"`points`{of} must be [x, y], a list of them for one object, or a list of such lists, "
            f"one for each object, received {describe(given)}."
        )
    prompts = _entries("points", given if depth == 3 else [given], MOST_PROMPTS, of)
    height, width = size
    found = []
    for i, one in enumerate(prompts):
        array = _numbers(f"points[{i}]", [one] if _depth(one) == 1 else one, 2, of)
        if not 1 <= len(array) <= MOST_POINTS:
            raise ValueError(
                f"`points[{i}]`{of} must be 1 to {MOST_POINTS} points, received {len(array):,}."
            )
        outside = (array < 0).any(axis=1) | (array > (width, height)).any(axis=1)
        if outside.any():
            x, y = array[outside][0]
            raise ValueError(
                f"`points[{i}]`{of} has the point x={x:g}, y={y:g}, which is outside of the image "
                f"of {width} x {height} pixels (width x height)."
            )
        found.append(array)
    return found


def _labels(given: Any, points: list[np.ndarray], of: str) -> list[np.ndarray]:
    if given is None:
        return [np.ones(len(each), "int32") for each in points]
    depth = _depth(given)
    if depth == 0:
        given = [[given]]
    elif depth == 1:
        given = [given]
    prompts = _entries("labels", given, MOST_PROMPTS, of)
    if len(prompts) != len(points):
        raise ValueError(
            f"`labels`{of} must be one list for each of {len(points)} prompts, received "
            f"{len(prompts)}."
        )
    found = []
    for i, (one, own) in enumerate(zip(prompts, points, strict=True)):
        array = np.asarray(array_of(one)) if _depth(one) == 1 else np.zeros((0, 0))
        if array.shape != (len(own),):
            raise ValueError(
                f"`labels[{i}]`{of} must be a label for each of {len(own)} points, received "
                f"{shorten(one)}."
            )
        if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
            raise ValueError(
                f"`labels[{i}]`{of} must be 1 for a point on the object and 0 for one that is not, "
                f"received {shorten(one)}."
            )
        found.append(array.astype("int32"))
    return found


def _boxes(given: Any, size: tuple[int, int], of: str) -> np.ndarray | None:
    if given is None:
        return None
    array = _numbers("boxes", [given] if _depth(given) == 1 else given, 4, of)
    height, width = size
    for i, (left, top, right, bottom) in enumerate(array):
        box = f"`boxes[{i}]`{of}, left={left:g}, top={top:g}, right={right:g}, bottom={bottom:g},"
        if left >= right or top >= bottom:
            raise ValueError(
                f"{box} is empty or upside down: left must be less than right, and top less than "
                "bottom, which counts downwards."
            )
        if min(left, top) < 0 or right > width or bottom > height:
            raise ValueError(
                f"{box} is not within the image of {width} x {height} pixels (width x height)."
            )
    return array


def _masks(given: Any, low: tuple[int, int], of: str) -> list[np.ndarray] | None:
    if given is None:
        return None
    if isinstance(given, (list, tuple)) and _depth(given) == 3:
        given = np.asarray(given, "float64")
    alone = (isinstance(given, np.ndarray) or is_tensor(given)) and given.ndim == 2
    found = []
    for i, one in enumerate(_entries("masks", [given] if alone else given, MOST_PROMPTS, of)):
        shape = getattr(one, "shape", None)
        if shape is None or tuple(shape) != low:
            raise ValueError(
                f"`masks[{i}]`{of} must be logits of {low[0]} x {low[1]}, such as `logits` of an "
                f"earlier result, received {describe(one) if shape is None else tuple(shape)}."
            )
        array = np.asarray(array_of(one), "float32")
        if not np.isfinite(array).all():
            raise ValueError(f"`masks[{i}]`{of} has logits that are NaN or infinite.")
        found.append(array)
    return found


def count_of_tokens(prompts: Sequence[Prompt]) -> int:
    """Return the number of points that these prompts are padded to."""
    most = max(len(p.points) + (2 if p.box is not None else len(p.points) > 0) for p in prompts)
    return max(_EVERY * math.ceil(most / _EVERY), _EVERY)


def arrays_of(
    prompts: Sequence[Prompt],
    processor: PromptedImageProcessor,
    size: tuple[int, int],
    shape: tuple[int, int],
    low: tuple[int, int] | None,
) -> dict[str, np.ndarray]:
    """Return the arrays of an image's prompts, padded to a shape, without an axis of images.

    Args:
        prompts: the prompts.
        processor: `PromptedImageProcessor` of the image.
        size: ints, height and width of the image.
        shape: ints, the numbers of prompts and of points of each.
        low: ints, rows and columns of mask prompts; with None there are no arrays of them.
    """
    made = {
        "points": np.zeros((*shape, 2), "float32"),
        "point_labels": np.full(shape, PADDING, "int32"),
    }
    if low is not None:
        made["mask_prompts"] = np.zeros((shape[0], *low), "float32")
        made["has_mask"] = np.zeros(shape[0], "bool")
    for i, prompt in enumerate(prompts):
        places, labels = prompt.tokens(processor, size)
        made["points"][i, : len(labels)] = places
        made["point_labels"][i, : len(labels)] = labels
        if prompt.mask is not None:
            made["mask_prompts"][i] = prompt.mask
            made["has_mask"][i] = True
    return made
