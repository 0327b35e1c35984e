"""Presets of KerasHub that are broken or mean harm: an error that names the file, and no more."""

import json
import random
import shutil

import h5py
import numpy as np
import pytest

from keras_transformer.checkpoints import (
    backbone_variables,
    check_weights,
    load_backbone,
    load_config,
)
from keras_transformer.checkpoints.keras_hub import find_family, read_hdf5, read_tokenizer
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.checkpoints.weights.tables import expand, export
from keras_transformer.models import build_backbone
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints.test_keras_hub_decoders import QWEN3_5_MOE, SMOLLM3
from tests.checkpoints.test_keras_hub_images import MIT, SWIN
from tests.checkpoints.test_keras_hub_live import T5GEMMA
from tests.checkpoints.test_keras_hub_towers import IMAGES, TEXTS, VIDEOS
from tests.tokenizers.test_rwkv import LINES

pytestmark = pytest.mark.backend_independent

SIZES = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 12,
    "intermediate_dim": 20,
}
BERT = {"max_sequence_length": 14, "num_segments": 2, "dropout": 0.1, **SIZES}
KERNEL = "layers/transformer_encoder/_self_attention_layer/query_dense/vars/0"
FIRST = "layers/dense/vars/0"


def serialized(name, arguments, package="keras_hub", **values):
    module = f"{package}.src.models.somewhere"
    parts = {"module": module, "class_name": name, "config": arguments}
    return {**parts, "registered_name": f"{package}>{name}", **values}


