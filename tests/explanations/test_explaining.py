"""The arrays of `explain` are the arrays of the pass that gives a task's outputs."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.tasks import common, images, series
from tests.tasks.test_media_tables import captioner

TEXT = "a warm and funny film"


def assert_near(found, expected, most=1e-5):
    assert np.abs(np.asarray(found) - np.asarray(expected)).max() <= most


def rows_sum(attention):
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)


def test_a_classifier():
    task = common.classifier(num_classes=3)
    explanation = task.explain(TEXT)
    ids = task.tokenizer.encode(TEXT)
    assert_near(explanation.outputs, task.predict([TEXT], verbose=0)[0])
    assert len(explanation.tokens) == len(ids)
    _, found = task(
        {"token_ids": np.array([ids])},
        collect=("states", "attention", "queries", "keys"),
    )
    assert explanation.attention.shape == (1, 2, len(ids), len(ids))
    for name in ("states", "attention"):
        assert_near(getattr(explanation, name), np.stack([to_numpy(x)[0] for x in found[name]]))
    for name in ("queries", "keys"):
        assert_near(explanation.vectors[name], np.stack([to_numpy(x)[0] for x in found[name]]))
    rows_sum(explanation.attention)
    assert explanation.labels == ("0", "1", "2") and explanation.logit_lens is None
    pair = (explanation.vectors[name] for name in ("queries", "keys"))
    scores = np.einsum("lhqd,lhkd->lhqk", *pair) / np.sqrt(8)
    assert_near(explanation.attention, np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))


def test_texts_and_pairs_and_arrays():
    task = common.classifier(num_classes=2)
    pair = (TEXT, "never dull")
    first, second = task.explain([TEXT, "never dull"])
    assert len(first.tokens) > len(second.tokens)
    assert_near(second.outputs, task.predict(["never dull"], verbose=0)[0])
    both = task.explain(pair)
    assert len(both.tokens) == len(first.tokens) + len(second.tokens) - 1
    assert_near(both.outputs, task.predict(([pair[0]], [pair[1]]), verbose=0)[0])
    ids = np.array([[5, 6, 7, 0], [8, 9, 10, 11]])
    short, long = task.explain({"token_ids": ids, "padding_mask": ids != 0})
    assert short.attention.shape[-1] == 3 and long.attention.shape[-1] == 4
    assert_near(short.outputs, task.predict({"token_ids": ids[:1, :3]}, verbose=0)[0])


def test_lens_of_a_language_model():
    task = common.language_model(num_layers=3, normalize_first=True)
    explanation = task.explain("two dogs run")
    ids = task.generator.prompt_ids("two dogs run")[0][0]
    logits = np.asarray(task.predict({"token_ids": np.array([ids])}, verbose=0))[0]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    lens = explanation.logit_lens
    assert (len(lens), len(lens[0]), len(lens[0][0])) == (4, len(ids), 5)
    for place, best in enumerate(lens[-1]):
        assert best[0][1] == pytest.approx(shares[place].max(), abs=1e-5)
        (name,) = kt.explanations.readable_tokens([shares[place].argmax()], task.tokenizer)
        assert best[0][0] == name
    # Of an earlier layer: the final norm and the output matrix on its states.
    norm = task.backbone.decoder.final_norm
    first = task.backbone.logits(norm(keras.ops.convert_to_tensor(explanation.states[1][None])))
    first = to_numpy(keras.ops.softmax(first))[0]
    assert_near([best[0][1] for best in lens[1]], first.max(-1))
    assert (np.triu(explanation.attention[0, 0], 1) == 0).all()


def test_steps_of_writing():
    """One pass over what was written gives what the steps with a cache computed."""
    task = common.language_model(num_layers=2)
    made = task.generate("two dogs", max_new_tokens=4, explain=True)
    explanation = made.explanation
    prompt = task.generator.prompt_ids("two dogs")[0][0]
    names = kt.explanations.readable_tokens(made.token_ids, task.tokenizer)
    assert explanation.next_tokens[len(prompt) - 1 :][: len(names)] == names
    assert explanation.text == made.text
    assert len(explanation.tokens) == len(explanation.next_tokens)
    shares = np.exp(explanation.outputs) / np.exp(explanation.outputs).sum(-1, keepdims=True)
    chosen = [shares[len(prompt) - 1 + i, id] for i, id in enumerate(made.token_ids)]
    assert_near(np.log(chosen), made.log_probabilities, 1e-4)
    again = task.explain("two dogs", [made.token_ids][0])
    assert_near(
        again.attention, explanation.attention[:, :, : len(again.tokens), : len(again.tokens)]
    )


def test_a_translation():
    task = common.translator(num_layers=2)
    explanation = task.explain("two dogs run")
    made = task.generate("two dogs run", return_details=True)
    assert explanation.text == made.text
    source, steps = len(explanation.encoder_tokens), len(explanation.tokens)
    assert explanation.cross_attention.shape == (2, 2, steps, source)
    assert explanation.encoder_attention.shape == (2, 2, source, source)
    assert explanation.attention.shape == (2, 2, steps, steps)
    for name in ("attention", "cross_attention", "encoder_attention"):
        rows_sum(getattr(explanation, name))
    view = explanation.view()
    assert view.name == "cross_attention" and view.rows[: len(explanation.tokens)] == tuple(
        new or old for old, new in zip(explanation.tokens, explanation.next_tokens, strict=True)
    )
    assert explanation.vectors["cross_keys"].shape[2] == source
    given = task.explain("two dogs run", "zwei hunde laufen")
    assert given.text == "zwei hunde laufen"
    assert_near(given.encoder_attention, explanation.encoder_attention)


@pytest.mark.one_backend
def test_attention_is_bounded_before_anything_is_written():
    """By what is known of it: each layer and head has a weight for each pair of places."""
    task = common.translator(num_layers=2)
    count = 16  # of both sides, which are padded to it
    assert len(task.tokenizer.encode("two dogs run")) <= count
    known = 4 * (count**2 + count * (count + count))  # of the encoder, the decoder, and across
    for texts in ("two dogs run", ["a", "two dogs run"]):
        with pytest.raises(ValueError, match=rf"has {known:,} weights .* {known - 1:,} are kept"):
            task.explain(texts, max_attention=known - 1)
    long = [5] * 100  # what was written counts
    task.explain("two dogs run", [5], max_attention=known)
    with pytest.raises(ValueError, match="weights"):
        task.explain("two dogs run", long, max_attention=known)
    pixels, _ = images.pictures(2)
    task = captioner()
    with pytest.raises(ValueError, match="weights") as info:
        task.explain(list(pixels), max_attention=10)
    assert "at most 10 are kept" in str(info.value)


@pytest.mark.one_backend
def test_images_and_series():
    classifier = images.classifier()
    (picture, *_), _ = images.pictures(2)
    explanation = classifier.explain(picture, saliency="gradient_x_input")
    assert explanation.tokens[:3] == ("[CLS]", "0,0", "0,1") and len(explanation.tokens) == 13
    assert_near(explanation.outputs, classifier.predict([picture], verbose=0)[0])
    assert explanation.saliency.shape == (12, 16)
    forecaster = series.forecaster()
    values = np.sin(np.arange(200) * 0.3)
    explanation = forecaster.explain(values, saliency="integrated_gradients", position=0)
    expected = forecaster.forecast(values)
    assert_near(explanation.outputs[: len(expected), 0], expected, 1e-4)
    assert abs(explanation.gap) < 1e-2


@pytest.mark.one_backend
def test_heads_that_differ_and_windows():
    values = {
        "kind": "encoder", "vocabulary_size": 30, "hidden_dim": 12, "num_layers": 2,
        "num_heads": 2, "head_dim": 4, "intermediate_dim": 16, "position": "rotary",
        "layer_pattern": [{"num_heads": 3, "window": 2}, {}],
    }  # fmt: skip
    task = kt.TextClassifier(kt.models.Encoder(kt.TransformerConfig(**values)), num_classes=2)
    explanation = task.explain({"token_ids": np.arange(5)[None]})[0]
    assert explanation.attention.shape == (2, 3, 5, 5)
    assert np.isnan(explanation.attention[1, 2]).all()
    near = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) < 2
    assert (explanation.attention[0][:, ~near] == 0).all()
    assert np.isnan(explanation.entropy()[1, 2]) and np.isfinite(explanation.rollout()).all()


@pytest.mark.one_backend
def test_entropy_and_rollout():
    explanation = common.classifier(num_classes=2).explain(TEXT)
    shares = explanation.attention
    expected = -(shares * np.log(shares)).sum(-1).mean(-1)
    assert_near(explanation.entropy(), expected)
    np.testing.assert_allclose(explanation.rollout().sum(-1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="needs self-attention"):
        kt.explanations.rollout(np.ones((1, 1, 2, 3)))


@pytest.mark.one_backend
def test_what_it_says():
    explanation = common.classifier(labels=["bad", "good"]).explain(
        TEXT, saliency="gradient_x_input"
    )
    text = str(explanation)
    assert "attributions of the logit of" in text and "Entropy of heads in nats" in text
    assert "TextClassifier" in repr(explanation)
    with pytest.raises(ValueError, match="'nobody' is not there"):
        explanation.attended("nobody")
    for wrong in (99, 1.5, True, None):
        with pytest.raises(ValueError, match="give a token or its index, received"):
            explanation.attended(wrong)
        with pytest.raises(ValueError, match="give a token or its index, received"):
            explanation.place(wrong)
    with pytest.raises(ValueError, match="`view`"):
        explanation.view("cross_attention")


@pytest.mark.one_backend
def test_wrong_arguments():
    task = common.classifier(labels=["bad", "good"])
    for options, said in (
        ({"saliency": "lime"}, "saliency"),
        ({"target": 1}, "are for attributions"),
        ({"saliency": "gradient_x_input", "target": "great"}, "target"),
        ({"saliency": "gradient_x_input", "target": 2}, "target"),
        ({"saliency": "gradient_x_input", "position": 1}, "has outputs for each input"),
        ({"saliency": "integrated_gradients", "steps": 0}, "steps"),
        ({"top_k": 0}, "top_k"),
    ):
        with pytest.raises(ValueError, match=said):
            task.explain(TEXT, **options)
    for wrong, said in (("", "is empty"), ([10**6], "prompts"), (["a", ""], r"prompts\[1\]")):
        with pytest.raises(ValueError, match=said):
            common.language_model().explain(wrong)
    with pytest.raises(ValueError, match="1 prompts and 2 outputs"):
        common.language_model().explain(["a"], ["b", "c"])
    with pytest.raises(ValueError, match="`stream=True`"):
        common.language_model().generate("a", stream=True, explain=True)
