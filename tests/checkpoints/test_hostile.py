"""Presets that are broken or mean harm: a right model, or an error that names the file.

Nothing else may come of them: no other exception, no code run, no file read outside of the folder,
no more memory or time than a healthy preset of that size takes.
"""

import contextlib
import functools
import json
import shutil
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.checkpoints import check_weights, load_config, load_weights, save_preset
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.safetensors_io import Checkpoint, save_tensors
from keras_transformer.structure import variable_shapes
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints import mutations
from tests.checkpoints.conftest import small_backbone
from tests.checkpoints.families import make
from tests.checkpoints.mutations import INDEX, WEIGHTS
from tests.thorough import many

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
BASES = tempfile.TemporaryDirectory(prefix="kt_hostile_")  # removed when the process ends
FORMATS = ("ours", "sharded", *FAMILIES)


@functools.cache
def base(name) -> Path:
    """A small healthy preset: in our format, the same in shards, or one of a published family."""
    folder = Path(BASES.name, name)
    if name in FAMILIES:
        pytest.importorskip("transformers")
        make(name, 0, _suffix(name)).save_pretrained(folder)
        if name == "bert":
            _add_embedder_files(folder)
            _tokenizer().save_to_preset(folder)
    else:
        values = {"position": "learned", "max_sequence_length": 20, "pooler": True}
        backbone = small_backbone(vocabulary_size=60, segment_vocabulary_size=2, **values)
        task = {"name": "TextClassifier", "num_classes": 2, "labels": ["bad", "good"]}
        head = {"output/kernel": np.ones((8, 2)), "output/bias": np.ones(2)}
        save_preset(
            folder, backbone=backbone, tokenizer=_tokenizer(), task=task, head_variables=head
        )
    if name == "sharded":
        checkpoint, places = Checkpoint(folder), {}
        for i, tensor in enumerate(checkpoint):
            places[tensor] = f"model-0000{1 + i % 2}-of-00002.safetensors"
        for place in set(places.values()):
            tensors = {n: checkpoint.read(n) for n in checkpoint if places[n] == place}
            save_tensors(folder / place, tensors)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
        (folder / WEIGHTS).unlink()
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def _suffix(name):
    """What the name of a family's class ends with: with a head, except for the embedder."""
    if FAMILIES[name].constants["kind"] != "encoder":
        return "LanguageModel"
    return "Model" if name == "bert" else "ForSequenceClassification"


@functools.cache
def _tokenizer():
    return Tokenizer.train(["a man rides a bike ."] * 4, "wordpiece", vocabulary_size=60)


def _add_embedder_files(folder):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    steps = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    values = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')


class Receiver:
    """What weights are loaded into here: arrays, since a Keras model takes long to build."""

    path = "receiver"

    def __init__(self, config):
        self.config = config
        self.weights = [Slot(f"receiver/{p}", s) for p, s in variable_shapes(config).items()]


class Slot:
    def __init__(self, path, shape):
        self.path, self.shape, self.dtype, self.array = path, shape, "float32", None

    def assign(self, array):
        assert array.shape == tuple(self.shape)
        self.array = np.array(array)


def loaded(folder):
    """The config of a preset, and its weights and those of its head by their path."""
    config, task, _ = load_config(folder)
    name, head = None, {}
    if task is not None:
        name = task["name"]
        try:
            head = TASKS[name].head_shapes(config, task) if name in TASKS else {}
        except ValueError as error:  # `from_preset` adds where the values are from
            raise ValueError(f"{folder}: {error}") from error
    check_weights(folder, config, head, name)
    receiver = Receiver(config)
    head = {path: Slot(path, shape) for path, shape in head.items()}
    load_weights(folder, receiver, head, name)
    return config, {slot.path: slot.array for slot in (*receiver.weights, *head.values())}


@functools.cache
def healthy(name):
    return loaded(base(name))


def outcome(function, folder):
    """What a function of a folder gives; `None` for an error of the documented kinds."""
    try:
        return function(folder)
    except (ValueError, FileNotFoundError) as error:
        assert str(folder) in str(error), f"the message does not name the file: {error!r}"
    return None


def check(name, folder):
    """Loads a mutated preset: it must be refused, or have the weights of the healthy one."""
    result = outcome(loaded, folder)
    if result is None:
        return None
    config, weights = result
    expected_config, expected = healthy(name)
    if config == expected_config:  # the head depends on "architectures" as well
        backbone = {path for path in expected if path.startswith(Receiver.path)}
        assert backbone <= weights.keys() <= expected.keys()
    # With another number of heads the tensors of GPT-NeoX are divided in another way.
    if config.num_heads == expected_config.num_heads:
        for path in weights.keys() & expected.keys():
            np.testing.assert_array_equal(weights[path], expected[path])
    return config


