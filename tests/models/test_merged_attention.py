"""Decoders that attend to their own tokens and to the encoder's states in one softmax."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers import AttentionMask, Block, MultiHeadAttention
from tests.layers.conftest import assert_close, numpy, randomize

SOURCE = np.array([[3, 4, 7, 6, 8, 9], [12, 13, 7, 0, 0, 0]])
TARGET = np.array([[5, 7, 8, 9, 10], [11, 7, 0, 0, 0]])
ATTENTION = parts.Attention(
    num_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    query_key_norm="head",
    position=parts.Rotary(),
)
BLOCK = parts.Block(
    mixer=ATTENTION,
    feed_forward=parts.Dense(dim=12, gated=True),
    norm=parts.Norm(type="rms_norm"),
    residual=parts.Residual(order="sandwich"),
)
MERGED = BLOCK.replace(merged_attention=True)


def side(block, window, replaced=7, width=8):
    """A side with a window in its first layer, and a token with a vector of its own."""
    near = block.replace(mixer=block.mixer.replace(pattern=window))
    return parts.Side(
        input=parts.Tokens(vocabulary_size=20, replaced_id=replaced, scale="sqrt"),
        hidden_dim=width,
        num_layers=2,
        block=block,
        layers=(near, block),
    )


def config_of(**values):
    sides = {
        "encoder": side(BLOCK, parts.Window(size=2, behind=2)),
        "decoder": side(MERGED, parts.Window(size=3)),
    }
    return kt.TransformerConfig(**{**sides, **values})


def inputs_of(source, target, **further):
    ours = {"encoder_token_ids": source, "decoder_token_ids": target}
    masks = {"encoder_padding_mask": source > 0, "decoder_padding_mask": target > 0}
    return {**ours, **masks, **further}


@pytest.fixture(scope="module")
def backbone():
    made = kt.models.Seq2Seq(config_of())
    randomize(made)
    return made


@pytest.mark.one_backend
def test_weights_and_files(backbone, tmp_path):
    config = backbone.config
    assert {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.weights} == variable_shapes(
        config
    )
    assert "token_embedding/replaced" in variable_shapes(config)
    assert not any("cross_attention" in path for path in variable_shapes(config))
    assert kt.TransformerConfig.from_json(config.to_json()) == config
    plan = kt.planning.make_plan(config, batch_size=2, length=8)
    assert plan.parameters == backbone.count_params()
    lm = kt.Seq2SeqLM(backbone)
    lm.save_to_preset(tmp_path / "preset")
    lm.save(tmp_path / "file.keras")
    expected = numpy(backbone(inputs_of(SOURCE, TARGET)))
    for again in (
        kt.Seq2SeqLM.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "file.keras"),
    ):
        assert_close(again.backbone(inputs_of(SOURCE, TARGET)), expected, atol=1e-5)


def test_rows_are_as_alone_with_a_cache_and_without(backbone):
    whole = backbone(inputs_of(SOURCE, TARGET))
    alone = backbone(inputs_of(SOURCE[1:, :3], TARGET[1:, :2]))
    assert_close(whole[1:, :2], alone, atol=1e-5)
    lm = kt.Seq2SeqLM(backbone, start_id=1)
    prompts = [SOURCE[0].tolist(), SOURCE[1, :3].tolist()]
    together = lm.generate(prompts, max_new_tokens=6)
    for prompt, tokens in zip(prompts, together, strict=True):
        inputs = inputs_of(np.array([prompt]), np.array([[1, *tokens[:-1]]]))
        logits = numpy(backbone.logits(backbone(inputs)))[0]
        found = logits[np.arange(len(tokens)), tokens]
        assert (found >= logits.max(-1) - 1e-5).all()
    assert lm.generate(prompts[1], max_new_tokens=6) == together[1]


@pytest.mark.one_backend
def test_beams_packs_and_training(backbone):
    lm = kt.Seq2SeqLM(backbone, start_id=1)
    beams = kt.generation.BeamSearch(num_beams=3)
    prompts = [SOURCE[0].tolist(), SOURCE[1, :3].tolist()]
    together = lm.generate(prompts, sampler=beams, max_new_tokens=5)
    assert together == [lm.generate(prompt, sampler=beams, max_new_tokens=5) for prompt in prompts]
    packs = {
        "encoder_pack_ids": np.array([[0] * 4 + [1] * 2]),
        "encoder_position_ids": np.array([[*range(4), *range(2)]]),
        "decoder_pack_ids": np.array([[0] * 3 + [1] * 2]),
        "decoder_position_ids": np.array([[*range(3), *range(2)]]),
    }
    inputs = {"encoder_token_ids": SOURCE[:1], "decoder_token_ids": TARGET[:1]}
    states = backbone({**inputs, **packs})
    second = {"encoder_token_ids": SOURCE[:1, 4:], "decoder_token_ids": TARGET[:1, 3:]}
    assert_close(states[:, 3:], backbone(second), atol=1e-5)
    del packs["encoder_pack_ids"]
    with pytest.raises(ValueError, match="merged attention needs the documents of the encoder"):
        backbone({**inputs, **packs})
    fresh = kt.Seq2SeqLM(kt.models.Seq2Seq(backbone.config))
    data = {**inputs, "decoder_token_ids": TARGET[:1, :-1]}, TARGET[:1, 1:]
    before = fresh.evaluate(*data, verbose=0)
    fresh.compile(keras.optimizers.Adam(0.01), fresh.loss)
    fresh.fit(*data, epochs=3, verbose=0)
    assert np.ravel(fresh.evaluate(*data, verbose=0))[0] < np.ravel(before)[0]


def test_one_softmax_over_the_keys_of_both(backbone):
    """The weights of both sides sum to 1, and an int8 cache reads the encoder's keys again."""
    _, found = backbone(inputs_of(SOURCE[:1], TARGET[:1]), collect=("attention", "keys"))
    for own, cross in zip(found["attention"], found["cross_attention"], strict=True):
        assert own.shape == (1, 4, 5, 5) and cross.shape == (1, 4, 5, 6)
        assert_close(numpy(own).sum(-1) + numpy(cross).sum(-1), np.ones((1, 4, 5)), atol=1e-5)
        assert numpy(cross).min() > 0
    assert found["keys"][0].shape == (1, 2, 5, 4)
    assert found["cross_keys"][0].shape == (1, 2, 6, 4)
    lm = kt.Seq2SeqLM(backbone, start_id=1)
    few = lm.generate(SOURCE[0].tolist(), max_new_tokens=4, cache_dtype="int8")
    assert len(few) == 4


