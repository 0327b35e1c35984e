"""Labels, targets and weights of rows that cannot be meant: refused, and named."""

import keras
import numpy as np
import pytest

from tests.tasks.bad_input.conftest import (
    GOOD,
    INF,
    NAN,
    TEXTS,
    check,
)
from tests.tasks.common import classifier

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("verb", ["fit", "evaluate"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, [2]], r"`y\[2\]` must be the number of a class, received \[2\] of type list"),
        ([[0], [1], [2]], r"`y\[0\]` must be the number of a class, received \[0\] of type list"),
        ([0, None, 1], r"`y\[1\]` must be the number of a class, received None of"),
        ([0, 1, NAN], r"`y\[2\]` must be the number of a class, received nan of type float"),
        (np.array([0, NAN, 1]), r"`y\[1\]` must be the number of a class, received nan"),
        (np.array([0, INF, 1]), r"Labels must be from 0 to 2, but `y\[1\]` is inf"),
        ([0, 1, b"1"], r"`y\[2\]` must be the number of a class, received b'1' of type bytes"),
        (np.array([b"a"] * 3), r"`y\[0\]` must be the number of a class, received b'a'"),
        ([0, 1, "2"], r"`y` mixes names and numbers: `y\[0\]` is 0, `y\[2\]` is '2'"),
        (["0", "1", "x"], r"`y\[2\]` is 'x', a name, but the classes have no names"),
        (["0", "1", "3"], r"Labels must be from 0 to 2, but `y\[2\]` is '3'"),
        ([0, 1.5, 2], r"`y\[1\]` must be the number of a class, received 1.5"),
        (np.array([0, 1.5, 2]), r"`y\[1\]` must be the number of a class, received 1.5"),
        ([0, True, 2], r"`y\[1\]` must be the number of a class, received True of type bool"),
        ([True, False, True], r"`y\[0\]` must be the number of a class, received True"),
        ([0, 1, 2**64], r"Labels must be from 0 to 2, but `y\[2\]` is 18446744073709551616"),
        ([0, 1, 3], r"Labels must be from 0 to 2, but `y\[2\]` is 3. Give `num_classes`"),
        ([0, 1, len], r"`y\[2\]` must be the number of a class, received <built-in"),
        (np.zeros((3, 1), int), r"`y` must be one label a text, 3 in all, received shape \(3, 1\)"),
        (np.zeros((3, 3)), r"`y\[0\]` is \[0.0, 0.0, 0.0\], and adds up to 0"),
        (np.zeros((3, 2)), r"`y` must be one label a text, 3 in all, received shape \(3, 2\)"),
        ([0, 1], r"`y` must be one label a text, 3 in all, received shape \(2,\)"),
        ("abc", "`y` must be one label a text, 3 in all, received 'abc' of type str"),
        (5, "`y` must be one label a text, 3 in all, received 5 of type int"),
        ({0: 1, 1: 1, 2: 1}, "`y` must be one label a text, 3 in all.*of type dict"),
        (np.array(1), r"`y` must be one label a text, 3 in all, received shape \(\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_labels(task, verb, labels, message):
    check(message, getattr(task, verb), TEXTS, labels, verbose=0)


def test_labels_by_name(named):
    check(r"`y\[1\]` is 'goood', which is not among.*Did you mean 'good'", named.fit, TEXTS,
          ["bad", "goood", "good"])  # fmt: skip
    check(r"`y\[2\]` is 'b\\nad', which is not among", named.fit, TEXTS, ["bad", "good", "b\nad"])
    check(r"`y` mixes names and numbers: `y\[0\]` is 'bad', `y\[1\]` is 1", named.fit, TEXTS,
          ["bad", 1, 2])  # fmt: skip
    check(r"`y\[1\]` must be the number or the name of a class, received None", named.fit, TEXTS,
          ["bad", None, "good"])  # fmt: skip
    check(r"`y\[0\]` is '.*\.\.\..*', which is not among", named.fit, TEXTS, ["x" * 10_000] * 3)


def test_labels_that_are_right(task, named):
    expected = [0, 2, 1]
    tensor = keras.ops.convert_to_tensor(expected)
    for labels in (
        expected, (0, 2, 1), np.array(expected), np.array(expected, "uint8"), [0.0, 2.0, 1.0],
        np.array([0.0, 2.0, 1.0], "float32"), [np.int64(0), np.float32(2), 1], tensor,
        np.array([0, 2, 1], object), [np.array(0), np.array(2), np.array(1)],
    ):  # fmt: skip
        assert task.make_dataset(TEXTS, labels).values["labels"].tolist() == expected
    for labels in (["bad", "mixed", "good"], np.array(["bad", "mixed", "good"]), expected):
        assert named.make_dataset(TEXTS, labels).values["labels"].tolist() == expected
    two = classifier(num_classes=2)
    for labels in ([True, False, True], np.array([True, False, True])):
        assert two.make_dataset(TEXTS, labels).values["labels"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1], "`y` must be an array, as `x` is, received"),
        (np.array([0.5, 1]), "`y` must hold numbers of classes or tokens, which are integers.*0.5"),
        (np.array([0, NAN]), "`y` must hold numbers of classes or tokens, which are integers.*nan"),
        (np.array(["a", "b"]), "`y` must hold numbers of classes or tokens.*<U1"),
        (np.array([0, None]), "`y` must hold numbers of classes or tokens.*object"),
        (np.array([0, 3]), "`y` must be from 0 to 2, but holds 3"),
        (np.array([0, 1, 1]), r"`y` must have as many rows as `x`, 2, received shape \(3,\)"),
        (np.array(1), "`y` must have as many rows as `x`, 2"),
        ("ab", "`y` must be an array, as `x` is"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_targets_of_arrays(task, y, message):
    check(message, task.fit, GOOD, y, verbose=0)
    check(message, task.evaluate, GOOD, y, verbose=0)
    check(f"`validation_data`: {message}", task.fit, TEXTS, [0, 1, 2], validation_data=(GOOD, y))


def test_targets_of_tokens_and_spans(lm, answerer, masked):
    for y in (np.array([1, 2]), np.ones((2, 4), int), np.ones((2, 3, 1), int)):
        check(r"`y` must have the shape \(2, 3\), received", lm.fit, GOOD, y)
    check("`y` must be from 0 to ", lm.fit, GOOD, np.full((2, 3), -1))
    check("`y` must have the shape .2, 2., received", answerer.fit, GOOD, np.zeros((2, 3), int))
    check("`y` must be from 0 to 2, but holds 3", answerer.fit, GOOD, np.array([[0, 3], [0, 0]]))
    x = {**GOOD, "mask_positions": np.array([[0], [2]])}
    check("`y` must have the shape .2, 1., received", masked.fit, x, np.ones((2, 3), int))
    check("`y` is missing", lm.fit, GOOD)
    check("`y` is missing", answerer.evaluate, GOOD)


def test_other_losses_take_other_targets():
    task = classifier(num_classes=2)
    task.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    assert task.fit(GOOD, np.array([[0.5, 0.5], [1, 0]]), verbose=0).epoch == [0]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            [[0, 1], [None]],
            r"`y\[1\]\[0\]` must be the number or the name of a class, received Non",
        ),
        ([[0, 1], [0.5]], r"`y\[1\]\[0\]` must be the number or the name of a class, received 0.5"),
        ([[0, 1], None], r"`y\[1\]` must be one label a word, 1 in all, received None"),
        ([[0, 1], 0], r"`y\[1\]` must be one label a word, 1 in all, received 0"),
        (
            [[0, 1], ["B-PERS"]],
            r"`y\[1\]\[0\]` is 'B-PERS', which is not among the labels.*Did you mean 'B-PER'",
        ),
    ],
)
def test_labels_of_words(words_task, y, message):
    check(message, words_task.fit, [["a", "man"], ["dogs"]], y, verbose=0)


