"""What is given to training and prediction and cannot be meant: refused, and named."""

import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import classifier, config, language_model, tokenizer, translator

pytestmark = pytest.mark.one_backend

NAN, INF = float("nan"), float("inf")
TEXTS = ["a warm and funny film", "dull", "never dull"]
IDS = np.array([[2, 5, 3], [2, 6, 3]])
GOOD = {"token_ids": IDS, "padding_mask": np.ones((2, 3), bool)}
HALF = "a \ud83d b"  # half of a surrogate pair


@pytest.fixture(scope="module")
def task():
    return classifier(num_classes=3)


@pytest.fixture(scope="module")
def named():
    return classifier(labels=["bad", "good", "mixed"])


@pytest.fixture(scope="module")
def words_task():
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    return kt.TokenClassifier(encoder, words, labels=["O", "B-PER", "I-PER"])


@pytest.fixture(scope="module")
def answerer():
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    return kt.QuestionAnswerer(encoder, words)


@pytest.fixture(scope="module")
def masked():
    words = tokenizer(lowercase=True)
    return kt.MaskedLM(kt.models.Encoder(config("encoder", words)), words)


@pytest.fixture(scope="module")
def lm():
    return language_model()


@pytest.fixture(scope="module")
def mt():
    return translator()


def learned(**values):
    """An encoder with learned positions for 8 tokens and two segments."""
    sizes = {"position": "learned", "max_sequence_length": 8, "segment_vocabulary_size": 2}
    return kt.models.Encoder(config("encoder", tokenizer(lowercase=True), **{**sizes, **values}))


def check(message, function, *args, **kwargs):
    with pytest.raises(ValueError, match=message) as error:
        function(*args, **kwargs)
    text = str(error.value)
    assert (len(text) < 600 and text.isprintable()) or "\n" in text
    text.encode()


def numpy(x):
    return keras.ops.convert_to_numpy(x)


# The dict of arrays.


def test_the_names_of_transformers(task):
    theirs = {
        "input_ids": IDS,
        "attention_mask": np.array([[1, 1, 1], [1, 1, 0]]),
        "token_type_ids": np.array([[0, 0, 1], [0, 1, 1]]),
    }
    ours = {
        "token_ids": IDS,
        "padding_mask": np.array([[True, True, True], [True, True, False]]),
        "segment_ids": theirs["token_type_ids"],
    }
    expected = numpy(task(ours))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        np.testing.assert_array_equal(numpy(task(theirs)), expected)
        states = numpy(task.backbone(theirs))
        np.testing.assert_array_equal(states, numpy(task.backbone(ours)))
        np.testing.assert_allclose(task.predict(theirs, verbose=0), expected, atol=1e-5)
        y = np.array([0, 1])
        losses = [
            task.evaluate(inputs, y, verbose=0, return_dict=True)["loss"]
            for inputs in (theirs, ours)
        ]
        assert losses[0] == pytest.approx(losses[1])

        class Batches(keras.utils.PyDataset):
            """What a loader of Transformers gives."""

            def __len__(self):
                return 1

            def __getitem__(self, index):
                return theirs, y

        loss = task.evaluate(Batches(), verbose=0, return_dict=True)["loss"]
        assert loss == pytest.approx(losses[1])
    with pytest.raises(ValueError, match="`attention_mask` is `padding_mask` here, and both"):
        task.predict({**ours, "attention_mask": ours["padding_mask"]}, verbose=0)


def test_the_names_of_transformers_for_two_sides(mt):
    theirs = {
        "input_ids": IDS,
        "attention_mask": np.array([[1, 1, 1], [1, 1, 0]]),
        "decoder_input_ids": IDS[:, :2],
        "decoder_attention_mask": np.ones((2, 2), int),
    }
    ours = {
        "encoder_token_ids": IDS,
        "encoder_padding_mask": theirs["attention_mask"] == 1,
        "decoder_token_ids": IDS[:, :2],
    }
    np.testing.assert_array_equal(numpy(mt(theirs)), numpy(mt(ours)))


