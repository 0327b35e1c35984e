"""The examples of images, sound, series and symbols, as a user starts them, on small data."""

import json
import re

import numpy as np
import pytest
import soundfile
from PIL import Image

import keras_transformer as kt
from tests.examples.conftest import shares
from tests.tasks import duals
from tests.tasks.videos import encoded

pytestmark = pytest.mark.one_backend


def test_images(run, tmp_path):
    """Trained on a folder by class, killed in between, and then asked: a picture is drawn."""
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("test_a", 2)):
        for number, label in enumerate(("airplane", "cat")):
            folder = tmp_path / "cifar10" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 90, (32, 32, 3), "uint8") + 160 * number
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{i}.png")
    small = ["--layers=1", "--width=16", "--batch_size=4", "--stem=patches", "--train"]
    flags = [f"--data_dir={tmp_path}", *small, "--epochs=2", "--output=classifier"]
    printed = run("images", *flags)
    assert "12 images" in printed and "The classifier is in classifier." in printed
    (accuracy,) = shares(re.search(r"accuracy of 4 unseen images: .*", printed)[0])
    assert 0 <= accuracy <= 1
    assert "was started with --layers=1" in run("images", *flags, "--layers=2", code=1)

    printed = run("images", "--preset=classifier", "--output=seen.png")
    assert re.findall(r"^(cat|rocket).jpg +\w+ [\d.]+%, \w+ [\d.]+%", printed, re.MULTILINE)
    assert Image.open(tmp_path / "seen.png").size > (300, 200)


def test_videos(run, tmp_path):
    """Trained on clips that it draws, scored on unseen ones, saved, and asked about a file."""
    pytest.importorskip("av")
    (tmp_path / "clip.mkv").write_bytes(encoded(np.zeros((9, 40, 48, 3), "uint8")))
    small = ["--clips=24", "--unseen=9", "--epochs=1", "--width=8", "--videos=clip.mkv"]
    printed = run("video_classification", *small)
    (accuracy,) = shares(re.search(r"accuracy of 9 unseen clips: .*", printed)[0])
    assert 0 <= accuracy <= 1
    assert re.search(r"^clip.mkv  (right|down|around) [\d.]+%", printed, re.MULTILINE)
    saved = json.loads((tmp_path / "motions" / "config.json").read_text())
    assert saved["task"]["labels"] == ["right", "down", "around"]


def test_images_of_any_classes(run, tmp_path):
    duals.embedder().save_to_preset(tmp_path / "pairs")
    printed = run("images", "--preset=pairs", "--labels=dark,bright", "--output=seen.png")
    assert re.findall(r"^cat.jpg +(dark|bright) [\d.]+%, \w+ [\d.]+%", printed, re.MULTILINE)
    assert (tmp_path / "seen.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_dna(run, tmp_path):
    """Scored by parts, killed or done it does not begin anew; asked why, it draws."""
    small = ["--train", "--train_size=60", "--folds=2", "--epochs=2", "--width=16"]
    flags = [*small, "--work_dir=work", "--output=sites"]
    printed = run("dna", *flags)
    (share,) = shares(re.search(r"accuracy of all 60, each unseen: .*", printed)[0])
    parts = re.findall(r"part \d: ([\d.]+)% of (\d+) unseen", printed)
    assert sum(int(count) for _, count in parts) == 60
    assert sum(float(x) / 100 * int(n) for x, n in parts) / 60 == pytest.approx(share, abs=1e-3)
    saved = json.loads((tmp_path / "sites" / "config.json").read_text())["metadata"]
    assert saved["cross_validated_accuracy"] == pytest.approx(share, abs=1e-4)
    assert "was started with --epochs=2" in run("dna", *flags, "--epochs=3", code=1)

    printed = run("dna", "--output=seen.png")
    rows = re.findall(r"^[ACGT]{30} [ACGT]{30}  (\w+) +[\d.]+%  \(it is (\w+)\)", printed, re.M)
    assert len(rows) == 6 and sum(found == truth for found, truth in rows) >= 5
    assert Image.open(tmp_path / "seen.png").size > (1000, 500)
    assert "Sequence 0 has 4 bases" in run("dna", "--sequences=ACGT", code=1)


@pytest.mark.thorough
def test_music(run, tmp_path):
    """Trained beside an LSTM, it goes on with a chorale as MIDI, WAV and a picture."""
    small = ["--train", "--train_size=2", "--epochs=1", "--layers=1", "--width=32", "--window=40"]
    printed = run("music", *small, "--output=small")
    sizes = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) parameters", printed)]
    assert len(sizes) == 2 and sizes[0] == pytest.approx(sizes[1], rel=0.05)
    nats = [float(x) for x in re.findall(r": ([\d.]+) nats a note of unseen", printed)]
    assert len(nats) == 2 and all(0.5 < x < np.log(194) + 0.5 for x in nats)

    asked = ["music", "--preset=small", "--output=new", "--chorale=0", "--beats=2"]
    printed = run(*asked, "--new_beats=2", "--temperature=0.5")
    assert "quarters are in new.mid, .wav and .png." in printed and "held" in printed
    assert (tmp_path / "new.mid").read_bytes()[:4] == b"MThd"
    assert (tmp_path / "new.wav").stat().st_size > 10_000
    assert Image.open(tmp_path / "new.png").size > (1000, 300)
    assert "--chorale must be from 0 to 75" in run(
        "music", "--preset=small", "--chorale=76", code=1
    )


