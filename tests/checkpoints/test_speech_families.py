"""Families of speech against the Transformers library: logits, states, gradients, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_sound import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")


def make(number, suffix="ForConditionalGeneration"):
    return families.make("whisper", number, suffix)


def inputs(model, length=7):
    """As ours takes them and as theirs."""
    config = model.config
    random = np.random.default_rng(3)
    shape = (2, 2 * config.max_source_positions, config.num_mel_bins)
    frames = random.normal(size=shape).astype("float32")
    ids = random.integers(4, config.vocab_size, (2, length)).astype("int32")
    ours = {"encoder_frames": frames, "decoder_token_ids": ids}
    theirs = {
        "input_features": torch.tensor(frames).mT,
        "decoder_input_ids": torch.tensor(ids.astype("int64")),
    }
    return ours, theirs


@pytest.fixture(scope="module", params=range(len(CONFIGS["whisper"][1])))
def both(request, tmp_path_factory):
    reference = make(request.param)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.SpeechToText.from_preset(folder)


@pytest.mark.each_backend
def test_same_logits(both):
    reference, task = both
    ours, theirs = inputs(reference)
    with torch.no_grad():
        expected = reference(**theirs).logits.numpy()
    assert np.abs(to_numpy(task(ours)) - expected).max() <= 2e-5
    assert task.start_id == 3 and task.end_ids == (2,) and task.processor is None


def test_same_gradients(tmp_path):
    reference = make(0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = inputs(reference)
    for parameter in reference.parameters():
        parameter.requires_grad_(True)  # The encoder's positions are not trained there.
    (reference(**theirs)[0] ** 2).mean().backward()
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = inputs(reference)
    with torch.no_grad():
        assert (again.eval()(**theirs).logits - reference(**theirs).logits).abs().max() <= 1e-6
    back = kt.SpeechToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert_same_values(back.backbone, task.backbone)


AST = "audio-spectrogram-transformer"


def spectrogram(model):
    """A spectrogram, as ours takes it, an image of one channel, and as theirs."""
    config = model.config
    shape = (3, config.max_length, config.num_mel_bins)
    frames = np.random.default_rng(3).normal(size=shape).astype("float32")
    return {"images": np.moveaxis(frames, 1, 2)[..., None].copy()}, torch.tensor(frames)


@pytest.mark.parametrize("number", range(len(CONFIGS[AST][1])))
def test_spectrograms(number, tmp_path):
    """States, and logits of classes, and the way back, of the processor too."""
    reference = families.make(AST, number, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "bare"))
    ours, theirs = spectrogram(reference)
    with torch.no_grad():
        expected = reference(theirs)[0].numpy()
    assert np.abs(to_numpy(backbone(ours)) - expected).max() <= 2e-5

    reference = families.make(AST, number, "ForAudioClassification", num_labels=4)
    config = reference.config
    bands = {"num_bins": config.num_mel_bins, "length": config.max_length}
    kt.AudioProcessor("filter_bank", mean=1.0, std=2.0, **bands).save(tmp_path / "theirs")
    classifier = kt.AudioClassifier.from_preset(saved(reference, tmp_path / "theirs"))
    with torch.no_grad():
        expected = reference(theirs).logits.numpy()
    assert np.abs(to_numpy(classifier(ours)) - expected).max() <= 1e-4
    assert classifier.num_classes == 4 and classifier.processor.mean == 1

    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert np.abs(again.eval()(theirs).logits.numpy() - expected).max() <= 1e-6
    back = kt.AudioClassifier.from_preset(tmp_path / "ours")
    assert back.processor.values() == classifier.processor.values()
    assert back.task_values() == classifier.task_values()


@pytest.mark.one_backend
def test_a_recording_goes_the_same_way(tmp_path):
    """From samples to classes, as Transformers' extractor and model."""
    import transformers

    reference = families.make(AST, 0, "ForAudioClassification", num_labels=4)
    config = reference.config
    extract = transformers.ASTFeatureExtractor(
        num_mel_bins=config.num_mel_bins, max_length=config.max_length
    )
    folder = saved(reference, tmp_path)
    extract.save_pretrained(folder)
    classifier = kt.AudioClassifier.from_preset(folder)
    samples = 0.1 * np.sin(np.arange(3000) * 0.1).astype("float32")
    given = extract(samples, sampling_rate=16_000, return_tensors="pt").input_values
    with torch.no_grad():
        expected = reference(given).logits.numpy()
    assert np.abs(classifier.predict([samples], verbose=0) - expected).max() <= 1e-4


@pytest.mark.backend_independent
def test_strides_that_differ():
    with pytest.raises(ValueError, match="frequency_stride and time_stride must be the same"):
        FAMILIES[AST].config({"time_stride": 12})


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_mel_bins": 0}, "`num_bins` must be at least 1"),
        ({"max_source_positions": "many"}, "max_source_positions must be a number"),
        ({"max_source_positions": 10**9}, "num_frames"),
        ({"activation_function": "loud"}, "activation_function='loud' is not supported"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["whisper"].config(values)