def test_an_adversarial_step_knows_the_mask_by_its_other_name():
    """The batches of a dataset have the names that they have, whatever reads the mask."""
    losses = []
    for name in ("attention_mask", "padding_mask"):
        keras.utils.set_random_seed(3)
        task = classifier(num_classes=2, dropout=0.0)
        task.compile("sgd", task.loss, adversarial_norm=0.5)
        batch = {"token_ids": IDS, name: np.array([[True] * 3, [True, True, False]])}
        losses.append(np.asarray(task.train_on_batch(batch, np.array([0, 1]))).tolist())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("call", ["predict", "evaluate", "__call__", "backbone"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paddding_mask": IDS}, "takes no 'paddding_mask'. Did you mean 'padding_mask'.*It takes"),
        ({"labels": np.array([0, 1])}, "takes no 'labels'.*'token_ids', 'padding_mask', 'segment_"),
        ({5: IDS}, "takes no 5. It takes"),
        ({"x" * 10_000: IDS}, "takes no 'xxxxxxx"),
        ({"token_ids": IDS[0]}, r"`token_ids` must be of shape \(batch, length\), received \(3,\)"),
        ({"token_ids": IDS[..., None]}, r"of shape \(batch, length\), received \(2, 3, 1\)"),
        ({"token_ids": IDS.astype(float)}, "`token_ids` must hold token ids, which are integers"),
        ({"token_ids": "ab"}, "`token_ids` must be an array, received a str"),
        ({"padding_mask": [[1, 1, 1]] * 2}, "`padding_mask` must be an array, received a list"),
        ({"padding_mask": np.ones((2, 4))}, r"`padding_mask` must have the shape.*received \(2, 4"),
        ({"padding_mask": np.ones((1, 3))}, r"must have the shape of `token_ids`, \(2, 3\), rec"),
        ({"padding_mask": np.ones(3)}, r"`padding_mask` must be of shape \(batch, length\)"),
        ({"padding_mask": np.full((2, 3), 0.5)}, "`padding_mask` must be True, or 1, for a token"),
        ({"padding_mask": np.full((2, 3), -1e9)}, "`padding_mask` must be True, or 1, for a token"),
        ({"padding_mask": np.full((2, 3), NAN)}, r"`padding_mask` must be True.*such as \[nan\]"),
        ({"padding_mask": np.full((2, 3), 2)}, r"`padding_mask` must be True.*such as \[2\]"),
        ({"padding_mask": np.full((2, 3), "a")}, "`padding_mask` must be True.*<U1 values"),
        ({"segment_ids": np.full((2, 3), 2)}, "`segment_ids` holds numbers from 2 to 2.* 0 to 1"),
        ({"segment_ids": np.full((2, 3), -1)}, "`segment_ids` holds numbers from -1 to -1"),
        ({"segment_ids": np.zeros((2, 3))}, "`segment_ids` must hold integers, received float64"),
        ({"segment_ids": np.zeros((2, 2), int)}, "`segment_ids` must have the shape of `token_ids"),
        ({"position_ids": np.full((2, 3), -1)}, "`position_ids` holds numbers from -1 to -1"),
        ({"position_ids": np.zeros((2, 3))}, "`position_ids` must hold integers"),
        ({"pack_ids": np.full((2, 3), -2)}, "`pack_ids` holds numbers from -2 to -2"),
        ({"pack_ids": np.full((2, 3), NAN)}, "`pack_ids` must hold integers"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arrays(task, call, changed, message):
    function = {
        "predict": lambda x: task.predict(x, verbose=0),
        "evaluate": lambda x: task.evaluate(x, np.array([0, 1]), verbose=0),
        "__call__": task,
        "backbone": task.backbone,
    }[call]
    check(message, function, {**GOOD, **changed})


def test_positions_that_were_learned():
    backbone = learned()
    assert backbone({**GOOD, "position_ids": np.full((2, 3), 7)}).shape == (2, 3, 16)
    message = "`position_ids` holds numbers from 8 to 8, but the model has the positions 0 to 7"
    check(message, backbone, {**GOOD, "position_ids": np.full((2, 3), 8)})
    assert backbone({**GOOD, "position_ids": np.array([[0, 1, 2]])}).shape == (2, 3, 16)
    # RoBERTa's padding is one before the first.
    roberta = learned(position_padding_id=1, position_offset=2)
    assert roberta({**GOOD, "position_ids": np.full((2, 3), -1)}).shape == (2, 3, 16)


@pytest.mark.each_backend
def test_tensors_are_looked_at_where_they_are_given(task):
    tensors = {name: keras.ops.convert_to_tensor(array) for name, array in GOOD.items()}
    assert task.predict(tensors, verbose=0).shape == (2, 3)
    wrong = keras.ops.full((2, 3), 2, "int32")
    for verb in (task.predict, task.evaluate):
        check("`segment_ids` holds numbers from 2", verb, {**tensors, "segment_ids": wrong})
    check("`padding_mask` must have the shape", task, {**tensors, "padding_mask": wrong[:, :2]})


def test_no_dict():
    backbone = learned()
    check("Encoder takes a dict of arrays, such as 'token_ids', received", backbone, IDS)
    check("such as 'token_ids', received .* Texts are no part of a dict", backbone, ["a man"])
    check("takes no 'labels'.* Labels are `y`", backbone, {"token_ids": IDS, "labels": IDS})
    check("Encoder needs a dict with 'token_ids', received one with \\[\\]", backbone, {})
    check("`token_ids` is empty", classifier(num_classes=2).predict, {"token_ids": IDS[:0]})


def test_two_sides(mt):
    x = {"encoder_token_ids": IDS, "decoder_token_ids": IDS[:, :2]}
    wrong = np.ones((2, 2), bool)
    check("`encoder_padding_mask` must have the shape", mt, {**x, "encoder_padding_mask": wrong})
    wrong = np.ones((2, 3), bool)
    check("`decoder_padding_mask` must have the shape", mt, {**x, "decoder_padding_mask": wrong})
    check("takes no 'token_ids'.*Did you mean", mt, {**x, "token_ids": IDS})
    check("needs a dict with 'encoder_token_ids' and", mt.backbone, {"decoder_token_ids": IDS})


def test_mask_positions(masked):
    x = {**GOOD, "mask_positions": np.array([[0], [2]])}
    assert masked.predict(x, verbose=0).shape[:2] == (2, 1)
    for wrong in ([[3], [0]], [[-1], [0]]):
        check(
            "`mask_positions` holds numbers",
            masked.predict,
            {**x, "mask_positions": np.array(wrong)},
        )
    check("`mask_positions` must hold integers", masked.predict, {**x, "mask_positions": IDS / 2})
    check("Encoder takes no 'mask_positions'", masked.backbone, x)


# Labels.


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
        ([0, 1, "2"], r"`y` has names and numbers: `y\[0\]` is 0, `y\[2\]` is '2'"),
        (["0", "1", "x"], r"`y\[2\]` is 'x', a name, but the classes have none"),
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
    check(r"`y\[1\]` is 'goood', which is none.*Did you mean 'good'", named.fit, TEXTS,
          ["bad", "goood", "good"])  # fmt: skip
    check(r"`y\[2\]` is 'b\\nad', which is none", named.fit, TEXTS, ["bad", "good", "b\nad"])
    check(r"`y` has names and numbers: `y\[0\]` is 'bad', `y\[1\]` is 1", named.fit, TEXTS,
          ["bad", 1, 2])  # fmt: skip
    check(r"`y\[1\]` must be the number or the name of a class, received None", named.fit, TEXTS,
          ["bad", None, "good"])  # fmt: skip
    check(r"`y\[0\]` is '.*\.\.\..*', which is none", named.fit, TEXTS, ["x" * 10_000] * 3)


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
        ([0, 1], "`y` must be an array beside arrays, as `x` is, received"),
        (np.array([0.5, 1]), "`y` must hold numbers of classes or tokens, which are integers.*0.5"),
        (np.array([0, NAN]), "`y` must hold numbers of classes or tokens, which are integers.*nan"),
        (np.array(["a", "b"]), "`y` must hold numbers of classes or tokens.*<U1"),
        (np.array([0, None]), "`y` must hold numbers of classes or tokens.*object"),
        (np.array([0, 3]), "`y` must be from 0 to 2, but holds 3"),
        (np.array([0, 1, 1]), r"`y` must have as many rows as `x`, 2, received shape \(3,\)"),
        (np.array(1), "`y` must have as many rows as `x`, 2"),
        ("ab", "`y` must be an array beside arrays"),
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
        ([[0, 1], ["B-PERS"]], r"`y\[1\]\[0\]` is 'B-PERS', which is none.*Did you mean 'B-PER'"),
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


# Weights.


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
        (words_task, [["a"]] * 3, [[0]] * 3),
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


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: value}, f"`{name}` must be an integer of at least 1")
            for name in ("batch_size", "batch_tokens", "steps_per_epoch")
            for value in ("8", 1.5, 8.0, 0, -1, True, NAN, [8], b"8")
        ),
        *(
            ({"seed": value}, r"`seed` must be an integer from 0 to 2\*\*63 - 1")
            for value in ("x", -1, 1.0, NAN, 2**64, True, [1])
        ),
        ({"epochs": "2"}, "`epochs` must be an integer of at least 0, received '2'"),
        ({"epochs": 1.5}, "`epochs` must be an integer of at least 0, received 1.5"),
        ({"initial_epoch": -1}, "`initial_epoch` must be an integer of at least 0"),
        ({"validation_freq": 0}, "`validation_freq` must be an integer of at least 1"),
        ({"verbose": "yes"}, "`verbose` must be one of 'auto'"),
        ({"class_weight": {0: NAN}}, r"`class_weight\[0\]` must be a number of at least 0"),
        ({"class_weight": [1, 1]}, "`class_weight` must be a dict"),
        ({"batch_size": 8, "batch_tokens": 64}, r"`batch_size` \(8\) is a number of rows and"),
    ],
    ids=str,
)
def test_options_of_fit(task, options, message):
    check(message, task.fit, TEXTS, [0, 1, 2], **options)
    if "batch_tokens" not in options:
        check(message, task.fit, GOOD, np.array([0, 1]), **options)


