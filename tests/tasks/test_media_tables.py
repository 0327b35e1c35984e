"""Data sets of images and sound as one argument, through the verbs; files with bytes and paths."""

import csv
import io
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from tests.tasks import audio, duals, images

datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.one_backend

COUNT = 8


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def table(decode=True, **columns):
    """A data set with a column of images, as `datasets` has it, and others."""
    pixels, labels = images.pictures(COUNT)
    features = datasets.Features({"image": datasets.Image(decode=decode)})
    values = {"image": [{"bytes": encoded(each), "path": None} for each in pixels]}
    columns = columns or {"label": labels}
    for name, column in columns.items():
        features[name] = datasets.Value("string" if isinstance(column[0], str) else "int64")
    if "label" in columns and not isinstance(columns["label"][0], str):
        features["label"] = datasets.ClassLabel(names=images.LABELS[::-1])
    return datasets.Dataset.from_dict(values | columns, features=features)


def losses(task, *data, **options):
    options = {"batch_size": 4, "seed": 1, "verbose": 0, **options}
    return task.fit(*data, **options).history["loss"]


def fresh(make):
    keras.utils.set_random_seed(0)
    return make()


@pytest.mark.each_backend
@pytest.mark.parametrize("decode", [True, False])
def test_an_image_classifier(decode):
    """The numbers are those of the same lists."""
    pixels, labels = images.pictures(COUNT)
    x = table(decode)
    expected = losses(fresh(images.classifier), pixels, labels)
    task = fresh(images.classifier)
    assert losses(task, x, validation_data=x) == expected
    assert task.evaluate(x, verbose=0) == task.evaluate(pixels, labels, verbose=0)
    np.testing.assert_array_equal(task.predict(x, verbose=0), task.predict(pixels, verbose=0))
    assert task.classify(x) == task.classify(pixels)
    assert task.classify(x["image"]) == task.classify(pixels)
    np.testing.assert_array_equal(
        task.predict(x.with_format("numpy"), verbose=0), task.predict(pixels, verbose=0)
    )


def test_numbers_of_classes_go_by_the_names_of_the_data_set():
    pixels, labels = images.pictures(COUNT)
    numbers = [images.LABELS[::-1].index(label) for label in labels]
    x = table(label=numbers)
    task = images.classifier()
    batches = [task.held(x), task.make_dataset(pixels, labels)]
    batches += [task.held(kt.data.read(x, y="label", x="image"))]
    batches += [task.held(x.with_format("numpy"))]
    found, *others = (data.restore_order(data[0][1]).tolist() for data in batches)
    assert others == [found] * 3
    other = images.classifier(labels=["a", "b"])  # other names: the numbers count
    found = other.held(x)
    assert found.restore_order(found[0][1]).tolist() == numbers


def test_a_stream():
    pixels, labels = images.pictures(COUNT)
    task = images.classifier()
    stream = table().to_iterable_dataset()
    task.fit(stream, batch_size=4, epochs=2, verbose=0)
    unnamed = stream.map(lambda row: row)
    assert unnamed.column_names is None
    assert task.evaluate(unnamed, verbose=0) == pytest.approx(task.evaluate(stream, verbose=0))
    assert int(task.optimizer.iterations.numpy()) == 4
    task.fit(stream, batch_size=4, steps_per_epoch=1, verbose=0)
    expected = task.evaluate(pixels, labels, verbose=0)
    assert task.evaluate(stream, batch_size=8, verbose=0) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(
        task.predict(stream, verbose=0), task.predict(pixels, verbose=0), atol=1e-6
    )


def test_images_and_texts():
    pixels, texts = duals.pairs(COUNT)
    expected = losses(fresh(duals.embedder), (pixels, texts))
    for column in ("text", "caption"):
        task = fresh(duals.embedder)
        assert losses(task, table(**{column: texts})) == expected
    x = table(text=texts)
    np.testing.assert_array_equal(task.predict(x, verbose=0), task.encode(pixels))
    np.testing.assert_array_equal(task.encode(x), task.encode(pixels))
    assert task.classify(x, duals.LABELS) == task.classify(pixels, duals.LABELS)
    assert losses(fresh(duals.embedder), kt.data.read(x, x="image", y="text")) == expected
    assert losses(fresh(duals.embedder), kt.data.read(x, x=("image", "text"))) == expected


def captioner():
    words = kt.Tokenizer.train(["dark", "bright", "what is it ?"] * 4, vocabulary_size=280)
    backbone = kt.models.Seq2Seq(images.captions(vocabulary_size=290))
    return kt.ImageToText(backbone, kt.ImageProcessor(size=(12, 16)), words)


def test_captions_and_answers():
    pixels, labels = images.pictures(COUNT)
    questions = ["what is it ?"] * COUNT
    task = fresh(captioner)
    assert losses(task, table(caption=labels)) == losses(fresh(captioner), pixels, labels)
    task = fresh(captioner)
    x = table(question=questions, answer=labels)
    assert losses(task, x) == losses(fresh(captioner), (pixels, questions), labels)
    options = {"max_new_tokens": 3}
    assert task.answer(x, questions, **options) == task.answer(pixels, questions, **options)


def recordings():
    """A data set of sound at another rate, and the same as a list."""
    sounds, labels = audio.recordings(COUNT)
    rate = 8000
    column = [{"array": np.asarray(each, "float32"), "sampling_rate": rate} for each in sounds]
    return column, labels


