"""GGUF files, against the Transformers library's own reading of them."""

import gc
import json
import struct
import tracemalloc
import weakref

import numpy as np
import pytest
import tokenizers

import keras_transformer as kt
from keras_transformer.checkpoints import resolve_preset
from keras_transformer.checkpoints.gguf.tensors import GGUFCheckpoint
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.tokenizers.nasty import NASTY, SENTENCES

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf_files = pytest.importorskip("tests.checkpoints.gguf_files")


def logits_of(model, ids, mask):
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()
        ).logits.numpy()


def assert_same_logits(path, reference):
    # LongRoPE takes the factors of long texts by row, and in Transformers by batch.
    long = (getattr(reference.config, "rope_parameters", None) or {}).get("rope_type") == "longrope"
    ids, mask = families.batch(words=59, rows=2 if long else 3)
    lm = kt.CausalLM.from_preset(path)
    found = to_numpy(lm.predict({"token_ids": ids, "padding_mask": mask}, verbose=0))
    assert np.abs(found - logits_of(reference, ids, mask))[mask].max() <= 1e-4
    return lm


def read_by_transformers(path, like):
    """A model with a file's tensors as Transformers reads them, and the config of another.

    Its reader knows neither Gemma's scale of scores nor Phi 3's window.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint as read

    model = transformers.AutoModelForCausalLM.from_config(like.config).eval()
    theirs = read(path, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(theirs["tensors"], strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model, theirs["config"]


@pytest.mark.parametrize("name", gguf_files.MODELS)
def test_models(tmp_path, name):
    reference, architecture = gguf_files.made(name)
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture)
    lm = assert_same_logits(path, reference)
    family = reference.config.model_type
    assert lm.backbone.family == ("llama" if family == "mistral" else family)
    assert tuple(lm.end_ids) == (2,) and lm.tokenizer is None
    kt.export(lm, tmp_path / "again", format="gguf")
    assert_same_file(tmp_path / "again" / "model.gguf", path, architecture)
    again = kt.CausalLM.from_preset(tmp_path / "again" / "model.gguf")
    assert again.backbone.config == lm.backbone.config
    for mine, theirs in zip(again.backbone.weights, lm.backbone.weights, strict=True):
        assert np.array_equal(to_numpy(mine), to_numpy(theirs))
    assert tuple(again.end_ids) == (2,) and again.tokenizer is None


def assert_same_file(path, expected, architecture):
    """A file has the same tensors and sizes as one that llama.cpp's converter would write."""
    mine, theirs = gguf.GGUFReader(path), gguf.GGUFReader(expected)
    found = {tensor.name: tensor for tensor in mine.tensors}
    assert found.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        own = found[tensor.name]
        assert own.tensor_type == tensor.tensor_type and list(own.shape) == list(tensor.shape)
        if tensor.name == "rope_freqs.weight":  # computed
            assert np.allclose(own.data, tensor.data, rtol=1e-6)
        else:
            assert np.array_equal(own.data, tensor.data), tensor.name
    for key, field in theirs.fields.items():
        # Some files of StableLM say it wrongly.
        if key.startswith(f"{architecture}.") and "parallel_residual" not in key:
            value = field.contents()
            value = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert mine.fields[key].contents() == value, key


# Its reader knows neither Mixtral nor the experts of GPT-OSS, and Falcon with one group alone.
READ_BY_TRANSFORMERS = [
    "llama", "qwen2", "qwen3", "gemma2", "qwen2moe", "qwen3moe", "falcon", "bloom", "gpt2",
    "stablelm", "starcoder2", "nemotron", "phi3", "lfm2",
]  # fmt: skip


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_same(tmp_path, name):
    reference, architecture = gguf_files.made(name)
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture, "F16")
    model, theirs = read_by_transformers(path, reference)
    assert_same_logits(path, model)
    ours = resolve_preset(path).config
    for key, value in theirs.items():
        if key in ours and key != "head_dim":
            assert ours[key] == pytest.approx(value), key


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"])
def test_types_of_tensors(tmp_path, kind):
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    reference, architecture = gguf_files.made("llama", **sizes)
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture, kind)
    assert_same_logits(path, read_by_transformers(path, reference)[0])


