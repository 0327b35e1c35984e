"""The console command, in this process and as a program of its own."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer.cli.parser import COMMANDS
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize

pytestmark = pytest.mark.one_backend

ROOT = Path(__file__).parents[2]
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
    """A folder with presets that are small and know next to nothing."""
    folder = tmp_path_factory.mktemp("presets")
    tokenizer = kt.Tokenizer.train(TEXTS, kind="wordpiece", vocabulary_size=300, lowercase=True)
    encoder = kt.models.Encoder(tiny_config("encoder", tokenizer))
    classifier = kt.TextClassifier(encoder, tokenizer, labels=["cold", "warm", "hot"])
    classifier.save_to_preset(folder / "classifier", metadata={"family": "transformer"})
    names = ["O", "B-PER", "I-PER"]
    kt.TokenClassifier(encoder, tokenizer, labels=names).save_to_preset(folder / "tagger")
    kt.QuestionAnswerer(encoder, tokenizer).save_to_preset(folder / "answerer")
    kt.MaskedLM(encoder, tokenizer).save_to_preset(folder / "masked")
    kt.TextEmbedder(encoder, tokenizer).save_to_preset(folder / "embedder")
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
        content = stdin.encode() if isinstance(stdin, str) else stdin or b""
        stream = io.TextIOWrapper(io.BytesIO(content))
        stream.isatty = lambda: stdin is None
        monkeypatch.setattr(sys, "stdin", stream)
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        out, errors = capsys.readouterr()
        return code, out, errors

    return run


def program(*arguments, **options):
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "keras_transformer", *arguments],
        capture_output=True, text=True, timeout=300, **{"cwd": ROOT, **options},
    )  # fmt: skip


@pytest.mark.backend_independent
@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_of_each_command_shows_an_example(run, command):
    code, out, errors = run(command, "--help")
    assert (code, errors) == (0, "")
    examples = out[out.index("example") :]
    assert f"keras-transformer {command}" in examples
    assert max(map(len, out.splitlines())) <= 100 or command == "plan"


@pytest.mark.backend_independent
def test_every_command_is_on_its_page():
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        section = re.search(rf"^## {command.name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert section, f"docs/command_line.md has no section on {command.name}"
        told = section[1] + page[: page.index("## presets")]
        for name, _ in command.options:
            assert not name.startswith("--") or f"`{name}" in told, f"{command.name} {name}"


@pytest.mark.backend_independent
def test_help_as_a_program():
    installed = shutil.which("keras-transformer", path=sysconfig.get_path("scripts"))
    done = [program("--help")]
    if installed:
        done.append(subprocess.run([installed, "--help"], capture_output=True, text=True, cwd=ROOT))
    for each in done:
        assert each.returncode == 0
        assert all(f"  {command.name} " in each.stdout for command in COMMANDS)
        assert "Traceback" not in each.stderr


@pytest.mark.backend_independent
def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith(f"keras_transformer {kt.__version__}, Keras {keras.__version__} on ")


@pytest.mark.backend_independent
def test_errors_of_the_program_are_one_line_and_the_code_2():
    done = program("info", "minilm_l6")
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("keras-transformer: error: There is no preset 'minilm_l6'.")
    assert "Did you mean 'minilm_l6_en'" in last
    assert "Traceback" not in done.stderr


@pytest.mark.backend_independent
@pytest.mark.parametrize("backend", ["jaxx", "openvino"])
def test_a_wrong_backend_is_one_line(backend):
    done = program("--help", env={**os.environ, "KERAS_BACKEND": backend})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"keras-transformer: error: KERAS_BACKEND is '{backend}', and must be one of "
        "'tensorflow', 'jax', 'torch'.\n"
    )
    script = "import keras_transformer"
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=env
    )
    assert "Traceback" in done.stderr and "ValueError: KERAS_BACKEND is" in done.stderr


@pytest.mark.backend_independent
def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "keras_transformer", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.backend_independent
def test_ctrl_c_is_one_line():
    arguments = (
        "--preset",
        "gpt_tiny_shakespeare",
        "ROMEO:",
        "--stream",
        "--max-new-tokens",
        "9999",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "generate", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout.read(6) == "ROMEO:"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "keras-transformer: interrupted"
    assert "Traceback" not in errors


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "usage: keras-transformer"),
        (["translate", "--help"], 0, "examples:"),
        (["translate", "--preset", "x", "--sing", "a"], 2, "unrecognized arguments: --sing"),
        (["--version"], 1, "Keras is imported"),
    ],
)
def test_help_and_wrong_options_need_no_keras(arguments, code, said, tmp_path):
    (tmp_path / "keras.py").write_text("raise SystemExit('Keras is imported')\n")
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    done = program(*arguments, env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.backend_independent
def test_ctrl_c_while_the_package_is_imported_is_one_line(tmp_path):
    """A package of Keras's name waits for the signal."""
    (tmp_path / "keras.py").write_text("print('in', flush=True)\nimport time\ntime.sleep(99)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "presets"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "keras-transformer: interrupted\n")


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
    assert code == 2 and "`task` must be one of 'causal_lm'" in errors


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
    assert "['cold', 'warm', 'hot']" in out
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


LINES = ["a man rides a bike .", "", "two dogs", " ", "it is cold ."]


def asked(run, folder, command, preset, *arguments, lines=LINES, forms=("tsv", "json")):
    """What a command prints for lines, in several formats: rows of columns, values of JSON."""
    printed = {}
    for form in forms:
        code, out, errors = run(
            command, "--preset", folder / preset, "--format", form, *arguments,
            stdin="\n".join(lines) + "\n",
        )  # fmt: skip
        assert (code, errors) == (0, "")
        assert out.count("\n") == len(lines)
        found = out.splitlines()
        assert [bool(row) for row in found] == [bool(x.strip() or form == "json") for x in lines]
        if form == "tsv":
            found = [row.split("\t") if row else [] for row in found]
        elif form == "json":
            found = [json.loads(row) for row in found]
            assert [value["text"] for value in found] == lines
        printed[form] = found
    return [printed[form] for form in forms]


def test_classify(run, folder):
    forms = ("text", "tsv", "json")
    text, columns, values = asked(run, folder, "classify", "classifier", forms=forms)
    task = kt.TextClassifier.from_preset(folder / "classifier")
    for i in (0, 2, 4):
        logits = task.predict([LINES[i]], verbose=0)[0].astype("float64")
        shares = np.exp(logits) / np.exp(logits).sum()
        found = values[i]["classes"]
        assert {row["label"]: row["probability"] for row in found} == pytest.approx(
            dict(zip(task.labels, shares, strict=True)), abs=1e-5
        )
        assert [row["probability"] for row in found] == pytest.approx(
            sorted(shares)[::-1], abs=1e-5
        )
        assert columns[i][::2] == [row["label"] for row in found]
        assert [float(cell) for cell in columns[i][1::2]] == pytest.approx(
            [row["probability"] for row in found], rel=1e-6
        )
        assert columns[i][0] == task.classify([LINES[i]])[0][0]
        assert text[i].split() == [columns[i][0], f"{shares.max():.3f}", *LINES[i].split()]
    alone = run("classify", "--preset", folder / "classifier", LINES[0], LINES[2])[1]
    assert alone.splitlines() == [text[0], text[2]]


def test_classify_pairs(run, folder):
    line = "a man\ttwo dogs"
    code, out, _ = run(
        "classify", "--preset", folder / "classifier", "--pairs", "--format", "tsv", line
    )
    task = kt.TextClassifier.from_preset(folder / "classifier")
    (label, share), *_ = task.classify((["a man"], ["two dogs"]))
    assert code == 0 and out.split("\t")[0] == label
    assert float(out.split("\t")[1]) == pytest.approx(share, rel=1e-4)
    code, _, error = run("classify", "--preset", folder / "classifier", "--pairs", "a man")
    assert code == 2 and "two texts, with one tab between them, received 'a man'" in error


def test_embed(run, folder):
    columns, values = asked(run, folder, "embed", "embedder")
    task = kt.TextEmbedder.from_preset(folder / "embedder")
    for i in (0, 2, 4):
        vector = task.predict([LINES[i]], verbose=0)[0]
        assert values[i]["vector"] == pytest.approx(vector.tolist(), abs=1e-5)
        assert [float(cell) for cell in columns[i]] == values[i]["vector"]
    assert values[1] == {"text": ""}


def test_fill_mask(run, folder):
    lines = ["a man rides a [MASK] .", "", "two [MASK] are [MASK] ."]
    columns, values = asked(run, folder, "fill-mask", "masked", "--top-k", 2, lines=lines)
    task = kt.MaskedLM.from_preset(folder / "masked")
    expected = [task.fill_mask(lines[0], top_k=2), *task.fill_mask(lines[2], top_k=2)]
    found = [row for value in values for row in value["fillings"]]
    assert [row["token"] for row in found] == [f.token for each in expected for f in each]
    assert [row["text"] for row in found] == [f.text for each in expected for f in each]
    assert [row["mask"] for row in found] == [1, 1, 1, 1, 2, 2]
    assert columns[0][1] == expected[0][0].token and len(columns[2]) == 16


def test_recognize(run, folder):
    lines = ["a man", "", "two dogs are playing"]
    task = kt.TokenClassifier.from_preset(folder / "tagger")
    _, out, _ = run(
        "recognize", "--preset", folder / "tagger", "--format", "json", stdin="\n".join(lines)
    )
    for line, row in zip(lines, out.splitlines(), strict=True):
        found = [e._asdict() for e in task.recognize(line)] if line else []
        kept = json.loads(row)["entities"]
        assert [{**e, "score": 0} for e in kept] == [{**e, "score": 0} for e in found]
        assert [e["score"] for e in kept] == pytest.approx([e["score"] for e in found], abs=1e-5)
        assert all(line[e["start"] : e["end"]] == e["text"] for e in kept)


def test_answer(run, folder, tmp_path):
    context = "a man rides a bike . two dogs\nare playing ."
    (tmp_path / "story.txt").write_text("\ufeff" + context, encoding="utf-8")
    lines = ["who rides ?", "", "who is playing ?"]
    task = kt.QuestionAnswerer.from_preset(folder / "answerer")
    expected = [task.answer(line, context, top_k=2) for line in lines if line]
    given = ("--context-file", tmp_path / "story.txt", "--top-k", 2)
    columns, values = asked(run, folder, "answer", "answerer", *given, lines=lines)
    for i, answers in ((0, expected[0]), (2, expected[1])):
        assert [a["text"] for a in values[i]["answers"]] == [a.text for a in answers]
        assert columns[i][0] == answers[0].text.replace("\n", "\\n")
    flat = context.replace("\n", " ")
    code, out, _ = run("answer", "--preset", folder / "answerer", stdin=f"{lines[0]}\t{flat}\n")
    assert (code, out) == (0, task.answer(lines[0], flat).text + "\n")
    code, _, error = run("answer", "--preset", folder / "answerer", "who ?")
    assert code == 2 and "a question and its context" in error
    (tmp_path / "wide.txt").write_bytes("a man".encode("utf-16"))
    code, _, error = run("answer", "--preset", "x", "--context-file", tmp_path / "wide.txt", "?")
    assert code == 2 and "wide.txt is not UTF-8" in error and "iconv" in error
    code, _, error = run("answer", "--preset", "x", "--context-file", "/no/file", "who ?")
    assert code == 2 and "/no/file" in error


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


def test_byte_order_marks_and_windows_line_ends(run, folder):
    """Are no part of a text; what is no UTF-8 is an error with its line."""
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
    assert "--n-best 3 needs as many --beams" in run(*arguments, "--beams", 2, "x")[2]


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
    with pytest.raises(ValueError, match="of kind 'encoder', and Seq2Seq needs 'seq2seq'"):
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


def test_a_file_given_as_a_text_is_told_of(run, folder, tmp_path):
    path = tmp_path / "english.txt"
    path.write_text("a man rides a bike .\n")
    arguments = ("embed", "--preset", folder / "embedder", path)
    code, out, errors = run(*arguments)
    assert code == 0 and out.count("\n") == 1
    assert f"The lines of that file are: < {path}" in errors
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


def test_an_error_names_the_line_of_the_text(run, folder, monkeypatch):
    stdin = "a [MASK] man\n\nthe [MASK]\nno mask\n"
    code, _, error = run("fill-mask", "--preset", folder / "masked", stdin=stdin)
    assert code == 2 and "error: line 4 (`texts`) has no '[MASK]'" in error
    monkeypatch.setattr("keras_transformer.cli.lines._CHUNK", 2)
    code, out, error = run("fill-mask", "--preset", folder / "masked", stdin=stdin)
    assert code == 2 and "error: line 4 (`texts`) has no" in error and out.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["info"], "required: PRESET"),
        (["info", "--preset", "x"], "--preset. PRESET is given without it. (see keras-tr"),
        (["translate", "--preset", "x", "--batch_size=4", "a"], "mean '--batch-size'? (see"),
        (["translate", "--preset", "x", "--sing", "a"], "(see keras-transformer translate --help)"),
        (["info", "nothing_like_it"], "There is no preset 'nothing_like_it'"),
        (["info", "/no/such/folder"], "There is no preset '/no/such/folder'"),
        (["info", str(ROOT / "docs")], "is not a preset"),
        (["classify", "--preset", "minilm_l6_en", "a"], "is a TextEmbedder, not a TextClassifier"),
        (["classify", "--preset", "{folder}/classifier"], "There is no text"),
        (["translate", "--preset", "minilm_l6_en", "a"], "Seq2SeqLM needs 'seq2seq'"),
        (["translate", "--preset", "x", "--beams", "0", "a"], "at least 1, received '0'"),
        (["translate", "--preset", "x", "--beams", "many", "a"], "received 'many'"),
        (
            ["generate", "--preset", "x", "--temperature", "0", "a"],
            "--temperature: must be a number above 0, received '0'. Leave it out: without",
        ),
        (["generate", "--preset", "x", "--top-p", "none", "a"], "--top-p: must be a number above"),
        (["generate", "--preset", "{folder}/plain", "a"], "CausalLM needs 'decoder'"),
        (["generate", "--preset", "{folder}/lm", ""], "is empty"),
        (["generate", "--preset", "x", "--top-p", "2", "a"], "above 0 and at most 1, received '2'"),
    ],
)
def test_a_mistake_is_one_line_and_the_code_2(run, folder, arguments, message):
    code, out, errors = run(*(argument.format(folder=folder) for argument in arguments))
    assert (code, out) == (2, "")
    assert errors.startswith("keras-transformer: error: ")
    assert errors.count("\n") == 1
    assert message in errors
