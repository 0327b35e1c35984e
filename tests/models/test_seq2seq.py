"""The encoder-decoder backbone."""

import numpy as np
import pytest

from keras_transformer.generation import Cache
from tests.layers.conftest import assert_close, differs, numpy
from tests.models.conftest import IDS, PADDING, SOURCE, SOURCE_PADDING, small_backbone, small_inputs


def test_both_sides_share_one_embedding():
    backbone = small_backbone("seq2seq")
    tables = [w.path for w in backbone.weights if w.name == "embeddings"]
    assert tables == ["seq2seq/token_embedding/embeddings"]


def test_encode_alone_and_then_decode():
    backbone, inputs = small_backbone("seq2seq"), small_inputs("seq2seq")
    expected = backbone(inputs)
    states = backbone.encode(SOURCE, SOURCE_PADDING)
    assert states.shape == (2, 7, 8)
    del inputs["encoder_token_ids"]
    assert_close(backbone({**inputs, "encoder_states": states}), expected)


def test_the_decoder_is_causal_and_the_encoder_is_not():
    backbone, inputs = small_backbone("seq2seq"), small_inputs("seq2seq")
    before = numpy(backbone(inputs))
    target, source = IDS.copy(), SOURCE.copy()
    target[0, 3:] = 1
    after = numpy(backbone({**inputs, "decoder_token_ids": target}))
    assert_close(after[0, :3], before[0, :3])
    assert differs(after[0, 3:], before[0, 3:])
    source[0, 6] = 1
    assert differs(backbone({**inputs, "encoder_token_ids": source})[0, :1], before[0, :1])


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "relative", "alibi"])
def test_cached_equals_uncached(position):
    backbone = small_backbone("seq2seq", num_layers=1, position=position)
    source = {"encoder_token_ids": SOURCE, "encoder_padding_mask": SOURCE_PADDING}
    expected = numpy(backbone({**source, "decoder_token_ids": IDS}))
    cache = Cache.create(backbone, rows=2, slots=8)
    first, cache = backbone({**source, "decoder_token_ids": IDS[:, :2]}, cache=cache)
    assert_close(first, expected[:, :2])
    for t in range(2, 5):
        inputs = backbone.step_inputs(IDS[:, t : t + 1])
        step, cache = backbone(inputs, cache=cache)
        assert_close(step, expected[:, t : t + 1], atol=2e-5)


def test_prompt_inputs():
    backbone = small_backbone("seq2seq")
    tokens, mask = backbone.prompt_tokens(small_inputs("seq2seq"))
    assert tokens is IDS
    np.testing.assert_array_equal(numpy(mask), PADDING)