def test_labels_of_spans(words_task):
    fit = words_task.fit
    check(r"The label 'PERS' of `y\[0\]` is not known.*Did you mean 'PER'", fit, ["a man"],
          [[(0, 1, "PERS")]])  # fmt: skip
    check(r"An entity of `y\[0\]` must be \(start, end, label\), received", fit, ["a man"],
          [[(0, 1.5, "PER")]])  # fmt: skip
    rows = [[(np.int64(0), np.int64(1), "PER")]]
    batch = words_task.make_dataset(["a man"], rows)[0]
    assert batch[1][0, 1] == 1  # B-PER


def test_answers(answerer):
    x = (["who ?"], ["a man rides"])
    for wrong in (NAN, (0, NAN), (0, None), (0.0, 1), (True, 2), b"a", (0, b"a"), {"start": 0}):
        check(r"`y\[0\]` must be None, \(start, end\)", answerer.fit, x, [wrong])
    first, second = (
        answerer.make_dataset(x, [answer])[0][1].tolist()
        for answer in ((2, 5), (np.int64(2), np.int64(5)))
    )
    assert first == second


WEIGHTS = [
    ([1.0, NAN, 1.0], r"`sample_weight\[1\]` is nan: a weight is a finite number of at least 0"),
    ([1.0, 1.0, INF], r"`sample_weight\[2\]` is inf"),
    ([1.0, 1.0, 1e300], r"`sample_weight\[2\]` is inf"),
    ([-1.0, 1.0, 1.0], r"`sample_weight\[0\]` is -1.0"),
    ([1.0, None, 1.0], r"`sample_weight\[1\]` must be a number, received None"),
    ([1.0, "1", 1.0], "`sample_weight.*must be .*number"),
    ([1.0, 1.0], r"`sample_weight` must be one number a \w+, 3 in all, received shape \(2,\)"),
    (np.ones((3, 2)), r"`sample_weight` must be one number a \w+, 3 in all.*\(3, 2\)"),
    ([[1.0], [1.0], [1.0]], r"`sample_weight` must be one number a \w+, 3 in all.*\(3, 1\)"),
    (1.0, r"`sample_weight` must be one number a \w+, 3 in all, received shape \(\)"),
    ("abc", "`sample_weight` must be an array of numbers, received 'abc'"),
    ({0: 1.0}, "`sample_weight` must be an array of numbers, received"),
]


