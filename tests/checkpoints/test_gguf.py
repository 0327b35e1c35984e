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
    ids, mask = families.batch(words=59)
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
    kt.export_to_huggingface(lm, tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    ids, mask = families.batch(words=59)
    expected = logits_of(reference, ids, mask)
    assert np.abs(logits_of(again, ids, mask) - expected)[mask].max() <= 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2"])
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
    array = checkpoint.read("model.embed_tokens.weight")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.nbytes <= peak < 1.5 * array.nbytes


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
    with pytest.raises(ValueError, match=r"splits texts as 'bloom'; known are .*Backbone"):
        of("bloom")
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
        (lambda w: w.add_uint32("llama.expert_count", 8), "expert_count.* not supported"),
        (lambda w: w.add_float32("general.alignment", 32.0), "'general.alignment' is 32.0, which"),
        (lambda w: w.add_array("general.alignment", [32, 8]), "'general.alignment' is .*, which"),
        (lambda w: w.add_float32("llama.logit_scale", 2.0), "logit_scale.* not supported"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "scaled by 'yarn'"),
        (lambda w: w.add_value_length(4), "8 features for keys and 4"),
        (lambda w: w.add_rope_dimension_count(4), "positions of 4 of 8 features"),
        (lambda w: w.add_uint16("split.count", 3), "one of 3 files.*llama-gguf-split --merge"),
        (lambda w: w.add_string("llama.block_count", "2"), "block_count' must be a int"),
        (lambda w: w.add_block_count(0), "block_count', or says 0"),
        (lambda w: w.add_block_count(3), "1 missing|missing"),
        (lambda w: w.add_block_count(2**31), "layers"),
        (lambda w: w.add_embedding_length(2**31), "."),
        (lambda w: w.add_rope_freq_base(float("nan")), "must be a finite number"),
        (lambda w: w.add_tensor("blk.0.ffn_gate_inp.weight", np.ones((4, 32), "f4")),
         "no place in the model.*\n.*blk.0.ffn_gate_inp"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.full(4, 3, "f4")), "of Llama 3.1"),
        (lambda w: w.add_tensor("blk.0.x", np.ones((4, 32), "i4")), "I32.* cannot unpack.*Q8_0"),
    ],
)  # fmt: skip
def test_models_that_are_refused(tmp_path, change, message):
    path = written(tmp_path, change=change)
    with pytest.raises(ValueError, match=message):
        kt.CausalLM.from_preset(path)


@pytest.mark.backend_independent
def test_other_architectures_are_named(tmp_path):
    reference, _ = gguf_files.made("llama")
    path = gguf_files.write(tmp_path / "model.gguf", reference, "mamba")
    with pytest.raises(ValueError, match=r"architecture 'mamba'.* gemma2, gemma3, llama, .*hub"):
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
