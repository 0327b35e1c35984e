"""An encoder that writes what it hears: training, texts and times of words, saving, wrong input."""

import io

import keras
import numpy as np
import pytest
import soundfile

import keras_transformer as kt
from keras_transformer.tokenizers import CTCTokenizer
from tests.tasks import audio

RATE = audio.RATE
WORDS = ["low", "high"]


def task(dtype=None, tokenizer=None, processor=None, **stem):
    keras.utils.set_random_seed(0)
    values = {"filters": [12, 16], "kernel_sizes": [10, 20], "strides": [5, 20]}
    values |= {"position_size": 32, "position_groups": 1}
    config = audio.waveform(**values | stem)
    return kt.CTCSpeechToText(
        kt.models.Encoder(config, dtype=dtype),
        processor or kt.AudioProcessor("waveform", sampling_rate=RATE),
        tokenizer or CTCTokenizer.of_characters("".join(WORDS)),
    )


def test_learns():
    made = task(norm="layer")
    made.compile(keras.optimizers.Adam(1e-2))
    x, y = audio.recordings()
    before = made.evaluate(x, y, verbose=0)
    made.fit(x, y, epochs=30, batch_size=4, seed=1, verbose=0, validation_data=(x[:4], y[:4]))
    assert made.evaluate(x, y, verbose=0) < before / 10
    assert made.transcribe(x) == y
    assert made.transcribe((x[1], RATE)) == y[1]


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_is_saved(norm, tmp_path):
    made = task(norm=norm)
    x, y = audio.recordings(6)
    made.fit(x, y, seed=1, verbose=0)
    logits = made.predict(x, batch_size=5, verbose=0)
    made.save_to_preset(tmp_path / "preset")
    made.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert type(again) is kt.CTCSpeechToText and type(again.tokenizer) is CTCTokenizer
        assert again.task_values() == made.task_values()
        assert np.abs(again.predict(x, verbose=0) - logits).max() <= 1e-4
        assert again.evaluate(x, y, verbose=0) == pytest.approx(
            made.evaluate(x, y, verbose=0), rel=1e-3
        )


def test_a_recording_is_what_it_is_alone():
    made = task()
    x, _ = audio.recordings(5)
    logits = made.predict(x, batch_size=3, verbose=0)
    stem = made.backbone.config.stem
    for row, samples in zip(logits, x, strict=True):
        (alone,) = made.predict([samples], verbose=0)
        states = stem.lengths(len(samples))[-1]
        assert np.abs(row[:states] - alone[:states]).max() <= 1e-4
        assert (row[states:].argmax(-1) == made.blank_id).all()
    assert made.transcribe(x) == [made.transcribe(samples) for samples in x]


