"""Files of before the config of parts: presets, `.keras` files and an adapter give equal numbers.

The files in `kept/` were written by version 0.1, with random weights on PyTorch; `outputs.npz` has
the inputs and outputs of their models then.
"""

import gzip
import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt  # noqa: F401 - which registers the classes of the files
from keras_transformer import TransformerConfig
from keras_transformer import config as parts

KEPT = Path(__file__).parent / "kept"
PRESETS = Path(__file__).parents[2] / "presets"
MODELS = ("longformer", "deberta", "decoder", "seq2seq", "functional")


@pytest.mark.backend_independent
def test_configs_of_format_1_are_those_of_the_bundled_presets():
    kept = json.loads(gzip.decompress((KEPT / "presets_format_1.json.gz").read_bytes()))
    assert len(kept) == 304
    for name, values in kept.items():
        new = json.loads((PRESETS / name / "config.json").read_text(encoding="utf-8"))
        assert new["format_version"] == 2
        config = TransformerConfig.from_dict(values)
        assert config == TransformerConfig.from_dict(new["backbone"]), name
        # Each keyword that the file stated is still an attribute of this value.
        sides = {"encoder", "decoder", "source", "layer_pattern", "stem"}
        if config.kind in ("encoder", "decoder"):
            stated = {n: v for n, v in values.items() if n not in {*sides, "score", "score_scale"}}
            assert {n: config.flat[n] for n in stated} == {
                n: tuple(v) if isinstance(v, list) else v for n, v in stated.items()
            }, name


def saved(name):
    with np.load(KEPT / "outputs.npz") as arrays:
        inputs = {
            key.rpartition("/")[2]: arrays[key] for key in arrays if key.startswith(f"{name}/in/")
        }
        return inputs, arrays[f"{name}/out"]


@pytest.mark.parametrize("name", MODELS)
def test_a_keras_file_gives_the_numbers_it_gave(name):
    inputs, expected = saved(name)
    model = keras.models.load_model(KEPT / f"{name}.keras")
    order = json.loads((KEPT / "weights.json").read_text())
    if name in order:  # an optimizer's file has the states in this order
        assert [variable.path for variable in model.weights] == order[name]
    outputs = model(list(inputs.values()) if name == "functional" else inputs)
    mask = inputs.get("padding_mask")
    outputs = keras.ops.convert_to_numpy(outputs)
    if name == "decoder":  # the states of padding are nobody's
        outputs, expected = outputs[mask], expected[mask]
    np.testing.assert_allclose(outputs, expected, atol=2e-5)


def test_an_adapter_gives_the_numbers_it_gave():
    inputs, expected = saved("adapter")
    model = keras.models.load_model(KEPT / "base_of_lora.keras")
    before = keras.ops.convert_to_numpy(model(inputs))
    model.load_adapter(KEPT / "adapter")
    outputs = keras.ops.convert_to_numpy(model(inputs))
    mask = inputs["padding_mask"]
    assert np.abs(before - expected)[mask].max() > 0.01
    np.testing.assert_allclose(outputs[mask], expected[mask], atol=2e-5)


@pytest.mark.backend_independent
def test_what_a_preset_says_is_written_as_parts_and_read_again(tmp_path):
    block = parts.Block(
        mixer=parts.Attention(num_heads=2, position=parts.Rotary(base=50.0)),
        feed_forward=parts.Experts(number=3, dim=4),
    )
    near = block.mixer.replace(pattern=parts.Window(size=3), position=parts.Rotary())
    side = parts.Side(
        input=parts.Tokens(vocabulary_size=9),
        hidden_dim=8,
        num_layers=4,
        block=block,
        layers=(block.replace(mixer=near), block),
    )
    config = TransformerConfig(decoder=side)
    said = json.loads(config.to_json())
    # Of a layer, what differs from the block.
    assert said["decoder"]["layers"] == [
        {"mixer": {"position": {"base": 10000.0}, "pattern": {"kind": "window", "size": 3}}},
        {},
    ]
    assert TransformerConfig.from_dict(said) == config
    with pytest.raises(ValueError, match="Attention has no value 'number_of_heads', only: "):
        said["decoder"]["block"]["mixer"]["number_of_heads"] = 3
        TransformerConfig.from_dict(said)
