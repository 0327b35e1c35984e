"""Presets that are broken or mean harm: a right model, or an error that names the file.

Nothing else may come of them: no other exception, no code run, no file read outside of the folder,
no more memory or time than a healthy preset of that size takes.
"""

import functools
import json
import shutil

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.config.options import Part
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints import mutations
from tests.checkpoints.hostile import FORMATS, base, check, healthy, mutated, outcome
from tests.checkpoints.mutations import INDEX, WEIGHTS
from tests.thorough import THOROUGH, many

pytestmark = pytest.mark.backend_independent

# The same examples in every run, and no file of earlier ones.
bounded = functools.partial(
    settings,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


# Whose files are read by the same code as those of others: a third of the families.
_SOME = FORMATS if THOROUGH else (*FORMATS[:2], *FORMATS[2::3])


def of_a_format(name, count):
    """Draw `count` examples of our formats and one family of each kind, fewer of their kin."""
    first = name in ("ours", "sharded", "bert", "gpt2", "llama", "t5")
    return bounded(max_examples=many(count, short=None if first else count // 12))


def assert_said(said, part):
    """Assert that a part has the values that a file states."""
    for name, value in said.items():
        ours = getattr(part, name)
        if isinstance(value, dict) and isinstance(ours, Part):
            assert_said(value, ours)
        elif not isinstance(value, list):  # a value that is left out has a default
            assert value is None or (value == ours and (value is True) == (ours is True))


@pytest.mark.parametrize("name", _SOME)
def test_every_base_is_healthy(name):
    with mutated(name) as folder:
        assert check(name, folder) == healthy(name)[0]


@pytest.mark.parametrize("name", _SOME)
def test_values_of_the_config(name):
    @of_a_format(name, 40)
    @given(data=st.data())
    def values(data):
        with mutated(name) as folder:
            path = folder / "config.json"
            text = data.draw(mutations.changed_json(json.loads(path.read_text())))
            path.write_text(text)
            config = check(name, folder)
            if config is None:
                return
            said = json.loads(text)
            if name in FAMILIES:
                fields = {theirs: field.ours for theirs, field in FAMILIES[name].fields.items()}
                # Whether they are tied is seen in the weights.
                fields.pop("tie_word_embeddings", None)
                assert said.get("tie_word_embeddings") in (None, False, True)
                pairs = [(said.get(k), getattr(config, v)) for k, v in fields.items()]
                pairs = [(value, mine) for value, mine in pairs if not isinstance(mine, str)]
            else:
                assert_said(said["backbone"], config)
                pairs = []
            for value, ours in pairs:  # a value that is left out has a default
                assert value is None or (value == ours and (value is True) == (ours is True))

    values()


@pytest.mark.parametrize("name", ["ours", "bert", "t5"])
@bounded(max_examples=many(60))
@given(data=st.data())
def test_texts_that_are_no_config(name, data):
    with mutated(name) as folder:
        names = [file for file in mutations.CONFIGS if (folder / file).is_file()]
        path = folder / data.draw(st.sampled_from(names))
        text = path.read_text()
        changed = data.draw(
            mutations.changed_text(text)
            | mutations.changed_json(json.loads(text)).map(
                lambda text: text.encode("utf-8", "surrogatepass")
            )
        )
        path.write_bytes(changed)
        check(name, folder)


@pytest.mark.parametrize("name", _SOME)
def test_headers_of_the_weights(name):
    @of_a_format(name, 30)
    @given(data=st.data())
    def headers(data):
        with mutated(name) as folder:
            path = next(folder.glob("model*.safetensors"))
            changed = data.draw(
                mutations.changed_safetensors(*mutations.read_safetensors(path)), label="file"
            )
            mutations.write_safetensors(path, *changed)
            config = check(name, folder)
            if config is not None:
                said, values = healthy(name)[0].flat, config.flat
                # Parts that published checkpoints have or have not.
                parts = {"pooler", "output_bias"}
                assert {key for key in values if values[key] != said[key]} <= parts

    headers()


@bounded(max_examples=many(80))
@given(data=st.data())
def test_indexes_of_shards(data):
    with mutated("sharded") as folder:
        shutil.copytree(base("ours"), folder.parent / "elsewhere")
        path = folder / INDEX
        index = json.loads(path.read_text())
        places = index["weight_map"]
        tensor = data.draw(st.sampled_from(sorted(places)))
        if data.draw(st.booleans()):
            places[tensor] = data.draw(
                st.sampled_from(
                    ["../elsewhere/model.safetensors", str(folder.parent / "elsewhere" / WEIGHTS),
                     "config.json", "", ".", "..", "/", "/dev/zero", "/proc/self/environ", "\0",
                     "a" * 5000, "\ud800", "missing.safetensors", "sub/../../elsewhere/x", "~/x",
                     "file:///etc/passwd", "C:\\x", "model-00001-of-00002.safetensors", INDEX, 3]
                )
            )  # fmt: skip
            path.write_text(json.dumps(index))
        else:
            path.write_text(data.draw(mutations.changed_json(index)))
        assert check("sharded", folder) in (None, healthy("sharded")[0])


@pytest.mark.parametrize("name", ["ours", "bert"])
@bounded(max_examples=many(100))
@given(data=st.data())
def test_tokenizer_files(name, data):
    with mutated(name) as folder:
        path = folder / data.draw(st.sampled_from(mutations.TOKENIZER_FILES))
        if not path.is_file():
            (folder / "tokenizer.json").unlink()
            words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man"]
            if path.suffix == ".txt":
                path.write_text("\n".join(words))
            else:
                path.write_text(json.dumps({word: i for i, word in enumerate(words)}))
        text = path.read_text()
        changed = mutations.changed_text(text)
        if path.suffix == ".json":
            values = mutations.changed_json(json.loads(text))
            changed |= values.map(lambda text: text.encode("utf-8", "surrogatepass"))
        path.write_bytes(data.draw(changed, label=path.name))
        tokenizer = outcome(Tokenizer.from_preset, folder)
        if tokenizer is not None:
            assert all(isinstance(i, int) for i in tokenizer.encode("a man rides"))
