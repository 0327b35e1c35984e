"""Reports against scikit-learn's, seqeval's and nervaluate's of the same labels."""

import numpy as np
import pytest

from keras_transformer.evaluating import ClassificationReport, EntityReport

pytestmark = pytest.mark.backend_independent

RANDOM = np.random.default_rng(0)
NAMES = np.array(["cat", "dog", "owl", "yak"])


def test_classes_as_scikit_learn_reports_them():
    metrics = pytest.importorskip("sklearn.metrics")
    labels = NAMES[RANDOM.integers(0, 3, 60)]  # no yak is right
    predictions = NAMES[RANDOM.integers(0, 4, 60)]
    predictions[predictions == "owl"] = "dog"  # no owl is found
    report = ClassificationReport.of(labels, predictions)
    expected = metrics.classification_report(
        labels, predictions, output_dict=True, zero_division=0.0
    )
    expected = {name: values for name, values in expected.items() if name != "accuracy"}
    for name, values in expected.items():
        found = report.numbers[name]
        for key, ours in (("precision",) * 2, ("recall",) * 2, ("f1-score", "f1")):
            assert found[ours] == pytest.approx(values[key], abs=1e-12)
        assert found["support"] == values["support"]
    micro = metrics.precision_recall_fscore_support(labels, predictions, average="micro")
    assert report.averages["micro"][:3] == pytest.approx(micro[:3])
    assert report.accuracy == pytest.approx(metrics.accuracy_score(labels, predictions))
    expected = metrics.confusion_matrix(labels, predictions)
    np.testing.assert_array_equal(report.confusion, expected)
    assert list(report.classes) == sorted(NAMES)


def test_what_classify_returns():
    pairs = [("cat", 0.9), ("dog", 0.6)]
    report = ClassificationReport.of(["cat", "cat"], pairs, classes=["dog", "cat", "owl"])
    assert report.confusion.tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert list(report.classes) == ["dog", "cat", "owl"]
    assert ClassificationReport.of([0, 1, 10], [0, 1, 2]).accuracy == pytest.approx(2 / 3)
    shown = str(report)
    assert "accuracy  0.5000" in shown and "macro avg" in shown and "label \\ predicted" in shown


def test_entities_as_nervaluate_reports_them():
    nervaluate = pytest.importorskip("nervaluate", reason="needs nervaluate")
    tags = np.array(["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG"])
    labels = [_legal(RANDOM.choice(tags, 20)) for _ in range(20)]
    predictions = [
        _legal(np.where(RANDOM.random(20) < 0.7, row, RANDOM.choice(tags, 20))) for row in labels
    ]
    kinds = ["PER", "LOC", "ORG"]
    found = nervaluate.Evaluator(labels, predictions, tags=kinds, loader="list").evaluate()
    report = EntityReport.of(labels, predictions)
    overall = found["overall"]["strict"]
    pairs = [(report.averages["micro"], overall)]
    pairs += [(report.classes[kind], found["entities"][kind]["strict"]) for kind in kinds]
    for ours, theirs in pairs:
        assert ours.precision == pytest.approx(theirs.precision)
        assert ours.recall == pytest.approx(theirs.recall)
        assert ours.f1 == pytest.approx(theirs.f1)
    assert 0 < overall.f1 < 1
    means = np.mean([x.f1 for x in report.classes.values()])
    assert report.averages["macro"].f1 == pytest.approx(means)


@pytest.mark.parametrize(
    ("letters", "options"),
    [("BI", {}), ("BIES", {}), ("BILU", {"mode": "strict", "scheme": "BILOU"})],
    ids=["BIO", "BIOES", "BILOU"],
)
def test_entities_as_seqeval_reports_them(letters, options):
    """Tags are drawn: in BIO and BIOES an entity may begin in the middle, or not end."""
    metrics = pytest.importorskip("seqeval.metrics", reason="needs seqeval")
    schemes = pytest.importorskip("seqeval.scheme")
    options = {k: getattr(schemes, v) if k == "scheme" else v for k, v in options.items()}
    random = np.random.default_rng(1)
    tags = np.array(["O", *(f"{letter}-{kind}" for kind in ("PER", "LOC") for letter in letters)])
    labels = [random.choice(tags, 12).tolist() for _ in range(60)]
    predictions = [
        np.where(random.random(12) < 0.7, row, random.choice(tags, 12)).tolist() for row in labels
    ]
    expected = metrics.classification_report(
        labels, predictions, output_dict=True, zero_division=0, **options
    )
    found = EntityReport.of(labels, predictions).numbers
    for name, values in expected.items():
        for key, ours in (("precision",) * 2, ("recall",) * 2, ("f1-score", "f1")):
            assert found[name][ours] == pytest.approx(values[key], abs=1e-12), (name, key)
        assert found[name]["support"] == values["support"] > 0
    assert 0 < expected["micro avg"]["f1-score"] < 1


def test_entities_of_tags_and_of_spans_are_the_same():
    labels = [["B-PER", "I-PER", "O", "S-LOC"], ["O", "O"]]
    predictions = [[(0, 2, "PER"), (2, 3, "LOC")], []]
    bioes = [["B-PER", "E-PER", "O", "S-LOC"], ["O", "O"]]
    report = EntityReport.of(bioes, predictions)
    assert report.classes["PER"].f1 == 1 and report.classes["LOC"].f1 == 0
    spans = [[(0, 2, "PER"), (3, 4, "LOC")], []]
    assert EntityReport.of(spans, predictions).numbers == report.numbers
    assert EntityReport.of(labels, labels).averages["micro"].f1 == 1


@pytest.mark.parametrize(
    ("report", "labels", "predictions", "told"),
    [
        (ClassificationReport, [], [], "at least one"),
        (ClassificationReport, ["a"], ["a", "b"], "1 rows and `predictions` 2"),
        (ClassificationReport, ["a"], [0.5], r"predictions\[0\]"),
        (ClassificationReport, "a", "a", "must be a list"),
        (EntityReport, [["O"]], [["O"]], "no entity"),
        (EntityReport, [["B-A", "O"]], [["B-A"]], "has 2 tags"),
        (EntityReport, [[(1, 2)]], [["B-A"]], r"labels\[0\]\[0\]"),
    ],
)
def test_errors(report, labels, predictions, told):
    with pytest.raises(ValueError, match=told):
        report.of(labels, predictions)


def test_a_class_that_is_not_listed():
    with pytest.raises(ValueError, match="lacks"):
        ClassificationReport.of(["a"], ["b"], classes=["a"])


def _legal(row):
    """Tags of BIO in which each I follows its own kind: others are read in several ways."""
    made, before = [], "O"
    for tag in map(str, row):
        if tag.startswith("I-") and before[2:] != tag[2:]:
            tag = "B-" + tag[2:]
        made.append(tag)
        before = tag
    return made
