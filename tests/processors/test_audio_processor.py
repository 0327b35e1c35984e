"""The processor of sound: its features against Transformers' classes, and invalid recordings."""

import base64
import io
import json

import numpy as np
import pytest
import soundfile

import keras_transformer as kt
from keras_transformer.processors.audio_files import count_samples, read_audio

pytestmark = pytest.mark.backend_independent

PUBLISHED = {
    "whisper": ("WhisperFeatureExtractor", {}),
    "whisper-128": ("WhisperFeatureExtractor", {"feature_size": 128, "chunk_length": 5}),
    "ast": ("ASTFeatureExtractor", {}),
    "ast-commands": ("ASTFeatureExtractor", {"max_length": 128, "mean": -6.8, "std": 5.5}),
    "ast-plain": ("ASTFeatureExtractor", {"do_normalize": False, "num_mel_bins": 40}),
    "seamless": ("SeamlessM4TFeatureExtractor", {}),
    "seamless-narrow": ("SeamlessM4TFeatureExtractor", {"feature_size": 24, "num_mel_bins": 24}),
    "wav2vec2": ("Wav2Vec2FeatureExtractor", {}),
    "wav2vec2-plain": ("Wav2Vec2FeatureExtractor", {"do_normalize": False}),
}


def sound(seconds=1.0, rate=16_000, seed=0):
    random, time = np.random.default_rng(seed), np.arange(int(seconds * rate)) / rate
    tone = 0.3 * np.sin(2 * np.pi * 440 * time) * np.exp(-time)
    return (tone + 0.01 * random.normal(size=time.size)).astype("float32")


def encoded(samples, rate=16_000, format="WAV", **options):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, **options)
    return file.getvalue()


def features(reference, samples):
    """Theirs by NumPy, which counts in float64; by PyTorch they are off by more than we are."""
    if hasattr(reference, "_np_extract_fbank_features"):
        size = reference.n_samples
        padded = np.pad(samples[:size], (0, max(size - len(samples), 0)))
        return reference._np_extract_fbank_features([padded], "cpu")[0].T
    made = reference(samples, sampling_rate=16_000)
    if "attention_mask" in made:  # the frames that are whole
        return np.asarray(made["input_features"][0])[np.asarray(made["attention_mask"][0]) == 1]
    return np.asarray(made["input_values"][0])


@pytest.mark.parametrize("case", PUBLISHED.values(), ids=PUBLISHED)
@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_features_are_those_of_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    reference = getattr(transformers, case[0])(**case[1])
    reference.save_pretrained(tmp_path / "theirs")
    processor = kt.AudioProcessor.from_files(tmp_path / "theirs")
    for seconds in (0.5, 0.7771, 1.7, 3.04567, 6):
        samples = sound(seconds)
        expected = features(reference, samples)
        found = processor([samples])[0]
        assert found.dtype == np.float32
        assert np.abs(found[: len(expected)] - expected).max() <= 1e-5
        assert not found[len(expected) :].any()

    (tmp_path / "ours").mkdir()
    processor.save(tmp_path / "ours")
    again = transformers.AutoFeatureExtractor.from_pretrained(tmp_path / "ours")
    assert type(again) is type(reference)
    assert np.abs(features(again, samples) - expected).max() <= 1e-6
    assert kt.AudioProcessor.from_files(tmp_path / "ours").values() == processor.values()
    assert kt.AudioProcessor.unpacked(processor.packed()).values() == processor.values()


@pytest.mark.parametrize("features", kt.processors.audio.FEATURES)
def test_no_length_is_none_in_the_file_too(features, tmp_path):
    processor = kt.AudioProcessor(features, num_bins=8)
    processor.save(tmp_path)
    again = kt.AudioProcessor.from_files(tmp_path)
    assert again.length is None and again([sound(0.3)]).shape == processor([sound(0.3)]).shape


