"""The console command, in this process and as a program of its own."""

import io
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize

ROOT = Path(__file__).parents[1]
COMMANDS = ("presets", "info", "plan", "classify", "translate", "generate")
TEXTS = ["a man rides a bike .", "two dogs are playing in the snow .", "it isn &apos;t cold ."] * 8


def tiny_config(kind, tokenizer):
    return kt.TransformerConfig(
        kind=kind,
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        normalize_first=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with three presets that are small and know next to nothing."""
    folder = tmp_path_factory.mktemp("presets")
    tokenizer = kt.Tokenizer.train(TEXTS, vocabulary_size=300, lowercase=True)
    encoder = kt.models.Encoder(tiny_config("encoder", tokenizer))
    classifier = kt.TextClassifier(encoder, tokenizer, labels=["cold", "warm"])
    classifier.save_to_preset(folder / "classifier", metadata={"family": "transformer"})
    translator = kt.Seq2SeqLM(kt.models.Seq2Seq(tiny_config("seq2seq", tokenizer)), tokenizer)
    translator.save_to_preset(folder / "words", metadata={"text": "moses"})
    translator.save_to_preset(folder / "plain")
    lm = kt.CausalLM(kt.models.Decoder(tiny_config("decoder", tokenizer)), tokenizer)
    lm.save_to_preset(folder / "lm")
    return folder


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command: its exit code, what it printed, and its errors."""

    def run(*arguments, stdin=None):
        stream = io.StringIO(stdin or "")
        stream.isatty = lambda: stdin is None
        monkeypatch.setattr(sys, "stdin", stream)
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        out, errors = capsys.readouterr()
        return code, out, errors

    return run


@pytest.mark.backend_independent
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_shows_an_example(run, command):
    code, out, errors = run(command, "--help")
    assert (code, errors) == (0, "")
    examples = out[out.index("example") :]
    assert f"keras-transformer {command}" in examples


@pytest.mark.backend_independent
def test_help_as_a_program():
    installed = shutil.which("keras-transformer", path=sysconfig.get_path("scripts"))
    programs = [[sys.executable, "-m", "keras_transformer.cli"]] + (
        [[installed]] if installed else []
    )
    for program in programs:
        done = subprocess.run(
            [*program, "--help"], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert all(f"  {command} " in done.stdout for command in COMMANDS)
        assert "Traceback" not in done.stderr


@pytest.mark.backend_independent
def test_errors_of_the_program_are_one_line_and_the_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer.cli", "info", "minilm_l6"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("keras-transformer: error: There is no preset 'minilm_l6'.")
    assert "Did you mean 'minilm_l6_en'" in last
    assert "Traceback" not in done.stderr


@pytest.mark.backend_independent
def test_presets_prints_a_table(run):
    code, out, errors = run("presets")
    assert (code, errors) == (0, "")
    header, *rows = out.splitlines()
    columns = ["name", "family", "kind", "parameters", "task", "size on disk", "weights"]
    assert re.split(r"\s{2,}", header) == columns
    assert [row.split()[0] for row in rows] == kt.list_presets()
    minilm = next(row for row in rows if row.startswith("minilm_l6_en"))
    assert re.split(r"\s{2,}", minilm)[1:5] == ["bert", "encoder", "22,713,216", "TextEmbedder"]


@pytest.mark.backend_independent
def test_presets_of_a_task(run):
    code, out, _ = run("presets", "--task", "token_classification")
    assert code == 0 and [row.split()[0] for row in out.splitlines()[1:]] == ["bert_base_en_ner"]
    code, _, errors = run("presets", "--task", "poetry")
    assert code == 2 and "`task` must be one of 'masked_lm'" in errors


@pytest.mark.backend_independent
def test_presets_says_where_weights_are_not(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args, **kwargs: None)
    _, out, _ = run("presets")
    rows = {row.split()[0]: re.split(r"\s{2,}", row)[5:] for row in out.splitlines()[1:]}
    assert rows["minilm_l6_en"] == ["-", "none: extra [minilm]"]
    assert rows["bert_base_en_uncased"] == ["-", "none: on the hub"]
    assert rows["transformer_base"] == ["-", "none"]


@pytest.mark.backend_independent
def test_info_counts_the_parameters_by_part(run):
    code, out, _ = run("info", "minilm_l6_en")
    assert code == 0
    assert re.search(r"hidden_dim +384\n", out)
    parts = out[out.index("\nparameters\n") : out.index("\nmemory\n")]
    *counts, total = (int(n.replace(",", "")) for n in re.findall(r"  ([\d,]+)(?:  |\n)", parts))
    assert sum(counts) == total == 22_713_216
    assert re.search(
        r"float32 +float16, bfloat16 +int8\n +weights +90\.9 MB +45\.4 MB +22\.7 MB", out
    )
    assert "keys and values" not in out  # an encoder keeps none


@pytest.mark.backend_independent
def test_info_counts_the_cache(run):
    """Llama 3 has 32 layers with 8 key/value heads of 128: 131,072 numbers a token and side."""
    code, out, _ = run("info", "llama3_8b_en", "--length", "4096", "--batch", "2")
    assert code == 0
    bytes_of_one = 2 * 32 * 8 * 128 * 2 * 4096
    row = re.search(r"keys and values, 2 x 4,096 tokens" + r" +([\d.]+) GB" * 2 + " +(.*) MB", out)
    scales = 2 * 32 * 8 * 2 * 4096 * 4  # of int8: float32, for each key and each value
    taken = (4 * bytes_of_one / 1e9, 2 * bytes_of_one / 1e9, (bytes_of_one + scales) / 1e6)
    assert [float(x) for x in row.groups()] == [round(size, 1) for size in taken]
    assert run("info", "llama3_8b_en", "--length", "0")[0] == 2


def test_info_of_a_folder_with_a_head(run, folder):
    code, out, _ = run("info", folder / "classifier")
    assert code == 0
    assert "head" in out
    assert "['cold', 'warm']" in out
    assert str(folder / "classifier" / "model.safetensors") in out


def test_info_allocates_nothing(run, tmp_path):
    values = (ROOT / "presets/minilm_l6_en/config.json").read_text()
    values = re.sub(r'"weights": \{.*?\}', '"nothing": {}', values, flags=re.DOTALL)
    (tmp_path / "config.json").write_text(
        values.replace('"intermediate_dim": 1536', '"intermediate_dim": 2000000000')
    )
    code, out, _ = run("info", tmp_path)
    assert code == 0
    assert "not on this machine" in out


def test_classify(run, folder):
    texts = ["a man rides a bike .", "two dogs", "it is cold ."]
    expected = kt.TextClassifier.from_preset(folder / "classifier").classify(texts)
    arguments = ("classify", "--preset", folder / "classifier")
    for code, out, errors in (
        run(*arguments, *texts),
        run(*arguments, stdin="\n".join([texts[0], "", *texts[1:], ""])),
    ):
        assert (code, errors) == (0, "")
        rows = [re.split(r"\s{2,}", row) for row in out.splitlines()]
        assert [row[0] for row in rows] == [label for label, _ in expected]
        shares = [float(row[1]) for row in rows]
        assert shares == pytest.approx([share for _, share in expected], abs=6e-4)
        assert [row[2] for row in rows] == texts


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


def test_translate_keeps_the_lines_of_standard_input(run, folder):
    texts = ["two dogs, playing.", "a man"]
    code, out, _ = run(
        "translate", "--preset", folder / "plain", "--beams", 1, "--max-new-tokens", 4,
        stdin=f"{texts[0]}\n\n  \n{texts[1]}\n",
    )  # fmt: skip
    translator = kt.Seq2SeqLM.from_preset(folder / "plain")
    first, second = translator.generate(texts, max_new_tokens=4)
    assert (code, out) == (0, f"{first}\n\n\n{second}\n")


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
    assert code == 2 and "--beams does not go with --temperature" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["info"], "required: PRESET"),
        (["info", "nothing_like_it"], "There is no preset 'nothing_like_it'"),
        (["info", "/no/such/folder"], "There is no preset '/no/such/folder'"),
        (["info", str(ROOT / "docs")], "is not a preset"),
        (["classify", "--preset", "minilm_l6_en", "a"], "is a TextEmbedder, not a TextClassifier"),
        (["classify", "--preset", "{folder}/classifier"], "There is no text"),
        (["translate", "--preset", "minilm_l6_en", "a"], "Seq2SeqLM needs 'seq2seq'"),
        (["translate", "--preset", "x", "--beams", "0", "a"], "at least 1, received '0'"),
        (["translate", "--preset", "x", "--beams", "many", "a"], "received 'many'"),
        (["generate", "--preset", "{folder}/plain", "a"], "CausalLM needs 'decoder'"),
        (["generate", "--preset", "{folder}/lm", ""], "is empty"),
    ],
)
def test_a_mistake_is_one_line_and_the_code_2(run, folder, arguments, message):
    code, out, errors = run(*(argument.format(folder=folder) for argument in arguments))
    assert (code, out) == (2, "")
    assert errors.startswith("keras-transformer: error: ")
    assert errors.count("\n") == 1
    assert message in errors
