"""`TokenEmbedding.from_vectors`: files of each format, written here as the published ones are."""

import gzip

import keras
import numpy as np
import pytest

from keras_transformer.layers import TokenEmbedding
from tests.layers.conftest import assert_close, numpy

pytestmark = pytest.mark.one_backend

WIDTH = 5
# As in published files: phrases of GloVe 840B, </s> of word2vec, spaces that are not ASCII.
WORDS = ["the", "cat", "</s>", "café", "日本", "a\u00a0b", "42", "new_york"]
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), WIDTH)).astype("float32")


def text_lines(words, vectors, end="\n"):
    """Write numbers with enough digits that float32 is restored exactly."""
    return "".join(
        " ".join([word, *(np.format_float_positional(x) for x in row)]) + end
        for word, row in zip(words, vectors, strict=True)
    ).encode()


def binary(words, vectors, newline=b"\n"):
    return b"%d %d\n" % vectors.shape + b"".join(
        word.encode() + b" " + row.astype("<f4").tobytes() + newline
        for word, row in zip(words, vectors, strict=True)
    )


def content(format, words=WORDS, vectors=VECTORS):
    if format == "glove":
        return text_lines(words, vectors)
    if format == "word2vec_binary":
        return binary(words, vectors)
    end = " \n" if format == "word2vec" else "\n"  # its writer ends each line with a space
    return b"%d %d\n" % vectors.shape + text_lines(words, vectors, end)


FORMATS = ["glove", "word2vec", "fasttext", "word2vec_binary"]


