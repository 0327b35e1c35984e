"""Encoding, decoding, truncation, training: what comes back, and what is refused."""

import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tokenizers

from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers import tokenizer as tokenizer_module
from keras_transformer.tokenizers.beginnings import refusing_sparse_texts

pytestmark = pytest.mark.one_backend

TEXTS = [
    "a man rides a bike .",
    "two men ride their bikes down the street .",
    "ein mann fährt fahrrad .",
    "zwei männer fahren fahrrad auf der straße .",
    "The Quick brown fox isn't lazy, is it?",
] * 4

UNICODE = [
    "",
    " ",
    "plain",
    " leading",
    "trailing ",
    "  many   spaces  ",
    "\nnew\n\nlines\r\n\tand tabs",
    "Übergänge, naïve café",
    "e\u0301 combining a\u0308\u0323",
    "日本語のテキスト 中文 한국어",
    "שלום עולם مرحبا بالعالم",
    "🙂 👩\u200d👩\u200d👧 🇩🇪",
    "\u00a0no-break\u3000ideographic\u2028line",
    "▁ the sign of SentencePiece",
    "Ġ the sign of GPT-2",
    "##pieces",
    "\x00\x01\x7f",
    "\ufffd \ufeff \U0010ffff",
    "don't we'll I'M 123 ½²",
]
LONG = {
    "one word": "x" * 100_000,
    "Japanese": "日本" * 50_000,
    "sentences": ("Der Fluß fließt – leise. " * 4000)[:100_000],
}


@pytest.fixture(scope="module")
def trained():
    return {
        kind: Tokenizer.train(TEXTS, kind=kind, vocabulary_size=400)
        for kind in ("bpe", "wordpiece", "unigram")
    }


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_round_trip_is_exact(kind, add_prefix_space):
    tokenizer = Tokenizer.train(
        TEXTS, kind=kind, vocabulary_size=400, add_prefix_space=add_prefix_space
    )
    assert tokenizer.decode_batch(tokenizer.encode_batch(UNICODE)) == UNICODE
    for text in LONG.values():
        assert len(text) == 100_000
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_lowercase_round_trip_is_of_the_lowercased_text():
    tokenizer = Tokenizer.train(TEXTS, vocabulary_size=400, lowercase=True)
    assert tokenizer.decode(tokenizer.encode(" The ÜBER  Fox ")) == " the über  fox "


@pytest.mark.parametrize(
    ("lowercase", "text", "expected"),
    [
        (True, "  The MÄN, ride\tbikes! ", "the man , ride bikes !"),
        (False, "  the män, ride\tbikes. ", "the män , ride bikes ."),
    ],
)
def test_wordpiece_round_trip_is_of_the_normalized_text(lowercase, text, expected):
    texts = [*TEXTS, "the män , ride bikes !", "the man , ride bikes !"] * 2
    tokenizer = Tokenizer.train(texts, kind="wordpiece", vocabulary_size=400, lowercase=lowercase)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == expected
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_a_word_has_one_id_at_the_start_and_inside(trained):
    first, second, end = trained["bpe"].encode("fahrrad fahrrad")
    assert first == second
    assert end == trained["bpe"].end_id
    apart = Tokenizer.train(TEXTS, vocabulary_size=400, add_prefix_space=False)
    assert apart.encode("fahrrad fahrrad")[0] != apart.encode("fahrrad fahrrad")[-2]


