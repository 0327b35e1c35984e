"""Images of any size as rows of patches, against the processor of Transformers."""

import json

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.processors import PatchRowProcessor, read_image
from tests.processors.test_patch_sequences import odd_images

pytestmark = pytest.mark.backend_independent


@pytest.mark.parametrize(("longest", "patch_size", "merge_size"), [(100, 14, 2), (64, 16, 1)])
def test_same_pixels(tmp_path, longest, patch_size, merge_size):
    transformers = pytest.importorskip("transformers")
    square = patch_size * merge_size
    theirs = transformers.PixtralImageProcessorPil(
        size={"longest_edge": longest}, patch_size=patch_size
    )
    theirs.save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps({"spatial_merge_size": merge_size}))
    processor = kt.ImageProcessor.from_files(str(tmp_path))
    assert isinstance(processor, PatchRowProcessor) and processor.square == square
    read = 0
    for image in odd_images(tmp_path):
        # What is not in RGB they convert in several ways: here both get our pixels.
        given = Image.fromarray(read_image(image))
        try:
            expected = theirs(given, patch_size=square)  # as the processor of both parts calls it
        except ValueError:  # a side of no pixels
            with pytest.raises(ValueError, match="times as long as wide"):
                processor.num_states(image)
            continue
        height, width = expected["image_sizes"][0]
        patches = processor.patches(processor.pixels(image))
        found = np.zeros((height, width, 3), "float32")
        for values, (row, column) in zip(patches.values, patches.positions, strict=True):
            top, left = row * patch_size, column * patch_size
            found[top : top + patch_size, left : left + patch_size] = values.reshape(
                patch_size, patch_size, 3
            )
        theirs_pixels = np.moveaxis(np.asarray(expected["pixel_values"][0]), 0, -1)
        assert np.abs(found - theirs_pixels).max() <= 1e-5
        rows, columns = height // square, width // square
        (layout,) = processor.layouts([image], (0, 0))
        assert [run.tolist() for run in layout.runs] == (
            np.arange(rows * columns).reshape(rows, columns).tolist()
        )
        assert layout.text == "[IMG_BREAK]".join(["{image}"] * rows) + "[IMG_END]"
        assert processor.num_states(image) == rows * columns == len(patches.states)
        read += 1
    assert read >= 16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"longest_edge": 0}, "`longest_edge` must be"),
        ({"longest_edge": 5000}, "`longest_edge` must be"),
        ({"merge_size": 0}, "`merge_size` must be"),
        ({"longest_edge": 4096, "patch_size": 2}, "has 4,194,304 states"),
        ({"row_end": 3}, "`row_end` must be"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        PatchRowProcessor(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": {"height": 9, "width": 9}}, "`size` must hold 'longest_edge' alone"),
        ({"do_resize": False}, "do_resize be true"),
        ({"patch_size": {"height": 4, "width": 5}}, "must be a square"),
        ({"patch_size": {"height": [4], "width": [4]}}, "`patch_size` must be"),
        ({"spatial_merge_size": "2"}, "`merge_size` must be"),
    ],
)
def test_wrong_files_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor.from_values({"image_processor_type": "PixtralImageProcessor", **values})


def test_files_are_those_of_transformers(tmp_path):
    processor = PatchRowProcessor(77, patch_size=4, merge_size=3, row_end="<row>")
    processor.save(str(tmp_path))
    again = kt.ImageProcessor.from_files(str(tmp_path))
    assert isinstance(again, PatchRowProcessor)
    names = ("longest_edge", "patch_size", "merge_size", "row_end", "image_end", "std")
    assert all(getattr(again, name) == getattr(processor, name) for name in names)
    # A file of all parts, in which the outer values are those of the text's side.
    whole = {
        "image_processor": json.loads((tmp_path / "preprocessor_config.json").read_text()),
        "spatial_merge_size": 2,
        "patch_size": 5,
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    again = kt.ImageProcessor.from_files(str(tmp_path))
    assert (again.patch_size, again.merge_size, again.row_end) == (5, 2, "[IMG_BREAK]")
