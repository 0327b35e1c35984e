"""Gemma 3n: conversations with recordings alone, against Transformers; see also its images."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.processors import Sound
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.test_gemma3n_images import ids_of, inputs_of, row_of
from tests.tasks.test_gemma4_sound import (
    recording,
    sound,
)
from tests.tasks.test_qwen_vl import said
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import user

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.gemma3n(folder)
    return model, processor, kt.ImageToText.from_preset(folder)


A, B, C = sound(7777), sound(513, 1), sound(16_001, 2)


def conversations():
    """Rows with none, with one and with several recordings."""
    return [
        [user("which is dark ?")],
        [user(A, "which is dark ?")],
        [user("a : ", B, " b : ", A, " ?"), said(), user("which ?", C)],
        [user("which or ?", C), said(), user({**C, "audio": recording(900)})],
    ]


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    """Each row as theirs alone; a recording in several places is encoded once."""
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    assert len(np.unique(arrays["sound_frames"], axis=0)) <= 5  # four, and a blank one
    assert "encoder_images" not in arrays
    found = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        assert ids_of(model, processor, conversation) == row_of(arrays, mask, i)
        with torch.no_grad():
            expected = model(**inputs_of(model, processor, conversation)).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


@pytest.mark.one_backend
def test_same_logits_by_their_own_inputs(both):
    """One recording: the features, their mask and the ids, as their processor gives them."""
    model, processor, task = both
    conversation = conversations()[1]
    (given,) = processor.recordings(conversation)
    with torch.no_grad():
        expected = model(**theirs_of(processor, conversation), **given).logits[0].numpy()
    arrays, mask = arrays_of(task, [conversation])
    assert np.abs(outputs_of(task, arrays)[mask] - expected).max() <= 1e-4


@pytest.mark.each_backend
def test_same_states_of_recordings(both):
    """States of the tower, and as they are put among the tokens, whatever the padding."""
    model, processor, task = both
    samples = [recording(n, i) for i, n in enumerate((513, 16_001, 7777, 12_345, 1800))]
    arrays = task.processor.source.sounds.arrays(samples, frames=130)
    backbone = task.backbone
    heard, _ = backbone._of_side("sound", arrays, (), False)
    states = to_numpy(heard["encoder_states"])[:, ::4]
    projected = to_numpy(backbone.sound_projector(heard["encoder_states"]))
    for i, row in enumerate(samples):
        given = processor.sounds([row], return_tensors="pt")
        with torch.no_grad():
            read = model.model.get_audio_features(
                given["input_features"], ~given["input_features_mask"], return_dict=True
            )
        count = task.processor.source.sounds.num_states(len(row))
        assert count == read.last_hidden_state.shape[1] and not read.audio_mel_mask.any()
        for mine, theirs in ((states, read.last_hidden_state), (projected, read.pooler_output)):
            assert np.abs(mine[i, :count] - theirs[0].numpy()).max() <= 2e-5


@pytest.mark.backend_independent
def test_same_features():
    """Recordings of odd lengths and rates: each frame is theirs, and so is their number."""
    processor = kt.processors.SoftTokenSoundProcessor(family="Gemma3n")
    theirs = transformers.Gemma3nAudioFeatureExtractor()
    for seed, (length, rate) in enumerate(
        ((16_001, 16_000), (7777, 8000), (44_099, 44_100), (513, 16_000), (480_000, 16_000))
    ):
        samples = processor.samples(Sound((recording(length, seed), rate)))
        expected = theirs([samples], return_tensors="np")
        assert expected["input_features_mask"].all()
        made = processor.arrays([samples])
        assert made["padding_mask"].all()
        assert np.abs(made["frames"] - expected["input_features"]).max() <= 1e-5
        (states,) = processor.layout(Sound(samples)).runs
        assert (states >= 0).sum() == -(-expected["input_features"].shape[1] // 16)
        assert len(states) == 188


@pytest.mark.one_backend
def test_a_model_without_images(both):
    """Sound alone as the encoder: the same logits; an image in a message is an error."""
    *_, whole = both
    backbone = kt.models.Seq2Seq(whole.backbone.config.of_sound)
    own = {each.path.split("/", 1)[1]: each for each in whole.backbone.variables}
    for each in backbone.variables:
        path = each.path.split("/", 1)[1]
        for mine, theirs in (("encoder/", "sound/"), ("projector/", "sound_projector/")):
            path = path.replace(mine, theirs, 1) if path.startswith(mine) else path
        each.assign(own[path])
    sounds = whole.processor.source.sounds
    task = kt.ImageToText(backbone, kt.ImageProcessor(sounds=sounds), whole.tokenizer)
    arrays, mask = arrays_of(task, conversations())
    assert {"encoder_frames", "encoder_padding_mask"} <= arrays.keys()
    expected, _ = arrays_of(whole, conversations())
    assert np.abs(outputs_of(task, arrays) - to_numpy(whole(expected)))[mask].max() <= 1e-5
    image = np.zeros((8, 8, 3), "uint8")
    with pytest.raises(ValueError, match="`messages`: This model sees no images"):
        task.chat([user(image, "which ?")])
    with pytest.raises(ValueError, match="sees no images: give conversations"):
        task.generate([image], ["which ?"])
    with pytest.raises(ValueError, match="SpeechToText needs a backbone"):
        kt.SpeechToText(task.backbone)
    with pytest.raises(ValueError, match="hears recordings, and sees no images: give the process"):
        kt.ImageToText(backbone, kt.ImageProcessor(), whole.tokenizer)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("part", "told"),
    [
        (sound(0), "`sound 1` has no samples: it is empty"),
        (sound(512), "`sound 1` is too short: it has 512 samples at 16,000 Hz, and needs 513"),
        (sound(64_000), "`sound 1` takes 4.0 seconds, and this model hears at most 3.2"),
    ],
)
def test_recordings_that_are_not_heard(both, part, told):
    *_, task = both
    with pytest.raises(ValueError, match=told):
        task.chat([user(part, "which ?")])


@pytest.mark.backend_independent
def test_recordings_are_not_cut():
    """30 seconds are the most for the 188 states of published models, which cut what is longer."""
    processor = kt.processors.SoftTokenSoundProcessor(family="Gemma3n")
    assert processor.num_states(480_001) == 188
    with pytest.raises(ValueError, match="hears at most 30.0"):
        processor.layout(Sound(np.zeros(480_001, "float32")))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gemma4_audio"}, "'gemma4_audio' is not supported"),
        ({"vocab_offset": 262_271}, "must be the last of the vocabulary"),
        ({"conf_attention_context_right": 1}, "conf_attention_context_right=1"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05"),
        ({"sscp_conv_kernel_size": [[3, 3], [5, 3]]}, "sscp_conv_kernel_size"),
        ({"sscp_conv_channel_size": [4]}, "must be two positive integers"),
        ({"conf_num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"conf_reduction_factor": 10**6}, "stride"),
        ({"hidden_size": 7}, "divisible by `num_heads`"),
    ],
)
def test_wrong_values_are_refused(values, message):
    given = {"text_config": {}, "audio_config": values}
    with pytest.raises(ValueError, match=message):
        FAMILIES["gemma3n"].config(given)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preemphasis": 0.0}, "preemphasis=0.0 is not supported"),
        ({"fft_length": 512}, "fft_length=512"),
        ({"max_frequency": 8000.0}, "max_frequency"),
        ({"audio_seq_length": "188"}, "max_soft_tokens"),
        ({"feature_size": 2000}, "num_bins"),
    ],
)
def test_wrong_files_are_refused(tmp_path, values, message):
    """In the one file of images and recordings that published folders have."""
    published = {
        "image_processor_type": "SiglipImageProcessorFast",
        "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
    }
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(published))
    assert kt.ImageProcessor.from_files(tmp_path).sounds.max_soft_tokens == 188
    path.write_text(json.dumps(published | values))
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{message}"):
        kt.ImageProcessor.from_files(tmp_path)


@pytest.mark.one_backend
def test_processors_that_do_not_fit(both):
    *_, task = both
    backbone, tokenizer, sounds = (
        task.backbone,
        task.tokenizer,
        kt.processors.SoftTokenSoundProcessor,
    )
    for given, message in (
        (sounds(num_bins=16), "has a state for 16 frames, and the processor counts one for 4"),
        (sounds(family="Gemma3n"), "reads frames of 16 bands"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.ImageToText(backbone, kt.ImageProcessor(sounds=given), tokenizer)
    with pytest.raises(ValueError, match="`sounds` must be a SoftTokenSoundProcessor"):
        kt.ImageProcessor(sounds=5)
