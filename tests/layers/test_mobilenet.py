"""MobileNetV5 as a stem, against numbers of timm and against KerasHub."""

import functools
import json
import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.checkpoints.families.vision.mobilenet import network_lines, read_network
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from tests.checkpoints import mobilenet_v5

IMAGES = mobilenet_v5.pictures()


def small(**changes):
    """The encoder of a small network."""
    side = read_network({"model_args": mobilenet_v5.small_args()})
    return kt.TransformerConfig(encoder=side.replace(input=side.input.replace(**changes)))


def tensors_of(config):
    """The weights of a network by timm's names and ours: their names determine them."""
    lines = {line.ours: line for line in network_lines(config, "")}
    shapes = variable_shapes(config)
    assert lines.keys() == shapes.keys()
    theirs = {
        ours: mobilenet_v5.weights(line.theirs, line.shape(shapes[ours]))
        for ours, line in lines.items()
    }
    return {lines[n].theirs: x for n, x in theirs.items()}, {
        n: lines[n].split(x) for n, x in theirs.items()
    }


def filled(config):
    """A model with these weights, and the weights by timm's names."""
    backbone = kt.models.Encoder(config)
    theirs, ours = tensors_of(config)
    paths = {each.path.split("/", 1)[1]: each for each in backbone.variables}
    assert {path: tuple(each.shape) for path, each in paths.items()} == variable_shapes(config)
    for path, value in ours.items():
        paths[path].assign(value)
    return backbone, theirs


def states_of(backbone, images):
    return backbone.predict({"images": images}, verbose=0)


@pytest.fixture(scope="module")
def both():
    return filled(small())


@pytest.mark.each_backend
def test_states_are_those_of_timm(both):
    """Each block, stride, kernel and factor that differs is in the small network."""
    backbone, _ = both
    states = states_of(backbone, IMAGES)
    expected = np.array(json.loads(mobilenet_v5.VALUES.read_text())["states"])
    assert states.shape == (2, 4, 2048)
    assert np.abs(mobilenet_v5.sample(states) - expected).max() <= 2e-5
    alone = states_of(backbone, IMAGES[[1, 1]])  # of the same size, a compiled program
    # Its place in a batch may decide how it is rounded.
    assert np.abs(alone[0] - states[1]).max() <= 2e-5


@pytest.mark.one_backend
def test_the_class_of_the_tests_is_that_of_timm(both):
    """Other tests have it in place of timm."""
    torch = pytest.importorskip("torch")
    network = mobilenet_v5.fill(mobilenet_v5.encoder(**mobilenet_v5.small_args()))
    with torch.no_grad():
        states = network(torch.from_numpy(IMAGES).permute(0, 3, 1, 2)).flatten(2).mT.numpy()
    expected = np.array(json.loads(mobilenet_v5.VALUES.read_text())["states"])
    assert np.abs(mobilenet_v5.sample(states) - expected).max() <= 2e-5
    _, theirs = both
    assert {n: tuple(p.shape) for n, p in network.named_parameters()} == {
        name: x.shape for name, x in theirs.items()
    }


@pytest.mark.each_backend
def test_states_are_those_of_keras_hub(both):
    """With the GELU of timm: KerasHub's own network has the exact one, and other states."""
    models = pytest.importorskip("keras_hub").models
    from keras_hub.src.models.mobilenetv5.mobilenetv5_builder import convert_arch_def_to_stackwise
    from keras_hub.src.utils.timm.convert_mobilenetv5 import convert_weights

    backbone, theirs = both
    named = [
        [b.replace("_", "_r1_s1_k3_" if b.startswith("mqa") else "_r1_", 1) for b in stage]
        for stage in mobilenet_v5.SMALL
    ]
    gelu = functools.partial(keras.ops.gelu, approximate=True)
    given = convert_arch_def_to_stackwise(named)
    given["stackwise_act_layers"] = [[gelu] * len(b) for b in given["stackwise_act_layers"]]
    hub = models.MobileNetV5Backbone(
        **given, stem_size=8, msfa_output_resolution=2, act_layer=gelu, norm_layer="rms_norm",
        layer_scale_init_value=1e-5, image_shape=(64, 64, 3), data_format="channels_last",
    )  # fmt: skip

    class Loader:
        def get_tensor(self, name):
            return theirs[name]

        def port_weight(self, variable, hf_weight_key, hook_fn=None):
            value = theirs[hf_weight_key]
            variable.assign(hook_fn(value, variable.shape) if hook_fn else value)

    convert_weights(hub, Loader(), {})
    expected = hub.predict(IMAGES, verbose=0).reshape(2, 4, 2048)
    assert np.abs(states_of(backbone, IMAGES) - expected).max() <= 2e-5


