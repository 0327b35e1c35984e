"""VideoPrism with texts against the Transformers library: vectors, gradients, sizes, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.planning import flops_per_sequence
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")

NUMBERS = range(len(families.family_duals.OF_VIDEOS["videoprism"][1]))


def videos(reference, rows=3, frames=4, size=None):
    """Videos, as ours takes them and as theirs."""
    given = size or reference.config.vision_config.image_size
    size = given if isinstance(given, (list, tuple)) else (given, given)
    values = np.random.default_rng(3).normal(size=(rows, frames, *size, 3)).astype("float32")
    return values, torch.tensor(np.moveaxis(values, -1, 2).copy())


def compared(reference, backbone, of_videos, interpolated=False):
    """Compare the vectors of videos and of texts of several lengths."""
    ours, theirs = of_videos
    ids, mask = families.batch()
    with torch.no_grad():
        expected = reference(
            theirs, torch.tensor(ids).long(), torch.tensor(mask).long(),
            interpolate_pos_encoding=interpolated, temperature=0.01,
        )  # fmt: skip
    found = backbone({"videos": ours, "token_ids": ids, "padding_mask": mask})
    for name, vectors in (("videos", expected.video_embeds), ("texts", expected.text_embeds)):
        units = to_numpy(found[name])
        units = units / np.linalg.norm(units, axis=-1, keepdims=True)
        assert np.abs(units - vectors.numpy().reshape(units.shape)).max() <= 2e-5
    return to_numpy(backbone.similarity(found["videos"], found["texts"])), expected


@pytest.fixture(scope="module", params=NUMBERS)
def both(request, tmp_path_factory):
    reference = families.make("videoprism", request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


@pytest.mark.each_backend
def test_same_vectors_and_logits(both):
    """Theirs are probabilities: of the videos for a text, at a temperature of 0.01."""
    reference, backbone = both
    logits, expected = compared(reference, backbone, videos(reference))
    shares = np.exp(logits - logits.max(axis=0))
    shares /= shares.sum(axis=0)
    assert np.abs(shares - expected.logits_per_video.numpy()).max() <= 1e-3
    assert not any("similarity" in each.path for each in backbone.weights)


@pytest.mark.each_backend
def test_videos_of_another_size_and_length(both):
    """Positions of places are interpolated linearly, without aliasing, and those of time too."""
    reference, backbone = both
    compared(reference, backbone, videos(reference, 2, 7, (15, 20)), interpolated=True)


@pytest.mark.one_backend
def test_a_text_is_alone_as_in_a_batch(both):
    _, backbone = both
    ids, mask = families.batch()
    vectors = to_numpy(backbone({"token_ids": ids, "padding_mask": mask})["texts"])
    for row, real, vector in zip(ids, mask, vectors, strict=True):
        alone = to_numpy(backbone({"token_ids": row[real][None]})["texts"])
        np.testing.assert_allclose(alone[0], vector, atol=1e-5)


@pytest.mark.parametrize("number", NUMBERS)
def test_same_gradients(tmp_path, number):
    reference = families.make("videoprism", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = videos(reference)
    ids, mask = families.batch()
    given = reference(theirs, torch.tensor(ids).long(), torch.tensor(mask).long())
    cosines = given.video_embeds.reshape(3, -1) @ given.text_embeds.T
    torch.nn.functional.cross_entropy(100 * cosines, torch.arange(3)).backward()

    def loss():
        found = backbone({"videos": ours, "token_ids": ids, "padding_mask": mask})
        logits = backbone.similarity(found["videos"], found["texts"])
        rows = keras.ops.arange(3)
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(rows, logits, True))

    assert_gradients(_gradients(backbone, loss), reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = videos(reference)
    ids = torch.tensor(families.batch()[0]).long()
    with torch.no_grad():
        expected, found = (model(theirs, ids, torch.ones_like(ids)) for model in (reference, again))
    for name in ("video_embeds", "text_embeds"):
        assert (expected[name] - found[name]).abs().max() <= 1e-6
    assert_reads_back(tmp_path, backbone)


@pytest.mark.backend_independent
def test_a_plan_counts_the_pairs_of_an_axis():
    """Against the same model whose tubes all see each other."""
    config = FAMILIES["videoprism_vision_model"].config({"image_size": 36, "num_frames": 4})
    side, width, length = config.encoder, 768, 4 * 2 * 2
    blocks = [
        block.replace(mixer=block.mixer.replace(pattern=None), merging=None)
        for block in side.layers
    ]
    whole = config.replace(encoder=side.replace(block=blocks[0], layers=tuple(blocks)))
    found, most = (flops_per_sequence(each, length, training=False) for each in (config, whole))
    # Scores and weighted sums, of 12 layers over the 4 places of a frame and 4 over 4 frames.
    assert most - found == 2 * 2 * width * length * (16 * length - 12 * 4 - 4 * 4)
