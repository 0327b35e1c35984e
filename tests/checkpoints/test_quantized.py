"""Quantized checkpoints, against the packages that write them and Transformers' own reading."""

import dataclasses
import gc
import json
import math
import pathlib
import re
import tracemalloc
import weakref

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer.checkpoints import read_quantization, resolve_preset
from keras_transformer.checkpoints.presets import building
from keras_transformer.checkpoints.presets.assignment import plain_variables
from keras_transformer.checkpoints.quantized.awq import AWQ, AWQMatrix
from keras_transformer.checkpoints.quantized.matrix import Stored, unpack_words
from keras_transformer.checkpoints.quantized.scaled import float8_table
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, TensorInfo, to_numpy
from keras_transformer.planning.table import size
from tests.checkpoints import families

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")
bitsandbytes = pytest.importorskip("bitsandbytes")
pytest.importorskip("compressed_tensors")
quantized_files = pytest.importorskip("tests.checkpoints.quantized_files")


def logits_of(model, ids, mask):
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()
        ).logits.numpy()


def assert_same_logits(lm, reference):
    ids, mask = families.batch(words=59)
    found = to_numpy(lm.predict({"token_ids": ids, "padding_mask": mask}, verbose=0))
    assert np.abs(found - logits_of(reference, ids, mask))[mask].max() <= 1e-4


@pytest.mark.parametrize("name", quantized_files.NAMES)
def test_logits(tmp_path, name):
    reference = quantized_files.write(tmp_path / "model", name)
    lm = kt.CausalLM.from_preset(tmp_path / "model", dtype="float32")
    assert_same_logits(lm, reference)


@pytest.mark.backend_independent
@pytest.mark.parametrize("name", quantized_files.NAMES)
def test_weights(tmp_path, name):
    reference = quantized_files.write(tmp_path / "model", name)
    checkpoint = resolve_preset(tmp_path / "model").checkpoint
    expected = dict(reference.named_parameters())
    matrices = [info.name for info in checkpoint.quantized]
    assert len(matrices) == (0 if name == "mxfp4" else 14)
    for path in checkpoint:
        np.testing.assert_allclose(
            checkpoint.read(path), expected[path].detach().numpy(), rtol=2e-6, atol=1e-7
        )


INFO = TensorInfo((2, 1), "I32", pathlib.Path("model.safetensors"), 0)


@dataclasses.dataclass(frozen=True)
class Given(AWQ):
    """A scheme of one matrix."""

    matrix: AWQMatrix

    def gather(self, tensors):
        return {self.matrix.name: self.matrix}


# Tests of GPTQ and AWQ by numbers that are computed by hand.


