"""Mean average precision of found objects, by pycocotools."""

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.processors.image_files import image_size
from keras_transformer.support.checking import check_int, describe
from keras_transformer.tasks import Detection, ObjectDetector
from keras_transformer.tasks.images.objects import read_objects

_MOST_FOUND = 100  # of an image, the most that COCO counts


@dataclasses.dataclass(frozen=True)
class DetectionScores:
    """Average precision of found objects, as COCO computes it; NaN without known objects.

    Attributes:
        ap: float, the mean over classes and over ten thresholds of the intersection over union,
            0.5 to 0.95.
        ap50, ap75: floats, the mean over classes with a threshold of 0.5 or 0.75.
        classes: dict from the name of a class to its `ap`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    image = np.zeros((20, 20, 3), "uint8")
    boxes = np.array([[2, 2, 10, 10]], "float32")
    found = kt.tasks.Detection(boxes, ["cat"], np.array([0.8], "float32"), image)
    known = {"boxes": [[2, 2, 10, 10]], "labels": ["cat"]}
    scores = kt.evaluating.DetectionScores.of([known], [found], ["cat", "dog"])
    assert abs(scores.ap - 1) < 1e-6 and abs(scores.ap50 - 1) < 1e-6
    ```

    Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context".
    """

    ap: float
    ap50: float
    ap75: float
    classes: dict[str, float]

    @classmethod
    def of(
        cls, objects: Sequence, found: Sequence[Detection], labels: Sequence[str]
    ) -> "DetectionScores":
        """Compare found objects with the known ones.

        Args:
            objects: dicts of the objects of each image, as `ObjectDetector.fit` takes them.
            found: a `Detection` for each, of all scores: `detect(images, threshold=0.0)`.
            labels: names of all classes.

        Raises:
            ValueError: if the numbers of both differ, or an object is invalid.
            ImportError: if pycocotools is not installed.
        """
        coco, evaluation = _pycocotools()
        labels = list(labels)
        if len(objects) != len(found) or not len(found):
            raise ValueError(
                f"Give as many detections as images, at least one, received {len(objects)} images "
                f"and {len(found)} detections."
            )
        known: dict[str, list[dict[str, Any]]] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": i + 1, "name": name} for i, name in enumerate(labels)],
        }
        results = []
        for i, (each, result) in enumerate(zip(objects, found, strict=True)):
            if not isinstance(result, Detection):
                raise ValueError(f"`found[{i}]` must be a Detection, received {describe(result)}.")
            size = tuple(image_size(result.image, f"found[{i}].image"))
            place = f"objects[{i}]"
            boxes, classes = read_objects(each, size, len(labels), labels, place)
            known["images"].append({"id": i + 1, "height": size[0], "width": size[1]})
            for box, number in zip(boxes, classes, strict=True):
                row = {**_row(box, number, i), "id": len(known["annotations"]) + 1, "iscrowd": 0}
                known["annotations"].append(row | {"area": row["bbox"][2] * row["bbox"][3]})
            for box, label, score in zip(result.boxes, result.labels, result.scores, strict=True):
                row = _row(box, labels.index(label), i)
                results.append(row | {"score": float(score)})
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
            truth = coco()
            truth.dataset = known
            truth.createIndex()
            predicted = truth.loadRes(results) if results else coco()
            if not results:
                predicted.dataset = {**known, "annotations": []}
                predicted.createIndex()
            scored = evaluation(truth, predicted, "bbox")
            scored.evaluate()
            scored.accumulate()
        # (thresholds, recalls, classes, areas, numbers of objects); -1 where a class has no object
        precision = scored.eval["precision"][:, :, :, 0, -1]
        thresholds = scored.params.iouThrs
        ap50, ap75 = (
            _mean(precision[np.isclose(thresholds, threshold)]) for threshold in (0.5, 0.75)
        )
        classes = {name: _mean(precision[:, :, i]) for i, name in enumerate(labels)}
        return cls(_mean(precision), ap50, ap75, classes)


def evaluate_detector(
    detector: ObjectDetector, images: Any, objects: Sequence, batch_size: int | None = None
) -> DetectionScores:
    """Find the objects in images, and compare them with the known ones.

    Args:
        detector: an `ObjectDetector`.
        images: images as `detector.detect` takes them.
        objects: the objects of each, as `detector.fit` takes them.
        batch_size: int, as in `detector.detect`.

    Returns:
        `DetectionScores`: the mean average precision, also for thresholds of 0.5 and 0.75.

    Raises:
        ValueError: if images or objects are invalid.
        ImportError: if pycocotools is not installed.

    Example: see docs/object_detection.md.
    """
    _pycocotools()
    check_int("batch_size", batch_size, 1, none=True)
    if not isinstance(detector, ObjectDetector):
        raise ValueError(f"`detector` must be an ObjectDetector, received {describe(detector)}.")
    rows = detector._require_processor().rows(images)
    if isinstance(objects, (str, bytes, dict)) or len(objects) != len(rows):
        raise ValueError(
            f"`objects` must be a list of dicts, one for each of {len(rows)} images, received "
            f"{describe(objects)}."
        )
    names = detector.label_names
    for i, row in enumerate(rows):  # before anything is computed
        size = tuple(image_size(row, f"images[{i}]"))
        read_objects(objects[i], size, len(names), names, f"objects[{i}]")
    found = detector.detect(rows, threshold=0.0, batch_size=batch_size)
    return DetectionScores.of(objects, found, names)


def _row(box: np.ndarray, number: int, image: int) -> dict[str, Any]:
    """Return an object as COCO's files have it: (x_min, y_min, width, height)."""
    x, y, right, bottom = map(float, box)
    sides = [x, y, right - x, bottom - y]
    return {"image_id": image + 1, "category_id": int(number) + 1, "bbox": sides}


def _mean(precision: np.ndarray) -> float:
    counted = precision[precision > -1]
    return float(counted.mean()) if counted.size else float("nan")


def _pycocotools() -> tuple:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise ImportError(
            "Average precision is computed by pycocotools, which is not installed. Run `pip "
            'install "keras_transformer[detection]"`.'
        ) from None
    return COCO, COCOeval