@pytest.mark.one_backend
def test_adapters(backbone):
    lm = kt.Seq2SeqLM(kt.models.Seq2Seq(backbone.config))
    lm.backbone.set_weights(backbone.get_weights())
    lm.enable_lora(rank=2, targets=["key", "value"])
    lm.compile(keras.optimizers.Adam(0.01), lm.loss)
    inputs = {"encoder_token_ids": SOURCE[:1], "decoder_token_ids": TARGET[:1]}
    lm.fit(inputs, TARGET[:1], epochs=2, verbose=0)
    adapted = numpy(lm.backbone(inputs))
    assert np.abs(adapted - numpy(backbone(inputs))).max() > 1e-4
    lm.merge_lora()
    assert_close(lm.backbone(inputs), adapted, atol=2e-5)


@pytest.mark.backend_independent
def test_what_does_not_fit_is_refused():
    window = parts.Window(size=3)
    with pytest.raises(ValueError, match="`merged_attention` is for the decoder of kind='seq2seq'"):
        kt.TransformerConfig(encoder=side(MERGED, window))
    with pytest.raises(ValueError, match="need one `hidden_dim`, received 12 and 8"):
        config_of(
            encoder=side(BLOCK, window, None, 12),
            decoder=side(MERGED, window, None),
            share_embeddings=False,
        )
    with pytest.raises(ValueError, match="`replaced_id` needs sides that share their embeddings"):
        config_of(encoder=side(BLOCK, window, 6))
    with pytest.raises(ValueError, match="no `score_bias`, and no pattern other than a `Window`"):
        MERGED.replace(mixer=ATTENTION.replace(pattern=parts.Chunks(size=4)))
    with pytest.raises(ValueError, match="needs an `Attention` with score='scaled_dot'"):
        MERGED.replace(mixer=parts.ShortConvolution(size=3))
    with pytest.raises(ValueError, match="`behind` cannot be combined"):
        parts.Window(size=3, behind=4, dilation=2)
    with pytest.raises(ValueError, match="needs an encoder|kind='encoder'"):
        config_of(decoder=side(BLOCK, parts.Window(size=3, behind=4)))


@pytest.mark.one_backend
def test_arguments_without_an_effect_are_refused():
    with pytest.raises(ValueError, match="it needs `cross_attention=True`"):
        Block(MERGED, causal=True)
    block = Block(MERGED, causal=True, cross_attention=True)
    x, y = np.ones((1, 3, 8), "float32"), np.ones((1, 4, 8), "float32")
    assert block(x, encoder_states=y).shape == (1, 3, 8)
    with pytest.raises(ValueError, match="seen before the tokens, without a bias"):
        block(x, encoder_states=y, bias=np.zeros((1, 4, 3, 3), "float32"))


@pytest.mark.one_backend
@pytest.mark.parametrize("length", [9, 200])
def test_windows_of_two_sizes_equal_a_dense_mask(length):
    """Also where they are cut into blocks."""
    part = parts.Attention(num_heads=2, head_dim=4)
    windows = MultiHeadAttention(part.replace(pattern=parts.Window(size=4, behind=70)))
    dense = MultiHeadAttention(part)
    x = np.random.default_rng(0).normal(size=(2, length, 8)).astype("float32")
    for layer in (windows, dense):
        layer.build(x.shape)
    randomize(windows)
    dense.set_weights(windows.get_weights())
    places = np.arange(length)
    before = places[:, None] - places
    seen = np.broadcast_to((before < 4) & (-before <= 70), (2, length, length))
    assert_close(windows(x), dense(x, visibility=AttentionMask(explicit=seen)), atol=1e-5)