@contextlib.contextmanager
def mutated(name):
    """A copy of a base preset to change, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kt_hostile_") as root:
        yield Path(shutil.copytree(base(name), Path(root, "preset")))


@pytest.mark.parametrize("name", FORMATS)
def test_every_base_is_healthy(name):
    with mutated(name) as folder:
        assert check(name, folder) == healthy(name)[0]


@pytest.mark.parametrize("name", FORMATS)
@bounded(max_examples=many(40))
@given(data=st.data())
def test_values_of_the_config(name, data):
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
            assert isinstance(said.get("tie_word_embeddings"), bool | None)
            pairs = [(said.get(k), getattr(config, v)) for k, v in fields.items()]
            pairs = [(value, mine) for value, mine in pairs if not isinstance(mine, str)]
        else:
            pairs = [(value, getattr(config, key)) for key, value in said["backbone"].items()]
        for value, ours in pairs:  # a value that is left out has a default
            assert value is None or (value == ours and (value is True) == (ours is True))


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


@pytest.mark.parametrize("name", FORMATS)
@bounded(max_examples=many(30))
@given(data=st.data())
def test_headers_of_the_weights(name, data):
    with mutated(name) as folder:
        path = next(folder.glob("model*.safetensors"))
        changed = data.draw(
            mutations.changed_safetensors(*mutations.read_safetensors(path)), label="file"
        )
        mutations.write_safetensors(path, *changed)
        config = check(name, folder)
        if config is not None:
            said, values = healthy(name)[0].to_dict(), config.to_dict()
            # Parts that published checkpoints have or have not.
            parts = {"pooler", "output_bias"}
            assert {key for key in values if values[key] != said[key]} <= parts


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


LINKS = [WEIGHTS, *mutations.CONFIGS, *mutations.TOKENIZER_FILES]


@pytest.mark.parametrize("how", ["link", "relative", "chain", "loop", "pipe", "folder"])
@pytest.mark.parametrize("file", LINKS)
def test_files_that_are_none(file, how):
    """Were the link followed, the preset would load: what it leads to is as it should be."""
    with mutated("bert") as folder:
        mutations.link_out(folder, file, folder.parent / "outside", how)
        model = outcome(lambda f: (loaded(f), Tokenizer.from_preset(f)), folder)
        if how in ("link", "relative", "chain", "loop") or file == "config.json" or file == WEIGHTS:
            assert model is None


def test_a_folder_that_is_a_link_out():
    with mutated("bert") as folder:
        shutil.move(folder / "1_Pooling", folder.parent / "outside")
        (folder / "1_Pooling").symlink_to(folder.parent / "outside")
        with pytest.raises(ValueError, match="outside the preset's folder"):
            load_config(folder)


@pytest.mark.parametrize("name", ["ours", *FAMILIES])
def test_code_is_never_run(name, tmp_path, monkeypatch):
    with mutated(name) as folder:
        marker = tmp_path / "ran"
        mutations.add_traps(folder, marker)
        monkeypatch.chdir(folder)
        check(name, folder)
        (folder / WEIGHTS).unlink()
        with pytest.raises(ValueError, match=r"in pytorch_model.bin.*Only safetensors are read"):
            load_config(folder)[0], check_weights(folder, load_config(folder)[0])
        assert not marker.exists()


CLASS_NAMES = ["os.system", "Lambda", "keras.layers.Lambda", "Task", "__class__", "tests.x.Y", ""]


@pytest.mark.parametrize("class_name", CLASS_NAMES)
def test_names_of_classes_are_looked_up_in_a_table(class_name):
    for name in ("ours", "bert"):
        with mutated(name) as folder:
            config = json.loads((folder / "config.json").read_text())
            if name == "ours":
                config["task"] = {"name": class_name, "module": "os", "registered_name": "x"}
            else:
                config["architectures"] = [class_name]
                (folder / "modules.json").unlink()
            (folder / "config.json").write_text(json.dumps(config))
            with pytest.raises(
                ValueError, match=r"names the task (None|'.*'), and Task may be one"
            ):
                kt.tasks.task.Task.from_preset(folder)


def bombs(folder):
    """Presets that would take memory or time out of proportion, by name."""
    config = json.loads((folder / "config.json").read_text())
    header, content = mutations.read_safetensors(folder / WEIGHTS)
    backbone = config["backbone"]

    def values(**changed):
        changed = {**config, "backbone": {**backbone, **changed}}
        (folder / "config.json").write_text(json.dumps(changed))

    def text(text):
        (folder / "config.json").write_bytes(text)

    def weights(header, content=content, length=None):
        mutations.write_safetensors(folder / WEIGHTS, header, content, length)

    rest = json.dumps(config)[1:]
    yield "sizes", lambda: values(**dict.fromkeys(("hidden_dim", "vocabulary_size"), 2**40))
    yield "layers", lambda: values(num_layers=10**9)
    yield "heads", lambda: values(num_heads=2**60, head_dim=2**60)
    yield "positions", lambda: values(max_sequence_length=10**15)
    yield "digits", lambda: values(num_layers=10**4000)
    yield "brackets", lambda: text(b'{"x": ' + b"[" * 3_000_000)
    yield "some lists", lambda: text(b'{"x": [' + b"[]," * 90_000 + b"0]," + rest.encode())
    yield "empty lists", lambda: text(b'{"x": [' + b"[]," * 1_300_000 + b"0]," + rest.encode())
    yield "one key", lambda: text(b"{" + b'"x":1,' * 500_000 + rest.encode())
    yield (
        "one key, late",
        lambda: text(
            b"{" + b",".join(b'"%d":1' % i for i in range(300_000)) + b',"7":1,' + rest.encode()
        ),
    )
    yield "large", lambda: text(b'{"x": "' + b"x" * 50_000_000 + b'", ' + rest.encode())
    yield (
        "shape",
        lambda: weights({**header, "x": {**header[next(reversed(header))], "shape": [2**40]}}),
    )
    yield (
        "many tensors",
        lambda: weights(
            header
            | {
                str(i): {"dtype": "F32", "shape": [0], "data_offsets": [len(content)] * 2}
                for i in range(50_000)
            }
        ),
    )
    yield "header", lambda: weights(b" " * 90_000_000)
    yield "length", lambda: weights(header, length=2**62)
    yield "deep header", lambda: weights(b'{"x":' * 1_000_000)


@pytest.mark.parametrize(
    "name", ["sizes", "layers", "heads", "positions", "digits", "brackets", "empty lists",
             "some lists", "one key", "one key, late", "large", "shape", "many tensors", "header",
             "length", "deep header"]
)  # fmt: skip
def test_bombs(name):
    with mutated("ours") as folder:
        healthy("ours")
        dict(bombs(folder))[name]()
        peak = Path("/proc/self/clear_refs")
        if peak.exists():
            peak.write_text("5")  # forgets the highest use of memory so far
        before, start = memory(), time.perf_counter()
        check("ours", folder)
        assert time.perf_counter() - start < 20
        assert memory() - before < 300


def memory():
    """The highest use of memory by this process in megabytes, 0 where Linux does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else ["VmHWM: 0 kB"]
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("name", ["ours", "bert"])
def test_as_many_layers_as_a_config_may_say(name):
    """Are held against the header of the weights, and not written out one by one before."""
    with mutated(name) as folder:
        config = json.loads((folder / "config.json").read_text())
        if name == "ours":
            config["backbone"] |= {"num_layers": 10_000, "layer_pattern": [{"window": 4}, {}]}
            config["backbone"].pop("num_layer_groups", None)
        else:
            config["num_hidden_layers"] = 10_000
        (folder / "config.json").write_text(json.dumps(config))
        start = time.perf_counter()
        with pytest.raises(ValueError, match="declares 10,000 layers"):
            kt.Backbone.from_preset(folder)
        assert time.perf_counter() - start < 20


