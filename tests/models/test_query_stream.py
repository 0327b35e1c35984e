"""Decoders whose queries are the positions of the tokens that come next."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers import Block
from tests.layers.conftest import assert_close, numpy, randomize

BLOCK = parts.Block(
    mixer=parts.Attention(num_heads=2),
    feed_forward=parts.Dense(dim=12),
    residual=parts.Residual(order="pre"),
    query_stream=True,
)
IDS = np.array([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 4, 5]])


def side(layers=2, block=BLOCK, **values):
    position = values.pop("position", parts.Learned())
    return parts.Side(
        input=parts.Tokens(vocabulary_size=20, scale="sqrt"), hidden_dim=8, num_layers=layers,
        block=block, position=position, max_sequence_length=9, **values,
    )  # fmt: skip


def config_of(layers=2, **values):
    logits = parts.Logits(tie=False, bias=True, left_out=3)
    return kt.TransformerConfig(**{"decoder": side(layers), "logits": logits, **values})


@pytest.fixture(scope="module", params=[1, 3])
def backbone(request):
    return randomize(kt.models.Decoder(config_of(request.param)))


def states(backbone, ids=IDS, **further):
    return numpy(backbone({"token_ids": ids, "padding_mask": ids > 0, **further}))


def test_a_token_is_not_its_own_query(backbone):
    """A state depends on the tokens before and at its place, and on no token's own position."""
    expected = states(backbone)
    changed = IDS.copy()
    changed[0, 3] = 15
    found = states(backbone, changed)
    assert_close(found[0, :3], expected[0, :3])
    assert np.abs(found[0, 3:] - expected[0, 3:]).max(axis=-1).min() > 1e-3
    assert_close(states(backbone, IDS[1:, :4])[0], expected[1, :4])  # as alone in a batch


def test_positions_of_the_next_tokens(backbone):
    """Given positions are those of the tokens that come next: the same tokens in another order."""
    assert_close(states(backbone, position_ids=POSITIONS), states(backbone))
    # The states of the last tokens see the same tokens, each at the same position.
    ids, order = IDS[:1], np.array([[2, 0, 1, 3, 4, 5]])
    moved = np.concatenate([ids[:, :1], ids[:, 1:][:, order[0, :-1]]], axis=1)
    expected, found = states(backbone, ids), states(backbone, moved, position_ids=order)
    assert np.abs(found[0, 0] - expected[0, 0]).max() > 1e-3  # the query of another position
    if backbone.config.num_layers == 1:
        assert_close(found[0, 3:], expected[0, 3:])
    else:  # tokens of the second layer have seen others, in their own order
        assert np.abs(found[0, 3] - expected[0, 3]).max() > 1e-3


def test_packed_documents(backbone):
    """Two orders in one row, longer than there are positions, are as each by itself."""
    order = np.array([[5, 4, 3, 2, 1, 0]])
    row = np.concatenate([IDS[:1], IDS[:1]], axis=1)
    positions = np.concatenate([POSITIONS, order], axis=1)
    packs = np.repeat([[0, 1]], 6, axis=1)
    found = states(backbone, row, position_ids=positions, pack_ids=packs)
    assert_close(found[:, :6], states(backbone, IDS[:1]))
    assert_close(found[:, 6:], states(backbone, IDS[:1], position_ids=order))
    with pytest.raises(ValueError, match="learned positions for 9 only"):
        states(backbone, row)
    with pytest.raises(ValueError, match="position_ids"):
        states(backbone, IDS, position_ids=POSITIONS + 4)


def test_decoding_with_a_cache(backbone):
    lm = kt.CausalLM(backbone, end_ids=[])
    prompts = [[3, 4, 5], [6]]
    written = lm.generate(prompts, max_new_tokens=5)
    for prompt, row in zip(prompts, written, strict=True):
        assert lm.generate(prompt, max_new_tokens=5) == row
        for place, token in enumerate(row):
            logits = numpy(lm({"token_ids": np.array([[*prompt, *row[:place]]])}))[0, -1]
            assert logits.argmax() == token < 17


