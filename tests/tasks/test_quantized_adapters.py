"""Adapters over int8 and int4 kernels: gradients, rematerialization, merging, errors."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.kernels import quantized_matrix
from keras_transformer.kernels.quantized_matrix import QuantizedMatrix
from keras_transformer.layers import embedding
from keras_transformer.layers.dense import LOW_RANK, Dense
from keras_transformer.training import lora
from tests.thorough import a_part

RANDOM = np.random.default_rng(0)
IDS = {"token_ids": RANDOM.integers(0, 50, (4, 12))}
NEXT = np.roll(IDS["token_ids"], -1, axis=1)

RATE = 256.0  # a power of two, by which numbers are multiplied exactly


def make(remat=None, dtype=None, **options):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=50, hidden_dim=32, num_layers=1, num_heads=2,
        intermediate_dim=48, position="rotary", gated=True, normalization="rms_norm",
        max_sequence_length=64, **options,
    )  # fmt: skip
    with keras.RematScope(mode=remat):
        lm = kt.CausalLM(kt.models.Decoder(config, dtype=dtype))
    lm.compile(keras.optimizers.SGD(RATE), lm.loss, weighted_metrics=[kt.training.Perplexity()])
    return lm


def dense_layers(lm):
    return [layer for layer in lm._flatten_layers() if isinstance(layer, Dense)]


def dequantized(lm):
    """Return the same model with the weights that its integers stand for."""
    other = make(tie_embeddings=lm.backbone.config.tie_embeddings)
    for mine, theirs in zip(dense_layers(other), dense_layers(lm), strict=True):
        mine.kernel.assign(QuantizedMatrix(theirs).floats())
        if mine.bias is not None:
            mine.bias.assign(theirs.bias)
    mine, theirs = other.backbone.token_embedding, lm.backbone.token_embedding
    mine.embeddings.assign(keras.layers.Embedding.quantized_call(theirs, np.arange(50)))
    if not mine.tie_weights:
        mine.reverse_embeddings.assign(QuantizedMatrix(theirs, of_logits=True).floats())
    return other


def adapt(lm, method="lora", seed=1):
    lm.enable_lora(rank=3, alpha=6, targets=["query", "output"], method=method)
    random = np.random.default_rng(seed)
    for name, variable in lora.adapters(lm.backbone).items():
        if name.endswith(LOW_RANK):
            variable.assign(random.normal(size=variable.shape) / 5)


def gradients(lm):
    """Return the gradients of all adapters, from one step of SGD.

    Its rate is large, so that little of them is rounded away beside the weights.
    """
    before = {n: ops.convert_to_numpy(v) for n, v in lora.adapters(lm.backbone).items()}
    lm.train_on_batch(IDS, NEXT)
    after = lora.adapters(lm.backbone)
    return {n: (array - ops.convert_to_numpy(after[n])) / RATE for n, array in before.items()}


def close(found, expected, relative):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.abs(array).max() > 0
        limit = relative * np.abs(array).max()
        np.testing.assert_allclose(found[name], array, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize(
    ("mode", "method", "tied"),
    [("int8", "lora", True), ("int4", "dora", True), ("int4", "rslora", False)],
)
def test_gradients_are_those_of_the_dequantized_model(mode, method, tied):
    lm = make(tie_embeddings=tied)
    lm.quantize(mode)
    floats = dequantized(lm)
    adapt(lm, method)
    adapt(floats, method)
    stored = [ops.convert_to_numpy(v) for v in lm.non_trainable_variables]
    expected = floats.predict(IDS, verbose=0)
    np.testing.assert_allclose(lm.predict(IDS, verbose=0), expected, rtol=0, atol=2e-5)
    assert lm.training_loss() is not None  # without all logits in memory
    close(gradients(lm), gradients(floats), 1e-4)
    for before, variable in zip(stored, lm.non_trainable_variables, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), before)


def test_rematerialization_changes_nothing():
    found = []
    for remat in (None, "full"):
        lm = make(remat)
        lm.quantize("int4")
        adapt(lm, "dora")
        found.append(gradients(lm))
    close(*found, 1e-5)


def test_mixed_precision_is_near():
    found = []
    for dtype in ("mixed_bfloat16", "float32"):
        lm = make(dtype=dtype)
        lm.quantize("int4")
        adapt(lm)
        found.append(gradients(lm))
    close(*found, 0.15)


@pytest.mark.parametrize(("mode", "method"), [("int8", "dora"), ("int4", "rslora")])
def test_merged_kernels_are_quantized_as_quantize_does(mode, method):
    """The rule of Keras, applied to the kernels of floats that the adapters make."""
    lm = make()
    lm.quantize(mode)
    floats = dequantized(lm)
    adapt(lm, method)
    adapt(floats, method)
    lm.merge_lora()
    floats.merge_lora()
    adapted = [layer for layer in dense_layers(floats) if layer.name in ("query", "output")]
    for layer in adapted:
        layer.quantize(mode)
    for mine, theirs in zip(dense_layers(lm), dense_layers(floats), strict=True):
        if theirs in adapted:
            close(
                {"kernel": ops.convert_to_numpy(QuantizedMatrix(mine).floats())},
                {"kernel": ops.convert_to_numpy(QuantizedMatrix(theirs).floats())},
                1e-5,
            )
    assert not lm.trainable_variables or all("kernel" not in v.path for v in lm.trainable_variables)
    with pytest.raises(ValueError, match="call `enable_lora`"):
        lm.fit(IDS, NEXT, verbose=0)


@pytest.mark.one_backend
def test_generation_is_that_of_the_dequantized_model():
    lm = make()
    lm.quantize("int4")
    floats = dequantized(lm)
    adapt(lm)
    adapt(floats)
    found = [each.generate([[3, 4, 5]], max_new_tokens=6) for each in (lm, floats)]
    np.testing.assert_array_equal(*found)


@pytest.mark.one_backend
def test_a_quantized_head_is_refused():
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32,
    )  # fmt: skip
    ids = {"token_ids": np.array([[3, 4, 5], [6, 7, 8]])}
    classifier = kt.TextClassifier(kt.models.Encoder(config), num_classes=2)
    classifier.quantize("int8")
    classifier.enable_lora(rank=2)
    with pytest.raises(ValueError, match=r"task\.backbone\.quantize"):
        classifier.fit(ids, np.array([0, 1]), verbose=0)
    classifier = kt.TextClassifier(kt.models.Encoder(config), num_classes=2)
    classifier.backbone.quantize("int8")
    classifier.enable_lora(rank=2)
    losses = classifier.fit(ids, np.array([0, 1]), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.one_backend
def test_a_mode_without_gradients_is_refused():
    lm = make()
    lm.quantize("float8")
    with pytest.raises(ValueError, match="is quantized to float8"):
        lm.enable_lora(rank=2)


@pytest.mark.one_backend
def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="'lora', 'rslora'"):
        make().enable_lora(rank=2, method="qlora")


@pytest.mark.one_backend
def test_adapters_of_a_quantized_model_are_files(tmp_path):
    lm = make()
    lm.quantize("int4")
    adapt(lm, "dora")
    lm.train_on_batch(IDS, NEXT)
    lm.save_adapter(tmp_path / "adapter.safetensors")
    again = make()
    again.quantize("int4")
    again.load_adapter(tmp_path / "adapter.safetensors")
    np.testing.assert_array_equal(again.predict(IDS, verbose=0), lm.predict(IDS, verbose=0))


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("dtype", "later"),
    a_part(
        [
            ("int8", {"mode": "int8"}),
            ("int4/-1", {"config": keras.quantizers.Int4QuantizationConfig(block_size=-1)}),
            ("int4/16", {"config": keras.quantizers.Int4QuantizationConfig(block_size=16)}),
        ],
        2,
    ),
)
def test_a_preset_is_quantized_layer_by_layer(dtype, later, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "_ROWS", 7)  # embeddings in several parts, the last one smaller
    lm = make(tie_embeddings=dtype != "int8")
    lm.save_to_preset(tmp_path)
    lm.quantize(**later)
    again = kt.CausalLM.from_preset(tmp_path, dtype=dtype)
    assert again.backbone.token_embedding.quantization_mode == dtype[:4]
    for mine, theirs in zip(again.weights, lm.weights, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(ops.convert_to_numpy(mine), ops.convert_to_numpy(theirs))
    mixed = kt.models.Decoder.from_preset(tmp_path, dtype=f"{dtype}_from_mixed_bfloat16")
    assert mixed.compute_dtype == "bfloat16" and mixed.decoder.blocks[0].compute_dtype == "bfloat16"
    fresh = kt.CausalLM.from_preset(tmp_path, dtype=dtype, load_weights=False)
    fresh.enable_lora(rank=2)
    assert np.isfinite(fresh.train_on_batch(IDS, NEXT)[0])


@pytest.mark.one_backend
def test_other_integer_dtypes_are_refused(tmp_path):
    make().save_to_preset(tmp_path)
    for dtype in ("int8/64", "int16", "int4/0"):
        with pytest.raises(ValueError, match="also takes 'int8' and 'int4'"):
            kt.CausalLM.from_preset(tmp_path, dtype=dtype)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_the_vocabulary_is_converted_in_parts(mode, tied, monkeypatch):
    """Into the same floats as at once, with a last part that begins within the one before it."""
    lm = make(tie_embeddings=tied)
    lm.quantize(mode)
    matrix = QuantizedMatrix(lm.backbone.token_embedding, of_logits=True)
    expected = ops.convert_to_numpy(ops.transpose(matrix.floats()))
    monkeypatch.setattr(quantized_matrix, "_ROWS", 7)  # 50 is 7 * 7 + 1
    np.testing.assert_array_equal(ops.convert_to_numpy(matrix.rows("float32")), expected)