def _one_matrix(folder, tensors, config):
    """The matrix of a folder with one, which no model needs to fit."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    quantized_files.save(folder, tensors, config)
    return resolve_preset(folder).checkpoint.read("w.weight")


def _int32(*rows):
    return torch.from_numpy(np.array(rows, "uint32").view("int32"))


@pytest.mark.backend_independent
def test_gptq_by_hand(tmp_path):
    # 8 inputs of 8 outputs, two groups. Output 0 has the numbers 0, 1, ..., 7, the others 8.
    tensors = {
        "w.qweight": _int32([0x76543210, *[0x88888888] * 7]),
        "w.qzeros": _int32([0x77777772], [0x77777776]),  # less 1: 3 and 7 for output 0, else 8
        "w.scales": torch.tensor([[0.5] * 8, [2.0] * 8]).half(),
        "w.g_idx": torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]).int(),
    }
    config = {"quant_method": "gptq", "bits": 4, "group_size": 4}
    found = _one_matrix(tmp_path / "first", tensors, config)
    assert found[0].tolist() == [-1.5, -1, -0.5, 0, -6, -4, -2, 0]
    assert not found[1:].any() and found.shape == (8, 8)
    # The groups in another order, and zeros as they are: 2 and 6 for output 0, else 7.
    tensors["w.g_idx"] = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0]).int()
    found = _one_matrix(tmp_path / "second", tensors, config | {"checkpoint_format": "gptq_v2"})
    assert found[0].tolist() == [-12, -0.5, -8, 0.5, -4, 1.5, 0, 2.5]
    assert found[1].tolist() == [2, 0.5, 2, 0.5, 2, 0.5, 2, 0.5]


@pytest.mark.backend_independent
def test_awq_by_hand(tmp_path):
    # Eight outputs are in a word from the lowest bits: 0, 2, 4, 6, 1, 3, 5, 7.
    tensors = {
        "w.qweight": _int32([0x75316420], [0x11111111]),
        "w.qzeros": _int32([0x11111110]),  # 0 for output 0, else 1
        "w.scales": torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0]]).half(),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": 2}
    found = _one_matrix(tmp_path / "model", tensors, config)
    assert found.T.tolist() == [[0, 0, 0.5, 1, 1.5, 2, 2.5, 12], [1, 0, 0, 0, 0, 0, 0, 0]]


@pytest.mark.backend_independent
@pytest.mark.parametrize("listed", ["a.b.w", "b", "b.w", "w", "a.b"])
def test_modules_that_are_not_quantized(listed):
    matrix = AWQMatrix.of("a.b.w.weight", (8, 2), Stored("a.b.w.qweight", INFO), scales=None)
    with pytest.raises(ValueError, match=f"says that '{listed}' is not"):
        Given(("c", listed), 2, matrix).combine({})
    # Names of which it has a part, or which go on behind it.
    names = ("a.w", "bw", "a.b.w.weight", "b.", "", "x.a.b.w", "b.w.x")
    assert Given(names, 2, matrix).combine({}) == {matrix.name: matrix}


@pytest.mark.backend_independent
def test_awq_as_its_converter_reads_it():
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    numbers = np.random.default_rng(0).integers(0, 16, (6, 24))
    packed = quantized_files.awq_words(numbers)
    unpacked = converters.AutoAWQConverter.unpack_awq(packed, None, 4)[0]
    ordered = converters.AutoAWQConverter.reverse_awq_order(unpacked, None, 4)[0]
    np.testing.assert_array_equal(ordered.numpy() & 15, numbers)


@pytest.mark.backend_independent
@pytest.mark.parametrize("bits", range(2, 9))
def test_words_of_any_width(bits):
    numbers = np.random.default_rng(bits).integers(0, 2**bits, (3, 64))
    words = quantized_files.words(numbers, bits).numpy().view("uint32")
    np.testing.assert_array_equal(unpack_words(words, bits), numbers)


@pytest.mark.backend_independent
def test_blocks_of_bitsandbytes_across_outputs(tmp_path):
    # Three outputs of 32 numbers in a block and a half.
    weight = torch.linspace(-1, 1, 96).reshape(3, 32)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    tensors = {"w.weight": packed}
    tensors |= {f"w.weight.{end}": each for end, each in state.as_dict(packed=True).items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    found = _one_matrix(tmp_path / "model", tensors, config)
    assert np.abs(found - weight.numpy()).max() < 0.15


@pytest.mark.backend_independent
@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_every_float8_number(kind):
    dtype = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}[kind]
    expected = torch.arange(256).to(torch.uint8).view(dtype).float().numpy()
    np.testing.assert_array_equal(float8_table(kind), expected)


@pytest.mark.backend_independent
def test_float8_blocks_at_the_edges(tmp_path):
    numbers = torch.arange(15).reshape(3, 5).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2, 3], [10, 20, 30]])
    tensors = {"w.weight": numbers, "w.weight_scale_inv": scales}
    config = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    found = _one_matrix(tmp_path / "model", tensors, config)
    expected = [[0, 1, 4, 6, 12], [5, 6, 14, 16, 27], [100, 110, 240, 260, 420]]
    assert found.tolist() == expected


@pytest.mark.backend_independent
def test_a_block_larger_than_its_matrix(tmp_path):
    numbers = torch.ones(4, 6).to(torch.float8_e4m3fn)
    tensors = {"w.weight": numbers, "w.weight_scale_inv": torch.tensor([[1.0, 2, 3]])}
    config = {"quant_method": "fp8", "weight_block_size": [2**60, 2]}
    found = _one_matrix(tmp_path / "model", tensors, config)
    assert found.tolist() == [[1, 1, 2, 2, 3, 3]] * 4


# JAX on a CPU takes some arrays as the memory of the model itself.
@pytest.mark.one_backend
def test_one_unpacked_matrix_at_a_time(tmp_path, monkeypatch):
    quantized_files.write(tmp_path / "model", "gptq_4")
    held, counts, read = [], [], Checkpoint.read

    def counted(self, name):
        array = read(self, name)
        held.append(weakref.ref(array))
        gc.collect()
        counts.append(sum(each() is not None for each in held))
        return array

    monkeypatch.setattr(Checkpoint, "read", counted)
    kt.Backbone.from_preset(tmp_path / "model", dtype="float32")
    assert len(counts) == 27 and max(counts) == 1


@pytest.mark.backend_independent
@pytest.mark.parametrize("name", ["gptq_4", "awq", "fp8", "w4a16", "nf4_double"])
def test_peak_memory_of_a_matrix(tmp_path, name):
    model = quantized_files.made(hidden_size=512, intermediate_size=4096, num_hidden_layers=1)
    quantized_files.write(tmp_path / "model", name, model)
    checkpoint = resolve_preset(tmp_path / "model").checkpoint
    tracemalloc.start()
    try:
        checkpoint.read("model.layers.0.mlp.down_proj.weight")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    numbers = 512 * 4096
    # The matrix and its stored bytes, its scales, and 2**18 numbers at once, a few times over.
    assert 4 * numbers < peak < 4 * numbers + numbers + 4 * numbers // 4 + 20 * 2**18


# Experts are unpacked, and so are the projections of latent attention.
@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["gptq_4", "fp8", "w4a16"])
@pytest.mark.parametrize("kind", quantized_files.EXPERTS)
def test_experts(tmp_path, kind, name):
    model = quantized_files.made(kind, **quantized_files.EXPERTS[kind])
    reference = quantized_files.write(tmp_path / "model", name, model)
    lm = kt.CausalLM.from_preset(tmp_path / "model", dtype="float32")
    assert_same_logits(lm, reference)
    kept = kt.CausalLM.from_preset(tmp_path / "model")
    assert (kept.backbone.quantized_by is None) == (name == "fp8")
    kept.save_to_preset(tmp_path / "ours")
    assert_same_logits(kt.CausalLM.from_preset(tmp_path / "ours"), reference)
    memory = sum(v.value.nbytes for v in kept.backbone.weights)
    assert read_quantization(tmp_path / "model").memory == memory


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["gptq_4_act_order", "int8", "fp8"])
@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}], ids=["kept", "unpacked"])
def test_saved_as_plain_weights(tmp_path, name, options):
    reference = quantized_files.write(tmp_path / "model", name)
    lm = kt.CausalLM.from_preset(tmp_path / "model", **options)
    lm.save_to_preset(tmp_path / "ours")
    ours = kt.CausalLM.from_preset(tmp_path / "ours")
    assert_same_logits(ours, reference)
    kt.export_to_huggingface(lm, tmp_path / "theirs")
    assert "quantization_config" not in json.loads((tmp_path / "theirs/config.json").read_text())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    assert_same_logits(ours, again)


KEPT = {
    **dict.fromkeys(["gptq_2", "gptq_3", "gptq_4", "gptq_4_act_order", "gptq_4_v2"], "int4"),
    **dict.fromkeys(["awq", "w4a16", "w4a16_asymmetric", "w3a16"], "int4"),
    **dict.fromkeys(["w8a16", "int8"], "int8"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_as_stored(tmp_path, name):
    reference = quantized_files.write(tmp_path / "model", name)
    lm = kt.CausalLM.from_preset(tmp_path / "model")
    assert lm.backbone.quantized_by == resolve_preset(tmp_path / "model").scheme.name
    expected = dict(reference.named_parameters())
    query = "decoder/decoder/layer_1/self_attention/query"
    (layer,) = (each for each in lm.backbone._flatten_layers() if each.path == query)
    assert layer.quantization_mode == KEPT[name]
    assert layer._kernel.shape == ((32, 16) if KEPT[name] == "int4" else layer.kernel.shape)
    path = "model.layers.1.mlp.up_proj.weight"
    found = plain_variables(lm.backbone)["decoder/layer_1/feed_forward/intermediate/kernel"]
    np.testing.assert_allclose(found.T, expected[path].detach().numpy(), rtol=2e-6, atol=1e-7)
    # States are rounded to int8 by layers of int8, and on PyTorch on a CPU by those of int4.
    ids, mask = families.batch(words=59)
    found = to_numpy(lm.predict({"token_ids": ids, "padding_mask": mask}, verbose=0))
    difference = np.abs(found - logits_of(reference, ids, mask))[mask]
    exact = KEPT[name] == "int4" and keras.backend.backend() != "torch"
    assert difference.max() <= (1e-4 if exact else 0.15 * np.abs(found).max())
    with pytest.raises(ValueError, match="Load it with `dtype='float32'`"):
        lm.fit(["a"], epochs=1)


@pytest.mark.one_backend
def test_parts_of_a_matrix_are_kept(tmp_path):
    sizes = {"num_key_value_heads": 2, "pad_token_id": 0}
    reference = quantized_files.write(
        tmp_path / "model", "gptq_4", quantized_files.made("Phi3", **sizes)
    )
    lm = kt.CausalLM.from_preset(tmp_path / "model")
    assert lm.backbone.quantized_by
    lm.save_to_preset(tmp_path / "ours")
    again = kt.CausalLM.from_preset(tmp_path / "ours")
    assert again.backbone.quantized_by is None
    assert_same_logits(again, reference)


@pytest.mark.one_backend
def test_dtype_of_the_weights(tmp_path):
    quantized_files.write(tmp_path / "model", "fp8")
    backbone = kt.Backbone.from_preset(tmp_path / "model", dtype="bfloat16")
    assert {keras.backend.standardize_dtype(v.dtype) for v in backbone.weights} == {"bfloat16"}


_GATE = "model.layers.0.mlp.gate_proj"
_STATE = ".weight.quant_state.bitsandbytes__nf4"
_LARGE = rb"\g<1>1" + b"0" * 400  # more than a float can hold


def _bytes(text):
    return torch.tensor(list(text), dtype=torch.uint8)


# Name -> the scheme, a change of the tensors and of the config, and a part of the message.
BAD = {
    "group_size": ("gptq_4", {}, {"group_size": 24}, "not whole groups of 24"),
    "another group_size": ("awq", {}, {"group_size": 8}, "groups of 8 make it (8, 32)"),
    "bits": ("gptq_4", {}, {"bits": 5}, "'bits' must be one of 2, 3, 4, 8, received 5"),
    "other bits": ("gptq_4", {}, {"bits": 8}, "has the shape"),
    "bits of AWQ": ("awq", {}, {"bits": 8}, "'bits' must be one of 4, received 8"),
    "no scales": ("gptq_4", {".scales": None}, {}, f"but not '{_GATE}.scales'"),
    "no zeros": ("awq", {".qzeros": None}, {}, f"but not '{_GATE}.qzeros'"),
    "no scale": ("fp8", {".weight_scale_inv": None}, {}, f"but not '{_GATE}.weight_scale'"),
    "no absmax": ("nf4", {".weight.absmax": None}, {}, f"but not '{_GATE}.weight.absmax'"),
    "no state": (
        "nf4",
        {_STATE: None},
        {},
        "a matrix quantized by bitsandbytes",
    ),
    "no shape": ("w4a16", {".weight_shape": None}, {}, f"but not '{_GATE}.weight_shape'"),
    "group": ("gptq_4", {".g_idx": lambda t: t + 1}, {}, "names the group 2, but there are 2"),
    "negative group": ("gptq_4", {".g_idx": lambda t: t - 1}, {}, "names the group -1"),
    "negative scale": ("gptq_4", {".scales": lambda t: -t}, {}, "holds the negative scale"),
    "NaN": ("w4a16", {".weight_scale": lambda t: t * float("nan")}, {}, "holds NaN or infinity"),
    "infinite": ("nf4", {".weight.absmax": lambda t: t / 0}, {}, "holds NaN or infinity"),
    "zeros": ("gptq_4", {".qzeros": lambda t: t + 1}, {}, "has different zeros"),
    "another scheme": ("awq", {}, {"quant_method": "fp8"}, "quantized by GPTQ or AWQ, but its"),
    "GPTQ as AWQ": ("gptq_4", {}, {"quant_method": "awq"}, "has 8 inputs, which are not"),
    "none": ("gptq_4", {}, None, "config has no quantization_config"),
    "none, int8": ("int8", {}, None, "quantized by bitsandbytes, but its config has no"),
    "no SCB": ("int8", {".SCB": None}, {}, "is stored as I8, and the config says bitsandbytes"),
    "not quantized": ("gptq_4", None, {}, "has no tensors of GPTQ, 4 bits"),
    "unknown": ("awq", {}, {"quant_method": "aqlm"}, "'aqlm', which is not read. Read are"),
    "format": ("gptq_4", {}, {"checkpoint_format": "marlin"}, "the format 'marlin' is not read"),
    "version": ("awq", {}, {"version": "gemv"}, "the version 'gemv' is not read"),
    "sparse": ("w4a16", {}, {"format": "marlin-24"}, "the format 'marlin-24'"),
    "format of no string": ("gptq_4", {}, {"checkpoint_format": ["gptq"]}, "format ['gptq'] is"),
    "other format of no string": ("w4a16", {}, {"format": [{}]}, "of the format [{}] are not read"),
    "dynamic": ("gptq_4", {}, {"dynamic": [5]}, "'dynamic' must be an object, received [5]"),
    "group of no object": (
        "w4a16",
        {},
        {"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": 5}},
        "'config_groups' must say how",
    ),
    "type of scales": (
        "fp8_channel",
        {".weight_scale": lambda t: t.bool()},
        {},
        "is stored as BOOL, which scales are not",
    ),
    "no numbers": ("awq", {".qweight": lambda t: t[:, :0]}, {}, "and only matrices are read"),
    "a vector": ("gptq_4", {".qweight": lambda t: t[:, 0]}, {}, "and only matrices are read"),
    "empty shape": (
        "w4a16",
        {".weight_shape": lambda t: t * 0, ".weight_packed": lambda t: t[:0, :0]},
        {},
        "states the shape (0, 0)",
    ),
    "skipped": (
        "gptq_4",
        {},
        {"modules_to_not_convert": ["lm_head", "mlp.gate_proj"]},
        "but the config says that 'mlp.gate_proj' is not",
    ),
    "skips": ("gptq_4", {}, {"modules_to_not_convert": "lm_head"}, "must be a list of names"),
    "block": ("fp8", {}, {"weight_block_size": [0, 2]}, "must be two positive whole numbers"),
    "no block": ("fp8", {}, {"weight_block_size": None}, "neither one scale nor one for each"),
    "state": (
        "nf4",
        {_STATE: lambda t: t[:9]},
        {},
        "is not a JSON object",
    ),
    "state with a value twice": (
        "nf4",
        {_STATE: lambda t: _bytes(b'{"shape": [64, 32], "shape": [64, 32]}')},
        {},
        "is not a JSON object",
    ),
    "deep state": (
        "nf4",
        {_STATE: lambda t: _bytes(b"[" * 4096)},
        {},
        "is not a JSON object",
    ),
    "long state": (
        "nf4",
        {_STATE: lambda t: _bytes(bytes(t.tolist()) + b" " * 4096)},
        {},
        "must be up to 4096 bytes of JSON",
    ),
    "block of a state": (
        "nf4",
        {_STATE: lambda t: _bytes(b'{"shape": [64, 32], "blocksize": "%s"}' % (b"6" * 999))},
        {},
        "states the 'blocksize' '666",
    ),
    "offset of a state": (
        "nf4_double",
        {_STATE: lambda t: _bytes(re.sub(rb"(offset\": )[^,}]*", _LARGE, bytes(t.tolist())))},
        {},
        "does not state the 'nested_offset'",
    ),
    "huge shape": (
        "w4a16",
        {".weight_shape": lambda t: t * 2**40},
        {},
        "has the shape",
    ),
    "twice": ("gptq_4", {".weight": lambda t: torch.zeros(64, 32)}, {}, "quantized by GPTQ"),
}  # fmt: skip


@pytest.mark.backend_independent
@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path, case, monkeypatch):
    name, tensors, config, message = BAD[case]
    folder = tmp_path / "model"
    quantized_files.write(folder, name)
    stored = safetensors.load_file(folder / "model.safetensors")
    if tensors is None:
        quantized_files.made().save_pretrained(tmp_path / "plain")
        stored = safetensors.load_file(tmp_path / "plain/model.safetensors")
    for end, change in (tensors or {}).items():
        before = stored.pop(_GATE + end, None)
        if change is not None:
            stored[_GATE + end] = change(before)
    values = json.loads((folder / "config.json").read_text())["quantization_config"]
    quantized_files.save(folder, stored, None if config is None else values | config)
    built = []
    monkeypatch.setattr(building, "_build", lambda *args, **options: built.append(1))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        kt.CausalLM.from_preset(folder)
    assert not built and str(folder) in str(caught.value)
    said = tensors and next(iter(tensors)) not in (".weight",)
    if said and tensors[next(iter(tensors))] is not None:
        assert _GATE in str(caught.value)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["gptq_3", "w4a16_asymmetric", "int8", "fp8"])
def test_bytes_in_memory(tmp_path, name, capsys):
    quantized_files.write(tmp_path / "model", name)
    backbone = kt.Backbone.from_preset(tmp_path / "model")
    memory = sum(math.prod(v.shape) * (1 if v.dtype == "int8" else 4) for v in backbone.weights)
    found = read_quantization(tmp_path / "model")
    assert found.memory == memory
    assert found.stored == (tmp_path / "model/model.safetensors").stat().st_size
    assert cli.main(["plan", str(tmp_path / "model"), "--batch", "2", "--length", "8"]) == 0
    printed = capsys.readouterr().out
    assert f"quantized ({found.scheme})" in printed and f"take {size(memory)} in memory" in printed
    assert cli.main(["info", str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert re.search(f"quantized by +{re.escape(found.scheme)}", printed)
