"""A run becomes a preset one tensor after the other."""

import weakref

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training.resume import _variables
from keras_transformer.training.run_states import StateShards
from tests.training.test_resume import make_model

pytestmark = pytest.mark.each_backend
no_tensorflow = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="Orbax or PyTorch"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a run that several processes could have written, and its model."""
    keras.utils.set_random_seed(3)
    model, folder = make_model(num_layers=3), tmp_path_factory.mktemp("run")
    model.optimizer.build(model.trainable_variables)
    state = StateShards(folder / "shards")
    state.save(1, _variables(model), {}, {"of": {}, "epoch": 1, "batch": 0})
    state.close()
    return folder, model


@no_tensorflow
def test_one_tensor_is_held_at_a_time(run, tmp_path, monkeypatch):
    folder, model = run
    held, reads, read = [0, 0], [], StateShards.read

    def counting(state, place):
        array = read(state, place)
        held[0] += array.nbytes
        held[1] = max(held)
        weakref.finalize(array, lambda size=array.nbytes: held.__setitem__(0, held[0] - size))
        reads.append(place)
        return array

    monkeypatch.setattr(StateShards, "read", counting)
    made = []
    kt.training.convert_run(
        lambda: made.append(make_model(num_layers=3)) or made[0], folder, tmp_path / "preset"
    )
    assert all(variable._value is None for variable in made[0].weights)
    sizes = [weight.nbytes for weight in model.get_weights()]
    assert len(reads) == len(set(reads)) == len(sizes)
    assert held[0] <= max(sizes) and held[1] <= 2 * max(sizes) < sum(sizes) / 3
    loaded = kt.CausalLM.from_preset(tmp_path / "preset")
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@no_tensorflow
@pytest.mark.parametrize(
    "make, message",
    [(lambda: make_model(num_layers=2, hidden_dim=4), "does not fit this model"),
     (lambda: None, "must return a task or backbone, returned None")],
)  # fmt: skip
def test_another_model(run, tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        kt.training.convert_run(make, run[0], tmp_path / "preset")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="makes models without numbers")
def test_tensorflow_makes_no_model_without_numbers(tmp_path):
    with pytest.raises(ValueError, match="needs JAX or PyTorch"):
        kt.training.convert_run(make_model, tmp_path, tmp_path / "preset")
