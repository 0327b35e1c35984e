"""Speech to text of samples: recordings of any lengths, limits by their seconds, windows."""

import keras
import numpy as np
import pytest
import soundfile

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.tasks.media.sources import SourceRows
from tests.tasks import audio

WORDS = ["low", "high"]
RATE = audio.RATE


def task(dtype=None, num_layers=1, **options):
    keras.utils.set_random_seed(0)
    tokenizer = kt.Tokenizer.of_symbols(WORDS)
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "num_layers": num_layers}
    config = audio.samples(**sizes)
    processor = kt.AudioProcessor("waveform", sampling_rate=RATE, normalize=False)
    return kt.SpeechToText(kt.models.Seq2Seq(config, dtype=dtype), processor, tokenizer, **options)


def test_learns_and_is_saved(tmp_path):
    made = task(tokens_per_second=20.0, window_seconds=0.5)
    made.compile(keras.optimizers.Adam(1e-2))
    x, y = audio.recordings()
    made.fit(x, y, epochs=20, batch_size=8, seed=1, verbose=0)
    assert made.transcribe(x) == y
    assert made.transcribe((x[1], RATE)) == y[1]
    assert made.evaluate(x, y, return_dict=True, verbose=0)["accuracy"] > 0.9
    # Longer than is read at once: windows one behind the other.
    both = np.concatenate([np.tile(row, 3)[: RATE // 2] for row in x[:2]])
    assert made.transcribe([both, x[1]]) == ["low high", "high"]

    made.save_to_preset(tmp_path / "preset")
    made.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.transcribe([*x, both]) == [*y, "low high"]
        assert (again.tokens_per_second, again.window_seconds) == (20, 0.5)
    other = kt.SpeechToText.from_preset(tmp_path / "preset", window_seconds=None)
    assert other.window_seconds is None and other.transcribe(x) == y


def test_a_recording_gives_what_it_gives_alone():
    """Also where waiting ones take the places of those that are done."""
    made = task(num_layers=2)  # with one the random weights give the same to all
    random = np.random.default_rng(1)
    for variable in made.backbone.trainable_variables:
        scale = 0.1 if "embeddings" in variable.path else 0.8
        variable.assign(random.normal(size=variable.shape, scale=scale))
    made.end_ids = ()
    x, y = audio.recordings(7)
    x[3], x[5] = np.tile(x[3], 9), x[5][:300]  # more seconds than the others have, and fewer
    alone = [made.generate(row, max_new_tokens=5, return_details=True) for row in x]
    details = made.generate(x, max_new_tokens=5, batch_size=3, return_details=True)
    assert [c.token_ids for c in details] == [c.token_ids for c in alone]
    for found, expected in zip(details, alone, strict=True):
        assert len(found.token_ids) == 5
        assert np.abs(found.log_probabilities - expected.log_probabilities).max() <= 1e-4
    assert len({tuple(c.token_ids) for c in details}) > 2
    scores = made.score(x, y)
    assert np.abs(
        scores - [made.score(row, text) for row, text in zip(x, y, strict=True)]
    ).max() < (1e-4)
    beams = made.generate(x, sampler="beam", max_new_tokens=4, batch_size=3)
    assert beams == [made.generate(row, sampler="beam", max_new_tokens=4) for row in x]


def test_given_states_have_a_mask_of_their_own():
    made = task()
    x, _ = audio.recordings(3)
    inputs = made.arrays_of([x[0][:900], x[1], x[2][:400]])
    ids = {"decoder_token_ids": np.array([[1, 3]] * 3)}
    expected, found = made.backbone(inputs | ids, collect=("states",))
    states = found["encoder_states"][-1]
    stem = made.backbone.encoder_stem
    mask = stem.mask_of_states(inputs["encoder_padding_mask"], states.shape[1])
    assert to_numpy(mask).sum(1).tolist() == [
        made.backbone.config.sides[0].stem.lengths(n)[-1] for n in (900, 1600, 400)
    ]
    given = {"encoder_states": states, "encoder_padding_mask": mask, **ids}
    difference = to_numpy(made.backbone(given)) - to_numpy(expected)
    assert np.abs(difference).max() <= 1e-5


def _counts(made, recordings, **options):
    """How many tokens each has of a model that never ends."""
    made.end_ids = ()
    found = made.generate(recordings, return_details=True, **options)
    assert {c.finish_reason for c in found} == {"length"}
    return [len(c.token_ids) for c in found]


@pytest.mark.one_backend
def test_limits_by_seconds(tmp_path):
    made = task(tokens_per_second=25.0)
    x = [np.ones(n) for n in (8000, 320, 100, 32_000)]
    assert _counts(made, x) == [25, 1, 1, 100]
    assert _counts(made, x, batch_size=1) == [25, 1, 1, 100]
    soundfile.write(tmp_path / "a.wav", np.ones(8000), 16_000, subtype="FLOAT")
    assert _counts(made, [str(tmp_path / "a.wav"), (np.ones(8000), 16_000)]) == [12, 12]
    # What a call says counts, and what a checkpoint says bounds it.
    assert _counts(made, x, max_new_tokens=3) == [3] * 4
    assert _counts(made, x, max_length=4) == [4] * 4
    made.backbone.generation_config = {"max_length": 31}
    assert _counts(made, x) == [25, 1, 1, 30]
    assert _counts(task(), x[:2]) == [64] * 2


@pytest.mark.one_backend
def test_windows():
    made = task(window_seconds=0.1)
    read = []
    made.written = lambda pieces, rows, options: read.append(pieces) or ["a"] * len(pieces)
    assert made.transcribe([np.ones(1700), np.ones(800)]) == ["a a a", "a"]
    assert [len(piece) for piece in read[0]] == [567, 567, 566, 800]
    whole = task()
    whole.written = made.written
    assert whole.transcribe(np.ones(90_000)) == "a" and len(read[1][0]) == 90_000


@pytest.mark.one_backend
def test_sources_are_read_once_for_all_inputs():
    made = task()
    x, _ = audio.recordings(4)
    calls, arrays_of = [], made.arrays_of
    made.arrays_of = lambda rows, places: calls.append(places) or arrays_of(rows, places)
    rows = SourceRows.by_name(made, x)
    assert list(rows) == ["encoder_samples", "encoder_padding_mask"]
    for places in ([2, 0], np.array([1, 1, 3])):
        samples, mask = (rows[name][places] for name in rows)
        assert samples.shape == mask.shape
        assert mask.sum(1).tolist() == [len(x[i]) for i in places]
    assert calls == [(2, 0), (1, 1, 3)]


def test_adapters_and_mixed_precision():
    made = task(dtype="mixed_bfloat16")
    made.enable_lora(rank=2)
    x, y = audio.recordings(4)
    made.fit(x, y, verbose=0)
    assert all(isinstance(text, str) for text in made.transcribe(x, max_new_tokens=3))


@pytest.mark.one_backend
def test_wrong_input():
    for options, message in (
        ({"tokens_per_second": 0}, "`tokens_per_second` must be a number above 0"),
        ({"window_seconds": "long"}, "`window_seconds` must be a number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            task(**options)
    made = task()
    x, y = audio.recordings(2)
    with pytest.raises(ValueError, match="are for models with Whisper's tokens"):
        made.transcribe(x, timestamps=True)
    with pytest.raises(ValueError, match=r"`x\[1\]` has no samples"):
        made.transcribe([x[0], np.zeros(0)])
    with pytest.raises(ValueError, match="reads a waveform, but the processor has"):
        kt.SpeechToText(made.backbone, kt.AudioProcessor(), made.tokenizer)
    with pytest.raises(ValueError, match="`encoder_padding_mask` must have the shape of"):
        made.backbone(
            {
                "encoder_samples": np.ones((1, 900), "float32"),
                "encoder_padding_mask": np.ones((1, 9), bool),
                "decoder_token_ids": np.ones((1, 2), "int32"),
            }
        )
    with pytest.raises(ValueError, match="SpeechToText learns from texts: give `y`"):
        made.fit(x, verbose=0)
    assert y == WORDS
