"""Data sets of Keras, TensorFlow and PyTorch that give arrays of images and of sound."""

import keras
import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from tests.tasks import audio, images

pytestmark = pytest.mark.one_backend

COUNT = 12


def labels_of(batches, task):
    return [task.label_names[int(n)] for batch in batches for n in np.asarray(batch[1])]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder by class whose order of classes is not that of the tasks."""
    folder = tmp_path_factory.mktemp("photos")
    pixels, labels = images.pictures(COUNT)
    for i, (each, label) in enumerate(zip(pixels, labels, strict=True)):
        (folder / label).mkdir(exist_ok=True)
        Image.fromarray(each).save(folder / label / f"{i:02}.png")
    return folder


def test_images_of_a_directory(photos):
    pytest.importorskip("tensorflow")
    options = {"image_size": (12, 16), "batch_size": 5, "shuffle": False, "verbose": False}
    data = keras.utils.image_dataset_from_directory(photos, **options)
    assert data.class_names == ["bright", "dark"] == images.LABELS[::-1]
    names = kt.processors.image_folder(photos)[1]
    task = images.classifier()
    made = task.held(data)
    assert labels_of((made[i] for i in range(3)), task) == names
    # What Keras resized is read as it is: floats from 0 to 255, dark ones too.
    given = np.concatenate([x for x, _ in data.as_numpy_iterator()])
    found = np.concatenate([made[i][0]["images"] for i in range(3)])
    assert np.abs((found + 1) / 2 * 255 - given).max() <= 0.501
    task.fit(data, validation_data=data, epochs=2, verbose=0)
    assert task.evaluate(data, verbose=0) == pytest.approx(
        task.evaluate(given.round().astype("uint8"), names, verbose=0), rel=1e-5
    )
    assert task.classify(data) == task.classify(given.round().astype("uint8"))
    for mode in ("categorical", "binary"):
        other = keras.utils.image_dataset_from_directory(photos, label_mode=mode, **options)
        held = task.held(other)
        assert labels_of((held[i] for i in range(3)), task) == names
    other = images.classifier(labels=["a", "b"])  # other names: the numbers count
    assert labels_of((other.held(data)[i] for i in range(3)), other) == [
        "ab"[data.class_names.index(name)] for name in names
    ]


def test_images_by_themselves_and_scaled(photos):
    tensorflow = pytest.importorskip("tensorflow")
    options = {"image_size": (12, 16), "shuffle": False, "verbose": False}
    single = keras.utils.image_dataset_from_directory(photos, batch_size=None, **options)
    batched = keras.utils.image_dataset_from_directory(photos, batch_size=5, **options)
    task = images.classifier()
    np.testing.assert_array_equal(task.predict(single, verbose=0), task.predict(batched, verbose=0))
    assert task.evaluate(single, batch_size=5, verbose=0) == task.evaluate(batched, verbose=0)
    unit = batched.map(lambda x, y: (x / 255.0, y))
    np.testing.assert_allclose(
        task.predict(unit, verbose=0), task.predict(batched, verbose=0), atol=1e-5
    )
    alone = keras.utils.image_dataset_from_directory(photos, labels=None, **options)
    with pytest.raises(ValueError, match="learns from labels"):
        task.fit(alone, verbose=0)
    assert len(task.classify(alone)) == COUNT
    forever = batched.repeat()
    task.fit(forever, steps_per_epoch=2, verbose=0)
    front = tensorflow.data.Dataset.from_tensors((np.zeros((2, 3, 8, 9), "float32"), [0, 1]))
    with pytest.raises(ValueError, match="Its channels come first"):
        task.fit(front, verbose=0)


def test_data_sets_of_pytorch_and_generators(photos):
    torch = pytest.importorskip("torch")
    paths, names = kt.processors.image_folder(photos)
    task = images.classifier()

    class Folder(torch.utils.data.Dataset):  # as torchvision's ImageFolder
        classes = ("bright", "dark")

        def __len__(self):
            return COUNT

        def __getitem__(self, i):
            if i >= COUNT:
                raise IndexError
            return Image.open(paths[i]), self.classes.index(names[i])

    made = task.held(Folder(), 6)
    assert labels_of((made[i] for i in range(2)), task) == names
    task.fit(Folder(), epochs=2, verbose=0)
    np.testing.assert_array_equal(task.predict(Folder(), verbose=0), task.predict(paths, verbose=0))
    pixels = torch.from_numpy(np.stack([np.zeros((12, 16, 3), "uint8")] * 4))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(pixels, torch.tensor([0, 1, 0, 1])), batch_size=2
    )
    task.fit(loader, verbose=0)
    assert len(task.classify(loader)) == 4
    task.fit(iter([(pixels.numpy(), np.array([0, 1, 0, 1]))]), verbose=0)
    arrays = ({"images": np.zeros((2, 12, 16, 3), "float32")}, np.array([0, 1]))
    task.fit(iter([arrays]), verbose=0)  # arrays of the backbone, as before


@pytest.mark.each_backend
def test_tensors():
    """Accept tensors of the backend, and of other libraries."""
    pixels, _ = images.pictures(4)
    stacked = np.stack([each[:10] for each in pixels])
    task = images.classifier()
    expected = task.classify(stacked)
    tensor = keras.ops.convert_to_tensor(stacked)
    assert task.classify(tensor) == expected
    assert task.classify(tensor[0]) == task.classify(stacked[0])
    task.fit(tensor, keras.ops.convert_to_tensor([0, 1, 0, 1]), verbose=0)
    sounds = np.stack([each[:1500] for each in audio.recordings(4)[0]])
    listener = audio.classifier()
    expected = listener.classify(sounds)
    tensor = keras.ops.convert_to_tensor(sounds)
    assert listener.classify(tensor) == expected
    assert listener.classify(tensor[0]) == listener.classify(sounds[0])


@pytest.mark.parametrize("options", [{}, {"ragged": True}, {"batch_size": None}])
def test_sound_of_a_directory(tmp_path, options):
    pytest.importorskip("tensorflow")
    soundfile = pytest.importorskip("soundfile")
    sounds, labels = audio.recordings(COUNT)
    for i, (each, label) in enumerate(zip(sounds, labels, strict=True)):
        (tmp_path / label).mkdir(exist_ok=True)
        soundfile.write(tmp_path / label / f"{i:02}.wav", each, audio.RATE)
    length = None if options.get("ragged") else 1900
    data = keras.utils.audio_dataset_from_directory(
        tmp_path, output_sequence_length=length, shuffle=False, verbose=False,
        **{"batch_size": 5, **options},
    )  # fmt: skip
    assert data.class_names == audio.LABELS[::-1]
    paths, names = kt.processors.audio_folder(tmp_path)
    task = audio.classifier()
    made = task.held(data, 5)
    assert labels_of((made[i] for i in range(3)), task) == names
    task.fit(data, verbose=0)
    np.testing.assert_allclose(
        task.predict(data, verbose=0), task.predict(paths, verbose=0), atol=1e-3
    )


def listener(**stem):
    backbone = kt.models.Encoder(audio.waveform(**stem))
    processor = audio.processor(features="waveform", length=None)
    return kt.AudioClassifier(backbone, processor, labels=audio.LABELS)


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (images.classifier, np.zeros((12, 16, 3), "uint8")),
        (lambda: images.classifier(images.convolutions()), np.full((12, 16, 3), 255, "uint8")),
        (audio.classifier, np.zeros(1600, "float32")),
        (lambda: audio.classifier(audio.spectrogram()), np.full(1600, 0.5, "float32")),
        (listener, np.zeros(1600, "float32")),
        (lambda: listener(norm="layer"), np.zeros(1600, "float32")),
        (lambda: listener(norm="recording", first_activation="tanh"), np.zeros(1600, "float32")),
    ],
)
def test_silence_and_blank_images_are_rows_as_others(make, row):
    """They have no NaN, in what is computed and what is learned, alone and beside others."""
    task = make()
    others, labels = images.pictures(3) if row.ndim == 3 else audio.recordings(3)
    rows, labels = [row, *others], [labels[0], *labels]
    task.fit(rows, labels, verbose=0)
    assert np.isfinite(task.evaluate(rows[:1], labels[:1], verbose=0)).all()
    assert np.isfinite(task.predict(rows, verbose=0)).all()
    assert all(np.isfinite(keras.ops.convert_to_numpy(v)).all() for v in task.weights)