def test_special_token_ids(trained):
    for kind in ("bpe", "unigram"):
        tokenizer = trained[kind]
        assert [tokenizer.id_to_token(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
        assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (0, 1, 2)
        assert (tokenizer.unknown_id, tokenizer.mask_id) == (3, None)
    tokenizer = trained["wordpiece"]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert [tokenizer.id_to_token(i) for i in range(5)] == specials
    roles = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id)
    assert (*roles, tokenizer.mask_id) == (0, 1, 2, 3, 4)


def test_templates():
    def encode(template, *texts):
        tokenizer = Tokenizer.train(TEXTS, vocabulary_size=400, template=template)
        plain = [tokenizer.encode(text, special_tokens=False) for text in texts]
        return tokenizer, plain, tokenizer.encode(*texts)

    _, (a,), ids = encode("none", "a man")
    assert ids == a
    _, (a,), ids = encode("end", "a man")
    assert ids == [*a, 2]
    _, (a, b), ids = encode("end", "a man", "two men")
    assert ids == [*a, 2, *b, 2]
    _, (a,), ids = encode("start_end", "a man")
    assert ids == [1, *a, 2]
    tokenizer, (a, b), ids = encode("bert", "a man", "two men")
    assert ids == [1, *a, 2, *b, 2]
    rows, segments = tokenizer.encode_batch_with_segments(["a man"], ["two men"])
    assert rows == [ids]
    assert segments == [[0] * (len(a) + 2) + [1] * (len(b) + 1)]


def test_further_special_tokens():
    tokenizer = Tokenizer.train(
        TEXTS, vocabulary_size=400, special_tokens=["<mask>", "<en>"], template="none"
    )
    assert tokenizer.mask_id == 4
    assert tokenizer.encode("<en>a <mask>")[0] == tokenizer.token_to_id("<en>") == 5
    assert tokenizer.decode(tokenizer.encode("<en>a<mask>")) == "a"


def test_bpe_training_is_deterministic():
    first, second = (Tokenizer.train(iter(TEXTS)) for _ in range(2))
    assert first.get_vocabulary() == second.get_vocabulary()


def test_bpe_learns_the_most_frequent_pair_first():
    # The example of Sennrich et al. 2016, section 3.2: e+s and es+t are merged first (9 times
    # each), before l+o (7 times). Their end-of-word sign is ours at the start of a word.
    text = ["low " * 5 + "lower " * 2 + "newest " * 6 + "widest " * 3]
    tokenizer = Tokenizer.train(text, vocabulary_size=4 + 256 + 2)
    assert tokenizer.id_to_token(260) == "es"
    assert tokenizer.id_to_token(261) == "est"


def test_truncation_keeps_the_special_tokens(trained):
    tokenizer = trained["wordpiece"]
    text, pair = "a man rides a bike .", "ein mann fährt fahrrad ."
    whole = tokenizer.encode(text)
    assert tokenizer.encode_batch([text], max_length=5) == [[*whole[:4], tokenizer.end_id]]
    assert tokenizer.encode_batch([text], max_length=500) == [whole]
    assert tokenizer.encode_batch([text], max_length=5, special_tokens=False) == [whole[1:6]]

    (ids,), (segments,) = tokenizer.encode_batch_with_segments([text], [pair], max_length=9)
    # Nine less three special tokens, shared by the longer of the two giving way.
    assert segments == [0] * 5 + [1] * 4
    assert [ids[0], ids[4], ids[8]] == [tokenizer.start_id, tokenizer.end_id, tokenizer.end_id]
    assert tokenizer.encode(text) == whole


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_no_more_of_a_long_text_is_encoded_than_is_kept(kind, monkeypatch):
    """The ids are those that the library cuts off the whole text; it sees its beginning alone."""
    tokenizer = Tokenizer.train(TEXTS, kind=kind, vocabulary_size=300)
    words = " ".join(TEXTS).split()
    order = np.random.default_rng(0).integers(0, len(words), 20_000)
    texts = [
        " ".join(words[i] for i in order), "".join(words[i] for i in order), "a" * 90_000,
        "\u4e2d" * 90_000, " " * 90_000 + "two", "\n".join(words[i] for i in order), "men",
    ]  # fmt: skip
    library = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    library.enable_truncation(32)
    expected = [encoding.ids for encoding in library.encode_batch(texts)]
    seen, copied = [], tokenizer_module.copy_backend

    class Seeing:
        def __init__(self, backend):
            self._backend = backend

        def __getattr__(self, name):
            return getattr(self._backend, name)

        def encode_batch_fast(self, rows, **options):
            seen.extend(map(len, rows))
            return self._backend.encode_batch_fast(rows, **options)

    monkeypatch.setattr(tokenizer_module, "copy_backend", lambda backend: Seeing(copied(backend)))
    assert tokenizer.encode_batch(texts, max_length=32) == expected
    seen.clear()
    tokenizer.encode_batch(texts[:1], max_length=32)
    assert sum(seen) <= 2048 < len(texts[0])
    refused = 0
    for text, ids in zip(texts, expected, strict=True):  # strangers' whose beginnings say nothing
        seen.clear()
        with refusing_sparse_texts():
            if len(text) > 2048 and len(ids) < 32:
                with pytest.raises(ValueError, match="90,.* its first 2,048 are fewer than the 32"):
                    tokenizer.encode_batch([text], max_length=32)
                refused += 1
            else:
                assert tokenizer.encode_batch([text], max_length=32) == [ids]
        assert sum(seen) <= 16 * 32 + 2048
    assert refused == (2 if kind == "wordpiece" else 0)


def test_truncation_is_not_seen_by_other_threads(trained):
    tokenizer, wrong = trained["bpe"], []
    whole = tokenizer.encode_batch(TEXTS)

    def encode(max_length):
        for _ in range(50):
            rows = tokenizer.encode_batch(TEXTS, max_length=max_length)
            if max_length is None and rows != whole:
                wrong.append(max_length)
            if max_length is not None and max(map(len, rows)) != max_length:
                wrong.append(max_length)

    threads = [threading.Thread(target=encode, args=(n,)) for n in (None, 3, 5, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_padding_and_truncation_of_a_given_backend_are_off_and_it_is_left_alone(trained):
    backend = tokenizers.Tokenizer.from_str(trained["bpe"]._backend.to_str())
    backend.enable_padding(length=32)
    backend.enable_truncation(4)
    tokenizer = Tokenizer(backend, pad="<pad>")
    assert tokenizer.encode_batch(TEXTS) == trained["bpe"].encode_batch(TEXTS)
    assert backend.padding["length"] == 32
    assert backend.truncation["max_length"] == 4


def test_numpy_in(trained):
    tokenizer = trained["bpe"]
    expected = tokenizer.encode_batch(["a man", "zwei"])
    assert tokenizer.encode_batch(np.array(["a man", "zwei"])) == expected
    assert tokenizer.encode_batch(np.array(["a man", "zwei"], dtype=object)) == expected
    pd = pytest.importorskip("pandas")
    column = pd.DataFrame({"text": ["-", "a man", "zwei"]}, index=[7, 8, 9])["text"][1:]
    assert tokenizer.encode_batch(column) == expected
    assert tokenizer.encode_batch(column, column) == tokenizer.encode_batch(*[list(column)] * 2)
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be a string, received nan"):
        tokenizer.encode_batch(pd.Series(["a man", None]))
    with pytest.raises(ValueError, match="For many use `encode_batch`"):
        tokenizer.encode(column)
    assert tokenizer.encode_batch(("a man", "zwei")) == expected
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode(np.array(expected[0], np.int32)) == "a man"
    assert tokenizer.decode_batch(np.array([expected[1]])) == ["zwei"]
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", b"b"], r"`texts\[1\]` must be a string.* of type bytes. Did you forget to decode"),
        (["a", None], r"`texts\[1\]` must be a string.* of type NoneType"),
        ([1.5], r"`texts\[0\]` must be a string.* of type float"),
        (np.array([b"a"]), r"`texts\[0\]` must be a string.* of type bytes"),
        (np.array([["a"]]), r"`texts\[0\]` must be a string.* of type list"),
        (["a", "\ud800"], r"`texts\[1\]` has half of a surrogate pair"),
        (["a", "a" * (2**24 + 1)], r"`texts\[1\]` has 16,777,217 characters; a text may have"),
        ("one string", "must be a list, tuple or 1-D NumPy array of strings. Received: str"),
        (None, "must be a list, tuple or 1-D NumPy array of strings. Received: NoneType"),
    ],
)
def test_what_is_no_text_is_refused(trained, texts, message):
    with pytest.raises(ValueError, match=message):
        trained["bpe"].encode_batch(texts)
    if texts is not None:
        with pytest.raises(ValueError, match=message.replace("texts", "pairs")):
            trained["bpe"].encode_batch(["a", "b"], pairs=texts)


def test_bad_arguments_of_encode(trained):
    with pytest.raises(ValueError, match="2 texts and 1 pairs"):
        trained["bpe"].encode_batch(["a", "b"], ["c"])
    for max_length in (2, 0, -1, 5.0, "5"):
        with pytest.raises(ValueError, match="integer greater than 2"):
            trained["wordpiece"].encode_batch(["a"], max_length=max_length)
    with pytest.raises(ValueError, match="must be a string.* of type bytes"):
        trained["bpe"].encode(b"a")
    for many in (["a"], ("a", "b"), np.array(["a"])):
        with pytest.raises(ValueError, match="must be one string. For many use `encode_batch`"):
            trained["bpe"].encode(many)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([400], "holds the id 400, but the vocabulary has the ids 0 to"),
        ([5, -1], "holds the id -1"),
        ([2**40], "holds the id 1099511627776"),
        ([1.0], "list or 1-D array of integers"),
        ([True], "list or 1-D array of integers"),
        (["a"], "list or 1-D array of integers"),
        ([[1, 2], [3]], "list or 1-D array of integers.* For many rows use `decode_batch`"),
        (7, "list or 1-D array of integers"),
        (None, "list or 1-D array of integers"),
    ],
)
def test_what_are_no_ids_is_refused(trained, ids, message):
    with pytest.raises(ValueError, match=message):
        trained["bpe"].decode(ids)
    with pytest.raises(ValueError, match=r"`ids\[1\]`"):
        trained["bpe"].decode_batch([[5], ids])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "sentencepiece"}, "one of 'bpe', 'wordpiece', 'unigram', received 'sentence"),
        ({"template": "gpt"}, "one of 'end', 'start_end', 'bert', 'none'"),
        ({"vocabulary_size": 259}, "at least 260 for kind='bpe'"),
        ({"vocabulary_size": 4, "kind": "wordpiece"}, "at least 6 for kind='wordpiece'"),
        ({"vocabulary_size": "8000"}, "must be an integer"),
        ({"special_tokens": "<mask>"}, "must be a sequence of strings"),
        ({"texts": []}, "`texts` is empty"),
        ({"texts": ["", " \n"]}, "`texts` has 2 texts, all empty or white space"),
        ({"texts": "one string"}, "an iterable of strings.*Received: str"),
        ({"texts": 3}, "an iterable of strings.*Received: int"),
        ({"texts": ["a", b"b"]}, r"`texts\[1\]` must be a string.* of type bytes. Did you forget"),
    ],
)
def test_bad_arguments_of_train(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(**{"texts": TEXTS, **arguments})


def test_bad_arguments_of_the_constructor(trained):
    with pytest.raises(ValueError, match="has no token '<start>', which was given as `start`"):
        Tokenizer(trained["bpe"]._backend, start="<start>")
    with pytest.raises(ValueError, match="must be a `tokenizers.Tokenizer`. Received: str"):
        Tokenizer("tokenizer.json")


@pytest.mark.one_backend("jax")
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow is the backend")
def test_needs_no_tensorflow():
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from keras_transformer.tokenizers import Tokenizer\n"
        "t = Tokenizer.train(['a man'] * 3, vocabulary_size=300)\n"
        "assert t.decode(t.encode('a man')) == 'a man'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
