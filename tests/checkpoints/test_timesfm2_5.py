"""TimesFM 2.5 against the Transformers library: states, forecasts, gradients, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.layers.stems.series import standardized_so_far
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_series import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")


def series(seed=3):
    """Series of other levels and lengths: whole, short, of few values, far from 0, too long."""
    random = np.random.default_rng(seed)
    rows = [3 * random.normal(size=n) for n in (32, 9, 3, 21, 50)]
    rows[0] += np.arange(32)
    rows[3] += 100
    return [row.astype("float32") for row in rows]


def side_by_side(rows, length=32):
    """Scaled rows of one length, and which of their values are known."""
    known = np.stack([np.arange(length) >= length - len(row) for row in rows])
    last = [row[-length:] for row in rows]
    scaled = [(row - row.mean()) / row.std() for row in last]
    padded = [np.pad(row, (length - len(row), 0)) for row in scaled]
    return np.stack(padded).astype("float32"), known


def theirs(reference, row):
    """The forecast of one row alone: in a batch, theirs depends on the signs of the others."""
    with torch.no_grad():
        return reference([torch.tensor(row)]).full_predictions[0, :, 1:].numpy()


@pytest.fixture(scope="module", params=range(len(CONFIGS["timesfm2_5"][1])))
def both(request, tmp_path_factory):
    reference = families.make("timesfm2_5", request.param, "ModelForPrediction")
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.Forecaster.from_preset(folder)


@pytest.mark.each_backend
def test_same_states_and_forecasts(both):
    """Compare series of all lengths, at once and each by itself."""
    reference, task = both
    values, known = side_by_side(series())
    with torch.no_grad():
        expected = reference.model(torch.tensor(values), torch.tensor(~known).long())
    found = to_numpy(task.backbone({"values": values, "observed": known}))
    seen = known.reshape(len(known), -1, 4)[..., -1]
    assert not seen.all()
    assert np.abs(found - expected.last_hidden_state.numpy())[seen].max() <= 2e-5
    given = [*series(), np.abs(series()[0])]
    for row, mine in zip(given, task.forecast(given), strict=True):
        expected = theirs(reference, row)
        assert mine.shape == expected.shape == (5, len(task.quantiles))
        assert np.abs(mine - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
        alone = task.forecast(row)
        assert np.abs(alone - mine).max() <= 1e-4 * max(1, np.abs(expected).max())


@pytest.mark.each_backend
def test_same_gradients(tmp_path):
    reference = families.make("timesfm2_5", 1, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    values, known = side_by_side(series()[:2])
    weights = np.repeat(known[:, 3::4, None], 12, axis=2).astype("float32")
    states = reference(torch.tensor(values), torch.tensor(~known).long()).last_hidden_state
    (states**2 * torch.tensor(weights)).mean().backward()
    ours, weights = {"values": values, "observed": known}, keras.ops.convert_to_tensor(weights)
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours)) * weights))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.each_backend
def test_a_small_deviation_far_from_0_is_not_lost():
    random = np.random.default_rng(0)
    values = 1e-3 * random.normal(size=(2, 5, 4)) + 3
    values[:, 3:] -= 6
    known = np.ones((2, 5, 4))
    known[1, 0] = known[1, 1, :2] = 0
    values = values.astype("float32") * known
    found = to_numpy(standardized_so_far(values.astype("float32"), known))
    for row in range(2):
        for piece in range(5):
            mask = known[row, : piece + 1] > 0
            seen = values[row, : piece + 1][mask].astype("float64")
            if not seen.size:
                assert not found[row, piece].any()
                continue
            expected = (values[row, piece] - seen.mean()) / seen.std() * known[row, piece]
            assert np.abs(found[row, piece] - expected).max() <= 2e-3, (row, piece)


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    for row in series():
        expected = theirs(reference, row)
        assert np.abs(theirs(again.eval(), row) - expected).max() <= 1e-5 * np.abs(expected).max()
    back = kt.Forecaster.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert_same_values(back, task)


@pytest.mark.one_backend
def test_trains_and_is_saved(tmp_path):
    reference = families.make("timesfm2_5", 0, "ModelForPrediction")
    task = kt.Task.from_preset(saved(reference, tmp_path / "theirs"))
    assert type(task) is kt.Forecaster
    time = np.arange(90)
    waves = np.stack([np.sin(0.3 * time), 3 + np.cos(0.2 * time)], axis=1)
    before = task.evaluate(waves, verbose=0)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(waves, epochs=3, batch_size=16, seed=1, verbose=0)
    assert task.evaluate(waves, verbose=0) < 0.5 * before
    expected = task.forecast(waves, horizon=8)
    assert expected.shape == (8, 2, 3)
    task.save_to_preset(tmp_path / "ours")
    again = kt.Task.from_preset(tmp_path / "ours")
    assert again.task_values() == task.task_values()
    assert np.abs(again.forecast(waves, horizon=8) - expected).max() <= 1e-4


@pytest.mark.one_backend
def test_signs(both):
    """A symmetric forecast turns with the values, and is cut where a channel has no negative."""
    _, task = both
    if not task.symmetric:
        return
    row = np.abs(series()[0]) + 0.1
    two = task.forecast(np.stack([row, -row], axis=1))
    assert (two[:, 0] >= 0).all() and (two[:, 0] == 0).any()
    uncut = -two[:, 1, ::-1]
    assert np.abs(two[:, 0] - np.maximum(uncut, 0)).max() <= 1e-4 * np.abs(uncut).max()
    collected = task({"values": np.stack([row, -row])}, collect=("states",))[1]
    assert all(len(states) == 2 for states in collected["states"])


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"intermediate_size": 64}, "intermediate_size=64 is not supported with hidden_size=1280"),
        ({"use_continuous_quantile_head": False}, "use_continuous_quantile_head=False is not"),
        ({"patch_length": "long"}, "patch_length must be a number"),
        ({"context_length": 8}, "is too short for patch_length=32"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["timesfm2_5"].config(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quantiles": [0.1, 0.9]}, "quantiles must be a list with a middle one"),
        ({"decode_index": 3}, "decode_index=3 is not supported with 9 quantiles, only 5"),
        ({"horizon_length": "far"}, "horizon_length must be a number"),
    ],
)
def test_wrong_heads_are_refused(values, message):
    named = {"architectures": ["TimesFm2_5ModelForPrediction"]}
    with pytest.raises(ValueError, match=message):
        FAMILIES["timesfm2_5"].task({**named, **values})


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantiles": [0.1, 0.9], "spread_horizon": 7}, "needs a middle one among"),
        ({"quantiles": [0.1, 0.5, 0.9], "spread_horizon": 3}, "spread_horizon"),
        ({"quantiles": [0.1, 0.5, 0.8], "symmetric": True}, "as far from 0 as from 1"),
        (
            {"quantiles": [0.1, 0.5, 0.9], "spread_horizon": 7, "quantiles_first": True},
            "cannot be combined",
        ),
    ],
)
def test_wrong_options_are_refused(both, options, message):
    with pytest.raises(ValueError, match=message):
        kt.Forecaster(both[1].backbone, horizon=5, **options)


@pytest.mark.one_backend
def test_what_a_checkpoint_cannot_say(both, tmp_path):
    task = kt.Forecaster(both[1].backbone, horizon=3, quantiles=[0.1, 0.5, 0.9])
    with pytest.raises(ValueError, match="with a `spread_horizon`, this model not"):
        kt.export_to_huggingface(task, tmp_path, family="timesfm2_5")
