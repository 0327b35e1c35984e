"""The sub-commands of models that write: translate, generate, score."""

import json
import re

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize
from tests.cli.conftest import LINES, TEXTS, asked, tiny_config

pytestmark = pytest.mark.one_backend


def test_score(run, folder):
    lines = ["a man rides a bike .", "", "two dogs"]
    columns, values = asked(run, folder, "score", "lm", lines=lines)
    lm = kt.CausalLM.from_preset(folder / "lm")
    scores = lm.score([lines[0], lines[2]])
    assert [values[i]["log_probability"] for i in (0, 2)] == pytest.approx(scores, rel=1e-4)
    tokens = values[0]["tokens"]
    assert values[0]["perplexity"] == pytest.approx(np.exp(-scores[0] / tokens), rel=1e-4)
    assert columns[0][1] == str(tokens)
    translator = kt.Seq2SeqLM.from_preset(folder / "plain")
    code, out, _ = run("score", "--preset", folder / "plain", "--format", "tsv", "a man\ttwo dogs")
    expected = translator.score("a man", "two dogs")
    assert code == 0 and float(out.split("\t")[0]) == pytest.approx(expected, rel=1e-4)


def test_translate_n_best(run, folder):
    arguments = ("translate", "--preset", folder / "plain", "--n-best", 3, "--max-new-tokens", 4)
    text = "\n".join(LINES)
    code, out, _ = run(*arguments, "--format", "json", stdin=text)
    assert code == 0
    values = [json.loads(line) for line in out.splitlines()]
    assert [value["text"] for value in values] == LINES
    rows = [value["translations"] for value in values]
    found = kt.Seq2SeqLM.from_preset(folder / "plain").generate(
        [LINES[0], LINES[2], LINES[4]], max_new_tokens=4, num_samples=3, return_details=True,
        sampler=kt.generation.BeamSearch(num_beams=5),
    )  # fmt: skip
    for mine, theirs in zip((rows[0], rows[2], rows[4]), found, strict=True):
        assert [(row["text"], row["end"]) for row in mine] == [
            (each.text, each.finish_reason) for each in theirs
        ]
        scores = [each.score for each in theirs]
        assert [row["score"] for row in mine] == pytest.approx(scores, abs=1e-4)
    _, out, _ = run(*arguments, stdin=text)
    shown = ["\t".join(" ".join(row["text"].split()) for row in each) for each in rows]
    assert out.splitlines() == shown
    assert "--n-best 3 needs --beams 3 or more" in run(*arguments, "--beams", 2, "x")[2]


def test_translate_between_languages(run, folder, tmp_path):
    languages = ["<2de>", "<2fr>"]
    tokenizer = kt.Tokenizer.train(TEXTS, vocabulary_size=300, special_tokens=languages)
    translator = kt.Seq2SeqLM(kt.models.Seq2Seq(tiny_config("seq2seq", tokenizer)), tokenizer)
    translator.save_to_preset(tmp_path / "translator")
    arguments = ("translate", "--preset", tmp_path / "translator", "--max-new-tokens", 4)
    code, out, _ = run(*arguments, "--beams", 1, "--target", "fr", "--format", "json", LINES[0])
    (found,) = json.loads(out)["translations"]
    expected = translator.generate(LINES[0], 4, "greedy", target="fr")
    assert (code, found["text"]) == (0, expected)
    # Before the weights are read, which are gone.
    (tmp_path / "translator" / "model.safetensors").unlink()
    code, out, errors = run(*arguments, "--target", "german", LINES[0])
    assert (code, out) == (2, "")
    assert "`target` is 'german', which is not a language of this model. It knows de, fr." in errors
    assert "leave out `source`" in run(*arguments, "--source", "de", LINES[0])[2]
    plain = run("translate", "--preset", folder / "plain", "--source", "de", LINES[0])
    assert plain[0] == 2 and "This model has no tokens for languages" in plain[2]


def test_translate_with_constraints(run, folder, tmp_path):
    arguments = ("translate", "--preset", folder / "plain", "--max-new-tokens", 9, "--beams", 1)
    code, out, _ = run(*arguments, "--regex", "two (dogs|bike)", stdin=f"{LINES[0]}\n\nx\n")
    first, empty, last = out.splitlines()
    assert code == 0 and empty == ""
    assert {first, last} <= {"two dogs", "two bike"}
    choice = run(*arguments, "--choice", "two dogs", "--choice", "a bike", "x")[1]
    assert choice in ("two dogs\n", "a bike\n")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [null, true]}', encoding="utf-8")
    assert "cannot spell any text" in run(*arguments, "--json-schema", schema, "x")[2]
    tokenizer = kt.Tokenizer.train(TEXTS, vocabulary_size=300)  # which has all bytes
    lm = kt.CausalLM(kt.models.Decoder(tiny_config("decoder", tokenizer)), tokenizer)
    lm.save_to_preset(tmp_path / "lm")
    generated = run("generate", "--preset", tmp_path / "lm", "--json-schema", schema, "is it so: ")
    assert generated[0] == 0 and generated[1].removeprefix("is it so: ") in ("null\n", "true\n")
    schema.write_text('{"enum": ', encoding="utf-8")
    code, _, errors = run(*arguments, "--json-schema", schema, "x")
    assert code != 0 and f"--json-schema {schema}: " in errors


