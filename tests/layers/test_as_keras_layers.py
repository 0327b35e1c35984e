"""Promises of Keras for any layer, for each of ours: functional models, files, LoRA, int8, ..."""

import keras
import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.models.runtime.quantized import quickly
from tests.generation.common import on_one
from tests.layers.conftest import (
    assert_close,
    copy_weights,
    differs,
    from_config,
    random,
    randomize,
)

X, SOURCE = random(2, 5, 8), random(2, 7, 8, seed=1)
IDS = np.array([[3, 1, 0, 2, 2], [2, 4, 4, 1, 0]], "int32")
POSITIONS = np.array([[0, 1, 2, 3, 4], [5, 4, 0, 0, 1]], "int32")
BIAS = random(2, 2, 5, 5)
PACKS = np.array([[0, 0, 0, 1, 1]] * 2, "int32")
PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)

# A layer with options that are not the defaults, and what it is called with.
CASES = {
    "token_embedding": (
        lambda **kw: layers.TokenEmbedding(6, 8, scale=True, tie_weights=False, **kw),
        {"inputs": IDS},
    ),
    "segment_embedding": (lambda **kw: layers.SegmentEmbedding(5, 8, **kw), {"inputs": IDS}),
    "sinusoidal": (
        lambda **kw: layers.SinusoidalPosition(100.0, **kw),
        {"inputs": X, "positions": POSITIONS},
    ),
    "learned": (
        lambda **kw: layers.LearnedPosition(9, 8, **kw),
        {"inputs": X, "positions": POSITIONS},
    ),
    "rotary": (
        lambda **kw: layers.RotaryEmbedding(100.0, **kw),
        {"inputs": X.reshape(2, 5, 2, 4), "positions": POSITIONS},
    ),
    "relative": (
        lambda **kw: layers.RelativePositionBias(3, 8, 20, bidirectional=False, **kw),
        {"query_positions": POSITIONS, "key_positions": POSITIONS},
    ),
    "alibi": (
        lambda **kw: layers.ALiBi(6, scale=0.5, rounded=True, **kw),
        {"query_positions": POSITIONS, "key_positions": POSITIONS},
    ),
    "self_attention": (
        lambda **kw: layers.MultiHeadAttention(
            4, 6, 2, causal=True, window=3, rotary={"base": 100.0}, use_bias=False, **kw
        ),
        {
            "query": X,
            "mask": PADDING,
            "visibility": layers.AttentionMask(query_positions=POSITIONS, query_pack=PACKS),
        },
    ),
    "cross_attention": (
        lambda **kw: layers.MultiHeadAttention(2, 6, output_dim=3, **kw),
        {"query": X, "value": SOURCE, "return_attention_scores": True},
    ),
    **{
        f"attention_{score}": (
            lambda score=score, **kw: layers.MultiHeadAttention(
                2, 6, score=score, max_sequence_length=9, kernel_initializer="he_normal", **kw
            ),
            {"query": X, "bias": BIAS},
        )
        for score in ("dot", "general", "additive", "cosine", "location")
    },
    "feed_forward": (
        lambda **kw: layers.FeedForward(12, 3, activation="silu", gated=True, **kw),
        {"inputs": X},
    ),
    "experts": (
        lambda **kw: layers.MixtureOfExperts(
            3, 12, activation="silu", gated=True, gate_limit=1.0, shared_expert_dim=4, **kw
        ),
        {"inputs": X, "mask": PADDING},
    ),
    "encoder": (
        lambda **kw: layers.EncoderBlock(
            2, 12, gated=True, activation="gelu", normalization="rms_norm", window=3, **kw
        ),
        {"inputs": X, "mask": PADDING, "bias": BIAS},
    ),
    "decoder": (
        lambda **kw: layers.DecoderBlock(
            2, 12, cross_attention=True, normalize_first=True, rotary={"base": 100.0}, **kw
        ),
        {"inputs": X, "encoder_states": SOURCE, "encoder_states_mask": np.ones((2, 7), bool)},
    ),
    "decoder_alone": (
        lambda **kw: layers.DecoderBlock(2, 12, num_key_value_heads=1, head_dim=6, **kw),
        {"inputs": X, "visibility": layers.AttentionMask(query_pack=IDS)},
    ),
}
TRAINED = ("self_attention", "cross_attention", "feed_forward", "encoder", "decoder")
# Of the scores one: tests/layers/test_scores.py has all on each backend.
KIN = tuple(f"attention_{score}" for score in ("dot", "general", "cosine", "location"))
every = pytest.mark.parametrize("name", [on_one(n) if n in KIN else n for n in CASES])
trained = pytest.mark.parametrize("name", TRAINED)