@pytest.mark.thorough
def test_speech(run, tmp_path):
    """Both kinds of models are trained on a few recordings; then they listen, and it is drawn."""
    folder, time = tmp_path / "spoken_digits", np.arange(2400) / 8000
    folder.mkdir()
    for digit in range(3):
        for index in (6, 10, 11):
            tone = 0.3 * np.sin(2 * np.pi * (300 + 400 * digit) * time[: 2000 + 30 * index])
            soundfile.write(folder / f"{digit}_theo_{index}.wav", tone, 8000)
    small = [f"--data_dir={tmp_path}", "--copies=2", "--epochs=1", "--layers=1", "--width=32"]
    small += ["--sequences=100", "--batch_size=10"]
    digits = [*small, "--train=digits", "--work_dir=one", "--output=one_digit"]
    printed = run("speech", *digits)
    assert "12 recordings" in printed
    assert 0 <= shares(re.search(r"accuracy on 3 recordings not heard.*", printed)[0])[0] <= 1
    assert "was started with --epochs=1" in run("speech", *digits, "--epochs=2", code=1)
    printed = run("speech", *small, "--train=sequences", "--work_dir=more", "--output=several")
    assert re.search(r"word error rate on 1,000 sequences .*: [\d.]+%", printed)
    asked = ["--classifier=one_digit", "--transcriber=several", "--output=seen.png"]
    printed = run("speech", *asked)
    assert len(re.findall(r"^\w+.wav +one digit: \w+ \d+%; several:", printed, re.M)) == 4
    assert Image.open(tmp_path / "seen.png").size > (600, 500)


@pytest.mark.thorough
def test_captions(run, tmp_path):
    folder = tmp_path / "easy_vqa"
    (folder / "images").mkdir(parents=True)
    rows = []
    for i in range(12):
        color = ("red", "blue")[i % 2]
        Image.new("RGB", (64, 64), color).save(folder / "images" / f"{i}.png")
        rows += [["what is the color of the circle?", color, i], ["is there a circle?", "yes", i]]
    (folder / "questions.json").write_text(json.dumps(rows))
    small = [f"--data_dir={tmp_path}", "--epochs=1", "--layers=1", "--width=32", "--held_out=4"]
    printed = run("captions", *small, "--train=captions", "--work_dir=one", "--output=captioner")
    assert re.search(r"captions right, of 4 on unseen images: [\d.]+%", printed)
    printed = run("captions", *small, "--train=answers", "--work_dir=two", "--output=answerer")
    assert re.search(r"answers right, of 8 on unseen images: [\d.]+%", printed)
    asked = ["--captioner=captioner", "--answerer=answerer", "--question=is it red?"]
    printed = run("captions", *asked, "--output=seen.png")
    assert len(re.findall(r"^shape_\d+.png .*\| is it red\?", printed, re.M)) == 4
    assert Image.open(tmp_path / "seen.png").size > (600, 300)