def waves():
    import soundfile

    column, labels = recordings()
    values = []
    for each in column:
        file = io.BytesIO()
        soundfile.write(file, each["array"], each["sampling_rate"], format="WAV", subtype="FLOAT")
        values.append({"bytes": file.getvalue(), "path": None})
    made = datasets.Dataset.from_dict({"audio": values, "label": labels})
    return made.cast_column("audio", datasets.Audio())


def test_sound():
    """Nothing is decoded by `datasets`, which needs another package for it."""
    column, labels = recordings()
    x, task = waves(), fresh(audio.classifier)
    assert losses(task, x) == pytest.approx(losses(fresh(audio.classifier), column, labels))
    np.testing.assert_allclose(
        task.predict(x, verbose=0), task.predict(column, verbose=0), atol=1e-5
    )
    assert [label for label, _ in task.classify(x)] == [label for label, _ in task.classify(column)]


def write_parquet(path, x):
    x.to_parquet(path)
    return path


def test_files(tmp_path):
    """Parquet with bytes; CSV, JSON lines and a data frame with paths beside the file."""
    pixels, labels = images.pictures(COUNT)
    (tmp_path / "photos").mkdir()
    names = [f"photos/{i}.png" for i in range(COUNT)]
    for name, each in zip(names, pixels, strict=True):
        Image.fromarray(each).save(tmp_path / name)
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file", "kind"], *zip(names, labels, strict=True)])
    lines = [json.dumps({"file": n, "kind": k}) for n, k in zip(names, labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    write_parquet(tmp_path / "rows.parquet", table())
    expected = losses(fresh(images.classifier), pixels, labels)
    for name, columns in (
        ("rows.csv", {"x": "file", "y": "kind"}),
        ("rows.jsonl", {"x": "file", "y": "kind"}),
        ("rows.parquet", {"x": "image", "y": "label"}),
    ):
        records = kt.data.read(tmp_path / name, **columns)
        task = fresh(images.classifier)
        assert losses(task, records) == expected, name
        assert task.classify(records) == task.classify(pixels)
    frame = table().to_pandas()
    assert losses(fresh(images.classifier), frame) == expected
    records = kt.data.read(frame.rename(columns={"image": "photo"}), x="photo", y="label")
    assert losses(fresh(images.classifier), records) == expected
    frame = table().data.table  # of pyarrow
    assert losses(fresh(images.classifier), frame) == expected


def test_what_is_wrong_is_named(tmp_path):
    task = images.classifier()
    pixels, labels = images.pictures(3)
    broken = [encoded(each) for each in pixels]
    broken[1] = broken[1][:60]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    rows = [{"bytes": each, "path": None} for each in broken]
    x = datasets.Dataset.from_dict({"image": rows, "label": labels}, features=features)
    write_parquet(tmp_path / "x.parquet", x)
    for data in (x, kt.data.read(tmp_path / "x.parquet", x="image", y="label")):
        for verb in (lambda d: task.fit(d, verbose=0), task.classify, task.predict):
            with pytest.raises(ValueError, match=r"`x\[1\]` cannot be read as an image"):
                verb(data)
    empty = datasets.Dataset.from_dict({"image": [None] * 3, "label": labels})
    with pytest.raises(ValueError, match=r"`x\[\d\]` must be an image.*None"):
        task.fit(empty, verbose=0)
    with pytest.raises(ValueError, match=r"has no column 'label' or 'labels'. Name it: data.read"):
        task.fit(table(kind=["a"] * COUNT), verbose=0)
    other = datasets.Dataset.from_dict({"photograph": [1], "label": ["dark"]})
    with pytest.raises(ValueError, match=r"columns \['photograph', 'label'\], none of which is"):
        task.fit(other, verbose=0)
    with pytest.raises(ValueError, match=r"as in data\['train'\]"):
        task.fit(datasets.DatasetDict({"train": table()}), verbose=0)
    with pytest.raises(ValueError, match="learns from texts, and the Dataset has no column 'text'"):
        duals.embedder().fit(table(), verbose=0)
    (tmp_path / "rows.csv").write_text("file,kind\nnone.png,dark\n")
    with pytest.raises(FileNotFoundError, match=r"`x\[0\]`: there is no file .*none.png"):
        task.fit(kt.data.read(tmp_path / "rows.csv", x="file", y="kind"), verbose=0)


def test_odd_sound_in_a_table():
    """Two channels and another rate are fine; the error for invalid sound names its row."""
    import soundfile

    def wave(samples, rate=8000):
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
        return {"bytes": file.getvalue(), "path": None}

    def of(*values):
        made = datasets.Dataset.from_dict(
            {"audio": list(values), "label": ["low", "high"] * (len(values) // 2)}
        )
        return made.cast_column("audio", datasets.Audio())

    tone = np.sin(np.arange(1600) * 0.3).astype("float32")
    task = audio.classifier()
    x = of(wave(np.stack([tone, tone], axis=1)), wave(np.repeat(tone, 2), 16_000))
    found = task.predict(x, verbose=0)
    np.testing.assert_allclose(found[0], task.predict([tone], verbose=0)[0], atol=1e-5)
    assert np.isfinite(found).all()
    broken = tone.copy()
    broken[3] = np.nan
    for value, message in (
        (wave(broken), "samples that are NaN"),
        (wave(tone[:0]), "has no samples"),
        (wave(tone, 10), "must have a rate of 100 to 1,000,000"),
        ({"bytes": wave(tone)["bytes"][:30], "path": None}, "cannot be read as audio"),
    ):
        x = of(wave(tone), value)
        for verb in (lambda d: task.fit(d, verbose=0), task.classify):
            with pytest.raises(ValueError, match=rf"`x\[1\]` .*{message}"):
                verb(x)