def test_batch_size_of_other_verbs(task, words_task, answerer, masked):
    for value in ("8", 1.5, 0, True):
        message = "`batch_size` must be an integer of at least 1"
        for verb in (task.predict, task.classify, words_task.recognize):
            check(message, verb, TEXTS, batch_size=value)
        check(message, task.predict, GOOD, batch_size=value)
        check(message, task.evaluate, TEXTS, [0, 1, 2], batch_size=value)
        check(message, answerer.answer, TEXTS, TEXTS, batch_size=value)
        check(message, masked.fill_mask, "a [MASK]", batch_size=value)
        check(message, task.make_dataset, TEXTS, batch_size=value)


def test_options_of_datasets(task, lm, mt, masked):
    for one, x in ((task, (TEXTS,)), (lm, (TEXTS,)), (masked, (TEXTS,)), (mt, (TEXTS, TEXTS))):
        for value in ("5", 0, -1, 2.5, True, NAN, 2**64 * 1.0):
            check("`max_length` must be an integer", one.make_dataset, *x, max_length=value)
        for value in ("x", -1, 1.5, 2**64):
            check("`seed` must be an integer", one.make_dataset, *x, seed=value)
        check("`shuffle` must be True or False", one.make_dataset, *x, shuffle="x")
        check("`max_buckets` must be an integer", one.make_dataset, *x, max_buckets=1.5)
        check("`multiple` must be an integer", one.make_dataset, *x, multiple="8")
        check("is a number of rows and `batch_tokens`", one.make_dataset, *x, batch_size=2,
              batch_tokens=64)  # fmt: skip
        dataset = one.make_dataset(*x, max_length=None, seed=np.int64(3), batch_size=np.int32(2))
        assert type(dataset.seed) is int


