"""The vocabulary of characters of wav2vec 2.0: texts and ids, files, wrong ones."""

import json

import pytest

import keras_transformer as kt
from keras_transformer.tokenizers import CTCTokenizer

pytestmark = pytest.mark.backend_independent

VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "A": 5, "B": 6, "'": 7, "É": 8}
TEXTS = [
    "AB A'B", "  A  B ", "ab", "A<s>B <unk> | B", "", "É", "<pad>", "A\tB", "A|B", "</s>", "🦊A",
]  # fmt: skip


def write(folder, vocabulary=VOCABULARY, **config):
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "wav2vec2"}')
    return folder


@pytest.mark.parametrize("lower", [False, True])
def test_as_transformers(tmp_path, lower):
    transformers = pytest.importorskip("transformers")
    ours = kt.Tokenizer.from_files(write(tmp_path, do_lower_case=lower, pad_token="<pad>"))
    theirs = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json", do_lower_case=lower)
    assert type(ours) is CTCTokenizer and ours.lowercase == lower
    for text in TEXTS:
        assert ours.encode(text) == theirs(text).input_ids, text
    rows = [[5, 6, 4, 5], [4, 5, 4], [5, 1, 3, 6], [], [8, 7]]
    assert ours.decode_batch(rows) == [theirs.decode(row, group_tokens=False) for row in rows]
    assert (ours.pad_id, ours.start_id, ours.end_id, ours.unknown_id) == (0, 1, 2, 3)
    assert ours.delimiter_id == 4

    ours.save(tmp_path / "again")
    back = kt.Tokenizer.from_files(tmp_path / "again")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert type(read) is type(theirs) and type(back) is CTCTokenizer
    assert back.get_vocabulary() == ours.get_vocabulary()
    for text in TEXTS:
        assert back.encode(text) == ours.encode(text) == read(text).input_ids
    assert back.decode_batch(rows) == ours.decode_batch(rows)


def test_of_characters():
    tokenizer = CTCTokenizer.of_characters(["one two", "three"], lowercase=True)
    assert list(tokenizer.get_vocabulary()) and tokenizer.vocabulary_size == 5 + len("EHNORTW")
    assert tokenizer.encode("tweet") == tokenizer.encode("TWEET")
    assert tokenizer.decode(tokenizer.encode("one hero")) == "one hero"
    assert tokenizer.encode("one", pair="two") == tokenizer.encode("ONE", pair="TWO")
    assert tokenizer.unknown_id not in tokenizer.encode("one", pair="two")
    assert tokenizer.encode("x") == [tokenizer.unknown_id]
    for characters, message in (
        ("", "`characters` is empty"),
        (7, "`characters` must be a string, or texts, received"),
        ("a|b", "`delimiter` must be one character that is in no text"),
    ):
        with pytest.raises(ValueError, match=message):
            CTCTokenizer.of_characters(characters)
    with pytest.raises(ValueError, match="does not support a CTCTokenizer"):
        tokenizer.to_tensorflow()


@pytest.mark.parametrize(
    ("vocabulary", "config", "message"),
    [
        ({"eng": {"A": 0}}, {}, "a vocabulary for each language, which is not supported"),
        ({**VOCABULARY, "B": "6"}, {}, "must map .* to integer ids, but maps 'B' to '6'"),
        ({**VOCABULARY, "": 9}, {}, "must map non-empty tokens to .*, but maps '' to 9"),
        ({**VOCABULARY, "B": -1}, {}, "not usable"),
        ({"<pad>": 0, "|": 1, "A": 2}, {}, "has no unknown token None"),
        ({"<pad>": 0, "<unk>": 1, "A": 2}, {}, "has no delimiter '|'"),
        (VOCABULARY, {"word_delimiter_token": ["|"]}, "'word_delimiter_token' must be one charac"),
        (VOCABULARY, {"do_lower_case": "no"}, "'do_lower_case' must be true or false"),
    ],
)
def test_wrong_files(tmp_path, vocabulary, config, message):
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.from_files(write(tmp_path, vocabulary, **config))