def test_what_a_recording_may_be(tmp_path):
    samples = sound(0.2)
    whole = np.round(samples * 32768) / 32768
    soundfile.write(tmp_path / "a.wav", whole, 16_000)
    content = encoded(whole)
    stereo = np.stack([whole, whole], axis=1)
    given = [
        whole, (whole, 16_000), (whole * 32768).astype("int16"), whole.tolist(), stereo, content,
        {"bytes": content}, {"bytes": None, "path": str(tmp_path / "a.wav")}, tmp_path / "a.wav",
        {"array": whole, "sampling_rate": 16_000}, encoded(stereo), encoded(whole, format="FLAC"),
        (whole * 2**31).astype("int32"), whole.astype("float64"),
    ]  # fmt: skip
    for each in given:
        assert np.abs(read_audio(each, 16_000) - whole).max() <= 1e-6
    processor = kt.AudioProcessor(length=20)
    made = processor(given)
    assert made.shape == (len(given), 20, 80) and np.abs(made - made[:1]).max() <= 1e-5
    assert (processor(whole) == made[:1]).all()
    assert (processor(np.stack([whole, whole])) == made[:2]).all()
    assert (processor(stereo) == made[:1]).all()  # one recording, as soundfile reads it


def test_other_rates():
    """A tone is the same tone at another rate."""
    time = np.arange(8000) / 8000
    found = read_audio((np.sin(2 * np.pi * 300 * time), 8000), 16_000)
    assert found.shape == (16_000,) and found.dtype == np.float32
    expected = np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)
    assert np.abs(found - expected)[500:-500].max() <= 1e-3
    high = read_audio((np.sin(2 * np.pi * 7000 * np.arange(48_000) / 48_000), 48_000), 8000)
    assert np.abs(high[500:-500]).max() <= 1e-2  # what the rate cannot hold is not folded over


@pytest.mark.parametrize("rate", [1, 10, 99, 900, 2_000_000])
def test_the_rate_of_a_file_is_checked_before_it_is_resampled(rate, tmp_path):
    """2 MB that say 1 Hz would be 30 GB at 16 kHz."""
    samples = np.zeros(2_000_000, "uint8")
    content = encoded(np.zeros(9), rate=8000)
    content = content[:24] + rate.to_bytes(4, "little") + content[28:]
    head = bytearray(content[:44])
    head[22:24], head[32:36] = (1).to_bytes(2, "little"), (1).to_bytes(2, "little") + b"\x08\0"
    head[4:8] = (36 + samples.size).to_bytes(4, "little")
    head[40:44] = samples.size.to_bytes(4, "little")
    content = bytes(head) + samples.tobytes()
    (tmp_path / "a.wav").write_bytes(content)
    array = np.zeros(2_000_000, "float32")
    processor = kt.AudioProcessor("waveform")
    url = "data:audio/wav;base64," + base64.b64encode(content[:500]).decode()
    for given in (
        content, str(tmp_path / "a.wav"), {"bytes": content}, {"path": tmp_path / "a.wav"}, url,
        (array, rate), {"array": array, "sampling_rate": rate}, (array.tolist()[:9], float(rate)),
    ):  # fmt: skip
        for read in (lambda x: read_audio(x, 16_000), processor, lambda x: processor.counts([x])):
            with pytest.raises(ValueError, match="a rate of"):
                read(given)


def test_lengths_are_checked_before_anything_is_resampled():
    silence = np.broadcast_to(np.float32(0), (2**26,))  # takes no memory
    for rate, target in ((1000, 16_000), (3000, 48_000), (8000, 48_000)):
        with pytest.raises(ValueError, match=r"67,108,864 samples .* may have 268,435,456"):
            read_audio((silence, rate), target)
    with pytest.raises(ValueError, match="536,870,912 samples"):
        read_audio(np.broadcast_to(np.float32(0), (2**29,)), 16_000)


def test_hours_are_features_by_blocks(monkeypatch):
    """The frames of a long recording are made some at a time, and are the same."""
    for features in ("log_mel", "filter_bank"):
        processor = kt.AudioProcessor(features, num_bins=8)
        whole = processor([sound(3)])
        with monkeypatch.context() as patch:
            patch.setattr("keras_transformer.processors.mel._BLOCK", 7)
            assert np.abs(processor([sound(3)]) - whole).max() <= 1e-6