def made(name, **options):
    """The layer, called once so that it is built, its inputs and its outputs."""
    make, inputs = CASES[name]
    layer = make(**options)
    layer(**inputs)
    randomize(layer)
    return layer, inputs, flat(layer(**inputs))


def flat(outputs):
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def functional(layer, inputs):
    """A functional model of one layer, any length, and the arrays that it takes."""
    leaves = keras.tree.flatten(inputs)
    arrays = {f"array_{i}": x for i, x in enumerate(leaves) if isinstance(x, np.ndarray)}
    symbolic = {}
    for name, value in arrays.items():
        fixed = value.shape[1:] if value is BIAS else (None, *value.shape[2:])
        symbolic[name] = keras.Input(fixed, dtype=str(value.dtype), name=name)
    given = [symbolic.get(f"array_{i}", x) for i, x in enumerate(leaves)]
    return keras.Model(symbolic, layer(**keras.tree.pack_sequence_as(inputs, given))), arrays


@pytest.mark.one_backend
@every
def test_config_round_trip(name):
    layer, inputs, outputs = made(name)
    again = from_config(layer)
    assert type(again) is type(layer) and again.get_config() == layer.get_config()
    again(**inputs)
    assert [w.path for w in again.weights] == [w.path for w in layer.weights]
    copy_weights(layer, again)
    for mine, theirs in zip(flat(again(**inputs)), outputs, strict=True):
        assert_close(mine, theirs)


@every
def test_functional_model_and_its_file(name, tmp_path):
    layer, inputs, outputs = made(name)
    model, arrays = functional(layer, inputs)
    for mine, theirs in zip(flat(model(arrays)), outputs, strict=True):
        assert_close(mine, theirs)
    for symbolic, real in zip(model.outputs, outputs, strict=True):
        assert len(symbolic.shape) == len(real.shape) and symbolic.shape[-1] in (
            None,
            real.shape[-1],
        )
        assert symbolic.dtype == keras.backend.standardize_dtype(real.dtype)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for mine, theirs in zip(flat(loaded(arrays)), outputs, strict=True):
        assert_close(mine, theirs)


@every
def test_compute_dtype_of_mixed_precision(name):
    full, inputs, outputs = made(name)
    half = CASES[name][0](dtype="mixed_bfloat16")
    half(**inputs)
    copy_weights(full, half)
    assert {keras.backend.standardize_dtype(w.dtype) for w in half.weights} <= {"float32"}
    results = flat(half(**inputs))
    assert keras.backend.standardize_dtype(results[0].dtype) == "bfloat16"
    for mine, theirs in zip(results, outputs, strict=True):
        assert_close(mine, theirs, atol=0.15, rtol=0.02)


def one_step(model, arrays):
    """The outputs before and the weights after one step of gradient descent."""
    before = [np.array(w) for w in keras.tree.flatten(model.predict_on_batch(arrays))]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    outputs = model.predict_on_batch(arrays)
    targets = keras.tree.map_structure(np.zeros_like, outputs)
    loss = model.train_on_batch(arrays, targets)
    return before, loss, [keras.ops.convert_to_numpy(w) for w in model.trainable_weights]


