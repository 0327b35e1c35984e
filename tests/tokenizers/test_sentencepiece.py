"""SentencePiece's files, read without its library: the same segmentation, and broken files."""

import itertools
import random
import struct
from pathlib import Path

import pytest
from tokenizers import normalizers

from keras_transformer.tokenizers.sentencepiece import Segmenter, read_sentencepiece
from keras_transformer.tokenizers.sentencepiece_file import Charsmap, parse_sentencepiece
from tests.tokenizers.nasty import NASTY, SENTENCES

sentencepiece = pytest.importorskip("sentencepiece")
pytestmark = pytest.mark.backend_independent

OPTIONS = {
    "usual": {},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "case folding": {"normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": False},
    "user defined": {"user_defined_symbols": ["(", ")", "–", "the", "<x>"]},
    "bytes": {"byte_fallback": True, "character_coverage": 0.98},
    "bpe": {"model_type": "bpe", "vocab_size": 300},
    "bpe bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 400},
}
# Where the backend alone differs: it takes these for what they are written as.
CONTROL = ("<s>", "</s>", "<unk>", "<0x")
TEXTS = [
    *SENTENCES,
    *NASTY,
    *(f"{mark}a{mark} {mark}b e{mark}" for mark in "\u0301\u0323\u200d\ufe0f\u2581\x00\x85\u00a8"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pieces")
    paths = {}
    for name, options in OPTIONS.items():
        paths[name] = folder / f"{name}.model"
        with open(paths[name], "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(SENTENCES),
                model_writer=file,
                **{"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 2} | options,
            )
    return paths


@pytest.mark.parametrize("name", OPTIONS)
def test_pieces_equal_the_library(name, files):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(files[name]))
    ours = Segmenter(parse_sentencepiece(files[name]))(TEXTS)
    assert ours == theirs.encode(TEXTS, out_type=str)


@pytest.mark.parametrize("name", OPTIONS)
def test_ids_equal_the_library(name, files):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(files[name]))
    ours = read_sentencepiece(files[name])
    texts = [text for text in TEXTS if not any(part in text for part in CONTROL)]
    rules = parse_sentencepiece(files[name]).charsmap
    if rules:  # its normalizer differs for some sequences of combining characters
        normalize, exact = normalizers.Precompiled(rules).normalize_str, Charsmap(rules).normalize
        texts = [text for text in texts if normalize(text) == exact(text)]
        assert len(texts) > 110
    encodings = ours.encode_batch(texts, add_special_tokens=False)
    assert [encoding.ids for encoding in encodings] == theirs.encode(texts)
    assert ours.get_vocab_size() == theirs.get_piece_size()
    ids = theirs.encode(SENTENCES)
    assert ours.decode_batch(ids) == theirs.decode(ids)
    assert ours.encode("a</s>").ids[-1] == theirs.eos_id()


def test_charsmap_equals_the_library(files):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(files["usual"]))
    charsmap = Charsmap(parse_sentencepiece(files["usual"]).charsmap)
    # Every character of the first planes, and pairs that compose.
    characters = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    texts = ["x".join(characters[i : i + 256]) for i in range(0, len(characters), 256)]
    marks = "\u0300\u0301\u0308\u0323\u0327\u3099\u309a\u1161\u11ab"
    texts += ["x".join(base + mark for mark in marks) for base in "aeioAuñçがカ한\u1112"]
    for text in texts:
        # The library strips and joins spaces too, and puts one before the text.
        normalized = " ".join(charsmap.normalize(text).split(" "))
        normalized = " ".join(part for part in normalized.split(" ") if part)
        assert normalized.replace(" ", "▁") == theirs.normalize(text).removeprefix("▁")


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def piece(text: bytes, score: float = -1.0, type: int = 1) -> bytes:
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + field(3, type))


UNKNOWN = piece(b"<unk>", 0.0, 2)
BROKEN = {
    "empty": (b"", "no pieces"),
    "text": (b"IQ== 0\nIg== 1\n", "not a usable"),
    "no unknown piece": (piece(b"a") + field(2, b"\xc0\x02\x05"), "unknown piece has the id 5"),
    "twice": (UNKNOWN + piece(b"a") + piece(b"a"), "twice"),
    "empty piece": (UNKNOWN + piece(b""), "is empty"),
    "long piece": (UNKNOWN + piece(b"a" * 10_000), "longer than"),
    "not finite": (UNKNOWN + piece(b"a", float("nan")), "not a finite number"),
    "not UTF-8": (UNKNOWN + piece(b"\xff"), "utf-8"),
    "of words": (UNKNOWN + field(2, field(3, 3)), "neither a unigram"),
    "no bytes": (UNKNOWN + field(2, b"\x98\x02\x01"), "lacks the piece <0x00>"),
    "a number for a piece": (field(1, 5), "unexpected type"),
    "endless number": (b"\x08" + b"\xff" * 20, "truncated or invalid"),
    "beyond its end": (b"\x0a\xff\xff\xff\xff\x07", "truncated or invalid"),
    "groups": (b"\x0b\x0c", "truncated or invalid"),
    "no rules": (UNKNOWN + field(3, field(2, b"\x00\x00")), "rules are truncated"),
    "wild rules": (UNKNOWN + field(3, field(2, b"\4\0\0\0\xff\xff\xff\x7f")), "out of their"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name, tmp_path):
    data, message = BROKEN[name]
    path = tmp_path / "broken.model"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"(?s)broken.model'(?=.*{message})"):
        read_sentencepiece(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read_sentencepiece(tmp_path / "absent.model")


def test_a_small_file_by_hand(tmp_path):
    pieces = [(b"\xe2\x96\x81", -3.0), (b"a", -1.0), (b"b", -1.5), (b"ab", -2.0)]
    data = UNKNOWN + b"".join(piece(text, score) for text, score in pieces)
    (tmp_path / "small.model").write_bytes(data)
    # "ab" at -2 beats "a" and "b" at -2.5; "c" is unknown.
    assert read_sentencepiece(tmp_path / "small.model").encode("ab  ac ").ids == [1, 4, 1, 2, 0]


def test_damaged_files_load_or_are_refused(files, tmp_path):
    """The bytes that say most: everything but most of the pieces and rules."""
    chance = random.Random(0)
    path = tmp_path / "damaged.model"
    loaded = 0
    for name, _ in itertools.product(("usual", "bpe bytes"), range(150)):
        data = bytearray(files[name].read_bytes())
        kind = chance.randrange(3)
        if kind == 0:
            del data[chance.randrange(len(data)) :]
        else:
            places = (0, len(data)) if kind == 1 else (len(data) - 800, len(data))
            for _ in range(chance.randrange(1, 20)):
                data[chance.randrange(*places)] = chance.randrange(256)
        path.write_bytes(data)
        try:
            backend = read_sentencepiece(path)
        except ValueError as error:
            assert "damaged.model" in str(error)
            continue
        loaded += 1
        # What is accepted works, also where the rules were damaged: no panic.
        backend.encode_batch(TEXTS)
        Segmenter(parse_sentencepiece(path))(TEXTS)
    assert loaded < 300