def test_tensors_and_data_urls():
    torch = pytest.importorskip("torch")
    whole = sound(0.2)
    tensor = torch.from_numpy(whole).requires_grad_()
    url = "data:audio/flac;base64," + base64.b64encode(encoded(whole, format="FLAC")).decode()
    for given in (tensor, (tensor, 16_000), {"array": tensor}, url, tensor[:, None]):
        assert np.abs(read_audio(given, 16_000) - whole).max() <= 1e-4
    processor = kt.AudioProcessor(length=20)
    assert processor.takes(tensor) and processor.is_one(tensor)
    both = torch.stack([tensor, tensor])
    assert processor(both).shape == (2, 20, 80)


def test_a_folder_by_class(tmp_path):
    for place in ("yes/2.wav", "yes/1.FLAC", "no/1.ogg", "no/notes.txt", "loose.wav"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(encoded(sound(0.1)))
    recordings, labels = kt.processors.audio_folder(tmp_path)
    assert labels == ["no", "yes", "yes"]
    assert [path.removeprefix(f"{tmp_path}/") for path in recordings] == [
        "no/1.ogg", "yes/1.FLAC", "yes/2.wav",
    ]  # fmt: skip
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match="has no recordings: it must have a subfolder for each class"
    ):
        kt.processors.audio_folder(tmp_path / "empty")


