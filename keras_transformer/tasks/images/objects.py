"""Objects of images as `fit` takes them: boxes and classes, read and checked."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.support.checking import describe, is_number, shorten
from keras_transformer.tasks.data.labels import class_number

# Names of corners in pixels, of COCO's corner and size, and of classes, in usual data sets.
_CORNERS, _SIZES = ("boxes", "xyxy"), ("bbox", "bboxes")
_CLASSES = ("labels", "label", "category", "categories", "category_id", "class_labels")
# Annotations are rounded: a box may reach this many pixels beyond its image.
_ROUNDING = 1.0
MOST_OBJECTS = 2**15  # in an image


def read_objects(
    given: Any, size: tuple[int, int], num_classes: int, labels: list[str] | None, place: str = "y"
) -> tuple[np.ndarray, np.ndarray]:
    """Read the boxes and classes of an image.

    Args:
        given: a dict with `boxes` (x_min, y_min, x_max, y_max) or, as in COCO and `datasets`,
            `bbox` (x_min, y_min, width, height), a list of boxes in pixels; and `labels` or
            `category`, a list of as many names or numbers of classes. Or a list of such dicts, each
            of one object. Both lists may be empty.
        size: ints, height and width of the image.
        num_classes: int, classes of the task.
        labels: list of their names, or None.
        place: name of the input in errors.

    Returns:
        Float32 `(objects, 4)`, x_min, y_min, x_max and y_max in pixels within the image, and int32
        `(objects,)`, the numbers of classes.

    Raises:
        ValueError: if a box is not four finite numbers, is outside of the image or without area, a
            class is unknown, or their numbers differ.
    """
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        given = _joined(given, place)
    if not isinstance(given, Mapping):
        raise ValueError(
            f"`{place}` must be a dict with 'boxes' and 'labels', received {describe(given)}."
        )
    if not any(_value(given, names) is not None for names in (_CORNERS, _SIZES)) and not given:
        return np.zeros((0, 4), "float32"), np.zeros(0, "int32")
    corners, sizes = _value(given, _CORNERS), _value(given, _SIZES)
    classes = _value(given, _CLASSES)
    if (corners is None) == (sizes is None) or classes is None:
        raise ValueError(
            f"`{place}` must have the key 'boxes' (x_min, y_min, x_max, y_max) or 'bbox' (x_min, "
            f"y_min, width, height), and 'labels' or 'category', received the keys "
            f"{shorten(list(given))}."
        )
    boxes = _boxes(sizes if corners is None else corners, place)
    classes = _as_list(classes, f"the classes of `{place}`")
    if len(classes) != len(boxes):
        raise ValueError(
            f"`{place}` has {len(boxes)} boxes and {len(classes)} classes: give one class for each."
        )
    numbers = np.zeros(len(boxes), "int32")
    for i, each in enumerate(classes):
        try:
            numbers[i] = class_number(each, num_classes, labels)
        except ValueError as error:
            raise ValueError(f"`{place}`, object {i}: {error}") from None
    return _within(boxes, size, place, corners is None), numbers


def _within(given: np.ndarray, size: tuple[int, int], place: str, has_lengths: bool) -> np.ndarray:
    """Return boxes as corners, cut by what rounding may exceed.

    Raises ValueError if one is outside of the image, has no area, or is in shares of the image.
    `has_lengths` says that width and height are given in place of the second corner.
    """
    height, width = size
    limits = np.array([width, height] * 2, "float64")
    boxes = given
    if len(given) and min(size) > 1 and given.max() <= 1 and (given % 1 > 0).any():
        raise ValueError(
            f"`{place}` has boxes within the first pixel, such as "
            f"{[round(float(n), 2) for n in given[0]]}: they seem to be shares of the image, but "
            f"boxes are in pixels. Multiply x and widths by {width}, y and heights by {height}."
        )
    if has_lengths:
        boxes = np.concatenate([given[:, :2], given[:, :2] + given[:, 2:]], axis=1)
    names = "(x_min, y_min, width, height)" if has_lengths else "(x_min, y_min, x_max, y_max)"
    other = (
        "If these are corners (x_min, y_min, x_max, y_max), name them 'boxes'."
        if has_lengths
        else "If these are (x_min, y_min, width, height), name them 'bbox'."
    )
    for i, (box, numbers) in enumerate(zip(boxes, given, strict=True)):
        told = f"`{place}`, object {i}: the box {[round(float(n), 2) for n in numbers]}"
        if (box < -_ROUNDING).any() or (box > limits + _ROUNDING).any():
            raise ValueError(
                f"{told} is not within its image of {width} x {height} pixels (width x height): it "
                f"is taken to be {names} in pixels. {other}"
            )
        if not (np.clip(box, 0, limits)[2:] > np.clip(box, 0, limits)[:2]).all():
            raise ValueError(f"{told} has no area: it is taken to be {names} in pixels. {other}")
    return np.clip(boxes, 0, limits).astype("float32")


def _boxes(given: Any, place: str) -> np.ndarray:
    rows = _as_list(given, f"the boxes of `{place}`")
    if len(rows) > MOST_OBJECTS:
        raise ValueError(f"`{place}` has {len(rows):,} boxes; an image may have {MOST_OBJECTS:,}.")
    for i, row in enumerate(rows):
        numbers = _as_list(row, f"`{place}`, object {i}: a box")
        if len(numbers) != 4 or not all(is_number(n) and np.isfinite(n) for n in numbers):
            raise ValueError(
                f"`{place}`, object {i}: a box must be four finite numbers, received "
                f"{shorten(row)}."
            )
    return np.asarray(rows, "float64").reshape(-1, 4)


def _joined(rows: Sequence, place: str) -> dict[str, list]:
    """Return a list of objects, each a dict, as a dict of lists."""
    wrong = [row for row in rows if not isinstance(row, Mapping)]
    if wrong:
        raise ValueError(
            f"`{place}` must be a dict with 'boxes' and 'labels', or a list of dicts of one object "
            f"each, received {describe(wrong[0])}."
        )
    names = list(rows[0]) if rows else []
    if any(set(row) != set(names) for row in rows):
        raise ValueError(f"`{place}` has objects with different keys: give all of them the same.")
    return {name: [row[name] for row in rows] for name in names}


def _value(given: Mapping, names: Sequence[str]) -> Any:
    return next((given[name] for name in names if given.get(name) is not None), None)


def _as_list(given: Any, place: str) -> list:
    """Return a list of a list, a tuple, an array or a tensor."""
    for method in ("detach", "cpu", "numpy", "tolist"):
        given = getattr(given, method)() if hasattr(given, method) else given
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"{place} must be a list, received {describe(given)}.")
    return list(given)
