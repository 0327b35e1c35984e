"""RWKV's tokenizer: the longest token at each place, texts in parts, files, hostile ones."""

import json
import random

import numpy as np
import pytest

from keras_transformer.generation.streaming import TextStream
from keras_transformer.tokenizers import Tokenizer, encode_completion
from keras_transformer.tokenizers.folder import RWKV_FILE
from keras_transformer.tokenizers.rwkv import END_OF_TEXT
from tests.tokenizers.nasty import NASTY

pytestmark = pytest.mark.backend_independent

WORDS = [
    *("the", " the", " the end", "\n\n", "\r\n", "don't", "日本", "é", "🙂", "🙂🙂", "́", "<s>"),
    *(" " * n for n in (2, 3, 8, 128)), *("a" * n for n in (2, 16, 256)), "\u2028", "it's \"so\"",
]  # fmt: skip
# Tokens that end within a character or start in one, of which the published vocabulary has 358.
PARTS = [b"\xf0\x9f", b"\xf0\x9f\x99", b"\x99\x82", b" \xe6", b"\xe6\x97", b"\xa5\xe6\x9c", b"\xc3"]
TOKENS = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS), *PARTS[:-1]]
TEXTS = [
    *NASTY, *("🙂", "🙂" * 5, "日本語", " 日", "é é", "the end the end", "a" * 1000, " " * 1000),
    "a" * 255 + "b", f"x{END_OF_TEXT}y", "Ġthe \U000f0041", "line\n\nline\n\n\n", "don't" * 99,
]  # fmt: skip


def line(index, token):
    try:
        return f"{index} {token.decode()!r} {len(token)}"
    except UnicodeDecodeError:
        return f"{index} {token!r} {len(token)}"


LINES = [line(index, token) for index, token in enumerate(TOKENS, 1)]


def write(folder, lines=LINES, **files):
    folder.mkdir(exist_ok=True)
    (folder / RWKV_FILE).write_text("".join(f"{each}\n" for each in lines), "utf-8", newline="\n")
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Tokenizer.from_files(write(tmp_path_factory.mktemp("rwkv")))


def longest_first(data):
    """Return the ids of bytes by trying each token, as tokens are defined."""
    ids = []
    while data:
        token = max(filter(data.startswith, TOKENS), key=len)
        ids.append(TOKENS.index(token) + 1)
        data = data[len(token) :]
    return ids


def test_ids_and_bytes(ours):
    texts = [text.replace(END_OF_TEXT, "") for text in TEXTS]
    assert ours.encode_batch(texts) == [longest_first(text.encode()) for text in texts]
    assert ours.decode_batch(ours.encode_batch(texts)) == texts
    rng = random.Random(0)
    for size in (1, 2, 3, 5, 200):
        for _ in range(100):
            ids = rng.choices(range(100, len(TOKENS) + 1), k=size)
            expected = b"".join(TOKENS[index - 1] for index in ids)
            assert ours.decode(ids) == expected.decode("utf-8", "replace")


def test_texts_in_parts_are_those_of_the_whole(ours):
    stream, shown = TextStream(ours), ""
    text = "".join(TEXTS[-10:]).replace(END_OF_TEXT, "")
    for index in ours.encode(text):
        shown += stream.push([index])
    assert shown + stream.finish() == text


def test_long_texts(ours):
    text = "".join(random.Random(0).choices(["the end", " ", "a" * 200, "🙂", "日", "x"], k=1000))
    assert ours.decode(ours.encode(text)) == text
    for length in (1, 2, 7):  # a token may span words, and more characters than are usually read
        for text in (" the end" * 9, " " * 300, "a" * 255 + "b c d e f"):
            whole = ours.encode(text)
            assert ours.encode_batch([text], max_length=length) == [whole[:length]]
    assert ours.encode("the", pair=" the end") == ours.encode("the") + ours.encode(" the end")


def test_places_in_the_text(ours):
    for text, encoding in zip(TEXTS, ours.encode_batch_with_offsets(TEXTS), strict=True):
        for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if index:
                assert TOKENS[index - 1] in text[start:end].encode(), text
    text = "a 日🙂"
    (encoding,) = ours.encode_batch_with_offsets([text])
    assert encoding.offsets == [(0, 1), (1, 3), (2, 3), (2, 3), (3, 4)]
    ids, counted = encode_completion(ours, "the", " the end")
    assert ids == [*ours.encode("the"), *ours.encode(" the end"), 0]
    assert counted == [False, True, True]


