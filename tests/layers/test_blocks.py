"""Windows in blocks: equal to a mask of the same pattern, without a tensor of length x length."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.device import device
from keras_transformer.layers import AttentionMask, MultiHeadAttention
from keras_transformer.layers.attention import chunks
from keras_transformer.layers.attention import multi_head_attention as core
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from tests.layers.conftest import assert_close, differs, numpy, random, randomize
from tests.training.gradients import value_and_gradients

BATCH, DIM = 2, 8
# Windows in which blocks reach one, two or no further block; lengths that no block divides.
CASES = [
    (200, {"window": 2}),
    (257, {"window": 65}),
    (193, {"window": 65, "causal": True}),
    (411, {"window": 100}),
    (500, {"window": 150, "causal": True}),
    (130, {"window": 1}),
]
OPTIONS = [
    {},
    {"num_key_value_heads": 2, "rotary": {"base": 100.0}},
    {"num_key_value_heads": 1, "attention_soft_cap": 2.0},
    {"score": "general", "query_key_norm": "rms_norm"},
]


def made(length, **options):
    layer = MultiHeadAttention(4, 6, **options)
    layer.build((BATCH, length, DIM))
    return randomize(layer)


def near(length, window, causal=False):
    """Bool `(1, length, length)`: the pattern as a mask."""
    steps = np.arange(length)[:, None] - np.arange(length)
    return ((np.abs(steps) < window) & ((steps >= 0) | (not causal)))[None]


def masks(length):
    """Real tokens: in the middle, with padding on either side, of two documents."""
    rng = np.random.default_rng(0)
    first, last = rng.integers(0, length // 3, 2), rng.integers(length // 2, length, 2)
    places = np.arange(length)[None]
    real = (places >= first[:, None]) & (places < last[:, None])
    packs = (places >= rng.integers(0, length, (BATCH, 1))).astype("int32")
    return real, packs


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("number", range(len(CASES)))
def test_equals_a_dense_mask(number):
    """With all that an attention may have beside it: each case with one of the options."""
    length, case = CASES[number]
    options = OPTIONS[number % len(OPTIONS)]
    layer, pattern = made(length, **case, **options), near(length, **case)
    dense = made(length, **options)
    x, (real, packs) = random(BATCH, length, DIM), masks(length)
    seen = pattern & real[:, None]
    assert_close(layer(x), dense(x, visibility=AttentionMask(explicit=pattern)), atol=2e-5)
    found = numpy(layer(x, mask=real, visibility=AttentionMask(query_pack=packs)))
    expected = numpy(dense(x, visibility=AttentionMask(query_pack=packs, explicit=seen)))
    assert_close(found[real], expected[real], atol=2e-5)


def test_scores_of_places_and_of_ones_own_are_not_cut():
    """A score of location depends on the slot; a function may depend on what it likes."""
    length, pattern = 300, AttentionMask(explicit=near(300, 65))

    def of_places(queries, keys):
        places = ops.arange(keys.shape[2], dtype="float32")
        return ops.matmul(queries, ops.swapaxes(keys, 2, 3)) + places / 50

    for options in ({"score": "location", "max_sequence_length": length}, {"score": of_places}):
        layer, dense = made(length, window=65, **options), made(length, **options)
        x = random(BATCH, length, DIM)
        assert_close(layer(x), dense(x, visibility=pattern), atol=2e-5)


@pytest.mark.usefixtures("small_groups")
def test_one_row_stands_for_all_and_keys_have_documents_of_their_own():
    length = 300
    layer, dense, pattern = made(length, window=65), made(length), near(length, 65)
    x, (real, packs) = random(BATCH, length, DIM), masks(length)
    one = layer(x, mask=real[:1], visibility=AttentionMask(query_pack=packs[:1]))
    both = layer(x, mask=real[[0, 0]], visibility=AttentionMask(query_pack=packs[[0, 0]]))
    assert_close(one, both)
    own = AttentionMask(query_pack=packs, key_pack=packs[::-1])
    expected = dense(x, visibility=own._replace(explicit=pattern))
    seen = (packs[:, :, None] == packs[::-1][:, None]) & pattern
    rows = seen.any(axis=2)
    assert_close(numpy(layer(x, visibility=own))[rows], numpy(expected)[rows], atol=2e-5)


@pytest.mark.usefixtures("small_groups")
def test_the_gradient_equals_that_of_a_dense_mask():
    length, case = CASES[2]
    layer, dense = made(length, **case), made(length)
    real, pattern = masks(length)[0], AttentionMask(explicit=near(length, **case))

    def loss_of(layer, **given):
        def loss(x):
            found = layer(x, mask=real, **given)
            return ops.sum(ops.square(ops.where(real[..., None], found, 0)))

        return loss

    x = [random(BATCH, length, DIM)]
    value, (found,) = value_and_gradients(loss_of(layer), x)
    whole, (expected,) = value_and_gradients(loss_of(dense, visibility=pattern), x)
    assert value == pytest.approx(whole, rel=1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def largest(function, *args):
    """How many numbers the largest tensor has that a function makes, and in its gradient."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        sizes = []

        class Sizes(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                result = operation(*args, **(kwargs or {}))
                tensors = result if isinstance(result, tuple | list) else [result]
                sizes.extend(t.numel() for t in tensors if isinstance(t, torch.Tensor))
                return result

        with Sizes():
            function(*map(ops.convert_to_tensor, args)).square().sum().backward()
        return max(sizes)
    if backend == "jax":
        import re

        import jax

        gradient = jax.jit(jax.grad(lambda *args: ops.sum(ops.square(function(*args)))))
        text = gradient.lower(*args).compile().as_text()
        # Of bytes are the products' own memory on a GPU.
        shapes = re.findall(r"\b(?!s8|u8)\w+\[([\d,]+)\]", text)
        return max(np.prod([int(n) for n in shape.split(",")]) for shape in shapes)
    import tensorflow as tf

    @tf.function(jit_compile=False)
    def gradient(*args):
        with tf.GradientTape() as tape:
            tape.watch(args[0])
            loss = ops.sum(ops.square(function(*args)))
        return tape.gradient(loss, args[0])

    graph = gradient.get_concrete_function(*map(tf.constant, args)).graph
    shapes = [tensor.shape for op in graph.get_operations() for tensor in op.outputs]
    return max(shape.num_elements() or 0 for shape in shapes if shape.rank is not None)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_tensor_of_length_by_length(dropout):
    length = 2048
    layer = made(length, window=65, rotary={}, dropout=dropout)
    x, real = random(1, length, DIM), np.ones((1, length), bool)
    found = largest(lambda x, real: layer(x, mask=real, training=True), x, real)
    # Four heads, of 65 places before and behind, in blocks.
    assert found <= length * 4 * 3 * 65
    whole = made(length, dropout=dropout, window=length)
    dense = largest(lambda x, real: whole(x, mask=real, training=True), x, real)
    assert dense >= length**2 > found


def test_a_prompt_fills_a_cache_without_a_tensor_of_its_square():
    length, window = 2048, 65
    layer = made(length, window=window, causal=True)
    x = random(1, length, DIM)
    visibility = AttentionMask(np.ones((1, length), bool), query_positions=np.arange(length)[None])

    def attend(x):
        slots = KeyValueCache.make(1, 4, length, 6, "float32")
        return layer(x, visibility=visibility, cache=slots)[0]

    assert largest(attend, x) <= length * 4 * 2 * window
    assert_close(attend(x), layer(x), atol=2e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX alone attends in groups")
def test_the_scores_of_some_blocks_are_in_memory_at_a_time():
    layer = made(4096, window=65)
    found = largest(lambda x: layer(x, training=True), random(1, 4096, DIM))
    assert found <= device().scores_bytes // 4


@pytest.fixture
def short_turns(monkeypatch):
    """Turns of 32 queries, from a length of 96 on."""
    monkeypatch.setattr(core, "_LONG", 96)
    monkeypatch.setattr(chunks, "_AT_A_TIME", 32)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"rotary": {"base": 100.0}},
        {"attention_soft_cap": 2.0, "num_key_value_heads": 2, "causal": True},
        {"attention_sinks": True},
    ],
    ids=str,
)
def test_queries_in_turns_equal_all_at_once(request, options):
    """Full attention where the length asks for it, here of 96: the output, and the gradient."""
    length = 100
    layer, (real, packs) = made(length, **options), masks(length)
    x, visibility = random(BATCH, length, DIM), AttentionMask(query_pack=packs)

    def loss(x):
        return ops.sum(
            ops.square(ops.where(real[..., None], layer(x, mask=real, visibility=visibility), 0))
        )

    outputs = numpy(layer(x, mask=real, visibility=visibility))
    value, (expected,) = value_and_gradients(loss, [x])
    request.getfixturevalue("short_turns")
    assert_close(numpy(layer(x, mask=real, visibility=visibility))[real], outputs[real], atol=2e-5)
    in_turns, (found,) = value_and_gradients(loss, [x])
    assert in_turns == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 9}, {"attention_soft_cap": 2.0}, {"window": 9, "rotary": {}}],
    ids=str,
)
def test_a_prefix_is_seen_in_turns_too(request, options):
    """As by a mask of all pairs: 60 tokens and 35 that see each other, whatever the window."""
    length, counts = 100, np.array([60, 35])
    layer, (real, _) = made(length, causal=True, **options), masks(length)
    x, places = random(BATCH, length, DIM), np.arange(length)
    prefix = np.where(places < counts[:, None], counts[:, None], 0)
    steps = places[:, None] - places
    seen = (steps >= 0) & (steps < options.get("window", length))
    seen = seen | (places < prefix[..., None])
    free = made(length, **{name: x for name, x in options.items() if name != "window"})
    free.set_weights(layer.get_weights())
    expected = numpy(free(x, mask=real, visibility=AttentionMask(explicit=seen)))
    given = AttentionMask(prefix=prefix)
    assert_close(numpy(layer(x, mask=real, visibility=given))[real], expected[real], atol=2e-5)
    request.getfixturevalue("short_turns")
    assert_close(numpy(layer(x, mask=real, visibility=given))[real], expected[real], atol=2e-5)
    with pytest.raises(ValueError, match="`prefix` would be ignored: all keys are seen without"):
        free(x, visibility=given)
    with pytest.raises(ValueError, match="`prefix` must be of shape"):
        layer(x, visibility=AttentionMask(prefix=prefix[:, 1:]))


