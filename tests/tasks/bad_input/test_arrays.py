"""Dicts of arrays given to tasks: the names that are known, and what cannot be meant."""

import warnings

import keras
import numpy as np
import pytest

from tests.tasks.bad_input.conftest import (
    GOOD,
    IDS,
    NAN,
    check,
    learned,
    numpy,
)
from tests.tasks.common import classifier

pytestmark = pytest.mark.one_backend


def test_open_files(task, tmp_path):
    (tmp_path / "texts.txt").write_text("good\nbad\n")
    for mode, instead in (("r", r"`file.read\(\).splitlines\(\)`"), ("rb", "path of the file")):
        with open(tmp_path / "texts.txt", mode) as file:
            for call in (task.predict, task.evaluate, task.fit):
                with pytest.raises(ValueError, match=f"takes strings, received .*{instead}"):
                    call(file, verbose=0)
            assert file.tell() == 0


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
            """Batches as a loader of Transformers gives them."""

            def __len__(self):
                return 1

            def __getitem__(self, index):
                return theirs, y

        loss = task.evaluate(Batches(), verbose=0, return_dict=True)["loss"]
        assert loss == pytest.approx(losses[1])
    with pytest.raises(ValueError, match="are two names of one array"):
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
    check("such as 'token_ids', received .* Texts do not go into a dict", backbone, ["a man"])
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
