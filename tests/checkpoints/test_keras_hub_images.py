"""Encoders of images of KerasHub, to ours and back, against KerasHub itself."""

import numpy as np
import PIL.Image
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.test_keras_hub import (
    _no_drawing,  # noqa: F401
    difference,
    hub,  # noqa: F401
    randomize,
    run,
)

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention':UserWarning"),
]

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
VIT = {**SIZES, "image_shape": (8, 12, 3), "patch_size": 4, "mlp_dim": 12}
PLAIN = {
    "use_mha_bias": False, "use_mlp_bias": False, "use_patch_bias": False,
    "use_class_token": False, "patch_size": (4, 6), "layer_norm_epsilon": 1e-3,
}  # fmt: skip
DEIT = {**SIZES, "image_shape": (8, 12, 3), "patch_size": 4, "intermediate_dim": 12}
IMAGES = np.random.default_rng(0).normal(size=(3, 8, 12, 3)).astype("float32")


def assert_same_weights(mine, theirs):
    assert len(mine.weights) == len(theirs.weights)
    for each, its in zip(mine.weights, theirs.weights, strict=True):
        assert np.array_equal(to_numpy(each), to_numpy(its)), each.path


@pytest.mark.parametrize(
    "name, sizes, options",
    [
        ("ViT", VIT, {}),
        ("ViT", {**VIT, **PLAIN}, {"pooling": "gap"}),
        ("DeiT", DEIT, {}),
        ("DeiT", {**DEIT, "use_mha_bias": False}, {}),
    ],
)
def test_a_classifier_there_and_back(hub, name, sizes, options):  # noqa: F811
    backbone = getattr(hub.models, f"{name}Backbone")(**sizes)
    made = getattr(hub.models, f"{name}ImageClassifier")
    theirs = randomize(made(backbone, num_classes=3, dropout=0.3, **options))
    ours = kt.from_keras_hub(theirs)
    assert type(ours) is kt.ImageClassifier and ours.backbone.family == name.lower()
    assert (ours.num_classes, ours.dropout) == (3, 0.3)
    states = run(ours.backbone, {"images": IMAGES})
    assert difference(states, run(theirs.backbone, IMAGES)) <= 2e-5
    assert difference(run(ours, {"images": IMAGES}), run(theirs, IMAGES)) <= 1e-4
    back = kt.to_keras_hub(ours)
    assert type(back) is made
    assert_same_weights(back, theirs)
    assert difference(run(back, IMAGES), run(theirs, IMAGES)) <= 1e-6


DINO = {**SIZES, "image_shape": (8, 8, 3), "patch_size": 4, "intermediate_dim": 12}
DINOV3 = {
    **DINO, "num_register_tokens": 3, "use_gated_mlp": True, "use_key_bias": False,
    "use_mlp_bias": False, "hidden_activation": "silu", "rope_theta": 50.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "name, family, sizes",
    [
        ("DINOV2", "dinov2", {**DINO, "position_embedding_shape": (8, 8, 3)}),
        (
            "DINOV2",
            "dinov2_with_registers",
            {
                **DINO,
                "num_register_tokens": 2,
                "use_swiglu_ffn": True,
                "position_embedding_shape": (16, 16, 3),
                "antialias_in_interpolation": True,
            },
        ),
        ("DINOV3", "dinov3_vit", {**DINO, "num_register_tokens": 0}),
        ("DINOV3", "dinov3_vit", DINOV3),
    ],
)
def test_dino_there_and_back(hub, name, family, sizes):  # noqa: F811
    theirs = randomize(getattr(hub.models, f"{name}Backbone")(**sizes))
    ours = kt.from_keras_hub(theirs)
    assert ours.family == family
    (key,) = theirs.input
    images = IMAGES[:, :, :8]
    expected = run(theirs, {key: images})
    assert difference(run(ours, {"images": images}), expected) <= 2e-5
    back = kt.to_keras_hub(ours)
    assert difference(run(back, {key: images}), expected) <= 2e-5
    known = {each.path: to_numpy(each) for each in theirs.weights}
    for each in back.weights:
        if "mask_token" in each.path:
            assert not to_numpy(each).any()
        elif not each.path.endswith("/position_embeddings"):
            assert np.array_equal(to_numpy(each), known[each.path]), each.path