def write(tmp_path, data, name="vectors"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.each_backend
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_each_format_gives_its_words_and_vectors(tmp_path, format, given):
    path = write(tmp_path, content(format))
    layer = TokenEmbedding.from_vectors(path, format=format if given else "auto")
    assert layer.vocabulary == WORDS and layer.missing_words == []
    np.testing.assert_array_equal(numpy(layer.embeddings), VECTORS)
    assert_close(layer(np.array([[4, 1]])), VECTORS[None, [4, 1]])
    assert_close(layer(VECTORS[None, :2], reverse=True), (VECTORS[:2] @ VECTORS.T)[None])


@pytest.mark.parametrize("format", FORMATS)
def test_compressed_files(tmp_path, format):
    path = write(tmp_path, gzip.compress(content(format)), "vectors.gz")
    layer = TokenEmbedding.from_vectors(path)
    assert layer.vocabulary == WORDS
    np.testing.assert_array_equal(numpy(layer.embeddings), VECTORS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        TokenEmbedding.from_vectors(path)


def test_binary_files_without_newlines(tmp_path):
    path = write(tmp_path, binary(WORDS, VECTORS, newline=b""))
    layer = TokenEmbedding.from_vectors(path)
    assert layer.vocabulary == WORDS
    np.testing.assert_array_equal(numpy(layer.embeddings), VECTORS)


def test_binary_numbers_that_look_like_spaces_and_lines(tmp_path):
    """0x20202020 and 0x0a0a0a0a as float32, and a file that is longer than a piece of it."""
    odd = np.frombuffer(b" " * 4 + b"\n" * 4 + b" \n \n", "<f4")
    vectors = np.tile(odd, (30_000, 10))
    words = [f"w{i}" for i in range(len(vectors))]
    layer = TokenEmbedding.from_vectors(write(tmp_path, binary(words, vectors)))
    assert layer.vocabulary == words
    np.testing.assert_array_equal(numpy(layer.embeddings), vectors)


def test_words_with_spaces(tmp_path):
    """Words of GloVe 840B: `. . .`, `at name@domain.com`; one begins a file, one is a number."""
    words = ["at name@domain.com", ". . .", "the", "1 2", "\u2028"]
    vectors = VECTORS[:5]
    path = write(tmp_path, text_lines(words, vectors))
    layer = TokenEmbedding.from_vectors(path)
    assert layer.vocabulary == words
    np.testing.assert_array_equal(numpy(layer.embeddings), vectors)
    headed = write(tmp_path, b"5 5\n" + text_lines(words, vectors))
    assert TokenEmbedding.from_vectors(headed).vocabulary == words


@pytest.mark.parametrize("format", FORMATS)
def test_the_first_vector_of_a_word_counts(tmp_path, format):
    words = ["the", "cat", "the", "dog"]
    path = write(tmp_path, content(format, words, VECTORS[:4]))
    layer = TokenEmbedding.from_vectors(path)
    assert layer.vocabulary == ["the", "cat", "dog"]
    np.testing.assert_array_equal(numpy(layer.embeddings), VECTORS[[0, 1, 3]])


@pytest.mark.parametrize("format", FORMATS)
def test_missing_words(tmp_path, format):
    path = write(tmp_path, content(format))
    vocabulary = ["<pad>", "cat", "unseen", "the"]

    def table(**options):
        layer = TokenEmbedding.from_vectors(path, vocabulary, **options)
        assert layer.vocabulary == vocabulary and layer.missing_words == ["<pad>", "unseen"]
        rows = numpy(layer.embeddings)
        np.testing.assert_array_equal(rows[[1, 3]], VECTORS[[1, 0]])
        return rows

    assert not table(missing="zeros")[[0, 2]].any()
    drawn, again, other = table(seed=1), table(seed=1), table(seed=2)
    np.testing.assert_array_equal(drawn, again)
    assert (drawn[[0, 2]] != other[[0, 2]]).all()
    with pytest.raises(ValueError, match=r"does not have 2 of 4 words: \['<pad>', 'unseen'\]"):
        TokenEmbedding.from_vectors(path, vocabulary, missing="error")
    with pytest.raises(ValueError, match="none of the 2 words, such as .*lower case"):
        TokenEmbedding.from_vectors(path, ["The", "Cat"])


def test_drawn_vectors_have_the_variance_of_the_others(tmp_path):
    vectors = np.random.default_rng(1).normal(0, 3, (50, 40)).astype("float32")
    known = [f"w{i}" for i in range(50)]
    path = write(tmp_path, text_lines(known, vectors))
    vocabulary = known + [f"new{i}" for i in range(200)]
    drawn = numpy(TokenEmbedding.from_vectors(path, vocabulary, seed=0).embeddings)[50:]
    assert abs(drawn.std() / vectors.std() - 1) < 0.02 and abs(drawn.mean()) < 0.1


def test_a_dict_of_ids_and_a_limit(tmp_path):
    path = write(tmp_path, content("glove"))
    layer = TokenEmbedding.from_vectors(path, {"cat": 1, "the": 0, "日本": 2})
    assert layer.vocabulary == ["the", "cat", "日本"]
    np.testing.assert_array_equal(numpy(layer.embeddings), VECTORS[[0, 1, 4]])
    assert TokenEmbedding.from_vectors(path, limit=3).vocabulary == WORDS[:3]
    assert TokenEmbedding.from_vectors(path, ["日本", "the"], limit=3).missing_words == ["日本"]


@pytest.mark.each_backend
def test_the_layer_is_one_as_others(tmp_path):
    """Its options, a gradient, frozen vectors, and a file of Keras."""
    path = write(tmp_path, content("word2vec"))
    layer = TokenEmbedding.from_vectors(path, scale=2.0, trainable=False, name="words")
    assert layer.name == "words" and not layer.trainable_variables
    assert_close(layer(np.array([[1]])), 2 * VECTORS[None, [1]])
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(layer(inputs)))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(np.array([[1, 2]])), model(np.array([[1, 2]])))
    layer.trainable = True
    model.compile("sgd", "mse")
    model.fit(np.array([[1, 2]]), np.ones((1, WIDTH)), verbose=0)
    moved = (numpy(layer.embeddings) != VECTORS).any(axis=1)
    assert moved.tolist() == [False, True, True] + [False] * 5


