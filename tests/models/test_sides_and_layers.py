"""Models whose sides, or whose layers, differ: they compute what their flat configs say."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import TransformerConfig
from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.config.structure import variable_shapes
from keras_transformer.models import build_backbone
from tests.generation.common import on_one
from tests.layers.conftest import assert_close, numpy
from tests.models.conftest import small_backbone

IDS = np.array([[3, 4, 5, 6, 7, 8], [8, 9, 2, 3, 4, 5]])
SOURCE = {"encoder_token_ids": IDS, "decoder_token_ids": IDS[:, :3]}
FLAT = {
    "kind": "decoder", "vocabulary_size": 20, "hidden_dim": 16, "num_layers": 4, "num_heads": 4,
    "intermediate_dim": 24, "position": "rotary",
}  # fmt: skip
PATTERN = (
    {"window": 2, "rotary_base": 100.0},
    {"num_heads": 2, "num_key_value_heads": 1, "position": "none"},
)


def test_flat_configs():
    config = TransformerConfig(
        **{**FLAT, "kind": "seq2seq", "position": "sinusoidal"},
        decoder={"num_layers": 2, "num_heads": 2, "dropout": 0.1},
        encoder={"activation": "gelu"},
    )
    encoder, decoder = config.sides
    assert (encoder.kind, encoder.num_layers, encoder.activation) == ("encoder", 4, "gelu")
    assert (decoder.kind, decoder.num_layers, decoder.activation) == ("decoder", 2, "relu")
    assert (decoder.head_dim, decoder.num_key_value_heads, decoder.dropout) == (8, 2, 0.1)
    assert (config.num_decoder_layers, config.share_embeddings) == (2, True)
    assert config.side("decoder") == decoder and decoder.side("decoder") is decoder
    assert TransformerConfig.from_json(config.to_json()) == config
    layers = TransformerConfig(**FLAT, layer_pattern=PATTERN)
    assert [layers.layer(i).window for i in range(4)] == [2, None, 2, None]
    assert [layers.layer(i).head_dim for i in range(4)] == [4, 8, 4, 8]
    assert TransformerConfig.from_dict(json.loads(layers.to_json())) == layers


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decoder": {"num_heads": 2}}, "`decoder` needs kind='seq2seq'"),
        ({"layer_pattern": ({"num_layers": 2},)}, "cannot have its own 'num_layers'"),
        ({"layer_pattern": ()}, "must have a dict for each layer"),
        ({"layer_pattern": ({"num_heads": 3},)}, "divisible by `num_heads`"),
        ({"layer_pattern": ({"position": "alibi"},)}, "only 'rotary' and 'none'"),
        ({"layer_pattern": ("global",)}, "must hold values by name"),
        ({"kind": "seq2seq", "decoder": {"kind": "encoder"}}, "cannot have its own 'kind'"),
        ({"kind": "seq2seq", "decoder": {"heads": 2}}, "cannot have its own 'heads'"),
        ({"kind": "seq2seq", "decoder": {"dropout": 2}}, "`dropout` is a rate"),
        ({"kind": "seq2seq", "decoder": [2]}, "`decoder` must be of type dict"),
        (
            {"kind": "seq2seq", "num_decoder_layers": 3, "decoder": {"num_layers": 2}},
            "contradict each other",
        ),
        (
            {"kind": "seq2seq", "decoder": {"vocabulary_size": 30}, "share_embeddings": True},
            "`share_embeddings` needs sides of one `vocabulary_size`",
        ),
    ],
)  # fmt: skip
def test_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{**FLAT, **values})


def test_layers_compute_what_their_flat_config_says():
    """A model of the pattern is the blocks of plain models, one after the other."""
    backbone = small_backbone(**FLAT, layer_pattern=PATTERN)
    x = backbone.stem({"token_ids": IDS}).states
    for i, block in enumerate(backbone.decoder.blocks):
        flat = build_backbone(backbone.config.layer(i).replace(num_layers=1))
        for variable, value in zip(flat.decoder.blocks[0].weights, block.weights, strict=True):
            variable.assign(value)
        x = flat.decoder.blocks[0](x)
    assert_close(x, backbone({"token_ids": IDS}))


def test_a_pattern_generates_as_it_computes():
    """With a cache, whose keys differ in number and width, and which windows may not empty."""
    backbone = small_backbone(**FLAT, layer_pattern=PATTERN)
    lm = kt.CausalLM(backbone)
    tokens = lm.generate([3, 4, 5], max_new_tokens=8)
    ids = np.array([[3, 4, 5, *tokens]])
    best = numpy(lm({"token_ids": ids})).argmax(-1)[0, 2:-1]
    assert best.tolist() == tokens
    batch = lm.generate([[3, 4, 5], [6, 7, 8, 9, 10, 11]], max_new_tokens=8)
    assert batch[0] == tokens


UNEQUAL = [
    {"decoder": {"num_heads": 2, "num_layers": 1, "intermediate_dim": 40}},
    {"decoder": {"hidden_dim": 8, "gated": True}, "encoder": {"position": "relative"}},
    {"encoder": {"vocabulary_size": 30, "layer_pattern": ({"window": 2}, {})}},
    {"encoder": {"num_layer_groups": 1}, "share_embeddings": False},
]  # fmt: skip


@pytest.mark.parametrize("sides", [on_one(UNEQUAL[0]), UNEQUAL[1], UNEQUAL[2], on_one(UNEQUAL[3])])
def test_unequal_sides(sides):
    values = {**FLAT, "kind": "seq2seq", "position": "sinusoidal", "num_layers": 2}
    backbone = small_backbone(**values, **sides)
    states = backbone(SOURCE)
    encoded = backbone.encode(IDS)
    assert encoded.shape[-1] == backbone.config.side("encoder").hidden_dim
    decoded = backbone({"encoder_states": encoded, "decoder_token_ids": IDS[:, :3]})
    assert_close(states, decoded)
    lm = kt.Seq2SeqLM(backbone, start_id=1)
    logits = lm(SOURCE)
    assert logits.shape[-1] == backbone.config.side("decoder").vocabulary_size
    (tokens,) = lm.generate([IDS[0].tolist()], max_new_tokens=5)
    target = np.array([[1, *tokens]])
    best = numpy(lm({"encoder_token_ids": IDS[:1], "decoder_token_ids": target})).argmax(-1)
    assert best[0, : len(tokens)].tolist() == tokens


@pytest.mark.one_backend
@pytest.mark.parametrize("sides", [*UNEQUAL, {"kind": "decoder", "layer_pattern": PATTERN}])
def test_a_preset_keeps_them(sides, tmp_path):
    """And the weights are those that are computed from the config."""
    backbone = small_backbone(**{**FLAT, "kind": "seq2seq", "position": "rotary", **sides})
    shapes = {path: tuple(v.shape) for path, v in backbone_variables(backbone).items()}
    assert shapes == variable_shapes(backbone.config)
    backbone.save_to_preset(tmp_path)
    again = kt.Backbone.from_preset(tmp_path)
    assert again.config == backbone.config
    inputs = SOURCE if again.config.kind == "seq2seq" else {"token_ids": IDS}
    assert_close(again(inputs), backbone(inputs))


def test_each_side_has_its_own_vocabulary():
    backbone = small_backbone(**{**FLAT, "kind": "seq2seq"}, encoder={"vocabulary_size": 30})
    backbone({**SOURCE, "encoder_token_ids": np.array([[29]] * 2)})
    with pytest.raises(ValueError, match="`decoder_token_ids` holds ids from 25 to 25"):
        backbone({**SOURCE, "decoder_token_ids": np.array([[25]] * 2)})


def test_soft_caps():
    """Scores and logits as Gemma 2 caps them, and the loss of a batch is that of its logits."""
    capped = {"attention_soft_cap": 0.5, "logit_soft_cap": 0.7}
    plain, backbone = small_backbone(**FLAT), small_backbone(**FLAT, **capped)
    _, found = plain({"token_ids": IDS}, collect=("states", "attention"))
    _, held = backbone({"token_ids": IDS}, collect=("attention",))
    uncapped = np.log(np.maximum(numpy(found["attention"][0]), 1e-30))
    within = np.tril(np.ones((6, 6), bool))
    # Of a softmax only the differences of its scores are known.
    block = plain.decoder.blocks[0].self_attention
    scores = _scores(block, found["states"][0])
    expected = np.where(within, 0.5 * np.tanh(scores / 0.5), -np.inf)
    expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    np.testing.assert_allclose(numpy(held["attention"][0]), expected, atol=1e-5)
    assert np.abs(uncapped[..., within] - np.log(expected[..., within])).max() > 0.1
    states = backbone({"token_ids": IDS})
    logits = numpy(backbone.token_embedding(states, reverse=True))
    np.testing.assert_allclose(
        numpy(backbone.logits(states)), 0.7 * np.tanh(logits / 0.7), atol=1e-5
    )
    lm = kt.CausalLM(backbone)
    batch = ({"token_ids": IDS[:, :-1]}, IDS[:, 1:])
    assert lm.evaluate(*batch, verbose=0)[0] == pytest.approx(_loss(lm, *batch), abs=1e-5)


def _scores(attention, states):
    """Rotated queries by keys, as the layer makes them without positions of its own."""
    queries, keys = (
        attention.rotary_embedding(attention._split(dense(states), 4))
        for dense in (attention.query_dense, attention.key_dense)
    )
    return np.einsum("bthd,bshd->bhts", numpy(queries), numpy(keys)) / np.sqrt(4)


def _loss(lm, inputs, targets):
    logits = numpy(lm(inputs)).astype("float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logits, targets[..., None], -1).mean()
