"""The sub-commands that write text of files."""

import json

import keras
import pytest
import soundfile
from PIL import Image

import keras_transformer as kt
from tests.checkpoints import families
from tests.checkpoints.test_families import saved
from tests.tasks import audio, images, moonshine, series, test_sampled_forecaster, whisper

pytestmark = pytest.mark.one_backend


def test_caption(run, tmp_path):
    tokenizer = kt.Tokenizer.train(["dark", "bright", "what is it ?"] * 4, vocabulary_size=280)
    task = kt.ImageToText(
        kt.models.Seq2Seq(images.captions()), kt.ImageProcessor(size=(12, 16)), tokenizer
    )
    task.compile(keras.optimizers.Adam(1e-2))
    x, y = images.pictures()
    task.fit((x, ["what is it ?"] * 16), y, epochs=15, batch_size=8, seed=1, verbose=0)
    task.save_to_preset(tmp_path / "preset")
    paths = [str(tmp_path / f"{i}.png") for i in range(3)]
    for path, picture in zip(paths, x, strict=False):
        Image.fromarray(picture).save(path)
    question = ("--question", "what is it ?")
    code, out, error = run("caption", "--preset", str(tmp_path / "preset"), *question, *paths)
    assert (code, out.split(), error) == (0, y[:3], "")
    options = ("--preset", str(tmp_path / "preset"), *question, "--format", "json")
    rows = [json.loads(line) for line in run("caption", *options, *paths)[1].splitlines()]
    assert rows == [{"text": label} for label in y[:3]]
    code, _, error = run("caption", "--preset", str(tmp_path / "preset"), "missing.png")
    assert code == 2 and "there is no file missing.png" in error


@pytest.mark.parametrize("case", [("vision-encoder-decoder", 1), ("blip", 0)])
def test_caption_by_a_published_model(run, tmp_path, case):
    """Random weights: what Transformers writes of the same image, symbol by symbol."""
    torch = pytest.importorskip("torch")
    symbols = [chr(ord("A") + i) for i in range(56)]
    model = families.make(*case, "LanguageModel")
    folder = saved(model, tmp_path / "theirs")
    kt.Tokenizer.of_symbols(symbols).save_to_preset(folder)
    processor = kt.ImageProcessor(size=20)
    processor.save(folder)
    pictures = images.pictures(2)[0]
    paths = [str(tmp_path / f"{i}.png") for i in range(2)]
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture).save(path)
    options = ("--preset", str(folder), "--max-new-tokens", "7")
    code, out, error = run("caption", *options, *paths)
    assert (code, error) == (0, "")
    pixels = torch.tensor(processor(pictures)).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = model.generate(pixel_values=pixels, max_new_tokens=7, num_beams=1).tolist()
    rows = [row[1 : row.index(2) if 2 in row else None] for row in expected]
    texts = ["".join(symbols[i - 5] for i in row if i >= 5) for row in rows]
    assert out.splitlines() == texts and all(texts)


def test_forecast(run, tmp_path):
    pandas = pytest.importorskip("pandas")
    task = series.forecaster()
    task.save_to_preset(tmp_path / "preset")
    dates = pandas.date_range("2024-01-01", periods=60, freq="h")
    frame = pandas.DataFrame(series.waves(60), columns=["a", "b"], index=dates)
    frame.to_csv(tmp_path / "known.csv", index_label="date")
    options = ("forecast", "--preset", str(tmp_path / "preset"), str(tmp_path / "known.csv"))
    code, out, error = run(*options, "--horizon", "9", "--plot", str(tmp_path / "out.png"))
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "date,a,b" and len(lines) == 10
    assert lines[1].startswith("2024-01-03 12:00:00,")
    assert Image.open(tmp_path / "out.png").size[0] > 500
    draws = test_sampled_forecaster.forecaster()
    draws.save_to_preset(tmp_path / "draws")
    options = ("forecast", "--preset", str(tmp_path / "draws"), str(tmp_path / "known.csv"))
    code, out, error = run(*options, "--horizon", "9", "--plot", str(tmp_path / "draws.png"))
    assert (code, error) == (0, "") and len(out.splitlines()) == 10
    assert Image.open(tmp_path / "draws.png").size[0] > 500
    series.bolt().save_to_preset(tmp_path / "bolt")
    frame.iloc[:9].to_csv(tmp_path / "short.csv", index_label="date")
    options = ("forecast", "--preset", str(tmp_path / "bolt"), str(tmp_path / "short.csv"))
    code, out, error = run(*options, "--horizon", "9", "--plot", str(tmp_path / "bolt.png"))
    assert (code, error) == (0, "") and len(out.splitlines()) >= 10
    assert "2024-01-01 17:00:00" in out
    code, _, error = run("forecast", "--preset", str(tmp_path / "preset"), "missing.csv")
    assert code == 2 and "missing.csv" in error