SWIN = {
    "image_shape": (24, 24, 3), "patch_size": 2, "embed_dim": 8, "depths": [2, 3],
    "num_heads": [2, 4], "window_size": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "sizes",
    [
        SWIN,
        {**SWIN, "image_shape": (12, 24, 3), "qkv_bias": False, "mlp_ratio": 1.7},
        {**SWIN, "image_shape": (16, 16, 3), "depths": [1, 1]},  # padded, and not moved
    ],
)
def test_swin_there_and_back(hub, tmp_path, sizes):  # noqa: F811
    """In the second the windows of the last stage are as high as its grid."""
    backbone = hub.models.SwinTransformerBackbone(**sizes)
    made = hub.models.SwinTransformerImageClassifier
    theirs = randomize(made(backbone, num_classes=3, dropout=0.3))
    ours = kt.from_keras_hub(theirs)
    assert type(ours) is kt.ImageClassifier and ours.backbone.family == "swin"
    assert (ours.num_classes, ours.dropout) == (3, 0.3)
    size = sizes["image_shape"]
    images = np.random.default_rng(0).normal(size=(3, *size)).astype("float32")
    states = run(ours.backbone, {"images": images})
    assert difference(states, run(theirs.backbone, images)) <= 2e-5
    expected = run(theirs, images)
    assert difference(run(ours, {"images": images}), expected) <= 1e-4
    back = kt.to_keras_hub(ours)
    assert type(back) is made
    assert_same_weights(back, theirs)
    assert difference(run(back, images), expected) <= 1e-6
    theirs.save_to_preset(tmp_path)
    again = kt.ImageClassifier.from_preset(tmp_path)
    assert difference(run(again, {"images": images}), expected) <= 1e-4