@pytest.mark.parametrize(("weights", "message"), WEIGHTS, ids=lambda value: str(value)[:30])
def test_weights_of_texts(task, words_task, answerer, weights, message):
    for one, x, y in (
        (task, TEXTS, [0, 1, 2]),
        (words_task, [["a", "man", "rides"]] * 3, [[0, 0, 0]] * 3),
        (answerer, (TEXTS, TEXTS), [None] * 3),
    ):
        check(message, one.fit, x, y, sample_weight=weights)
    check(message, task.evaluate, TEXTS, [0, 1, 2], sample_weight=weights)
    validation = (TEXTS, [0, 1, 2], weights)
    check(f"`validation_data`: {message}", task.fit, TEXTS, [0, 1, 2], validation_data=validation)


@pytest.mark.parametrize(("weights", "message"), WEIGHTS, ids=lambda value: str(value)[:30])
def test_weights_of_arrays(task, weights, message):
    x = {"token_ids": np.ones((3, 4), int)}
    check(message, task.fit, x, np.array([0, 1, 2]), sample_weight=weights)


def test_weights_of_tokens(lm):
    x, y = GOOD, np.array([[5, 3, 3]] * 2)
    mask = np.array([[True, True, False]] * 2)
    assert np.isfinite(lm.evaluate(x, y, sample_weight=mask, verbose=0)[0])
    assert np.isfinite(lm.evaluate(x, y, sample_weight=np.ones(2), verbose=0)[0])
    check(
        r"`sample_weight\[0, 1\]` is nan", lm.fit, x, y, sample_weight=np.array([[1, NAN, 1]] * 2)
    )
    check("one number a row, 2 in all", lm.fit, x, y, sample_weight=np.ones((2, 2)))