LIMITS = [
    {"normalization_epsilon": 1e38, "initializer_range": 1e38, "dropout": 0},
    {"position": "sinusoidal", "max_sequence_length": 10**15},
    {"normalization_epsilon": 10**400},
    {"initializer_range": 10**400},
    {"window": 2**70},
    {"position": "rotary", "rotary_base": 10**400},
    {"position": "rotary", "rotary_scaling": "yarn", "rotary_factor": 1e300,
     "rotary_min_turns": 1e-300, "rotary_max_turns": 1e300, "rotary_original_length": 10**30},
    {"position": "rotary", "rotary_scaling": "linear", "rotary_factor": 1e-320},
    {"position": "none", "window": 2**31},
]  # fmt: skip


@pytest.mark.parametrize("values", LIMITS, ids="-".join)
def test_values_at_their_limits(values):
    """What the checks let through must not fail later, in the building or the first call."""
    with mutated("ours") as folder:
        config = json.loads((folder / "config.json").read_text())
        config["backbone"] |= values
        (folder / "config.json").write_text(json.dumps(config))
        if "position" in values:  # other than learned ones, which have a tensor
            checkpoint = Checkpoint(folder)
            kept = {n: checkpoint.read(n) for n in checkpoint if "position" not in n}
            save_tensors(folder / WEIGHTS, kept)
        backbone = outcome(kt.models.Backbone.from_preset, folder)
        if backbone is not None:
            states = backbone({"token_ids": np.array([[1, 2, 3]])})
            assert np.isfinite(keras.ops.convert_to_numpy(states)).all()


@pytest.mark.parametrize(
    "values", [{"num_classes": 10**9}, {"num_classes": -1}, {"num_classes": "2"}, {"labels": ["a"]},
               {"dropout": "x"}, {"dropout": 2}, {"dropout": [0.1]}, {"hidden_activation": "os"},
               {"hidden_activation": {"class_name": "Lambda"}}, {"labels": ["a", "a"]},
               {"pooling": "os"}, {"pooling": {"first": 1}},
               {"labels": {"0": "a"}}, {"backbone": 3}, {"tokenizer": "x"}, {"self": 1}, {"x": 1},
               {"num_classes": None, "labels": None}]
)  # fmt: skip
def test_values_of_the_task(values):
    with mutated("ours") as folder:
        config = json.loads((folder / "config.json").read_text())
        config["task"] |= values
        (folder / "config.json").write_text(json.dumps(config))
        assert outcome(kt.TextClassifier.from_preset, folder) is None
