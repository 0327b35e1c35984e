"""ViTDet against the Transformers library: states, gradients, other sizes, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_images import OF_MAPS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved
from tests.checkpoints.test_image_families import images

torch = pytest.importorskip("torch")

NUMBERS = range(len(OF_MAPS["vitdet"][1]))


def states_of(reference, theirs):
    """Their last map as states, row by row."""
    return reference(theirs)[0].flatten(2).mT


@pytest.fixture(scope="module", params=NUMBERS)
def both(request, tmp_path_factory):
    reference = families.make("vitdet", request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


@pytest.mark.each_backend
def test_same_states(both):
    reference, backbone = both
    ours, theirs = images(reference)
    with torch.no_grad():
        expected = states_of(reference, theirs).numpy()
    assert np.abs(to_numpy(backbone(ours)) - expected).max() <= 2e-5


@pytest.mark.each_backend
@pytest.mark.parametrize("number", [0, 2])
def test_images_of_another_size(tmp_path, number):
    """Positions are interpolated, and convolutions follow the grid of the images."""
    reference = families.make("vitdet", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs = images(reference, 30, 15)
    with torch.no_grad():
        expected = states_of(reference, theirs).numpy()
    assert np.abs(to_numpy(backbone(ours)) - expected).max() <= 2e-5


@pytest.mark.parametrize("number", [1, 2])
def test_same_gradients(tmp_path, number):
    reference = families.make("vitdet", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = images(reference)
    (reference(theirs)[0] ** 2).mean().backward()
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = images(reference)
    with torch.no_grad():
        assert (again.eval()(theirs)[0] - reference(theirs)[0]).abs().max() <= 1e-6
    assert_reads_back(tmp_path, backbone)


@pytest.mark.one_backend
def test_a_classifier_learns_on_it(both):
    """And what it begins with: convolutions that add nothing."""
    _, loaded = both
    fresh = kt.models.Encoder(loaded.config)
    behind = [block.config.bottleneck is not None for block in fresh.encoder.blocks]
    scales = [
        to_numpy(each.value)
        for each in fresh.weights
        if each.path.endswith("bottleneck/output_norm/gamma")
    ]
    assert len(scales) == sum(behind) and not any(scale.any() for scale in scales)
    stem = loaded.config.stem
    shape = (4, *stem.image_size, stem.num_channels)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    task = kt.ImageClassifier(fresh, num_classes=2)
    history = task.fit({"images": x}, np.array([0, 1, 0, 1]), epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_absolute_position_embeddings": False}, "use_absolute_position_embeddings=False"),
        ({"window_block_indices": 3}, "must be a list of whole numbers"),
        ({"pretrain_image_size": 8}, "a patch at least"),
        ({"pretrain_image_size": [224]}, "`position_size` of a stem must be two integers"),
        ({"mlp_ratio": "4"}, "mlp_ratio must be a number"),
        ({"window_size": 2**20, "window_block_indices": [0]}, "`size` must be at most"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["vitdet"].config(values)


@pytest.mark.backend_independent
def test_weights_are_those_of_transformers():
    """The size of a ViTDet-B for images of 1,024 pixels, as in the paper's table 1."""
    from transformers import VitDetConfig, VitDetModel

    values = {
        "image_size": 1024, "window_size": 14, "use_relative_position_embeddings": True,
        "window_block_indices": [0, 1, 3, 4, 6, 7, 9, 10], "residual_block_indices": [2, 5, 8, 11],
    }  # fmt: skip
    with torch.device("meta"):
        theirs = sum(each.numel() for each in VitDetModel(VitDetConfig(**values)).parameters())
    ours = variable_shapes(FAMILIES["vitdet"].config(values))
    assert sum(map(np.prod, ours.values())) == theirs
