"""`class_weight` of `fit`: the weights of targets, whatever the batches come from."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.bad_input.conftest import question_answerer, token_classifier
from tests.tasks.common import ENGLISH, classifier, language_model
from tests.tasks.test_text_embedder import embedder

pytestmark = pytest.mark.one_backend

CLASSES = ["food", "film", "travel"]
NAMES = ["film", "food", "travel", "film"]
NUMBERS = np.array([CLASSES.index(name) for name in NAMES])
WEIGHT = {"food": 3.0, 1: 0.5}  # as keys of two kinds are refused, see below
BY_NAME, BY_NUMBER = {"food": 3.0, "film": 0.5}, {0: 3.0, 1: 0.5}
TABLE = np.array([3.0, 0.5, 1.0])
GIVEN = np.array([1.0, 0.5, 2.0, 1.0])


class Seen(keras.callbacks.Callback):
    """Recorder of the weights after a fit."""

    def on_train_end(self, logs=None):
        self.values = [keras.ops.convert_to_numpy(w) for w in self.model.trainable_weights]


def learned(x, y=None, **options):
    task, seen = classifier(labels=CLASSES, dropout=0.0), Seen()
    task.compile(keras.optimizers.SGD(0.1), task.loss)
    history = task.fit(x, y, shuffle=False, verbose=0, callbacks=[seen], **options).history
    return history["loss"][0], seen.values


def test_weights_of_classes_are_sample_weights():
    arrays = classifier(labels=CLASSES).make_dataset(ENGLISH, NAMES, max_buckets=1)
    x, y = arrays[0]
    rows = arrays.order
    weights = TABLE[NUMBERS] * GIVEN

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x, y, GIVEN[rows]

    class Loader:
        def __iter__(self):
            return iter(Batches())

        __len__ = Batches.__len__

    loss, values = learned(x, y, sample_weight=weights[rows])
    dataset = classifier(labels=CLASSES).make_dataset(ENGLISH, NAMES, GIVEN, max_buckets=1)
    for data, class_weight in (
        ((ENGLISH, NAMES, GIVEN), BY_NAME),
        ((x, y, GIVEN[rows]), BY_NUMBER),
        ((x, np.eye(3, dtype="float32")[y], GIVEN[rows]), BY_NAME),
        ((dataset, None, None), BY_NAME),
        ((Batches(), None, None), BY_NAME),
        ((Loader(), None, None), BY_NUMBER),
        ((((x, y, GIVEN[rows]) for _ in range(1)), None, None), BY_NAME),
        ((iter([(ENGLISH, NAMES, GIVEN)]), None, None), BY_NAME),
    ):
        found = learned(*data[:2], sample_weight=data[2], class_weight=class_weight)
        assert found[0] == pytest.approx(loss, rel=1e-5)
        for one, two in zip(found[1], values, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-5)
    assert dataset[0][2].tolist() == GIVEN[rows].tolist()  # as before


@pytest.mark.each_backend
def test_weights_of_several_right_classes():
    """The weights of the classes of a row, as `torch.nn.BCEWithLogitsLoss(weight=...)`."""
    task = classifier(labels=CLASSES, multi_label=True, dropout=0.0)
    rows = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]], "float32")
    logits = task.predict(ENGLISH, verbose=0).astype("float64")
    table = np.array([2.0, 1.0, 0.0])  # their mean is 1
    losses = np.logaddexp(0, logits) - rows * logits
    task.compile(keras.optimizers.SGD(0.1), task.loss)
    before = keras.ops.convert_to_numpy(task.output_dense.kernel)
    class_weight = {"food": 2.0, "travel": 0.0}
    history = task.fit(ENGLISH, rows, class_weight=class_weight, verbose=0).history
    assert history["loss"][0] == pytest.approx((losses * table).mean(), rel=1e-5)
    changed = keras.ops.convert_to_numpy(task.output_dense.kernel) != before
    assert changed[:, :2].any() and not changed[:, 2].any()
    loss = task.train_on_batch(ENGLISH, rows, class_weight={2: 0.0, 1: 0.0, 0: 0.0})
    assert float(np.ravel(loss)[0]) == 0


def test_weights_of_tokens():
    words, labels = [["a", "man", "rides"], ["dogs"]], [["B-PER", "I-PER", "O"], ["O"]]
    task = token_classifier()
    weigh = task.class_weights({"O": 0.5, "B-PER": 2.0})
    dataset = task.make_dataset(words, labels, sample_weight=[[1.0, 3.0, 2.0], [4.0]])
    _, targets, weights = dataset[0]
    found = weigh(targets, weights)
    expected = {1: [4.0 * 0.5], 3: [1.0 * 2.0, 3.0, 2.0 * 0.5]}
    for row in found:
        assert row[row > 0].tolist() == expected[(row > 0).sum()]
    rows = task.make_dataset(words, labels, sample_weight=[1.0, 2.0])[0][2]
    assert sorted(rows.sum(axis=1).tolist()) == [2.0, 3.0]
    with pytest.raises(ValueError, match=r"`sample_weight\[1\]` has 2 numbers, and `x\[1\]` 1"):
        task.make_dataset(words, labels, sample_weight=[[1.0, 3.0, 2.0], [4.0, 1.0]])
    with pytest.raises(ValueError, match=r"`sample_weight\[0\]\[1\]` is nan"):
        task.make_dataset(words, labels, sample_weight=[[1.0, np.nan, 2.0], [4.0]])
    assert np.isfinite(task.fit(words, labels, class_weight={"O": 0.5}, verbose=0).history["loss"])

    lm = language_model()
    token = lm.tokenizer.encode("dull")[0]
    x, y, mask = lm.make_dataset(ENGLISH)[0]
    expected = lm.test_on_batch(x, y, mask * np.where(y == token, 3.0, 1.0))[0]
    lm.compile(keras.optimizers.SGD(0.0), lm.loss, weighted_metrics=[])
    for key in (token, lm.tokenizer.id_to_token(token)):
        loss = lm.train_on_batch(ENGLISH, class_weight={key: 3.0})
        assert float(np.ravel(loss)[0]) == pytest.approx(float(expected), rel=1e-5)


def test_weights_of_a_student():
    """Keras would take the largest token of a row for its class."""
    teacher = language_model(num_layers=2)
    distiller = kt.training.Distiller(kt.training.smaller(teacher, 1), teacher)
    x, y, mask = teacher.make_dataset(ENGLISH)[0]
    token = int(y[0, 0])
    weights = mask * np.where(y == token, 3.0, 1.0)
    found = []
    for given, class_weight in ((weights, None), (mask, {token: 3.0})):
        distiller.compile(keras.optimizers.SGD(0.0))
        options = {"sample_weight": given, "class_weight": class_weight, "verbose": 0}
        found.append(distiller.fit(x, y, **options).history["hard_loss"][0])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_weights_that_mean_nothing():
    single = classifier(labels=CLASSES)
    for class_weight, message in (
        ({"food": 1.0, "fod": 2.0}, "`a key of class_weight` is 'fod'.*Did you mean 'food'"),
        ({3: 1.0}, "Labels must be from 0 to 2, but `a key of class_weight` is 3"),
        ({-1: 1.0}, "from 0 to 2"),
        ({0.5: 1.0}, "must be the number or the name of a class, received 0.5"),
        (WEIGHT, "`class_weight` mixes names and numbers"),
        ({0: -1.0}, r"`class_weight\[0\]` must be a number of at least 0"),
        ([1.0, 2.0], "`class_weight` must be a dict"),
    ):
        with pytest.raises(ValueError, match=message):
            single.fit(ENGLISH, NAMES, class_weight=class_weight)
        with pytest.raises(ValueError, match=message):
            single.train_on_batch(ENGLISH, NAMES, class_weight=class_weight)
    regression = classifier(num_classes=1)
    for task, x, y in (
        (regression, ENGLISH, [1.0, 2.0, 3.0, 4.0]),
        (question_answerer(), (["who ?"], ["a man rides"]), [(0, 1)]),
        (embedder(), (ENGLISH, ENGLISH), None),
    ):
        with pytest.raises(ValueError, match="`class_weight` gives classes a weight, and"):
            task.fit(x, y, class_weight={0: 1.0})
    with pytest.raises(ValueError, match="the key 'zzz', which is not a token"):
        language_model().fit(ENGLISH, class_weight={"zzz": 1.0})
    with pytest.raises(ValueError, match="`class_weight` must be an integer"):
        language_model().fit(ENGLISH, class_weight={10**6: 1.0})
    several = classifier(labels=CLASSES, multi_label=True)
    several.compile("sgd", several.loss, weighted_metrics=["accuracy"])
    with pytest.raises(ValueError, match="`weighted_metrics` cannot be combined"):
        several.fit(ENGLISH, [["food"]] * 4, class_weight={0: 1.0})
    several.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="needs a separate loss for each class"):
        several.fit(ENGLISH, [["food"]] * 4, class_weight={0: 1.0})


def test_one_class_that_may_be_right():
    """One sigmoid: the loss of `torch.nn.BCEWithLogitsLoss` on one logit."""
    task = classifier(labels=["spam"], multi_label=True, dropout=0.0)
    assert task.num_classes == 1 and not task.is_regression
    logits = task.predict(ENGLISH, verbose=0)[:, 0].astype("float64")
    expected = (np.logaddexp(0, logits) - np.array([1, 0, 0, 1]) * logits).mean()
    for y in ([["spam"], [], [], ["spam"]], [1, 0, 0, 1], np.array([1, 0, 0, 1]),
              [True, False, False, True], [[1], [0], [0], [1]]):  # fmt: skip
        assert task.evaluate(ENGLISH, y, verbose=0)[0] == pytest.approx(expected, rel=1e-5)
    found = task.classify(ENGLISH)
    assert [len(pairs) for pairs in found] == (logits >= 0).astype(int).tolist()
    assert kt.TextClassifier(task.backbone, num_classes=1).is_regression
