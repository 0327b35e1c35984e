"""Every family of videos against the Transformers library: states, gradients, heads, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_videos import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")

CASES = [(name, i) for name, (_, configs) in CONFIGS.items() for i in range(len(configs))]


def videos(reference):
    """Videos, as ours takes them and as theirs."""
    config = reference.config
    size = config.image_size
    size = size if isinstance(size, (list, tuple)) else (size, size)
    shape = (3, config.num_frames, *size, config.num_channels)
    values = np.random.default_rng(3).normal(size=shape).astype("float32")
    return {"videos": values}, torch.tensor(np.moveaxis(values, -1, 2).copy())


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def both(request, tmp_path_factory):
    reference = families.make(*request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


@pytest.mark.each_backend
def test_same_states(both):
    reference, backbone = both
    ours, theirs = videos(reference)
    with torch.no_grad():
        expected = reference(theirs)
    states = backbone(ours)
    assert np.abs(to_numpy(states) - expected[0].numpy()).max() <= 2e-5
    if backbone.config.pooler:
        pooled = to_numpy(backbone.pool(states))
        assert np.abs(pooled - expected.pooler_output.numpy()).max() <= 2e-5


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = videos(reference)
    with torch.no_grad():
        assert (again.eval()(theirs)[0] - reference(theirs)[0]).abs().max() <= 1e-6
    assert_reads_back(tmp_path, backbone)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_same_gradients(tmp_path, model_type):
    reference = families.make(model_type, 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = videos(reference)
    (reference(theirs)[0] ** 2).mean().backward()
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours))))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.parametrize(("model_type", "number"), CASES)
def test_same_logits_of_classes(tmp_path, model_type, number):
    """And the way back, of the processor too."""
    reference = families.make(model_type, number, "ForVideoClassification", num_labels=4)
    family = CONFIGS[model_type][0]
    family = family.removesuffix("Vision")
    normal = {"mean": None, "std": None} if family == "VideoPrism" else {}
    kt.VideoProcessor(20, 16, resample=3, family=family, **normal).save(tmp_path / "theirs")
    classifier = kt.VideoClassifier.from_preset(saved(reference, tmp_path / "theirs"))
    ours, theirs = videos(reference)
    with torch.no_grad():
        expected = reference(theirs)[0].numpy()
    of_rows = expected.reshape(3, 4)  # VideoPrism's have an axis of its one query
    assert np.abs(to_numpy(classifier(ours)) - of_rows).max() <= 1e-4
    assert classifier.processor.frames.resample == 3 and classifier.num_classes == 4

    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.architectures == [type(reference).__name__]
    with torch.no_grad():
        assert np.abs(again.eval()(theirs)[0].numpy() - expected).max() <= 1e-6
    back = kt.VideoClassifier.from_preset(tmp_path / "ours")
    assert back.processor.values() == classifier.processor.values()
    assert back.task_values() == classifier.task_values()


@pytest.mark.one_backend
def test_a_model_of_masked_training(tmp_path):
    """Its decoder is left out."""
    reference = families.make("videomae", 1, "ForPreTraining")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs = videos(reference)
    with torch.no_grad():
        expected = reference.videomae(theirs)[0].numpy()
    assert np.abs(to_numpy(backbone(ours)) - expected).max() <= 2e-5


@pytest.mark.one_backend
def test_another_pooling_is_not_published(tmp_path):
    reference = families.make("videomae", 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    classifier = kt.VideoClassifier(backbone, num_classes=2, pooling="first")
    with pytest.raises(ValueError, match="pooling='first'"):
        kt.export_to_huggingface(classifier, tmp_path / "ours", family="videomae")


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("vivit", {"tubelet_size": 2}, "tubelet_size must be three numbers"),
        ("vivit", {"tubelet_size": [2, 16, 8]}, "of which the last two are the same"),
        ("vivit", {"pooler_output_size": 5}, "pooler_output_size=5 must be hidden_size"),
        ("vivit", {"num_frames": 1}, "1 frames of 224 x 224 are too few"),
        ("videomae", {"image_size": 10**9}, "`frame_size` of a stem must be two integers"),
        ("videomae", {"patch_size": [4, 8]}, "patch_size must be a number"),
        ("videomae", {"tubelet_size": 0}, "`tube_frames` must be at least 1"),
        ("videomae", {"patch_size": 300}, "too small for tubes of 2 frames of 300 x 300"),
        ("videoprism_vision_model", {"tubelet_size": [1, 4, 2]}, "the last two are the same"),
        ("videoprism_vision_model", {"tubelet_size": [2, 4, 4]}, "three numbers, 1 frame"),
        ("videoprism_vision_model", {"num_temporal_layers": 0}, "must be at least 1"),
        ("videoprism_vision_model", {"num_spatial_layers": 10**9}, "sum at most 10,000"),
        (
            "videoprism_vision_model",
            {"intermediate_size": 50, "architectures": ["VideoPrismForVideoClassification"]},
            "intermediate_size=50 must be a multiple of num_attention_heads=12",
        ),
        ("videoprism", {"vision_config": {"apply_l2norm": False}}, "apply_l2norm=False is not"),
        ("videoprism", {"vision_config": {"num_auxiliary_layers": -1}}, "at least 0"),
    ],
)
def test_wrong_values_are_refused(model_type, values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[model_type].config(values)


@pytest.mark.backend_independent
def test_older_configs_have_another_name_of_the_biases():
    assert not FAMILIES["videomae"].config({"qkv_bias": False}).attention_bias
    assert FAMILIES["videomae"].config({"qkv_bias": True}).attention_bias
