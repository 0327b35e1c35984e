"""Speech to text: training, saving, and Whisper's ways against the Transformers library."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tasks.media.speech_tokens import SpeechTokens, TimeRules
from tests.tasks import audio, whisper

WORDS = ["low", "high"]


def task(dtype=None):
    tokenizer = kt.Tokenizer.of_symbols(WORDS)
    config = audio.transcripts(vocabulary_size=tokenizer.vocabulary_size)
    return kt.SpeechToText(
        kt.models.Seq2Seq(config, dtype=dtype), processor=audio.processor(), tokenizer=tokenizer
    )


def test_learns_and_is_saved(tmp_path):
    keras.utils.set_random_seed(0)
    made = task()
    made.compile(keras.optimizers.Adam(1e-2))
    x, y = audio.recordings()
    made.fit(x, y, epochs=20, batch_size=8, seed=1, verbose=0)
    assert made.transcribe(x) == y
    assert made.transcribe((x[1], audio.RATE)) == y[1]
    # Longer than the model reads at once: pieces one behind the other.
    size = made.processor.source.most_samples
    both = np.concatenate([np.pad(row[:size], (0, max(size - len(row), 0))) for row in x[:2]])
    assert made.transcribe([both, x[1]]) == ["low high", "high"]

    made.save_to_preset(tmp_path / "preset")
    made.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.transcribe(x) == y
    with pytest.raises(ValueError, match="are for models with Whisper's tokens"):
        made.transcribe(x, language="de")
    with pytest.raises(ValueError, match="knows only one language"):
        made.detect_language(x)
    for given, texts, message in (
        (x[:2], ["low", ""], r"`y\[1\]` is empty"),
        ([x[0], np.zeros(1900)], y[:2], r"`x\[1\]` is silent"),
    ):
        for verb in (made.fit, made.evaluate):
            with pytest.raises(ValueError, match=message):
                verb(given, texts, verbose=0)


def test_adapters_and_mixed_precision():
    made = task(dtype="mixed_bfloat16")
    made.enable_lora(rank=2)
    x, y = audio.recordings(4)
    made.fit(x, y, verbose=0)
    assert all(isinstance(text, str) for text in made.transcribe(x, max_new_tokens=3))


@pytest.fixture(scope="module", params=[0, 1])
def both(request, tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    reference = whisper.model(request.param)
    folder = whisper.saved(reference, tmp_path_factory.mktemp("whisper"))
    return reference, kt.SpeechToText.from_preset(folder)


def features(recordings, **options):
    extract = whisper.features()
    return extract(recordings, sampling_rate=16_000, return_tensors="pt", **options)


RECORDINGS = [*(whisper.sound(1, seed) for seed in range(2)), whisper.sound(0.3, 9)]


@pytest.mark.parametrize(("language", "what"), [("de", "transcribe"), (None, "translate")])
def test_same_texts(both, language, what):
    reference, made = both
    given = features(RECORDINGS).input_features
    found = reference.generate(given, language=language, task=what, max_new_tokens=20)
    tokenizer = whisper.tokenizer()
    expected = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in found]
    times = [i for i, text in enumerate(expected) if "<|" in text]  # windows of their own there
    assert len(times) < len(expected)
    ours = made.transcribe(RECORDINGS, language=language, task=what, max_new_tokens=20)
    for i, text in enumerate(expected):
        assert i in times or ours[i] == text
    codes = [tokenizer.decode([int(i)]) for i in reference.detect_language(given)]
    assert [f"<|{code}|>" for code in made.detect_language(RECORDINGS)] == codes


def theirs(reference, recordings, **options):
    """The pieces that Transformers finds, with their times."""
    given = features(recordings, **options)
    more = {"attention_mask": given.attention_mask} if options else {}
    found = reference.generate(
        given.input_features, language="de", task="transcribe", return_timestamps=True,
        return_segments=True, max_new_tokens=20, **more,
    )  # fmt: skip
    words = whisper.vocabulary()["<|endoftext|>"]
    rows = []
    for pieces in found["segments"]:
        texts = [[int(i) for i in piece["tokens"] if i < words] for piece in pieces]
        decoded = whisper.tokenizer().batch_decode(texts)
        times = [(round(float(p["start"]), 2), round(float(p["end"]), 2)) for p in pieces]
        both = zip(times, decoded, strict=True)
        rows.append([(*time, text.strip()) for time, text in both if text.strip()])
    return rows


def test_same_times(both):
    reference, made = both
    expected = theirs(reference, RECORDINGS)
    found = made.transcribe(RECORDINGS, language="de", timestamps=True, max_new_tokens=20)
    assert [[tuple(piece) for piece in row] for row in found] == expected
    assert any(len(row) > 1 for row in expected) or whisper.model(1)


def test_long_recordings(both):
    """Several windows of each, of which the next begins where the last piece ended."""
    reference, made = both
    long = [whisper.sound(3.3, 5), whisper.sound(1.9, 6)]
    options = {"truncation": False, "padding": "longest", "return_attention_mask": True}
    expected = theirs(reference, long, **options)
    found = made.transcribe(long, language="de", timestamps=True, max_new_tokens=20)
    assert [[tuple(piece) for piece in row] for row in found] == expected
    assert expected[0][-1][0] > 1
    # The others in the batch, and how many there are, change nothing.
    alone = [made.transcribe(r, language="de", timestamps=True, max_new_tokens=20) for r in long]
    assert alone == found
    text = made.transcribe(long[0], language="de", max_new_tokens=20)
    assert text == " ".join(piece.text for piece in found[0])


@pytest.mark.one_backend
def test_fine_tuning_and_export(both, tmp_path):
    reference, made = both
    made.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    texts = ["ab", "c", "de"]
    again.fit(RECORDINGS, texts, language="de", verbose=0)
    inputs, _, weights = again.make_dataset(RECORDINGS, texts, language="de")[0]
    known = whisper.vocabulary()
    prompt = ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert (inputs["decoder_token_ids"][:, :4] == [known[token] for token in prompt]).all()
    assert (weights[:, :3] == 0).all() and (weights[:, 3] == 1).all()
    kt.export_to_huggingface(again, tmp_path / "theirs")
    import transformers

    back = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "theirs")
    assert back.generation_config.is_multilingual
    assert back.generation_config.lang_to_id == reference.generation_config.lang_to_id
    extract = transformers.AutoFeatureExtractor.from_pretrained(tmp_path / "theirs")
    assert extract.chunk_length == whisper.SECONDS


@pytest.mark.one_backend
def test_wrong_words(both):
    _, made = both
    for options, message in (
        ({"language": "klingon"}, "`language` must be one of"),
        ({"language": "de", "task": "sing"}, "`task` must be one of"),
        ({"timestamps": 3}, "`timestamps`"),
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            made.transcribe(RECORDINGS, **options)
    with pytest.raises(ValueError, match="takes no `prompts`"):
        made.generate(RECORDINGS, prompts="what?")
    with pytest.raises(ValueError, match=r"`x\[1\]` has no samples"):
        made.transcribe([RECORDINGS[0], np.zeros(0)])


def test_rules_of_times_are_those_of_transformers():
    """For random texts of words and times, the same tokens are allowed."""
    torch = pytest.importorskip("torch")
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    end, no_times, size = 20, 22, 40
    values = GenerationConfig(eos_token_id=end)
    values.no_timestamps_token_id, values.max_initial_timestamp_index = no_times, 4
    reference = WhisperTimeStampLogitsProcessor(values, begin_index=1)
    rules = TimeRules(no_times, end, 4)
    random = np.random.default_rng(0)
    for length in range(6):
        tokens = random.choice([*range(20), *range(23, 40), *range(23, 40)], (64, length))
        for row in tokens:
            row[row > no_times] = np.sort(row[row > no_times])  # as the rules leave them
        logits = random.normal(size=(64, size)).astype("float32") * 3
        ids = torch.tensor(np.concatenate([np.zeros((64, 1), "int64"), tokens], axis=1))
        expected = reference(ids.long(), torch.tensor(logits)).numpy()
        filled = np.full((64, 1, 8), 0, "int32")
        filled[:, 0, :length] = tokens
        found = rules(
            keras.ops.convert_to_tensor(logits[:, None]),
            keras.ops.convert_to_tensor(filled),
            keras.ops.convert_to_tensor(np.full((64,), length, "int32")),
        )
        found = keras.ops.convert_to_numpy(found)[:, 0]
        allowed = np.isfinite(expected)
        assert ((found > -1e29) == allowed).all()
        assert np.abs(found - logits)[allowed].max() == 0


@pytest.mark.backend_independent
def test_tokens_of_a_vocabulary(tmp_path):
    pytest.importorskip("transformers")
    whisper.tokenizer().save_pretrained(tmp_path)
    tokens = SpeechTokens.from_tokenizer(kt.Tokenizer.from_files(tmp_path))
    known = whisper.vocabulary()
    assert tokens.languages == {code: known[f"<|{code}|>"] for code in whisper.LANGUAGES}
    assert tokens.first_time == known["<|0.00|>"]
    assert SpeechTokens.from_tokenizer(kt.Tokenizer.of_symbols("AB")) is None