@pytest.mark.thorough
def test_read_words(run, tmp_path):
    small = ["--words=24", "--held_out=4", "--epochs=1", "--layers=1", "--width=16", "--orders=2"]
    printed = run("read_words", *small, f"--output={tmp_path / 'reader'}")
    assert len(re.findall(r"unseen words right, .*: [\d.]+%\n", printed)) == 2
    reader = kt.ImageToText.from_preset(tmp_path / "reader")
    assert isinstance(reader.read(Image.new("RGB", (128, 32))), str)


def shapes(tmp_path):
    """Twelve images of two shapes, as easy-VQA has them, and their questions."""
    folder = tmp_path / "easy_vqa"
    (folder / "images").mkdir(parents=True)
    rows = []
    for i in range(12):
        shape, color = ("circle", "rectangle")[i % 2], ("red", "blue")[i % 2]
        image = Image.new("RGB", (64, 64), (250, 240, 240))
        image.paste(color, (8 + i, 10, 30 + i, 40))
        image.save(folder / "images" / f"{i}.png")
        rows += [["what is the color of the shape?", color, i], [f"is there a {shape}?", "yes", i]]
    (folder / "questions.json").write_text(json.dumps(rows))
    return [f"--data_dir={tmp_path}", "--epochs=1", "--layers=1", "--width=16", "--held_out=4"]


def test_detection(run, tmp_path):
    printed = run("detection", *shapes(tmp_path), "--picture=seen.png", "--output=model")
    assert "8 images" in printed
    assert re.search(r"Average precision on 4 unseen images: [\d.]+%", printed)
    assert Image.open(tmp_path / "seen.png").size > (300, 300)
    assert (tmp_path / "model" / "config.json").is_file()


def test_segmentation(run, tmp_path):
    small = shapes(tmp_path)
    printed = run("segmentation", *small, "--picture=seen.png", "--output=model")
    assert "8 images" in printed
    assert re.search(r"Mean IoU of 4 unseen images: [\d.]+%", printed)
    assert Image.open(tmp_path / "seen.png").size > (600, 200)
    assert (tmp_path / "model" / "config.json").is_file()


def test_forecasting(run, tmp_path):
    """Trained on twenty months of hours, and scored again from its preset with the same figures."""
    pandas = pytest.importorskip("pandas")
    hours = np.arange(20 * 720)
    values = {"a": np.sin(hours * 0.26), "b": 50 + 9 * np.cos(hours * 0.13)}
    dates = pandas.date_range("2024-01-01", periods=len(hours), freq="h")
    pandas.DataFrame(values, index=dates).to_csv(tmp_path / "loads.csv", index_label="date")
    small = ["--context=48", "--horizon=12", "--epochs=1", "--layers=1", "--width=8"]
    printed = run("forecasting", "--train", "--file=loads.csv", *small, "--batch_size=2000")
    found = re.search(r"([\d,]+) windows of the last part: MSE ([\d.]+), MAE ([\d.]+)", printed)
    assert found[1] == f"{4 * 720 - 11:,}" and float(found[2]) < 2
    assert Image.open(tmp_path / "forecast.png").size > (600, 200)
    again = run("forecasting", "--preset=runs/forecaster", "--file=loads.csv")
    again = re.search(r"MSE ([\d.]+), MAE ([\d.]+)", again)
    pairs = zip(again.groups(), found.groups()[1:], strict=True)
    assert all(abs(float(a) - float(b)) <= 0.002 for a, b in pairs)  # stored in float16
