"""Encoders with stages: patches are merged between layers, and the width changes."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from tests.tasks.test_dense_images import scenes


def block(heads, dim, reduction=1, **values):
    return parts.Block(
        mixer=parts.Attention(num_heads=heads, sequence_reduction=reduction),
        feed_forward=parts.MixFeedForward(dim=dim, activation="gelu"),
        residual=parts.Residual(order="pre"),
        **values,
    )


def side(**values):
    """Two layers of width 8, two of width 12."""
    second = block(2, 24, merging=parts.OverlappingMerging(hidden_dim=12))
    given = {
        "input": parts.PatchStemConfig(
            image_size=(16, 24), patch_size=3, stride=2, padding=1, class_token=False
        ),
        "embedding_dim": 8,
        "embedding_norm": True,
        "hidden_dim": 12,
        "num_layers": 4,
        "block": block(2, 24),
        "layers": (block(1, 16, 2), block(1, 16, 2), second, block(2, 24)),
    }
    return parts.Side(**given | values)


def config(**values):
    return kt.TransformerConfig(encoder=side(**values))


def test_a_layer_has_the_width_and_the_grid_of_its_stage():
    made = config()
    assert made.encoder.stage_widths == (8, 12) and made.encoder.stage_ends == (2, 4)
    assert made.encoder.grids() == ((8, 12), (8, 12), (4, 6), (4, 6))
    assert made.encoder.grids((5, 7)) == ((3, 4), (3, 4), (2, 2), (2, 2))
    assert [made.layer(i).hidden_dim for i in range(4)] == [8, 8, 12, 12]
    assert kt.TransformerConfig.from_json(made.to_json()) == made
    shapes = variable_shapes(made)
    assert shapes["encoder/layer_2/merging/convolution/kernel"] == (3, 3, 8, 12)
    assert shapes["encoder/layer_1/feed_forward/convolution/kernel"] == (3, 3, 16)
    backbone = kt.models.Encoder(made)
    paths = {v.path.removeprefix("encoder/"): tuple(v.shape) for v in backbone.weights}
    assert paths == shapes
    plan = kt.planning.make_plan(made, batch_size=2, length=96)
    assert backbone.count_params() == plan.parameters
    states, found = backbone({"images": np.zeros((2, 16, 24, 3))}, collect=("block_outputs",))
    assert states.shape == (2, 24, 12)
    assert [tuple(x.shape) for x in found["block_outputs"]] == [(2, 96, 8)] * 2 + [(2, 24, 12)] * 2


def test_products_are_counted_by_stage():
    """One multiplication and one addition for each weight of each state, and for each pair."""
    total = 96 * 3 * 3 * 3 * 8  # the stem
    for states, keys, width, dim in ((96, 24, 8, 16),) * 2 + ((24, 24, 12, 24),) * 2:
        total += 2 * states * width**2 + 2 * keys * width**2  # query, output, key, value
        total += 4 * keys * width**2 if keys < states else 0  # two by two patches become one
        total += 2 * states * keys * width
        total += states * dim * (2 * width + 9)
    total += 24 * 9 * 8 * 12  # the merging
    assert kt.planning.flops_per_sequence(config(), 96, training=False) == 2 * total


def test_an_image_gives_in_a_batch_what_it_gives_alone():
    backbone = kt.models.Encoder(config())
    images = np.random.default_rng(0).normal(size=(3, 17, 22, 3)).astype("float32")
    together = to_numpy(backbone({"images": images}))
    alone = to_numpy(backbone({"images": images[1:2]}))
    assert together.shape[1] == 5 * 6 and np.abs(together[1:2] - alone).max() <= 1e-5


@pytest.mark.each_backend
def test_a_segmenter_with_stages_learns(tmp_path):
    images, masks = scenes()
    keras.utils.set_random_seed(1)
    task = kt.ImageSegmenter(
        kt.models.Encoder(config()),
        kt.ImageProcessor(size=(16, 24)),
        labels=["ground", "object"],
        decoder={"features": 8},
    )
    task.compile(keras.optimizers.Adam(1e-2))
    history = task.fit(images, masks, epochs=6, batch_size=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    result = task.segment(images[0])
    assert result.classes.shape == masks[0].shape
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "saved")
    for again in (
        keras.models.load_model(tmp_path / "task.keras"),
        kt.Task.from_preset(tmp_path / "saved"),
    ):
        assert np.array_equal(again.segment(images[0]).classes, result.classes)


def test_gradients_are_the_same_if_blocks_are_computed_again():
    images, masks = scenes(2, (16, 24))
    losses = []
    for mode in (None, "full"):
        keras.utils.set_random_seed(1)
        with keras.RematScope(mode=mode):
            backbone = kt.models.Encoder(config())
        processor = kt.ImageProcessor(size=(16, 24))
        task = kt.ImageSegmenter(backbone, processor, num_classes=2, dropout=0.0)
        task.compile(keras.optimizers.SGD(0.1))
        losses.append(task.fit(images, masks, epochs=3, batch_size=2, verbose=0).history["loss"])
    assert np.allclose(*losses, atol=1e-5)


def test_other_tasks_read_the_last_stage():
    backbone = kt.models.Encoder(config())
    images, _ = scenes(2, (16, 24))
    processor = kt.ImageProcessor(size=(16, 24))
    classifier = kt.ImageClassifier(backbone, processor, num_classes=3)
    assert classifier.predict(images, verbose=0).shape == (2, 3)
    estimator = kt.DepthEstimator(backbone, processor, max_depth=3.0)
    assert estimator.estimate(images[0]).depth.shape == (16, 24)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input": parts.Tokens(vocabulary_size=9)}, "need a stem of patches without other tokens"),
        ({"input": parts.PatchStemConfig()}, "need a stem of patches without other tokens"),
        ({"position": parts.Learned()}, "and no positions"),
        ({"hidden_dim": 16}, "the last `merging` makes states of width 12"),
        ({"num_layers": 8}, "the blocks of all layers"),
        ({"pooler": "mean"}, "cannot be combined with a pooler"),
        (
            {"layers": (block(2, 24, merging=parts.OverlappingMerging(hidden_dim=12)),) * 4},
            "The first layer",
        ),
        (
            {
                "layers": (
                    *(block(1, 16),) * 3,
                    block(2, 24, merging=parts.OverlappingMerging(hidden_dim=12, input_dim=9)),
                )
            },
            "reads states of width 9",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        side(**values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parts.OverlappingMerging(hidden_dim=4, kernel_size=2), "must be odd"),
        (lambda: parts.MixFeedForward(dim=4, gated=True), "has no gate"),
        (lambda: parts.MixFeedForward(dim=4, kernel_size=2), "must be odd"),
        (
            lambda: parts.Attention(num_heads=1, sequence_reduction=2, position=parts.Rotary()),
            "`sequence_reduction` needs",
        ),
        (lambda: kt.TransformerConfig(decoder=side()), "need"),
    ],
)
def test_values_that_contradict_each_other_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.one_backend
def test_images_that_are_too_small_are_refused():
    backbone = kt.models.Encoder(config())
    with pytest.raises(ValueError, match="give larger images"):
        backbone({"images": np.zeros((1, 2, 2, 3), "float32")})
    layer = kt.layers.Block(block(2, 24))
    with pytest.raises(ValueError, match="needs the `grid`"):
        layer(np.zeros((1, 6, 12), "float32"))
    with pytest.raises(ValueError, match="2 x 2 patches has 4 states, received 6"):
        layer(np.zeros((1, 6, 12), "float32"), grid=(2, 2))