@pytest.mark.parametrize("options", [{}, {"dropout": 0.4, "seed": 5}], ids=["", "dropout"])
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_remat_changes_neither_outputs_nor_gradients(name, options):
    plain, inputs, _ = made(name, **options)
    with keras.RematScope(mode="full"):
        saving = CASES[name][0](**options)
    saving(**inputs)
    copy_weights(plain, saving)
    (before, loss, after), (same_before, same_loss, same_after) = (
        one_step(*functional(layer, inputs)) for layer in (plain, saving)
    )
    assert same_loss == pytest.approx(loss, rel=1e-5)
    for mine, theirs in zip(same_before + same_after, before + after, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_lora_trains_the_factors_and_freezes_the_kernels(name):
    layer, inputs, outputs = made(name)
    denses = [
        layer.self_attention.query_dense,
        layer.self_attention.value_dense,
        layer.feed_forward.output_dense,
    ]
    kernels = [keras.ops.convert_to_numpy(dense.kernel) for dense in denses]
    for dense in denses:
        dense.enable_lora(2)
    assert_close(layer(**inputs), outputs[0])  # B starts at zero
    frozen = {id(dense._kernel) for dense in denses}
    assert not frozen & {id(w) for w in layer.trainable_weights}
    assert sum("lora_kernel" in w.name for w in layer.trainable_weights) == 6
    model, arrays = functional(layer, inputs)
    one_step(model, arrays)
    assert differs(layer(**inputs), outputs[0])
    for dense, kernel in zip(denses, kernels, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(dense._kernel), kernel)
        assert np.abs(keras.ops.convert_to_numpy(dense.lora_kernel_b)).max() > 0


@trained
def test_int8_is_close(name):
    layer, inputs, outputs = made(name)
    model, arrays = functional(layer, inputs)
    with quickly():
        model.quantize("int8")
    dtypes = {keras.backend.standardize_dtype(w.dtype) for w in layer.weights}
    assert "int8" in dtypes
    for mine, theirs in zip(flat(model(arrays)), outputs, strict=True):
        error = np.abs(keras.ops.convert_to_numpy(mine) - keras.ops.convert_to_numpy(theirs))
        assert 0 < error.max() < 0.1 * np.abs(keras.ops.convert_to_numpy(theirs)).max()


def test_a_model_of_every_kind_of_layer(tmp_path):
    """Ids in, logits out, with Keras masks all the way: padding changes nothing."""
    source, target = (keras.Input((None,), dtype="int32", name=n) for n in ("source", "target"))
    embedding = layers.TokenEmbedding(6, 8, scale=True, mask_zero=True)
    x = embedding(source)
    x = keras.layers.Add()([x, layers.SinusoidalPosition()(x)])
    x = layers.EncoderBlock(2, 12)(x)
    y = embedding(target)
    y = keras.layers.Add()([y, layers.LearnedPosition(9, 8)(y)])
    y = layers.DecoderBlock(2, 12, cross_attention=True)(y, encoder_states=x)
    y = layers.FeedForward(12)(layers.MultiHeadAttention(2, 4, causal=True)(y))
    model = keras.Model([source, target], embedding(y, reverse=True))
    short = np.array([[3, 1, 2]], "int32")
    padded = np.array([[3, 1, 2, 0, 0]], "int32")
    outputs = model([short, short])
    assert outputs.shape == (1, 3, 6)
    assert_close(model([padded, padded])[:, :3], outputs)
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")([short, short]), outputs)


def test_shapes_are_known_without_a_call():
    """For wrappers of Keras's, which ask a layer for the shape of its outputs."""
    inputs = keras.Input((3, 5, 8))
    for layer in (layers.EncoderBlock(4, 8), layers.DecoderBlock(4, 8)):
        outputs = keras.layers.TimeDistributed(layer)(inputs)
        assert outputs.shape == (None, 3, 5, 8)
        batch = random(2, 3, 5, 8)
        assert_close(keras.Model(inputs, outputs)(batch)[1, 2:], layer(batch[1, 2:]))
    attention = layers.MultiHeadAttention(2, 4, output_dim=6)
    assert attention.compute_output_shape((2, 5, 8), (2, 7, 3)) == (2, 5, 6)
    across = layers.DecoderBlock(2, 8, cross_attention=True)
    assert across.compute_output_shape((2, 5, 8), (2, 7, 3)) == (2, 5, 8)
    relative = layers.RelativeEmbedding(8, num_buckets=4)
    assert relative.compute_output_shape((1, 5), (2, 7)) == ((1, 4, 8), (2, 5, 7))


@pytest.mark.parametrize("case", ["mask", "mask and bias", "additive"])
def test_padding_in_float64(case):
    """Rows with padding give what they give alone, in each dtype that a layer may have."""
    options = {"score": "additive"} if case == "additive" else {}
    layer = layers.EncoderBlock(2, 12, dtype="float64", **options)
    bias = {"bias": BIAS.astype("float64")} if case == "mask and bias" else {}
    x = X.astype("float64")
    padded = layer(x, mask=PADDING, **bias)
    bias = {name: value[1:, :, :3, :3] for name, value in bias.items()}
    assert_close(padded[1:, :3], layer(x[1:, :3], **bias))
