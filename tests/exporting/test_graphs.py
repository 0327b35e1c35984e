"""Graphs of a model, run by ONNX Runtime, OpenVINO and PyTorch without this package."""

import dataclasses
import functools
import json
import shutil

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.exporting import FORMATS
from tests.exporting.runtimes import reference
from tests.tasks import audio
from tests.thorough import a_part

pytestmark = pytest.mark.one_backend("torch")

SENTENCES = [
    "A man rides a bike.",
    "Two dogs.",
    "A group of people stand in front of an old building and wait for the bus.",
]
SMALL = {
    "vocabulary_size": 61,
    "hidden_dim": 32,
    "num_layers": 1,
    "num_heads": 4,
    "intermediate_dim": 48,
    "max_sequence_length": 64,
}
DECODERS = {
    "learned": {"position": "learned", "num_layers": 2},
    "grouped": {"position": "rotary", "num_key_value_heads": 2, "normalization": "rms_norm"},
    "window": {"position": "rotary", "window": 4},
    "alibi": {"position": "alibi"},
}
# Of the inputs of a graph.
ORDER = ("input_ids", "attention_mask", "token_type_ids")
PROMPTS = [[5, 9, 2, 17], [3], [8, 8, 30, 4, 11, 25, 6]]


@pytest.fixture(scope="module")
def loop():
    return reference()


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(3)
    return kt.TextClassifier.from_preset(
        "minilm_l6_en", load_weights=False, num_layers=1, labels=["bad", "good"]
    )


@pytest.fixture(scope="module")
def classifiers(classifier, tmp_path_factory):
    """The folder of the classifier in a format."""

    @functools.cache
    def folder_of(format):
        folder = tmp_path_factory.mktemp("classifiers") / format
        kt.export(classifier, folder, format=format)
        return folder

    return folder_of


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """A decoder with positions of a kind, and its folder of ONNX."""

    @functools.cache
    def decoder_of(name):
        keras.utils.set_random_seed(5)
        values = SMALL | DECODERS[name] | {"initializer_range": 0.2}
        backbone = kt.models.Decoder(kt.TransformerConfig(kind="decoder", **values))
        lm, folder = kt.CausalLM(backbone, end_ids=[3]), tmp_path_factory.mktemp("decoders") / name
        kt.export(lm, folder, format="onnx")
        return lm, folder

    return decoder_of


def arrays_of(task, texts):
    """The arrays of texts by the names of optimum, int64."""
    inputs = task.make_dataset(texts, [0] * len(texts), batch_size=len(texts), shuffle=False)[0][0]
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names |= {"segment_ids": "token_type_ids"}
    return {names[name]: np.asarray(x).astype("int64") for name, x in inputs.items()}, inputs


@pytest.mark.parametrize("format", a_part(["onnx", "pt2", "openvino"], 2))
def test_a_classifier_of_any_number_and_length(format, classifier, classifiers, loop):
    """Try sizes that were not traced too: one row, one token, as many as fit."""
    folder = classifiers(format)
    said = json.loads((folder / "export.json").read_text())
    assert said["labels"] == ["bad", "good"] and said["format"] == format
    assert said["pad_id"] == classifier.tokenizer.pad_id
    assert (folder / "tokenizer.json").is_file()
    for texts in (SENTENCES, SENTENCES[:1], ["a"], [" ".join(["word"] * 600)]):
        arrays, inputs = arrays_of(classifier, texts)
        ours = keras.ops.convert_to_numpy(classifier(inputs))
        arrays = {name: arrays[name] for name in ORDER}
        found = loop.RUNTIMES[format](folder)("model", arrays)["logits"]
        np.testing.assert_allclose(found, ours, atol=1e-4)


ONE_PASS = {
    "labels of tokens": lambda encoder: kt.TokenClassifier(encoder, num_classes=3),
    "answers": kt.QuestionAnswerer,
    "masks": kt.MaskedLM,
}


