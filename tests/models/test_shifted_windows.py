"""Encoders whose attention is within windows of a grid, shifted in every second layer (Swin)."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from tests.tasks.test_dense_images import scenes

SWIN = {
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 3,
    "image_size": [16, 24],
    "patch_size": 2,
}


def config(family="swin", **values):
    return FAMILIES[family].config(SWIN | values)


@pytest.mark.parametrize("family", ["swin", "swinv2"])
def test_layers_are_as_the_config_says(family):
    """And products are counted in windows: one multiplication and one addition for each weight."""
    made = config(family)
    assert made.encoder.grids() == ((8, 12), (8, 12), (4, 6))
    assert kt.TransformerConfig.from_json(made.to_json()) == made
    shapes = variable_shapes(made)
    assert shapes["encoder/layer_2/merging/projection/kernel"] == (4 * 8, 16)
    attention = "encoder/layer_1/self_attention/"
    if family == "swin":
        assert shapes[f"{attention}relative/embeddings"] == (25, 2)
    else:
        assert shapes[f"{attention}relative/hidden/kernel"] == (2, 512)
        assert shapes[f"{attention}relative/output/kernel"] == (512, 2)
        assert shapes[f"{attention}score/log_strength"] == (2,)
    backbone = kt.models.Encoder(made)
    paths = {v.path.removeprefix("encoder/"): tuple(v.shape) for v in backbone.weights}
    assert paths == shapes
    plan = kt.planning.make_plan(made, batch_size=2, length=96)
    assert backbone.count_params() == plan.parameters

    total = 96 * 2 * 2 * 3 * 8 + 24 * 32 * 16  # the stem and the merging
    for states, width in ((96, 8), (96, 8), (24, 16)):
        total += states * (12 * width**2 + 2 * 9 * width)
    assert kt.planning.flops_per_sequence(made, 96, training=False) == 2 * total


@pytest.mark.backend_independent
def test_windows_of_swinv2_are_clipped_to_the_rows_of_a_stage():
    """Those are not shifted; all others are, whatever the image of a call."""
    made = config("swinv2", depths=[2, 2], window_size=5, pretrained_window_sizes=[8, 0, 0])
    mixers = [block.mixer for block in made.encoder.layers]
    assert [(m.pattern.size, m.pattern.shift) for m in mixers] == [(5, 0), (5, 2), (4, 0), (4, 0)]
    assert [m.score_bias.trained_size for m in mixers] == [8, 8, None, None]
    assert mixers[1].pattern.shift_of((3, 20)) == 2
    assert mixers[1].pattern.replace(always_shifted=False).shift_of((3, 20)) == 0
    published = FAMILIES["swinv2"].published_config(made)
    assert published["window_size"] == 5 and published["pretrained_window_sizes"] == [8, 0]
    assert FAMILIES["swinv2"].config(published) == made


@pytest.mark.one_backend
def test_stored_distances_are_those_of_the_config(tmp_path):
    """Older releases of Transformers stored them; windows of the second stage are smaller."""
    pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    from tests.checkpoints import families

    reference = families.make("swinv2", 0, "Model")
    reference.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    names = ("relative_coords_table", "relative_position_index")
    stored = {n: b for n, b in reference.named_buffers() if n.endswith(names)}
    assert len({buffer.shape for buffer in stored.values()}) == 4
    stored = {name: buffer.clone() for name, buffer in stored.items()}
    save_file({**tensors, **stored}, path, {"format": "pt"})
    kt.Backbone.from_preset(tmp_path)
    for changed in list(stored)[:2]:
        wrong = {**tensors, **stored, changed: stored[changed] + 1}
        save_file(wrong, path, {"format": "pt"})
        with pytest.raises(ValueError, match="but its values differ"):
            kt.Backbone.from_preset(tmp_path)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="watches PyTorch's operations")
def test_no_tensor_has_all_pairs_of_patches():
    """The largest tensors of 1,024 patches are scores in windows, or inner features."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            sizes = [x.numel() for x in tree_leaves(found) if hasattr(x, "numel")]
            largest = max([largest, *sizes])
            return found

    backbone = kt.models.Encoder(config(window_size=4, image_size=64))
    with Watching():
        states = backbone({"images": np.ones((2, 64, 64, 3), "float32")})
        states.square().mean().backward()
    assert largest <= 2 * 1024 * max(2 * 4**2, 4 * 8)
    assert all(v.value.grad is not None for v in backbone.trainable_variables)


@pytest.mark.one_backend
def test_a_grid_smaller_than_the_windows_is_padded(tmp_path):
    """As by Transformers if it is told to keep its windows, which it does not shift there."""
    torch = pytest.importorskip("torch")
    from tests.checkpoints import families

    sizes = {"window_size": 7, "depths": [1, 1], "image_size": 20}
    reference = families.make("swin", 0, "Model", **sizes)
    reference.save_pretrained(tmp_path)
    backbone = kt.Backbone.from_preset(tmp_path)
    images = np.random.default_rng(0).normal(size=(2, 20, 12, 3)).astype("float32")
    with torch.no_grad():
        patches, grid = reference.embeddings(torch.tensor(np.moveaxis(images, -1, 1).copy()))
        expected = reference.encoder(patches, grid, always_partition=True).last_hidden_state
        expected = reference.layernorm(expected).numpy()
    assert np.abs(to_numpy(backbone({"images": images})) - expected).max() <= 2e-5
    shifted = parts.GridWindows(size=7, shift=3)
    assert [shifted.shift_of(grid) for grid in ((10, 6), (7, 20), (8, 8))] == [0, 0, 3]