def write(folder, values, file="config.json"):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(values))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A folder as KerasHub writes it, made without KerasHub."""
    folder = tmp_path_factory.mktemp("healthy")
    values = serialized("BertBackbone", BERT)
    write(folder, values)
    family = find_family(values)
    backbone = build_backbone(family.config(BERT), initializer="zeros")
    rng = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign(rng.normal(size=variable.shape))
    tensors = export(expand(family.weights, backbone.config), backbone_variables(backbone))
    with h5py.File(folder / "model.weights.h5", "w") as file:
        for name, array in tensors.items():
            file[name] = array
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
    write(folder, serialized("BertTokenizer", {"lowercase": True}), "tokenizer.json")
    (folder / "assets" / "tokenizer").mkdir(parents=True)
    (folder / "assets" / "tokenizer" / "vocabulary.txt").write_text("\n".join(words))
    return folder, backbone


@pytest.fixture
def preset(tmp_path, healthy):
    return shutil.copytree(healthy[0], tmp_path / "preset")


def test_the_healthy_preset(preset, healthy):
    loaded = backbone_variables(load_backbone(preset))
    for path, variable in backbone_variables(healthy[1]).items():
        np.testing.assert_array_equal(to_numpy(loaded[path]), to_numpy(variable))
    older = serialized("BertBackbone", {**BERT, "name": "x", "trainable": True}, "keras_nlp")
    write(preset, older)
    assert load_backbone(preset).config == healthy[1].config
    assert Tokenizer.from_preset(preset).encode("A ab") == [2, 5, 5, 6, 3]


POLICY = {"module": "keras", "class_name": "DTypePolicy", "registered_name": None}
LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wAAAAA="}}
HOSTILE_CONFIGS = {
    "another model": serialized("LlamaBackbone", BERT),
    "a layer": serialized("Lambda", {"function": LAMBDA}, registered_name="keras>Lambda"),
    "a functional model": serialized("Functional", {"layers": [LAMBDA]}, registered_name=None),
    "a module path": serialized("BertBackbone", BERT, registered_name="os.system>BertBackbone"),
    "a module": serialized("BertBackbone", BERT, module="payload"),
    "two names": serialized("BertBackbone", BERT, class_name="GPT2Backbone"),
    "a name of another kind": serialized("BertBackbone", BERT, registered_name=["x"]),
    "no arguments": serialized("BertBackbone", None),
    "a layer as an argument": serialized("BertBackbone", {**BERT, "layers": [LAMBDA]}),
    "a missing argument": serialized("BertBackbone", {"vocabulary_size": 30}),
    "a lambda as a number": serialized("BertBackbone", {**BERT, "hidden_dim": LAMBDA}),
    "a lambda as activation": serialized("T5Backbone", {**SIZES, "activation": LAMBDA}),
    "a function by path": serialized(
        "T5Backbone", {**SIZES, "activation": {"class_name": "function", "config": "os.system"}}
    ),
    "no heads": serialized("BertBackbone", {**BERT, "num_heads": 0}),
    "a billion layers": serialized("BertBackbone", {**BERT, "num_layers": 10**9}),
    "a huge vocabulary": serialized("BertBackbone", {**BERT, "vocabulary_size": 10**15}),
    "other heads": serialized("BertBackbone", {**BERT, "num_heads": 4}),
    "quantized": serialized("BertBackbone", {**BERT, "dtype": {"class_name": "DTypePolicyMap"}}),
    "int8": serialized("BertBackbone", {**BERT, "dtype": {**POLICY, "config": {"name": "int8"}}}),
}


@pytest.mark.parametrize("values", HOSTILE_CONFIGS.values(), ids=HOSTILE_CONFIGS)
def test_hostile_configs(preset, values):
    write(preset, values)
    with pytest.raises(ValueError) as info:
        load_backbone(preset)
    assert str(preset) in str(info.value)


ODD = [
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    0.5,
    1e308,
    "",
    "x",
    "../x",
    "\ud800",
    [],
    [1],
    {},
    LAMBDA,
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_odd_values(preset, value):
    """Each in the place of each: what was right before, or an error that names the folder."""

    def attempt(action, values, file):
        write(preset, values, file)
        try:
            action(preset)
        except ValueError as error:
            assert str(preset) in str(error)

    tokenizer = dict.fromkeys(
        ("lowercase", "strip_accents", "split", "special_tokens", "special_tokens_in_strings")
    )
    for name in (*BERT, "dtype", "name"):
        attempt(load_and_check, serialized("BertBackbone", {**BERT, name: value}), "config.json")
    for name in ("activation", "key_value_dim", "use_gated_activation", "tie_embedding_weights"):
        attempt(load_and_check, serialized("T5Backbone", {**SIZES, name: value}), "config.json")
    for name in (*tokenizer, "suffix_indicator", "oov_token", "sequence_length"):
        values = serialized("BertTokenizer", {**tokenizer, name: value})
        attempt(read_tokenizer, values, "tokenizer.json")
    for part in ("module", "class_name", "registered_name", "config"):
        values = {**serialized("BertTextClassifier", {"num_classes": 2}), part: value}
        attempt(read_tokenizer, values, "tokenizer.json")
        write(preset, serialized("BertBackbone", BERT))
        attempt(load_config, values, "task.json")
        attempt(load_config, {**serialized("BertBackbone", BERT), part: value}, "config.json")


def tower(name, **sizes):
    return serialized(f"CLIP{name}Encoder", {**sizes, "intermediate_activation": "gelu"})


MODELS = {
    "CLIPBackbone": {
        "vision_encoder": tower("Vision", **IMAGES),
        "text_encoder": tower("Text", **TEXTS),
        "projection_dim": 6,
    },
    "SwinTransformerBackbone": SWIN,
    "SegFormerBackbone": {
        "image_encoder": serialized("MiTBackbone", MIT), "projection_filters": 6,
    },
    "VideoPrismBackbone": {**VIDEOS, "vocabulary_size": 30, "num_text_layers": 2},
    "T5GemmaBackbone": T5GEMMA,
    "SmolLM3Backbone": SMOLLM3,
    "Qwen3_5MoeBackbone": QWEN3_5_MOE,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_odd_values_of_larger_models(tmp_path, name):
    """In the place of each argument, of models within models too, and without it."""
    whole = json.loads(json.dumps(serialized(name, MODELS[name])))
    write(tmp_path, whole)
    load_config(tmp_path, load_weights=False)

    def objects(values):
        yield values["config"]
        for each in values["config"].values():
            if isinstance(each, dict) and "config" in each:
                yield from objects(each)

    for own in objects(whole):
        for argument in [*own]:
            usual = own.pop(argument)
            for value in (..., None, -1, 2**40, 10**400, 0.5, "x", [1], [[1]] * 4, LAMBDA):
                if value is not ...:
                    own[argument] = value
                write(tmp_path, whole)
                try:
                    load_config(tmp_path, load_weights=False)
                except ValueError as error:
                    assert str(tmp_path) in str(error)
            own[argument] = usual


def load_and_check(preset):
    check_weights(preset, load_config(preset)[0])


def test_a_config_of_floats_is_any_float(preset, healthy):
    for policy in ("mixed_bfloat16", {**POLICY, "config": {"name": "float16"}}):
        write(preset, serialized("BertBackbone", {**BERT, "dtype": policy}))
        assert load_config(preset)[0] == healthy[1].config


@pytest.mark.parametrize(
    "task, message",
    [
        (serialized("Evil", {}, registered_name="payload>Evil"), "Only KerasHub objects"),
        (serialized("BertTextClassifier", []), "'config' must be"),
        (serialized("BertTextEmbedder", {"pooling_mode": LAMBDA}), "pooling_mode"),
    ],
)
def test_hostile_tasks(preset, task, message):
    write(preset, task, "task.json")
    with pytest.raises(ValueError, match=message):
        load_config(preset)


def external_link(file, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.zeros((12, 12), "float32")
    del file[FIRST]
    file[FIRST] = h5py.ExternalLink(str(folder / "other.h5"), "x")


def soft_link(file, folder):
    del file[FIRST]
    file[FIRST] = h5py.SoftLink("/layers/dense/vars/1")


def second_name(file, folder):
    file["layers/another"] = file["layers/dense"]


def circle(file, folder):
    file["layers/dense/again"] = file["layers"]


def other_file(file, folder):
    (folder / "numbers").write_bytes(bytes(576))
    del file[FIRST]
    file.create_dataset(FIRST, (12, 12), "float32", external=str(folder / "numbers"))


def virtual(file, folder):
    layout = h5py.VirtualLayout((12, 12), "float32")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (12, 12))
    del file[FIRST]
    file.create_virtual_dataset(FIRST, layout)


def put(**options):
    def change(file, folder):
        del file[FIRST]
        file.create_dataset(FIRST, **options)

    return change


def remove(file, folder):
    del file[FIRST]


def surplus(file, folder):
    file["layers/dense/vars/2"] = np.zeros(3, "float32")


FLOAT = np.zeros((12, 12), "float32")
HOSTILE_WEIGHTS = {
    "an external link": (external_link, "is a link to .*other.h5"),
    "a soft link": (soft_link, "is a link to"),
    "a second name": (second_name, "under another name"),
    "a circle": (circle, "under another name"),
    "data in another file": (other_file, "in another file"),
    "a virtual array": (virtual, "only contiguous"),
    "a huge empty array": (
        put(shape=(10**7, 10**7), dtype="float32", chunks=(1024, 1024)),
        "only contiguous",
    ),
    "a huge array never written": (put(shape=(10**7, 10**7), dtype="float32"), "never written"),
    "a compressed array": (put(data=FLOAT, compression="gzip"), "only contiguous"),
    "a compound": (put(data=np.zeros((12, 12), [("a", "f4"), ("b", "i4")])), "stored as"),
    "objects": (put(data=["x", "y"]), "stored as"),
    "another byte order": (put(data=FLOAT.astype(">f4")), "stored as"),
    "opaque bytes": (put(data=np.zeros((12, 12), "V2")), "stored as"),
    "no shape": (put(data=h5py.Empty("f4")), "is empty|only contiguous"),
    "integers": (put(data=FLOAT.astype("int32")), "stored as int32"),
    "not a number": (put(data=FLOAT + np.nan), "NaN"),
    "another shape": (put(data=np.zeros((12, 11), "float32")), r"has shape \(12, 11\)"),
    "a missing array": (remove, rf"missing:\s+{FIRST} \(for pooler/kernel\)"),
    "one too many": (surplus, "with no place in the model:\\s+layers/dense/vars/2"),
}


@pytest.mark.parametrize("change, message", HOSTILE_WEIGHTS.values(), ids=HOSTILE_WEIGHTS)
def test_hostile_weights(preset, change, message):
    with h5py.File(preset / "model.weights.h5", "a") as file:
        change(file, preset)
    with pytest.raises(ValueError, match=message) as info:
        load_backbone(preset)
    assert FIRST.removesuffix("/vars/0") in str(info.value) or "another" in str(info.value)
    assert str(preset) in str(info.value)


def test_heads_of_another_width(preset):
    with h5py.File(preset / "model.weights.h5", "a") as file:
        del file[KERNEL]
        file[KERNEL] = np.zeros((12, 4, 3), "float32")
    with pytest.raises(ValueError, match=r"has shape \(12, 4, 3\), the config says \(12, 3, 4\)"):
        load_backbone(preset)


def test_files_that_are_not_whole(preset, tmp_path):
    path = preset / "model.weights.h5"
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:100], b"", b"\x80\x04payload."):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="model.weights.h5"):
            load_backbone(preset)
    path.unlink()
    (tmp_path / "outside.h5").write_bytes(whole)
    path.symlink_to(tmp_path / "outside.h5")
    with pytest.raises(ValueError, match="outside the preset's folder"):
        load_backbone(preset)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="neither model.weights.h5 nor"):
        load_backbone(preset)
    for place, error in (("../outside.h5", ValueError), ("model_00000.weights.h5", OSError)):
        write(preset, {"weight_map": {"/layers/dense/vars": place}}, "model.weights.json")
        with pytest.raises(error):
            load_backbone(preset)


def test_bytes_at_random(preset):
    """Whatever was changed: arrays that lie in the file, or an error that names it."""
    path = preset / "model.weights.h5"
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
        path.write_bytes(data)
        try:
            tensors = read_hdf5(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert all(0 <= info.offset < len(data) for info in tensors.values())


def broken_tokenizer(file, content):
    def change(folder):
        if isinstance(content, dict):
            write(folder, content, file)
        else:
            (folder / file).write_bytes(content)

    return change


VOCABULARY = "assets/tokenizer/vocabulary.txt"
HOSTILE_TOKENIZERS = {
    "a lambda": ("tokenizer.json", serialized("Lambda", LAMBDA), "is not supported"),
    "a module": (
        "tokenizer.json",
        serialized("BertTokenizer", {}, module="os"),
        "Only KerasHub objects",
    ),
    "a flag of another kind": (
        "tokenizer.json",
        serialized("BertTokenizer", {"lowercase": LAMBDA}),
        "lowercase must be a bool",
    ),
    "a special token that is not there": (
        "tokenizer.json",
        serialized("BertTokenizer", {"special_tokens": ["[X]"]}),
        r"lacks the special tokens \['\[X\]'\]",
    ),
    "no unknown token": (VOCABULARY, b"a\nb", r"no token '\[UNK\]'"),
    "no text": (VOCABULARY, b"\xff\xfe\x00", "not UTF-8"),
    "far too long": (VOCABULARY, bytes(2**24 + 1), "bytes"),
    "a preprocessor of another kind": (
        "preprocessor.json",
        serialized("Evil", {}, registered_name="payload>Evil"),
        "Only KerasHub objects",
    ),
}


@pytest.mark.parametrize(
    "file, content, message", HOSTILE_TOKENIZERS.values(), ids=HOSTILE_TOKENIZERS
)
def test_hostile_tokenizers(preset, file, content, message):
    if file == "preprocessor.json":  # which GPT-2's tokenizer reads
        write(preset, serialized("GPT2Tokenizer", {}), "tokenizer.json")
        write(preset, {"<|endoftext|>": 0}, "assets/tokenizer/vocabulary.json")
        (preset / "assets" / "tokenizer" / "merges.txt").write_text("")
    broken_tokenizer(file, content)(preset)
    with pytest.raises(ValueError, match=message) as info:
        read_tokenizer(preset)
    assert str(preset) in str(info.value)


@pytest.mark.parametrize(
    "vocabulary, merges, message",
    [
        ({"<|endoftext|>": 0, "a": -1}, "", "a number of at least 0"),
        ({"<|endoftext|>": 0, "a": "1"}, "", "a number of at least 0"),
        ({"<|endoftext|>": 0, "a": 1}, "a", "two tokens per line"),
        ({"<|endoftext|>": 0, "a": 1}, "a a", "not a usable vocabulary"),
        ({"a": 1}, "", "lacks the special tokens"),
    ],
)
def test_hostile_byte_pairs(preset, vocabulary, merges, message):
    write(preset, serialized("GPT2Tokenizer", {}), "tokenizer.json")
    write(preset, vocabulary, "assets/tokenizer/vocabulary.json")
    (preset / "assets" / "tokenizer" / "merges.txt").write_text(merges)
    with pytest.raises(ValueError, match=message):
        read_tokenizer(preset)


@pytest.mark.parametrize(
    "arguments, line, message",
    [
        ({}, "300 open('x') 2", "line 1 is not an id"),
        ({"pad_token_id": -1}, "", "pad_token_id must be a number from 0"),
        ({"end_token_id": True}, "", "end_token_id must be a number from 0"),
        ({"start_token_id": 5000}, "", "start_token_id=5000 is not in the vocabulary"),
        ({"pad_token_id": 2**31 - 1}, "", "ids may go up to"),
    ],
)
def test_hostile_rwkv(preset, arguments, line, message):
    write(preset, serialized("RWKVTokenizer", arguments), "tokenizer.json")
    lines = [line] * bool(line) + LINES
    (preset / VOCABULARY).write_text("\n".join(lines), "utf-8", newline="\n")
    with pytest.raises(ValueError, match=message):
        read_tokenizer(preset)


def test_assets_outside_of_the_folder(preset, tmp_path):
    (preset / "assets").rename(tmp_path / "outside")
    (preset / "assets").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="outside the preset's folder"):
        Tokenizer.from_preset(preset)
    (preset / "assets").unlink()
    (preset / "assets" / "tokenizer").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="vocabulary.txt"):
        Tokenizer.from_preset(preset)
