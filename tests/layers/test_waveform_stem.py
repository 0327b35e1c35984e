"""The stem of waveforms: its weights, recordings with padding, wrong values."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import is_before_blocks, variable_shapes
from tests.tasks import audio

CONFIGS = {
    "group": audio.waveform(),
    "layer": audio.waveform(norm="layer", use_bias=True, position_size=7),
    "bare": audio.waveform(projection_norm=False, activation="relu", position_groups=1),
    "recording": audio.waveform(
        norm="recording", filters=[6, 5, 16], first_activation="tanh", use_bias=True,
        first_bias=False, projection_norm=False, projection=False, position_size=0,
    ),
    "projected": audio.waveform(norm="recording", position_size=0, first_bias=True),
}  # fmt: skip
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
LENGTHS = (400, 237, 90)


def padded():
    """Recordings of `LENGTHS` as one array, and their mask."""
    mask = np.arange(400) < np.array(LENGTHS)[:, None]
    values = np.random.default_rng(0).normal(size=mask.shape)
    return np.where(mask, values, 0).astype("float32"), mask


def random_model(config, **options):
    keras.utils.set_random_seed(0)
    model = kt.models.Encoder(config, **options)
    random = np.random.default_rng(1)
    for variable in model.weights:
        variable.assign(random.normal(size=variable.shape, scale=0.5))
    return model


@each_config
def test_weights_and_files_are_those_of_the_config(config, tmp_path):
    model = random_model(config)
    found = {v.path.removeprefix("encoder/"): tuple(v.shape) for v in model.weights}
    assert found == variable_shapes(config)
    stems = [path for path in found if is_before_blocks(path)]
    assert stems == [path for path in found if "layer_" not in path and "final_norm" not in path]

    samples, mask = padded()
    inputs = {"samples": samples, "padding_mask": mask}
    states = to_numpy(model(inputs))
    assert states.shape == (3, config.stem.lengths(400)[-1], 16)
    assert kt.TransformerConfig.from_json(config.to_json()) == config
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    for again in (
        kt.Backbone.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.config == config
        assert np.abs(to_numpy(again(inputs)) - states).max() <= 1e-5


@each_config
def test_a_recording_gives_what_it_gives_alone(config):
    model = random_model(config)
    samples, mask = padded()
    states = to_numpy(model({"samples": samples, "padding_mask": mask}))
    real = to_numpy(model.stem.mask_of_states(mask, states.shape[1]))
    for row, length in enumerate(LENGTHS):
        alone = to_numpy(model({"samples": samples[row : row + 1, :length]}))[0]
        assert len(alone) == real[row].sum() == config.stem.lengths(length)[-1]
        assert np.abs(states[row, : len(alone)] - alone).max() <= 2e-5
    # Without the mask padding is heard.
    unmasked = to_numpy(model({"samples": samples}))
    assert np.abs(unmasked - states)[1][real[1]].max() > 1e-4


def test_a_norm_of_all_features_of_a_recording():
    """Against PyTorch's group normalization of one group, behind the activation."""
    torch = pytest.importorskip("torch")
    config = CONFIGS["recording"]
    model = random_model(config)
    layer, norm, samples = model.stem.convolutions[0], model.stem.norms[0], padded()[0][:1]
    kernel, gamma, beta = (torch.tensor(to_numpy(x)) for x in (layer.kernel, norm.gamma, norm.beta))
    assert layer.bias is None and model.stem.convolutions[1].bias is not None
    states = torch.nn.functional.conv1d(
        torch.tensor(samples)[:, None], kernel.permute(2, 1, 0), stride=5
    )
    expected = torch.nn.functional.group_norm(states.tanh(), 1, gamma, beta, eps=1e-5).mT
    inputs = keras.ops.convert_to_tensor(samples)[..., None]
    found = to_numpy(model.stem._convolved(0, inputs, None))
    assert np.abs(found - expected.numpy()).max() <= 2e-5


