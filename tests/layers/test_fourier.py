"""The mixer of Fourier transforms against NumPy's, in rows alone, padded and packed."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers import AttentionMask
from keras_transformer.layers.mixers.fourier import FourierMixer
from tests.layers.conftest import assert_close, numpy, random, randomize

IDS = np.array([[3, 4, 5, 6, 7, 8, 9], [12, 13, 14, 15, 0, 0, 0]])
SMALL = {
    "kind": "encoder", "vocabulary_size": 20, "hidden_dim": 6, "num_layers": 3,
    "intermediate_dim": 12, "position": "learned", "max_sequence_length": 16,
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 7, 6), (1, 1, 5), (3, 8, 1)])
def test_a_transform_over_both_axes(shape):
    x = random(*shape)
    assert_close(FourierMixer(parts.Fourier())(x), np.fft.fft2(x).real, atol=1e-4)


def test_padding_and_other_documents_are_left_out():
    x, mixer = random(2, 9, 6), FourierMixer(parts.Fourier())
    mask = np.array([[True] * 9, [False, False] + [True] * 4 + [False] * 3])
    found = numpy(mixer(x, mask=mask))
    assert_close(found[0], np.fft.fft2(x[0]).real, atol=1e-4)
    assert_close(found[1, 2:6], np.fft.fft2(x[1, 2:6]).real, atol=1e-4)
    assert np.isfinite(found).all()
    packs = AttentionMask(padding=mask[:1], query_pack=np.array([[0] * 4 + [1] * 5]))
    found = numpy(mixer(x[:1], visibility=packs))[0]
    for text in (slice(0, 4), slice(4, 9)):
        assert_close(found[text], np.fft.fft2(x[0, text]).real, atol=1e-4)


def test_long_texts_keep_their_precision():
    x = random(1, 2_000, 4)
    expected = np.fft.fft2(x.astype("float64")).real
    found = numpy(FourierMixer(parts.Fourier())(x))
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.one_backend
def test_what_a_transform_cannot_do():
    with pytest.raises(ValueError, match="it is for encoders: received causal=True"):
        FourierMixer(parts.Fourier(), causal=True)
    with pytest.raises(ValueError, match="'fourier' reads whole texts, so it needs an encoder"):
        kt.TransformerConfig(**{**SMALL, "kind": "decoder"}, mixer={"kind": "fourier"})
    for given in ({"num_heads": 2}, {"window": 3}, {"score": "additive"}, {"rotary_dim": 2}):
        (name,) = given
        with pytest.raises(ValueError, match=f"`{name}`=.* needs attention, but the `mixer`"):
            kt.TransformerConfig(**{**SMALL, **given}, mixer={"kind": "fourier"})
    with pytest.raises(ValueError, match="`position`='?rotary'? needs attention"):
        kt.TransformerConfig(**{**SMALL, "position": "rotary"}, mixer={"kind": "fourier"})
    with pytest.raises(ValueError, match="lacks the values: num_heads"):
        kt.TransformerConfig(**SMALL)
    config = kt.TransformerConfig(**SMALL, mixer={"kind": "fourier"})
    with pytest.raises(AttributeError, match="no attention, and so no `num_heads`"):
        _ = config.num_heads


HYBRID = {"num_heads": 2, "layer_pattern": [{}, {}, {"mixer": None}]}


@pytest.mark.parametrize("further", [{}, HYBRID], ids=["alone", "hybrid"])
def test_a_model_of_transforms(further, tmp_path):
    """FNet, and FNet-Hybrid, whose last layers attend (section 4.3 of the paper)."""
    config = kt.TransformerConfig(**SMALL, **further, mixer={"kind": "fourier"})
    assert config.by_keywords and kt.TransformerConfig.from_json(config.to_json()) == config
    backbone = kt.models.Encoder(config)
    randomize(backbone)
    names = {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.weights}
    assert names == variable_shapes(config)
    plan = kt.planning.make_plan(config, batch_size=2, length=7)
    assert plan.parameters == backbone.count_params()
    whole = numpy(backbone({"token_ids": IDS, "padding_mask": IDS > 0}))
    assert_close(whole[1, :4], backbone({"token_ids": IDS[1:, :4]})[0], atol=1e-5)
    classifier = kt.TextClassifier(backbone, num_classes=2)
    classifier.save_to_preset(tmp_path / "preset")
    classifier.save(tmp_path / "file.keras")
    inputs = {"token_ids": IDS, "padding_mask": IDS > 0}
    expected = classifier.predict(inputs, verbose=0)
    for again in (
        kt.TextClassifier.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "file.keras"),
    ):
        assert_close(again.predict(inputs, verbose=0), expected, atol=1e-5)
    classifier.compile(keras.optimizers.Adam(0.02), classifier.loss)
    history = classifier.fit(inputs, np.array([0, 1]), epochs=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
