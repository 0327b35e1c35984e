"""Tokenizer files that ask for too much work: an error that names the file, before the work."""

import base64
import copy
import gzip
import json
import os
import random
import struct

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from keras_transformer.data.record_files import _MAX_LINE, FileSource
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers import backend as bounds
from keras_transformer.tokenizers.backend import InvalidTokenizer, refusing
from tests.tokenizers.piece_folders import marian

pytestmark = pytest.mark.backend_independent

WORDS = {"[UNK]": 0, "a": 1, "b": 2, "[CLS]": 3, "[SEP]": 4}


def base():
    """A healthy file."""
    backend = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return json.loads(backend.to_str())


def load(folder, values):
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return Tokenizer.from_files(folder)


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(name, steps):
    return {"type": "Sequence", name: steps}


def template(single=("A",), ids=(3,), type_id=0):
    pieces = [
        {"Sequence": {"id": name, "type_id": type_id}}
        if name in "AB"
        else {"SpecialToken": {"id": name, "type_id": 0}}
        for name in single
    ]
    token = {"id": "[CLS]", "ids": list(ids), "tokens": ["[CLS]"] * len(ids)}
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": pair,
        "special_tokens": {"[CLS]": token},
    }


def charsmap(replacement, size=None):
    """Rules that replace `a`, in the form of SentencePiece."""
    units = [0] * 512
    units[0] = 1 << 10  # the root; its children are at 1 ^ byte
    units[1 ^ 97] = 97 | 1 << 8 | (1 ^ 97 ^ 256) << 10
    units[256] = 1 << 31
    data = struct.pack("<I", 4 * len(units) if size is None else size)
    data += struct.pack(f"<{len(units)}I", *units) + replacement.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
PIECE = {"type": "WordPiece", "vocab": WORDS, "unk_token": "[UNK]"}
PIECE |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
TEN = [replace("a", "a" * 10)] * 12
PADDING = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[UNK]"}
HOSTILE = {
    "normalizers": (
        {"normalizer": sequence("normalizers", TEN)},
        "one character into 1,000,000,000,000",
    ),
    "a ring": (
        {"normalizer": sequence("normalizers", [replace("a", "bb"), replace("b", "aa")] * 20)},
        "one character into 1,099,511,627,776",
    ),
    "patterns": (
        {"normalizer": sequence("normalizers", [replace(".", "aaaa", "Regex")] * 20)},
        "can turn one character into",
    ),
    "nothing": ({"normalizer": replace("", "a" * 900)}, "one character into 901"),
    "unicode": (
        {"normalizer": sequence("normalizers", [replace("a", "\ufdfa" * 30), {"type": "NFKC"}])},
        "one character into 540",
    ),
    "prefix": ({"normalizer": {"type": "Prepend", "prepend": "a" * 900}}, "one character into 901"),
    "bytes": (
        {"pre_tokenizer": sequence("pretokenizers", [BYTES] * 30)},
        "can turn one character into",
    ),
    "both": (
        {"normalizer": replace("a", "b" * 200), "pre_tokenizer": replace("b", "aa")},
        "one character into 400",
    ),
    "decoders": (
        {"decoder": sequence("decoders", TEN)},
        "its decoder can turn one character into 1,000,000,000,000",
    ),
    "nested": (
        {"decoder": sequence("decoders", [sequence("decoders", TEN[:6])] * 2)},
        "its decoder can turn one character into 1,000,000,000,000",
    ),
    "tokens": (
        {
            "model": {**BPE, "vocab": {**BPE["vocab"], "a" * 1500: 3}},
            "decoder": replace("a", "b" * 20),
        },
        "its decoder can make 30,000 characters from a token of 1,500",
    ),
    "content": (
        {"normalizer": replace("a", "a" * 5000)},
        "have 5,001 characters, more than 5,000",
    ),
    "steps": ({"decoder": sequence("decoders", [{"type": "Fuse"}] * 1001)}, "than 1,000 steps"),
    "expressions": (
        {"normalizer": sequence("normalizers", [replace("x", "", "Regex")] * 33)},
        "33 regular expressions",
    ),
    "no type": ({"normalizer": {"pattern": {"String": "a"}, "content": "aa"}}, "without a type"),
    "rules": ({"normalizer": charsmap("b" * 37)}, "by 37 characters, more than 36"),
    "size of rules": ({"normalizer": charsmap("b", 2**32 - 8)}, "rules are truncated"),
    "copies": ({"post_processor": template("A" * 5)}, "repeats a text 5 times .* at most 4"),
    "copies of copies": (
        {"post_processor": sequence("processors", [template("AA")] * 30)},
        "repeats a text 1,073,741,824 times",
    ),
    "around": (
        {"post_processor": template(["A", *["[CLS]"] * 20], ids=[3] * 20)},
        "puts 400 tokens around it; .* 256 tokens are allowed",
    ),
    "id": ({"post_processor": template(["[CLS]", "A"], [5])}, r"'\[CLS\]' with the id 5 .* 0 to 4"),
    "id for pairs": (
        {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 3]}},
        "with the id 9 around a text, but the vocabulary has the ids 0 to 4",
    ),
    "id within": (
        {"post_processor": sequence("processors", [template(["[CLS]", "A"], [2**31])])},
        "with the id 2147483648",
    ),
    "id of RoBERTa": (
        {"post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 4], "cls": ["[CLS]", 7],
                            "trim_offsets": True, "add_prefix_space": False}},
        "with the id 7",
    ),
    "id of a token": (
        {"model": {"type": "WordLevel", "vocab": {**WORDS, "x": 2**32 - 1}, "unk_token": "[UNK]"}},
        "a token has the id 4,294,967,295; ids may go up to 4,000,000",
    ),
    "token": ({"model": {**BPE, "vocab": {**BPE["vocab"], "x" * 2001: 3}}}, "of 2,001 characters"),
    "suffix": ({"model": {**BPE, "end_of_word_suffix": "x" * 2001}}, "of 2,001 characters"),
    "word": ({"model": {**PIECE, "max_input_chars_per_word": 10**18}}, "max_input_chars"),
    "expression": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(.|..|...)*(?!)"},
                           "behavior": "Isolated", "invert": False}},
        "retry-limit-in-match over|takes more than 0.5 seconds",
    ),
    "slow expression": (
        {"normalizer": replace(".{0,150}.{0,150}.{0,150}(?!)", "", "Regex")},
        "retry-limit-in-match over|takes more than 0.5 seconds",
    ),
    "length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "must be non-zero"),
    "broken prefix": ({"model": {**BPE, "continuing_subword_prefix": "é"}}, "slice index"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_on_loading(name, tmp_path):
    changed, message = HOSTILE[name]
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, base() | changed)
    assert str(tmp_path) in str(caught.value)


