"""The checkers of arguments: what passes, as what, and what is refused with which words."""

import decimal
import io
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    check_path,
    check_seed,
    check_text,
    describe,
    nearest,
    shorten,
)

pytestmark = pytest.mark.backend_independent

NO_INTEGERS = [
    "8", 8.0, 1.5, True, np.True_, None, b"8", [], [8], len, float("nan"), np.array([8]),
    np.float32(8), np.array(8.0),
]  # fmt: skip
NO_NUMBERS = [
    "8", True, np.True_, None, b"8", [], [8.0], len, float("nan"), float("inf"), 1j,
    np.array([0.5]), np.float32("nan"), np.array(-np.inf), 10**400, decimal.Decimal(1),
]  # fmt: skip


@pytest.mark.parametrize("value", [8, np.int64(8), np.uint8(8), np.array(8), np.array(8, "int16")])
def test_integers(value):
    for bounds in ({}, {"at_least": 8}, {"at_most": 8}, {"at_least": 1, "at_most": 9}):
        found = check_int("n", value, **bounds)
        assert found == 8 and type(found) is int
    with pytest.raises(ValueError, match="`n` must be an integer of at least 9, received"):
        check_int("n", value, at_least=9)
    with pytest.raises(ValueError, match="`n` must be an integer from 1 to 7 or None, received"):
        check_int("n", value, at_least=1, at_most=7, none=True)


@pytest.mark.parametrize("value", NO_INTEGERS, ids=lambda value: describe(value)[:30])
def test_no_integers(value):
    with pytest.raises(ValueError, match="^`n` must be an integer.*, received .*Do it.$"):
        check_int("n", value, hint="Do it.")
    with pytest.raises(ValueError, match=r"^`s` must be an integer from 0 to 2\*\*63 - 1, rec"):
        check_seed("s", value)


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.float16(0.5), np.array(0.5), np.array(0.5, "float32")]
)
def test_numbers(value):
    for bounds in ({}, {"at_least": 0.5}, {"at_most": 0.5}, {"above": 0, "below": 1}):
        found = check_number("r", value, **bounds)
        assert found == 0.5 and type(found) is float
    for bounds, words in (
        ({"above": 0.5}, "above 0.5"),
        ({"below": 0.5}, "below 0.5"),
        ({"at_least": 0, "below": 0.5}, "of at least 0 and below 0.5"),
        ({"at_least": 1, "at_most": 2}, "from 1 to 2"),
        ({"above": 0, "below": 0.5}, "between 0 and 0.5"),
    ):
        with pytest.raises(ValueError, match=f"`r` must be a number {words}, received"):
            check_number("r", value, **bounds)
    assert type(check_number("r", np.int32(3))) is int


def test_numbers_are_those_of_float32():
    assert check_number("r", 1e-30, above=0) == 1e-30 and check_number("r", 0.1, at_most=0.1) == 0.1
    for value in (1e-300, 5e-324):
        with pytest.raises(ValueError, match="`r` must be a number above 0, received"):
            check_number("r", value, above=0)
    with pytest.raises(ValueError, match="`r` must be a number below 1, received 0.99999999999"):
        check_number("r", 0.99999999999, below=1)
    with pytest.raises(ValueError, match=r"`r` must be a number, received 1e\+300"):
        check_number("r", 1e300)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: describe(value)[:30])
def test_no_numbers(value):
    with pytest.raises(ValueError, match="^`r` must be a number.*received"):
        check_number("r", value)


def test_none_is_right_where_it_is_said():
    assert check_int("n", None, none=True) is None
    assert check_number("n", None, none=True) is None
    assert check_seed("n", None, none=True) is None
    assert check_bool("n", None, none=True) is None
    assert check_choice("n", None, ["a"], none=True) is None


def test_seeds():
    assert check_seed("s", np.int64(5)) == 5
    assert check_seed("s", 2**63 - 1) == 2**63 - 1
    for value in (-1, 2**63, 2**64):
        with pytest.raises(ValueError, match=r"`s` must be an integer from 0 to 2\*\*63 - 1"):
            check_seed("s", value)
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*32 - 1, received 4294967296"):
        check_seed("s", 2**32, bits=32)


def test_bools_and_choices():
    assert check_bool("b", np.True_) is True and check_bool("b", False) is False
    for value in (0, 1, "True", None, np.array([True]), float("nan")):
        with pytest.raises(ValueError, match="`b` must be True or False, received"):
            check_bool("b", value)
    assert check_choice("c", "mean", ["mean", "max"]) == "mean"
    for value in (None, ["mean"], 1, np.array(["mean", "max"]), "m" * 10_000):
        with pytest.raises(ValueError, match="`c` must be one of 'mean', 'max', received"):
            check_choice("c", value, ["mean", "max"])
    with pytest.raises(ValueError, match="Did you mean 'mean'"):
        check_choice("c", "meen", ["mean", "max"])


def test_paths():
    assert check_path("p", "a/b") == "a/b" and check_path("p", Path("a")) == "a"
    for value in (None, 5, b"a", [], True, np.array("a")):
        with pytest.raises(ValueError, match=r"`p` must be a path \(a str or an `os.PathLike`\)"):
            check_path("p", value)
    for value in ("", "  "):
        with pytest.raises(ValueError, match="`p` is empty"):
            check_path("p", value)
    for value in ("a\0b", "a\ud800b"):
        with pytest.raises(ValueError, match="`p` has characters that a path cannot have"):
            check_path("p", value)
    for value in ("a" * 10_000, "a/" * 5_000, "ä" * 200):
        with pytest.raises(ValueError, match="`p` is too long for a path") as error:
            check_path("p", value)
        assert len(str(error.value)) < 200


def test_texts():
    for text in ("", "a", "ä \N{GRINNING FACE} \0", "a" * 100_000):
        assert check_text("x[0]", text) is text
    with pytest.raises(ValueError, match=r"`x\[3\]` has half of a surrogate pair, '\\ud83d', at"):
        check_text("x[3]", "ä \ud83d b")
    with pytest.raises(ValueError, match=r"`x\[3\]` must be a string.*Did you forget to decode"):
        check_text("x[3]", b"a")


def test_quotes_are_short_and_on_one_line():
    class Odd:
        def __repr__(self):
            raise RuntimeError("no repr")

    for value in (
        "a" * 10_000, "a\nb" * 50, [["x" * 1000] * 1000] * 10, 10**5000, Odd(), np.zeros((50, 50)),
        dict.fromkeys(range(1000), "y" * 100), b"z" * 9999, {"a": np.arange(9999)}, "\ud800" * 99,
    ):  # fmt: skip
        text = shorten(value)
        assert len(text) <= 80 and "\n" not in text
        text.encode()
    assert shorten("a'b") == '"a\'b"' and shorten(None) == "None" and shorten(5) == "5"
    assert describe([1]) == "[1] of type list"
    assert describe(io.BytesIO()) == "<_io.BytesIO object> of type BytesIO"
    assert "0x" not in shorten([object(), {"a": print, "b": object.__init__}])
    assert shorten("at 0x7f5551a9a") == "'at 0x7f5551a9a'"
    assert nearest("padding_msk", ["padding_mask", "x"]) == " Did you mean 'padding_mask'?"
    assert nearest(object(), ["padding_mask"]) == ""