# JAX on a CPU takes some arrays as the memory of the model itself.
@pytest.mark.one_backend
def test_one_unpacked_tensor_at_a_time(tmp_path, monkeypatch):
    reference, architecture = gguf_files.made("llama")
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture, "Q8_0")
    held, counts, read = [], [], GGUFCheckpoint.read

    def counted(self, name):
        array = read(self, name)
        held.append(weakref.ref(array))
        gc.collect()
        counts.append(sum(each() is not None for each in held))
        return array

    monkeypatch.setattr(GGUFCheckpoint, "read", counted)
    kt.CausalLM.from_preset(path)
    assert len(counts) == 21 and max(counts) == 1


@pytest.mark.backend_independent
def test_unpacking_takes_little_memory(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    reference, architecture = gguf_files.made("llama", vocab_size=32768, **sizes)
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture, kind.name)
    checkpoint = resolve_preset(path).checkpoint
    tracemalloc.start()
    array = checkpoint.read("token_embd.weight")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.nbytes <= peak < 1.5 * array.nbytes


# Export


def exported(tmp_path, name="llama", kind="llama-bpe", quantization=None, **values):
    """A model with a tokenizer, and the file that it was exported to."""
    reference, architecture = gguf_files.made(name, vocab_size=800, **values)
    source = gguf_files.write(
        tmp_path / "source.gguf", reference, architecture, vocabulary=vocabulary_of(kind)
    )
    lm = kt.CausalLM.from_preset(source)
    kt.export(lm, tmp_path / "exported", format="gguf", quantization=quantization)
    return lm, tmp_path / "exported" / "model.gguf"


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["bf16", "f16", "q8_0", "q4_0"])
def test_types_of_exports(tmp_path, kind):
    lm, path = exported(tmp_path, quantization=kind)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert tensors["blk.0.ffn_up.weight"].tensor_type.name == kind.upper()
    assert tensors["output_norm.weight"].tensor_type.name == "F32"
    stored = tensors["token_embd.weight"]
    table = to_numpy(lm.backbone.get_layer("token_embedding").embeddings).astype("float32")
    expected = gguf.quantize(table, stored.tensor_type)
    assert np.array_equal(stored.data.view("u1"), expected.view("u1").reshape(len(table), -1))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype="float32"
    ).eval()
    assert_same_logits(path, theirs)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "llama"), ("phi3", "llama"), ("gemma2", "llama"), ("llama", "llama-bpe"),
        ("llama", "tekken"), ("qwen2", "qwen2"), ("llama", "gpt-4o"), ("lfm2", "lfm2"),
        ("bloom", "bloom"), ("starcoder2", "starcoder"), ("falcon", "falcon"), ("gpt2", "gpt-2"),
    ],
)  # fmt: skip
def test_tokenizers_of_exports(tmp_path, name, kind):
    lm, path = exported(tmp_path, name, kind)
    again, own = kt.Tokenizer.from_preset(path), lm.tokenizer
    assert again.get_vocabulary() == own.get_vocabulary()
    for text in TEXTS:
        assert again.encode(text) == own.encode(text), repr(text)
    assert again.special_ids == own.special_ids and again.chat_template == own.chat_template
    alone = path.rename(tmp_path / "alone.gguf")
    if kind in ("bloom", "starcoder", "falcon"):
        return  # which Transformers splits as GPT-2 does
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=alone.name)
    for text in SENTENCES:
        assert theirs.encode(text) == own.encode(text), repr(text)


