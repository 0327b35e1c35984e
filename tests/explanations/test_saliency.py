"""Saliency of each token: gradients of all backends, and the sum of integrated gradients."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.tasks import common, duals

TEXT = "a warm and funny film"


def moved(task, text, factor):
    """The outputs with the token embeddings times a factor."""
    ids = np.array([task.tokenizer.encode(text)], "int32")
    embedded = task.backbone.token_embedding(ids)
    return to_numpy(task({"token_ids": ids, "token_embeddings": embedded * factor}))[0]


def test_integrated_gradients_are_complete():
    task = common.classifier(labels=["bad", "good"])
    explanation = task.explain(TEXT, saliency="integrated_gradients", target="good", steps=300)
    change = moved(task, TEXT, 1.0)[1] - moved(task, TEXT, 0.0)[1]
    assert abs(change) > 0.1  # else nothing is shown
    assert explanation.saliency.sum() == pytest.approx(change, abs=5e-3)
    assert explanation.gap == pytest.approx(explanation.saliency.sum() - change, abs=1e-4)
    assert explanation.target == "the logit of 'good'"
    other = task.explain(TEXT, saliency="integrated_gradients", target=0, steps=60)
    assert np.abs(other.saliency - explanation.saliency).max() > 1e-2


def test_gradient_times_input():
    """By finite differences: of each token's embedding, a little longer and a little shorter."""
    task = common.classifier(num_classes=2)
    explanation = task.explain(TEXT, saliency="gradient_x_input", target=1)
    ids = np.array([task.tokenizer.encode(TEXT)], "int32")
    embedded = to_numpy(task.backbone.token_embedding(ids))
    step = 2e-3
    for place in (1, 3):
        values = []
        for sign in (1, -1):
            other = embedded.copy()
            other[0, place] *= 1 + sign * step
            values.append(to_numpy(task({"token_ids": ids, "token_embeddings": other}))[0, 1])
        slope = (values[0] - values[1]) / (2 * step)
        assert explanation.saliency[place] == pytest.approx(slope, abs=5e-3)
    assert explanation.gap is None


def test_the_same_as_captum():
    captum = pytest.importorskip("captum.attr", reason="pip install --no-deps captum")
    if keras.backend.backend() != "torch":
        pytest.skip("captum is of PyTorch")
    task = common.classifier(num_classes=3)
    ids = keras.ops.convert_to_tensor([task.tokenizer.encode(TEXT)], "int32")
    embedded = task.backbone.token_embedding(ids).detach()

    def outputs(embedded):
        rows = len(embedded)
        return task({"token_ids": ids.repeat(rows, 1), "token_embeddings": embedded})

    theirs = captum.IntegratedGradients(outputs).attribute(embedded, target=2, n_steps=40)
    own = task.explain(TEXT, saliency="integrated_gradients", target=2, steps=40)
    expected = keras.ops.convert_to_numpy(theirs[0].sum(-1))
    np.testing.assert_allclose(own.saliency, expected, atol=1e-5)
    theirs = captum.InputXGradient(outputs).attribute(embedded.requires_grad_(), target=2)
    own = task.explain(TEXT, saliency="gradient_x_input", target=2)
    expected = keras.ops.convert_to_numpy(theirs[0].sum(-1))
    np.testing.assert_allclose(own.saliency, expected, atol=1e-5)


def test_a_written_text():
    """By default it is of the last token that was written; a position is a step."""
    task = common.language_model(num_layers=2)
    explanation = task.explain("two dogs", [5, 9, 7], saliency="integrated_gradients", steps=200)
    assert explanation.target.startswith("the logit of")
    (name,) = kt.explanations.readable_tokens([7], task.tokenizer)
    assert repr(name) in explanation.target
    first = task.explain("two dogs", [5, 9, 7], saliency="gradient_x_input", position=0, target=4)
    assert (first.saliency[1:] == 0).all() and first.saliency[0] != 0  # it sees none behind it
    assert abs(explanation.gap) < 5e-2