def test_a_step_of_training_in_turns_moves_all_weights_alike(request):
    """The sinks are a weight that the turns read."""

    def step():
        layer = made(100, attention_sinks=True, attention_soft_cap=2.0, causal=True)
        before = ops.convert_to_numpy(layer.sinks)
        inputs = keras.Input((100, DIM))
        model = keras.Model(inputs, layer(inputs))
        model.compile(keras.optimizers.SGD(1.0), "mse")
        x = random(BATCH, 100, DIM)
        loss = model.train_on_batch(x, np.zeros_like(x))
        after = [ops.convert_to_numpy(variable) for variable in layer.trainable_variables]
        assert differs(before, layer.sinks)
        return [float(loss), *after]

    all_at_once = step()
    request.getfixturevalue("short_turns")
    for mine, whole in zip(step(), all_at_once, strict=True):
        np.testing.assert_allclose(mine, whole, atol=2e-5)


def weights_used(seed, length=100):
    """The weights of one call in training, of which a half is dropped, `(length, length)`."""
    keras.utils.set_random_seed(0)
    layer = MultiHeadAttention(1, length, use_bias=False, dropout=0.5, seed=seed)
    layer.build((1, length, length))
    eye = np.eye(length, dtype="float32")
    for dense in (layer.query_dense, layer.key_dense):
        dense.kernel.assign(np.zeros_like(eye))
    for dense in (layer.value_dense, layer.output_dense):
        dense.kernel.assign(eye)
    return numpy(layer(eye[None], training=True))[0]