def test_logits_that_are_left_out(backbone):
    lm = kt.CausalLM(backbone)
    inputs = {"token_ids": IDS[:, :-1], "padding_mask": IDS[:, :-1] > 0}
    logits = numpy(lm(inputs))
    assert logits.shape == (2, 5, 20) and (logits[..., 17:] < -1e4).all()
    kernel, bias = map(numpy, (backbone.written_logits.kernel, backbone.written_logits.bias))
    assert kernel.shape == (8, 17)
    assert_close(logits[..., :17], numpy(backbone(inputs)) @ kernel + bias, atol=1e-4)
    loss = lm.evaluate(inputs, IDS[:, 1:], verbose=0, return_dict=True)["loss"]
    shifted = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(shifted, IDS[:, 1:, None], axis=-1)[..., 0]
    assert abs(loss - (np.log(np.exp(shifted).sum(-1)) - chosen).mean()) < 1e-4


@pytest.mark.one_backend
def test_weights_and_files(backbone, tmp_path):
    config = backbone.config
    shapes = variable_shapes(config)
    assert {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.weights} == shapes
    assert "decoder/layer_0/query_norm/gamma" in shapes
    assert "token_embedding/reverse_embeddings" not in shapes
    assert kt.TransformerConfig.from_json(config.to_json()) == config
    lm = kt.CausalLM(backbone)
    lm.save_to_preset(tmp_path / "preset")
    lm.save(tmp_path / "file.keras")
    again = keras.models.load_model(tmp_path / "file.keras")
    for each in (again, kt.CausalLM.from_preset(tmp_path / "preset")):
        assert_close(states(each.backbone), states(backbone))
    lm.fit({"token_ids": IDS[:, :-1]}, IDS[:, 1:], verbose=0)
    lm.quantize("int8")
    assert np.isfinite(lm.predict({"token_ids": IDS}, verbose=0)[..., :17]).all()


@pytest.mark.one_backend
def test_collected_values(backbone):
    layers = backbone.config.num_layers
    collect = ("states", "attention")
    _, found = backbone({"token_ids": IDS}, collect=collect)
    assert len(found["attention"]) == layers and len(found["states"]) == layers + 1
    weights = numpy(found["attention"][-1])
    assert_close(weights.sum(-1), np.ones_like(weights[..., 0]))
    assert not np.triu(weights, 1).any()


@pytest.mark.one_backend
def test_a_block_by_itself():
    block = Block(BLOCK.replace(mixer=BLOCK.mixer.for_width(8)), causal=True)
    x, queries = np.random.default_rng(0).normal(size=(2, 1, 5, 8)).astype("float32")
    block(x)
    randomize(block)
    moved = ops.convert_to_numpy(block(x, queries=queries))
    assert moved.shape == (1, 5, 8) and not np.allclose(moved, numpy(block(x)))
    attention, norm = block.self_attention, block.self_attention_norm
    attended = numpy(attention(norm(x), query_stream=block.query_norm(queries)))
    expected = queries + attended
    expected += numpy(block.feed_forward(block.feed_forward_norm(expected)))
    assert_close(moved, expected)
    with pytest.raises(ValueError, match="has no `query_stream`"):
        Block(BLOCK.replace(query_stream=False), causal=True)(x, queries=queries)
    with pytest.raises(ValueError, match=r"`queries` of Block must be of shape \(1, 5, 8\)"):
        block(x, queries=queries[:, :3])


@pytest.mark.backend_independent
def test_what_has_no_query_stream():
    mixers = {"position": parts.Rotary(), "pattern": parts.Window(size=2), "output_gate": True}
    for name, value in mixers.items():
        with pytest.raises(ValueError, match="`query_stream` needs an `Attention`"):
            BLOCK.replace(mixer=parts.Attention(num_heads=2, **{name: value}))
    for values in ({"residual": parts.Residual()}, {"output_scale": True}):
        with pytest.raises(ValueError, match="`query_stream` needs an `Attention`"):
            BLOCK.replace(**values)
    for values in ({"position": None}, {"position": parts.Learned(offset=2)}):
        with pytest.raises(ValueError, match="needs `Tokens` with position=Learned"):
            side(**values)
    for values in ({"embedding_norm": True}, {"embedding_dim": 4}):
        with pytest.raises(ValueError, match="needs `Tokens` with position=Learned"):
            side(**values)
    with pytest.raises(ValueError, match="all have a `query_stream`, or none has"):
        side().replace(layers=(BLOCK, BLOCK.replace(query_stream=False)))
    with pytest.raises(ValueError, match="`query_stream` needs kind='decoder'"):
        kt.TransformerConfig(encoder=side())
    for left_out, tie in ((20, False), (3, True)):
        with pytest.raises(ValueError, match="`left_out`"):
            config_of(logits=parts.Logits(tie=tie, left_out=left_out))
