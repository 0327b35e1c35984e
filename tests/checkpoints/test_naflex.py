"""SigLIP 2 of images of any aspect ratio (NaFlex), against the Transformers library."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_duals import OF_PATCHES
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Smaller and larger than the grid of positions, square, wide and high.
SIZES = ((40, 60), (13, 13), (10, 90), (200, 30), (2, 2), (500, 700))


def pictures():
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (*size, 3), dtype="uint8") for size in SIZES]


def processors(count=30, **values):
    theirs = transformers.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=count, **values)
    return theirs, kt.processors.PatchCountProcessor(count, 4, **_ours(values))


def _ours(values):
    names = {"image_mean": "mean", "image_std": "std"}
    return {names.get(name, name): value for name, value in values.items()}


def inputs():
    """Images as ours takes them and as theirs."""
    theirs, ours = processors()
    return ours.arrays(pictures()), dict(theirs(pictures(), return_tensors="pt"))


@pytest.mark.backend_independent
@pytest.mark.parametrize("count", [1, 7, 30, 256])
def test_same_patches(tmp_path, count):
    values = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.3, 0.2, 0.1], "resample": 3}
    for options in ({}, values):
        theirs, processor = processors(count, **options)
        theirs.save_pretrained(tmp_path)
        assert kt.ImageProcessor.from_files(str(tmp_path)).values() == processor.values()
        expected, found = theirs(pictures(), return_tensors="np"), processor.arrays(pictures())
        real = found["patch_positions"][..., 0] >= 0
        assert np.array_equal(real, expected["pixel_attention_mask"].astype(bool))
        assert np.abs(found["patches"] - expected["pixel_values"]).max() <= 1e-5
        for positions, mask, shape in zip(
            found["patch_positions"], real, expected["spatial_shapes"], strict=True
        ):
            places = np.stack(np.indices(shape), axis=-1).reshape(-1, 2)
            assert np.array_equal(positions[mask], places)
    processor.save(str(tmp_path))
    again = transformers.Siglip2ImageProcessorPil.from_pretrained(tmp_path)
    assert np.array_equal(
        again(pictures(), return_tensors="np")["pixel_values"], expected["pixel_values"]
    )


@pytest.mark.backend_independent
def test_same_sizes():
    """Sizes of many images are found by the search that theirs has."""
    from transformers.models.siglip2.image_processing_pil_siglip2 import (
        get_image_size_for_max_num_patches as theirs,
    )

    random = np.random.default_rng(0)
    for height, width in random.integers(1, 3000, (200, 2)).tolist():
        for count, size in ((256, 16), (33, 14)):
            processor = kt.processors.PatchCountProcessor(count, size)
            assert processor._resized(height, width) == theirs(height, width, size, count)


CASES = [("siglip2_vision_model", 0), ("siglip2_vision_model", 1)]


@pytest.mark.each_backend
@pytest.mark.parametrize(("name", "number"), CASES)
def test_same_states(tmp_path, name, number):
    reference = families.make(name, number, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs = inputs()
    with torch.no_grad():
        expected = reference(**theirs)
    states, mask = backbone(ours), theirs["pixel_attention_mask"].numpy().astype(bool)
    found = to_numpy(states)
    assert np.abs(found - expected.last_hidden_state.numpy())[mask].max() <= 2e-5
    pooled = to_numpy(backbone.pool(states, padding_mask=mask))
    assert np.abs(pooled - expected.pooler_output.numpy()).max() <= 2e-5
    count = mask[2].sum()
    alone = {name: array[2:3, :count] for name, array in ours.items()}  # without padding
    assert np.abs(to_numpy(backbone(alone))[0] - found[2, :count]).max() <= 1e-5


@pytest.mark.each_backend
@pytest.mark.parametrize("number", [0, 1])
def test_same_vectors_and_similarities(tmp_path, number):
    reference = families.make("siglip2", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs = inputs()
    ids = np.random.default_rng(3).integers(3, 57, (4, 9))
    with torch.no_grad():
        expected = reference(**theirs, input_ids=torch.tensor(ids))
    vectors = backbone({**ours, "token_ids": ids})
    for name, units in (("images", expected.image_embeds), ("texts", expected.text_embeds)):
        found = to_numpy(keras.ops.normalize(vectors[name], axis=-1))
        assert np.abs(found - units.numpy()).max() <= 2e-5
    similarity = to_numpy(backbone.similarity(vectors["images"], vectors["texts"]))
    assert np.abs(similarity - expected.logits_per_image.numpy()).max() <= 1e-4


def test_same_gradients(tmp_path):
    reference = families.make("siglip2_vision_model", 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = inputs()
    mask = theirs["pixel_attention_mask"][..., None].float()
    ((reference(**theirs)[0] * mask) ** 2).mean().backward()
    weights = keras.ops.convert_to_tensor(mask.numpy())
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(ours) * weights)))
    # The states do not use the vector.
    for name, parameter in reference.named_parameters():
        if parameter.grad is None:
            assert name.startswith("head.")
            parameter.grad = torch.zeros_like(parameter)
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
@pytest.mark.parametrize("name", OF_PATCHES)
def test_export_is_the_way_back(tmp_path, name):
    reference = families.make(name, 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    kt.export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = inputs()
    ids = {"input_ids": torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10, 11]])}
    theirs = ids if name.endswith("text_model") else theirs if "_" in name else {**theirs, **ids}
    with torch.no_grad():
        difference = again.eval()(**theirs)[0] - reference(**theirs)[0]
    assert difference.abs().max() <= 1e-5
    assert_reads_back(tmp_path / "ours", backbone)


def test_classes(tmp_path):
    """Logits, which are of the mean over real patches; fit on images; both ways."""
    reference = families.make("siglip2", 0, "ForImageClassification", num_labels=4)
    processors()[0].save_pretrained(tmp_path / "theirs")
    classifier = kt.ImageClassifier.from_preset(saved(reference, tmp_path / "theirs"))
    ours, theirs = inputs()
    with torch.no_grad():
        expected = reference(**theirs)[0].numpy()
    assert np.abs(to_numpy(classifier(ours)) - expected).max() <= 1e-4
    assert np.abs(classifier.predict(pictures(), verbose=0) - expected).max() <= 1e-4
    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert np.abs(again.eval()(**theirs)[0].numpy() - expected).max() <= 1e-5
    back = kt.ImageClassifier.from_preset(tmp_path / "ours")
    assert back.processor.values() == classifier.processor.values()
    classifier.fit(pictures(), [0, 1, 2, 3, 0, 1], batch_size=4, epochs=1, verbose=0)
    label, share = classifier.classify(pictures()[0])
    assert label in classifier.label_names and 0.25 <= share <= 1
    with pytest.raises(ValueError, match="which layers of augmentation cannot change"):
        classifier.compile(augmentation=[keras.layers.RandomFlip()])


def test_an_embedder_of_images_and_texts(tmp_path):
    """Vectors of images of six sizes, training on pairs, and labels without training."""
    captions = [f"a photo of a {word}." for word in ("cat", "dog", "car", "tree", "sea", "hat")]
    tokenizer = kt.Tokenizer.train(captions * 4, vocabulary_size=300)
    reference = families.make("siglip2", 0, "Model")
    flat = load_backbone(saved(reference, tmp_path)).config
    config = flat.replace(vocabulary_size=tokenizer.vocabulary_size)
    embedder = kt.ImageEmbedder(
        kt.models.DualEncoder(config), kt.processors.PatchCountProcessor(30, 4), tokenizer
    )
    vectors = embedder.encode(pictures())
    assert vectors.shape == (6, 16)
    assert np.abs(embedder.encode(pictures()[3]) - vectors[3]).max() <= 1e-5
    embedder.fit((pictures(), captions), batch_size=3, epochs=1, verbose=0)
    label, _ = embedder.classify(pictures()[0], ["cat", "dog"])
    assert label in ("cat", "dog")
    embedder.save_to_preset(tmp_path / "preset")
    again = kt.ImageEmbedder.from_preset(tmp_path / "preset")
    assert np.abs(again.encode(pictures()) - embedder.encode(pictures())).max() <= 1e-6
    with pytest.raises(ValueError, match="`x\\[0\\]` must be an image"):
        embedder.encode([None])
    with pytest.raises(ValueError, match="give the processor that belongs to the model"):
        kt.ImageEmbedder(embedder.backbone, kt.processors.PatchCountProcessor(30, 8), tokenizer)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_patches": 24}, "num_patches=24 must be the number of places of a square grid"),
        ({"num_patches": "many"}, "num_patches must be a number"),
        ({"patch_size": [4, 8]}, "patch_size must be a number"),
        ({"num_patches": 10**12}, "`position_grid` must be"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["siglip2"].config({"vision_config": values})
    with pytest.raises(ValueError, match=message):
        FAMILIES["siglip2_vision_model"].config(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_patches": 0}, "`max_num_patches` must be"),
        ({"max_num_patches": 10**9}, "`max_num_patches` must be"),
        ({"do_resize": False}, "do_resize=False is not supported"),
    ],
)
def test_wrong_processors_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        kt.processors.PatchCountProcessor.from_values(values)
