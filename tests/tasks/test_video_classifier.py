"""Video classification: the verbs on what users have, saving, export, wrong input."""

import pathlib

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks import images, videos
from tests.tasks.videos import LABELS, classifier, clips, encoded

KINDS = {
    "mean": {"output_norm": True},
    "token": {"backbone_config": videos.config(class_token=True)},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_learns_predicts_and_is_saved(options, tmp_path):
    task = classifier(**options)
    task.compile(keras.optimizers.Adam(1e-2))
    x, y = clips()
    task.fit(x, y, epochs=12, batch_size=8, seed=1, verbose=0)
    assert task.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] == 1
    logits = task.predict(x, batch_size=5, verbose=0)
    assert logits.shape == (16, 2) and [LABELS[i] for i in logits.argmax(1)] == y
    assert [label for label, _ in task.classify(x)] == y
    assert [name for name, _ in task.classify(x[3], top_k=2)] == LABELS[::-1]
    alone = np.concatenate([task.predict([video], verbose=0) for video in x[:3]])
    assert np.abs(alone - logits[:3]).max() <= 1e-5

    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert np.abs(again.predict(x, verbose=0) - logits).max() <= 1e-5


@pytest.mark.each_backend
def test_arrays_of_other_sizes_in_turn():
    """Each is seen whole: TensorFlow's traces would leave heights and widths open."""
    task, random = classifier(), np.random.default_rng(0)
    for size in ((4, 8, 12), (4, 12, 12), (8, 12, 16)):
        given = {"videos": random.random((2, *size, 3), "float32")}
        expected = keras.ops.convert_to_numpy(task(given))
        assert np.abs(task.predict(given, verbose=0) - expected).max() <= 1e-5


@pytest.mark.one_backend
def test_what_a_user_has(tmp_path):
    """Files, a folder by class, bytes, an array, a column of a data frame, other lengths."""
    pytest.importorskip("av")
    pandas = pytest.importorskip("pandas")
    task = classifier()
    x, y = clips(4)
    for i, (video, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{i}.mkv").write_bytes(encoded(video))
    paths, labels = kt.processors.video_folder(tmp_path)
    history = task.fit(paths, labels, validation_data=(x, y), epochs=1, verbose=0).history
    assert history["val_loss"][0] > 0
    expected = task.predict(paths, verbose=0)
    contents = [pathlib.Path(path).read_bytes() for path in paths]
    frame = pandas.DataFrame({"video": [{"bytes": each} for each in contents]})
    for given in (contents, frame["video"]):
        assert np.abs(task.predict(given, verbose=0) - expected).max() <= 1e-6
    assert task.classify(paths[0])[0] in LABELS
    with pytest.raises(ValueError, match=r"is a folder.*videos, labels = kt\.processors\.video_f"):
        task.fit(str(tmp_path))
    fewer = kt.VideoClassifier(
        task.backbone, kt.VideoProcessor((8, 12), None, num_frames=2), labels=LABELS
    )
    assert fewer.arrays_of(paths[:1])["videos"].shape == (1, 2, 8, 12, 3)
    assert fewer.predict(paths, verbose=0).shape == (4, 2)


@pytest.mark.one_backend
def test_export_to_onnx(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    task = classifier(output_norm=True)
    x, _ = clips(3)
    kt.export(task, tmp_path, format="onnx")
    session = runtime.InferenceSession(next(tmp_path.glob("*.onnx")))
    (given,) = session.get_inputs()
    found = session.run(None, {given.name: task.arrays_of(x)["videos"]})[0]
    assert np.abs(found - task.predict(x, verbose=0)).max() <= 1e-4


@pytest.mark.one_backend
def test_wrong_input():
    task = classifier()
    x, y = clips(4)
    with pytest.raises(ValueError, match=r"`x\[2\]` must be a video"):
        task.predict([*x[:2], 7], verbose=0)
    with pytest.raises(ValueError, match=r"`x\[1\]` has 3 frames, and 4 are read"):
        task.predict([x[0], x[1][:3]], verbose=0)
    with pytest.raises(ValueError, match="`y` must be one label a video, 4 in all"):
        task.fit(x, y[:2], verbose=0)
    with pytest.raises(ValueError, match="Give a list of videos"):
        task.predict(x[0], verbose=0)
    with pytest.raises(ValueError, match="has no videos"):
        task.predict([], verbose=0)
    with pytest.raises(ValueError, match="needs a backbone that reads videos"):
        kt.VideoClassifier(kt.models.Encoder(images.patches()), num_classes=2)
    with pytest.raises(ValueError, match="needs a backbone that reads images"):
        kt.ImageClassifier(task.backbone, num_classes=2)
    with pytest.raises(ValueError, match="`processor` must be a VideoProcessor"):
        kt.VideoClassifier(task.backbone, kt.ImageProcessor(8), num_classes=2)
