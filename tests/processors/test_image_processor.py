"""The processor of images: its values against Transformers' classes, and invalid images."""

import base64
import io
import json
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

import keras_transformer as kt
from keras_transformer.processors.image_files import read_image

pytestmark = pytest.mark.backend_independent

PUBLISHED = ("ViT", "DeiT", "Beit", "CLIP", "Siglip", "Bit", "Blip")


def picture(height=57, width=91, seed=0, mode="RGB"):
    shape = (height, width, len(Image.new(mode, (1, 1)).getbands()))
    values = np.random.default_rng(seed).integers(0, 256, shape, "uint8")
    return Image.fromarray(values.squeeze() if shape[2] == 1 else values, mode)


def encoded(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def theirs(name, **values):
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{name}ImageProcessor")(**values)


def pixels(processor, images):
    values = processor([image.convert("RGB") for image in images])["pixel_values"]
    return np.stack([np.moveaxis(np.asarray(each), 0, -1) for each in values])


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"size": {"height": 40, "width": 31}, "do_center_crop": False},
        {"size": {"shortest_edge": 33}, "do_center_crop": True, "crop_size": 32, "resample": 2},
        {"size": {"height": 20, "width": 20}, "do_center_crop": True, "crop_size": 29},
        {"do_rescale": False, "image_mean": [9.0, 8.0, 7.0], "image_std": [2.0, 3.0, 4.0]},
        {"do_normalize": False, "rescale_factor": 1 / 128, "resample": 0},
    ],
)
def test_pixels_are_those_of_transformers(name, values, tmp_path):
    reference = theirs(name, **values)
    images = [picture(57, 91), picture(80, 33, seed=1)]
    if "shortest_edge" in reference.size and not reference.do_center_crop:
        images = images[:1]
    reference.save_pretrained(tmp_path / "theirs")
    processor = kt.ImageProcessor.from_files(tmp_path / "theirs")
    expected = pixels(reference, images)
    assert np.abs(processor(images) - expected).max() <= 1e-5 * max(1, np.abs(expected).max())

    (tmp_path / "ours").mkdir()
    processor.save(tmp_path / "ours")
    from transformers import AutoImageProcessor

    again = AutoImageProcessor.from_pretrained(tmp_path / "ours")
    assert np.abs(pixels(again, images) - expected).max() <= 1e-6
    assert kt.ImageProcessor.from_files(tmp_path / "ours").values() == processor.values()


def test_pixels_of_dinov3_are_resized_before_they_are_rounded(tmp_path):
    """Its class needs torchvision, which resizes floats by this function of PyTorch."""
    torch = pytest.importorskip("torch")
    values = {"image_processor_type": "DINOv3ViTImageProcessorFast"}
    processor = kt.ImageProcessor.from_values({**values, "size": {"height": 40, "width": 31}})
    mean, std = (torch.tensor(x)[:, None, None] for x in (processor.mean, processor.std))
    assert processor.mean[0] == 0.485
    for image in (picture(57, 91), picture(1, 33, seed=1), picture(30, 20, mode="L")):
        floats = torch.tensor(np.array(image.convert("RGB"))).permute(2, 0, 1)[None] / 255
        resized = torch.nn.functional.interpolate(
            floats, (40, 31), mode="bilinear", align_corners=False, antialias=True
        )
        expected = ((resized[0] - mean) / std).permute(1, 2, 0).numpy()
        assert np.abs(processor([image])[0] - expected).max() <= 1e-5
    processor.save(tmp_path)
    again = kt.ImageProcessor.from_files(tmp_path)
    assert again.family == "DINOv3ViT" and (again([image]) == processor([image])).all()


def test_files_of_older_releases():
    clip = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 24, "crop_size": 24}
    assert kt.ImageProcessor.from_values(clip).size == {"shortest_edge": 24}
    vit = {"feature_extractor_type": "ViTFeatureExtractor", "size": 24}
    assert kt.ImageProcessor.from_values(vit).size == {"height": 24, "width": 24}
    assert kt.ImageProcessor.from_values({}).resample == 2


