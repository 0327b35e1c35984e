"""Segmentation by prompts: the masks of objects that points, boxes and masks ask for."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config.prompted import SCALE
from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.layers.arguments import agree, known_shape, show_shape
from keras_transformer.layers.fusion import linear_weights
from keras_transformer.models.backbone import Backbone, named_inputs
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.image_files import image_size, read_map
from keras_transformer.processors.packages import pillow
from keras_transformer.processors.prompted import PromptedImageProcessor
from keras_transformer.support.checking import check_bool, describe, shorten
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.heads.prompted_head import (
    HAS_MASK,
    LABELS,
    MASKS,
    POINTS,
    STATES,
    PromptedMaskHead,
)
from keras_transformer.tasks.images.map_plots import draw_prompted
from keras_transformer.tasks.images.prompts import (
    KINDS,
    Prompt,
    arrays_of,
    count_of_tokens,
    read_prompts,
)
from keras_transformer.tasks.media.input_classifier import rows_to_predict
from keras_transformer.training import lora
from keras_transformer.training.losses.mask_losses import UNKNOWN

_AT_A_TIME = 16  # prompts that are decoded at once, since each has states of the whole image
_MOST_LEARNED = 64  # prompts of an image in training, as in the paper
_MOST_PIXELS = 2**31  # of all masks of an answer: 2 GB
_STRIP = 2**22  # pixels of a mask that are computed at once


@dataclasses.dataclass(frozen=True)
class PromptedSegmentation:
    """The masks of the objects that prompts ask for.

    Attributes:
        masks: bool `(prompts, masks, height, width)`, of the size of the image.
        iou_scores: float32 `(prompts, masks)`, the predicted intersection over union of each mask
            with the object.
        logits: float32 `(prompts, masks, rows, columns)`, as small as the model computes them.
            `logits[i, j]` may be a mask prompt of the next answer.
        prompts: dict of the prompts as they were given.
        image: the image as it was given.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    masks = np.zeros((1, 2, 4, 6), bool)
    masks[0, 1, 1:3, 2:5] = True
    result = kt.tasks.PromptedSegmentation(
        masks, np.array([[0.2, 0.9]], "float32"), np.zeros((1, 2, 4, 4), "float32"),
        {"points": [[3, 2]]}, np.zeros((4, 6, 3), "uint8"),
    )
    assert result.best.sum() == 6 and result.best.shape == (1, 4, 6)
    ```
    """

    masks: np.ndarray
    iou_scores: np.ndarray
    logits: np.ndarray = dataclasses.field(repr=False)
    prompts: Mapping[str, Any]
    image: Any = dataclasses.field(repr=False)

    @property
    def best(self) -> np.ndarray:
        """The mask of each prompt with the highest score, bool `(prompts, height, width)`."""
        chosen = self.iou_scores.argmax(axis=1)
        return self.masks[np.arange(len(chosen)), chosen]

    def plot(self) -> Any:
        """Draw the image beside the best mask of each prompt, with the points and boxes.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        scores = self.iou_scores.max(axis=1)
        return draw_prompted(self.image, self.best, scores, self.prompts)


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """An image whose states are computed, for any number of prompts.

    `PromptedSegmenter.encode` makes it. The states are those of the weights at that time.

    Attributes:
        segmenter: the `PromptedSegmenter`.
        states: float32 `(rows, columns, width)`, the output of the image encoder.
        size: ints, height and width of the image.
        image: the image as it was given.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="learned", normalize_first=True,
        stem={"kind": "patches", "image_size": [32, 32], "patch_size": 8, "class_token": False},
    )
    segmenter = kt.PromptedSegmenter(
        kt.models.Encoder(config),
        kt.processors.PromptedImageProcessor(size=32),
        decoder={"width": 16, "num_heads": 2, "intermediate_dim": 16, "score_dim": 8},
    )
    encoded = segmenter.encode(np.zeros((20, 30, 3), "uint8"))
    assert encoded.states.shape == (4, 4, 16) and encoded.size == (20, 30)
    assert encoded.segment(boxes=[2, 3, 20, 15]).best.shape == (1, 20, 30)
    ```
    """

    segmenter: "PromptedSegmenter" = dataclasses.field(repr=False)
    states: np.ndarray = dataclasses.field(repr=False)
    size: tuple[int, int]
    image: Any = dataclasses.field(repr=False)

    def segment(
        self, points: Any = None, labels: Any = None, boxes: Any = None, masks: Any = None,
        multimask: bool = True,
    ) -> PromptedSegmentation:  # fmt: skip
        """Return the masks of prompts, as `PromptedSegmenter.segment` does for an image.

        The image encoder is not run.

        Args:
            points: as for `PromptedSegmenter.segment`, as are the others.
            labels: labels of the points.
            boxes: boxes of objects.
            masks: logits of earlier answers.
            multimask: bool, whether to return the masks of an ambiguous prompt.

        Raises:
            ValueError: if a prompt is invalid, before anything is computed.
        """
        given = dict(zip(KINDS, (points, labels, boxes, masks), strict=True))
        return self.segmenter._answers([self], [given], multimask, [""])[0]


@keras.saving.register_keras_serializable(package="keras_transformer")
class PromptedSegmenter(Task):
    """A vision transformer that gives masks of the objects that prompts ask for (SAM).

    The image encoder, the backbone and a neck of two convolutions, sees the image alone. Points,
    boxes and masks are encoded apart, and a small decoder attends from them to the image's states
    and back. One image takes any number of prompts: `encode` keeps its states.

    `fit` takes a pair of images and their prompts, dicts with the arguments of `segment`, and for
    each image the masks of its prompts. The image encoder is frozen; `freeze(layers=n)` trains its
    blocks from `n` on, and the neck.

    Compiled with AdamW (5e-5) and `training.PromptedMaskLoss`.

    Args:
        backbone: an `Encoder` whose config has a `stem` of patches without other tokens.
        processor: `processors.PromptedImageProcessor`, or None if the task only takes arrays.
        decoder: dict of values of `config.prompted.PromptedMasks`, such as `width` and
            `num_heads`. Defaults to the published ones.
        name: str.

    Call arguments:
        inputs: dict with `images`, float `(batch, height, width, channels)`, as the processor
            returns them; or `image_states`, what the call returns for images alone; and with
            `points`, float `(batch, prompts, count, 2)`, x and y in pixels of these images,
            `point_labels`, int `(batch, prompts, count)`, see `PromptEncoder`, and for mask prompts
            `mask_prompts`, float `(batch, prompts, 4 * rows, 4 * columns)`, and `has_mask`, bool
            `(batch, prompts)`.

    Returns:
        Dict of `masks`, logits, float `(batch, prompts, masks, 4 * rows, 4 * columns)`, and
        `iou_scores`, float `(batch, prompts, masks)`: first of the mask of an unambiguous prompt,
        then of those of an ambiguous one. Without prompts: float `(batch, rows, columns, width)`.

    Raises:
        ValueError: if the backbone does not read patches of images, or a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="learned", normalize_first=True,
        stem={"kind": "patches", "image_size": [32, 32], "patch_size": 8, "class_token": False},
    )
    segmenter = kt.PromptedSegmenter(
        kt.models.Encoder(config),
        kt.processors.PromptedImageProcessor(size=32),
        decoder={"width": 16, "num_heads": 2, "intermediate_dim": 16, "score_dim": 8},
    )
    encoded = segmenter.encode(np.zeros((20, 30, 3), "uint8"))
    first = encoded.segment(points=[[12, 9]])
    assert first.masks.shape == (1, 3, 20, 30) and first.iou_scores.shape == (1, 3)
    again = encoded.segment(boxes=[[2, 3, 20, 15]], masks=first.logits[:, 0], multimask=False)
    assert again.masks.shape == (1, 1, 20, 30)
    ```

    Source: Kirillov et al. 2023, "Segment Anything".
    """

    alias = "prompted_segmentation"
    backbone_kinds = ("encoder",)
    head_class = PromptedMaskHead
    processor_class = PromptedImageProcessor
    task_options = PromptedMaskHead.options

    decoder: dict[str, Any]

    def __init__(
        self,
        backbone: Backbone,
        processor: PromptedImageProcessor | None = None,
        decoder: Mapping[str, Any] | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, processor, name=name)
        stem = backbone.config.stem
        if getattr(stem, "kind", None) != "patches" or stem.num_tokens:
            raise ValueError(
                "PromptedSegmenter needs a backbone that reads patches of images and has no class "
                "token: give the config a `stem`, such as {'kind': 'patches', 'image_size': "
                "[1024, 1024], 'patch_size': 16, 'class_token': False}."
            )
        self.set_head(decoder=decoder)
        # One variable at a time, as `freeze` thaws them.
        lora.set_trainable(self, [*backbone.weights, *self.neck.weights], False)

    def freeze(self, layers: int, embeddings: bool = True) -> None:
        super().freeze(layers, embeddings)
        thawed = any(variable.trainable for variable in self.backbone.weights)
        lora.set_trainable(self, self.neck.weights, thawed)

    @property
    def low_resolution(self) -> tuple[int, int]:
        """Rows and columns of the logits of a mask."""
        rows, columns = self.head.grid
        return SCALE * rows, SCALE * columns

    def _named(self, inputs):
        if isinstance(inputs, Mapping) and inputs.get(STATES) is not None:
            names = (STATES, *self.head.further_inputs)
            named = named_inputs(inputs, names, (STATES, POINTS, LABELS), type(self).__name__)
        else:
            further = self.head.further_inputs
            named = self.backbone.checked_inputs(inputs, further=further, taker=type(self).__name__)
        if (POINTS in named) != (LABELS in named):
            raise ValueError(f"`{POINTS}` and `{LABELS}` go together: give both or neither.")
        if (MASKS in named) != (HAS_MASK in named) or (MASKS in named and LABELS not in named):
            raise ValueError(f"`{MASKS}` need `{HAS_MASK}`, `{POINTS}` and `{LABELS}`.")
        self._check_shapes(named)
        return named

    def _check_shapes(self, named: Mapping[str, Any]) -> None:
        """Raise ValueError if an array beside the images has another shape."""
        of_labels = (None,) * 3
        if LABELS in named:
            of_labels = known_shape(named[LABELS]) or of_labels
        batch = (*of_labels, None, None, None)[:2]
        wanted = {
            STATES: (batch[0], *self.head.grid, self.head.masks.width),
            LABELS: (None, None, None),
            POINTS: (*of_labels, 2),
            MASKS: (*batch, *self.low_resolution),
            HAS_MASK: batch,
        }
        for name in named.keys() & wanted.keys():
            shape = known_shape(named[name])
            if shape is not None and not (
                len(shape) == len(wanted[name]) and agree(shape, wanted[name])
            ):
                raise ValueError(
                    f"`{name}` must be of shape {show_shape(wanted[name])}, received "
                    f"{show_shape(shape)}."
                )

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        if collect:
            raise ValueError("A PromptedSegmenter returns masks alone: leave out `collect`.")
        states = inputs.get(STATES)
        if states is None:
            states, _ = self.backbone_states(inputs, training=training)
            states = self.neck(states)
        outputs = states
        if LABELS in inputs:
            outputs = self.head(states, inputs, training)
        return keras.tree.map_structure(lambda x: ops.cast(x, "float32"), outputs)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Make batches of images, prompts and masks. See `Task.make_dataset`.

        Args:
            x: a tuple of a list of images and a list of their prompts, each a dict with some of
                the arguments `points`, `labels`, `boxes` and `masks` of `segment`.
            y: for each image the masks of its prompts: a list, or an array `(prompts, height,
                width)`. A mask is an array, a Pillow image or a path of an image of one channel: 0
                beside the object, 255 where it is unknown, and any other number on the object.
            sample_weight: one number for each image.
            **options: as in `Task.make_dataset`.

        Raises:
            ValueError: if a prompt is invalid, an image has more than 64 prompts, or a mask has
                another size than its image; all of them are read for this before any batch is
                made.
        """
        processor = self._require_processor()
        if not isinstance(x, tuple) or len(x) != 2:
            raise ValueError(
                "PromptedSegmenter takes a pair: fit((images, prompts), masks), with prompts such "
                f"as [{{'points': [[x, y]]}}, ...], received {describe(x)}."
            )
        images, low = processor.rows(x[0]), self.low_resolution
        sizes = [image_size(image, f"x[{i}]") for i, image in enumerate(images)]
        prompts = [
            read_prompts(given, size, low, f"image {i}")
            for i, (given, size) in enumerate(
                zip(_listed("prompts", x[1], len(images)), sizes, strict=True)
            )
        ]
        for i, own in enumerate(prompts):
            if len(own) > _MOST_LEARNED:
                raise ValueError(
                    f"Image {i} has {len(own):,} prompts, and at most {_MOST_LEARNED} may be "
                    "learned at once: give the image several times, each with some of them."
                )
        values = {}
        if y is not None:
            self._check_masks(y, prompts, sizes)
            weights = check_weights("sample_weight", sample_weight, len(images), unit="image")
            values = {} if weights is None else {"sample_weight": weights}
        shape = max(map(len, prompts)), max(map(count_of_tokens, prompts))
        masked = any(prompt.mask is not None for own in prompts for prompt in own)

        def make_batch(arrays, masks):
            rows = arrays["row"]
            made = [
                arrays_of(prompts[i], processor, sizes[i], shape, low if masked else None)
                for i in rows
            ]
            inputs = {"images": processor([images[i] for i in rows], places=rows)}
            inputs |= {name: np.stack([each[name] for each in made]) for name in made[0]}
            if y is None:
                return (inputs,)
            targets = np.stack([self._targets(y[i], shape[0]) for i in rows])
            counted = np.array([np.arange(shape[0]) < len(prompts[i]) for i in rows], "float32")
            if values:
                counted *= arrays["sample_weight"][:, None]
            return inputs, targets, counted

        columns = {"place": np.zeros((len(images), 1), "int32")}
        options["max_buckets"] = 1
        return self._bucketed(columns, make_batch, values=values, **options)

    def _check_masks(self, y: Any, prompts: Sequence, sizes: Sequence) -> None:
        for i, masks in enumerate(_listed("y", y, len(prompts))):
            given = _listed(f"y[{i}]", masks, len(prompts[i]))
            for j, mask in enumerate(given):
                shape = read_map(mask, f"y[{i}][{j}]").shape
                if shape != tuple(sizes[i]):
                    raise ValueError(
                        f"`y[{i}][{j}]` has {shape[0]} x {shape[1]} pixels (height x width), but "
                        f"its image has {sizes[i][0]} x {sizes[i][1]}."
                    )

    def _targets(self, masks: Sequence, count: int) -> np.ndarray:
        """Return the masks of an image as small as logits, uint8 `(count, rows, columns)`."""
        (rows, columns), processor = self.low_resolution, self._require_processor()
        made = np.full((count, rows, columns), UNKNOWN, "uint8")
        for j, given in enumerate(masks):
            mask = read_map(given, f"mask {j}")
            classes = np.where(mask == UNKNOWN, UNKNOWN, mask != 0).astype("uint8")
            scale = rows / processor.side
            resized = processor.resized_size(mask.shape)
            height, width = (max(int(n * scale + 0.5), 1) for n in resized)
            small = pillow().fromarray(classes).resize((width, height), resample=0)
            made[j, :height, :width] = np.asarray(small)
        return made

    def to_predict(self, batch_size: int | None = None) -> dict[str, Any]:
        if batch_size is None:
            batch_size = rows_to_predict(self.backbone.config)
        return super().to_predict(batch_size)

    @reads
    def encode(
        self, images: Any, batch_size: int | None = None
    ) -> EncodedImage | list[EncodedImage]:
        """Compute the states of images, for many prompts on them.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            batch_size: int, images that are computed together. Defaults to 1, since a published
                model needs a gigabyte or more for each.

        Returns:
            An `EncodedImage` for each image; for one image, its `EncodedImage`.

        Raises:
            ValueError: if an image cannot be read, or is too large.
        """
        processor = self._require_processor()
        alone = processor.is_one(images)
        rows = [images] if alone else processor.rows(images)
        sizes = [image_size(image, f"x[{i}]") for i, image in enumerate(rows)]
        count, found = check_batch(batch_size)["batch_size"] or 1, []
        for first in range(0, len(rows), count):
            part = range(first, min(first + count, len(rows)))
            pixels = processor([rows[i] for i in part], places=part)
            states = np.asarray(ops.convert_to_numpy(self.predict_on_batch({"images": pixels})))
            found += [
                EncodedImage(self, own, tuple(sizes[i]), rows[i])
                for i, own in zip(part, states, strict=True)
            ]
        return found[0] if alone else found

    @reads
    def segment(
        self, images: Any, points: Any = None, labels: Any = None, boxes: Any = None,
        masks: Any = None, multimask: bool = True, batch_size: int | None = None,
    ) -> PromptedSegmentation | list[PromptedSegmentation]:  # fmt: skip
        """Return masks of the objects that prompts ask for.

        Each object may have points, a box and a mask. For a list of images, each of the arguments
        is a list of what is described here, one for each image, or None.

        Args:
            images: an image that `ImageProcessor` can read, of any size, or a list of them.
            points: x and y in pixels of the image: `[x, y]`; a list of these for one object; or a
                list of such lists, one for each object.
            labels: 1 for a point on the object, 0 for one that is not, in lists as the points.
                Defaults to 1.
            boxes: left, top, right and bottom in pixels of the image, of an object; or a list of
                boxes, one for each object.
            masks: logits of an earlier answer, float `(rows, columns)`; or `(objects, rows,
                columns)`.
            multimask: bool, whether to return the three masks of an ambiguous prompt, such as a
                point, rather than one mask.
            batch_size: int, images that are encoded together. Defaults to 1.

        Returns:
            A `PromptedSegmentation`, with masks of the image's size; for a list of images, a list.

        Raises:
            ValueError: before anything is computed, if there is no prompt, a point or box is
                outside of its image, a label is neither 0 nor 1, a box is empty or upside down, a
                mask has another size, an image cannot be read, or the masks would have more than
                2**31 pixels.
        """
        processor = self._require_processor()
        alone = processor.is_one(images)
        rows = [images] if alone else processor.rows(images)
        given = dict(zip(KINDS, (points, labels, boxes, masks), strict=True))
        if alone:
            of_images, names = [given], [""]
        else:
            lists = {
                name: [None] * len(rows) if each is None else _listed(name, each, len(rows))
                for name, each in given.items()
            }
            of_images = [{name: lists[name][i] for name in KINDS} for i in range(len(rows))]
            names = [f"image {i}" for i in range(len(rows))]
        sizes = [image_size(image, f"x[{i}]") for i, image in enumerate(rows)]
        self._checked(of_images, sizes, multimask, names)
        answers: list[PromptedSegmentation] = []
        count = check_batch(batch_size)["batch_size"] or 1
        for first in range(0, len(rows), count):
            part = slice(first, first + count)
            encoded = self.encode(list(rows[part]), batch_size=count)
            answers += self._answers(encoded, of_images[part], multimask, names[part])
        return answers[0] if alone else answers

    def _checked(
        self, given: Sequence, sizes: Sequence, multimask: bool, names: Sequence[str]
    ) -> list[list[Prompt]]:
        """Return the prompts of images. Raises ValueError if one is invalid, or masks too large."""
        check_bool("multimask", multimask)
        each = self.head.masks.num_masks if multimask else 1
        found = [
            read_prompts(own, size, self.low_resolution, name)
            for own, size, name in zip(given, sizes, names, strict=True)
        ]
        pixels = sum(
            len(own) * each * height * width
            for own, (height, width) in zip(found, sizes, strict=True)
        )
        if pixels > _MOST_PIXELS:
            raise ValueError(
                f"The masks of these prompts would have {pixels:,} pixels, and {_MOST_PIXELS:,} "
                "are allowed: give fewer prompts or images at a time, or multimask=False."
            )
        return found

    @reads
    def _answers(
        self, encoded: Sequence[EncodedImage], given: Sequence, multimask: bool, names: Sequence
    ) -> list[PromptedSegmentation]:
        prompts = self._checked(given, [each.size for each in encoded], multimask, names)
        found = []
        for image, own, said in zip(encoded, prompts, given, strict=True):
            parts = [
                self._decoded(image, own[first : first + _AT_A_TIME])
                for first in range(0, len(own), _AT_A_TIME)
            ]
            chosen = slice(1, None) if multimask else slice(0, 1)
            logits, scores = (np.concatenate(each)[:, chosen] for each in zip(*parts, strict=True))
            resized = self.processor.resized_size(image.size)
            whole = np.stack(
                [
                    [enlarged(mask, self.processor.side, resized, image.size) for mask in of_prompt]
                    for of_prompt in logits
                ]
            )
            said = {name: each for name, each in said.items() if each is not None}
            found.append(PromptedSegmentation(whole, scores, logits, said, image.image))
        return found

    def _decoded(self, image: EncodedImage, prompts: Sequence[Prompt]) -> tuple:
        """Return the logits and scores of prompts, a row for each."""
        # Few shapes, since some backends compile each.
        count = 1 << (len(prompts) - 1).bit_length()
        low = self.low_resolution if any(each.mask is not None for each in prompts) else None
        shape = count, count_of_tokens(prompts)
        arrays = arrays_of(prompts, self.processor, image.size, shape, low)
        inputs = {STATES: image.states, **arrays}
        outputs = self.predict_on_batch({name: array[None] for name, array in inputs.items()})
        return tuple(
            ops.convert_to_numpy(outputs[name])[0, : len(prompts)]
            for name in ("masks", "iou_scores")
        )


def enlarged(
    logits: np.ndarray,
    side: int,
    resized: tuple[int, int],
    size: tuple[int, int],
    threshold: float | None = 0.0,
) -> np.ndarray:
    """Return a mask in the size of its image, bool `(height, width)`.

    Logits are interpolated to the padded image and, without its padding, to the image. Both are
    done at once, some rows at a time, so that no logits of the size of a photo are held.

    Args:
        logits: float32 `(rows, columns)`.
        side: int, height and width of the padded image.
        resized: ints, height and width of the image within it.
        size: ints, height and width of the image.
        threshold: float, the mask is where logits are above it. None returns the logits, float32.
    """
    rows, columns = (
        linear_weights(within, whole, kept="edges")
        @ linear_weights(small, side, kept="edges")[:within]
        for small, within, whole in zip(logits.shape, resized, size, strict=True)
    )
    across = logits @ columns.T
    made = np.empty(size, "float32" if threshold is None else "bool")
    step = max(_STRIP // size[1], 1)
    for top in range(0, size[0], step):
        strip = rows[top : top + step] @ across
        made[top : top + step] = strip if threshold is None else strip > threshold
    return made


def _listed(name: str, given: Any, count: int) -> Sequence:
    """Return a list with an entry for each image, or prompt. Raises ValueError if it is not one."""
    counted = isinstance(given, (list, tuple)) or (
        hasattr(given, "__len__") and hasattr(given, "shape")
    )
    if not counted or len(given) != count:
        raise ValueError(
            f"`{name}` must be a list of {count}, received {shorten(given)}."
            if not counted
            else f"`{name}` must be a list of {count}, received {len(given)}."
        )
    return given
