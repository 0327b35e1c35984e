"""Families whose tokens see a part of the others, on inputs so long that it matters."""

import numpy as np
import pytest

from keras_transformer import QuestionAnswerer, TextClassifier
from keras_transformer.checkpoints import lengthen, load_backbone
from keras_transformer.checkpoints.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.test_families import saved

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

LENGTH = 230  # No window and no block divides it, and blocks begin to save something.


def batch(reference, length=LENGTH):
    """Rows of several lengths, as ours and as theirs."""
    pad = reference.config.pad_token_id
    rng = np.random.default_rng(0)
    mask = np.arange(length) < np.array([[length], [length - 40]])
    ids = np.where(mask, rng.integers(5, 61, mask.shape), pad).astype("int32")
    return ids, mask


def theirs_of(reference, ids, mask, **further):
    given = {"input_ids": ids, "attention_mask": mask, **further}
    with torch.no_grad():
        return reference(**{name: torch.tensor(x).long() for name, x in given.items()})


def assert_same(ours, theirs, mask, atol=2e-5):
    assert np.abs(to_numpy(ours) - theirs.numpy())[mask].max() <= atol


def mask_of(places, shape):
    return np.array([[i in row for i in range(shape[1])] for row in places])


@pytest.mark.parametrize("number", range(3))
def test_longformer(tmp_path, number):
    """Without tokens that see all, and with some that differ from row to row."""
    reference = families.make("longformer", number, "Model", max_position_embeddings=240)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    ours = {"token_ids": ids, "padding_mask": mask}
    assert_same(backbone(ours), theirs_of(reference, ids, mask)[0], mask)
    places = np.array([[0, 30, 200], [7, -1, -1]], "int32")
    found = backbone({**ours, "global_positions": places})
    of_all = {"global_attention_mask": mask_of(places, ids.shape)}
    assert_same(found, theirs_of(reference, ids, mask, **of_all)[0], mask)


@pytest.mark.parametrize("number", range(3))
def test_big_bird(tmp_path, number):
    reference = families.make("big_bird", number, "Model", max_position_embeddings=240)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    expected = theirs_of(reference, ids, mask)[0]
    assert_same(backbone({"token_ids": ids, "padding_mask": mask}), expected, mask)


def test_led(tmp_path):
    values = {"max_encoder_position_embeddings": 240}
    reference = families.make("led", 2, "ForConditionalGeneration", **values)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    places = np.array([[0, 30], [7, -1]], "int32")
    targets = ids[:, :9]
    ours = {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": targets}
    for own, further in (
        ({}, {}),
        (
            {"encoder_global_positions": places},
            {"global_attention_mask": mask_of(places, ids.shape)},
        ),
    ):
        expected = theirs_of(reference, ids, mask, decoder_input_ids=targets, **further)[0]
        logits = backbone.logits(backbone(ours | own))
        assert_same(logits, expected, np.ones(targets.shape, bool), atol=1e-4)


@pytest.mark.parametrize("number", range(3))
def test_longt5(tmp_path, number):
    reference = families.make("longt5", number, "ForConditionalGeneration")
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    targets = ids[:, :9]
    ours = {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": targets}
    expected = theirs_of(reference, ids, mask, decoder_input_ids=targets)[0]
    logits = backbone.logits(backbone(ours))
    assert_same(logits, expected, np.ones(targets.shape, bool), atol=1e-4)


@pytest.mark.parametrize("model_type", ["longformer", "big_bird"])
def test_a_classifier_sets_the_tokens_that_see_all(tmp_path, model_type):
    reference = families.make(
        model_type, 0, "ForSequenceClassification", max_position_embeddings=240
    )
    task = TextClassifier.from_preset(saved(reference, tmp_path))
    ids, mask = batch(reference)
    expected = theirs_of(reference, ids, mask)[0]
    found = task({"token_ids": ids, "padding_mask": mask})
    assert_same(found, expected, np.ones(2, bool), atol=1e-4)


def test_a_question_sees_all(tmp_path):
    values = {"max_position_embeddings": 240, "sep_token_id": 2}
    reference = families.make("longformer", 1, "ForQuestionAnswering", **values)
    task = QuestionAnswerer.from_preset(saved(reference, tmp_path))
    assert task.separator_id == 2
    ids, mask = batch(reference)
    for row, place in ((0, 11), (1, 3)):
        ids[row, [place, place + 1, mask[row].sum() - 1]] = 2
    expected = theirs_of(reference, ids, mask)
    found = to_numpy(task({"token_ids": ids, "padding_mask": mask}))
    for column, logits in enumerate((expected.start_logits, expected.end_logits)):
        assert_same(found[..., column], logits, mask, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_lengthened_models_keep_what_they_say_of_short_texts(tmp_path, model_type):
    reference = families.make(model_type, 0, "Model")
    short = load_backbone(saved(reference, tmp_path))
    limit = short.config.max_sequence_length
    ids, mask = families.batch(reference.config.pad_token_id, length=limit)
    inputs = {"token_ids": ids, "padding_mask": mask}
    expected = torch.tensor(to_numpy(short(inputs)))
    long = lengthen(short, 3 * limit + 5, window=limit, global_projection=True)
    assert_same(long(inputs), expected, mask)
    of_all = {"global_positions": np.zeros((1, 1), "int32")}
    assert_same(long(inputs | of_all), expected, mask)
    rows = np.tile(ids, (1, 3))
    assert np.isfinite(to_numpy(long({"token_ids": np.maximum(rows, 2)}))).all()
    table = to_numpy(long.stem.position_embedding.weights[0])
    offset = short.config.position_offset
    np.testing.assert_array_equal(table[offset : offset + limit], table[offset + limit :][:limit])


@pytest.mark.one_backend
def test_what_cannot_be_lengthened(tmp_path):
    short = load_backbone(saved(families.make("bert", 0, "Model"), tmp_path / "bert"))
    with pytest.raises(ValueError, match="must be more than that of the backbone, 24"):
        lengthen(short, 24)
    rotary = load_backbone(saved(families.make("nomic_bert", 0, "Model"), tmp_path / "nomic"))
    with pytest.raises(ValueError, match="learned positions of an encoder"):
        lengthen(rotary, 100)


@pytest.mark.one_backend
def test_places_that_a_row_has_not(tmp_path):
    backbone = load_backbone(saved(families.make("longformer", 0, "Model"), tmp_path))
    ids = np.full((2, 5), 7, "int32")
    with pytest.raises(
        ValueError, match="`global_positions` holds numbers from 0 to 7, but .* places -1 to 4"
    ):
        backbone({"token_ids": ids, "global_positions": np.array([[7], [0]])})
    with pytest.raises(ValueError, match="global_positions.*integers"):
        backbone({"token_ids": ids, "global_positions": np.array([[0.5], [0.0]])})
