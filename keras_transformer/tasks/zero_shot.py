"""Labels as texts: classes of images that are told by what they are called."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.checking import check_text, describe, shorten


def checked_labels(labels: Any) -> list[str]:
    """Labels as a list. ValueError for none, for what is no string, and for one given twice."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence) or not labels:
        raise ValueError(
            "`labels` must be a list of strings, such as ['cat', 'dog'], received "
            f"{describe(labels)}."
        )
    for i, label in enumerate(labels):
        check_text(f"labels[{i}]", label)
        if label in labels[:i]:
            raise ValueError(f"`labels` has {shorten(label)} twice: give each label once.")
    return list(labels)


def label_texts(labels: list[str], template: str | Sequence[str]) -> list[str]:
    """The text of each label in each template, all labels of the first one first.

    ValueError for no template, or one without a place for the label.
    """
    templates = [template] if isinstance(template, str) else template
    if not isinstance(templates, Sequence) or not templates:
        raise ValueError(
            f"`template` must be a string or a list of strings, received {describe(template)}."
        )
    for i, each in enumerate(templates):
        check_text(f"template[{i}]", each)
        if "{}" not in each:
            raise ValueError(
                "`template` must have {} where the label goes, such as 'a photo of a {}.', "
                f"received {shorten(each)}."
            )
    return [each.replace("{}", label) for each in templates for label in labels]


def mean_over_templates(vectors: np.ndarray, count: int) -> np.ndarray:
    """One vector a label, of those of `label_texts`, which count by their direction alone."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units.reshape(-1, count, vectors.shape[1]).mean(axis=0)