@pytest.mark.backend_independent
def test_a_published_tokenizer_of_words_is_refused(tmp_path):
    lm, path = exported(tmp_path)
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    lm = kt.CausalLM(lm.backbone, tokenizer=kt.Tokenizer(backend))
    with pytest.raises(ValueError, match=r"vocabulary of merges \(BPE\).* is WordLevel.*backbone"):
        kt.export(lm, tmp_path / "other", format="gguf")
    spec = json.loads(kt.Tokenizer.from_preset(path)._backend.to_str())
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "[a-c]+"}
    words = tokenizers.Tokenizer.from_str(json.dumps(spec))
    lm = kt.CausalLM(lm.backbone, tokenizer=kt.Tokenizer(words))
    with pytest.raises(ValueError, match="no name for how this tokenizer splits"):
        kt.export(lm, tmp_path / "other", format="gguf")
    spec = json.loads(kt.Tokenizer.from_preset(path)._backend.to_str())
    spec["normalizer"] = {"type": "Lowercase"}
    lower = tokenizers.Tokenizer.from_str(json.dumps(spec))
    lm = kt.CausalLM(lm.backbone, tokenizer=kt.Tokenizer(lower))
    with pytest.raises(ValueError, match="cannot hold this tokenizer"):
        kt.export(lm, tmp_path / "other", format="gguf")
    assert not (tmp_path / "other").exists()