def test_numbers_of_numpy(task, masked, answerer):
    for number in (np.int64(2), np.array(2), np.uint8(2)):
        history = task.fit(
            TEXTS, [0, 1, 2], batch_size=number, epochs=number, seed=number, verbose=0
        )
        assert history.epoch == [0, 1]
        assert len(masked.fill_mask("a [MASK]", top_k=number, batch_size=number)) == 2
        assert len(answerer.answer("who ?", "a man rides", top_k=number)) == 2
    assert type(classifier(num_classes=np.int64(2), dropout=np.float32(0.5)).num_classes) is int
    values = config("encoder", tokenizer(lowercase=True), dropout=np.float32(0.25))
    small = values.replace(num_layers=np.int64(2))
    assert (small.num_layers, small.dropout) == (2, 0.25) and type(small.num_layers) is int


# Texts.


def test_half_of_a_surrogate_pair(task, words_task, answerer, masked, lm, mt):
    rows = ["a film", "ä", HALF]
    message = r"`{}` has half of a surrogate pair, '\\ud83d', at character 2"
    here = message.format(r"x\[2\]")
    check(here, task.fit, rows, [0, 1, 2])
    check(here, task.evaluate, rows, [0, 1, 2])
    check(here, task.predict, rows)
    check(here, task.predict, np.array(rows))
    check(here, task.classify, rows)
    check(message.format(r"x\[1\]\[2\]"), task.predict, (TEXTS, rows))
    check(message.format(r"x\[0\]\[2\]"), task.predict, (rows, TEXTS))
    check(f"`validation_data`: {here}", task.fit, TEXTS, [0, 1, 2], validation_data=(rows, [0] * 3))
    check(message.format(r"x\[0\]\[1\]"), words_task.fit, [["a", HALF]], [[0, 0]])
    check(message.format(r"texts\[2\]"), words_task.recognize, rows)
    check(message.format(r"contexts\[2\]"), answerer.answer, TEXTS, rows)
    check(message.format(r"x\[1\]\[2\]"), answerer.fit, (TEXTS, rows), [None] * 3)
    check(here, masked.fit, rows)
    check(message.format(r"texts\[2\]"), masked.fill_mask, rows)
    check(here, lm.fit, rows)
    check(message.format(r"y\[2\]"), mt.fit, TEXTS, rows)
    check(message.format(r"labels\[1\]"), classifier, labels=["a", HALF])
    words = tokenizer(lowercase=True)
    embedder = kt.TextEmbedder(kt.models.Encoder(config("encoder", words)), words)
    check(here, embedder.predict, rows)


