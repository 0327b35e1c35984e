"""Bytes that tokens add to a text: the bytes of real texts' tokens are the decoded texts."""

import random

import pytest
import tokenizers
from tokenizers import decoders, models

from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.loading import _CLEAN_UP
from keras_transformer.tokenizers.pieces import decoder_steps, strips_first_space, token_bytes
from tests.tokenizers.folder_parts import REAL
from tests.tokenizers.folders import FAMILIES, clip, clip_json, esm, esm_named, gpt
from tests.tokenizers.nasty import NASTY
from tests.tokenizers.piece_folders import marian, xlm_roberta

pytestmark = pytest.mark.backend_independent

TEXTS = REAL + NASTY
PROTEINS = ["".join(random.Random(seed).choices("LAGVSERTIDPK", k=30)) for seed in range(120)]


def joined(tokenizer, rows):
    """The bytes of rows of ids together, without the first space if the decoder strips it."""
    pieces = token_bytes(tokenizer)
    assert len(pieces) == tokenizer.vocabulary_size
    strips = strips_first_space(tokenizer)
    texts = []
    for row in rows:
        text = b"".join(pieces[i] for i in row if pieces[i] is not None).decode()
        texts.append(text.removeprefix(" ") if strips else text)
    return texts


def without_unknown(tokenizer, rows):
    """The unknown token is special, but what the model has it decode to is not always empty."""
    return [row for row in rows if tokenizer.unknown_id not in row]


OTHER = (gpt, clip, clip_json)  # whose words end with `</w>`


@pytest.mark.parametrize("make", [f for f in FAMILIES if f not in OTHER], ids=lambda f: f.__name__)
def test_pieces_of_every_family_join_to_the_decoded_text(make, tmp_path):
    make(tmp_path)
    tokenizer = Tokenizer.from_files(tmp_path)
    texts = PROTEINS if make in (esm, esm_named) else TEXTS
    rows = tokenizer.encode_batch(texts, special_tokens=False)
    rows = without_unknown(tokenizer, rows)
    assert len(rows) > 100
    texts = joined(tokenizer, rows)
    if make is xlm_roberta:  # its decoder takes spaces away, whichever tokens they are in
        for old, new in _CLEAN_UP:
            texts = [text.replace(old, new) for text in texts]
    assert texts == tokenizer.decode_batch(rows)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_pieces_of_trained_tokenizers(kind, add_prefix_space):
    tokenizer = Tokenizer.train(REAL, kind, vocabulary_size=600, add_prefix_space=add_prefix_space)
    rows = without_unknown(tokenizer, tokenizer.encode_batch(TEXTS))
    assert joined(tokenizer, rows) == tokenizer.decode_batch(rows)
    assert strips_first_space(tokenizer) is (kind == "wordpiece" or add_prefix_space)


def test_pieces_that_end_words(tmp_path):
    clip(tmp_path)
    with pytest.raises(
        ValueError, match="not known for a tokenizer with the decoder ByteLevel and"
    ):
        token_bytes(Tokenizer.from_files(tmp_path))


def test_pieces_of_marian(tmp_path):
    marian(tmp_path)
    tokenizer = Tokenizer.from_files(tmp_path)
    rows = without_unknown(tokenizer, tokenizer.encode_targets(REAL))
    assert joined(tokenizer, rows) == tokenizer.decode_batch(rows)


def test_special_tokens_and_holes_add_nothing():
    vocabulary = {"<pad>": 0, "a": 1, "▁b": 2, "<0xE9>": 5}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    tokenizer = Tokenizer(backend, pad="<pad>")
    assert token_bytes(tokenizer) == [None, b"a", b" b", None, None, b"\xe9"]
    assert not strips_first_space(tokenizer)


def test_no_decoder_puts_spaces_between():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = Tokenizer(backend)
    assert decoder_steps(tokenizer) == []
    assert token_bytes(tokenizer) == [b" a", b" b"]
    assert tokenizer.decode([0, 1]) == "a b"
    assert strips_first_space(tokenizer)


def test_added_tokens_of_bytes_are_what_they_show():
    tokenizer = Tokenizer.train(["a b"] * 2, vocabulary_size=300)
    tokenizer._backend.add_tokens(["    ", "<new>"])
    pieces = token_bytes(Tokenizer(tokenizer._backend))
    assert pieces[-2:] == [b"    ", b"<new>"]


def test_a_decoder_that_looks_around_is_refused(tmp_path):
    gpt(tmp_path)
    with pytest.raises(ValueError, match="decoder BPEDecoder"):
        token_bytes(Tokenizer.from_files(tmp_path))
