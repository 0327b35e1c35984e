"""Checks that hold for stems of every kind."""

import json

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import is_before_blocks, variable_shapes


def assert_is_as_described(config, inputs, folder):
    """Weights and states are those of the config, and files give the model back."""
    backbone = kt.models.Encoder(config)
    found = {v.path.removeprefix("encoder/"): tuple(v.shape) for v in backbone.weights}
    assert found == variable_shapes(config)
    stems = [path for path in found if is_before_blocks(path)]
    assert stems == [path for path in found if "layer_" not in path and "final_norm" not in path]
    states = to_numpy(backbone(inputs))
    assert states.shape == (2, config.num_positions, config.hidden_dim)

    assert kt.TransformerConfig.from_json(json.dumps(config.to_dict())) == config
    backbone.save_to_preset(folder / "preset")
    backbone.save(folder / "model.keras")
    for again in (
        kt.Backbone.from_preset(folder / "preset"),
        keras.models.load_model(folder / "model.keras"),
    ):
        assert again.config == config
        assert np.allclose(to_numpy(again(inputs)), states, atol=1e-6)
