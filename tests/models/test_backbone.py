"""Checks that hold for all three kinds of backbone."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.config.structure import variable_shapes
from keras_transformer.models import Decoder, Encoder, Seq2Seq, build_backbone
from tests.closeness import atol_of
from tests.generation.common import on_one
from tests.layers.conftest import assert_close, copy_weights, differs, numpy
from tests.models.conftest import IDS, PADDING, small_backbone, small_config, small_inputs

KINDS = ("encoder", "decoder", "seq2seq")
kinds = pytest.mark.parametrize("kind", KINDS)
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *((kind, {"position": position}) for kind in KINDS for position in POSITIONS),
        ("encoder", {"pooler": True, "segment_vocabulary_size": 2}),
        ("encoder", {"embedding_normalization": True, "normalize_first": True}),
        ("decoder", {"num_key_value_heads": 1, "gated": True, "use_bias": False}),
        ("decoder", {"head_dim": 6, "tie_embeddings": False, "normalization": "rms_norm"}),
        ("seq2seq", {"num_decoder_layers": 1, "normalize_first": True}),
        ("seq2seq", {"normalize_first": True, "final_normalization": False}),
        *(("seq2seq", {"score": s}) for s in ("dot", "general", "additive", "cosine", "location")),
    ],
)
def test_the_variables_are_those_computed_from_the_config(kind, values):
    config = small_config(kind, **values)
    backbone = build_backbone(config)
    assert type(backbone) is {"encoder": Encoder, "decoder": Decoder, "seq2seq": Seq2Seq}[kind]
    real = {path: tuple(v.shape) for path, v in backbone_variables(backbone).items()}
    assert real == {path: tuple(shape) for path, shape in variable_shapes(config).items()}
    assert len(real) == len(backbone.weights)
    if kind == "encoder":  # calling makes no further ones
        backbone(small_inputs(kind))
        assert len(real) == len(backbone.weights)


# On each backend each kind, and all positions.
EACH_BACKEND = {"encoder": ("none", "learned"), "decoder": ("rotary", "alibi")}
EACH_BACKEND |= {"seq2seq": ("sinusoidal", "relative")}


@pytest.mark.parametrize(
    "kind, position",
    [
        (kind, position) if position in EACH_BACKEND[kind] else on_one(kind, position)
        for kind in KINDS
        for position in POSITIONS
    ],
)
def test_masked_positions_change_nothing(kind, position):
    backbone = small_backbone(kind, position=position, num_layers=1, embedding_normalization=True)
    inputs = small_inputs(kind)
    before = numpy(backbone(inputs))
    assert before.shape == (2, 5, 8) and np.isfinite(before).all()
    changed = dict(inputs)
    for name in inputs:
        if name.endswith("token_ids"):
            mask = inputs[name.replace("token_ids", "padding_mask")]
            changed[name] = np.where(mask, inputs[name], 10)
    after = numpy(backbone(changed))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])
    if position not in ("learned", "relative"):
        return
    # A row alone and without padding gives the same.
    lengths = {"token": 3, "padding": 3, "decoder": 3, "encoder": 4}
    alone = {name: x[1:, : lengths[name.split("_")[0]]] for name, x in inputs.items()}
    assert_close(numpy(backbone(alone))[0], before[1, :3], atol=2e-5)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_positions_matter(kind):
    """Without positions the states after two tokens do not say in which order those came."""
    swapped = IDS[:, [1, 0, 2, 3, 4]]
    for position in POSITIONS:
        backbone = small_backbone(kind, position=position, num_layers=1)
        first, second = (numpy(backbone({"token_ids": ids}))[:, 2:] for ids in (IDS, swapped))
        assert differs(first, second, by=1e-5) == (position != "none")


@kinds
def test_all_padding_mask_is_the_default(kind):
    backbone, inputs = small_backbone(kind), small_inputs(kind)
    ids = {name: value for name, value in inputs.items() if name.endswith("ids")}
    ones = {
        name.replace("token_ids", "padding_mask"): np.ones(v.shape, bool) for name, v in ids.items()
    }
    assert_close(backbone(ids), backbone({**ids, **ones}))


@kinds
def test_more_tokens_than_learned_positions(kind):
    backbone = small_backbone(kind, position="learned")
    long = np.ones((1, 10), "int32")
    with pytest.raises(ValueError, match="10 tokens a row.*learned positions for 9 only"):
        backbone({name: long for name in small_inputs(kind) if name.endswith("ids")})
    message = r"`token_ids` has 10 tokens a row.*learned positions for 9 only"
    with pytest.raises(ValueError, match=message):
        backbone.check_ids(token_ids=long)
    with pytest.raises(
        ValueError, match="ids from 1 to 11, but the vocabulary has the ids 0 to 10"
    ):
        backbone.check_ids(token_ids=np.array([[1, 11]]))
    with pytest.raises(ValueError, match="ids from -1 to 1"):
        backbone.check_ids(token_ids=np.array([[1, -1]]))
    backbone.check_ids(token_ids=IDS)
    # The others go on beyond `max_sequence_length`.
    other = small_backbone(kind, position="sinusoidal")
    assert other({n: long for n in small_inputs(kind) if n.endswith("ids")}).shape == (1, 10, 8)


@kinds
def test_logits_are_those_of_the_embedding(kind):
    backbone = small_backbone(kind, scale_embedding=True)
    states = backbone(small_inputs(kind))
    table = numpy(backbone.token_embedding.embeddings)
    assert_close(backbone.logits(states), numpy(states) @ table.T)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *((kind, policy) for kind in KINDS[:2] for policy in ("mixed_bfloat16", "mixed_float16")),
        on_one("seq2seq", "mixed_bfloat16"),
        on_one("seq2seq", "mixed_float16"),
        ("decoder", "bfloat16"),
    ],
)
def test_dtype_policies(kind, policy):
    values = {"position": "relative", "normalize_first": True, "num_layers": 1}
    half, full = small_backbone(kind, dtype=policy, **values), small_backbone(kind, **values)
    inputs = small_inputs(kind)
    result = half(inputs)
    assert keras.backend.standardize_dtype(result.dtype) == half.compute_dtype
    stored = {keras.backend.standardize_dtype(w.dtype) for w in half.weights}
    assert stored == {"bfloat16" if policy == "bfloat16" else "float32"}
    assert_close(result, full(inputs), atol=atol_of(policy))


@kinds
def test_functional_use(kind):
    backbone, inputs = small_backbone(kind, segment_vocabulary_size=2), small_inputs(kind)
    symbolic = {
        name: keras.Input((None,), dtype=str(value.dtype), name=name)
        for name, value in inputs.items()
    }
    states = backbone(symbolic)
    assert states.shape[-1] == 8 and len(states.shape) == 3
    model = keras.Model(symbolic, backbone.logits(states))
    expected = backbone.logits(backbone(inputs))
    assert_close(model(inputs), expected)
    assert_close(model.predict_on_batch(inputs), numpy(expected))


@pytest.mark.one_backend
@kinds
def test_config_round_trip(kind):
    backbone = small_backbone(kind, dtype="mixed_bfloat16", position="rotary")
    config = keras.saving.serialize_keras_object(backbone)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(backbone) and again.config == backbone.config
    assert again.dtype_policy.name == "mixed_bfloat16" and again.name == backbone.name
    assert [w.path for w in again.weights] == [w.path for w in backbone.weights]
    copy_weights(backbone, again)
    assert_close(again(small_inputs(kind)), backbone(small_inputs(kind)))


@pytest.mark.one_backend
@kinds
def test_keras_file(kind, tmp_path):
    backbone = small_backbone(kind, position="learned", segment_vocabulary_size=2)
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.models.load_model(tmp_path / "backbone.keras")
    assert type(loaded) is type(backbone) and loaded.config == backbone.config
    for mine, theirs in zip(loaded.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(numpy(mine), numpy(theirs))


@kinds
def test_same_seed_same_weights(kind):
    made = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        made.append([numpy(w) for w in build_backbone(small_config(kind)).weights])
    for first, second, other in zip(*made, strict=True):
        np.testing.assert_array_equal(first, second)
        assert first.ndim < 2 or not np.array_equal(first, other)


def test_initial_weights():
    """No two kernels start alike, and their deviation is that of the config."""
    config = small_config("encoder", hidden_dim=64, intermediate_dim=64, vocabulary_size=99)
    backbone = build_backbone(config)
    kernels = [numpy(w) for w in backbone.weights if w.name == "kernel"]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 12
    limit = np.sqrt(6 / 128)  # Glorot uniform
    assert 0.95 * limit < np.abs(kernels[0]).max() <= limit
    assert numpy(backbone.token_embedding.embeddings).std() == pytest.approx(1 / 8, rel=0.05)
    backbone = build_backbone(config.replace(initializer_range=0.02))
    assert numpy(backbone.token_embedding.embeddings).std() == pytest.approx(0.02, rel=0.05)
    kernel = next(numpy(w) for w in backbone.weights if w.name == "kernel")
    assert np.abs(kernel).max() <= 0.04 + 1e-6 and 0.015 < kernel.std() < 0.02  # truncated at 2


@kinds
def test_dropout_is_on_the_sum_of_the_embeddings(kind):
    backbone = small_backbone(kind, dropout=0.5, position="sinusoidal")
    x = {"token_ids": np.ones((50, 20), "int32"), "token_embeddings": ops.ones((50, 20, 8))}
    for stem, _ in backbone.sides.values():
        result = numpy(stem(x, training=True).states)
        full = numpy(stem(x, training=False).states)
        kept = result != 0
        np.testing.assert_allclose(result[kept], 2 * full[kept], rtol=1e-5)
        assert kept[np.abs(full) > 0.01].mean() == pytest.approx(0.5, abs=0.03)
    inputs = small_inputs(kind)
    assert differs(backbone(inputs, training=True), backbone(inputs))
    plain = small_backbone(kind)
    assert_close(plain(inputs, training=True), plain(inputs))


@kinds
def test_int8_is_close(kind):
    backbone = small_backbone(kind, position="learned", num_layers=1)
    inputs = small_inputs(kind)
    before = numpy(backbone(inputs))
    backbone.quantize("int8")
    assert keras.backend.standardize_dtype(backbone.token_embedding._embeddings.dtype) == "int8"
    error = np.abs(numpy(backbone(inputs)) - before)[PADDING].max()
    assert 0 < error < 0.1 * np.abs(before).max()


@pytest.mark.parametrize("kind", ["encoder", on_one("decoder"), on_one("seq2seq")])
def test_remat_scope(kind):
    plain = small_backbone(kind, num_layers=1)
    with keras.RematScope(mode="full"):
        saving = build_backbone(plain.config)
    copy_weights(plain, saving)
    results = []
    for backbone in (plain, saving):
        backbone.compile(keras.optimizers.SGD(0.1), "mse")
        loss = backbone.train_on_batch(small_inputs(kind), np.zeros((2, 5, 8), "float32"))
        results.append((loss, [numpy(w) for w in backbone.weights]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    for mine, theirs in zip(results[1][1], results[0][1], strict=True):
        assert_close(mine, theirs)


def test_wrong_configs():
    with pytest.raises(ValueError, match="must be a TransformerConfig, received dict"):
        Encoder(small_config("encoder").to_dict())
    with pytest.raises(ValueError, match="Encoder needs a config of kind='encoder'.*'decoder'"):
        Encoder(small_config("decoder"))
    with pytest.raises(ValueError, match="Seq2Seq needs a config of kind='seq2seq'"):
        Seq2Seq(small_config("decoder"))
