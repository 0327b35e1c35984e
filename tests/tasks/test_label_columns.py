"""A column of labels has one reading, by name first, from whatever source it comes."""

import functools

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tasks.data.streams import held
from tests.tasks import images
from tests.tasks.common import ENGLISH, classifier

pytestmark = pytest.mark.one_backend

TEXTS = ENGLISH
DIGITS = [
    # names, labels, the class of each: by name first
    (["1", "2", "3", "4"], [1, 2, 3, 1], [0, 1, 2, 0]),
    (["1", "0"], [1, 0, 0, 1], [0, 1, 1, 0]),
    (["10", "20"], [20, 10, 10, 20], [1, 0, 0, 1]),
    (["0.5", "1.0"], [0.5, 1.0, 1.0, 0.5], [0, 1, 1, 0]),
    (["True", "False"], [True, False, False, True], [0, 1, 1, 0]),
    (["10", "20"], [1, 0, 0, 1], [1, 0, 0, 1]),  # not one of them is a name
]


@pytest.mark.parametrize(("names", "labels", "expected"), DIGITS, ids=str)
def test_names_that_are_numbers_mean_the_same_from_every_source(names, labels, expected, tmp_path):
    pd, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    task, texts = classifier(labels=names), TEXTS[:4]
    frame = pd.DataFrame({"text": texts, "label": labels})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    again = pd.read_csv(tmp_path / "rows.csv")
    rows = datasets.Dataset.from_dict({"text": texts, "label": labels})
    read = functools.partial(kt.data.read, x="text", y="label", cache=tmp_path / "cache")
    found = [
        task.make_dataset(x, y).values["labels"].tolist()
        for x, y in (
            (texts, labels), (texts, list(map(str, labels))), (texts, np.array(labels)),
            (again["text"], again["label"]), (rows["text"], rows["label"]),
            *((read(source), None) for source in (tmp_path / "rows.csv", again, rows)),
            (read(tmp_path / "rows.jsonl"), None),
        )
    ]  # fmt: skip
    assert found == [expected] * len(found)
    streams = (iter([(texts, labels)]), rows.to_iterable_dataset(), zip(texts, labels, strict=True))
    for stream in streams:
        inputs, numbers = held(task, stream)[0]
        assert _in_order(task, texts, inputs, numbers) == expected


def _in_order(task, texts, inputs, values) -> list:
    """The values of a batch in the order of its texts."""
    pairs = zip(inputs["token_ids"], inputs["padding_mask"], strict=True)
    places = [row[mask].tolist() for row, mask in pairs]
    return [values[places.index(row)].tolist() for row in task.tokenizer.encode_batch(texts)]


def test_names_of_classes_that_a_data_set_has():
    """Numbers are those of the data set's own names, in whatever order the task has them."""
    datasets = pytest.importorskip("datasets")
    task, texts = classifier(labels=["2", "0", "1"]), TEXTS[:3]
    names = datasets.ClassLabel(names=["0", "1", "2"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = datasets.Dataset.from_dict({"text": texts, "label": [0, 1, 2]}, features)
    for data in (held(task, rows), kt.data.read(rows, y="label")):
        assert task.make_dataset(data).values["labels"].tolist() == [1, 2, 0]

    class OfFolders:  # as `keras.utils.text_dataset_from_directory` makes them
        class_names = ("0", "1", "2")

        def __init__(self, y):
            self.y = y

        def __iter__(self):
            return iter([(texts, self.y)])

    for y, expected in (
        ([0, 1, 2], [1, 2, 0]),
        (np.eye(3, dtype="float32"), [1, 2, 0]),  # label_mode="categorical"
        ([[0.0], [1.0], [1.0]], [1, 2, 2]),  # "binary"
    ):
        batch = held(task, OfFolders(y))[0]
        assert _in_order(task, texts, *batch) == expected


def test_a_column_that_can_be_read_in_two_ways(tmp_path):
    for names, labels in (
        (["1", "2", "3", "4"], [0, 1, 2, 3]),
        (["1", "2", "3"], [0, 0, 0]),  # so that each batch of a stream is read alike
        (["1", "2", "3"], ["0", "2", "1"]),
        (["10", "20", "30"], [0, 10, 20]),
        (["01", "1"], [1, 1]),
    ):
        task, texts = classifier(labels=names), TEXTS[: len(labels)]
        with pytest.raises(ValueError, match="is not a name and|could mean each of the names"):
            task.make_dataset(texts, labels)
    with pytest.raises(
        ValueError, match=r"`y\[0\]`, 0, is not a name and the number of '1'; `y\[1\]`"
    ):
        classifier(labels=["1", "2"]).make_dataset(TEXTS[:2], [0, 1])
    several = classifier(labels=["1", "2", "3"], multi_label=True)
    assert several.make_dataset(TEXTS[:2], [[1, 3], [2]]).values["labels"].tolist() == [
        [1, 0, 1], [0, 1, 0]
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"`y\[1\]\[0\]`, 0, is not a name"):
        several.make_dataset(TEXTS[:2], [[1, 3], [0]])
    with pytest.raises(ValueError, match="is ambiguous"):
        classifier(labels=["1", "0"], multi_label=True).make_dataset(TEXTS[:2], [[0, 1], [1, 0]])


def test_every_classifier_reads_alike():
    pictures, _ = images.pictures(4)
    task = images.classifier(labels=["1", "0"])
    assert task.make_dataset(pictures, [1, 0, 0, 1]).values["labels"].tolist() == [0, 1, 1, 0]
    labeler = kt.SequenceLabeler.for_rows(["ACG"], labels=["1", "0"])
    for labels in (["010"], [[0, 1, 0]], [["0", "1", "0"]], [np.array([0, 1, 0])]):
        assert labeler.make_dataset(["ACG"], labels)[0][1][0, :3].tolist() == [1, 0, 1]
    rows = kt.SequenceLabeler.for_rows(["ACG"], labels=["1", "2"])
    with pytest.raises(ValueError, match=r"`y\[1\]\[2\]`, 0, is not a name and the number of '1'"):
        rows.make_dataset(["ACG"] * 2, [[1, 2, 1], [1, 1, 0]])  # one column, in all its rows
    spans = [[(0, 2, 1)], [(1, 3, "2")]]
    tagger = kt.SequenceLabeler.for_rows(["ACG"], labels=["O", "B-2", "I-2", "B-1", "I-1"])
    targets = tagger.make_dataset(["ACG", "CGA"], spans)[0][1][:, :3].tolist()
    assert sorted(targets) == [[0, 1, 2], [3, 4, 0]]