def test_padding_and_truncation_are_dropped_before_anything_is_tried(tmp_path):
    for changed in (
        {"padding": {**PADDING, "strategy": {"Fixed": 10**9}, "pad_to_multiple_of": None}},
        {"padding": {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 2**60}},
        {"truncation": {"direction": "Right", "max_length": 0, "stride": 2**60,
                        "strategy": "LongestFirst"}},
    ):  # fmt: skip
        tokenizer = load(tmp_path, base() | changed)
        assert tokenizer.encode("a b a") == [1, 2, 1]
        assert tokenizer.encode_batch(["a", "a b"]) == [[1], [1, 2]]


def test_dropout_of_a_file_is_off(tmp_path):
    """With it `ab` would be its two characters in half of the calls."""
    for model in (BPE, {name: BPE[name] for name in ("vocab", "merges")}):  # older files: no type
        tokenizer = load(tmp_path, base() | {"model": {**model, "dropout": 0.5}})
        assert {tuple(tokenizer.encode("ab")) for _ in range(50)} == {(2,)}
    backend = tokenizers.Tokenizer(models.BPE(BPE["vocab"], [("a", "b")], dropout=0.5))
    assert len({tuple(Tokenizer(backend).encode("ab")) for _ in range(50)}) == 2


def test_panics_in_use_are_errors(tmp_path):
    """Panics with some texts only become errors with the folder's name, and the process lives."""
    strip = {"type": "Strip", "content": "z", "start": 2**62, "stop": 2**62}
    model = {"type": "WordLevel", "vocab": {**WORDS, "zz": 5}, "unk_token": "[UNK]"}
    tokenizer = load(tmp_path, base() | {"decoder": strip, "model": model})
    assert tokenizer.decode([2]) == "b"
    for decode in (lambda: tokenizer.decode([5]), lambda: tokenizer.decode_batch([[5], [2]])):
        with pytest.raises(ValueError, match="cannot decode this") as caught:
            decode()
        assert str(tmp_path) in str(caught.value)
    word = {"type": "Split", "pattern": {"Regex": "Z(.|..|...)*(?!)"}, "behavior": "Isolated"}
    tokenizer = load(tmp_path, base() | {"pre_tokenizer": {**word, "invert": False}})
    text = "Z" + "a" * 60
    for encode in (
        lambda: tokenizer.encode(text),
        lambda: tokenizer.encode_batch(["a", text], max_length=3),
        lambda: tokenizer.encode_batch_with_offsets([text]),
    ):
        with pytest.raises(ValueError, match="cannot encode this: .*retry-limit") as caught:
            encode()
        assert str(tmp_path) in str(caught.value)
    assert tokenizer.encode("a") == [1]


def test_vocabularies_to_be_learned():
    for kind in ("bpe", "wordpiece", "unigram"):
        with pytest.raises(ValueError, match=r"may be at most 4,000,000.*1000000000000"):
            Tokenizer.train(["a b"] * 2, kind=kind, vocabulary_size=10**12)


def test_what_is_learned_can_be_loaded(tmp_path):
    """A merge doubles a token: of a long line it would become one that no file may have."""
    tokenizer = Tokenizer.train(["=" * 5000] * 3, vocabulary_size=300)
    assert max(map(len, tokenizer.get_vocabulary())) <= bounds.MAX_TOKEN
    tokenizer.save(tmp_path)
    loaded = Tokenizer.from_files(tmp_path)
    assert loaded.encode("=" * 5000) == tokenizer.encode("=" * 5000)
    assert loaded.decode(loaded.encode("=" * 5000)) == "=" * 5000


