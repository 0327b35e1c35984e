"""Images cut into tiles, against the processors of Transformers, on images of odd kinds."""

import contextlib
import io

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.processors.image_files import image_size, read_image

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.backend_independent

# Height and width.
SIZES = [
    (1, 40), (40, 1), (1, 1), (5, 7), (16, 16), (17, 16), (31, 64), (64, 31), (48, 48), (50, 49),
    (33, 99), (99, 33), (100, 30), (64, 64),
]  # fmt: skip


def file_of(image, kind, **options):
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def pictures():
    """Twenty images as bytes or arrays, and as their processors take them."""
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 256, (*size, 3), dtype="uint8") for size in SIZES]
    found = [(array, array) for array in arrays]
    photo = Image.fromarray(arrays[10])
    for mode in ("L", "RGBA", "CMYK"):
        image = photo.convert(mode)
        if mode == "RGBA":
            image.putalpha(Image.fromarray(arrays[10][..., 0]))
        given = file_of(image, "tiff" if mode == "CMYK" else "png")
        found.append((given, read_image(given)))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    turned = file_of(photo, "jpeg", exif=exif)
    deep = Image.fromarray(random.integers(0, 2**16, (20, 45), dtype="uint16"))
    tall = Image.fromarray(np.tile(arrays[0], (1, 20, 1)))
    for given in (turned, file_of(deep, "png"), file_of(tall, "webp", lossless=True)):
        found.append((given, read_image(given)))
    return found