def test_generate_reads_standard_input(run, folder):
    arguments = ("generate", "--preset", folder / "lm", "--max-new-tokens", 5)
    code, out, _ = run(*arguments, "--format", "json", stdin="a man\n\ntwo dogs\n")
    assert code == 0
    values = [json.loads(line) for line in out.splitlines()]
    assert values[1] == {"text": "", "continuations": []}
    texts = [value["continuations"][0]["text"] for value in (values[0], values[2])]
    lm = kt.CausalLM.from_preset(folder / "lm")
    assert texts == lm.generate(["a man", "two dogs"], max_new_tokens=5)
    stream = run(*arguments, "--stream", stdin="a man\n\ntwo dogs\n")
    assert stream == (0, f"a man{texts[0]}\n\ntwo dogs{texts[1]}\n", "")
    one, two = run(*arguments, "--n-best", 2, "--top-k", 20, "--seed", 3, "a man")[1].splitlines()
    assert one.startswith("a man") and two.startswith("a man") and one != two


@pytest.mark.backend_independent
def test_the_kind_of_a_preset_is_checked_before_the_network(run, monkeypatch):
    """The weights of these are on the hub, which must not be asked."""

    def asked_for(*arguments, **options):
        raise AssertionError("The hub was asked.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", asked_for)
    for command, preset, message in (
        ("translate", "bert_base_en_uncased", "Seq2SeqLM needs 'seq2seq'"),
        ("generate", "t5_small_multi", "CausalLM needs 'decoder'"),
        ("embed", "t5_small_multi", "TextEmbedder needs 'encoder' or 'decoder'"),
        ("score", "bert_base_en_uncased", "CausalLM needs 'decoder'"),
        ("recognize", "gpt2_base_en", "is a CausalLM, not a TokenClassifier"),
        ("fill-mask", "bert_base_en_ner", "is a TokenClassifier, not a MaskedLM"),
    ):
        code, out, errors = run(command, "--preset", preset, "a")
        assert (code, out) == (2, "") and message in errors
    with pytest.raises(ValueError, match="of kind 'encoder', but Seq2Seq needs 'seq2seq'"):
        kt.models.Seq2Seq.from_preset("bert_base_en_uncased")


def test_translate_takes_ordinary_text_where_the_preset_says_so(run, folder):
    text = "A man's bike, isn't it?"
    code, out, _ = run(
        "translate", "--preset", folder / "words", "--beams", 2, "--max-new-tokens", 8, text
    )
    translator = kt.Seq2SeqLM.from_preset(folder / "words")
    beam = kt.generation.BeamSearch(num_beams=2)
    expected = translator.generate(moses_tokenize(text), max_new_tokens=8, sampler=beam)
    assert (code, out) == (0, moses_detokenize(expected) + "\n")


def test_translate_with_the_bundled_preset(run):
    code, out, _ = run(
        "translate", "--preset", "transformer_tiny_en_de", "--beams", 1, "A MAN rides a bike."
    )
    assert code == 0
    assert re.fullmatch(r"ein mann fährt (ein |auf einem )?fahrrad\.\n", out)


def test_generate(run, folder):
    code, out, _ = run("generate", "--preset", folder / "lm", "a man", "--max-new-tokens", 4)
    lm = kt.CausalLM.from_preset(folder / "lm")
    assert code == 0
    assert out == lm.generate("a man", max_new_tokens=4, return_prompt=True) + "\n"
    assert out.startswith("a man")
    code, streamed, _ = run(
        "generate", "--preset", folder / "lm", "a man", "--max-new-tokens", 4, "--stream"
    )
    assert (code, streamed) == (0, out)


def test_generate_draws(run, folder):
    arguments = ["generate", "--preset", folder / "lm", "a man", "--max-new-tokens", 6]
    arguments += ["--temperature", 1.5, "--top-k", 50, "--top-p", 0.99]
    texts = [run(*arguments, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    stop = texts[0].removeprefix("a man").rstrip("\n")[3:5]
    code, cut, _ = run(*arguments, "--seed", 1, "--stop", stop)
    assert code == 0 and stop not in cut.removeprefix("a man") and texts[0].startswith(cut[:-1])
    code, _, error = run(*arguments, "--beams", 2)
    assert code == 2 and "--beams searches, but --temperature" in error