def test_lengths_of_any_recording():
    stem = CONFIGS["group"].stem
    assert stem.fewest_samples == 30 and stem.samples_of_state == 20
    assert [stem.lengths(n)[-1] for n in (29, 30, 49, 50)] == [0, 1, 1, 2]
    usual = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=1,
        intermediate_dim=8, position="none", stem={"kind": "waveform"},
    ).stem  # fmt: skip
    assert (usual.fewest_samples, usual.samples_of_state, usual.num_states) == (400, 320, 499)
    model = random_model(CONFIGS["group"])
    samples = np.ones((2, 7), "float32")  # too short for a state: as if silence followed
    expected = to_numpy(model({"samples": np.pad(samples, ((0, 0), (0, 23)))}))
    assert np.abs(to_numpy(model({"samples": samples})) - expected).max() <= 1e-6
    assert expected.shape == (2, 1, 16)


def test_a_functional_model_takes_any_length():
    backbone = random_model(CONFIGS["group"])
    inputs = {
        "samples": keras.Input((None,), name="samples"),
        "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
    }
    outputs = backbone(inputs)
    assert outputs.shape == (None, None, 16)
    model = keras.Model(inputs, keras.layers.GlobalMaxPooling1D()(outputs))
    samples, mask = padded()
    arrays = {"samples": samples, "padding_mask": mask}
    expected = to_numpy(backbone(arrays)).max(axis=1)
    assert np.abs(model.predict(arrays, verbose=0) - expected).max() <= 1e-5


@pytest.mark.parametrize("name", ["group", "layer", "recording"])
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(name, dtype):
    """Compare five models: in one a number may be far off by chance, on every backend."""
    samples, mask = padded()
    inputs, largest, means = {"samples": samples, "padding_mask": mask}, [], []
    for seed in range(5):
        keras.utils.set_random_seed(seed)
        expected = kt.models.Encoder(CONFIGS[name])
        mixed = kt.models.Encoder(CONFIGS[name], dtype=dtype)
        mixed.set_weights(expected.get_weights())
        difference = to_numpy(mixed(inputs)).astype("float32") - to_numpy(expected(inputs))
        largest.append(np.abs(difference).max())
        means.append(np.abs(difference).mean())
    assert np.median(largest) <= 0.1 and np.median(means) <= 0.02


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ({"filters": []}, "`filters` of the stem must be 0 integers of at least 1, one for each"),
        ({"strides": [5, 2]}, "`strides` of the stem must be 3 integers of at least 1"),
        ({"kernel_sizes": [10, 3, 0]}, "`kernel_sizes` of the stem must be 3 integers"),
        ({"strides": [2**15] * 3}, "leave no state of 160,000 samples"),
        ({"norm": "batch"}, "`norm` must be one of"),
        ({"position_groups": 3}, "position_groups=3 of the stem must divide the width .*, 16"),
        ({"activation": "loud"}, "`activation` must be one of"),
        ({"first_activation": "loud"}, "`first_activation` must be one of"),
        ({"first_bias": 1}, "`first_bias` must be"),
        ({"position_size": -1}, "`position_size` must be at least 0"),
        ({"projection": False}, "the last of `filters` .* must be the width .*, 16, received 4"),
        ({"use_bias": "yes"}, "`use_bias` must be"),
    ],
)
def test_wrong_values(stem, message):
    with pytest.raises(ValueError, match=message):
        audio.waveform(**stem)


def test_wrong_inputs():
    backbone = kt.models.Encoder(audio.waveform())
    with pytest.raises(ValueError, match="must be of shape .batch, length."):
        backbone({"samples": np.zeros((2, 26, 13), "float32")})
    with pytest.raises(ValueError, match="must hold finite floats"):
        backbone({"samples": np.full((1, 260), np.nan, "float32")})
    with pytest.raises(ValueError, match="`padding_mask` must have the shape of `samples`"):
        backbone({"samples": np.ones((1, 260), "float32"), "padding_mask": np.ones((1, 13), bool)})
