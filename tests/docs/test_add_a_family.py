"""docs/add_a_family.md, done as a stranger would, from what the page says alone."""

import importlib.util
import json
import math
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import TextClassifier
from keras_transformer.checkpoints import variable_shapes
from keras_transformer.checkpoints.families import FAMILIES, decoders
from keras_transformer.config import OPTIONS
from tests.checkpoints import families, test_families
from tests.fences import FENCE

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "add_a_family.md"
CODE = [match["code"] for match in FENCE.finditer(PAGE.read_text(encoding="utf-8"))]
FILE, USE, CHECK, RELATIVE = CODE
NUMBERS = range(3)
_LLAMA = families.CONFIGS["llama"][1][1]
ARCEE_CONFIGS = [
    {**_LLAMA, "head_dim": None},
    {**_LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2, "mlp_bias": True},
    {**_LLAMA, "hidden_act": "gelu", "tie_word_embeddings": True},
]


def configs_of_page():
    """The entry for the table of the tests, with the sizes that it starts from."""
    blocks = PAGE.read_text(encoding="utf-8").split("```py\n")[1:]
    entry, sizes = (textwrap.dedent(block.split("```")[0]) for block in blocks)
    names = {}
    exec(sizes, names)
    return eval(f"{{{entry}}}", names)["biogpt"]


@pytest.fixture
def biogpt(tmp_path, monkeypatch):
    """The page's file in a folder of its own, imported and put into the table."""
    path = tmp_path / "biogpt.py"
    path.write_text(FILE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("biogpt", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "biogpt", module)
    monkeypatch.setitem(FAMILIES, "biogpt", module.BIOGPT)
    monkeypatch.chdir(tmp_path)
    return module.BIOGPT


@pytest.fixture
def arcee(monkeypatch):
    names = {}
    exec(RELATIVE, names)
    monkeypatch.setitem(FAMILIES, "arcee", names["ARCEE"])
    monkeypatch.setitem(families.CONFIGS, "arcee", ("Arcee", ARCEE_CONFIGS))
    return names["ARCEE"]


@pytest.mark.backend_independent
def test_one_file_of_fewer_than_150_lines_and_no_layers():
    assert len(FILE.splitlines()) < 150
    assert "keras_transformer.layers" not in FILE and "import keras\n" not in FILE
    assert len(RELATIVE.splitlines()) < 30


@pytest.mark.backend_independent
def test_the_package_has_the_file_of_the_page():
    """So that the tests of all families are those of the page."""
    path = Path(decoders.__file__).with_name("biogpt.py")
    assert path.read_text(encoding="utf-8") == FILE
    assert families.CONFIGS["biogpt"] == configs_of_page()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_relative_has_the_same_logits(arcee, tmp_path, number):
    test_families.test_same_outputs(test_families.loaded(tmp_path, "arcee", number))


@pytest.mark.backend_independent
@pytest.mark.parametrize("number", NUMBERS)
def test_a_relative_is_exported(arcee, tmp_path, number):
    both = test_families.loaded(tmp_path / "theirs", "arcee", number)
    test_families.test_export_is_the_way_back(tmp_path, both)


@pytest.mark.backend_independent
def test_the_page_checks_itself(biogpt, monkeypatch):
    """The two blocks that need the file beside them."""
    monkeypatch.delitem(FAMILIES, "biogpt")
    exec(compile(USE, "use", "exec"), {"__name__": "__main__"})
    monkeypatch.delitem(FAMILIES, "biogpt")
    exec(compile(CHECK, "check", "exec"), {"__name__": "__main__"})
    assert FAMILIES["biogpt"] is biogpt


def test_the_head_of_a_classifier(biogpt, tmp_path):
    reference = families.make("biogpt", 0, "ForSequenceClassification", num_labels=3)
    classifier = TextClassifier.from_preset(test_families.saved(reference, tmp_path / "folder"))
    assert classifier.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    ids, mask = families.batch(pad_id=1)
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        expected = reference(**inputs).logits.numpy()
    logits = classifier.predict({"token_ids": ids, "padding_mask": mask}, verbose=0)
    assert np.abs(logits - expected).max() <= 1e-4


@pytest.mark.backend_independent
def test_what_it_says_of_the_published_models(biogpt, arcee):
    for family in (biogpt, arcee):
        published = getattr(transformers, f"{families.CONFIGS[family.model_type][0]}Config")()
        assert family.config({}) == family.config(published.to_dict())
    text = PAGE.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    preset = json.loads(text)
    count = preset["metadata"]["parameters"]
    assert count == pytest.approx(347e6, rel=1e-3)  # Luo et al. 2022
    assert sum(map(math.prod, variable_shapes(biogpt.config({})).values())) == count


@pytest.mark.backend_independent
def test_the_page_names_every_value_that_changes_an_architecture():
    """Sizes and rates aside, a reader finds all values in the first table."""
    from tests.docs.test_families_page import NUMBERS as numbers

    table = PAGE.read_text(encoding="utf-8").split("## Does it fit?")[1].split("## The file")[0]
    values = set(OPTIONS) - numbers | {"head_dim", "rotary_base"}
    said = {"kind", "sinusoidal_interleaved", "relative_num_buckets"}
    assert {name for name in values - said if f"`{name}" not in table} == set()