# Constructors and verbs that are not of Keras.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: kt.TextClassifier(b, num_classes=2.5), "`num_classes` must be an integer"),
        (lambda b: kt.TextClassifier(b, num_classes=2**64), "`num_classes` must be an integer"),
        (lambda b: kt.TextClassifier(b, num_classes=2, dropout="x"), "`dropout` must be a number"),
        (lambda b: kt.TextClassifier(b, num_classes=2, dropout=NAN), "`dropout` must be a number"),
        (lambda b: kt.TextClassifier(b, num_classes=2, dropout=1), "`dropout` must be a number"),
        (lambda b: kt.TextClassifier(b, labels=5), "`labels` must be a list of strings"),
        (lambda b: kt.TextClassifier(b, labels=[1, 2]), "`labels` must be a list of strings"),
        (lambda b: kt.QuestionAnswerer(b, dropout=-0.5), "`dropout` must be a number"),
        (lambda b: kt.MaskedLM(b, mask_rate=NAN), "`mask_rate` must be a number between 0 and 1"),
        (lambda b: kt.MaskedLM(b, normalization_epsilon="x"), "`normalization_epsilon` must be a"),
        (lambda b: kt.TextEmbedder(b, max_length="4"), "`max_length` must be an integer from 1 to"),
        (
            lambda b: kt.TextEmbedder(b, max_length=99),
            "`max_length` must be an integer from 1 to 8",
        ),
        (lambda b: kt.TextEmbedder(b, normalize="x"), "`normalize` must be True or False"),
    ],
)
def test_constructors(make, message):
    check(message, make, learned())


def test_adapters(task):
    for rank in (0, 1.5, "4", True, NAN):
        check("`rank` must be an integer of at least 1", task.enable_lora, rank)
    for alpha in (0, NAN, INF, "x", -1):
        check("`alpha` must be a number above 0", task.enable_lora, 2, alpha)
    for targets in ("query", [], None, [5], ["nothing"], 5):
        check("`targets` must be a list of dense layers", task.enable_lora, 2, targets=targets)
    for layers in (-1, "1", 1.0, NAN, 9):
        check("`layers` must be an integer from 0 to 1", task.freeze, layers)
    for path in (None, "", 5, "a\0b", "x" * 10_000):
        check(
            "`path` (must be a path|is empty|has characters|is too long)", task.load_adapter, path
        )
