"""Image classification: the verbs on what users have, saving, augmentation, wrong input."""

import io

import keras
import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.support.warned import forget_warnings
from tests.tasks import images
from tests.tasks.images import LABELS, classifier, pictures

KINDS = {
    "patches": {},
    "convolutions": {"backbone_config": images.convolutions(), "pooling": "attention"},
    "both": {"pooling": "first_and_mean"},
    "hidden": {"pooling": "mean", "hidden_activation": "tanh"},
    "distilled": {"backbone_config": images.patches(distillation_token=True), "distilled": True},
}
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def learned(**options):
    task = classifier(**options)
    task.compile(keras.optimizers.Adam(1e-2))
    x, y = pictures()
    task.fit(x, y, epochs=6, batch_size=8, seed=1, verbose=0)
    return task, x, y


@each_kind
def test_learns_predicts_and_is_saved(options, tmp_path):
    task, x, y = learned(**options)
    results = task.evaluate(x, y, verbose=0, return_dict=True)
    assert results["accuracy"] == 1
    logits = task.predict(x, batch_size=5, verbose=0)
    assert logits.shape == (16, 2) and [LABELS[i] for i in logits.argmax(1)] == y
    named = task.classify(x)
    assert [label for label, _ in named] == y and all(0.5 <= p <= 1 for _, p in named)
    assert task.classify(x[3])[0] == y[3]
    assert [name for name, _ in task.classify(x[3], top_k=2)] == ["bright", "dark"]

    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.ImageClassifier.from_preset(tmp_path / "preset"),
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert np.abs(again.predict(x, verbose=0) - logits).max() <= 1e-5


def test_batches_do_not_change_a_row():
    task = classifier()
    x, _ = pictures(7)
    alone = np.concatenate([task.predict([image], verbose=0) for image in x])
    assert np.abs(task.predict(x, batch_size=3, verbose=0) - alone).max() <= 1e-5


