"""Text in pieces: together they are the whole decoded text, however the ids arrive."""

import functools
import tempfile
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from keras_transformer.generation.streaming import TextStream, check_stop, without_stop
from keras_transformer.tokenizers import Tokenizer
from tests.thorough import many
from tests.tokenizers.folder_parts import REAL
from tests.tokenizers.folders import bert, gpt, gpt2, neox
from tests.tokenizers.nasty import NASTY
from tests.tokenizers.piece_folders import llama, llama_no_prefix, marian, xlm_roberta

pytestmark = pytest.mark.backend_independent

KINDS = (bert, gpt, gpt2, neox, llama, llama_no_prefix, xlm_roberta, marian, "bpe", "no prefix")
SAMPLES = [
    "🙂",
    "👩\u200d👩\u200d👧",
    "日本語",
    "e\u0301",
    "\u0301",
    " ",
    "▁",
    "\ufffd",
    "don't",
    " ,",
]
texts = st.lists(st.sampled_from(SAMPLES + NASTY + REAL[::25]) | st.text(max_size=6), max_size=8)


@functools.cache
def loaded(kind):
    if isinstance(kind, str):
        return Tokenizer.train(REAL, vocabulary_size=600, add_prefix_space=kind == "bpe")
    with tempfile.TemporaryDirectory() as folder:
        kind(Path(folder))
        return Tokenizer.from_files(folder)


def whole(tokenizer, prompt, ids):
    """The continuation as `CausalLM.generate` gives it."""
    all_of_it, start = tokenizer.decode(prompt + ids), tokenizer.decode(prompt)
    if all_of_it.startswith(start):
        return all_of_it[len(start) :]
    return tokenizer.decode(ids)


