"""Display in a notebook: tables, names to complete, and a help that begins with what to do."""

import importlib
import pydoc
import re
from xml.etree import ElementTree

import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import resolve_preset
from keras_transformer.support.notebook import html_table
from tests.tasks.common import classifier

pytestmark = pytest.mark.one_backend


def rows(html):
    """The rows of a table, as lists of texts."""
    table = ElementTree.fromstring(html).find("table/tbody")
    return [["".join(cell.itertext()) for cell in row] for row in table]


@pytest.mark.backend_independent
def test_completion_offers_public_names_only():
    assert set(dir(kt)) == {*kt.__all__, "__version__"}
    hidden = {"support", "kernels", "config", "choose_backend"}
    assert not hidden & set(dir(kt)) and all(hasattr(kt, name) for name in hidden)
    names = [name for name in kt.__all__ if pydoc.inspect.ismodule(getattr(kt, name))]
    for name in (*names, "checkpoints", "tasks", "tokenizers"):
        module = importlib.import_module(f"keras_transformer.{name}")
        assert dir(module) == sorted(module.__all__)
        assert all(hasattr(module, public) for public in module.__all__)


@pytest.mark.backend_independent
def test_help_begins_with_what_to_do():
    lines = pydoc.plain(pydoc.render_doc(kt)).splitlines()
    beginning = "\n".join(lines[: lines.index("PACKAGE CONTENTS")])
    assert beginning.index("from_preset") < beginning.index(".fit(") < beginning.index("classify(")
    for path in re.findall(r"\bkt\.([\w.]+)", kt.__doc__):
        value = kt
        for name in path.rstrip(".").split("."):
            value = getattr(value, name)
    listed = re.findall(
        r"^ {4}(\w[\w, ]*?)(?:  +\S|$)", kt.__doc__.split("What there is:")[1], re.M
    )
    assert listed
    assert {name for line in listed for name in line.split(", ")} <= set(kt.__all__)


@pytest.mark.backend_independent
def test_texts_stand_for_themselves():
    html = html_table("<b>", {"a & b": "</td><script>", "count": 1234567, "none": None})
    assert "<script" not in html
    assert rows(html) == [["a & b", "</td><script>"], ["count", "1,234,567"]]


@pytest.mark.backend_independent
def test_presets():
    names = kt.list_presets()
    head, *table = rows(names._repr_html_())
    assert [row[0] for row in table] == names == sorted(names)
    found = {row[0]: dict(zip(head, row, strict=True)) for row in table}
    translator = found["transformer_tiny_en_de"]
    assert translator["parameters"] == "2,605,568"
    assert translator["task"] == "Seq2SeqLM" and translator["weights"] == "on this machine"
    assert found["transformer_base"]["weights"] == "none, only a config"
    few = kt.list_presets("text_embedding")
    assert len(rows(few._repr_html_())) == len(few) + 1
    one = dict(rows(resolve_preset("gpt_tiny_shakespeare")._repr_html_()))
    assert one["parameters"] == "2,755,328" and one["licence"] == "apache-2.0"


@pytest.mark.backend_independent
def test_tokenizer():
    tokenizer = kt.Tokenizer.train(["one two"] * 2, kind="wordpiece", vocabulary_size=300)
    shown = dict(rows(tokenizer._repr_html_()))
    assert shown["kind"] == "WordPiece"
    assert shown["vocabulary"] == f"{tokenizer.vocabulary_size:,}"
    assert shown["pad"].startswith("[PAD]") and f"(id {tokenizer.pad_id})" in shown["pad"]


def test_task_and_backbone():
    task = classifier(labels=["<bad>", "good"])
    shown = dict(rows(task._repr_html_()))
    assert shown["parameters"] == f"{task.count_params():,}"
    assert shown["labels"] == "<bad>, good" and shown["task"] == "TextClassifier"
    assert shown["tokenizer"] == repr(task.tokenizer)
    assert "trainable" not in shown
    task.backbone.trainable = False
    shown = dict(rows(task._repr_html_()))
    assert (
        shown["trainable"] == f"{task.backbone.config.hidden_dim * 2 + 2}"
    )  # the head's kernel and bias
    alone = dict(rows(task.backbone._repr_html_()))
    assert alone["parameters"] == f"{task.backbone.count_params():,}" and "task" not in alone