@pytest.mark.each_backend
def test_a_classifier_learns():
    images, masks = scenes(8, (16, 24))
    left = [int(mask[:, :6].any()) for mask in masks]
    keras.utils.set_random_seed(1)
    processor = kt.ImageProcessor(size=(16, 24))
    task = kt.ImageClassifier(kt.models.Encoder(config()), processor, num_classes=2)
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit(images, left, epochs=4, batch_size=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] and task.pooling == "mean"


@pytest.mark.one_backend
def test_dense_tasks_read_its_stages():
    images, masks = scenes(2, (16, 24))
    backbone, processor = kt.models.Encoder(config()), kt.ImageProcessor(size=(16, 24))
    segmenter = kt.ImageSegmenter(backbone, processor, num_classes=2, decoder={"features": 8})
    segmenter.fit(images, masks, batch_size=2, verbose=0)
    assert segmenter.segment(images[0]).classes.shape == masks[0].shape


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parts.GridWindows(size=3, shift=3), "`shift` must be less than size=3"),
        (lambda: parts.GridWindows(size=3, rows=4), "Give `rows` and `columns`, or neither"),
        (
            lambda: parts.Attention(num_heads=1, score_bias=parts.WindowBias()),
            "windows for `WindowBias`",
        ),
        (
            lambda: parts.Attention(
                num_heads=1,
                score_bias=parts.DecomposedBias(rows=4, columns=4),
                pattern=parts.GridWindows(size=2, shift=1, rows=4, columns=4),
            ),
            "no shift for `DecomposedBias`",
        ),
        (
            lambda: parts.PatchStemConfig(whole_patches=True, stride=8),
            "`whole_patches` needs patches that do not overlap",
        ),
        (
            lambda: parts.Attention(
                num_heads=1, score="scaled_cosine", pattern=parts.GridWindows(size=2)
            ),
            "with key_bias=False, 'scaled_cosine'",
        ),
        (
            lambda: parts.Attention(num_heads=1, score_bias=parts.ContinuousWindowBias()),
            "windows for `WindowBias`",
        ),
        (lambda: parts.ContinuousWindowBias(trained_size=1), "`trained_size` must be at least 2"),
        (
            lambda: parts.ConcatenatedMerging(hidden_dim=8, norm_place="around"),
            "`norm_place` must be one of",
        ),
        (
            lambda: config("swinv2", pretrained_window_sizes=[1, 0]),
            "pretrained_window_sizes must be 2 numbers, 0 or at least 2",
        ),
        (lambda: config("swinv2", pretrained_window_sizes=[0]), "must be 2 numbers"),
        (lambda: config("swinv2", pretrained_window_sizes=8), "must be a list of whole numbers"),
        (lambda: config("swinv2", image_size=[2, 24]), "is too small for 2 stages of patches of 2"),
        (lambda: config("swinv2", image_size="large"), "`image_size` of a stem must be two"),
        (
            lambda: FAMILIES["swin"].published_config(config("swinv2")),
            "A swin checkpoint cannot express",
        ),
        (
            lambda: FAMILIES["swinv2"].published_config(config()),
            "A swinv2 checkpoint cannot express",
        ),
        (lambda: config("swinv2", window_size=0), "`size` must be at least 1"),
        (lambda: config("swinv2", num_heads=[3, 4]), "divisible by `num_heads`"),
        (lambda: config(depths=[2, 0]), "depths must be 1 to 12 numbers"),
        (lambda: config(depths="2, 2"), "depths must be a list of whole numbers"),
        (lambda: config(depths=[10**6, 1]), "depths must sum to at most"),
        (lambda: config(num_heads=[2]), "num_heads must be 2 numbers"),
        (lambda: config(num_heads=[3, 4]), "divisible by `num_heads`"),
        (lambda: config(window_size=0), "`size` must be at least 1"),
        (lambda: config(layer_norm_eps=1e-3), "layer_norm_eps=0.001 is not supported"),
        (lambda: config(use_absolute_embeddings=True), "use_absolute_embeddings=True"),
        (lambda: config(hidden_act="snake"), "hidden_act='snake' is not supported"),
    ],
)
def test_wrong_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_it_is_not_explained():
    """Its attention has no weights of all pairs, which an explanation shows."""
    task = kt.ImageClassifier(kt.models.Encoder(config()), num_classes=2)
    with pytest.raises(ValueError, match="cannot be explained with this backbone: the attention"):
        task.explain({"images": np.zeros((1, 16, 24, 3), "float32")})