def test_windows_that_are_refused(hub):  # noqa: F811
    cases = [
        ({"image_shape": (16, 16, 3)}, "stage 0 has 8 x 8 patches, which are not whole windows"),
        ({"patch_norm": False}, "patch_norm=False is not supported"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            kt.from_keras_hub(hub.models.SwinTransformerBackbone(**{**SWIN, **options}))
    values = kt.from_keras_hub(hub.models.SwinTransformerBackbone(**SWIN)).config.to_dict()
    for size, message in ((20, "whole windows of 3 x 3"), (18, "9 x 9 patches of stage 0 have no")):
        values["encoder"]["input"]["image_size"] = [size, size]
        model = kt.models.Encoder(kt.TransformerConfig.from_dict(values))
        with pytest.raises(ValueError, match=f"SwinTransformerBackbone: .*{message}"):
            kt.to_keras_hub(model)


MIT = {
    "layerwise_depths": [2, 1, 1, 1], "num_layers": 4, "hidden_dims": [8, 16, 20, 24],
    "layerwise_num_heads": [1, 2, 2, 3], "layerwise_sr_ratios": [4, 2, 2, 1],
    "layerwise_patch_sizes": [7, 3, 3, 3], "layerwise_strides": [4, 2, 2, 2],
    "max_drop_path_rate": 0.1, "image_shape": (64, 64, 3),
}  # fmt: skip
SQUARES = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype("float32")


def test_mit_there_and_back(hub, tmp_path):  # noqa: F811
    made = hub.models.MiTImageClassifier
    theirs = randomize(made(hub.models.MiTBackbone(**MIT), num_classes=3, dropout=0.3))
    ours = kt.from_keras_hub(theirs)
    assert type(ours) is kt.ImageClassifier and ours.backbone.family == "segformer"
    states = to_numpy(run(theirs.backbone, SQUARES)).reshape(2, 4, 24)
    assert difference(run(ours.backbone, {"images": SQUARES}), states) <= 2e-5
    expected = run(theirs, SQUARES)
    assert difference(run(ours, {"images": SQUARES}), expected) <= 1e-4
    back = kt.to_keras_hub(ours)
    assert type(back) is made
    assert_same_weights(back, theirs)
    assert type(kt.to_keras_hub(ours.backbone)) is hub.models.MiTBackbone
    kt.export_to_huggingface(ours, tmp_path)  # which states no size of images
    again = kt.ImageClassifier.from_preset(tmp_path)
    assert difference(run(again, {"images": SQUARES}), expected) <= 1e-4


def test_segformer_there_and_back(hub, tmp_path):  # noqa: F811
    """Most of the head is in the backbone there."""
    backbone = hub.models.SegFormerBackbone(hub.models.MiTBackbone(**MIT), projection_filters=6)
    made = hub.models.SegFormerImageSegmenter
    theirs = randomize(made(backbone, num_classes=3))
    ours = kt.from_keras_hub(theirs)
    assert type(ours) is kt.ImageSegmenter and ours.backbone.family == "segformer"
    assert (ours.num_classes, ours.decoder, ours.dropout) == (3, {"features": 6}, 0.1)
    # Called without `training`, their batch norm takes the statistics of the batch.
    expected = theirs.predict_on_batch(SQUARES)
    assert difference(run(ours, {"images": SQUARES}), expected) <= 1e-4
    back = kt.to_keras_hub(ours)
    assert type(back) is made
    assert_same_weights(back, theirs)
    assert difference(back.predict_on_batch(SQUARES), expected) <= 1e-6
    theirs.save_to_preset(tmp_path)
    again = kt.ImageSegmenter.from_preset(tmp_path)
    assert difference(run(again, {"images": SQUARES}), expected) <= 1e-4
    alone = kt.Backbone.from_preset(tmp_path)
    states = run(ours.backbone, {"images": SQUARES})
    assert difference(run(alone, {"images": SQUARES}), states) <= 1e-6


def test_stages_that_are_refused(hub):  # noqa: F811
    two = {name: value[:2] for name, value in MIT.items() if isinstance(value, list)}
    inner = hub.models.MiTBackbone(**{**MIT, **two, "num_layers": 2})
    with pytest.raises(ValueError, match="num_layers=2 must be 4"):
        kt.from_keras_hub(hub.models.SegFormerBackbone(inner, projection_filters=6))
    assert kt.from_keras_hub(inner).config.encoder.num_layers == 3
    same = {**MIT, "hidden_dims": [8, 16, 16, 24]}
    config = kt.from_keras_hub(hub.models.MiTBackbone(**same)).config
    segmenter = kt.ImageSegmenter(kt.models.Encoder(config), num_classes=2)
    with pytest.raises(ValueError, match=r"SegFormerBackbone: .*hidden_dims=\[8, 16, 16, 24\] mu"):
        kt.to_keras_hub(segmenter)
    classifier = hub.models.MiTImageClassifier(inner, num_classes=2, pooling="max")
    with pytest.raises(ValueError, match="pooling='max' of the classifier is not supported"):
        kt.from_keras_hub(classifier)
    values = kt.from_keras_hub(inner).config.to_dict()
    values["encoder"]["input"]["image_size"] = [64, 32]
    with pytest.raises(ValueError, match=r"MiTBackbone: .*image_shape=\[64, 32, 3\] is not"):
        kt.to_keras_hub(kt.models.Encoder(kt.TransformerConfig.from_dict(values)))


@pytest.mark.parametrize("cut", [True, False])
def test_images_in_classes_out(hub, tmp_path, cut):  # noqa: F811
    """The image converter goes along: the same images give the same outputs."""
    backbone = hub.models.ViTBackbone(**{**VIT, "image_shape": (8, 8, 3)})
    converter = hub.layers.ViTImageConverter(
        image_size=(8, 8), scale=[1 / 127.5, 1 / 100, 1 / 120], offset=[-1.0, -0.9, -0.8],
        crop_to_aspect_ratio=cut,
    )  # fmt: skip
    preprocessor = hub.models.ViTImageClassifierPreprocessor(image_converter=converter)
    theirs = hub.models.ViTImageClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    randomize(theirs).save_to_preset(tmp_path)
    ours = kt.ImageClassifier.from_preset(tmp_path)
    images = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3)).astype("uint8")
    expected = theirs.predict(images, verbose=0)
    assert np.abs(ours.predict(list(images), verbose=0) - expected).max() <= 1e-4
    # Images of other proportions are cut, or stretched: here the middle is white.
    wide = np.zeros((8, 16, 3), "uint8")
    wide[:, 4:12] = 255
    seen = ours.processor([PIL.Image.fromarray(wide)])
    assert (seen.min() > 0) == cut
    assert np.abs(seen - to_numpy(converter(wide[None].astype("float32"))))[:, :, ::7].max() <= 0.02
    back = kt.to_keras_hub(ours)
    assert back.preprocessor.image_converter.crop_to_aspect_ratio == cut
    assert np.abs(back.predict(images, verbose=0) - expected).max() <= 1e-4
    assert ours.classify(images[0])[0] in ("0", "1", "2")


def test_classifiers_that_are_refused(hub, tmp_path):  # noqa: F811
    backbone = hub.models.ViTBackbone(**VIT)
    cases = [({"pooling": "gap"}, "pooling='gap'"), ({"intermediate_dim": 5}, "intermediate_dim=5")]
    for options, message in cases:
        with pytest.raises(ValueError, match=f"{message} of the classifier is not supported, only"):
            kt.from_keras_hub(hub.models.ViTImageClassifier(backbone, num_classes=2, **options))
    ours = kt.from_keras_hub(backbone)
    with pytest.raises(ValueError, match="ViTBackbone: pooling='gap' of the classifier is not"):
        kt.to_keras_hub(kt.ImageClassifier(ours, num_classes=2, pooling="mean"))
    processor = kt.ImageProcessor(size={"shortest_edge": 9}, crop_size=8)
    with pytest.raises(ValueError, match="its image converter resizes to a height and a width, or"):
        kt.to_keras_hub(kt.ImageClassifier(ours, processor, num_classes=2))