def test_what_an_image_may_be(tmp_path):
    image = picture()
    image.save(tmp_path / "a.png")
    array, content = np.asarray(image), encoded(image)
    given = [
        image, array, array.astype("int64"), array / 255.0, content, {"bytes": content},
        {"bytes": None, "path": str(tmp_path / "a.png")}, str(tmp_path / "a.png"),
        tmp_path / "a.png",
    ]  # fmt: skip
    processor = kt.ImageProcessor(size=16)
    made = processor(given)
    assert made.shape == (len(given), 16, 16, 3) and made.dtype == np.float32
    assert np.abs(made - made[:1]).max() == 0
    assert (processor(np.stack([array, array])) == made[:2]).all()
    assert (processor(array) == made[:1]).all()


MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB")
MODES += ("HSV", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
FORMATS = ("PNG", "TIFF", "WEBP", "BMP", "GIF", "JPEG2000", "PPM", "TGA")


def of_mode(mode):
    """An image with values to 255 of any mode, transparent where it can be."""
    random, size = np.random.default_rng(1), (9, 7)
    if mode in ("La", "RGBa"):
        return of_mode(mode.upper()).convert(mode)
    dtypes = {"I": "int32", "F": "float32", "1": "bool", "I;16B": ">u2"}
    if mode in dtypes or mode.startswith("I;16"):
        values = random.integers(0, 2 if mode == "1" else 256, size[::-1])
        values = values.astype(dtypes.get(mode, "<u2"))
        values = np.packbits(values, axis=1) if mode == "1" else values
        return Image.frombytes(mode, size, values.tobytes())
    count = len(Image.new(mode, (1, 1)).getbands())
    image = Image.frombytes(mode, size, random.integers(0, 256, 63 * count, "uint8").tobytes())
    if mode in ("P", "PA"):
        image.putpalette(random.integers(0, 256, 768, "uint8").tobytes())
    return image


def on_white(image):
    convert = pytest.importorskip("transformers.image_transforms").convert_to_rgb
    return convert(image, return_numpy=True)


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_by_all_ways(mode, tmp_path):
    """As an object, an array, a tensor, a file, its bytes, a dict and a data URL."""
    image = of_mode(mode)
    # Transformers does not know premultiplied modes: theirs of what they are made of.
    other = {"La": "LA", "RGBa": "RGBA"}.get(mode)
    expected = on_white(image.convert(other) if other else image)
    found = read_image(image)
    assert found.dtype == np.uint8 and (found == expected).all()
    if mode in ("1", "L", "LA", "RGB", "RGBA", "F") or mode[0] == "I":  # Others need their mode.
        array = np.asarray(image)
        assert (read_image(array) == expected).all()
        if array.dtype.isnative:
            tensor = pytest.importorskip("torch").from_numpy(array.copy())
            assert (read_image(tensor) == expected).all()
            assert kt.ImageProcessor.is_one(tensor) and kt.ImageProcessor.takes(tensor)
    for format in FORMATS:
        try:
            content = encoded(image, format, **{"lossless": True} if format == "WEBP" else {})
        except (OSError, ValueError, KeyError):
            continue  # The format has no such mode.
        if format == "JPEG2000" and mode[0] == "I":
            continue  # It is not exact for them.
        path = tmp_path / f"a.{format}"
        path.write_bytes(content)
        expected = on_white(Image.open(path))
        url = "data:image/png;base64," + base64.b64encode(content).decode()
        for given in (content, path, {"bytes": content}, {"path": path}, Image.open(path), url):
            assert (read_image(given) == expected).all(), (format, given)


@pytest.mark.parametrize(
    ("mode", "value"),
    [("P", bytes(range(256))), ("P", 3), ("L", 100), ("RGB", (1, 2, 3)), ("1", 0)],
)
def test_a_transparent_colour_is_white(mode, value):
    content = encoded(of_mode(mode), transparency=value)
    assert (read_image(content) == on_white(Image.open(io.BytesIO(content)))).all()


def test_a_palette_of_transparent_colours_is_put_on_white():
    """By the object as by its file, whose palette Pillow splits in two."""
    image = of_mode("RGBA").quantize(16)
    assert image.mode == "P" and "transparency" not in image.info
    expected = on_white(image.convert("RGBA"))
    assert (on_white(Image.open(io.BytesIO(encoded(image)))) == expected).all()
    for given in (image, encoded(image)):
        assert (read_image(given) == expected).all()


def test_a_large_image_is_converted_by_strips(monkeypatch):
    monkeypatch.setattr("keras_transformer.processors.image_files._STRIP", 20)
    for mode in ("RGBA", "P", "I", "CMYK"):
        assert (read_image(of_mode(mode)) == on_white(of_mode(mode))).all()


def test_sixteen_bits():
    array = (np.arange(12).reshape(3, 4) * 5000).astype("uint16")
    for given in (encoded(Image.fromarray(array)), Image.fromarray(array), array):
        assert (read_image(given) == (array // 256)[..., None]).all()
    deep = np.stack([array] * 3, axis=2)
    assert (read_image(deep) == deep // 256).all()


def test_booleans_and_whole_floats():
    yes = np.eye(4, dtype=bool)
    assert (read_image(yes) == 255 * yes[..., None]).all()
    assert (kt.ImageProcessor(size=4)(yes)[0, ..., 0] == 2 * yes - 1).all()
    floats = np.arange(0, 255, 5.0).reshape(3, 17, 1)  # as of `keras.utils.img_to_array`
    assert (read_image(floats) == floats).all()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_orientation_of_a_camera(format, tmp_path):
    """An object of Pillow is turned as the file that it was opened from."""
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        path = tmp_path / f"{turn}.{format.lower()}"
        path.write_bytes(encoded(picture(4, 6), format, exif=exif))
        expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
        assert expected.shape == ((4, 6, 3) if turn < 5 else (6, 4, 3))
        for given in (path, path.read_bytes(), Image.open(path)):
            assert (read_image(given) == expected).all()
        opened = Image.open(path)
        before = opened.getexif().get(0x0112)
        opened.load()
        assert (read_image(opened) == expected).all() and (read_image(opened) == expected).all()
        assert opened.getexif().get(0x0112) == before or format == "TIFF"  # which Pillow turns


def test_what_is_no_file():
    with pytest.raises(ValueError, match=r"`x` is a URL, .* but nothing is fetched"):
        read_image("https://example.org/a.png")
    for url, message in (("data:image/png;base64", "no comma"), ("data:,a%20text", "cannot be")):
        with pytest.raises(ValueError, match=message):
            read_image(url)
    with pytest.raises(ValueError, match="`x` is not a data URL"):
        read_image("data:;base64,####")


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ({"size": {"shortest_edge": 224}, "crop_size": 224}, (1, 4000)),
        ({"size": {"shortest_edge": 224}}, (4000, 1)),
        ({"size": {"shortest_edge": 224}, "crop_size": 224}, (1, 60_000)),
        ({"size": None}, (4097, 4096)),
    ],
)
def test_what_resizing_makes_is_bounded(values, shape):
    content = encoded(Image.new("1", shape[::-1]))
    with pytest.raises(ValueError, match=r"`x\[0\]` has .* more than 16,777,216"):
        kt.ImageProcessor(**values)([content])


def test_long_images_within_the_bound_are_those_of_transformers():
    reference = theirs("CLIP")
    image = picture(5, 500)
    expected = pixels(reference, [image])
    processor = kt.ImageProcessor.from_values(reference.to_dict())
    assert np.abs(processor([image]) - expected).max() <= 1e-5
    assert kt.ImageProcessor(size=None, crop_size=8)([Image.new("L", (4097, 4097))]).shape[1] == 8


_MEASURED = """
import sys
from PIL import Image
from keras_transformer.processors import ImageProcessor

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

processor = ImageProcessor(size=8)
processor([Image.new("RGBA", (9, 9))])
for path in sys.argv[1:]:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak from here on
    before, done = peak(), "read"
    try:
        processor([path])
    except ValueError as error:
        done = str(error)
    print(peak() - before, done)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_small_files_of_large_images(forks, tmp_path):
    """16 kB of PNG and 500 bytes of WebP: at most what `MOST_MEMORY` says, and one strip."""
    for name, image, options in (
        ("grey.png", Image.new("1", (11_585, 11_585)), {}),  # 134 million pixels of one byte
        ("palette.png", Image.new("P", (11_585, 11_585)), {"bits": 1}),  # of five
        ("some.webp", Image.new("RGB", (5000, 5000)), {"lossless": True, "method": 0}),  # of 16
        ("more.webp", Image.new("RGB", (6000, 6000)), {"lossless": True, "method": 0}),
    ):
        image.save(tmp_path / name, **options)
        assert (tmp_path / name).stat().st_size < 20_000
    ran = forks.run("-c", _MEASURED, *sorted(tmp_path.iterdir()))
    grey, more, palette, some = (line.split(" ", 1) for line in ran.stdout.splitlines())
    assert grey[1] == some[1] == "read" and float(grey[0]) < 300 and float(some[0]) < 450
    for megabytes, message in (more, palette):
        assert float(megabytes) < 20 and "Make it smaller" in message


@pytest.mark.parametrize(
    "format", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "JPEG2000", "AVIF"]
)
def test_damaged_files(format):
    """Whatever the decoder raises, an error names the place; or it reads what is there."""
    content, random = encoded(picture(20, 30), format), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        for place in random.integers(0, min(len(content), 300), 3):
            damaged[place] = random.integers(256)
        try:
            assert read_image(bytes(damaged)).shape[2] == 3
        except ValueError as error:
            assert str(error).startswith("`x` ")


def test_formats_that_run_a_program_are_not_opened():
    content = encoded(picture(), "EPS")
    assert Image.open(io.BytesIO(content)).format == "EPS"
    with pytest.raises(ValueError, match="cannot be read as an image"):
        read_image(content)


def test_one_pixel_and_an_animation():
    processor = kt.ImageProcessor(size=8)
    assert (processor([np.full((1, 1, 3), 255, "uint8")]) == 1).all()
    frames = [Image.new("RGB", (4, 4), color) for color in ("white", "black")]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (processor([content]) == 1).all()


def bomb():
    """A file that says that it has 50,000 x 50,000 pixels."""
    content = bytearray(encoded(Image.new("1", (8, 8))))
    import zlib

    content[16:24] = (50_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (encoded(picture())[:200], "`x.1.` cannot be read as an image: .*Is the file whole"),
        (b"", "`x.1.` is not an image"),
        (
            b"a text, and no image",
            "`x.1.` cannot be read as an image: cannot identify image file. Is",
        ),
        (bomb(), "`x.1.` (is too large|has 50,000 x 50,000)"),
        (np.zeros((3, 8, 9), "uint8"), "channels come first: give `np.moveaxis"),
        (np.zeros((8, 9, 5), "uint8"), "with 1, 3 or 4 channels"),
        (np.zeros((0, 9, 3), "uint8"), "`x.1.` has no pixels"),
        (np.full((4, 4, 3), np.nan), "NaN or infinite"),
        (np.full((4, 4, 3), 7.5), "floats from 7.5 to 7.5, but an image must have 0 to 1"),
        (np.full((4, 4, 3), 300), "must hold numbers from 0 to 255"),
        (np.zeros((20_000, 20_000, 1), "uint8"), "20,000 x 20,000 pixels"),
        (None, "`x.1.` must be an image: a path, bytes"),
        (5, "`x.1.` must be an image"),
    ],
)
def test_no_image(image, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor(size=8)([picture(), image])


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`x\[0\]`: there is no file .*missing.png"):
        kt.ImageProcessor(size=8)([tmp_path / "missing.png"])
    (tmp_path / "text.png").write_text("a text")
    with pytest.raises(ValueError, match=r"`x\[0\]`, the file `.*text.png` cannot be read"):
        kt.ImageProcessor(size=8)([tmp_path / "text.png"])


def test_sizes_that_differ():
    processor = kt.ImageProcessor(size=None)
    assert processor([picture(4, 5)]).shape == (1, 4, 5, 3)
    with pytest.raises(ValueError, match="2 sizes, such as .*Give the processor a `size`"):
        processor([picture(4, 5), picture(5, 4)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 4097}, "an image may have 16,777,216 pixels"),
        ({"size": {"shortest_edge": 5000}}, "an image may have 16,777,216 pixels"),
        ({"size": 0}, "`size.'height'.` must be an integer of at least 1|from 1 to"),
        ({"size": {"width": 5}}, "`size` must be a number, .height, width., or"),
        ({"crop_size": {"shortest_edge": 5}}, "`crop_size` must be a number"),
        ({"resample": 9}, "`resample`"),
        ({"mean": None}, "`mean` and `std` go together"),
        ({"mean": [1, 2]}, "`mean` must be three numbers"),
        ({"std": [1, 0, 1]}, "`std` must be above 0"),
        ({"rescale_factor": "1"}, "`rescale_factor` must be a number"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor(**values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "must hold an object, but holds"),
        ("{", "preprocessor_config.json: "),
        ('{"image_processor_type": "OtherImageProcessor"}', "'OtherImageProcessor' are not supp"),
        ('{"do_resize": "yes"}', "`do_resize` must be"),
        ('{"size": {"height": 1e9, "width": 3}}', "size"),
    ],
)
def test_wrong_files(content, message, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor.from_files(tmp_path)


def test_a_file_of_an_image_processor_and_a_tokenizer(tmp_path):
    """As Transformers writes both since release 5, which counts before the other file."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.ViTImageProcessor(size=30, resample=3)
    kt.ImageProcessor(size=20).save(tmp_path)
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({"image_processor": theirs.to_dict(), "processor_class": "X"}))
    found = kt.ImageProcessor.from_files(tmp_path)
    assert (found.size, found.resample) == ({"height": 30, "width": 30}, 3)
    path.write_text('{"processor_class": "X"}')  # as of release 4
    assert kt.ImageProcessor.from_files(tmp_path).size["height"] == 20
    for content in ('{"image_processor": 3}', "{", '{"image_processor": {"do_resize": 1}}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"/processor_config\.json: "):
            kt.ImageProcessor.from_files(tmp_path)


def test_a_folder_by_class(tmp_path):
    hidden = (".ipynb_checkpoints/1.png", "cat/._1.PNG")
    for place in ("cat/2.jpg", "cat/1.PNG", "dog/1.webp", "dog/notes.txt", "loose.png", *hidden):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(encoded(picture()))
    images, labels = kt.processors.image_folder(tmp_path)
    assert labels == ["cat", "cat", "dog"]
    assert [path.removeprefix(f"{tmp_path}/") for path in images] == [
        "cat/1.PNG", "cat/2.jpg", "dog/1.webp",
    ]  # fmt: skip
    drawn = [kt.processors.image_folder(tmp_path, seed) for seed in (0, *range(9))]
    pairs = [list(zip(*found, strict=True)) for found in drawn]
    assert all(sorted(found) == list(zip(images, labels, strict=True)) for found in pairs)
    assert pairs[0] == pairs[1] and len(set(map(tuple, pairs))) > 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no images: it must have a subfolder for each class"):
        kt.processors.image_folder(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        kt.processors.image_folder(tmp_path / "none")


def test_values_are_plain_json(tmp_path):
    processor = kt.ImageProcessor(size=(8, 9), crop_size=8)
    processor.save(tmp_path)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text()) == processor.values()
    assert kt.ImageProcessor.unpacked(processor.packed()).values() == processor.values()


def test_the_file_of_all_parts(tmp_path):
    """Read the file that Transformers 5 writes for models that have a tokenizer too."""
    processor = kt.ImageProcessor(size=8, family="CLIP")
    whole = {"processor_class": "CLIPProcessor", "image_processor": processor.values()}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert kt.ImageProcessor.from_files(tmp_path).values() == processor.values()
    kt.ImageProcessor(size=9).save(tmp_path)  # the older file counts where the other has no part
    (tmp_path / "processor_config.json").write_text('{"processor_class": "CLIPProcessor"}')
    assert kt.ImageProcessor.from_files(tmp_path).size == {"height": 9, "width": 9}
    for content, message in (
        ('{"image_processor": 3}', "'image_processor' must be an object"),
        ("[]", "processor_config.json: it must hold an object"),
    ):
        (tmp_path / "processor_config.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            kt.ImageProcessor.from_files(tmp_path)
