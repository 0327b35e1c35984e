"""Values of a file that a model does not read: known and equal, or an error."""

import dataclasses

import numpy as np
import pytest
import safetensors.numpy

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.base.shared import encoder_heads, masked_lm
from tests.checkpoints import families, test_families
from tests.checkpoints.test_heads import made

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.one_backend


def changed(folder, tensors=(), without=()):
    """Writes further tensors into a checkpoint."""
    path = folder / "model.safetensors"
    known = safetensors.numpy.load_file(path)
    kept = {name: array for name, array in known.items() if name not in without}
    safetensors.numpy.save_file({**kept, **dict(tensors)}, path, {"format": "pt"})
    return known


# A checkpoint of a head, the class that loads it, and a tensor that nothing here computes with.
STRANGE = {
    "a layer of a head": ("bert", "TextClassifier", kt.Task, "classifier.dense.weight"),
    "of a head that is not loaded": ("bert", "TextClassifier", kt.Backbone, "classifier.a.weight"),
    "of the masked language model": ("bert", "MaskedLM", kt.Task, "cls.predictions.more.bias"),
    "behind an ignored prefix": ("albert", "MaskedLM", kt.Backbone, "predictions.extra.weight"),
    "in the pooler's place": ("deberta-v2", "TokenClassifier", kt.Task, "pooler.norm.weight"),
    "beside a layer": ("distilbert", "TextClassifier", kt.Task, "distilbert.extra.bias"),
    "a bias of a layer without": ("llama", "TextClassifier", kt.Task, "score.bias"),
    "an attention without biases": (
        "llama", "TextClassifier", kt.Backbone, "model.layers.0.self_attn.q_proj.bias",
    ),
    "a head of another width": ("modernbert", "TextClassifier", kt.Task, "head.more.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_a_tensor_that_no_line_takes_is_refused(tmp_path, name):
    model_type, task, loader, tensor = STRANGE[name]
    made(model_type, task, tmp_path)
    loader.from_preset(tmp_path)
    changed(tmp_path, {tensor: np.ones(12, "float32")})
    with pytest.raises(ValueError, match=rf"no place in the model:\n  {tensor}"):
        loader.from_preset(tmp_path)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    """They have a tensor that no other layer has, and stand behind the layers of the model."""
    test_families.saved(test_families.whole("deepseek_v3", 0), tmp_path)
    layer = "model.layers.2."
    names = ["self_attn.o_proj.weight", "mlp.experts.0.up_proj.weight", "shared_head.norm.weight"]
    further = {layer + name: np.ones((2, 2), "float32") for name in names}
    changed(tmp_path, further)
    with pytest.raises(ValueError, match=r"no place in the model:\n  model\.layers\.2\."):
        kt.CausalLM.from_preset(tmp_path)
    changed(tmp_path, {f"{layer}eh_proj.weight": np.ones((2, 2), "float32")})
    assert kt.CausalLM.from_preset(tmp_path).backbone.config.num_layers == 2


@pytest.mark.parametrize("ignored", [(), ("classifier.*",)])
def test_a_hidden_layer_without_an_activation_is_not_dropped(tmp_path, monkeypatch, ignored):
    """A table that names a hidden layer and no activation makes no such layer."""
    made("roberta", "TextClassifier", tmp_path)
    heads = encoder_heads(
        masked_lm("lm_head.", "dense", "layer_norm", "decoder.bias", "bias"),
        classifier={"output": "classifier.out_proj", "hidden": "classifier.dense"},
    )
    family = FAMILIES["roberta"]
    names = dataclasses.replace(family.names, ignored=ignored)
    monkeypatch.setitem(FAMILIES, "roberta", dataclasses.replace(family, heads=heads, names=names))
    with pytest.raises(ValueError, match=r"no place in the model:\n  classifier\.dense\.bias"):
        kt.TextClassifier.from_preset(tmp_path)


def test_what_a_pattern_covers_is_refused_beside_a_head(tmp_path, monkeypatch):
    made("bert", "TextClassifier", tmp_path)
    changed(tmp_path, {"classifier.more.weight": np.ones(2, "float32")})
    family = FAMILIES["bert"]
    names = dataclasses.replace(family.names, ignored=("classifier.*",))
    monkeypatch.setitem(FAMILIES, "bert", dataclasses.replace(family, names=names))
    kt.Backbone.from_preset(tmp_path)
    with pytest.raises(ValueError, match=r"no place in the model:\n  classifier\.more\.weight"):
        kt.TextClassifier.from_preset(tmp_path)


def test_a_head_of_our_own_is_read_whole(tmp_path):
    made("roberta", "TextClassifier", tmp_path / "theirs")
    kt.Task.from_preset(tmp_path / "theirs").save_to_preset(tmp_path / "ours")
    changed(tmp_path / "ours", {"head/further/kernel": np.ones((2, 2), "float32")})
    assert kt.Backbone.from_preset(tmp_path / "ours").config.num_heads > 0
    with pytest.raises(ValueError, match="no place in the model:\n  head/further/kernel"):
        kt.TextClassifier.from_preset(tmp_path / "ours")


# Heads of Transformers that no task here has: the model without them is loaded all the same.
OTHER_HEADS = [
    ("bert", "BertForPreTraining"),
    ("albert", "AlbertForPreTraining"),
    ("electra", "ElectraForPreTraining"),
    ("big_bird", "BigBirdForPreTraining"),
    ("gpt2", "GPT2DoubleHeadsModel"),
    ("opt", "OPTForQuestionAnswering"),
    ("mpt", "MptForQuestionAnswering"),
    ("gpt_neo", "GPTNeoForQuestionAnswering"),
    ("phi", "PhiForTokenClassification"),
    ("vit", "ViTForMaskedImageModeling"),
    ("wav2vec2", "Wav2Vec2ForPreTraining"),
]


@pytest.mark.parametrize(("model_type", "name"), OTHER_HEADS)
def test_heads_of_others_may_be_left_over(tmp_path, model_type, name):
    prefix, configs = families.CONFIGS[model_type]
    config = getattr(transformers, f"{prefix}Config")(**configs[0])
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    assert kt.Backbone.from_preset(tmp_path).config.num_layers == config.num_hidden_layers


def frequencies(dim, base):
    """Su et al. 2021, section 3.2.2: base to the power of -2 i / dim."""
    return (base ** (-np.arange(0, dim, 2) / dim)).astype("float32")


def causal(length, dtype):
    return np.tri(length)[None, None].astype(dtype)


def computed(model_type):
    """Tensors that older releases stored, by their formulas, and one wrong value for each."""
    if model_type == "bert":
        ids = np.arange(24, dtype="int64")[None]
        return {"bert.embeddings.position_ids": (ids, ids[:, ::-1].copy())}
    if model_type == "gpt2":
        return {
            "transformer.h.0.attn.bias": (causal(24, "uint8"), causal(24, "uint8") * 0),
            "transformer.h.0.attn.masked_bias": (np.float32(-1e4), np.float32(0)),
        }
    if model_type == "gpt_neox":
        name = "gpt_neox.layers.1.attention."
        return {
            f"{name}bias": (causal(24, "bool"), np.ones((1, 1, 24, 24), "bool")),
            f"{name}masked_bias": (np.float32(-1e9), np.float32(1)),
        }
    if model_type == "gpt_neo":  # whose second layer sees four tokens
        name = "transformer.h.{}.attn.attention."
        window = (np.tri(80) - np.tri(80, k=-4))[None, None].astype("bool")
        return {
            f"{name.format(0)}bias": (causal(80, "bool"), window),
            f"{name.format(1)}bias": (window, causal(80, "bool")),
            f"{name.format(1)}masked_bias": (np.float32(-1e9), np.float32(1)),
        }
    if model_type == "codegen":
        name = "transformer.h.1.attn.causal_mask"
        return {name: (causal(24, "bool"), causal(24, "bool")[..., ::-1].copy())}
    config = transformers.LlamaConfig(**families.CONFIGS["llama"][1][0])
    right = frequencies(config.head_dim, config.rope_parameters["rope_theta"])
    return {"model.layers.1.self_attn.rotary_emb.inv_freq": (right, right * np.float32(1.01))}


_COMPUTED = ["bert", "gpt2", "gpt_neox", "gpt_neo", "codegen", "llama"]


@pytest.mark.parametrize("model_type", _COMPUTED)
def test_what_is_computed_is_compared_with_the_file(tmp_path, model_type):
    suffix = "ForMaskedLM" if model_type == "bert" else "LanguageModel"
    for name, (right, wrong) in computed(model_type).items():
        families.make(model_type, 0, suffix).save_pretrained(tmp_path)
        for stored in {right.dtype, np.dtype("float16")} - {np.dtype("bool"), np.dtype("uint8")}:
            if abs(right).max() < 6e4:
                changed(tmp_path, {name: np.asarray(right, stored)})
                kt.Backbone.from_preset(tmp_path)
        changed(tmp_path, {name: np.asarray(right)})
        kt.Backbone.from_preset(tmp_path)
        changed(tmp_path, {name: np.asarray(wrong)})
        with pytest.raises(
            ValueError, match=f"{name}.*is computed from the config.*but its values differ"
        ):
            kt.Backbone.from_preset(tmp_path)


@pytest.mark.parametrize("model_type", ["marian", "pegasus", "roformer"])
def test_stored_waves_are_those_that_are_computed(tmp_path, model_type):
    """Transformers stores its own sines, computed in float64, and reads what a file has."""
    families.make(model_type, 0, "Model").save_pretrained(tmp_path)
    side = "encoder" if model_type == "roformer" else "decoder"
    name = f"{side}.embed_positions.weight"
    stored = changed(tmp_path)
    assert name in stored
    kt.Backbone.from_preset(tmp_path)
    half = {name: stored[name].astype("float16")}
    changed(tmp_path, half)
    kt.Backbone.from_preset(tmp_path)
    changed(tmp_path, {name: np.roll(stored[name], 1, axis=0)})  # counted from another place
    with pytest.raises(ValueError, match=f"{name}.*is computed from the config"):
        kt.Backbone.from_preset(tmp_path)


def test_stored_waves_with_a_row_for_the_padding(tmp_path):
    """Older releases stored the table of M2M100 too, from the position 0."""
    model = families.make("m2m_100", 0, "Model")
    model.save_pretrained(tmp_path)
    table = model.encoder.embed_positions.weights.numpy()
    assert not table[1].any()
    name = "encoder.embed_positions.weights"
    changed(tmp_path, {name: table})
    kt.Backbone.from_preset(tmp_path)
    changed(tmp_path, {name: np.roll(table, 1, axis=0)})
    with pytest.raises(ValueError, match=f"{name}.*is computed from the config"):
        kt.Backbone.from_preset(tmp_path)


def test_one_tensor_under_two_names_has_one_value(tmp_path):
    families.make("t5", 0, "Model").save_pretrained(tmp_path)
    shared = changed(tmp_path)["shared.weight"]
    changed(tmp_path, {"encoder.embed_tokens.weight": shared})
    kt.Backbone.from_preset(tmp_path)
    changed(tmp_path, {"encoder.embed_tokens.weight": shared + 1})
    with pytest.raises(ValueError, match="are the same tensor in a model of this config"):
        kt.Backbone.from_preset(tmp_path)