@pytest.mark.each_backend
def test_images_of_other_sizes(both):
    """Any size whose map is averaged to the grid; others are refused."""
    backbone, _ = both
    images = np.repeat(np.repeat(IMAGES[:1], 2, 1), 2, 2)
    assert to_numpy(backbone({"images": images})).shape == (1, 4, 2048)
    with pytest.raises(ValueError, match="80 x 96 pixels has a map of 5 x 6 places"):
        backbone({"images": np.zeros((1, 80, 96, 3), "float32")})


@pytest.mark.each_backend
def test_gradients_reach_every_weight():
    backbone, _ = filled(small())
    task = kt.ImageClassifier(backbone, num_classes=2, pooling="mean")
    before = [to_numpy(each).copy() for each in backbone.trainable_variables]
    task.compile(keras.optimizers.SGD(1.0), task.loss)
    task.fit({"images": IMAGES}, np.array([0, 1]), batch_size=2, epochs=1, verbose=0)
    changed = [
        np.abs(to_numpy(each) - old).max() > 0
        for each, old in zip(backbone.trainable_variables, before, strict=True)
    ]
    assert all(changed)


@pytest.mark.one_backend
def test_files_and_graphs(both, tmp_path):
    """A preset, a file of Keras, and a functional model with a stem as a layer."""
    backbone, _ = both
    expected = to_numpy(backbone({"images": IMAGES}))
    backbone.save_to_preset(tmp_path / "preset")
    inputs = {"images": keras.Input((64, 64, 3), name="images")}
    model = keras.Model(inputs, backbone(inputs))
    model.save(tmp_path / "model.keras")
    for again in (
        kt.Backbone.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert np.abs(to_numpy(again({"images": IMAGES})) - expected).max() <= 1e-6


@pytest.mark.backend_independent
def test_the_published_network():
    """Its parameters are those of timm's model; its products are counted, and what it keeps."""
    config = kt.TransformerConfig(encoder=read_network({}))
    count = sum(map(math.prod, variable_shapes(config).values()))
    assert count == 294_126_912  # of timm.create_model("mobilenetv5_300m_enc")
    assert kt.TransformerConfig.from_json(config.to_json()) == config
    assert "stages" not in config.to_json()  # all defaults
    plan = kt.planning.make_plan(config, batch_size=1, length=256)
    assert plan.parameters == count
    stem = config.stem
    # The first convolution: 384 x 384 places, each of 3 x 3 x 3 x 64 products.
    assert stem.products["input_convolution/kernel"] == 384**2
    assert stem.products["input_projection/kernel"] == 48**2
    # Attention of 48 x 48 places to 24 x 24 keys in 14 blocks, and of 24 x 24 to each other in 19.
    pairs = 14 * 2 * 48**2 * 24**2 * 12 * 64 + 19 * 2 * 24**4 * 16 * 96
    assert stem.pair_products == pairs
    of_weights = {each.path: each.shape for each in kt.config.structure.input_weights(config)}
    products = sum(n * math.prod(of_weights[path]) for path, n in stem.products.items())
    flops = kt.planning.flops_per_sequence(config, 256, training=False)
    assert flops == 2 * (products + pairs)
    kept = kt.planning.make_plan(config, batch_size=2, length=256).memory.activations
    assert kept >= 2 * 4 * stem.kept_numbers > 0


STAGE = {"dim": 8, "kernel_sizes": [3], "expansions": [2]}


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stages": [STAGE]}, "2 to 8 `stages`, received 1"),
        ({"state_grid": [0, 2]}, "`state_grid` of the stem must be two integers"),
        ({"state_grid": [3, 3]}, "4 x 4 places, which cannot be averaged to a grid of 3 x 3"),
        ({"image_size": [64]}, "`image_size` of a stem must be two integers"),
        ({"stages": [STAGE, {**STAGE, "expansions": [2, 2]}]}, "a number for each block"),
        ({"stages": [STAGE, {**STAGE, "kernel_sizes": [4]}]}, "odd sizes up to 63, or 0,"),
        (
            {"stages": [STAGE, {**STAGE, "kernel_sizes": [0], "block": "edge_residual"}]},
            "odd sizes up to 63 and factors",
        ),
        ({"stages": [STAGE, {**STAGE, "kernel_sizes": [3.0]}]}, "a number for each block"),
        ({"stages": [STAGE, {**STAGE, "halving_size": 4}]}, "`halving_size` must be odd"),
        ({"stages": [STAGE, {**STAGE, "num_heads": 999}]}, "`num_heads` times `head_dim`"),
        ({"stages": [STAGE, {**STAGE, "attentions": 10**6}]}, "`attentions` must be at most"),
        ({"stages": [STAGE, {**STAGE, "attentions": 900}]}, "at most 1,024 blocks, received 1,802"),
        ({"stages": [STAGE, {**STAGE, "dim": 10**6}]}, "`dim` must be at most"),
        ({"stages": [STAGE, {**STAGE, "block": "wide"}]}, "`block` must be one of"),
    ],
)
def test_networks_that_cannot_be(values, message):
    with pytest.raises(ValueError, match=message):
        small(**values)