@pytest.mark.parametrize("name", a_part(ONE_PASS))
def test_tasks_of_one_pass(name, loop, tmp_path):
    """Without a tokenizer too, and with places in a row that are padding."""
    keras.utils.set_random_seed(9)
    config = kt.TransformerConfig(
        kind="encoder", position="relative", initializer_range=0.2, **SMALL
    )
    task = ONE_PASS[name](kt.models.Encoder(config))
    kt.export(task, tmp_path / "out")
    ids, mask = np.array([[5, 6, 7, 8], [9, 3, 0, 0]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    given = {"token_ids": ids.astype("int32"), "padding_mask": mask.astype(bool)}
    ours = keras.ops.convert_to_numpy(task(given))
    found = loop.OnnxRuntime(tmp_path / "out")(
        "model", {"input_ids": ids.astype("int64"), "attention_mask": mask.astype("int64")}
    )
    if name == "answers":
        assert list(found) == ["start_logits", "end_logits"]
        found = {"logits": np.stack(list(found.values()), axis=-1)}
    (found,) = found.values()
    real = mask.astype(bool) if ours.ndim == 3 else slice(None)
    np.testing.assert_allclose(found[real], ours[real], atol=1e-4)


# Of trained weights; test_kinds.py has a small decoder and translator in each format.
@pytest.mark.parametrize("format", ["onnx", "openvino"])
@pytest.mark.thorough
def test_a_decoder_writes_the_same(format, loop, tmp_path):
    """Token for token, with the cache, for rows of unlike length padded on either side."""
    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    kt.export(lm, tmp_path / "lm", format=format)
    model = loop.Model(tmp_path / "lm")
    prompts = ["ROMEO:", "What say you, my lord? I", "The"]
    ours = lm.generate(prompts, max_new_tokens=24, sampler="greedy")
    for padding in ("left", "right"):
        assert model.write(prompts, 24, padding) == ours
    with pytest.raises(ValueError, match="shorten the prompt, or ask for fewer"):
        model.write(prompts, 100_000)


@pytest.mark.parametrize("name", a_part(DECODERS, 4))
def test_decoders_of_all_kinds_of_positions(name, decoders, loop):
    lm, folder = decoders(name)
    model = loop.Model(folder)
    ours = lm.generate(PROMPTS, max_new_tokens=12, sampler="greedy")
    for padding in ("left", "right"):
        assert model.greedy(PROMPTS, 12, padding) == [list(row) for row in ours]


@pytest.mark.parametrize("format", ["onnx", "openvino"])
@pytest.mark.thorough
def test_a_translator_writes_the_same(format, loop, tmp_path):
    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    kt.export(translator, tmp_path / "mt", format=format)
    names = {path.stem for path in (tmp_path / "mt").iterdir()}
    assert {"encoder_model", "decoder_model", "decoder_with_past_model"} <= names
    ours = translator.generate(SENTENCES, max_new_tokens=30, sampler="greedy")
    assert loop.Model(tmp_path / "mt").write(SENTENCES, 30) == ours


def test_speech(loop, tmp_path):
    """An encoder of frames: what it gives goes to the graphs of the decoder."""
    keras.utils.set_random_seed(6)
    backbone = kt.models.Seq2Seq(audio.transcripts(initializer_range=0.2))
    kt.export(backbone, tmp_path / "speech")
    run = loop.OnnxRuntime(tmp_path / "speech")
    frames = np.random.default_rng(0).normal(size=(2, 26, 12)).astype("float32")
    ids = np.array([[2, 7, 5], [2, 9, 30]])
    states = run("encoder_model", {"frames": frames})["last_hidden_state"]
    found = run("decoder_model", {"input_ids": ids, "encoder_hidden_states": states})
    given = {"encoder_frames": frames, "decoder_token_ids": ids.astype("int32")}
    ours = keras.ops.convert_to_numpy(backbone.logits(backbone(given)))
    np.testing.assert_allclose(found["logits"], ours, atol=1e-4)


def test_names_are_those_of_optimum(decoders):
    import onnx

    graph = onnx.load(decoders("learned")[1] / "model.onnx").graph
    caches = [f"{i}.{part}" for i in range(2) for part in ("key", "value")]
    assert [x.name for x in graph.input] == [
        "input_ids", "attention_mask", "position_ids", *(f"past_key_values.{x}" for x in caches)
    ]  # fmt: skip
    assert [x.name for x in graph.output] == ["logits", *(f"present.{x}" for x in caches)]
    sizes = [size.dim_param or size.dim_value for size in graph.input[3].type.tensor_type.shape.dim]
    assert sizes == ["batch", 4, "past", 8]


@pytest.mark.parametrize("format", a_part(["onnx", "openvino"]))
def test_eight_bits(format, classifier, classifiers, loop, tmp_path):
    """A quarter of the bytes, or nearly, and outputs that are near."""
    pytest.importorskip("nncf" if format == "openvino" else "onnxruntime")
    kt.export(classifier, tmp_path / "int8", format=format, quantization="int8")
    sizes = []
    for folder in (classifiers(format), tmp_path / "int8"):
        files = [x for x in folder.iterdir() if x.suffix in (".onnx", ".bin", ".data")]
        sizes.append(sum(file.stat().st_size for file in files))
    assert sizes[1] < 0.3 * sizes[0]
    arrays, inputs = arrays_of(classifier, SENTENCES)
    found = loop.RUNTIMES[format](tmp_path / "int8")("model", arrays)["logits"]
    ours = keras.ops.convert_to_numpy(classifier(inputs))
    assert 0 < np.abs(found - ours).max() < 0.05


@pytest.mark.thorough
def test_onnxruntime_genai(decoders):
    import onnxruntime_genai

    lm, folder = decoders("grouped")
    ours = lm.generate(PROMPTS, max_new_tokens=12, sampler="greedy")
    model = onnxruntime_genai.Model(str(folder))
    for prompt, expected in zip(PROMPTS, ours, strict=True):
        options = onnxruntime_genai.GeneratorParams(model)
        options.set_search_options(max_length=len(prompt) + 12)
        generator = onnxruntime_genai.Generator(model, options)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        found = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
        assert [token for token in found if token != 3] == list(expected)


def assert_exported_tokens(format, loop, folder):
    keras.utils.set_random_seed(7)
    config = kt.TransformerConfig(kind="decoder", position="rotary", **SMALL)
    lm = kt.CausalLM(kt.models.Decoder(config))
    kt.export(lm, folder, format=format)
    ours = lm.generate(PROMPTS, max_new_tokens=8, sampler="greedy")
    assert loop.Model(folder).greedy(PROMPTS, 8) == [list(row) for row in ours]


# The child process of the next test is the same one.
@pytest.mark.each_backend
@pytest.mark.thorough
def test_from_each_backend(loop, tmp_path):
    """On a backend that does not convert a child process does."""
    assert_exported_tokens("onnx", loop, tmp_path / "lm")


@pytest.mark.one_backend("jax")
def test_by_a_child_process_on_tensorflow(loop, tmp_path):
    assert_exported_tokens("litert", loop, tmp_path / "lm")


def test_what_cannot_be_exported_says_why(tmp_path):
    config = kt.TransformerConfig(kind="encoder", position="learned", **SMALL)
    encoder = kt.models.Encoder(config)

    def refused(match, model=encoder, directory="out", **options):
        with pytest.raises(ValueError, match=match):
            kt.export(model, tmp_path / directory, **options)
        assert not (tmp_path / "out").exists()

    refused("no format 'onx' to export to. Known formats: 'onnx', 'openvino'", format="onx")
    refused("has no option 'quantisation'. Did you mean 'quantization'", quantisation="int8")
    refused("`quantization` must be", quantization="int3")
    refused("must be a task or a backbone", model=keras.layers.Dense(1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    refused("holds files that no export wrote, such as 'thesis.txt'", directory="mine")
    dual = kt.models.build_backbone(kt.TransformerConfig(
        kind="dual", position="learned", vector_dim=8, **SMALL,
        encoder={
            "vocabulary_size": 0, "vector_pooling": "first",
            "stem": {"kind": "patches", "image_size": [8, 8], "patch_size": 4},
        },
        decoder={"vector_pooling": "end", "vector_end_id": 3},
    ))  # fmt: skip
    refused("takes models of kind 'encoder', 'decoder', 'seq2seq'", model=dual)
    classifier = kt.TextClassifier(encoder, num_classes=2)
    classifier.enable_lora(rank=2)
    refused("Call `merge_lora` before `export`", model=classifier)
    other = kt.TextClassifier(kt.models.Encoder(config), num_classes=2)
    other.quantize("int8")
    able = "'onnx', 'openvino', 'litert', 'ctranslate2'"
    refused(f"is quantized to int8: export it before.*does for {able}", model=other)


def test_a_package_that_is_missing_names_the_extra():
    for name, extra in (("onnx", "onnx"), ("openvino", "openvino"), ("litert", "tensorflow")):
        without = dataclasses.replace(FORMATS[name], packages=(), quantizers=("not_there",))
        without.check_packages()
        with pytest.raises(ImportError, match=rf"needs not_there, .*keras_transformer\[{extra}\]"):
            without.check_packages(quantizes=True)
    lone = dataclasses.replace(FORMATS["onnx"], backend="not_here", packages=("not_there",))
    with pytest.raises(ImportError, match=r"and the backend 'not_here', .*\[onnx,not_here\]"):
        lone.check_packages()


def test_a_folder_that_the_loop_cannot_read(decoders, loop, tmp_path):
    shutil.copytree(decoders("learned")[1], tmp_path / "lm")
    model = loop.Model(tmp_path / "lm")
    with pytest.raises(ValueError, match="takes 64 tokens, and 60 of a prompt and 5 new ones"):
        model.greedy([[5] * 60], 5)
    said = json.loads((tmp_path / "lm" / "export.json").read_text())

    def refused(match, **values):
        (tmp_path / "lm" / "export.json").write_text(json.dumps(said | values))
        with pytest.raises(ValueError, match=match):
            loop.Model(tmp_path / "lm")

    assert said["version"] == 1
    refused("is of version 2 of exports, and this program reads 1: export the model", version=2)
    refused("is of version None of exports", version=None)
    refused("is of format 'tarball', and this program runs", format="tarball")
    refused("is an encoder, which writes no text", kind="encoder")
