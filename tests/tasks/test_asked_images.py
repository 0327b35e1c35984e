"""Answers of a model whose encoder reads the question and attends to the image."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.planning import flops_per_sequence, make_plan
from tests.tasks import images
from tests.tasks.test_image_to_text import QUESTIONS, TEXTS, assert_answers, rows


def config(**values):
    """Make a config of three sides: another encoder attends to the captions' image encoder."""
    both = images.captions()
    source = {**both.flat["encoder"], "num_layers": both.num_layers}
    return both.replace(encoder=None, source=source, share_embeddings=False, **values)


def task(dtype=None, **options):
    tokenizer = kt.Tokenizer.train(TEXTS * 4, vocabulary_size=290)
    backbone = kt.models.Seq2Seq(config(), dtype=dtype)
    return kt.ImageToText(backbone, kt.ImageProcessor(size=(12, 16)), tokenizer, **options)


@pytest.fixture(scope="module")
def learned():
    keras.utils.set_random_seed(0)
    made = task()
    made.compile(keras.optimizers.Adam(1e-2))
    x, questions, answers = rows()
    made.fit((x, questions), answers, epochs=30, batch_size=8, seed=1, verbose=0)
    return made


def test_answers(learned, tmp_path):
    assert_answers(learned, tmp_path)


def test_scores_are_those_of_the_logits(learned):
    x, questions, answers = rows(3)
    scores = learned.score(x, answers, questions, per_token=True)
    tokenizer = learned.tokenizer
    for i in range(3):
        ids = [*tokenizer.encode(answers[i], special_tokens=False), tokenizer.end_id]
        inputs = learned.arrays_of([x[i]])
        inputs["encoder_token_ids"] = np.array([tokenizer.encode(questions[i])], "int32")
        inputs["decoder_token_ids"] = np.array([[learned.start_id, *ids[:-1]]], "int32")
        logits = keras.ops.convert_to_numpy(learned(inputs))[0]
        logits -= logits.max(-1, keepdims=True)
        expected = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[range(len(ids)), ids]
        assert np.abs(scores[i] - expected).max() <= 1e-4
    found = learned.answer(x[0], questions[0], return_details=True)
    assert found.text == answers[0] and found.finish_reason == "end"
    assert np.abs(found.log_probabilities - scores[0][:-1]).max() <= 1e-4


def test_all_of_an_answer_is_learned_and_nothing_of_a_question():
    made = task()
    x, questions, answers = rows(4)
    inputs, targets, weights = made.make_dataset((x, questions), answers)[0]
    for row in range(4):
        asked = inputs["encoder_token_ids"][row][inputs["encoder_padding_mask"][row]].tolist()
        assert asked in [made.tokenizer.encode(question) for question in QUESTIONS]
        assert inputs["decoder_token_ids"][row, 0] == made.start_id
        assert targets[row][weights[row] > 0].tolist()[-1] == made.tokenizer.end_id
    assert (weights.sum(1) == inputs["decoder_padding_mask"].sum(1)).all()


def test_adapters_and_mixed_precision():
    made = task(dtype="mixed_bfloat16")
    made.enable_lora(rank=2)
    x, questions, answers = rows(4)
    before = [np.array(v) for v in made.backbone.non_trainable_weights]
    data = ((x, questions), answers)
    made.fit(*data, verbose=0, validation_data=data)
    for old, new in zip(before, made.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert all(isinstance(text, str) for text in made.answer(x, questions, max_new_tokens=3))


def test_what_each_side_computes_is_collected(learned):
    x = rows(2)[0]
    ids = np.array([learned.tokenizer.encode(QUESTIONS[0])] * 2, "int32")
    inputs = {**learned.arrays_of(x), "encoder_token_ids": ids, "decoder_token_ids": ids[:, :1]}
    _, found = learned.backbone(inputs, collect=("states", "attention"))
    places, length = 13, ids.shape[1]  # Of 12 patches and a class token.
    assert found["source_states"][0].shape[1] == places
    assert found["encoder_cross_attention"][0].shape[-2:] == (length, places)
    assert found["cross_attention"][0].shape[-2:] == (1, length)
    assert found["encoder_attention"][0].shape[-2:] == (length, length)
    assert (keras.ops.convert_to_numpy(found["encoder_attention"][0])[..., 0, -1] > 0).all()
    explanation = learned.explain(x[0], prompts=QUESTIONS[0], saliency="gradient_x_input")
    assert explanation.encoder_attention.shape[-2:] == (length, length)


@pytest.mark.one_backend
def test_a_config_of_three_sides():
    made = config()
    assert [side.kind for side in made.sides] == ["encoder", "encoder", "decoder"]
    assert made.side_names == ("source", "encoder", "decoder")
    assert kt.TransformerConfig.from_json(made.to_json()) == made
    assert made.side("source").stem == images.captions().side("encoder").stem
    with pytest.raises(ValueError, match="`source` needs kind='seq2seq'"):
        made.side("decoder").replace(source={"num_layers": 1})
    with pytest.raises(ValueError, match="A `source` reads images or sound: give it a stem"):
        made.replace(source={"num_layers": 1})
    with pytest.raises(
        ValueError, match="attends to a `source` cannot have `window`, received Window"
    ):
        made.replace(encoder={"window": 3})
    with pytest.raises(ValueError, match="has no side 'source'"):
        images.captions().side("source")


@pytest.mark.one_backend
def test_plans_count_the_states_of_the_image():
    """That the question attends to it costs what its keys and values are, and two products."""
    made = config()
    options = {"target_length": 2, "predicted_tokens": 0, "training": False}
    whole = flops_per_sequence(made, 5, **options)
    places = made.side("source").num_positions
    images_alone = flops_per_sequence(made.side("source"), places, training=False)
    d, f = made.hidden_dim, made.intermediate_dim
    question = 5 * (4 * d * d + 2 * d * f) + 2 * 5 * 5 * d  # itself
    question += 5 * 2 * d * d + places * 2 * d * d + 2 * 5 * places * d  # and of the image
    answer = 2 * (4 * d * d + 2 * d * f) + 2 * 2 * 2 * d
    answer += 2 * 2 * d * d + 5 * 2 * d * d + 2 * 2 * 5 * d
    layers = made.num_layers, made.num_decoder_layers
    assert whole == images_alone + 2 * (layers[0] * question + layers[1] * answer)
    training = make_plan(made, batch_size=2, length=5, target_length=2)
    assert training.parameters == kt.models.Seq2Seq(made).count_params()
    assert training.peak_memory > 16 * training.parameters
    generating = make_plan(made, batch_size=2, length=5, target_length=2, generating=True)
    # Of each layer of the decoder: its own past, and the question.
    assert generating.memory.cache == 2 * layers[1] * 2 * d * (2 + 5) * 4


@pytest.mark.one_backend
def test_wrong_input(learned):
    x, questions, answers = rows(4)
    made = task()
    with pytest.raises(ValueError, match="reads a text beside each image: give `prompts`"):
        made.fit(x, answers)
    with pytest.raises(ValueError, match="reads a text beside each image: give `prompts`"):
        made.caption(x)
    with pytest.raises(ValueError, match="Received 4 images and 2 prompts"):
        made.answer(x, questions[:2])
    with pytest.raises(ValueError, match="positions"):
        made.answer(x, "what is it ? " * 40)
    with pytest.raises(ValueError, match="ImageToText"):
        kt.TextClassifier(made.backbone, num_classes=2)
    with pytest.raises(ValueError, match="'source_images' and 'encoder_token_ids'"):
        made({"decoder_token_ids": np.zeros((1, 2), "int32")})
