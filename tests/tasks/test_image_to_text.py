"""Text of images: captions and answers, the verbs, saving, scores, wrong input."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks import images

TEXTS = ["a dark square", "a bright square", "what is it ?", "how bright ?"]
QUESTIONS = ["what is it ?", "how bright ?"]


def task(dtype=None, **options):
    tokenizer = kt.Tokenizer.train(TEXTS * 4, vocabulary_size=290)
    backbone = kt.models.Seq2Seq(images.captions(), dtype=dtype)
    return kt.ImageToText(backbone, kt.ImageProcessor(size=(12, 16)), tokenizer, **options)


def rows(count=16):
    """Images, questions and answers."""
    x, labels = images.pictures(count)
    questions = [QUESTIONS[i // 2 % 2] for i in range(count)]
    answers = [
        f"a {label} square" if question == QUESTIONS[0] else label
        for label, question in zip(labels, questions, strict=True)
    ]
    return x, questions, answers


@pytest.fixture(scope="module")
def learned():
    keras.utils.set_random_seed(0)
    made = task()
    made.compile(keras.optimizers.Adam(1e-2))
    x, questions, answers = rows()
    made.fit((x, questions), answers, epochs=30, batch_size=8, seed=1, verbose=0)
    return made


def assert_answers(learned, tmp_path):
    """Check what a model has learned from all of `rows`, and saved."""
    x, questions, answers = rows()
    results = learned.evaluate((x, questions), answers, verbose=0, return_dict=True)
    assert results["accuracy"] == 1
    assert learned.answer(x, questions) == answers
    assert learned.answer(x[1], QUESTIONS[1]) == "bright"
    assert learned.answer(x, questions, batch_size=3, sampler="beam") == answers
    pieces = list(learned.generate(x[1], QUESTIONS[0], stream=True))
    assert "".join(pieces) == "a bright square" and len(pieces) > 1

    learned.save_to_preset(tmp_path / "preset")
    learned.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == learned.task_values()
        assert again.answer(x[:2], QUESTIONS[1]) == ["dark", "bright"]


def test_answers(learned, tmp_path):
    assert_answers(learned, tmp_path)


def test_scores_are_those_of_the_logits(learned):
    x, questions, answers = rows(3)
    scores = learned.score(x, answers, questions, per_token=True)
    tokenizer = learned.tokenizer
    for i in range(3):
        start = learned.prompt_rows([questions[i]], 1)[0]
        ids = [*tokenizer.encode(answers[i], special_tokens=False), tokenizer.end_id]
        inputs = learned.arrays_of([x[i]])
        inputs["decoder_token_ids"] = np.array([[*start, *ids[:-1]]], "int32")
        logits = keras.ops.convert_to_numpy(learned(inputs))[0, len(start) - 1 :]
        logits -= logits.max(-1, keepdims=True)
        expected = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[range(len(ids)), ids]
        assert np.abs(scores[i] - expected).max() <= 1e-4
    alone = learned.score(x[0], answers[0], questions[0])
    assert abs(alone - scores[0].sum()) <= 1e-4
    found = learned.answer(x[0], questions[0], return_details=True)
    assert found.text == answers[0] and found.finish_reason == "end"
    assert np.abs(found.log_probabilities - scores[0][:-1]).max() <= 1e-4


def test_prompts_are_not_learned():
    made = task()
    x, questions, answers = rows(4)
    inputs, targets, weights = made.make_dataset((x, questions), answers)[0]
    ends = made.tokenizer.end_id
    for row in range(4):
        learned = targets[row][weights[row] > 0].tolist()
        assert learned[-1] == ends
        assert made.tokenizer.decode(learned[:-1]) in answers
        assert inputs["decoder_token_ids"][row, 0] == made.start_id
    plain = made.make_dataset(x, answers)[0]
    assert (plain[2].sum(1) == plain[0]["decoder_padding_mask"].sum(1)).all()


def test_adapters_and_mixed_precision():
    made = task(dtype="mixed_bfloat16")
    made.enable_lora(rank=2)
    x, _, answers = rows(4)
    before = [np.array(v) for v in made.backbone.non_trainable_weights]
    made.fit(x, answers, verbose=0, validation_data=(x, answers))
    for old, new in zip(before, made.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert all(isinstance(text, str) for text in made.caption(x, max_new_tokens=3))


@pytest.mark.one_backend
def test_a_limit_that_nobody_asked_for_is_what_the_model_can(learned):
    """Not an error, as a limit is that somebody asks for."""
    learned.caption(rows(1)[0])
    with pytest.raises(ValueError, match="max_new_tokens=64 needs more positions than the model"):
        learned.caption(rows(1)[0], max_new_tokens=64)


@pytest.mark.one_backend
def test_wrong_input(learned):
    x, questions, answers = rows(4)
    made = task()
    for given, y, message in (
        (x, None, "learns from texts: give `y`, one for each image"),
        (x, answers[:2], "Received 4 images and 2 texts"),
        ((x, questions[:2]), answers, "Received 4 images and 2 prompts"),
        ([*x[:3], 7], answers, r"`x\[3\]` must be an image"),
        (x, [*answers[:2], " ", "no"], r"`y\[2\]` is empty: ' '"),
    ):
        with pytest.raises(ValueError, match=message):
            made.fit(given, y, verbose=0)
    with pytest.raises(ValueError, match="must be one number an image, 4 in all"):
        made.fit(x, answers, sample_weight=np.ones(3), verbose=0)
    dataset = made.make_dataset((x, questions), answers)
    plain, order = dataset[0][2], dataset.order
    lengths = plain.sum(axis=1).astype(int)[np.argsort(order)]
    of_tokens = [[1.0 + i] * n for i, n in enumerate(lengths)]
    for given in (of_tokens, [1.0, 2.0, 3.0, 4.0]):
        _, _, weights = made.make_dataset((x, questions), answers, given)[0]
        assert np.array_equal(weights, plain * (1.0 + order[:, None]))
    with pytest.raises(ValueError, match="`max_length`=2 leaves no room after the prompts"):
        made.fit((x, questions), answers, max_length=2, verbose=0)
    with pytest.raises(TypeError, match=r"generate\(\) got an unexpected .* 'guidance_scale'"):
        learned.caption(x, guidance_scale=2)
    with pytest.raises(ValueError, match="`tokenizer` is missing"):
        kt.ImageToText(kt.models.Seq2Seq(images.captions()), kt.ImageProcessor(size=(12, 16)))
    with pytest.raises(ValueError, match="needs a backbone whose encoder reads images: give the"):
        values = {**images.captions().stated(), "encoder": None}
        kt.ImageToText(kt.models.Seq2Seq(kt.TransformerConfig.from_dict(values)))
    with pytest.raises(ValueError, match="has no image processor and tokenizer and takes arrays"):
        kt.ImageToText(kt.models.Seq2Seq(images.captions())).caption(x)
    with pytest.raises(ValueError, match="`processor` must be an ImageProcessor"):
        kt.ImageToText(kt.models.Seq2Seq(images.captions()), kt.AudioProcessor(), learned.tokenizer)