@pytest.mark.parametrize("seed", [None, 3])
def test_turns_drop_weights_each_by_a_draw_of_its_own(short_turns, seed):
    weights = weights_used(seed)
    dropped = weights == 0
    np.testing.assert_allclose(weights[~dropped], 0.02, rtol=1e-5)
    for part in range(0, 96, 32):
        assert abs(dropped[part : part + 32].mean() - 0.5) < 5 * 0.5 / np.sqrt(3200)
        for other in range(0, part, 32):
            same = (dropped[part : part + 32] == dropped[other : other + 32]).mean()
            assert abs(same - 0.5) < 5 * 0.5 / np.sqrt(3200)
    np.testing.assert_array_equal(weights_used(seed), weights)


@pytest.mark.parametrize("seed", [None, 3])
def test_turns_drop_the_same_when_they_compute_again(short_turns, seed):
    """The output is linear in the values: it is their product with its gradient."""
    length = 100
    layer = made(length, dropout=0.5, use_bias=False, output_bias=False, seed=seed)
    query, given = random(BATCH, length, DIM), random(BATCH, length, DIM, seed=1)
    query, factors = map(ops.convert_to_tensor, (query, random(BATCH, length, DIM, seed=2)))

    def of_values(value):
        return ops.sum(layer(query, value, key=query, training=True) * factors)

    value, (found,) = value_and_gradients(of_values, [given])
    assert (found * given).sum() == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"dropout": 0.1}, {"dropout": 0.1, "seed": 3}, {"attention_soft_cap": 2.0}]
)
def test_queries_in_turns_need_little_memory(monkeypatch, options):
    monkeypatch.setattr(core, "_LONG", 1024)
    # Heads of a multiple of eight: a GPU has no kernel without scores for others.
    layer = MultiHeadAttention(4, 8, causal=True, **options)
    layer.build((1, 2048, DIM))
    found = largest(lambda x: layer(x, training=True), random(1, 2048, DIM))
    assert found <= 4 * chunks._AT_A_TIME * 2048


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a function of TensorFlow")
def test_a_length_that_is_not_known_yet():
    import tensorflow as tf

    layer, dense = made(300, window=65, rotary={}), made(300, rotary={})
    shapes = tf.TensorSpec([None, None, DIM]), tf.TensorSpec([None, None], "bool")
    function = tf.function(lambda x, mask: layer(x, mask=mask), input_signature=shapes)
    for length in (10, 300):
        x, real = random(BATCH, length, DIM), masks(length)[0]
        pattern = AttentionMask(explicit=near(length, 65))
        expected = numpy(dense(x, mask=real, visibility=pattern))
        assert_close(numpy(function(x, real))[real], expected[real], atol=2e-5)