_TINY = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("preset", "values", "message"),
    [
        (
            "phi2_2_7b_en",
            {"rotary_dim": 2},
            "no architecture for this model, a phi. Files are written of llama, qwen2",
        ),
        (
            "mistral_7b_en",
            {"window": 4, "num_key_value_heads": 2},
            r"this model, a mistral.*window=4, only None",
        ),
        ("gpt2_base_en", {"activation": "relu"}, "gpt2 file cannot express activation='relu'"),
    ],
)
def test_models_that_are_not_written(tmp_path, preset, values, message):
    backbone = kt.Backbone.from_preset(preset, load_weights=False, **_TINY, **values)
    with pytest.raises(ValueError, match=message):
        kt.export(backbone, tmp_path / "out", format="gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_backend
def test_an_export_is_whole_or_absent(tmp_path):
    lm, path = exported(tmp_path)
    before = path.read_bytes()
    kt.export(lm, path.parent, format="gguf", quantization="q8_0")
    smaller = path.read_bytes()
    assert len(smaller) < len(before)
    kernel = lm.backbone.weights[-1]
    kernel.assign(np.full(kernel.shape, 1e6, "float32"))
    lm.backbone.get_layer("token_embedding").embeddings.assign(np.full((800, 32), 1e6, "float32"))
    with pytest.raises(ValueError, match="token_embd.weight.*NaN or infinity, as float16"):
        kt.export(lm, path.parent, format="gguf", quantization="f16")
    assert path.read_bytes() == smaller
    assert sorted(each.name for each in tmp_path.iterdir()) == ["exported", "source.gguf"]
    with pytest.raises(ValueError, match="`quantization` must be .*'f32'.*received 'int8'"):
        kt.export(lm, path.parent, format="gguf", quantization="int8")


@pytest.mark.one_backend
def test_exporting_takes_little_memory(tmp_path):
    reference, architecture = gguf_files.made("llama", vocab_size=32768, hidden_size=256)
    source = gguf_files.write(tmp_path / "source.gguf", reference, architecture)
    lm = kt.CausalLM.from_preset(source)
    table = 32768 * 256 * 4
    tracemalloc.start()
    kt.export(lm, tmp_path / "out", format="gguf", quantization="q8_0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * table


# Several files


def test_a_model_in_parts(tmp_path):
    reference, architecture = gguf_files.made("llama")
    first = gguf_files.write(tmp_path / "model.gguf", reference, architecture, tensors=8)
    assert first.name == "model-00001-of-00003.gguf"
    lm = assert_same_logits(first, reference)
    assert lm.backbone.family == "llama"
    parts = sorted(tmp_path.iterdir())
    assert resolve_preset(first).local_weights == parts


@pytest.mark.backend_independent
def test_parts_that_do_not_belong_together(tmp_path):
    reference, architecture = gguf_files.made("llama")
    gguf_files.write(tmp_path / "model.gguf", reference, architecture, tensors=8)
    first, second, third = sorted(tmp_path.iterdir())
    data = {path: path.read_bytes() for path in (first, second, third)}

    def refused(message, path=first, error=ValueError):
        with pytest.raises(error, match=message):
            kt.CausalLM.from_preset(path)
        for each, content in data.items():
            each.write_bytes(content)

    refused(
        "a later part of a model in 3 files. Name the first.*'model-00001-of-00003.gguf'", third
    )
    third.unlink()
    refused("model-00003-of-00003.gguf is missing: part 3 of the 3", error=FileNotFoundError)
    second.write_bytes(data[third])
    refused("should be part 2 of 3, but says that it is part 3 of 3")
    second.write_bytes(data[second][:-100])
    refused("model-00002-of-00003.gguf is not a whole GGUF file")
    alone = tmp_path / "other" / "model.gguf"
    alone.parent.mkdir()
    alone.write_bytes(data[first])
    refused("one of 3 files of a model. Give it back its name", alone)
    misnamed = alone.with_name("model-00001-of-00002.gguf")
    alone.rename(misnamed)
    refused("says that it is one of 2 files, but the file says 3", misnamed)
    for key, form, value, message in (
        ("split.tensors.count", "<i", 22, "declares 22 tensors in 3 files, but they have 21"),
        ("split.tensors.count", "<i", -1, "must not be negative"),
        ("split.count", "<H", 65535, "one of 3 files, but the file says 65,535"),
        ("split.no", "<H", 1, "a later part"),
    ):
        changed = bytearray(data[first])
        place = changed.index(key.encode()) + len(key) + 4
        changed[place : place + struct.calcsize(form)] = struct.pack(form, value)
        first.write_bytes(changed)
        refused(message)
    changed = data[third].replace(b"split.count", b"split.other")
    third.write_bytes(changed)
    refused("should be part 3 of 3, but says that it is not a part")
    tensors = resolve_preset(first)._header.tensors
    earlier, own = ([n for n, t in tensors.items() if t.path == part] for part in (first, second))
    own, twice = next((n, m) for n in own for m in earlier if len(n) == len(m))
    second.write_bytes(data[second].replace(own.encode(), twice.encode()))
    refused(f"an earlier part both have the tensor '{twice}'")


# Tokenizers


def trained(pieces):
    """Tokens and merges of a small vocabulary, of pieces or of bytes."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    options = {"vocab_size": 500, "show_progress": False}
    if pieces:
        backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("▁", "merged_with_next")
    else:
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        options["initial_alphabet"] = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(**options)
    backend.train_from_iterator(SENTENCES * 3, trainer)
    values = json.loads(backend.to_str())["model"]
    tokens = sorted(values["vocab"], key=values["vocab"].get)
    return tokens, [" ".join(pair) for pair in values["merges"]]


def vocabulary_of(kind, change=None):
    """Return a function that writes a vocabulary of a kind: `"llama"`, or how bytes are split."""

    def write(writer):
        pieces = kind == "llama"
        tokens, merges = trained(pieces)
        first = ["<unk>", "<s>", "</s>", "<think>"]
        types = [2, 3, 3, 4]
        if pieces:
            first += [f"<0x{byte:02X}>" for byte in range(256)]
            types += [6] * 256
            first += ["  ", "    "]
            types += [1, 1]
        tokens = first + [token for token in tokens if token not in first]
        writer.add_tokenizer_model("llama" if pieces else "gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types(types + [1] * (len(tokens) - len(types)))
        if pieces:
            writer.add_token_scores([-float(i) for i in range(len(tokens))])
        else:
            writer.add_tokenizer_pre(kind)
            writer.add_token_merges(merges)
        writer.add_unk_token_id(0)
        writer.add_chat_template(
            "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        )
        if change is not None:
            change(writer)

    return write


TEXTS = [*NASTY, *SENTENCES, "a</s>b <s> c", " <think>a </think> <think>", "a  b    c"]


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "llama"),
        ("phi3", "llama"),
        ("gemma2", "llama"),
        ("llama", "llama-bpe"),
        ("llama", "tekken"),
        ("qwen2", "qwen2"),
        ("qwen3", "gpt-2"),
        ("llama", "gpt-4o"),
        ("lfm2", "lfm2"),
        ("stablelm", "dbrx"),
    ],
)
def test_tokenizers(tmp_path, name, kind):
    reference, architecture = gguf_files.made(name, vocab_size=800)

    def start(writer):
        writer.add_add_bos_token(kind != "qwen2")

    vocabulary = vocabulary_of(kind, start)
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture, vocabulary=vocabulary)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    ours = kt.Tokenizer.from_preset(path)
    for text in TEXTS:
        expected = theirs.encode(text)
        if max(expected, default=0) >= ours.vocabulary_size:
            continue  # its class adds tokens that the file does not have, such as `<mask>`
        assert ours.encode(text) == expected, repr(text)
        ids = ours.encode(text, special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), repr(text)
    assert (ours.start_id, ours.end_id, ours.unknown_id) == (1, 2, 0)
    messages = [{"role": "user", "content": "a man"}]
    assert ours.render_chat(messages) == "a man</s>"


def test_a_text_is_continued(tmp_path):
    reference, architecture = gguf_files.made("qwen3", vocab_size=504)
    path = gguf_files.write(
        tmp_path / "model.gguf", reference, architecture, vocabulary=vocabulary_of("qwen2")
    )
    lm = kt.CausalLM.from_preset(str(path))
    assert isinstance(lm.generate("A man rides", max_new_tokens=3), str)
    lm.save_to_preset(tmp_path / "saved")
    again = kt.CausalLM.from_preset(tmp_path / "saved")
    assert again.tokenizer.encode("A man") == lm.tokenizer.encode("A man")


@pytest.mark.backend_independent
def test_options_of_tokenizers(tmp_path):
    reference, architecture = gguf_files.made("llama", vocab_size=800)

    def of(kind, change=None):
        vocabulary = vocabulary_of(kind, change)
        path = tmp_path / "model.gguf"
        path.unlink(missing_ok=True)
        gguf_files.write(path, reference, architecture, vocabulary=vocabulary)
        return kt.Tokenizer.from_preset(path)

    assert of("llama").encode("a")[0] == 1 and of("llama-bpe").encode("a")[0] == 1
    assert of("gpt-2").encode("a")[0] != 1
    assert of("llama", lambda w: w.add_add_eos_token(True)).encode("a")[-1] == 2
    bare = of("llama", lambda w: w.add_add_space_prefix(False))
    assert bare.decode(bare.encode("man", special_tokens=False)) == "man"
    assert bare.encode("man") != of("llama").encode("man")
    with pytest.raises(ValueError, match=r"splits texts as 'viking'; known are .*Backbone"):
        of("viking")
    with pytest.raises(ValueError, match="'bos_token_id' is 9,999, but it has"):
        of("llama", lambda w: w.add_bos_token_id(9999))


# What is not read


def written(tmp_path, name="llama", **options):
    reference, architecture = gguf_files.made(name)
    return gguf_files.write(tmp_path / "model.gguf", reference, architecture, **options)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_uint32("llama.expert_count", 8), "'llama.expert_used_count', or says 0"),
        (lambda w: w.add_float32("general.alignment", 32.0), "'general.alignment' is 32.0, which"),
        (lambda w: w.add_array("general.alignment", [32, 8]), "'general.alignment' is .*, which"),
        (lambda w: w.add_float32("llama.logit_scale", 2.0), "logit_scale.* not supported"),
        (lambda w: w.add_string("llama.rope.scaling.type", "su"), "scaled by 'su'"),
        (lambda w: w.add_value_length(4), "8 features for keys and 4"),
        (lambda w: w.add_rope_dimension_count(4), "positions of 4 of 8 features"),
        (lambda w: w.add_string("llama.block_count", "2"), "block_count' must be a int"),
        (lambda w: w.add_block_count(0), "block_count', or says 0"),
        (lambda w: w.add_block_count(3), "1 missing|missing"),
        (lambda w: w.add_block_count(2**31), "layers"),
        (lambda w: w.add_embedding_length(2**31), "."),
        (lambda w: w.add_rope_freq_base(float("nan")), "must be a finite number"),
        (lambda w: w.add_tensor("blk.0.ffn_gate_inp.weight", np.ones((4, 32), "f4")),
         "no place in the model.*\n.*blk.0.ffn_gate_inp"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.full(4, 3, "f4")), "not Llama 3.1.s"),
        (lambda w: w.add_tensor("blk.0.x", np.ones((4, 32), "i4")), "I32.* cannot unpack.*Q8_0"),
    ],
)  # fmt: skip
def test_models_that_are_refused(tmp_path, change, message):
    path = written(tmp_path, change=change)
    with pytest.raises(ValueError, match=message):
        kt.CausalLM.from_preset(path)


def scaled(kind, **values):
    def write(writer):
        writer.add_string("llama.rope.scaling.type", kind)
        for name, value in values.items():
            writer.add_float32(f"llama.rope.scaling.{name}", value)

    return write


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("lfm2", lambda w: w.add_array("lfm2.attention.head_count_kv", [0, 2, 2]), "list of 2"),
        ("lfm2", lambda w: w.add_array("lfm2.attention.head_count_kv", [0, -2]), "list of 2"),
        ("lfm2", lambda w: w.add_uint32("lfm2.attention.head_count_kv", 2), "list of 2"),
        ("lfm2", lambda w: w.add_array("lfm2.attention.head_count_kv", [0, 0]), "layer_types"),
        ("lfm2", lambda w: w.add_block_count(10_001), "10,001 layers; at most 10,000"),
        ("mixtral", lambda w: w.add_expert_count(3), "of another shape"),
        ("mixtral", lambda w: w.add_expert_count(2**31), "."),
        ("mixtral", lambda w: w.add_expert_used_count(5), "."),
        ("qwen3moe", lambda w: w.add_expert_feed_forward_length(8), "of another shape"),
        ("qwen3moe", lambda w: w.add_float32("qwen3moe.expert_weights_scale", 2.0), "s_scale'"),
        ("phi3_longrope", lambda w: w.add_rope_scaling_attn_factors(3.0), "where LongRoPE"),
        ("phi3_longrope", lambda w: w.add_rope_dimension_count(4), r"shape \(4,\), not \(2,\)"),
        ("phi3_longrope", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "beside"),
        ("gpt2", lambda w: w.add_head_count_kv(2), "2 heads of keys and values for 4"),
        ("llama", scaled("yarn", yarn_ext_factor=0.5), "yarn_ext_factor' is not 1"),
        ("llama", scaled("yarn", factor=float("inf")), "must be a finite number"),
        ("llama", scaled("longrope"), "lacks 'rope_factors_long.weight'"),
        ("llama3", scaled("yarn", factor=2.0), "rope_freqs.weight', beside the scaling 'yarn'"),
    ],
)  # fmt: skip
def test_values_that_contradict_each_other(tmp_path, name, change, message):
    path = written(tmp_path, name, change=change)
    with pytest.raises(ValueError, match=message):
        kt.CausalLM.from_preset(path)


def test_experts_in_a_tensor_each(tmp_path):
    """As files of Mixtral had them before April 2024."""
    reference, architecture = gguf_files.made("mixtral")
    whole = gguf_files.write(tmp_path / "whole.gguf", reference, architecture)
    header = resolve_preset(whole)._header
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(whole).tensors}
    path = tmp_path / "apart.gguf"

    def write(missing=None):
        path.unlink(missing_ok=True)
        writer = gguf.GGUFWriter(path, architecture)
        gguf_files.describe(writer, reference.config, architecture)
        for name, array in found.items():
            apart = "_exps" in name
            for i, part in enumerate(array if apart else [array]):
                own = name.replace("_exps", f".{i}") if apart else name
                if own != missing:
                    writer.add_tensor(own, np.array(part))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write()
    assert len(resolve_preset(path)._header.tensors) > len(header.tensors)
    assert_same_logits(path, reference)
    write(missing="blk.1.ffn_up.2.weight")
    with pytest.raises(ValueError, match=r"lacks 'blk.1.ffn_up.experts.2.weight'"):
        kt.CausalLM.from_preset(path)


@pytest.mark.backend_independent
def test_other_architectures_are_named(tmp_path):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(ValueError, match=r"architecture 'mamba'.* llama, qwen2, qwen2moe, .*hub"):
        kt.CausalLM.from_preset(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        kt.CausalLM.from_preset(tmp_path / "missing.gguf")


def header_of(path):
    """The bytes of a file up to its tensors."""
    preset = resolve_preset(path)
    start = min(tensor.offset for tensor in preset._header.tensors.values())
    return path.read_bytes(), start


@pytest.mark.backend_independent
def test_a_truncated_file_is_refused(tmp_path):
    path = written(tmp_path)
    data, start = header_of(path)
    for end in [*range(0, start, 37), start, len(data) - 100]:
        path.write_bytes(data[:end])
        with pytest.raises(ValueError, match="is not a whole GGUF file"):
            kt.CausalLM.from_preset(path)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"GGML", "does not begin with GGUF"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 2**62), "tensors, more than it has room for"),
        (16, struct.pack("<Q", 2**62), "keys, more than it has room for"),
        (24, struct.pack("<Q", 2**63), "a key of 9,223"),
    ],
)
def test_absurd_counts_are_refused_at_once(tmp_path, place, value, message):
    path = written(tmp_path)
    resolve_preset(path)  # what reads the file is imported
    data = bytearray(path.read_bytes())
    data[place : place + len(value)] = value
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        kt.CausalLM.from_preset(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.backend_independent
def test_tensors_outside_of_the_file_or_in_each_other(tmp_path):
    path = written(tmp_path)
    data, _ = header_of(path)
    place = data.index(b"token_embd.weight") + len(b"token_embd.weight")
    for shift, value, message in (
        (24, 2**40, "not inside the file"),
        (24, 2**63, "not inside the file"),
        (24, 33, "not inside the file"),
        (4, 2**50, "not inside the file"),
        (4, 0, "has the shape"),
        (0, 99, "99 dimensions"),
    ):
        changed = bytearray(data)
        form = "<I" if shift == 0 else "<Q"
        changed[place + shift : place + shift + struct.calcsize(form)] = struct.pack(form, value)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=message):
            kt.CausalLM.from_preset(path)
    place = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 16
    changed = bytearray(data)
    changed[place : place + 8] = struct.pack("<Q", 0)
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="overlaps another"):
        kt.CausalLM.from_preset(path)


@pytest.mark.backend_independent
def test_changed_bytes_raise_nothing_else(tmp_path):
    reference, architecture = gguf_files.made("llama", vocab_size=800)
    path = gguf_files.write(
        tmp_path / "model.gguf", reference, architecture, vocabulary=vocabulary_of("llama-bpe")
    )
    data, start = header_of(path)
    random = np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(data)
        for place in random.integers(0, start, 3):
            changed[place] = random.integers(256)
        path.write_bytes(changed)
        try:
            preset = resolve_preset(path)
            preset.describe(True)
            preset.load_tokenizer()
        except (ValueError, FileNotFoundError):
            pass