def test_lengths():
    processor = kt.AudioProcessor(num_bins=8)
    assert processor([sound(0.5), sound(0.2)]).shape == (2, 50, 8)
    assert processor([np.zeros(3, "float32")]).shape == (1, 1, 8)
    cut = kt.AudioProcessor(num_bins=8, length=30)
    assert (cut([sound(2)]) == cut([sound(2)[: cut.most_samples]])).all()
    bank = kt.AudioProcessor("filter_bank", num_bins=8)
    assert bank([sound(0.5), np.zeros(9)]).shape == (2, 48, 8)
    assert kt.AudioProcessor("waveform")([sound(0.5), sound(1.2)]).shape == (2, 32_000)
    lengths = {
        seconds: kt.AudioProcessor("waveform")([sound(seconds)]).shape[1] for seconds in (7, 9, 17)
    }
    assert lengths == {7: 7 * 16_000, 9: 10 * 16_000, 17: 20 * 16_000}
    assert kt.AudioProcessor("waveform", length=9)([sound(0.5)]).shape == (1, 9)


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        (b"", "`x.1.` cannot be read as audio: "),
        (
            b"a text, and no sound",
            "read as audio: Error opening: .*recogni[sz]ed. Is the file whole",
        ),
        (encoded(sound())[:20], "`x.1.` cannot be read as audio"),
        (np.zeros(0), "`x.1.` has no samples: it is empty"),
        (encoded(np.zeros(0)), "`x.1.` has no samples"),
        (np.array([0.0, np.nan]), "`x.1.` has samples that are NaN or infinite"),
        (np.array([0.0, np.inf]), "NaN or infinite"),
        (np.zeros((2, 900)), "Its channels come first: give `recording.T`"),
        (np.zeros((2, 3, 4)), "must be of shape .samples,. or .samples, channels."),
        (np.zeros(5, "uint8"), "integers of 16 or 32 bits, received uint8"),
        ((np.zeros(5), 3), "must have a rate of 100 to 1,000,000"),
        ((np.zeros(5), "fast"), "must have a rate"),
        ((8000, np.zeros(900)), r"`x.1.` has its rate first: give `\(samples, rate\)`"),
        (32768.0 * sound(0.1), "has floats up to [0-9.]+, but samples must be from -1 to 1"),
        (-200.0 * np.ones(900), "has floats up to 200, but samples must be from -1 to 1"),
        (None, "`x.1.` must be a recording: a path"),
        (io.BytesIO(encoded(sound())), r"received <_io.BytesIO.*its bytes: `file.read\(\)`"),
        ("missing.wav", "there is no file missing.wav in /"),
    ],
)
def test_no_recording(recording, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        kt.AudioProcessor(length=9)([sound(0.1), recording])


def test_a_header_that_promises_much():
    content = bytearray(encoded(sound(0.1), format="FLAC"))
    content[21:26] = bytes([content[21] | 0x0F, 0xFF, 0xFF, 0xFF, 0xFF])  # 68,719 million samples
    with pytest.raises(ValueError, match=r"(has 68,719,476,735 samples|cannot be read as audio)"):
        read_audio(bytes(content), 16_000)


def test_the_channels_of_a_file_are_those_of_an_array():
    for channels in (64, 65):
        content = encoded(np.zeros((9, channels)))
        if channels == 64:
            assert read_audio(content, 16_000).shape == (9,)
            continue
        for read in (read_audio, count_samples):
            with pytest.raises(ValueError, match="has 65 channels, but a recording may have 64"):
                read(content, 16_000)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"features": "melody"}, "`features` must be one of"),
        ({"length": 0}, "`length`"),
        ({"sampling_rate": 3}, "`sampling_rate`"),
        ({"mean": 1.0}, "`mean` and `std` go together"),
        ({"mean": 1.0, "std": 0.0}, "`std`"),
        ({"hop_length": 0}, "`hop_length`"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(ValueError, match=message):
        kt.AudioProcessor(**values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "must hold an object, but holds"),
        ("{}", "Audio for None is not supported, only for 'WhisperFeatureExtractor'"),
        ('{"feature_extractor_type": "ViTFeatureExtractor"}', "'ViTFeatureExtractor' is not"),
        ('{"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 0}', "chunk_leng"),
        ('{"feature_extractor_type": "WhisperFeatureExtractor", "hop_length": 0}', "hop_length"),
        ('{"feature_extractor_type": "ASTFeatureExtractor", "std": "x"}', "`std`"),
        ('{"feature_extractor_type": "ASTFeatureExtractor", "do_normalize": 3}', "do_normalize"),
    ],
)
def test_wrong_files(content, message, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        kt.AudioProcessor.from_files(tmp_path)


def test_a_waveform_of_the_time_of_wav2vec2(tmp_path):
    """Files then did not name the class; whether Transformers makes a mask is kept for it."""
    values = {"do_normalize": True, "feature_size": 1, "padding_value": 0.0}
    values |= {"return_attention_mask": True, "sampling_rate": 16_000}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    processor = kt.AudioProcessor.from_files(tmp_path)
    assert processor.features == "waveform" and processor.normalize
    written = processor.values()
    assert written["feature_extractor_type"] == "Wav2Vec2FeatureExtractor"
    assert values.items() <= written.items()
    assert not kt.AudioProcessor("waveform").values()["return_attention_mask"]


def test_how_many_samples_a_recording_has():
    processor = kt.AudioProcessor("waveform", length=9000)
    given = [encoded(sound(0.5)), (sound(0.25), 8000), sound(1.0), {"array": sound(0.1)}]
    assert processor.counts(given) == [8000, 8000, 9000, 1600]
    with pytest.raises(ValueError, match="`x.1.` cannot be read as audio"):
        processor.counts([sound(0.1), b"no sound"])


def test_values_are_plain_json(tmp_path):
    processor = kt.AudioProcessor("filter_bank", length=7, mean=1.0, std=2.0)
    processor.save(tmp_path)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text()) == processor.values()


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_fft": 2**20}, "`window_length` must be"),
        ({"n_fft": 2**15, "hop_length": 1}, "`hop_length` must be at least 512, as windows have"),
        ({"feature_size": 1024}, "`num_bins` must be at most `window_length`, 400, received 1024"),
        ({"nb_max_frames": 2**22}, "`length` must be at most 3,355,443 frames of 80 bands"),
    ],
)
def test_a_file_cannot_ask_for_far_more_numbers_than_there_are_samples(values, message):
    whisper = {"feature_extractor_type": "WhisperFeatureExtractor"}
    with pytest.raises(ValueError, match=message):
        kt.AudioProcessor.from_values(whisper | values)