def test_adapters_mixed_precision_and_weights():
    made = task(dtype="mixed_bfloat16")
    made.enable_lora(rank=2)
    before = [np.array(v) for v in made.backbone.non_trainable_weights]
    x, y = audio.recordings(4)
    made.fit(x, y, sample_weight=[1.0, 0.0, 2.0, 1.0], verbose=0)
    for old, new in zip(before, made.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert all(isinstance(text, str) for text in made.transcribe(x))
    assert np.isfinite(made.evaluate(x, y, verbose=0))


def test_any_tokenizer_with_padding():
    """Words for tokens, and arrays in place of recordings."""
    made = task(tokenizer=kt.Tokenizer.of_symbols(WORDS))
    x, y = audio.recordings(4)
    made.fit(x, y, verbose=0)
    assert all(set(text.split()) <= {*WORDS, ""} for text in made.transcribe(x))
    with pytest.raises(ValueError, match="`timestamps` are for words, but the tokenizer has no"):
        made.transcribe(x, timestamps=True)
    bare = kt.CTCSpeechToText(made.backbone, vocabulary_size=7, blank_id=6)
    samples = np.stack([row[:1500] for row in x])
    targets = np.array([[1, 2, 6], [3, 6, 6], [1, 1, 2], [6, 6, 6]])
    bare.fit({"samples": samples}, targets, verbose=0)
    assert bare.predict({"samples": samples}, verbose=0).shape[2] == 7
    assert np.isfinite(bare.evaluate({"samples": samples}, targets, verbose=0))


def _says(made, *tokens):
    """Makes the model say these tokens, by turns, whatever it hears."""
    rows = np.full((len(tokens), made.vocabulary_size), -9.0)
    rows[np.arange(len(tokens)), [made.tokenizer.token_to_id(token) for token in tokens]] = 9
    made.batch_function = lambda: lambda batch: np.stack([rows] * len(batch[0]["samples"]))


@pytest.mark.one_backend
def test_texts_and_times_of_what_states_say():
    made = task()
    _says(made, "|", "<pad>", "h", "i", "<pad>", "i", "|", "|", "<pad>", "g", "g", "h", "<pad>")
    assert made.transcribe([np.ones(1000)] * 2) == ["hii gh"] * 2
    step = 100 / RATE  # of a state
    words = made.transcribe(np.ones(1000), timestamps=True)
    assert [word.text for word in words] == ["hii", "gh"]
    times = [time for word in words for time in (word.start, word.end)]
    assert times == pytest.approx([2 * step, 6 * step, 9 * step, 12 * step])
    _says(made, "<pad>", "|", "<pad>")
    assert made.transcribe(np.ones(1000)) == "" and not made.transcribe(np.ones(9), timestamps=True)


@pytest.mark.one_backend
def test_longer_than_the_processor_reads():
    processor = kt.AudioProcessor("waveform", sampling_rate=RATE, length=1000)
    made = task(processor=processor)
    _says(made, "h", "i", "<pad>")
    assert made.transcribe([np.ones(2100), np.ones(5)]) == ["hi hi hi", "hi"]
    starts = [word.start for word in made.transcribe(np.ones(2100), timestamps=True)]
    assert starts == pytest.approx([0, 1000 / RATE, 2000 / RATE])


@pytest.mark.one_backend
def test_files_of_another_rate(tmp_path):
    made = task()
    x, _ = audio.recordings(3)
    paths, contents = [], []
    for i, samples in enumerate(x):
        paths.append(str(tmp_path / f"{i}.wav"))
        soundfile.write(paths[-1], samples, RATE, subtype="FLOAT")
        file = io.BytesIO()
        soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
        contents.append({"bytes": file.getvalue(), "path": None})
    expected = made.predict(x, verbose=0)
    assert np.abs(made.predict(paths, verbose=0) - expected).max() <= 1e-6
    assert np.abs(made.predict(contents, verbose=0) - expected).max() <= 1e-6
    made.fit([(samples, 2 * RATE) for samples in x], ["lo", "h", "l"], verbose=0)
    source = made.processor.source
    assert source.counts([paths[0], (x[1], 16_000), contents[2]]) == [
        len(x[0]), -(-len(x[1]) * RATE // 16_000), len(x[2])
    ]  # fmt: skip


@pytest.mark.one_backend
def test_wrong_input():
    made = task()
    x, y = audio.recordings(4)
    with pytest.raises(
        ValueError, match=r"`y\[1\]` needs 40 states.* `x\[1\]`, with 1,600 samples"
    ):
        made.fit(x, ["low", "low " * 10, *y[2:]], verbose=0)
    with pytest.raises(ValueError, match="`y.0.` has the token '<pad>', which is the blank"):
        made.fit(x[:1], ["lo<pad>w"], verbose=0)
    with pytest.raises(ValueError, match="Received 4 recordings and 3 texts"):
        made.fit(x, y[:3], verbose=0)
    with pytest.raises(ValueError, match=r"`x\[2\]` must be a recording"):
        made.transcribe([*x[:2], 7])
    for verb in (made.fit, made.evaluate):
        with pytest.raises(ValueError, match=r"`y\[2\]` is empty: ' '"):
            verb(x, [*y[:2], " ", y[3]], verbose=0)
        silent = [*x[:3], np.full(1900, 0.25, "float32")]
        with pytest.raises(ValueError, match=r"`x\[3\]` is silent: each of its 1,900 samples"):
            verb(silent, y, verbose=0)
    assert len(made.transcribe(silent)) == 4
    with pytest.raises(ValueError, match="learns from labels: give `y`"):
        made.fit(x, verbose=0)
    with pytest.raises(ValueError, match="`sample_weight` must be one number a recording, 4"):
        made.fit(x, y, sample_weight=[1.0], verbose=0)
    with pytest.raises(ValueError, match="needs a backbone that reads waveforms"):
        kt.CTCSpeechToText(kt.models.Encoder(audio.frames()), vocabulary_size=5)
    with pytest.raises(ValueError, match="The tokenizer has 11 tokens, but the output only 5"):
        tokens = made.tokenizer
        processor = made.processor.source
        kt.CTCSpeechToText(made.backbone, processor, tokens, vocabulary_size=5)
    with pytest.raises(ValueError, match="`vocabulary_size` .*the number of tokens of the output"):
        kt.CTCSpeechToText(made.backbone)
    with pytest.raises(ValueError, match="reads a waveform, but the processor has .*'log_mel'"):
        kt.CTCSpeechToText(made.backbone, kt.AudioProcessor(), made.tokenizer)
    with pytest.raises(ValueError, match="`tokenizer` is missing"):
        kt.CTCSpeechToText(made.backbone, kt.AudioProcessor("waveform"))
