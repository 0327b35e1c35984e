"""Patterns of attention: equal to a dense mask that says the same."""

import zlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    ALiBi,
    AttentionMask,
    EncoderBlock,
    MultiHeadAttention,
    RelativePositionBias,
)
from keras_transformer.layers.attention import sparse
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from keras_transformer.layers.attention.score_bias import LazyBias
from tests.layers.conftest import assert_close, numpy, random, randomize
from tests.layers.test_blocks import largest, masks
from tests.thorough import seeds
from tests.training.gradients import value_and_gradients

BATCH, DIM, HEADS, WIDTH = 2, 8, 4, 6


def made(length, **options):
    layer = MultiHeadAttention(HEADS, WIDTH, **options)
    layer.build((BATCH, length, DIM))
    return randomize(layer)


def pattern(length, window, window_dilation=1, causal=False, of_all=()):
    """Bool `(batch, length, length)` of a window, and of the places that see all and are seen."""
    steps = np.arange(length)[:, None] - np.arange(length)
    seen = (np.abs(steps) < window * window_dilation) & (steps % window_dilation == 0)
    seen = np.repeat(seen[None], BATCH, axis=0)
    for row, places in enumerate(of_all):
        places = [p for p in places if 0 <= p < length]
        seen[row, places] = True
        seen[row, :, places] = True
    return seen & ((steps >= 0) | (not causal))


def drawn(seed):
    """A length, what the layer is given, and the places of global tokens, at random."""
    rng = np.random.default_rng(seed)
    options = {"window": int(rng.integers(1, 80)), "causal": bool(rng.integers(2))}
    if rng.integers(2):
        options["window_dilation"] = int(rng.integers(2, 4))
    length = int(rng.integers(3, 500))
    if rng.integers(2):
        options["num_key_value_heads"] = int(rng.choice([1, 2]))
    if rng.integers(2):
        options["rotary"] = {"base": 100.0}
    elif rng.integers(2):
        options["attention_soft_cap"] = 2.0
    places = rng.integers(-1, length, (BATCH, 5)) if rng.integers(2) else None
    return length, options, places


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("seed", seeds(6))
def test_equals_a_dense_mask(seed):
    """With padding on either side and documents: whatever else, real tokens have the same."""
    length, options, places = drawn(seed)
    window = {name: options[name] for name in ("window", "window_dilation") if name in options}
    rest = {name: value for name, value in options.items() if name not in window}
    layer, dense = made(length, **options), made(length, **{**rest, "causal": False})
    of_all = () if places is None else places
    seen = pattern(length, causal=options["causal"], of_all=of_all, **window)
    x, (real, packs) = random(BATCH, length, DIM), masks(length)
    seen = seen & real[:, None]
    given = AttentionMask(query_pack=packs, global_positions=places)
    found = numpy(layer(x, mask=real, visibility=given))
    expected = numpy(dense(x, visibility=AttentionMask(query_pack=packs, explicit=seen)))
    rows = real & (seen & (packs[:, :, None] == packs[:, None])).any(axis=2)
    assert_close(found[rows], expected[rows], atol=2e-5)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("bias", [RelativePositionBias, ALiBi])
def test_a_bias_of_positions_needs_no_more_than_the_blocks(bias):
    length = 400
    bias = randomize(bias(HEADS))
    for options, positions in (
        ({"window": 65}, None),
        ({"window": 20, "window_dilation": 3, "global_tokens": 2}, None),
        ({"window": 65, "global_tokens": 3}, np.arange(length)[::-1][None]),
    ):
        layer, dense = made(length, **options), made(length)
        x, given = random(BATCH, length, DIM), LazyBias(bias, positions)
        first = np.arange(options.pop("global_tokens", 0))
        seen = pattern(length, of_all=[first] * BATCH, **options)
        whole = given.materialize(x)
        expected = dense(x, visibility=AttentionMask(explicit=seen), bias=whole)
        assert_close(layer(x, bias=given), expected, atol=2e-5)
        assert_close(layer(x, bias=whole), expected, atol=2e-5)


def of_blocks(length, size, random_blocks, training, seed):
    """Bool `(heads, length, length)`, and what is added to the scores: BigBird's pattern."""
    block = np.arange(length) // size
    last = block[-1]
    q, k = block[:, None], block[None]
    seen = (np.abs(q - k) <= 1) | (k == 0) | (k == last) | (q == 0) | (q == last)
    seen = np.repeat(seen[None], HEADS, axis=0)
    middle = (q > 0) & (q < last)
    if not training:
        return seen, np.where(middle & (k == 0), np.log(1 + random_blocks), 0.0)
    drawn = sparse.drawn_blocks(last + 1, HEADS, random_blocks, seed)
    for head in range(HEADS):
        for i in range(1, last):
            seen[head] |= (q == i) & np.isin(k, drawn[head, i])
    return seen, np.zeros((length, length))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("length", "random_blocks"), [(96, 1), (203, 2)])
