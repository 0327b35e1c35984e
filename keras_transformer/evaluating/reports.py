"""Reports on predicted classes and entities: precision, recall and F1 of each, and averages."""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.support.checking import describe, is_int, shorten
from keras_transformer.support.columns import listed_column
from keras_transformer.tasks.text.tag_schemes import TagScheme


class ClassScores(NamedTuple):
    """Scores of a class, or their average.

    Fields:
        precision: float, the share of what was predicted that is right; 0 if nothing was predicted.
        recall: float, the share of what there is that was found; 0 if there is nothing.
        f1: float, the harmonic mean of both.
        support: int, how many there are.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """Scores by class. It prints as a table.

    Fields:
        classes: dict from class to `ClassScores`.
        averages: dict with the `ClassScores` `"micro"`, of all counts together; `"macro"`, the
            plain mean of the classes; and `"weighted"`, their mean weighted by support.
    """

    classes: dict[Any, ClassScores]
    averages: dict[str, ClassScores]

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """All scores as dicts, by class and by `"micro avg"`, `"macro avg"`, `"weighted avg"`."""
        rows = {**{str(k): x for k, x in self.classes.items()}, **self._averages()}
        return {name: scores._asdict() for name, scores in rows.items()}

    def table(self) -> str:
        """Return the scores as lines of text."""
        rows = [(str(name), scores) for name, scores in self.classes.items()]
        averages = list(self._averages().items())
        width = max(len(name) for name, _ in rows + averages)
        lines = [" " * width + "  precision  recall      f1  support"]
        for block in (rows, averages):
            lines += [
                f"{name.ljust(width)}  {x.precision:9.4f}  {x.recall:.4f}  {x.f1:.4f}  "
                f"{x.support:7d}"
                for name, x in block
            ]
            lines.append("")
        return "\n".join(lines[:-1])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return self.table()

    def _averages(self) -> dict[str, ClassScores]:
        return {f"{name} avg": scores for name, scores in self.averages.items()}


@dataclasses.dataclass(frozen=True, repr=False)
class ClassificationReport(Report):
    """Precision, recall and F1 of predicted classes, and which are taken for which.

    `ClassificationReport.of(labels, predictions)` makes it.

    Fields:
        classes, averages: see `Report`.
        accuracy: float, the share of predictions that are right.
        confusion: int `(classes, classes)`: row `i` column `j` counts examples of class `i` that
            were predicted as class `j`, both in the order of `classes`.

    Example:
    ```python
    from keras_transformer.evaluating import ClassificationReport

    labels, predictions = ["cat", "cat", "dog", "dog"], ["cat", "dog", "dog", "dog"]
    report = ClassificationReport.of(labels, predictions)
    assert report.accuracy == 0.75 and report.classes["cat"].recall == 0.5
    assert report.confusion.tolist() == [[1, 1], [0, 2]]
    ```
    """

    accuracy: float
    confusion: np.ndarray

    @classmethod
    def of(
        cls, labels: Sequence[Any], predictions: Sequence[Any], classes: Sequence[Any] | None = None
    ) -> "ClassificationReport":
        """Compare predictions with labels.

        Args:
            labels: the right class of each example, strings or integers.
            predictions: the predicted class of each example; or what `classify` returns, pairs of
                a class and its probability.
            classes: the classes to report, in order. Defaults to all that occur, sorted.

        Returns:
            A `ClassificationReport`.

        Raises:
            ValueError: if there is no example, the lists differ in length, or a class is missing in
                `classes`.
        """
        right, found = _class_list("labels", labels), _class_list("predictions", predictions)
        _check_lengths(right, found, "labels", "predictions")
        known = _known({*right, *found}, classes)
        places = {name: place for place, name in enumerate(known)}
        confusion = np.zeros((len(known),) * 2, "int64")
        for label, predicted in zip(right, found, strict=True):
            confusion[places[label], places[predicted]] += 1
        hits = np.diagonal(confusion)
        scores, averages = _scores(hits, confusion.sum(0), confusion.sum(1))
        accuracy = float(hits.sum() / confusion.sum())
        return cls(dict(zip(known, scores, strict=True)), averages, accuracy, confusion)

    @property
    def numbers(self) -> dict[str, Any]:
        """All scores as dicts, by class and average, and the `accuracy`."""
        return {**super().numbers, "accuracy": self.accuracy}

    def table(self) -> str:
        names = [str(name) for name in self.classes]
        width = max(map(len, ["label \\ predicted", *names]))
        wide = [max(len(name), len(str(self.confusion.max()))) for name in names]
        head = [name.rjust(size) for name, size in zip(names, wide, strict=True)]
        lines = ["  ".join(["label \\ predicted".ljust(width), *head])]
        for name, row in zip(names, self.confusion, strict=True):
            cells = [str(count).rjust(size) for count, size in zip(row, wide, strict=True)]
            lines.append("  ".join([name.ljust(width), *cells]))
        matrix = "\n".join(lines)
        return f"{super().table()}\n\naccuracy  {self.accuracy:.4f}\n\n{matrix}"


@dataclasses.dataclass(frozen=True, repr=False)
class EntityReport(Report):
    """Precision, recall and F1 of entities: one counts if its kind and both of its ends are right.

    `EntityReport.of(labels, predictions)` makes it.

    Fields:
        classes, averages: see `Report`; a class is a kind of entity.

    Example:
    ```python
    from keras_transformer.evaluating import EntityReport

    labels = [["B-PER", "I-PER", "O", "B-LOC"]]
    predictions = [["B-PER", "O", "O", "B-LOC"]]  # a name that ends too early
    report = EntityReport.of(labels, predictions)
    assert report.classes["LOC"].f1 == 1 and report.classes["PER"].f1 == 0
    assert report.averages["micro"].f1 == 0.5
    ```

    Source: Tjong Kim Sang and De Meulder 2003, "Introduction to the CoNLL-2003 Shared Task".
    """

    @classmethod
    def of(cls, labels: Sequence[Any], predictions: Sequence[Any]) -> "EntityReport":
        """Compare predicted entities with the right ones.

        Args:
            labels: for each text its tags, a list of strings in a scheme such as BIO, BIOES or
                BILOU; or its entities, tuples `(start, end, kind)`.
            predictions: the same for what was predicted; or what `recognize` returns.

        Returns:
            An `EntityReport`.

        Raises:
            ValueError: if there is no text or no entity, or the lists or the tags of a text differ
                in length.
        """
        right, found = _rows("labels", labels), _rows("predictions", predictions)
        _check_lengths(right, found, "labels", "predictions")
        tags = [tag for row in (*right, *found) for tag in row if isinstance(tag, str)]
        scheme = TagScheme(list(dict.fromkeys(tags)))
        expected = _spans("labels", right, scheme)
        predicted = _spans("predictions", found, scheme)
        for place, (a, b) in enumerate(zip(right, found, strict=True)):
            if _tagged(a) and _tagged(b) and len(a) != len(b):
                raise ValueError(
                    f"`labels[{place}]` has {len(a)} tags and `predictions[{place}]` {len(b)}."
                )
        known = sorted({kind for *_, kind in (*expected, *predicted)})
        if not known:
            raise ValueError("There is no entity, in `labels` and in `predictions`.")
        counts = [
            [sum(kind == name for *_, kind in spans) for name in known]
            for spans in (expected & predicted, predicted, expected)
        ]
        scores, averages = _scores(*map(np.asarray, counts))
        return cls(dict(zip(known, scores, strict=True)), averages)


def _scores(
    hits: np.ndarray, predicted: np.ndarray, there: np.ndarray
) -> tuple[list[ClassScores], dict[str, ClassScores]]:
    """Return the scores of each class and their averages, from counts `(classes,)`."""
    each = np.stack(_rates(hits, predicted, there))
    scores = [
        ClassScores(*map(float, rates), int(n)) for rates, n in zip(each.T, there, strict=True)
    ]
    total = int(there.sum())
    share = there / total if total else np.zeros(len(there))
    averages = {
        "micro": _rates(hits.sum(), predicted.sum(), there.sum()),
        "macro": each.mean(axis=1),
        "weighted": (each * share).sum(axis=1),
    }
    return scores, {name: ClassScores(*map(float, x), total) for name, x in averages.items()}


def _rates(hits, predicted, there) -> list[np.ndarray]:
    """Return precision, recall and F1, each 0 where it is 0 divided by 0."""
    pairs = ((hits, predicted), (hits, there), (2 * hits, predicted + there))
    return [np.asarray(part, "float64") / np.maximum(whole, 1) for part, whole in pairs]


def _listed(name: str, values: Any) -> list:
    if isinstance(values, (str, bytes, Mapping)) or not (
        isinstance(values, Iterable) or hasattr(values, "__array__")
    ):
        raise ValueError(f"`{name}` must be a list, received {describe(values)}.")
    return listed_column(values)


def _class_list(name: str, values: Any) -> list:
    rows = _listed(name, values)
    for place, value in enumerate(rows):
        if isinstance(value, (tuple, list)) and len(value) == 2:
            rows[place] = value = value[0]  # a class and its probability
        if not isinstance(value, str) and not is_int(value):
            raise ValueError(
                f"`{name}[{place}]` must be a class, a string or an integer, received "
                f"{shorten(value)}."
            )
    return rows


def _known(used: set, classes: Sequence[Any] | None) -> list[Hashable]:
    if classes is None:
        return sorted(used, key=lambda name: (isinstance(name, str), name))
    known = _class_list("classes", classes)
    missing = used.difference(known)
    if missing or len(set(known)) < len(known):
        told = f"lacks {shorten(sorted(missing, key=str))}" if missing else "has a class twice"
        raise ValueError(f"`classes` {told}: give each class of the labels and predictions once.")
    return known


def _rows(name: str, values: Any) -> list[list]:
    return [_listed(f"{name}[{i}]", row) for i, row in enumerate(_listed(name, values))]


def _check_lengths(first: list, second: list, *names: str) -> None:
    if not first or len(first) != len(second):
        raise ValueError(
            f"`{names[0]}` has {len(first)} rows and `{names[1]}` {len(second)}: give as many of "
            "each, and at least one."
        )


def _tagged(row: list) -> bool:
    return bool(row) and isinstance(row[0], str)


def _spans(name: str, rows: list[list], scheme: TagScheme) -> set[tuple]:
    """Return the entities of rows of tags or of spans: row, start, end, kind."""
    found = set()
    for place, row in enumerate(rows):
        if _tagged(row):
            spans = [(span.start, span.end, span.kind) for span in scheme.spans(row)]
        else:
            spans = [_span(f"{name}[{place}][{i}]", span) for i, span in enumerate(row)]
        found.update((place, *span) for span in spans)
    return found


def _span(name: str, given: Any) -> tuple[int, int, str]:
    """Return start, end and kind of a tuple, or of an `Entity`."""
    if hasattr(given, "label"):
        given = (given.start, given.end, given.label)
    if not isinstance(given, (tuple, list)) or len(given) != 3 or not isinstance(given[2], str):
        raise ValueError(
            f"`{name}` must be a tag, or a tuple (start, end, kind), received {shorten(given)}."
        )
    return tuple(given)