IDEFICS3 = {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}}
CASES = {
    "Idefics3": IDEFICS3,
    "SmolVLM": {**IDEFICS3, "size": {"longest_edge": 20}, "resample": 3},
    "SmolVLM whole": {**IDEFICS3, "do_image_splitting": False},
    "LlavaNext": {
        "size": {"shortest_edge": 16},
        "crop_size": {"height": 16, "width": 16},
        "image_grid_pinpoints": [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]],
    },
    "LlavaOnevision": {
        "size": {"height": 16, "width": 16},
        "image_grid_pinpoints": [[16 * a, 16 * b] for a in range(1, 5) for b in range(1, 5)],
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    },
    "GotOcr2": {"size": {"height": 16, "width": 16}, "crop_to_patches": True, "max_patches": 6},
    "GotOcr2 of three": {
        "size": {"height": 16, "width": 16},
        "crop_to_patches": True,
        "min_patches": 3,
        "max_patches": 9,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_tiles_are_those_of_their_processor(name, tmp_path):
    theirs = getattr(transformers, f"{name.split()[0]}ImageProcessorPil")(**CASES[name])
    theirs.save_pretrained(tmp_path)
    ours = kt.ImageProcessor.from_files(tmp_path)
    some = pictures()
    assert len(some) == 20
    for given, upright in some:
        assert image_size(given) == upright.shape[:2]
        expected = np.asarray(theirs(Image.fromarray(upright))["pixel_values"])
        expected = np.moveaxis(expected.reshape(-1, *expected.shape[-3:]), 1, -1)
        found = ours(given)
        assert found.shape == expected.shape, upright.shape
        assert np.abs(found - expected).max() <= 1e-5
    ours.save(tmp_path)
    again = kt.ImageProcessor.from_files(tmp_path)
    assert again.values() == ours.values() and vars(again.tiling) == vars(ours.tiling)


def test_several_images_of_onevision():
    """Each is one square, filled up with a color."""
    values = CASES["LlavaOnevision"]
    theirs = transformers.LlavaOnevisionImageProcessorPil(**values)
    ours = kt.ImageProcessor.from_values(
        {"image_processor_type": "LlavaOnevisionImageProcessor", **values}
    )
    images = [Image.fromarray(upright) for _, upright in pictures()]
    expected = np.moveaxis(np.asarray(theirs([images])["pixel_values"])[:, 0], 1, -1)
    layouts = ours.layouts(images, (2, 2))
    pairs = zip(images, layouts, strict=True)
    found = [ours.tiles(image, grid=layout.grid) for image, layout in pairs]
    assert np.abs(ours.normalized(np.concatenate(found)) - expected).max() <= 1e-5


@pytest.mark.parametrize(
    "tiling",
    [
        kt.processors.Splitting(8, 32, "whole"),
        kt.processors.Resolutions(8, [[8, 16], [16, 8]]),
        kt.processors.Resolutions(8, [[8, 16]], most_tiles=9, square_color=[127] * 3),
        kt.processors.Thumbnail(8, least=2, most=5),
    ],
)
def test_files_hold_the_tiling(tiling, tmp_path):
    kt.ImageProcessor(size=8, tiling=tiling).save(tmp_path)
    again = kt.ImageProcessor.from_files(tmp_path).tiling
    assert type(again) is type(tiling) and vars(again) == vars(tiling)


def test_a_photo_of_100_megapixels():
    """Its size is read without its pixels, which are never more than a tile for each place."""
    content = file_of(Image.new("L", (10_000, 10_000), 7), "png")
    processor = kt.ImageProcessor(size=16, tiling=kt.processors.Splitting(16, 64))
    (layout,) = processor.layouts([content], (2, 2))
    assert layout.grid == (4, 4) and layout.tiles == 17
    assert processor.tiles(content, grid=layout.grid).shape == (17, 16, 16, 3)
    large = np.broadcast_to(np.uint8(0), (12_000, 12_000, 3))
    with pytest.raises(ValueError, match="image 2.*12,000 x 12,000 pixels; an image may have"):
        processor.layouts([content, large], (2, 2))


def test_a_long_image_takes_bounded_memory():
    """The square that it is filled up to would have 40 billion pixels."""
    tiling = kt.processors.Resolutions(16, [[16, 16]], most_tiles=9, square_color=[127] * 3)
    processor = kt.ImageProcessor(size=16, tiling=tiling)
    images = [np.zeros((1, 200_000, 3), "uint8"), np.zeros((16, 16, 3), "uint8")]
    grids = [layout.grid for layout in processor.layouts(images, (2, 2))]
    assert grids == [(0, 0), (0, 0)]
    tiles = processor.tiles(images[0], grid=grids[0])
    assert tiles.shape == (1, 16, 16, 3) and np.abs(tiles[0, 0].astype(int) - 127).max() <= 1


def test_a_narrow_image_keeps_a_state_when_it_is_interpolated():
    tiling = kt.processors.Resolutions(4, [[4, 400]], most_tiles=1)
    (layout,) = tiling.layouts([(4, 400)], (1, 1))
    assert layout.mixes.states.shape == (10, 4) and len(layout.states) == 1 + 10 + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kt.processors.Splitting(1, 64), "64 x 64 tiles of `side`=1"),
        (lambda: kt.processors.Resolutions(1, [[64, 64]]), "up to 1,024 tiles"),
        (lambda: kt.processors.Thumbnail(4096, most=5), "more than 67,108,864 pixels"),
    ],
)
def test_the_tiles_of_an_image_are_bounded(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("wrong", [[16], [[16, 16]], {"height": [3], "width": 3}, {}, "x", 1e999])
@pytest.mark.parametrize("name", ["LlavaNext", "LlavaOnevision", "GotOcr2"])
@pytest.mark.parametrize("key", ["size", "image_mean", "image_grid_pinpoints", "max_patches"])
def test_values_of_other_kinds_raise_nothing_else(name, key, wrong):
    values = {**CASES[name], "image_processor_type": f"{name}ImageProcessor", key: wrong}
    with contextlib.suppress(ValueError):  # some do not read this value
        kt.ImageProcessor.from_values(values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tiling": 3}, "`tiling` must be a Tiling or None"),
        ({"tiling": kt.processors.Splitting(8, 32), "size": 9}, "`size` must be that of a tile, 8"),
        ({"tiling": kt.processors.Splitting(8, 32), "size": 8, "crop_size": 8}, "`crop_size` None"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor(**options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": {"height": 3, "width": 3}}, "size must be {'longest_edge': ...}"),
        ({"max_image_size": 3}, "max_image_size must be {'longest_edge': ...}"),
        ({"do_resize": False}, "do_resize=false is not supported"),
        ({"size": {"longest_edge": 0}}, "`longest_edge` must be"),
    ],
)
def test_wrong_files_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor.from_values({"image_processor_type": "Idefics3ImageProcessor", **values})