def test_blocks(length, random_blocks, training):
    size = 8
    layer = made(length, block_size=size, random_blocks=random_blocks)
    dense, (real, packs) = made(length), masks(length)
    seed = zlib.crc32(layer.path.encode())
    seen, added = of_blocks(length, size, random_blocks, training, seed)
    x, bias = random(BATCH, length, DIM), added[None, None].astype("float32")
    explicit = seen[None] & real[:, None, None]
    given = AttentionMask(query_pack=packs)
    found = numpy(layer(x, mask=real, visibility=given, training=training))
    expected = numpy(dense(x, bias=bias, visibility=given._replace(explicit=explicit)))
    assert_close(found[real], expected[real], atol=2e-5)
    if not training:
        whole, _ = layer(x, mask=real, visibility=given, return_attention_scores=True)
        assert_close(numpy(whole)[real], expected[real], atol=2e-5)


def test_short_sequences_of_blocks_see_all():
    layer, dense, x = made(56, block_size=8, random_blocks=1), made(56), random(BATCH, 56, DIM)
    assert_close(layer(x), dense(x), atol=2e-5)


def test_the_gradients_equal_those_of_a_dense_mask():
    """Through the gathered keys, the rows of the global tokens and what is written back."""
    length, places = 230, np.array([[0, 100, -1], [3, 3, 229]])
    cases = [
        ({"window": 20, "window_dilation": 2}, pattern(length, 20, 2, of_all=places), places),
        ({"block_size": 8, "random_blocks": 2}, None, None),
    ]
    for options, seen, places in cases:
        layer, dense = made(length, **options), made(length)
        if seen is None:
            seed = zlib.crc32(layer.path.encode())
            seen = of_blocks(length, 8, 2, True, seed)[0][None]

        def loss_of(layer, **given):
            def loss(x):
                return ops.sum(ops.square(layer(x, training=True, **given)))

            return loss

        given = [random(BATCH, length, DIM)]
        pattern_loss = loss_of(layer, visibility=AttentionMask(global_positions=places))
        value, (found,) = value_and_gradients(pattern_loss, given)
        mask_loss = loss_of(dense, visibility=AttentionMask(explicit=seen))
        whole, (expected,) = value_and_gradients(mask_loss, given)
        assert value == pytest.approx(whole, rel=1e-5)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_global_tokens_of_their_own_projections():
    """Long and short, with the weights asked for and without: Longformer's sliding attention."""
    length, window = 300, 33
    layer = made(length, window=window, global_projection=True)
    places = np.array([[0, 7, -1], [299, -1, -1]])
    x, real = random(BATCH, length, DIM), masks(length)[0]
    real[:, :8] = real[1, 290:] = True
    given = AttentionMask(global_positions=places)
    found = numpy(layer(x, mask=real, visibility=given))
    seen = pattern(length, window, of_all=places) & real[:, None]
    local, of_all = made(length), made(length)
    by_name = {v.path.split("/", 1)[-1]: numpy(v) for v in layer.weights}
    for variable in local.weights:
        variable.assign(by_name[variable.path.split("/", 1)[-1]])
    for variable in of_all.weights:
        name = variable.path.split("/", 1)[-1]
        part, rest = name.split("/", 1)
        variable.assign(by_name[name if part == "output" else f"{part}_global/{rest}"])
    near = numpy(local(x, visibility=AttentionMask(explicit=seen)))
    far = numpy(of_all(x, mask=real))
    is_global = np.array([[p in row for p in range(length)] for row in places])
    expected = np.where(is_global[..., None], far, near)
    assert_close(found[real], expected[real], atol=2e-5)
    whole, weights = layer(x, mask=real, visibility=given, return_attention_scores=True)
    assert_close(numpy(whole)[real], expected[real], atol=2e-5)
    assert weights.shape == (BATCH, HEADS, length, length)


def test_global_tokens_of_their_own_projections_have_the_bias_too():
    """A short sequence, where nothing is cut, and the same as the start of one that is."""
    length, near = 300, 20
    bias = LazyBias(randomize(RelativePositionBias(HEADS)), None)
    layer = made(length, window=9, global_projection=True)
    x, places = (
        random(BATCH, length, DIM),
        AttentionMask(global_positions=np.array([[0, 3], [5, -1]])),
    )
    real = np.repeat((np.arange(length) < near)[None], BATCH, axis=0)
    expected = numpy(layer(x, mask=real, visibility=places, bias=bias))[:, :near]
    short = x[:, :near]
    assert_close(layer(short, visibility=places, bias=bias), expected, atol=2e-5)
    whole = bias.materialize(short)
    assert_close(layer(short, visibility=places, bias=whole), expected, atol=2e-5)


def test_a_block_of_the_first_token_alone():
    """A classifier needs only this token of the last block, where the token sees all."""
    x = random(BATCH, 300, 16)
    for options in (
        {"window": 33, "global_tokens": 1},
        {"window": 33, "global_tokens": 1, "global_projection": True},
        {"block_size": 8, "random_blocks": 1},
    ):
        block = EncoderBlock(HEADS, 32, **options)
        block.build(x.shape)
        randomize(block)
        assert_close(block(x, first_only=True), numpy(block(x))[:, :1], atol=2e-5)


