"""Images of any size as patches, against the processor of Transformers."""

import io
import time
import zlib

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.processors import PatchSequenceProcessor, read_image
from keras_transformer.processors.image_files import image_size

pytestmark = pytest.mark.backend_independent

SIZES = (
    (40, 60), (1, 100), (100, 1), (13, 13), (300, 200), (7, 90), (500, 33), (28, 28), (29, 27),
    (56, 55), (41, 43), (2, 2),
)  # fmt: skip


def odd_images(folder):
    """Twenty images: of odd sizes, and grey, transparent, turned, of other colours and depths."""
    random = np.random.default_rng(0)
    images = [Image.fromarray(random.integers(0, 256, (*s, 3), dtype="uint8")) for s in SIZES]
    base = images[4]
    images += [base.convert(mode) for mode in ("L", "RGBA", "LA", "P", "CMYK", "1")]
    images[13].putalpha(Image.fromarray(random.integers(0, 256, (300, 200), dtype="uint8")))
    deep = random.integers(0, 2**16, (31, 47), dtype="uint16")
    images.append(Image.fromarray(deep))
    exif = Image.Exif()
    exif[0x0112] = 6
    base.save(folder / "turned.png", exif=exif)
    return [*images, folder / "turned.png"]


@pytest.mark.parametrize(("patch_size", "merge_size"), [(14, 2), (16, 2), (5, 3)])
def test_same_patches(tmp_path, patch_size, merge_size):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 2000, "longest_edge": 20000}, patch_size=patch_size,
        merge_size=merge_size,
    )  # fmt: skip
    theirs.save_pretrained(tmp_path)
    processor = kt.ImageProcessor.from_files(str(tmp_path))
    images = odd_images(tmp_path)
    assert len(images) == 20
    for image in images:
        # What is not in RGB they convert in several ways: here both get our pixels.
        expected = theirs(Image.fromarray(read_image(image)))
        patches = processor.patches(processor.pixels(image))
        shape = (len(patches.values), 2, patch_size, patch_size, 3)
        found = patches.values.reshape(shape).transpose(0, 4, 1, 2, 3).reshape(shape[0], -1)
        assert np.abs(found - expected["pixel_values"]).max() <= 1e-5
        rows, columns = (n * merge_size for n in patches.grid)
        assert [1, rows, columns] == expected["image_grid_thw"][0].tolist()
        assert processor.num_states(image) == len(patches.states) == rows * columns // merge_size**2
        assert patches.states.tolist() == list(range(len(patches.states)))


@pytest.mark.parametrize("window", [None, 4, 8])
def test_windows_hold_whole_squares(window):
    processor = PatchSequenceProcessor(64, 4096, patch_size=2, num_frames=1)
    pixels = np.arange(20 * 12 * 3, dtype="uint8").reshape(20, 12, 3)
    patches = processor.patches(pixels, window)
    rows, columns = patches.positions.T
    real = rows >= 0
    assert sorted(zip(rows[real], columns[real], strict=True)) == [*np.ndindex(10, 6)]
    normal = processor.normalized(pixels[None])[0]
    for row, column, values in zip(rows, columns, patches.values, strict=True):
        if row < 0:
            assert not values.any()
            continue
        piece = normal[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert np.array_equal(values, piece.ravel())
    corners = patches.positions[::4][patches.states]
    assert corners.tolist() == [[2 * row, 2 * column] for row, column in np.ndindex(5, 3)]
    if window is not None:
        whole = patches.positions.reshape(-1, window**2, 2)
        for each in whole:
            assert len({(row // window, column // window) for row, column in each if row >= 0}) == 1


def test_sizes_come_from_the_header():
    """A file whose pixels are missing has a size; what is too large is refused without them."""
    processor = PatchSequenceProcessor(64, 4096, patch_size=4)
    Image.new("RGB", (40, 30)).save(file := io.BytesIO(), "png")
    cut = file.getvalue()[:60]
    assert processor.num_states(cut) == processor.num_states(Image.new("RGB", (30, 40)))
    with pytest.raises(ValueError, match="Is the file whole"):
        processor.pixels(cut)
    Image.new("RGB", (9000, 7000)).save(large := io.BytesIO(), "png")
    begun = time.perf_counter()
    assert image_size(large.getvalue()) == (7000, 9000)
    assert time.perf_counter() - begun < 0.2  # decoding takes a second
    header = bytearray(file.getvalue())
    header[16:24] = (12000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueError, match=r"12,000 x 12,000 pixels; an image may have"):
        processor.num_states(bytes(header))
    with pytest.raises(ValueError, match="`x.4.`: .* more than 200 times as long as wide"):
        processor.num_states(np.zeros((1, 201), "uint8"), "x[4]")
    large = processor.pixels(np.zeros((900, 1100, 3), "uint8"))
    assert large.shape[0] * large.shape[1] <= 4096


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_pixels": 100}, "`max_pixels` must be at least `min_pixels`"),
        ({"patch_size": 0}, "`patch_size` must be"),
        ({"max_pixels": 2**30}, "`max_pixels` must be"),
        ({"max_pixels": 2**20, "patch_size": 1, "merge_size": 1}, "has 1,048,576 states"),
        ({"num_frames": 1024}, "3,082,813,440 values"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        PatchSequenceProcessor(**values)


def test_files_are_those_of_transformers(tmp_path):
    processor = PatchSequenceProcessor(64, 4096, patch_size=4, merge_size=3, num_frames=1)
    processor.save(str(tmp_path))
    again = kt.ImageProcessor.from_files(str(tmp_path))
    assert isinstance(again, PatchSequenceProcessor) and again.values() == processor.values()
    old = PatchSequenceProcessor.from_values({"min_pixels": 3136, "max_pixels": 12845056})
    assert (old.min_pixels, old.max_pixels) == (3136, 12845056)
    with pytest.raises(ValueError, match="call `patches"):
        processor([np.zeros((20, 20, 3), "uint8")])
