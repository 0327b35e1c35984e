"""Every family of images against the Transformers library: states, gradients, heads, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_images import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")

CASES = [(name, i) for name, (_, configs) in CONFIGS.items() for i in range(len(configs))]
_TEACHER = "ForImageClassificationWithTeacher"
# With a class of their own in a config of two.
TOWERS = ("clip_vision_model", "metaclip_2_vision_model", "siglip_vision_model")
_CLASSIFIERS = [name for name in CONFIGS if name not in (*TOWERS, "dinov3_vit", "yolos")]
# Models that take images of any size without being asked.
ANY_SIZE = ("dinov2", "dinov2_with_registers", "dinov3_vit")
HEADS = [*((name, "ForImageClassification") for name in _CLASSIFIERS), ("deit", _TEACHER)]


def images(reference, height=None, width=None):
    """Images, as ours takes them and as theirs."""
    config = reference.config
    sizes = config.image_size
    sizes = sizes if isinstance(sizes, (list, tuple)) else (sizes, sizes)
    shape = (3, height or sizes[0], width or sizes[1], config.num_channels)
    values = np.random.default_rng(3).normal(size=shape).astype("float32")
    return {"images": values}, torch.tensor(np.moveaxis(values, -1, 1).copy())


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def both(request, tmp_path_factory):
    reference = families.make(*request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


@pytest.mark.each_backend
def test_same_states(both):
    reference, backbone = both
    ours, theirs = images(reference)
    with torch.no_grad():
        expected = reference(theirs)
    states = backbone(ours)
    assert np.abs(to_numpy(states) - expected[0].numpy()).max() <= 2e-5
    config = backbone.config
    if config.stem.num_tokens or config.vector_pooling:
        pooled = to_numpy(backbone.pool(states))
    else:  # the mean, as classifiers take it
        pooled = to_numpy(states).mean(1)
    assert np.abs(pooled - expected.pooler_output.numpy()).max() <= 2e-5


@pytest.mark.parametrize("size", [(30, 20), (10, 45)])
def test_positions_of_other_sizes(both, size):
    reference, backbone = both
    if not isinstance(reference.config.image_size, int):
        pytest.skip("Transformers takes the positions for those of a square")
    ours, theirs = images(reference, *size)
    any_size = reference.config.model_type in ANY_SIZE
    options = {} if any_size else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        expected = reference(theirs, **options)[0].numpy()
    assert np.abs(outputs_of(backbone, ours) - expected).max() <= 2e-5


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


@pytest.mark.parametrize("model_type", CONFIGS)
def test_same_gradients(tmp_path, model_type):
    """Compare gradients of a sum of squares, read like weights, as a checkpoint of their own."""
    reference = families.make(model_type, 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = images(reference)
    (reference(theirs)[0] ** 2).mean().backward()
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.parametrize(("model_type", "suffix"), HEADS)
def test_same_logits_of_classes(tmp_path, model_type, suffix):
    """And the way back, of the processor too."""
    reference = families.make(model_type, 0, suffix, num_labels=4)
    kt.ImageProcessor(size=20, resample=3).save(tmp_path / "theirs")
    classifier = kt.ImageClassifier.from_preset(saved(reference, tmp_path / "theirs"))
    ours, theirs = images(reference)
    with torch.no_grad():
        expected = reference(theirs)[0].numpy()
    assert np.abs(to_numpy(classifier(ours)) - expected).max() <= 1e-4
    assert classifier.processor.resample == 3 and classifier.num_classes == 4

    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.architectures == [type(reference).__name__]
    with torch.no_grad():
        assert np.abs(again.eval()(theirs)[0].numpy() - expected).max() <= 1e-6
    back = kt.ImageClassifier.from_preset(tmp_path / "ours")
    assert back.processor.values() == classifier.processor.values()
    assert back.task_values() == classifier.task_values()


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": "large"}, "`image_size` of a stem must be two integers"),
        ({"image_size": [8, 8, 8]}, "must be two integers from 1 to 32,768"),
        ({"image_size": 10**9}, "must be two integers"),
        ({"patch_size": [4, 8]}, "patch_size must be a number"),
        ({"patch_size": 300}, "is too small for patch_size=300"),
        ({"num_channels": -1}, "`num_channels` must be at least 1"),
        ({"pooler_act": "relu"}, "pooler_act='relu' is not supported"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["vit"].config(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"use_relative_position_bias": True, "use_shared_relative_position_bias": True},
            "exclude each other: only one may be true",
        ),
        (
            {"use_relative_position_bias": True, "image_size": [32, 48]},
            r"image_size=\[32, 48\]: distance biases are supported only for square images",
        ),
        ({"image_size": 10**9, "use_relative_position_bias": True}, "must be two integers"),
    ],
)
def test_wrong_values_of_beit_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["beit"].config(values)


@pytest.mark.backend_independent
def test_wrong_values_of_dinov3_are_refused():
    with pytest.raises(ValueError, match="query_bias=True and value_bias=False are not supported"):
        FAMILIES["dinov3_vit"].config({"value_bias": False})
    with pytest.raises(ValueError, match="cannot express the parts of this config|attention with"):
        FAMILIES["dinov3_vit"].published_config(FAMILIES["vit"].config({}))


def test_a_classifier_of_beit_pools_as_its_backbone_does(tmp_path):
    for number, pooling in ((0, "pooler"), (1, "first")):
        reference = families.make("beit", number, "ForImageClassification", num_labels=4)
        kt.ImageProcessor(size=20).save(tmp_path / pooling)
        classifier = kt.ImageClassifier.from_preset(saved(reference, tmp_path / pooling))
        assert classifier.pooling == pooling
        ours, theirs = images(reference)
        with torch.no_grad():
            expected = reference(theirs)[0].numpy()
        assert np.abs(to_numpy(classifier(ours)) - expected).max() <= 1e-4
