"""Chronos-Bolt against the published forward pass: states, forecasts, gradients, both ways.

The reference is composed of Transformers' T5 stacks, see `tests/checkpoints/chronos_bolt.py`: the
package that has the published class brings others with it.
"""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_series import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")

BOLT = CONFIGS["chronos_bolt"][1]
NAN = np.float32("nan")


def make(number, **values):
    return families.make("chronos_bolt", number, "LanguageModel", **values)


def series(seed=3):
    """Rows of other levels and lengths: with a gap, short, short with a gap, constant, too long."""
    random = np.random.default_rng(seed)
    rows = [3 * random.normal(size=n) + 5 for n in (28, 3, 17, 26, 50)]
    rows = [row.astype("float32") for row in rows]
    rows[0][5:16] = rows[2][-2:] = NAN
    rows[3][:] = 7.0
    return rows


def side_by_side(rows):
    """Rows of one length, with NaN in front of the short ones."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (longest - len(row), 0), constant_values=NAN) for row in rows])


def inputs_of(rows):
    """As the backbone takes them, scaled."""
    mean = np.nanmean(rows, axis=1, keepdims=True)
    scale = np.nanstd(rows, axis=1, keepdims=True)
    scaled = (rows - mean) / np.where(scale == 0, 1e-5, scale)
    return {
        "encoder_values": np.nan_to_num(scaled).astype("float32"),
        "encoder_observed": np.isfinite(rows),
        "decoder_token_ids": np.zeros((len(rows), 1), "int32"),
    }


@pytest.fixture(scope="module", params=range(len(BOLT)))
def both(request, tmp_path_factory):
    reference = make(request.param)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.Forecaster.from_preset(folder)


@pytest.mark.each_backend
def test_same_states(both):
    reference, task = both
    rows = side_by_side(series())[:, -reference.options["context_length"] :]
    with torch.no_grad():
        states, seen, _ = reference.encode(torch.tensor(rows))
        expected = reference.decode(states, seen).numpy()
    found, collected = task.backbone(inputs_of(rows), collect=("states",))
    assert np.abs(to_numpy(found) - expected).max() <= 2e-5
    mask = seen.numpy() > 0
    assert not mask.all()
    encoded = to_numpy(collected["encoder_states"][-1])
    assert np.abs(encoded - states.numpy())[mask].max() <= 2e-5


def test_same_forecasts(both):
    """Rows of all lengths at once give what theirs gives for each, and longer horizons too."""
    reference, task = both
    rows = series()
    horizon = task.horizon
    for asked in (horizon, 3 * horizon - 2):
        found = task.forecast(rows, horizon=asked)
        for row, mine in zip(rows, found, strict=True):
            expected = reference.predict(torch.tensor(row[None]), asked)[0].numpy().T
            assert mine.shape == expected.shape == (asked, len(task.quantiles))
            assert np.abs(mine - expected).max() <= 1e-4 * max(1, np.abs(expected).max())


def test_nothing_known_and_what_is_constant(both):
    reference, task = both
    rows = np.stack([np.full(12, 1e3), np.zeros(12)]).astype("float32")
    with torch.no_grad():
        expected = np.moveaxis(reference(torch.tensor(rows)).numpy(), 1, 2)
    found = np.stack(task.forecast([*rows]))
    assert np.abs(found - expected).max() <= 1e-4
    assert np.abs(found[0] - 1e3).max() <= 1e-2 and np.abs(found[1]).max() <= 1e-2
    with pytest.raises(ValueError, match=r"`x\[0\]` has no value in 0: all are missing"):
        task.forecast([np.full(12, NAN)])


@pytest.mark.parametrize("number", [0, 1])
def test_same_gradients(number, tmp_path):
    reference = make(number)
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    rows = side_by_side(series())[:3]
    states, seen, _ = reference.encode(torch.tensor(rows))
    (reference.decode(states, seen) ** 2).mean().backward()
    ours = inputs_of(rows)
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.model_type == "t5"
    assert again.config.architectures == ["ChronosBoltModelForForecasting"]
    assert again.config.chronos_config == reference.config.chronos_config
    rows = torch.tensor(side_by_side(series()))
    with torch.no_grad():
        assert (again.eval()(rows) - reference(rows)).abs().max() <= 1e-6
    back = kt.Forecaster.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert_same_values(back, task)


def test_trains_on_and_is_saved(tmp_path):
    """On series with a gap, and one that is shorter than a window."""
    task = kt.Task.from_preset(saved(make(0), tmp_path / "theirs"))
    assert type(task) is kt.Forecaster
    time = np.arange(90)
    long = np.stack([np.sin(0.3 * time), 3 + np.cos(0.2 * time)], axis=1)
    long[30:36, 0] = np.nan
    given = [long, long[:14]]
    before = task.evaluate(given, verbose=0)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(given, epochs=6, batch_size=16, seed=1, verbose=0)
    assert task.evaluate(given, verbose=0) < 0.5 * before
    expected = task.forecast(long, horizon=8)
    assert expected.shape == (8, 2, 3)
    task.save_to_preset(tmp_path / "ours")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "ours"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert np.abs(again.forecast(long, horizon=8) - expected).max() <= 1e-4


def test_adapters_and_what_is_frozen(tmp_path):
    task = kt.Task.from_preset(saved(make(0), tmp_path / "theirs"))
    task.freeze(1)
    paths = [variable.path for variable in task.trainable_variables]
    assert not any("input_" in path or "layer_0" in path or "embedding" in path for path in paths)
    assert any("output/residual" in path for path in paths)
    task = kt.Task.from_preset(tmp_path / "theirs", dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    waves = np.sin(0.3 * np.arange(60))
    expected = task.forecast(waves)
    task.fit(waves, verbose=0)
    assert np.abs(task.forecast(waves) - expected).max() > 0


@pytest.mark.one_backend
def test_the_bare_model(tmp_path, caplog):
    """Its export has no head, and a task of it a fresh one."""
    backbone = load_backbone(saved(make(2), tmp_path / "theirs"))
    assert backbone.family == "chronos_bolt"
    kt.export_to_huggingface(backbone, tmp_path / "ours")
    assert_same_values(load_backbone(tmp_path / "ours"), backbone)
    kt.Forecaster.from_preset(tmp_path / "ours")
    assert "has no weights for this head of Forecaster" in caplog.text


@pytest.mark.backend_independent
def test_which_family_a_config_is_of():
    values = {"model_type": "t5", "architectures": ["ChronosBoltModelForForecasting"]}
    assert get_family(values) is FAMILIES["chronos_bolt"]
    values["architectures"] = ["T5ForConditionalGeneration"]
    assert get_family(values) is FAMILIES["t5"]
    assert get_family({"model_type": "t5", "architectures": "x"}) is FAMILIES["t5"]


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chronos_config": [1]}, "chronos_config must be an object"),
        ({"chronos_config": {"input_patch_stride": 8}}, "patches do not overlap: leave stride=8"),
        ({"chronos_config": {"input_patch_size": "x"}}, "input_patch_size must be a number"),
        ({"chronos_config": {"context_length": 8}}, "is too short for patch_length=16"),
        ({"feed_forward_proj": "gated-gated-gelu"}, "feed_forward_proj"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["chronos_bolt"].config(values)


@pytest.mark.one_backend
def test_what_a_checkpoint_cannot_say(tmp_path):
    backbone = load_backbone(saved(make(0), tmp_path / "theirs"))
    for options, message in (
        ({"quantiles": None}, "forecasts quantiles, but this model one value"),
        ({"residual": False}, "cannot express residual=False"),
        ({"quantiles_first": False}, "cannot express quantiles_first=False"),
        ({"scale_epsilon": 1e-5}, "cannot express scale_epsilon=1e-05"),
    ):
        usual = {"residual": True, "quantiles_first": True, "scale_epsilon": 0.0}
        usual["quantiles"] = [0.1, 0.9]
        task = kt.Forecaster(backbone, horizon=3, **{**usual, **options})
        with pytest.raises(ValueError, match=message):
            kt.export_to_huggingface(task, tmp_path / "ours", family="chronos_bolt")