@pytest.mark.backend_independent
def test_no_blocks_behind_other_stems():
    side = small().encoder
    with pytest.raises(ValueError, match="`num_layers` must be at least 1, except behind"):
        side.replace(input=parts.PatchStemConfig())
    assert side.replace(num_layers=2).num_layer_groups == 1  # as any other number of them
    with pytest.raises(ValueError, match="`num_layers` must be at least 0"):
        side.replace(num_layers=-1)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architecture": "mobilenetv4_conv_small"}, "'mobilenetv4_conv_small' of the image tower"),
        ({"architecture": "mobilenetv5_base"}, "only 'mobilenetv5_300m_enc'"),
        ({"architecture": ["resnet50"]}, "of the image tower is not supported"),
        ({"hidden_size": 1024}, "hidden_size=1024"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05"),
        ({"model_args": {"channel_multiplier": 0.5}}, "has 'channel_multiplier', which is not"),
        ({"model_args": [1]}, "model_args must be an object"),
        ({"model_args": {"stem_size": 12}}, "must be multiples of 8"),
        ({"model_args": {"block_args": [{"block_type": "er"}]}}, "must be a list of stages"),
        ({"model_args": {"block_args": [[{"block_type": "er"}]]}}, "out_chs|dim|kernel_sizes"),
        ({"model_args": {"msfa_output_resolution": 5}}, "cannot be averaged"),
        ({"model_args": {"pretrained_cfg_overlay": {"input_size": [64]}}}, "three numbers"),
        ({"model_args": {"pretrained_cfg_overlay": {"url": "x"}}}, "input_size alone"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        read_network(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("stage", "place", "values"),
    [
        (0, 0, {"stride": 1}),
        (0, 1, {"noskip": True}),
        (0, 1, {"se_ratio": 0.25}),
        (1, 1, {"dw_kernel_size_mid": 3}),
        (1, 0, {"dw_kernel_size_end": 3}),
        (1, 0, {"exp_ratio": 1.5}),
        (1, 0, {"group_size": 8}),
        (2, 2, {"value_dim": 9}),
        (2, 2, {"block_type": "mha"}),
        (2, 3, {"dw_kernel_size_start": 3}),
        (3, 1, {"dw_kernel_size": 5}),
    ],
)
def test_other_blocks_are_refused(stage, place, values):
    args = mobilenet_v5.small_args()
    args["block_args"][stage][place] |= values
    with pytest.raises(ValueError, match=rf"block_args\[{stage}\] of the image tower"):
        read_network({"model_args": args})
