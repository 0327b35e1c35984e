"""The tokenizer of an alphabet: ids, files, what is refused and where it says so."""

import pytest

from keras_transformer.tokenizers import Tokenizer

pytestmark = pytest.mark.one_backend


def test_characters():
    bases = Tokenizer.of_symbols("ACGT")
    assert bases.vocabulary_size == 9 and bases.pad_id == 0 and bases.unknown_id is None
    assert bases.encode("GATC") == [1, 7, 5, 8, 6, 2]
    assert bases.decode(bases.encode("GATC")) == "GATC"
    assert bases.encode("GA\nT C") == bases.encode("GATC") == bases.encode("G A T C")
    assert bases.encode("A<mask>T", special_tokens=False) == [5, bases.mask_id, 8]


@pytest.mark.parametrize("symbols", [range(60, 72), [str(pitch) for pitch in range(60, 72)]])
def test_symbols_that_stand_apart(symbols):
    notes = Tokenizer.of_symbols(symbols, template="none")
    assert notes.encode("60 71 60") == [5, 16, 5]
    assert notes.decode([5, 16, 5]) == "60 71 60"


def test_offsets_are_of_symbols():
    (encoding,) = Tokenizer.of_symbols("ACGT", template="none").encode_batch_with_offsets(["GAT"])
    assert encoding.offsets == [(0, 1), (1, 2), (2, 3)] and encoding.word_ids == [0, 1, 2]


def test_unknown_symbol_is_a_token_if_asked_for():
    bases = Tokenizer.of_symbols("ACGT", template="none", unknown=True)
    ids = bases.encode("ANT")
    assert ids[1] == bases.unknown_id and bases.decode(ids) == "AT"


@pytest.mark.parametrize("saved", [False, True])
def test_unknown_symbol_is_refused_by_place(saved, tmp_path):
    bases, notes = Tokenizer.of_symbols("ACGT"), Tokenizer.of_symbols([60, 61])
    if saved:
        bases.save(tmp_path / "bases")
        notes.save(tmp_path / "notes")
        bases = Tokenizer.from_files(tmp_path / "bases")
        notes = Tokenizer.from_files(tmp_path / "notes")
        assert bases.encode("GATC") == [1, 7, 5, 8, 6, 2]
    with pytest.raises(ValueError, match="row 1 has 'N' at 2, which is not a symbol"):
        bases.encode_batch(["ACGT", "ACNT"])
    with pytest.raises(ValueError, match="row 0 has 'x' at 7"):
        bases.encode_batch_with_offsets(["A<mask>xT"])
    with pytest.raises(ValueError, match="row 1, text 1 of the pair, has 'N' at 0"):
        bases.encode_batch(["A", "C"], ["A", "N"])
    assert len(bases.encode_batch(["ACGTN"], max_length=4)[0]) == 4  # which is cut off
    with pytest.raises(ValueError, match="row 0 has '62' at 3"):
        notes.encode("60 62")


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ("ACGA", "'A' twice, at 0 and at 3"),
        ([1, "1"], "'1' twice"),
        (["A", ""], r"symbols\[1\]` is ''"),
        ("A C", r"symbols\[1\]` is ' '"),
        (["a b"], "white space"),
        (["A", "<pad>"], "special token"),
        (7, "must be a string of characters or a list"),
        ({"A": 1}, "must be a string of characters or a list"),
    ],
)
def test_wrong_alphabets(symbols, said):
    with pytest.raises(ValueError, match=said):
        Tokenizer.of_symbols(symbols)


def test_wrong_options():
    with pytest.raises(ValueError, match="template"):
        Tokenizer.of_symbols("AC", template="middle")
    with pytest.raises(ValueError, match="unknown"):
        Tokenizer.of_symbols("AC", unknown="yes")