def test_both_sides_of_a_translation():
    task = common.translator()
    explanation = task.explain("two dogs", "zwei hunde", saliency="integrated_gradients", steps=200)
    assert len(explanation.encoder_saliency) == len(explanation.encoder_tokens)
    assert len(explanation.saliency) == len(explanation.tokens)
    assert np.abs(explanation.encoder_saliency).max() > 1e-4
    assert abs(explanation.gap) < 5e-2


def test_baselines():
    """At zero a norm jumps where nothing is added to the embeddings: it is their mean then."""
    task = common.language_model(num_layers=2, position="rotary", normalize_first=True)
    options = {"saliency": "integrated_gradients", "target": 7, "steps": 200}
    ids = np.array([task.generator.prompt_ids("two dogs run")[0][0]], "int32")
    table = to_numpy(task.backbone.token_embedding(np.arange(task.tokenizer.vocabulary_size)))

    def output(row):
        embedded = np.broadcast_to(row, (*ids.shape, row.shape[-1])).astype("float32")
        return to_numpy(task({"token_ids": ids, "token_embeddings": embedded}))[0, -1, 7]

    whole = to_numpy(task({"token_ids": ids}))[0, -1, 7]
    for baseline, row in ((None, table.mean(0)), ("mean", table.mean(0)), (9, table[9])):
        explanation = task.explain("two dogs run", baseline=baseline, **options)
        missed = explanation.saliency.sum() - (whole - output(row))
        assert missed == pytest.approx(explanation.gap, abs=1e-3) and abs(missed) < 5e-2
    with pytest.raises(ValueError, match="baseline"):
        task.explain("two dogs", baseline=10**6, **options)
    with pytest.raises(ValueError, match="`baseline` is for saliency"):
        task.explain("two dogs", baseline="mean")


@pytest.mark.one_backend
def test_outputs_of_each_kind():
    words = common.tokenizer(lowercase=True)
    encoder = kt.models.Encoder(common.config("encoder", words, segment_vocabulary_size=2))
    tagger = common.randomized(kt.TokenClassifier(encoder, words, labels=["O", "B-X", "I-X"]))
    explanation = tagger.explain(TEXT, saliency="gradient_x_input")
    assert "'O'" not in explanation.target.split(" at ")[0]
    explanation = tagger.explain(TEXT, saliency="gradient_x_input", position="a", target="O")
    assert explanation.target == "the logit of 'O' at 1 'a'"
    answerer = common.randomized(kt.QuestionAnswerer(encoder, words))
    explanation = answerer.explain(("who", TEXT), saliency="integrated_gradients", target="end")
    assert explanation.target.startswith("the logit of 'end' at") and abs(explanation.gap) < 0.1
    filler = common.randomized(kt.MaskedLM(encoder, words))
    explanation = filler.explain("a [MASK] film", saliency="gradient_x_input", target="film")
    assert explanation.target == "the logit of 'film' at 2 '[MASK]'"
    embedder = kt.TextEmbedder(encoder, words)
    explanation = embedder.explain(TEXT, saliency="integrated_gradients", target="never dull")
    own, other = embedder.encode([TEXT, "never dull"])
    rest = moved(embedder, TEXT, 0.0) @ other
    assert explanation.saliency.sum() == pytest.approx(own @ other - rest, abs=1e-2)


@pytest.mark.one_backend
def test_images_and_texts():
    embedder = duals.embedder()
    images, texts = duals.pairs(2)
    explanation = embedder.explain((images[0], texts[0]), saliency="gradient_x_input")
    assert explanation.encoder_saliency.shape == (12, 16)
    assert len(explanation.saliency) == len(explanation.tokens)
    alone = embedder.explain(images[0])
    np.testing.assert_allclose(alone.attention, explanation.encoder_attention, atol=1e-5)
    np.testing.assert_allclose(alone.outputs, embedder.encode(images[0]), atol=1e-5)
