"""PatchTSMixer against the Transformers library: states, forecasts, gradients, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.family_series import CONFIGS
from tests.checkpoints.test_families import _gradients, saved
from tests.checkpoints.test_series_families import as_rows, assert_the_way_back, rows, scaled
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")


def rows_of(backbone, series):
    """The values of series as rows: one for each channel, or with all channels."""
    joint = backbone.config.stem.joint_channels
    return {"values": np.moveaxis(series, 2, 1) if joint else as_rows(series)}


@pytest.fixture(scope="module", params=range(len(CONFIGS["patchtsmixer"][1])))
def both(request, tmp_path_factory):
    reference = families.make("patchtsmixer", request.param, "ForPrediction")
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.Forecaster.from_preset(folder)


@pytest.mark.each_backend
def test_same_states_and_forecasts(both):
    reference, task = both
    series = rows(reference.config)
    with torch.no_grad():
        expected = reference(torch.tensor(series)).prediction_outputs.numpy()
        states = reference.model(torch.tensor(series)).last_hidden_state
    found = outputs_of(task.backbone, rows_of(task.backbone, scaled(series)))
    assert np.abs(found - states.numpy().reshape(found.shape)).max() <= 2e-5
    found = task.forecast([*series])
    assert np.abs(np.stack(found) - expected).max() <= 1e-4
    assert task.horizon == 5 and task.quantiles is None


@pytest.mark.each_backend
@pytest.mark.parametrize("number", [0, 3, 6])
def test_same_gradients(number, tmp_path):
    reference = families.make("patchtsmixer", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    series = rows(reference.config)
    for parameter in reference.parameters():
        parameter.requires_grad_(True)  # Positions of sines and cosines are not trained there.
    (reference(torch.tensor(series)).last_hidden_state ** 2).mean().backward()
    ours = rows_of(backbone, scaled(series))
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    for path, variable in expected.items():
        value = to_numpy(variable)
        assert np.abs(found[path] - value).max() <= 1e-4 * np.abs(value).max() + 5e-6, path


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    assert_the_way_back(*both, tmp_path)


@pytest.mark.one_backend
@pytest.mark.parametrize("number", [0, 3])
def test_trains_and_is_saved(number, tmp_path):
    reference = families.make("patchtsmixer", number, "ForPrediction")
    task = kt.Forecaster.from_preset(saved(reference, tmp_path / "theirs"))
    time = np.arange(120)
    series = np.stack([np.sin(0.3 * time), 3 + np.cos(0.2 * time)], axis=1)
    task.compile(keras.optimizers.Adam(1e-2))
    history = task.fit(series, epochs=3, batch_size=16, seed=1, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    task.save_to_preset(tmp_path / "ours")
    again = kt.Task.from_preset(tmp_path / "ours")
    assert np.abs(again.forecast(series) - task.forecast(series)).max() <= 1e-5


@pytest.mark.one_backend
def test_what_a_checkpoint_cannot_say(both, tmp_path):
    _, task = both
    several = kt.Forecaster(task.backbone, horizon=3, quantiles=[0.1, 0.9])
    with pytest.raises(ValueError, match="forecasts one value, but this model quantiles"):
        kt.export_to_huggingface(several, tmp_path, family="patchtsmixer")


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "flatten"}, "mode='flatten' is not supported, only 'common_channel' or 'mix"),
        ({"mode": "mix_channel", "num_layers": 2**20}, "num_layers=1048576 is not from 1 to"),
        ({"self_attn": True, "self_attn_heads": 3}, "8.*3"),
        ({"self_attn": "yes"}, "`self_attn` must be True or False, received 'yes'"),
        ({"scaling": None}, "scaling=None is not supported, only 'std'"),
        ({"norm_mlp": 3}, "norm_mlp=3 is not supported"),
        ({"positional_encoding_type": "none"}, "positional_encoding_type='none' is not"),
        ({"minimum_scale": 1e-3}, "minimum_scale=0.001 is not supported"),
        ({"context_length": 8}, "must be more than patch_length=8"),
        ({"expansion_factor": "much"}, "expansion_factor must be a number"),
        ({"architectures": ["PatchTSMixerForRegression"]}, "ForRegression.*not supported"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["patchtsmixer"].config(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "nll"}, "loss='nll' is not supported, only 'mse'"),
        ({"prediction_channel_indices": [0]}, "all channels are forecast"),
        ({"prediction_length": "long"}, "prediction_length must be a number"),
    ],
)
def test_wrong_heads_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["patchtsmixer"].task({"architectures": ["PatchTSMixerForPrediction"], **values})
