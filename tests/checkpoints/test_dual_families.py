"""CLIP and SigLIP against the Transformers library: vectors, similarities, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_duals import CONFIGS

torch = pytest.importorskip("torch")

CASES = [(name, i) for name, (_, configs) in CONFIGS.items() for i in range(len(configs))]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def both(request, tmp_path_factory):
    reference = families.make(*request.param, "Model")
    folder = tmp_path_factory.mktemp("theirs")
    reference.save_pretrained(folder)
    return reference, load_backbone(folder)


def data(reference):
    random = np.random.default_rng(3)
    channels = reference.config.vision_config.num_channels
    images = random.normal(size=(3, 20, 20, channels)).astype("float32")
    ids = random.integers(3, 57, (4, 9))
    ids[np.arange(4), [8, 5, 3, 6]] = 59  # where texts end
    theirs = {
        "pixel_values": torch.tensor(np.moveaxis(images, -1, 1).copy()),
        "input_ids": torch.tensor(ids),
    }
    return {"images": images, "token_ids": ids}, theirs


@pytest.mark.each_backend
def test_same_vectors_and_similarities(both):
    reference, backbone = both
    ours, theirs = data(reference)
    with torch.no_grad():
        expected = reference(**theirs)
    vectors = backbone(ours)
    for name, units in (("images", expected.image_embeds), ("texts", expected.text_embeds)):
        found = to_numpy(keras.ops.normalize(vectors[name], axis=-1))
        assert np.abs(found - units.numpy()).max() <= 2e-5
    similarity = to_numpy(backbone.similarity(vectors["images"], vectors["texts"]))
    assert similarity.shape == (3, 4)
    assert np.abs(similarity - expected.logits_per_image.numpy()).max() <= 1e-4


def test_padding_and_one_side_alone(both):
    reference, backbone = both
    ours, theirs = data(reference)
    mask = np.arange(9) <= np.array([8, 5, 3, 6])[:, None]
    with torch.no_grad():
        expected = reference(**theirs, attention_mask=torch.tensor(mask).long())
    found = backbone({"token_ids": ours["token_ids"], "padding_mask": mask})
    assert list(found) == ["texts"]
    texts = to_numpy(keras.ops.normalize(found["texts"], axis=-1))
    # What stands at a place of padding is what theirs pools for SigLIP, too.
    assert np.abs(texts - expected.text_embeds.numpy()).max() <= 2e-5
    assert list(backbone({"images": ours["images"]})) == ["images"]
    with pytest.raises(ValueError, match="'images' and 'token_ids'"):
        backbone({})


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = data(reference)
    with torch.no_grad():
        difference = again.eval()(**theirs).logits_per_image - reference(**theirs).logits_per_image
    assert difference.abs().max() <= 1e-5
    assert_reads_back(tmp_path, backbone)


@pytest.mark.one_backend
def test_presets_and_keras_files(tmp_path, both):
    reference, backbone = both
    ours, _ = data(reference)
    expected = backbone(ours)
    backbone.save_to_preset(tmp_path / "preset")
    backbone.save(tmp_path / "model.keras")
    for again in (
        kt.Backbone.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.config == backbone.config
        for name, vectors in again(ours).items():
            assert np.abs(to_numpy(vectors) - to_numpy(expected[name])).max() <= 1e-6


@pytest.mark.backend_independent
@pytest.mark.parametrize("model_type", ["clip", "siglip"])
def test_wrong_towers_are_refused(model_type):
    family = FAMILIES[model_type]
    with pytest.raises(ValueError, match="vision_config must be an object"):
        family.config({"vision_config": 3})
    with pytest.raises(ValueError, match="hidden_act='odd' is not supported"):
        family.config({"text_config": {"hidden_act": "odd"}})


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_compiled_and_in_mixed_precision(both, dtype):
    """`predict` runs a compiled program where the backend has one."""
    reference, backbone = both
    mixed = kt.models.DualEncoder(backbone.config, dtype=dtype)
    mixed.set_weights(backbone.get_weights())
    ours, _ = data(reference)
    ours = {"images": ours["images"], "token_ids": ours["token_ids"][:3].astype("int32")}
    expected, found = backbone(ours), mixed.predict(ours, verbose=0)
    bound = 2e-5 if dtype == "float32" else 0.1
    for name, vectors in expected.items():
        units = [keras.ops.normalize(keras.ops.cast(x, "float32")) for x in (vectors, found[name])]
        assert np.abs(to_numpy(units[0]) - to_numpy(units[1])).max() <= bound