def streamed(tokenizer, prompt, ids, sizes=(1,), stop=()):
    stream, pieces, place = TextStream(tokenizer, prompt, stop), [], 0
    while place < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream.push(ids[place : place + size]))
        place += size
    pieces.append(stream.finish())
    assert "".join(pieces) == stream.text
    return stream, pieces


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: getattr(k, "__name__", k))
@settings(max_examples=many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(prompt=["👩\u200d👩\u200d👧"], text=["🙂", *["👩\u200d👩\u200d👧"] * 2], sizes=[1], half=0)
@given(
    prompt=texts, text=texts, sizes=st.lists(st.integers(1, 9), min_size=1), half=st.integers(0, 3)
)
def test_pieces_are_the_whole(kind, prompt, text, sizes, half):
    tokenizer = loaded(kind)
    prompt = tokenizer.encode("".join(prompt))
    ids = tokenizer.encode("".join(text), special_tokens=False)
    # All of it, a part that may begin within a character, and one that may end there.
    for part in (ids, ids[half:], ids[: len(ids) // 2]):
        stream, _ = streamed(tokenizer, prompt, part, sizes)
        expected = whole(tokenizer, prompt, part)
        if part is not ids and "\ufffd" * 33 in tokenizer.decode([*prompt, *part]):
            continue  # a long row of bytes, all of which half a character spoils
        assert stream.text == expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: getattr(k, "__name__", k))
@settings(max_examples=many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_ids_at_all(kind, data):
    tokenizer = loaded(kind)
    ids = st.integers(0, tokenizer.vocabulary_size - 1)
    known = ids.filter(lambda i: tokenizer.id_to_token(i) is not None)
    prompt, ids = data.draw(st.lists(known, max_size=10)), data.draw(st.lists(known, max_size=40))
    stream, _ = streamed(tokenizer, prompt, ids)
    assert stream.text == whole(tokenizer, prompt, ids)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: getattr(k, "__name__", k))
@settings(max_examples=many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_stop_strings(kind, data):
    tokenizer = loaded(kind)
    ids = tokenizer.encode("".join(data.draw(texts)), special_tokens=False)
    text = whole(tokenizer, [], ids)
    places = st.integers(0, max(len(text) - 1, 0))
    parts = st.builds(lambda a, n: text[a : a + n], places, st.integers(1, 5)).filter(bool)
    stop = data.draw(st.lists(parts if text else st.just("x"), min_size=1, max_size=3))
    stop = data.draw(st.just(stop) | st.just([*stop, "qqqq"]))
    for sizes in ([1], [3, 1], [1000]):
        stream, _ = streamed(tokenizer, [], ids, sizes, stop)
        assert stream.text == without_stop(text, stop)
        assert stream.stopped is any(string in text for string in stop)


def test_a_long_text_takes_linear_time():
    for kind in (gpt2, llama):
        tokenizer = loaded(kind)
        text = " ".join(REAL)
        ids = tokenizer.encode(text * (1 + 80_000 // len(text)), special_tokens=False)
        assert len(ids) > 25_000
        seconds = []
        for count in (len(ids) // 8, len(ids)):
            start = time.perf_counter()
            stream, _ = streamed(tokenizer, [], ids[:count])
            seconds.append(time.perf_counter() - start)
            assert stream.text == tokenizer.decode(ids[:count])
        assert seconds[1] < 8 * 4 * seconds[0]  # 8 in theory, 64 if it were quadratic


def test_text_is_given_as_soon_as_it_is_certain():
    tokenizer = Tokenizer.train(["zzz"] * 2, vocabulary_size=260)  # bytes, nearly
    prompt = tokenizer.encode("a", special_tokens=False)
    stream = TextStream(tokenizer, prompt)
    ids = tokenizer.encode("b🙂c", special_tokens=False)
    pieces = [stream.push(token) for token in ids]
    assert pieces == [" ", "b", "", "", "", "🙂", "c"]
    assert stream.finish() == ""
    with pytest.raises(ValueError, match="finished"):
        stream.push(5)


def test_the_beginning_of_a_stop_string_waits():
    tokenizer = Tokenizer.train(["zzz"] * 2, vocabulary_size=260, add_prefix_space=False)
    stream = TextStream(tokenizer, (), stop=["</s>", "<end"])
    pieces = [stream.push(i) for i in tokenizer.encode("x<b</en", special_tokens=False)]
    assert pieces == ["x", "", "<b", "", "", "</e", "n"]
    stream = TextStream(tokenizer, (), stop="END")
    for i in tokenizer.encode("the ENEND of", special_tokens=False):
        stream.push(i)
    assert (stream.text, stream.stopped, stream.finish()) == ("the EN", True, "")


def test_a_long_row_of_bytes_is_given_by_characters():
    tokenizer = loaded(llama)
    text = "日" * 200  # which the vocabulary lacks
    ids = tokenizer.encode(text, special_tokens=False)
    stream = TextStream(tokenizer)
    given = [len(stream.push(token)) for token in ids]
    assert len(ids) >= 600
    assert max(given[100:]) == 1
    assert stream.text + stream.finish() == text
    stream, _ = streamed(tokenizer, [], ids[:-1])
    assert stream.text == text[:-1] + "\ufffd" * 2


def test_special_tokens_between_words_do_not_take_the_space():
    tokenizer = Tokenizer.train(["one two"] * 4, vocabulary_size=300)
    one, two = (tokenizer.encode(word, special_tokens=False) for word in ("one", "two"))
    ids = one + [tokenizer.pad_id] * 100 + two
    assert streamed(tokenizer, [], ids)[0].text == "one two"


def test_a_decoder_that_shortens_the_text():
    backend = tokenizers.Tokenizer(models.WordLevel({"▁": 0, "▁do": 1, "n": 2, "'t": 3}, "▁"))
    steps = [decoders.Metaspace(), decoders.Fuse(), decoders.Replace(" n't", "n't")]
    backend.decoder = decoders.Sequence(steps)
    tokenizer = Tokenizer(backend)
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in (1, 0, 2, 3)] == ["do", "", "", "n't"]
    assert tokenizer.decode([1, 0, 2, 3]) == "don't"


def test_stops_are_checked():
    assert check_stop("a") == (("a",), ())
    assert check_stop(7) == ((), (7,))
    assert check_stop(("a", 7, "b", "a")) == (("a", "b"), (7,))
    for wrong in ("", [], [""], True, [True], None, 1.5, -1, ["a", None], {"a"}):
        with pytest.raises(ValueError, match="`stop`"):
            check_stop(wrong)
    with pytest.raises(ValueError, match="must be strings, received the ids"):
        TextStream(loaded("bpe"), stop=[5])
    with pytest.raises(ValueError, match="vocabulary has the ids"):
        TextStream(loaded("bpe")).push(10**6)


def test_without_stop():
    assert without_stop("abcd", []) == "abcd"
    assert without_stop("abcd", ["x"]) == "abcd"
    assert without_stop("abcd", ["d", "bc"]) == "a"
    # The one that ends first, as when the text arrives character by character.
    assert without_stop("abcd", ["abcd", "bc"]) == "a"
    assert without_stop("abcd", ["c", "bc"]) == "a"
