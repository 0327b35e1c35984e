"""Bodies of requests: invalid JSON, too much of it, and characters that no text has."""

import json
import tracemalloc

import pytest

from keras_transformer.serving.bodies import RefusedRequest, parsed, said

pytestmark = pytest.mark.backend_independent

MOST = 1000


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b'{"a": 1e999}', "larger than a number can be"),
        (b'{"a": ' + b"1" * 5000 + b"}", "5,000 digits, more than 4,300: line 1 column 7"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": "\xed\xa0\x80"}', "utf-8"),  # half of a pair, as Java writes it
        ('{"a": 1}'.encode("utf-16"), "utf-8"),
        (b'{"a": ' * 201 + b"1" + b"}" * 201, "nests deeper than 200"),
        (b'{"a": [' + b"[]," * MOST + b"1]}", "more than 1,000 values"),
        (b'{"a": [' + b"1," * MOST + b"1]}", "more than 1,000 values"),
        (b'"' * 5000, "more than 1,000 values"),
        (rb'{"\ud800": 1}', r"`'\ud800'` has '\ud800'"),
        (rb'{"a": "x\udfff"}', r"`a` has '\udfff' at 1"),
        (rb'{"a": [0, {"role": "\ud83d"}]}', r"`a[1].role` has"),
        (rb'{"a": "\ude00\ud83d"}', "half of a surrogate pair"),  # a pair in the wrong order
        (b'{"' + b"k" * 10**6 + rb'\uDC00": 1}', "kkk..."),
    ],
)  # fmt: skip
def test_what_is_refused(body, told):
    with pytest.raises(RefusedRequest) as error:
        parsed(body, MOST)
    assert told in str(error.value) and len(str(error.value)) < 400
    assert error.value.status == 400
    str(error.value).encode()


def test_what_is_read():
    """Values and signs are counted outside of strings alone, whatever is escaped in them."""
    text = '[{,:}]"\\' * 10_000 + "\U0001f600"
    for given in ({"a": text}, {text: [1.5, -2, True, None, {"b": "\\"}]}, {}):
        for ascii_only in (True, False):
            body = json.dumps(given, ensure_ascii=ascii_only).encode()
            assert parsed(body, 30) == given
            assert parsed(b"\xef\xbb\xbf" + body, 30) == given
    assert parsed(b'{"a": [' + b"1," * 490 + b"1]}", MOST)["a"] == [1] * 491


def test_what_is_too_much_takes_no_memory():
    """Lists of lists would be 30 times the size of their text."""
    body = b'{"a": [' + b"[]," * 700_000 + b"1]}"
    tracemalloc.start()
    try:
        with pytest.raises(RefusedRequest):
            parsed(body, 300_000)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(body)
    finally:
        tracemalloc.stop()


def test_errors_say_nothing_of_this_process():
    text = said(ValueError(f"no image: {object()!r} of " + "a" * 10_000))
    assert "0x" not in text and "<object object>" in text and len(text) < 2100