def test_analogies(tmp_path):
    """Vectors with two directions planted: what is nearest to king - man + woman."""
    random = np.random.default_rng(3)
    royal, female, noise = random.normal(size=(3, 50))
    planted = {"man": 0, "woman": female, "king": royal, "queen": royal + female, "cat": noise}
    vectors = np.stack([x + random.normal(0, 0.1, 50) for x in planted.values()])
    path = write(tmp_path, content("word2vec_binary", list(planted), vectors.astype("float32")))
    layer = TokenEmbedding.from_vectors(path)
    man, woman, king = numpy(layer(np.array([[0, 1, 2]])))[0]
    queen = king - man + woman
    table = numpy(layer.embeddings)
    nearness = table @ queen / np.linalg.norm(table, axis=1)
    assert layer.vocabulary[int(nearness.argmax())] == "queen"


BROKEN = {
    "no number": ("auto", b"the 0.1 0.2\ncat 0.3 x\n", "line 2: a word and 2 numbers"),
    "a number for a word": ("auto", b"the 0.1 0.2 0.3\n" * 1000 + b"cat 1\n", "line 1001: "),
    "nothing": ("auto", b"", "no line is a word and numbers"),
    "words alone": ("auto", b"the\ncat\n", "no line is a word and numbers"),
    "text that is no vectors": ("auto", b"It was the best\nof times\n", "line 1: .*complete"),
    "cut off": ("auto", b"3 2\nthe 0.1 0.2\ncat 0.3 0.4\n", "declares 3 vectors and ends after 2"),
    "cut off within": ("auto", content("word2vec_binary")[:-3], "declares 8 .* ends after 7"),
    "a vast header": ("auto", b"999999999999 3\nthe 0.1 0.2 0.3\n", "ends after 1"),
    "a vast width": ("word2vec_binary", b"3 999999999999\nthe", "begins with"),
    "no header": ("word2vec", b"the 0.1 0.2\n", 'format="glove"'),
    "no end of a word": ("word2vec_binary", b"9 2\n" + b"x" * 5_000_000, "ends after 0"),
    "nan": ("auto", b"the 0.1 0.2\ncat nan 0.4\n", "vector of 'cat' has a number that is not"),
    "too large": ("auto", b"the 0.1 0.2\ncat 1e60 0.4\n", "vector of 'cat' has a number that is"),
    "another name": ("glowe", b"the 0.1 0.2\n", "Unknown `format` 'glowe'.*'glove'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(tmp_path, name):
    format, data, message = BROKEN[name]
    with pytest.raises(ValueError, match=message):
        TokenEmbedding.from_vectors(write(tmp_path, data), format=format)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        TokenEmbedding.from_vectors(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="is a folder"):
        TokenEmbedding.from_vectors(tmp_path)


def test_bytes_that_are_no_characters(tmp_path):
    data = b"2 2\n" + b"caf\xc3 " + bytes(8) + b"tea " + bytes(8)
    path = write(tmp_path, data)
    words = TokenEmbedding.from_vectors(path, format="word2vec_binary").vocabulary
    assert words == ["caf\ufffd", "tea"]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["the", "the"], "has 'the' twice"),
        ("the cat", "received the string 'the cat'"),
        (["the", 3], "must hold strings, received 3"),
        ([], "is empty"),
        ({"the": 1, "cat": 2}, "must be 0, 1, 2, .* from 1 to 2"),
        ({"the": 0, "cat": 0}, "each once"),
    ],
)
def test_vocabularies_that_say_no_ids(tmp_path, vocabulary, message):
    path = write(tmp_path, content("glove"))
    with pytest.raises(ValueError, match=message):
        TokenEmbedding.from_vectors(path, vocabulary)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "skip"}, "`missing` must be"),
        ({"limit": 0}, "`limit` must be"),
        ({"seed": -1}, "`seed` must be"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    path = write(tmp_path, content("glove"))
    with pytest.raises(ValueError, match=message):
        TokenEmbedding.from_vectors(path, **options)
