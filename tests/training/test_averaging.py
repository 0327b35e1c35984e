import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_transformer.training import LastCheckpoints, average_checkpoints


def small_model(units=2):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, name="head")], name="m")
    model.compile("sgd", "mse")
    return model


def weights_of(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_average_by_hand(tmp_path):
    values = [1.0, 2.0, 6.0]
    paths = [tmp_path / f"{value}.safetensors" for value in values]
    for path, value in zip(paths, values, strict=True):
        save_file(
            {
                "a": np.full((2, 2), value, "float32"),
                "scale": np.array(value, "float16"),
                "steps": np.array([value], "int64"),
            },
            path,
        )
    average = average_checkpoints(paths, tmp_path / "out" / "average.safetensors")
    assert average["a"].tolist() == [[3.0, 3.0], [3.0, 3.0]] and average["a"].dtype == "float32"
    assert average["scale"] == 3.0 and average["scale"].shape == ()
    assert average["steps"].tolist() == [6]
    written = load_file(tmp_path / "out" / "average.safetensors")
    assert written["a"].tolist() == average["a"].tolist()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["average.safetensors"]


def test_files_that_disagree(tmp_path):
    one, two, three = (tmp_path / f"{name}.safetensors" for name in "abc")
    save_file({"a": np.ones(2)}, one)
    save_file({"b": np.ones(2)}, two)
    save_file({"a": np.ones(3)}, three)
    with pytest.raises(ValueError, match="2 are in only one of them, such as 'a'"):
        average_checkpoints([one, two])
    with pytest.raises(ValueError, match=r"'a' has shape \(2,\) in .*a.safetensors but \(3,\)"):
        average_checkpoints([one, three])
    with pytest.raises(ValueError, match="at least one file"):
        average_checkpoints([])
    with pytest.raises(FileNotFoundError):
        average_checkpoints([tmp_path / "none.safetensors"])


@pytest.mark.parametrize("every", ["epoch", 2])
def test_last_checkpoints_and_their_average(tmp_path, every):
    model = small_model()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 2))
    seen = {}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen[int(self.model.optimizer.iterations)] = weights_of(self.model)

    last = LastCheckpoints(tmp_path, keep=3, every=every)
    model.fit(x, y, batch_size=4, epochs=4, verbose=0, callbacks=[Watch(), last])
    steps = [8, 12, 16] if every == "epoch" else [12, 14, 16]
    names = [f"step-{step:08d}.safetensors" for step in steps]
    assert [path.name for path in last.paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert sorted(load_file(last.paths[0])) == ["head/bias", "head/kernel"]
    last.average_into(model)
    for k, weight in enumerate(weights_of(model)):
        expected = np.mean([seen[step][k] for step in steps], axis=0)
        np.testing.assert_allclose(weight, expected, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"'head/\w+' has shape .* in the model but"):
        last.average_into(small_model(units=5))


def test_files_of_another_run_are_left_alone(tmp_path):
    other = tmp_path / "step-00000099.safetensors"
    save_file({"a": np.ones(2)}, other)
    last = LastCheckpoints(tmp_path, keep=1)
    with pytest.raises(ValueError, match="No checkpoint was saved"):
        last.average_into(small_model())
    small_model().fit(np.ones((4, 3)), np.ones((4, 2)), epochs=2, verbose=0, callbacks=[last])
    assert [path.name for path in last.paths] == ["step-00000002.safetensors"]
    assert other.exists()


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="`keep` must be an integer of at least 1, received 0"):
        LastCheckpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match='`every` must be an integer.* Or give "epoch"'):
        LastCheckpoints(tmp_path, every=0)
