"""Attention of each family of images, sound and series equals that of Transformers."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from tests.checkpoints import (
    families,
    test_dual_families,
    test_image_families,
    test_video_families,
)
from tests.checkpoints import test_placed_families as placed
from tests.checkpoints import test_series_families as series
from tests.checkpoints import test_speech_families as speech
from tests.checkpoints import test_waveform_families as waveforms
from tests.checkpoints import test_writer_families as writers
from tests.checkpoints.test_families import saved
from tests.explanations.test_families import OF_TWO

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.one_backend


def theirs_of(reference, given):
    """Return their outputs with all inner states, by eager attention."""
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        return reference(**given, output_attentions=True, output_hidden_states=True)


def assert_same(found, layers, states=False, row=0):
    """Ours of a row, and theirs of layers and rows."""
    expected = np.stack([x[row].numpy() for x in layers])
    assert found.shape == expected.shape
    if not states:
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    assert np.abs(found - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


# In windows, attention has no weights of all pairs.
WHOLE = [case for case in test_image_families.CASES if not case[0].startswith("swin")]


@pytest.mark.parametrize(("name", "number"), WHOLE)
def test_images(tmp_path, name, number):
    reference = families.make(name, number, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs = test_image_families.images(reference)
    expected = theirs_of(reference, {"pixel_values": theirs})
    for row, explanation in enumerate(kt.ImageEmbedder(backbone).explain(ours)):
        assert_same(explanation.attention, expected.attentions, row=row)
        # Their last states are before the norm, ours behind it. Of YOLOS theirs are also before the
        # positions that are added behind each block.
        count = 1 if name == "yolos" else len(expected.hidden_states) - 1
        assert_same(explanation.states[:count], expected.hidden_states[:count], True, row)
        assert len(explanation.tokens) == explanation.attention.shape[-1]


@pytest.mark.parametrize("name", test_video_families.CONFIGS)
def test_videos(tmp_path, name):
    reference = families.make(name, 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    task = kt.VideoClassifier(backbone, num_classes=2)
    ours, theirs = test_video_families.videos(reference)
    if name == "videoprism_vision_model":  # no layer has weights of all pairs of tubes
        with pytest.raises(ValueError, match="is over one axis of a video"):
            task.explain(ours)
        return
    expected = theirs_of(reference, {"pixel_values": theirs})
    for row, explanation in enumerate(task.explain(ours)):
        assert_same(explanation.attention, expected.attentions, row=row)
        assert len(explanation.tokens) == explanation.attention.shape[-1]
        assert explanation.tokens[-2:] == ("1,1,0", "1,1,1")  # in time, row and column


@pytest.mark.parametrize("number", range(2))
def test_spectrograms(tmp_path, number):
    reference = families.make("audio-spectrogram-transformer", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    task = kt.AudioClassifier(backbone, num_classes=2)
    config = reference.config
    shape = (2, config.max_length, config.num_mel_bins)
    frames = np.random.default_rng(0).normal(size=shape).astype("float32")
    expected = theirs_of(reference, {"input_values": torch.tensor(frames)})
    images = np.moveaxis(frames, 2, 1)[..., None]
    for row, explanation in enumerate(task.explain({"images": images})):
        assert_same(explanation.attention, expected.attentions, row=row)


@pytest.mark.parametrize(("name", "number"), waveforms.CASES)
def test_waveforms(tmp_path, name, number):
    reference = families.make(name, number, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    task = kt.CTCSpeechToText(backbone, vocabulary_size=9)
    samples = waveforms.recordings()[0][None]
    expected = theirs_of(reference, {"input_values": torch.tensor(samples)})
    (explanation,) = task.explain({"samples": samples})
    found = explanation.attention
    if name == "wavlm":  # theirs are the mean over the heads, repeated for each
        assert np.ptp(found, axis=1).max() > 1e-3
        found = np.repeat(found.mean(axis=1, keepdims=True), found.shape[1], axis=1)
    assert_same(found, expected.attentions)
    assert len(explanation.tokens) == explanation.attention.shape[-1]


def test_whisper(tmp_path):
    reference = speech.make(0)
    task = kt.SpeechToText.from_preset(saved(reference, tmp_path))
    ours, theirs = speech.inputs(reference)
    expected = theirs_of(reference, theirs)
    for row, explanation in enumerate(task.explain(ours)):
        for name, theirs_name in OF_TWO.items():
            layers = expected[theirs_name]
            assert_same(getattr(explanation, name), layers, "states" in name, row)


@pytest.mark.parametrize("case", writers.CASES)
def test_captions(tmp_path, case):
    reference = families.make(*case, "LanguageModel")
    task = kt.ImageToText(load_backbone(saved(reference, tmp_path)), start_id=3)
    ours, theirs = writers.inputs(reference)
    expected = theirs_of(reference, theirs)
    cross = getattr(expected, "cross_attentions", None)
    for row, explanation in enumerate(task.explain(ours)):
        if cross:
            assert_same(explanation.cross_attention, cross, row=row)
            assert_same(explanation.attention, expected.decoder_attentions, row=row)
            assert_same(explanation.encoder_attention, expected.encoder_attentions, row=row)
        else:  # BLIP gives that of its images alone
            assert_same(explanation.encoder_attention, expected.attentions, row=row)


@pytest.mark.parametrize("case", placed.CASES, ids=placed.name_of)
def test_images_among_tokens(tmp_path, case):
    reference = families.make(*case, "LanguageModel")
    task = kt.ImageToText.from_preset(saved(reference, tmp_path))
    images, rows = placed.rows_of(task)
    ours, _ = placed.ours_of(task, images, rows)
    for row, explanation in enumerate(task.explain(ours)):
        given = placed.theirs_of(reference, images[row], rows[row])
        expected = theirs_of(reference, given)
        expected = getattr(expected, "language_model_outputs", None) or expected  # of BLIP-2
        assert_same(explanation.attention, expected.attentions)
        assert len(explanation.tokens) == len(rows[row])


@pytest.mark.parametrize(("name", "number"), test_dual_families.CASES)
def test_images_and_texts(tmp_path, name, number):
    reference = families.make(name, number, "Model")
    task = kt.ImageEmbedder(load_backbone(saved(reference, tmp_path)))
    ours, theirs = test_dual_families.data(reference)
    ours = {name: array[:3] for name, array in ours.items()}
    expected = theirs_of(reference, theirs)
    for row, explanation in enumerate(task.explain(ours)):
        texts, images = expected.text_model_output, expected.vision_model_output
        assert_same(explanation.attention, texts.attentions, row=row)
        assert_same(explanation.encoder_attention, images.attentions, row=row)


@pytest.mark.parametrize("number", range(2))
def test_series(tmp_path, number):
    reference = series.make(number)
    task = kt.Forecaster.from_preset(saved(reference, tmp_path))
    values = series.rows(reference.config)
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        found = reference.model(torch.tensor(values), output_attentions=True).attentions
    rows = series.as_rows(values)
    for row, explanation in enumerate(task.explain({"values": rows})):
        assert_same(
            explanation.attention, [x.reshape(len(rows), *x.shape[-3:]) for x in found], row=row
        )
