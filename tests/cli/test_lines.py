"""Lines in, lines out: their order, encoding and chunks, and how an error names one."""

import pytest

import keras_transformer as kt
from tests.cli.conftest import asked

pytestmark = pytest.mark.one_backend


def test_byte_order_marks_and_windows_line_ends(run, folder):
    """These are not part of a text; bytes that are not UTF-8 are an error with their line."""
    arguments = ("score", "--preset", folder / "lm")
    plain = run(*arguments, stdin=b"a man\n\ntwo dogs\n")
    assert plain[0] == 0
    assert run(*arguments, stdin=b"\xef\xbb\xbfa man\r\n\r\ntwo dogs") == plain
    code, out, errors = run(*arguments, stdin=b"a man\n\xff\xfe\n")
    assert (code, out) == (2, "")
    assert "Line 2 of standard input is not UTF-8" in errors and errors.count("\n") == 1


def test_many_lines_come_in_chunks(run, folder, monkeypatch):
    monkeypatch.setattr("keras_transformer.cli.lines._CHUNK", 2)
    lines = ["a man", "", "", "two dogs", "a man"]
    (values,) = asked(run, folder, "score", "lm", lines=lines, forms=("json",))
    assert values[0]["log_probability"] == values[4]["log_probability"]
    assert values[3]["log_probability"] != values[4]["log_probability"]


def test_a_file_given_as_a_text_is_told_of(run, folder, tmp_path):
    path = tmp_path / "english.txt"
    path.write_text("a man rides a bike .\n")
    arguments = ("embed", "--preset", folder / "embedder", path)
    code, out, errors = run(*arguments)
    assert code == 0 and out.count("\n") == 1
    assert f"To read the lines of that file: < {path}" in errors
    assert run(*arguments[:-1], "a man")[2] == ""


def test_translate_keeps_the_lines_of_standard_input(run, folder):
    texts = ["two dogs, playing.", "a man"]
    code, out, _ = run(
        "translate", "--preset", folder / "plain", "--beams", 1, "--max-new-tokens", 4,
        stdin=f"{texts[0]}\n\n  \n{texts[1]}\n",
    )  # fmt: skip
    translator = kt.Seq2SeqLM.from_preset(folder / "plain")
    first, second = translator.generate(texts, max_new_tokens=4)
    assert (code, out) == (0, f"{first}\n\n\n{second}\n")


def test_an_error_names_the_line_of_the_text(run, folder, monkeypatch):
    stdin = "a [MASK] man\n\nthe [MASK]\nno mask\n"
    code, _, error = run("fill-mask", "--preset", folder / "masked", stdin=stdin)
    assert code == 2 and "error: line 4 (`texts`) has no '[MASK]'" in error
    monkeypatch.setattr("keras_transformer.cli.lines._CHUNK", 2)
    code, out, error = run("fill-mask", "--preset", folder / "masked", stdin=stdin)
    assert code == 2 and "error: line 4 (`texts`) has no" in error and out.count("\n") == 2
