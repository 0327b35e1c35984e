"""Pictures of predicted maps, masks and boxes with matplotlib."""

from typing import Any

import numpy as np

from keras_transformer.explanations.plots import make_figure
from keras_transformer.processors.image_files import read_image

_COLOURS = "tab20"
_OPACITY = 0.6


def _beside(image: Any) -> tuple[Any, Any, np.ndarray]:
    """Return a figure whose first axes show the image, its other axes, and the pixels."""
    pixels = read_image(image)
    height, width = pixels.shape[:2]
    side = 4 * min(max(height / width, 0.4), 2)
    figure, axes = make_figure(1, 2, figsize=(9, side + 0.6))
    for axis in axes[0]:
        axis.set_axis_off()
    axes[0, 0].imshow(pixels)
    return figure, axes[0, 1], pixels


def draw_depth(image: Any, depth: np.ndarray, unit: str) -> Any:
    """Draw an image beside its depth map.

    Args:
        image: an image that `ImageProcessor` takes.
        depth: float `(height, width)`.
        unit: str, the title of the color bar.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    figure, axis, _ = _beside(image)
    drawn = axis.imshow(depth, cmap="magma")
    figure.colorbar(drawn, ax=axis, fraction=0.04, label=unit)
    return figure


def draw_segments(image: Any, classes: np.ndarray, labels: list[str]) -> Any:
    """Draw an image beside the classes of its pixels, with a legend of those that occur.

    Args:
        image: an image that `ImageProcessor` takes.
        classes: int `(height, width)`.
        labels: list of str, the name of each class.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    figure, axis, pixels = _beside(image)
    table = np.asarray(colormaps[_COLOURS].colors)
    colours = table[classes % len(table)]
    axis.imshow((1 - _OPACITY) * pixels / 255 + _OPACITY * colours)
    present = np.unique(classes)
    patches = [Patch(color=table[n % len(table)], label=labels[n]) for n in present]
    axis.legend(handles=patches, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def draw_prompted(image: Any, masks: np.ndarray, scores: np.ndarray, prompts: Any) -> Any:
    """Draw an image beside the masks of prompts, with the points and boxes.

    Args:
        image: an image that `ImageProcessor` takes.
        masks: bool `(prompts, height, width)`.
        scores: float `(prompts,)`, written in the legend.
        prompts: dict of `points`, `labels` and `boxes`, as for `PromptedSegmenter.segment`.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Patch, Rectangle

    from keras_transformer.tasks.images.prompts import read_prompts

    figure, axis, pixels = _beside(image)
    table = np.asarray(colormaps[_COLOURS].colors)
    drawn = pixels / np.float32(255)
    for i, mask in enumerate(masks):
        drawn[mask] = (1 - _OPACITY) * drawn[mask] + _OPACITY * table[i % len(table)]
    axis.imshow(drawn)
    known = {name: prompts[name] for name in ("points", "labels", "boxes") if name in prompts}
    read = read_prompts(known, pixels.shape[:2], (1, 1)) if known else []
    for prompt in read:
        for (x, y), label in zip(prompt.points, prompt.labels, strict=True):
            axis.plot(x, y, "*" if label else "x", color="lime" if label else "red", markersize=9)
        if prompt.box is not None:
            left, top, right, bottom = prompt.box
            box = Rectangle((left, top), right - left, bottom - top, fill=False, color="white")
            axis.add_patch(box)
    patches = [
        Patch(color=table[i % len(table)], label=f"{score:.2f}")
        for i, score in enumerate(scores[: len(table)])
    ]
    axis.legend(
        handles=patches, title="IoU score", fontsize=8, loc="upper left", bbox_to_anchor=(1, 1)
    )
    return figure


def draw_objects(image: Any, boxes: np.ndarray, labels: list[str], scores: np.ndarray) -> Any:
    """Draw an image with boxes, each with its class and score, in a color for each class.

    Args:
        image: an image that `ImageProcessor` takes.
        boxes: float `(objects, 4)`, x_min, y_min, x_max and y_max in pixels.
        labels: list of str, the class of each object.
        scores: float `(objects,)`.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    pixels = read_image(image)
    side = 6 * min(max(pixels.shape[0] / pixels.shape[1], 0.4), 2)
    figure, axes = make_figure(1, 1, figsize=(6, side))
    axis = axes[0, 0]
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    axis.set_axis_off()
    axis.imshow(pixels, extent=(0, pixels.shape[1], pixels.shape[0], 0))
    table, names = colormaps[_COLOURS].colors, sorted(set(labels))
    for (left, top, right, bottom), label, score in zip(boxes, labels, scores, strict=True):
        color = table[names.index(label) % len(table)]
        size = right - left, bottom - top
        axis.add_patch(Rectangle((left, top), *size, fill=False, color=color, linewidth=2))
        text = {"fontsize": 8, "verticalalignment": "bottom", "clip_on": True}
        axis.text(left, top, f"{label} {score:.2f}", backgroundcolor=color, **text)
    return figure