def test_adapters_and_mixed_precision(tmp_path):
    task, x, y = learned(dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    before = [np.array(v) for v in task.backbone.non_trainable_weights]
    task.fit(x, y, verbose=0)
    for old, new in zip(before, task.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    logits = task.predict(x, verbose=0)
    task.merge_lora()
    assert np.abs(task.predict(x, verbose=0) - logits).max() <= 0.1


def test_several_classes_and_numbers():
    x, y = pictures(8)
    several = classifier(multi_label=True)
    several.fit(x, [[label] if label == "dark" else [] for label in y], verbose=0)
    assert all(isinstance(row, list) for row in several.classify(x))
    number = classifier(num_classes=1)
    number.fit(x, np.arange(8) / 8, verbose=0)
    assert number.predict(x, verbose=0).shape == (8, 1)
    soft = classifier()
    soft.fit(x, np.full((8, 2), 0.5), verbose=0)
    same = np.zeros((8, 12, 16, 3), "uint8")
    history = soft.fit(same, y, validation_split=0.5, verbose=0).history
    assert history["loss"][0] > 0 and history["val_loss"][0] > 0


def test_augmentation_changes_training_alone(tmp_path):
    x, y = pictures()
    task = classifier()
    seen = []

    @keras.saving.register_keras_serializable("tests")
    class Darken(keras.layers.Layer):
        def call(self, inputs, training=False):
            seen.append(training)
            return inputs * 0.0 if training else inputs

    task.compile(keras.optimizers.SGD(0.0), augmentation=[Darken()])
    (batch, _) = task.make_dataset(x, y)[0]
    plain = task(batch, training=False)
    dark = keras.ops.convert_to_numpy(task(batch, training=True))
    assert seen[-1] is True and np.abs(dark - dark[:1]).max() <= 1e-6
    assert np.abs(keras.ops.convert_to_numpy(plain) - dark).max() > 1e-3
    task.fit(x, y, verbose=0)

    task.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [type(layer) for layer in again.augmentation.layers] == [Darken]
    task.compile(augmentation=[])
    assert task.augmentation is None
    with pytest.raises(ValueError, match="`augmentation` must be a list of Keras layers"):
        task.compile(augmentation=[lambda x: x])


@pytest.mark.one_backend
def test_keras_augmentation():
    task = classifier()
    layers = [keras.layers.RandomFlip("horizontal"), keras.layers.RandomTranslation(0.1, 0.1)]
    task.compile(keras.optimizers.Adam(1e-3), augmentation=layers)
    task.fit(*pictures(), verbose=0)


@pytest.mark.each_backend
def test_arrays_of_other_sizes_in_turn(monkeypatch):
    """Each is seen whole: TensorFlow's traces would leave heights and widths open."""
    # The third size is one too many for a trace of its own.
    monkeypatch.setattr("keras_transformer.kernels.tensorflow_steps.MOST_SIZES", 2)
    task, random = classifier(), np.random.default_rng(0)
    for size in ((12, 16), (16, 16), (24, 32), (12, 16)):
        images = random.random((3, *size, 3), "float32")
        expected = to_numpy(task({"images": images}))
        found = task.predict({"images": images}, batch_size=2, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        labels = np.array([0, 1, 1])
        loss = task.evaluate({"images": images}, labels, verbose=0, return_dict=True)["loss"]
        assert loss == pytest.approx(float(task.loss(labels, expected)), rel=1e-4)
        assert np.isfinite(task.train_on_batch({"images": images}, labels)).all()
        assert np.isfinite(task.fit({"images": images}, labels, verbose=0).history["loss"][0])


@pytest.mark.each_backend
def test_steps_with_augmentation_are_compiled_on_jax(caplog):
    """Keras marks these layers as unfit for XLA, and would run whole steps without it on JAX."""
    on_jax = keras.backend.backend() == "jax"
    task = classifier()
    layers = [
        keras.layers.RandomTranslation(0.2, 0.2, seed=1),
        keras.layers.RandomZoom(0.2, seed=2),
        keras.layers.RandomRotation(0.1, seed=3),
        keras.layers.RandomShear(0.1, 0.1, seed=4),
        keras.layers.RandomPerspective(0.5, 0.1, seed=5),
    ]
    task.compile(augmentation=layers)
    assert task.jit_compile or not on_jax
    # Compiling what the others solve for takes long.
    task.compile(keras.optimizers.SGD(0.1), augmentation=layers[:2])
    assert task.jit_compile or not on_jax
    losses = task.fit(*pictures(), batch_size=8, seed=1, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and not caplog.text
    forget_warnings()
    for _ in range(2):
        task.compile(augmentation=[keras.layers.RandomCrop(12, 12), keras.layers.RandomZoom(0.2)])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == on_jax and all("steps with RandomCrop are not compiled" in x for x in said)


@pytest.mark.one_backend
def test_what_a_user_has(tmp_path):
    """Paths, a folder by class, bytes, an array, a column of a data frame, rows of `datasets`."""
    pandas = pytest.importorskip("pandas")
    datasets = pytest.importorskip("datasets")
    task = classifier()
    x, y = pictures(6)
    contents = []
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / label / f"{i}.png")
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        contents.append(file.getvalue())
    expected = task.predict(x, verbose=0)
    rows = datasets.Dataset.from_dict({"image": [{"bytes": each} for each in contents]})
    rows = rows.cast_column("image", datasets.Image())
    frame = pandas.DataFrame({"image": [{"bytes": each} for each in contents]})
    for given in (contents, frame["image"], rows["image"]):
        assert np.abs(task.predict(given, verbose=0) - expected).max() <= 1e-6
    for of_folder in (task.fit, task.evaluate, task.predict):
        with pytest.raises(
            ValueError, match=r"is a folder.*images, labels = kt\.processors\.image_f"
        ):
            of_folder(str(tmp_path))
    paths, labels = kt.processors.image_folder(tmp_path)
    task.fit(paths, labels, validation_data=(x, y), verbose=0)
    assert task.classify(paths[0])[0] in LABELS


@pytest.mark.one_backend
def test_wrong_input():
    task = classifier()
    x, y = pictures(4)
    with pytest.raises(ValueError, match=r"`x\[2\]` must be an image"):
        task.predict([*x[:2], 7], verbose=0)
    with pytest.raises(ValueError, match="`y` must be one label an image, 4 in all"):
        task.fit(x, y[:2], verbose=0)
    with pytest.raises(ValueError, match="learns from labels"):
        task.fit(x)
    with pytest.raises(ValueError, match="has no images"):
        task.predict([], verbose=0)
    with pytest.raises(ValueError, match="Give a list of images"):
        task.predict(x[0], verbose=0)
    with pytest.raises(ValueError, match="needs a backbone that reads images"):
        words = kt.TransformerConfig(
            kind="encoder",
            vocabulary_size=9,
            hidden_dim=4,
            num_layers=1,
            num_heads=1,
            intermediate_dim=4,
        )
        kt.ImageClassifier(kt.models.Encoder(words), num_classes=2)
    with pytest.raises(ValueError, match="`distilled` needs a backbone"):
        classifier(distilled=True)
    with pytest.raises(ValueError, match="and pooling='first', received 'mean'"):
        classifier(images.patches(distillation_token=True), distilled=True, pooling="mean")
    with pytest.raises(ValueError, match="embeddings of tokens, which images do not have"):
        task.compile(adversarial_norm=0.1)
    with pytest.raises(ValueError, match="A hidden layer reads one state"):
        classifier(pooling="first_and_mean", hidden_activation="tanh")
    with pytest.raises(ValueError, match="`pooling` must be one of"):
        classifier(pooling="last")
    with pytest.raises(ValueError, match="Give a list of images: predict"):
        task.predict("photo.jpg", verbose=0)
    message = "has no image processor and takes arrays only. Give images to a task made with one"
    with pytest.raises(ValueError, match=message):
        kt.ImageClassifier(kt.models.Encoder(images.patches()), num_classes=2).predict(x)


@pytest.mark.one_backend
def test_a_preset_without_a_processor_takes_arrays(tmp_path):
    kt.ImageClassifier(kt.models.Encoder(images.patches()), num_classes=2).save_to_preset(tmp_path)
    task = kt.ImageClassifier.from_preset(tmp_path)
    assert task.processor is None
    assert task.predict({"images": np.zeros((1, 12, 16, 3), "float32")}, verbose=0).shape == (1, 2)
