"""Families of series against the Transformers library: states, forecasts, gradients, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_series import CONFIGS
from tests.checkpoints.test_families import _gradients, saved

torch = pytest.importorskip("torch")


def make(number, suffix="ForPrediction", **values):
    return families.make("patchtst", number, suffix, **values)


def rows(config, seed=3):
    """Two series of each channel, of other levels, `(2, context, channels)`."""
    shape = (2, config.context_length, config.num_input_channels)
    noise = np.random.default_rng(seed).normal(size=shape)
    return (noise * np.resize([2, 0.5], shape[2]) + np.resize([5, -1], shape[2])).astype("float32")


def as_rows(series):
    """Each channel is a row of its own here."""
    return np.moveaxis(series, 2, 1).reshape(-1, series.shape[1])


def scaled(series):
    """The values that the blocks are given."""
    mean = series.mean(axis=1, keepdims=True)
    return (series - mean) / np.sqrt(series.var(axis=1, keepdims=True) + 1e-5)


@pytest.fixture(scope="module", params=range(len(CONFIGS["patchtst"][1])))
def both(request, tmp_path_factory):
    reference = make(request.param)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.Forecaster.from_preset(folder)


@pytest.mark.each_backend
def test_same_states_and_forecasts(both):
    reference, task = both
    series = rows(reference.config)
    with torch.no_grad():
        expected = reference(torch.tensor(series))
        states = reference.model(torch.tensor(series)).last_hidden_state
    found = to_numpy(task.backbone({"values": as_rows(scaled(series))}))
    assert np.abs(found - states.numpy().reshape(found.shape)).max() <= 2e-5
    found = task.predict({"values": as_rows(series)}, verbose=0)
    assert np.abs(found[..., 0] - as_rows(expected.prediction_outputs.numpy())).max() <= 1e-4
    assert task.horizon == 5 and task.quantiles is None
    # The same of frames, which the processor takes without a file that says how.
    found = task.forecast([*series])
    assert np.abs(np.stack(found) - expected.prediction_outputs.numpy()).max() <= 1e-4


def test_missing_values(both):
    """As where theirs is given the mean of what there is in their place."""
    reference, task = both
    series, known = rows(reference.config), np.ones((2, reference.config.context_length, 2), bool)
    known[0, 4:7, 0] = known[1, -1, 1] = False
    mean = (series * known).sum(axis=1, keepdims=True) / known.sum(axis=1, keepdims=True)
    filled = np.where(known, series, mean).astype("float32")
    with torch.no_grad():
        expected = reference(torch.tensor(filled), torch.tensor(known)).prediction_outputs.numpy()
    found = task.forecast([*np.where(known, series, np.nan)])
    assert np.abs(np.stack(found) - expected).max() <= 1e-4


@pytest.mark.parametrize("number", [0, 1])
def test_same_gradients(number, tmp_path):
    reference = make(number, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    series = rows(reference.config)
    for parameter in reference.parameters():
        parameter.requires_grad_(True)  # Positions of sines and cosines are not trained there.
    (reference(torch.tensor(series)).last_hidden_state ** 2).mean().backward()
    ours = {"values": as_rows(scaled(series))}
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    for path, variable in expected.items():
        if "moving_" in path:
            continue
        value = to_numpy(variable)
        bound = 1e-4 * np.abs(value).max() + 5e-6  # Of a key's bias it is zero but for rounding.
        assert np.abs(found[path] - value).max() <= bound, path


def test_the_same_step_of_training(tmp_path):
    """Statistics of the batch, and what the moving averages become."""
    reference = make(0).train()
    task = kt.Forecaster.from_preset(saved(reference, tmp_path))
    config = reference.config
    series = rows(config)
    expected = reference(torch.tensor(series)).prediction_outputs.detach().numpy()
    found = to_numpy(task({"values": as_rows(series)}, training=True))
    assert np.abs(found[..., 0] - as_rows(expected)).max() <= 1e-4
    # Keras's is the variance of the batch, theirs the estimate of that of the data.
    norm = task.backbone.encoder.blocks[0].self_attention_norm
    theirs = reference.model.encoder.layers[0].norm_sublayer1.batchnorm
    count = 4 * reference.model.patchifier.num_patches
    before = kt.Forecaster.from_preset(tmp_path).backbone.encoder.blocks[0].self_attention_norm
    assert np.abs(to_numpy(norm.moving_mean) - theirs.running_mean.numpy()).max() <= 1e-5
    old = 0.9 * to_numpy(before.moving_variance)
    expected = (theirs.running_var.numpy() - old) * (count - 1) / count
    assert np.abs(to_numpy(norm.moving_variance) - old - expected).max() <= 1e-5


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    assert_the_way_back(*both, tmp_path)


def assert_the_way_back(reference, task, tmp_path):
    """The export of a forecaster forecasts the same there, and is the same task here."""
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    series = torch.tensor(rows(reference.config))
    with torch.no_grad():
        expected = reference(series).prediction_outputs
        assert (again.eval()(series).prediction_outputs - expected).abs().max() <= 1e-6
    back = kt.Forecaster.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert_same_values(back.backbone, task.backbone)


def test_trains_on_and_is_saved(tmp_path):
    """The moving averages move with training, and are kept."""
    task = kt.Forecaster.from_preset(saved(make(0), tmp_path / "theirs"))
    norm = task.backbone.encoder.blocks[0].self_attention_norm
    before = to_numpy(norm.moving_mean).copy()
    time = np.arange(120)
    series = np.stack([np.sin(0.3 * time), 3 + np.cos(0.2 * time)], axis=1)
    task.compile(keras.optimizers.Adam(1e-2))
    history = task.fit(series, epochs=4, batch_size=16, seed=1, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert np.abs(to_numpy(norm.moving_mean) - before).max() > 1e-2
    expected = task.forecast(series)
    task.save_to_preset(tmp_path / "ours")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "ours"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert np.abs(again.forecast(series) - expected).max() <= 1e-5


def test_recomputed_blocks_train_alike(tmp_path):
    """With `keras.RematScope` too the averages move once a step."""
    folder, series = saved(make(0), tmp_path), rows(make(0).config)
    found = []
    for mode in (None, "full"):
        with keras.RematScope(mode=mode):
            task = kt.Forecaster.from_preset(folder)
        task.compile(keras.optimizers.SGD(1e-2))
        inputs, targets = {"values": as_rows(series)}, np.zeros((4, 5, 1), "float32")
        losses = [float(task.train_on_batch(inputs, targets)[0]) for _ in range(2)]
        norm = task.backbone.encoder.blocks[1].self_attention_norm
        found.append((losses, to_numpy(norm.moving_mean), to_numpy(norm.moving_variance)))
    for one, other in zip(*found, strict=True):
        assert np.abs(np.array(one) - np.array(other)).max() <= 1e-4


@pytest.mark.parametrize("how", ["freeze", "enable_lora"])
def test_what_is_frozen_keeps_its_averages(how, tmp_path):
    task = kt.Forecaster.from_preset(saved(make(0), tmp_path))
    blocks = task.backbone.encoder.blocks
    task.freeze(1) if how == "freeze" else task.enable_lora(rank=2)
    before = [to_numpy(block.feed_forward_norm.moving_mean).copy() for block in blocks]
    time = np.arange(60)
    task.fit(np.stack([np.sin(0.3 * time), np.cos(0.2 * time)], axis=1), verbose=0)
    after = [to_numpy(block.feed_forward_norm.moving_mean) for block in blocks]
    assert not any("moving_" in variable.path for variable in task.trainable_variables)
    assert np.array_equal(before[0], after[0])
    assert np.array_equal(before[1], after[1]) == (how == "enable_lora")


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scaling": None}, "scaling=None is not supported, only 'std'"),
        ({"scaling": "mean"}, "scaling='mean' is not supported"),
        ({"norm_type": "groupnorm"}, "norm_type='groupnorm' is not supported"),
        ({"positional_encoding_type": "none"}, "positional_encoding_type='none' is not"),
        ({"share_embedding": False}, "share_embedding=False is not supported"),
        ({"channel_attention": True}, "channel_attention=True is not supported"),
        ({"minimum_scale": 1e-3}, "minimum_scale=0.001 is not supported"),
        ({"context_length": 6, "patch_length": 6}, "must be more than patch_length=6"),
        ({"patch_stride": "far"}, "patch_stride must be a number"),
        ({"architectures": ["PatchTSTForPretraining"]}, "PatchTSTForPretraining.*not supported"),
        ({"architectures": ["PatchTSTForRegression"]}, "PatchTSTForRegression.*not supported"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["patchtst"].config(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "nll"}, "loss='nll' is not supported, only 'mse'"),
        ({"share_projection": False}, "share_projection=False is not supported"),
        ({"pooling_type": "median"}, "pooling_type='median' is not supported"),
        ({"prediction_length": "long"}, "prediction_length must be a number"),
    ],
)
def test_wrong_heads_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["patchtst"].task({"architectures": ["PatchTSTForPrediction"], **values})


@pytest.mark.one_backend
def test_what_a_checkpoint_cannot_say(tmp_path):
    task = kt.Forecaster.from_preset(saved(make(0), tmp_path / "theirs"))
    backbone = task.backbone
    several = kt.Forecaster(backbone, horizon=3, quantiles=[0.1, 0.9], pooling="mean")
    with pytest.raises(ValueError, match="forecasts one value, but this model quantiles"):
        kt.export_to_huggingface(several, tmp_path / "ours", family="patchtst")
    first = kt.Forecaster(backbone, horizon=3, pooling="first")
    with pytest.raises(ValueError, match="cannot express pooling='first'"):
        kt.export_to_huggingface(first, tmp_path / "ours", family="patchtst")
