"""Images with a budget of states, against the processor of Transformers."""

import json

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.processors import SoftTokenProcessor, read_image
from tests.processors.test_patch_sequences import odd_images

pytestmark = pytest.mark.backend_independent


@pytest.mark.parametrize(
    ("budget", "patch_size", "merge_size", "values"),
    [
        (70, 4, 3, {}),
        (140, 3, 2, {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3}),
        (280, 2, 1, {"do_rescale": False, "resample": 2}),
    ],
)
def test_same_patches(tmp_path, budget, patch_size, merge_size, values):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Gemma4ImageProcessorPil(
        max_soft_tokens=budget, patch_size=patch_size, pooling_kernel_size=merge_size, **values
    )
    theirs.save_pretrained(tmp_path)
    processor = kt.ImageProcessor.from_files(str(tmp_path))
    assert isinstance(processor, SoftTokenProcessor)
    read = 0
    for image in odd_images(tmp_path):
        # What is not in RGB they convert in several ways: here both get our pixels.
        given = Image.fromarray(read_image(image))
        expected = theirs(given)
        patches = processor.patches(processor.pixels(image))
        positions = expected["image_position_ids"][0]
        real = positions[:, 0] >= 0
        # Theirs are row by row, and name the column first.
        order = np.lexsort(patches.positions.T[::-1])
        assert np.array_equal(patches.positions[order][:, ::-1], positions[real])
        pixels = 2 * (expected["pixel_values"][0][real] - 0.5)  # as their model does
        bound = 1e-5 * max(1.0, np.abs(pixels).max())
        assert np.abs(patches.values[order] - pixels).max() <= bound
        count = expected["num_soft_tokens_per_image"][0]
        assert processor.num_states(image) == count == len(patches.states) <= budget
        corners = patches.positions[:: merge_size**2]
        assert np.array_equal(corners % merge_size, np.zeros_like(corners))
        read += 1
    assert read == 20


def test_files_are_those_of_transformers(tmp_path):
    processor = SoftTokenProcessor(140, patch_size=4, merge_size=2, mean=[0.7, 0.5, 0.5])
    processor.save(str(tmp_path))
    again = kt.ImageProcessor.from_files(str(tmp_path))
    assert again.values() == processor.values() and np.allclose(again.mean, processor.mean)
    plain = SoftTokenProcessor().values()
    assert not plain["do_normalize"] and plain["max_soft_tokens"] == 280
    # A file of all parts, as published.
    whole = {"image_processor": json.loads((tmp_path / "preprocessor_config.json").read_text())}
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert kt.ImageProcessor.from_files(str(tmp_path)).values() == processor.values()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_soft_tokens": 0}, "`max_soft_tokens` must be"),
        ({"max_soft_tokens": 2**17}, "`max_soft_tokens` must be"),
        ({"merge_size": 0}, "`merge_size` must be"),
        ({"max_soft_tokens": 2**16, "patch_size": 64}, "`max_pixels` must be"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        SoftTokenProcessor(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_resize": False}, "do_resize=False is not supported"),
        ({"image_std": [0.0] * 3, "do_normalize": True}, "`std` must be above 0"),
        ({"image_mean": [0.0] * 2, "do_normalize": True}, "`mean` must be three numbers"),
        ({"pooling_kernel_size": "3"}, "`merge_size` must be"),
    ],
)
def test_wrong_files_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor.from_values({"image_processor_type": "Gemma4ImageProcessor", **values})


def test_an_image_that_fits_no_square():
    processor = SoftTokenProcessor(1, patch_size=4, merge_size=2)
    assert processor.resized(np.zeros((50, 50), "uint8")) == (8, 8)
    assert processor.resized(np.zeros((1, 900), "uint8")) == (8, 8)
    assert SoftTokenProcessor(6, 4, 2).resized(np.zeros((900, 1), "uint8")) == (48, 8)
