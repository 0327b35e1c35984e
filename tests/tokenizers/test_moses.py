"""Moses's form of text: worked examples, and its own output on Multi30k."""

import gzip

import pytest

from keras_transformer.tokenizers import moses_detokenize, moses_tokenize

pytestmark = pytest.mark.backend_independent

EXAMPLES = {
    "A man rides a bike.": "A man rides a bike .",
    "A man's dog, isn't it?": "A man &apos;s dog , isn &apos;t it ?",
    'He says "hello!"': "He says &quot; hello ! &quot;",
    "Mr. Smith pays $3,500.50 (in cash).": "Mr. Smith pays $ 3,500.50 ( in cash ) .",
    "a dark-haired girl...": "a dark-haired girl ...",
    "in the U.S. army": "in the U.S. army",
    "John A. Noble": "John A. Noble",
    "the 1990s' end": "the 1990s &apos; end",
    "Müller & Söhne": "Müller &amp; Söhne",
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_tokenize(text):
    assert moses_tokenize(text) == EXAMPLES[text]


@pytest.mark.parametrize("words", EXAMPLES.values())
def test_its_own_output_does_not_change(words):
    assert moses_tokenize(words) == words


@pytest.mark.parametrize("text", [t for t in EXAMPLES if "$" not in t and "1990" not in t])
def test_detokenize_is_the_inverse(text):
    assert moses_detokenize(moses_tokenize(text)) == text


@pytest.mark.parametrize("text", ["", " ", ".", "...", "'", "''", "_", "🙂.", "é", "a\tb\n"])
def test_odd_text_stays_in_order(text):
    letters = "".join(text.split())
    assert moses_detokenize(moses_tokenize(text)).replace(" ", "") == letters


@pytest.mark.parametrize(("language", "share"), [("en", 0.997), ("de", 0.994)])
@pytest.mark.parametrize("split", ["train", "test_2016_flickr"])
def test_equals_moses_on_multi30k(shared_data, language, share, split):
    def read(path):
        return gzip.open(shared_data / "multi30k" / path, "rt", encoding="utf-8").readlines()

    raw = read(f"raw/{split}.{language}.gz")
    words = read(f"tok/{split}.lc.norm.tok.{language}.gz")
    equal = sum(moses_tokenize(a).lower() == b.strip("\n") for a, b in zip(raw, words, strict=True))
    assert equal / len(raw) > share