def test_steps_with_a_cache_equal_the_whole():
    """By positions: the first tokens are seen from everywhere."""
    length = 40
    layer = made(length, window=4, window_dilation=2, global_tokens=2, causal=True, rotary={})
    x = random(BATCH, length, DIM)
    whole, parts = numpy(layer(x)), []
    slots = KeyValueCache.make(BATCH, HEADS, length, WIDTH, "float32")
    for first, last in ((0, 30), (30, 31), (31, 40)):
        part, slots = layer(x[:, first:last], cache=slots)
        parts.append(numpy(part))
    assert_close(np.concatenate(parts, axis=1), whole, atol=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 33, "window_dilation": 2, "global_tokens": 8},
        {"window": 33, "global_tokens": 8, "global_projection": True},
        {"block_size": 32, "random_blocks": 2},
    ],
    ids=str,
)
def test_no_tensor_of_length_by_length(options):
    length = 2048
    layer = made(length, **options)
    x, real = random(1, length, DIM), np.ones((1, length), bool)
    found = largest(lambda x, real: layer(x, mask=real, training=True), x, real)
    assert found <= length * HEADS * 320 < length**2


def test_a_bias_makes_no_tensor_of_length_by_length():
    length, bias = 2048, randomize(RelativePositionBias(HEADS))
    layer = made(length, window=33)
    x = random(1, length, DIM)
    assert largest(lambda x: layer(x, bias=LazyBias(bias, None)), x) <= length * HEADS * 320


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random_blocks": 2}, "needs a `block_size`"),
        ({"window_dilation": 2}, "needs a `window`"),
        ({"global_tokens": 1}, "needs a `window`"),
        ({"window": 4, "block_size": 4}, "two patterns"),
        ({"block_size": 4, "causal": True}, "needs an encoder"),
        ({"window": 4, "global_projection": True, "rotary": {}}, "cannot be combined"),
    ],
)
def test_options_that_do_not_agree(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(HEADS, WIDTH, **options)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a function of TensorFlow")
@pytest.mark.parametrize("options", [{"window": 33, "global_tokens": 2}, {"block_size": 8}])
def test_a_length_that_is_not_known_yet(options):
    import tensorflow as tf

    layer = made(300, **options)
    shapes = tf.TensorSpec([None, None, DIM]), tf.TensorSpec([None, None], "bool")
    function = tf.function(lambda x, mask: layer(x, mask=mask), input_signature=shapes)
    for length in (10, 300):
        x, real = random(BATCH, length, DIM), np.ones((BATCH, length), bool)
        assert_close(function(x, real), layer(x, mask=real), atol=2e-5)


def test_blocks_that_are_recomputed_learn_the_bias_too():
    """The bias, which each block recomputes, has the same gradient as without recomputation."""
    from keras_transformer import TransformerConfig
    from keras_transformer.models import Encoder

    config = TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=8, num_layers=2, num_heads=2,
        intermediate_dim=12, position="relative", window=20, global_block_size=8,
    )  # fmt: skip
    ids = (np.arange(210)[None] % 20).astype("int32")
    results = []
    for mode in (None, "full"):
        with keras.RematScope(mode=mode):
            backbone = randomize(Encoder(config))
        backbone.compile(keras.optimizers.SGD(0.1), "mse")
        loss = backbone.train_on_batch({"token_ids": ids}, np.zeros((1, 210, 8), "float32"))
        results.append((loss, [numpy(w) for w in backbone.trainable_variables]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    for mine, theirs in zip(results[1][1], results[0][1], strict=True):
        assert_close(mine, theirs)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a function of TensorFlow")
@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"window": 33, "global_projection": True}, None),
        ({"window": 20, "window_dilation": 2}, None),
        ({"window": 33, "global_block_size": 8}, None),
        ({"block_size": 8, "random_blocks": 2}, 300),
    ],
)
def test_rows_and_global_tokens_whose_number_is_not_known_yet(options, length):
    """In training too, as in a step of `fit`."""
    import tensorflow as tf

    layer, x, real = made(300, **options), random(BATCH, 300, DIM), masks(300)[0]
    places = np.array([[0, 5], [7, -1]], "int32")
    with_places = "window" in options and "global_block_size" not in options
    shapes = [tf.TensorSpec([None, length, DIM]), tf.TensorSpec([None, length], "bool")]

    def attend(x, mask, places):
        given = AttentionMask(global_positions=places) if with_places else None
        return layer(x, mask=mask, visibility=given, training=True)

    function = tf.function(attend, input_signature=[*shapes, tf.TensorSpec([None, None], "int32")])
    found, expected = numpy(function(x, real, places)), numpy(attend(x, real, places))
    assert_close(found[real], expected[real], atol=2e-5)