def test_transcribe_and_classify(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    folder = str(whisper.saved(whisper.model(0), tmp_path / "whisper"))
    path = str(tmp_path / "a.wav")
    soundfile.write(path, whisper.sound(1.5, 5), 16_000)
    options = ("transcribe", "--preset", folder, "--language", "de", "--max-new-tokens", "20")
    expected = kt.SpeechToText.from_preset(folder).transcribe(
        path, language="de", timestamps=True, max_new_tokens=20
    )
    code, out, _ = run(*options, "--timestamps", path)
    assert code == 0
    assert out.startswith(f"[{expected[0].start:.2f}-{expected[0].end:.2f}] ")
    found = json.loads(run(*options, "--timestamps", "--format", "json", path)[1])
    assert found == {"text": path, "segments": [piece._asdict() for piece in expected]}
    code, _, error = run("transcribe", "--preset", folder, "--language", "klingon", path)
    assert code == 2 and "`language` must be one of" in error

    task = audio.classifier()
    task.save_to_preset(tmp_path / "classifier")
    code, out, _ = run("classify", "--preset", str(tmp_path / "classifier"), path)
    assert code == 0 and out.split()[0] in audio.LABELS
    code, _, error = run("classify", "--preset", str(tmp_path / "classifier"), "--pairs", path)
    assert code == 2 and "the preset classifies recordings" in error


def test_transcribe_samples(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = str(moonshine.saved(moonshine.model(0), tmp_path / "moonshine"))
    paths = [str(tmp_path / f"{i}.wav") for i in range(3)]
    for path, samples in zip(paths, moonshine.recordings(), strict=True):
        soundfile.write(path, samples, 16_000, subtype="FLOAT")
    task = kt.SpeechToText.from_preset(folder)
    for options in ({}, {"max_new_tokens": 3}):
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        code, out, error = run("transcribe", "--preset", folder, "--format", "json", *given, *paths)
        assert (code, error) == (0, "")
        found = [json.loads(line)["segments"] for line in out.splitlines()]
        texts = task.transcribe(paths, **options)
        assert found == [[{"text": text}] for text in texts] and any(texts)
    code, _, error = run("transcribe", "--preset", folder, "--timestamps", paths[0])
    assert code == 2 and "are for models with Whisper's tokens" in error


def test_transcribe_by_ctc(run, tmp_path):
    tokenizer = kt.tokenizers.CTCTokenizer.of_characters("highlow")
    processor = kt.AudioProcessor("waveform", sampling_rate=audio.RATE)
    task = kt.CTCSpeechToText(kt.models.Encoder(audio.waveform()), processor, tokenizer)
    task.save_to_preset(tmp_path / "preset")
    x, _ = audio.recordings(2)
    paths = [str(tmp_path / f"{i}.wav") for i in range(2)]
    for path, samples in zip(paths, x, strict=True):
        soundfile.write(path, samples, audio.RATE, subtype="FLOAT")
    options = ("transcribe", "--preset", str(tmp_path / "preset"))
    code, out, error = run(*options, *paths)
    assert (code, error) == (0, "")
    texts = task.transcribe(x)
    assert any(texts) and out.splitlines() == texts
    lines = run(*options, "--timestamps", "--format", "json", *paths)[1].splitlines()
    expected = task.transcribe(x, timestamps=True)
    assert [json.loads(line)["segments"] for line in lines] == [
        [word._asdict() for word in words] for words in expected
    ]
    code, _, error = run(*options, "--language", "en", paths[0])
    assert code == 2 and "are for models with a decoder" in error