def test_roles(ours, tmp_path):
    assert (ours.pad_id, ours.start_id, ours.end_id, ours.special_ids) == (0, 0, 0, (0,))
    assert ours.encode(f"the{END_OF_TEXT}the") == [*ours.encode("the"), 0, *ours.encode("the")]
    assert ours.decode([0, *ours.encode("the"), 0]) == "the"
    with pytest.raises(ValueError, match="does not support RWKV"):
        ours.to_tensorflow()
    # As in published folders: two line breaks end an answer, and are an ordinary token.
    named = {"bos_token": END_OF_TEXT, "eos_token": "\n\n", "pad_token": END_OF_TEXT}
    config = {"tokenizer_class": "RwkvTokenizer", "add_bos_token": True, "chat_template": "x"}
    write(
        tmp_path, special_tokens_map=named, added_tokens={END_OF_TEXT: 0}, tokenizer_config=config
    )
    (tmp_path / "config.json").write_text('{"vocab_size": 65536}')
    breaks = TOKENS.index(b"\n\n") + 1
    for folder in (tmp_path, tmp_path / "saved"):
        found = Tokenizer.from_files(folder)
        assert (found.pad_id, found.start_id, found.end_id) == (0, 0, breaks)
        assert found.vocabulary_size == len(TOKENS) + 1
        assert found.encode("a\n\n") == [0, 98, breaks]
        assert found.decode(found.encode("a\n\n")) == "a\n\n"
        assert found.chat_template == "x"
        found.save(tmp_path / "saved")
    (tmp_path / RWKV_FILE).rename(tmp_path / "vocab.txt")
    assert Tokenizer.from_files(tmp_path).encode("a\n\n") == [0, 98, breaks]


def test_chats(ours):
    chat = ours.with_chat_template(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    messages = [{"role": "user", "content": f"the 🙂{END_OF_TEXT}"}]
    ids = chat.encode_chat(messages)
    assert 0 not in ids and chat.decode(ids) == f"user: the 🙂{END_OF_TEXT}\n\nassistant:"


def test_saving_keeps_all(ours, tmp_path):
    ours.save(tmp_path)
    assert (tmp_path / RWKV_FILE).read_text("utf-8").splitlines() == "\n".join(LINES).splitlines()
    again = Tokenizer.from_files(tmp_path)
    assert again.get_vocabulary() == ours.get_vocabulary() and again._roles == ours._roles
    assert again.encode_batch(TEXTS) == ours.encode_batch(TEXTS)
    ids = np.arange(again.vocabulary_size)
    assert again.decode_whole(ids) == ours.decode_whole(ids)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("300 __import__('os') 2", "line 1 is not an id, a token of up to 256 bytes"),
        ("300 'a' + 'b' 2", "line 1 is not an id"),
        ("300 ('ab') 2", "line 1 is not an id"),
        ("300 f'{1}' 1", "line 1 is not an id"),
        ("300 'a' 'b' 2", "line 1 is not an id"),
        ("300 '\\d' 2", "line 1 is not an id"),
        ("300 '\\N{BULLET}' 3", "line 1 is not an id"),
        ("300 'ab", "line 1 is not an id"),
        ("300 'a\x00b' 3", "line 1 has .*null"),
        ("300 b'é' 2", "line 1 has .*ASCII"),
        ("300 '\\ud800' 3", "line 1 has .*surrogates"),
        (f"300 {'(' * 1000} 2", "line 1 is not an id"),
        (f"300 '{'a' * 257}' 257", "line 1 has a token of 257 bytes"),
        (f"300 '{'a' * 9999}' 9999", "line 1 is not an id"),
        ("300 'ab' 3", "line 1 has a token of 2 bytes and says 3"),
        ("300 '' 0", "line 1 has a token of 0 bytes"),
        ("-3 'ab' 2", "line 1 is not an id"),
        ("4300000 'ab' 2", "ids may go up to 4,000,000"),
        ("9999999999 'ab' 2", "line 1 is not an id"),
        ("5 'ab' 2", "two tokens have the same id"),
        ("300 'the' 3", "has b'the' a second time"),
        ("", "line 1 is not an id"),
    ],
    ids=lambda value: value[:20],
)
def test_hostile_lines(wrong, message, tmp_path):
    write(tmp_path, [wrong, *LINES])
    with pytest.raises(ValueError, match=f"(?s){RWKV_FILE}.* is not a usable .*{message}"):
        Tokenizer.from_files(tmp_path)


def test_hostile_files(tmp_path):
    write(tmp_path, LINES[1:])
    with pytest.raises(ValueError, match="no token for 1 bytes, such as 0"):
        Tokenizer.from_files(tmp_path)
    write(tmp_path, ["5 'ab' 2"] * 250_000)
    with pytest.raises(ValueError, match="more than 2,097,152, twice as many"):
        Tokenizer.from_files(tmp_path)
    write(tmp_path, added_tokens={"<s>": 300})
    with pytest.raises(ValueError, match="'<s>' has the ids .* and 300"):
        Tokenizer.from_files(tmp_path)
    (tmp_path / RWKV_FILE).write_bytes(b"1 '\xff' 1\n")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        Tokenizer.from_files(tmp_path)
