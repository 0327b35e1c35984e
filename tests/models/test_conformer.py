"""Conformer blocks and distances to keys: formulas, one row in a batch, files, and wrong values."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers.attention.relative_keys import DistanceScores
from keras_transformer.layers.conformer import ConformerSublayers, DepthwiseConvolution

ATTENTION = parts.Attention(num_heads=2, score_bias=parts.RelativeKeys(before=3, behind=1))
BLOCK = parts.Block(
    mixer=ATTENTION,
    feed_forward=parts.Dense(dim=20, activation="silu"),
    residual=parts.Residual(order="pre"),
    conformer=parts.Conformer(size=3),
)


def model(block=BLOCK, **stem):
    stem = {"num_bins": 6, "num_frames": 9, "strides": (2,), "masked": True, **stem}
    side = parts.Side(
        input=parts.FrameStemConfig(**stem),
        hidden_dim=8,
        num_layers=2,
        block=block,
        final_norm=False,
    )
    return kt.models.Encoder(kt.TransformerConfig(encoder=side))


def test_a_convolution_of_each_feature():
    x = np.random.default_rng(0).normal(size=(2, 7, 4)).astype("float32")
    for causal, behind in ((True, 0), (False, 2)):
        layer = DepthwiseConvolution(5, causal)
        found = to_numpy(layer(x))
        kernel = to_numpy(layer.kernel)
        padded = np.pad(x, ((0, 0), (4 - behind, behind), (0, 0)))
        expected = sum(padded[:, i : i + 7] * kernel[i] for i in range(5))
        assert np.abs(found - expected).max() <= 1e-5


def test_scores_of_distances():
    random = np.random.default_rng(1)
    queries = random.normal(size=(2, 6, 3, 4)).astype("float32")
    layer = DistanceScores(parts.RelativeKeys(before=2, behind=1), 4)
    found = to_numpy(layer(queries, queries))
    table = to_numpy(layer.distances)
    for i in range(6):
        for j in range(6):
            expected = queries[:, i] @ table[np.clip(j - i, -2, 1) + 2]
            assert np.abs(found[:, :, i, j] - expected).max() <= 1e-5


def test_a_row_is_the_same_in_a_batch(tmp_path):
    """With convolutions in the stem, whatever the padding holds; and the first state alone."""
    backbone = model()
    random = np.random.default_rng(2)
    given = random.normal(size=(3, 9, 6)).astype("float32")
    mask = np.arange(9) < np.array([9, 6, 1])[:, None]
    states = to_numpy(backbone({"frames": given, "padding_mask": mask}))
    for row, count, length in zip(range(3), (5, 3, 1), (9, 6, 1), strict=True):
        alone = to_numpy(backbone({"frames": given[row : row + 1, :length]}))[0]
        assert alone.shape == (count, 8)
        assert np.abs(states[row, :count] - alone).max() <= 1e-5
    classes = kt.AudioClassifier(backbone, num_classes=2, pooling="mean")
    classes.save(tmp_path / "task.keras")
    inputs = {"frames": given, "padding_mask": mask}
    expected = classes.predict(inputs, verbose=0)
    again = keras.models.load_model(tmp_path / "task.keras")
    assert np.abs(again.predict(inputs, verbose=0) - expected).max() <= 1e-5
    layer = backbone.encoder.blocks[0]
    whole, first = layer(states), layer(states, first_only=True)
    assert np.abs(to_numpy(whole)[:, :1] - to_numpy(first)).max() <= 1e-5


@pytest.mark.one_backend
def test_weights_and_plans():
    backbone = model()
    found = {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.weights}
    assert found == variable_shapes(backbone.config)
    plan = kt.planning.make_plan(backbone.config, batch_size=2, length=9)
    assert plan.parameters == backbone.count_params()
    config = backbone.config
    assert kt.TransformerConfig.from_json(config.to_json()) == config and not config.by_keywords


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: parts.Conformer(size=4), "`size` of a Conformer's convolution must be odd"),
        (lambda: BLOCK.replace(feed_forward=None), "`conformer` needs a `Dense` feed-forward"),
        (lambda: BLOCK.replace(residual=parts.Residual()), "the residual order 'pre'"),
        (lambda: ATTENTION.replace(score="dot"), "`RelativeKeys` need score='scaled_dot'"),
        (lambda: ATTENTION.replace(pattern=parts.Window(size=2)), "and no pattern"),
        (lambda: model(strides=()), "`embedding_dim` must be `num_bins`, 6, received 8"),
    ],
)
def test_wrong_values(change, message):
    with pytest.raises(ValueError, match=message):
        change()


@pytest.mark.backend_independent
def test_decoders_have_neither():
    side = parts.Side(
        input=parts.Tokens(vocabulary_size=9), hidden_dim=8, num_layers=1, block=BLOCK
    )
    for block in (BLOCK, BLOCK.replace(conformer=None)):
        with pytest.raises(ValueError, match="needs? kind='encoder'"):
            kt.TransformerConfig(decoder=side.replace(block=block, layers=()))
    packed = {"token_ids": np.ones((1, 4), "int32"), "pack_ids": np.array([[0, 0, 1, 1]])}
    with pytest.raises(ValueError, match="would mix packed documents"):
        kt.models.Encoder(kt.TransformerConfig(encoder=side))(packed)


@pytest.mark.one_backend
def test_what_a_sublayer_gives():
    layer = ConformerSublayers(parts.Conformer(size=3), parts.Dense(dim=6), dropout=0.5)
    x = np.random.default_rng(3).normal(size=(1, 5, 4)).astype("float32")
    half = to_numpy(layer(x, which="feed_forward")) - x
    assert np.abs(half - 0.5 * to_numpy(layer.first(layer.first_norm(x)))).max() <= 1e-6
    assert np.abs(to_numpy(layer(x, which="norm")).mean(-1)).max() <= 1e-5
