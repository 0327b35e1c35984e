"""`keras-transformer presets` and `keras-transformer info`."""

import json
import logging
import re
import shutil

import pytest

import keras_transformer as kt
from tests.cli.conftest import ROOT

pytestmark = pytest.mark.one_backend


@pytest.mark.backend_independent
def test_presets_prints_a_table(run):
    code, out, errors = run("presets")
    assert (code, errors) == (0, "")
    header, *rows = out.splitlines()
    columns = "name, family, kind, parameters, task, language, size on disk, weights"
    assert re.split(r"\s{2,}", header) == columns.split(", ")
    assert [row.split()[0] for row in rows] == kt.list_presets()
    minilm = next(row for row in rows if row.startswith("minilm_l6_en"))
    assert re.split(r"\s{2,}", minilm)[1:5] == ["bert", "encoder", "22,713,216", "TextEmbedder"]


@pytest.mark.backend_independent
def test_presets_of_a_task(run):
    code, out, _ = run("presets", "--task", "token_classification")
    assert code == 0 and [row.split()[0] for row in out.splitlines()[1:]] == ["bert_base_en_ner"]
    wanted = ("--language", "de", "--parameters", "<1B", "--license", "cc-by-4.0")
    code, out, _ = run("presets", *wanted, "--modality", "text")
    assert code == 0
    assert [row.split()[0] for row in out.splitlines()[1:]] == ["opus_mt_en_de"]
    code, _, errors = run("presets", "--task", "poetry")
    assert code == 2 and "one of AudioClassifier, " in errors


@pytest.mark.backend_independent
def test_presets_says_where_weights_are_not(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args, **kwargs: None)
    _, out, _ = run("presets")
    rows = {row.split()[0]: re.split(r"\s{2,}", row)[6:] for row in out.splitlines()[1:]}
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
def test_info_of_two_towers(run):
    """Numbers beside the towers, such as a scale, have rows of their own."""
    code, out, _ = run("info", "siglip2_base_patch16_naflex")
    assert code == 0
    assert "similarity scale                          1" in out and "375,234,050" in out


@pytest.mark.backend_independent
def test_info_of_a_convolutional_network(run):
    """A row for each stage, of all of its layers."""
    _, out, _ = run("info", "gemma3n_vision_instruct_e2b")
    rows = [line.split() for line in out.splitlines() if "encoder: input" in line]
    stages = [int(row[4].replace(",", "")) for row in rows if row[2] == "stage"]
    assert stages == [1_492_608, 2_439_168, 63_407_744, 211_540_480] and len(rows) < 15


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


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u2028\u202e"
# What a terminal obeys (ECMA-48: C0, C1), ends a line (Unicode: Zl, Zp), or turns its direction.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A preset whose every text would change a terminal or a log."""
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 8}
    backbone = kt.Backbone.from_preset("minilm_l6_en", load_weights=False, **sizes)
    tokenizer = kt.Tokenizer.from_preset("minilm_l6_en")
    labels = [f"good{HOSTILE}", f"bad\n{HOSTILE}"]
    task = kt.TextClassifier(backbone, tokenizer, labels=labels)
    folder = tmp_path_factory.mktemp("hostile")
    about = {
        "license": f"mit\n---\n# Owned\n{HOSTILE}",
        "description": f"A model.{HOSTILE}",
        "source": f"hf://a/b{HOSTILE}",
    }
    task.save_to_preset(folder, metadata=about)
    return folder, labels, about


def test_info_of_a_task_that_there_is_not(run, folder, tmp_path):
    shutil.copytree(folder / "classifier", tmp_path / "changed")
    path = tmp_path / "changed" / "config.json"
    values = json.loads(path.read_text())
    values["task"]["name"] = f"Other{HOSTILE}"
    path.write_text(json.dumps(values))
    code, out, errors = run("info", str(tmp_path / "changed"))
    assert code == 2 and "There are: AudioClassifier, " in errors
    assert not OBEYED.search(out + errors)


def test_what_a_file_says_does_not_command_the_terminal(run, hostile):
    folder, labels, _ = hostile
    for arguments in (
        ("info", folder),
        ("classify", "--preset", folder, "a film", "b"),
        ("classify", "--preset", folder, "--format", "tsv", "a film"),
        ("classify", "--preset", folder, "--format", "json", "a film"),
    ):
        code, out, errors = run(*map(str, arguments))
        assert code == 0 and out
        assert not OBEYED.search(out + errors), arguments
        if "json" in arguments:
            (rows,) = (value for value in json.loads(out).values() if isinstance(value, list))
            assert {row["label"] for row in rows} == set(labels)
        elif arguments[0] == "classify":
            assert len(out.splitlines()) == len(arguments) - (5 if "tsv" in arguments else 3)


def test_errors_and_logs_do_not_command_the_terminal(run, hostile, tmp_path, caplog):
    folder, *_ = hostile
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    values = json.loads(path.read_text())
    values["backbone"][f"key{HOSTILE}"] = 1
    path.write_text(json.dumps(values))
    code, out, errors = run("info", str(tmp_path / "copy"))
    assert code == 2 and "key\\x1b]0;title" in errors and not OBEYED.search(out + errors)
    with pytest.raises(ValueError, match="key") as error:
        kt.Backbone.from_preset(tmp_path / "copy")
    assert not OBEYED.search(str(error.value))
    logging.getLogger("keras_transformer").warning("%s of a file", HOSTILE)
    assert "\\x1b]0;title" in caplog.text and not OBEYED.search(caplog.records[-1].getMessage())


def test_a_card_and_a_table_hold_what_a_file_says_in_its_place(hostile):
    yaml = pytest.importorskip("yaml")
    folder, _, about = hostile
    card = (folder / "README.md").read_text()
    _, header, body = card.split("---\n", 2)
    assert yaml.safe_load(header) == {
        "library_name": "keras_transformer",
        "license": about["license"],
    }
    assert not OBEYED.search(card) and "# Owned" not in body
    assert all(line.count("|") == 3 for line in body.splitlines() if line.startswith("|"))
    html = kt.checkpoints.resolve_preset(str(folder))._repr_html_()
    assert not OBEYED.search(html)


def test_lines_of_a_server_log_are_ascii():
    from keras_transformer.serving.observing import JsonLines

    record = logging.LogRecord("a", logging.INFO, "", 0, HOSTILE, (), None)
    line = JsonLines().format(record)
    assert line.isascii() and json.loads(line)["event"] == HOSTILE