# The bound itself.


def random_steps(draw):
    """Steps of one normalizer, as values and as the library has them."""
    texts = ["", "a", "b", "ab", "aab", "bb", "▁", "é", "\ufb03a", "\u00bd", "ba▁"]
    steps = []
    for _ in range(draw.randint(1, 5)):
        kind = draw.choice(["literal", "literal", "literal", "pattern", "prefix", "NFKD", "bytes"])
        if kind in ("literal", "pattern"):
            pattern = draw.choice(texts[1:] if kind == "literal" else ["a", "b*", "", "(?=a)", "."])
            steps.append(
                replace(pattern, draw.choice(texts), "String" if kind == "literal" else "Regex")
            )
        elif kind == "prefix":
            steps.append({"type": "Prepend", "prepend": draw.choice(texts)})
        else:
            steps.append({"type": "NFKD" if kind == "NFKD" else "ByteLevel"})
    made = {
        "Replace": lambda s: normalizers.Replace(
            s["pattern"].get("String") or tokenizers.Regex(s["pattern"]["Regex"]), s["content"]
        ),
        "Prepend": lambda s: normalizers.Prepend(s["prepend"]),
        "NFKD": lambda s: normalizers.NFKD(),
        "ByteLevel": lambda s: normalizers.ByteLevel(),
    }
    return steps, normalizers.Sequence([made[step["type"]](step) for step in steps])


def test_no_text_grows_more_than_was_computed():
    draw = random.Random(7)
    reached = 0
    for _ in range(400):
        steps, normalizer = random_steps(draw)
        bound = bounds._growth(steps)
        for _ in range(5):
            text = "".join(draw.choices("ab▁日", k=draw.randint(1, 12)))
            try:
                with refusing("The library fails"):
                    grown = len(normalizer.normalize_str(text))
            except ValueError:  # its own fault, for some chains
                continue
            assert grown <= bound * (len(text) + 1), (steps, text)
            reached += 2 * grown > bound * len(text) > len(text)
    assert reached > 200  # it is of the size that is needed


def test_growth_of_published_kinds():
    spaces = replace(" {2,}", "▁", "Regex")
    xlm = [charsmap("b" * 18), spaces, {"type": "Metaspace", "replacement": "▁"}]
    assert bounds._growth(xlm) == 72
    quotes = [replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    assert bounds._growth(quotes + xlm) == 72
    assert bounds._growth([{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]) == 2
    assert bounds._growth([{"type": "NFC"}, {"type": "Split"}, BYTES]) == 5


def test_what_is_bounded_is_otherwise_the_same(tmp_path):
    backend = tokenizers.Tokenizer(
        models.Unigram([("a", -1.25), ("é\u2028", -0.1), ("▁", -3.0)], 0)
    )
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s> "])
    text = bounds.bounded(backend.to_str())
    assert json.loads(tokenizers.Tokenizer.from_str(text).to_str()) == json.loads(backend.to_str())


def test_texts_that_are_no_file():
    for text in ("", "[]", "5", "[" * 10**5, '{"a": ' * 10**5, "{", "NaN", "9" * 5000):
        with pytest.raises(InvalidTokenizer, match="JSON"):
            bounds.bounded(text)
    with pytest.raises(InvalidTokenizer, match="5,000,000 lists and objects"):
        bounds.bounded("[" * 5_000_001)


# The sizes of files.

FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
FILES += ["config.json", "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt"]
FILES += ["spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model", "source.spm"]


@pytest.mark.parametrize("file", FILES)
def test_large_files_are_not_read(file, tmp_path):
    """3 GB that take no room on the disk."""
    alone = ("vocab.txt", *(name for name in FILES if name.endswith(".model")))
    if file in ("vocab.json", "merges.txt"):
        (tmp_path / "vocab.json").write_text("{}")
        (tmp_path / "merges.txt").write_text("")
    elif file == "source.spm":
        marian(tmp_path)
    elif file not in alone:
        values = copy.deepcopy(base())
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with open(tmp_path / file, "wb") as sparse:
        sparse.truncate(3 * 2**30)
    with pytest.raises(ValueError, match=r"has 3,221,225,472 bytes; .* may have") as caught:
        Tokenizer.from_files(tmp_path)
    assert str(tmp_path / file) in str(caught.value)


def test_large_lines_of_data_are_not_read(tmp_path):
    packed = tmp_path / "bomb.txt.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        file.write(b"short\n")
        for _ in range(70):
            file.write(bytes(2**20))
    sparse = tmp_path / "bomb.jsonl"
    with open(sparse, "wb") as file:
        file.truncate(3 * 2**30)
    for path, line in ((packed, 2), (sparse, 1)):
        rows = FileSource(path).read_rows(["text"])
        with pytest.raises(ValueError, match=f"line {line} has more than {_MAX_LINE:,} bytes"):
            list(rows)
    assert os.path.getsize(packed) < 2**20
