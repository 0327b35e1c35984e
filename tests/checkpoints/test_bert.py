"""BERT in the published format, both ways, against the Transformers library."""

import hashlib
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer.checkpoints import (
    backbone_variables,
    check_weights,
    load_backbone,
    load_config,
    load_weights,
    resolve_preset,
    variable_shapes,
)
from keras_transformer.checkpoints.families import get_family
from keras_transformer.checkpoints.families.encoders.bert import BERT
from keras_transformer.checkpoints.weights.safetensors_io import save_tensors, to_numpy
from keras_transformer.checkpoints.weights.tables import expand, export
from tests.checkpoints.conftest import needs_minilm, small_backbone

pytestmark = pytest.mark.one_backend

SST2 = Path(__file__).parents[2] / ".." / "shared" / "data" / "sst2" / "train.tsv"
SENTENCES = [
    "a man rides a bike .",
    "It wasn't bad; in fact, it was the best film I have seen since 1999!",
    "naïve café, 东京, and an emoji 🙂",
    "x",
]


def sentences():
    if not SST2.is_file():
        return SENTENCES
    lines = SST2.read_text(encoding="utf-8").splitlines()[1:201]
    return SENTENCES + [line.split("\t")[0] for line in lines]


def test_published_values_of_bert_base():
    config = BERT.config({"model_type": "bert"})
    shapes = variable_shapes(config)
    assert sum(np.prod(shape) for shape in shapes.values()) == 109_482_240
    assert config.activation == "gelu" and config.normalization_epsilon == 1e-12


@pytest.mark.parametrize(
    "values, message",
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "is_decoder=True is not supported"),
        ({"hidden_act": "xielu"}, "hidden_act='xielu' is not supported, only 'gelu'"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"hidden_size": 100}, "must be divisible"),
        ({"num_hidden_layers": None}, "num_layers"),
    ],
)
def test_values_that_are_not_supported_are_named(tmp_path, values, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **values}))
    with pytest.raises(ValueError, match=message) as info:
        load_config(tmp_path, load_weights=False)
    assert "config.json" in str(info.value)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_config_both_ways(activation):
    theirs = {
        "vocab_size": 50,
        "hidden_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "hidden_act": activation,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    published = BERT.published_config(BERT.config(theirs))
    assert {key: published[key] for key in theirs} == theirs
    assert BERT.config(published) == BERT.config(theirs)
    assert get_family(published) is BERT


@pytest.mark.parametrize(
    "values", [{"position": "rotary"}, {"normalize_first": True}, {"head_dim": 8}]
)
def test_configs_that_bert_cannot_express(values):
    config = BERT.config({"hidden_size": 12, "num_attention_heads": 3}).replace(**values)
    with pytest.raises(ValueError, match="bert checkpoint (cannot express|needs)"):
        BERT.published_config(config)


def test_labels_of_a_classifier():
    values = {"architectures": ["BertForSequenceClassification"]}
    labels = {"1": "good", "0": "bad"}
    assert BERT.task({**values, "id2label": labels}) == {
        "name": "TextClassifier",
        "num_classes": 2,
        "labels": ["bad", "good"],
    }
    assert BERT.task(values)["num_classes"] == 2
    for odd in ({"1": "a"}, {}, ["a", "b"], {"0": "a", "2": "b"}, {"0": 3}):
        with pytest.raises(ValueError, match="id2label"):
            BERT.task({**values, "id2label": odd})
    for architectures in (None, [], ["BertModel"], "BertModel", [["x"]]):
        assert BERT.task({"architectures": architectures}) is None


@needs_minilm
def test_minilm_is_the_published_checkpoint():
    source = resolve_preset("minilm_l6_en")
    config, task, metadata = load_config(source)
    theirs, _, _ = load_config(source.weights)
    assert config == theirs
    assert task == {"name": "TextEmbedder", "pooling": "mean", "normalize": True}
    check_weights(source, config)
    shapes = variable_shapes(config)
    assert sum(np.prod(shape) for shape in shapes.values()) == metadata["parameters"] == 22_713_216
    digest = hashlib.sha256((source.weights.directory / "model.safetensors").read_bytes())
    assert digest.hexdigest().startswith("53aa51172d142c89d9012cce15ae4d6c")


@pytest.mark.each_backend
@needs_minilm
def test_minilm_equals_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source = resolve_preset("minilm_l6_en")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.weights.directory)
    reference = transformers.BertModel.from_pretrained(
        source.weights.directory, attn_implementation="eager"
    ).eval()
    backbone = load_backbone(source)
    for start in range(0, len(sentences()), 102):
        batch = tokenizer(
            sentences()[start : start + 102], padding=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            expected = reference(**batch)
        states = backbone(
            {
                "token_ids": batch["input_ids"].numpy(),
                "padding_mask": batch["attention_mask"].numpy().astype(bool),
                "segment_ids": batch["token_type_ids"].numpy(),
            }
        )
        real = batch["attention_mask"].numpy().astype(bool)
        mine = to_numpy(states)
        difference = np.abs(mine - expected.last_hidden_state.numpy())[real].max()
        assert difference <= 2e-5
        pooled = to_numpy(backbone.pool(states))
        assert np.abs(pooled - expected.pooler_output.numpy()).max() <= 2e-5


SMALL = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
IDS = np.array([[2, 5, 9, 3, 0], [2, 7, 8, 30, 3]])


def batch_of(ids):
    return {"token_ids": ids, "padding_mask": ids != 0, "segment_ids": np.zeros_like(ids)}


def reference_states(model, ids):
    import torch

    with torch.no_grad():
        ids = torch.tensor(ids)
        return model(input_ids=ids, attention_mask=(ids != 0).long())


@pytest.mark.parametrize(
    "architecture", ["BertModel", "BertForSequenceClassification", "BertForMaskedLM"]
)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_checkpoints_that_transformers_writes(tmp_path, architecture, activation):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(**SMALL, hidden_act=activation, num_labels=3)
    reference = getattr(transformers, architecture)(config).eval()
    reference.save_pretrained(tmp_path)
    backbone = load_backbone(tmp_path)
    assert backbone.config.pooler == (architecture != "BertForMaskedLM")
    base = getattr(reference, "bert", reference)
    expected = reference_states(base, IDS).last_hidden_state.numpy()
    states = to_numpy(backbone(batch_of(IDS)))
    assert np.abs(states - expected)[IDS != 0].max() <= 2e-5


def test_the_head_of_a_published_classifier(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(**SMALL, id2label={0: "no", 1: "yes", 2: "maybe"})
    reference = transformers.BertForSequenceClassification(config).eval()
    reference.save_pretrained(tmp_path)
    _, task, _ = load_config(tmp_path)
    assert task == {"name": "TextClassifier", "num_classes": 3, "labels": ["no", "yes", "maybe"]}
    head = {
        "output/kernel": keras.Variable(np.zeros((12, 3), "float32")),
        "output/bias": keras.Variable(np.zeros(3, "float32")),
    }
    backbone = load_backbone(tmp_path, load_weights=False)
    report = load_weights(tmp_path, backbone, head, task="TextClassifier")
    assert report.head_loaded
    pooled = backbone.pool(backbone(batch_of(IDS)))
    logits = keras.ops.matmul(pooled, head["output/kernel"]) + head["output/bias"]
    expected = reference_states(reference, IDS).logits.numpy()
    assert np.abs(to_numpy(logits) - expected).max() <= 2e-5


def test_old_names_and_extra_buffers(tmp_path):
    backbone = small_backbone(
        **{k: v for k, v in BERT.constants.items() if k != "kind"},
        activation="gelu",
        segment_vocabulary_size=2,
    )
    (tmp_path / "config.json").write_text(json.dumps(BERT.published_config(backbone.config)))
    tensors = export(expand(BERT.weights, backbone.config), backbone_variables(backbone))
    old = {}
    for name, array in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old["bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")] = array
    old["bert.embeddings.position_ids"] = np.arange(512.0)
    old["cls.predictions.bias"] = np.zeros(13)
    save_tensors(tmp_path / "model.safetensors", old)
    loaded = load_backbone(tmp_path)
    for path, variable in backbone_variables(loaded).items():
        np.testing.assert_array_equal(
            to_numpy(variable),
            to_numpy(backbone_variables(backbone)[path]),
        )


def test_export_loads_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = BERT.config({**SMALL, "hidden_act": "gelu_new"})
    backbone = small_backbone(**{k: v for k, v in config.flat.items() if k != "kind"})
    for variable in backbone.weights:  # smaller, so that rounding stays small too
        variable.assign(variable * 0.2)
    tensors = export(expand(BERT.weights, config), backbone_variables(backbone))
    save_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(BERT.published_config(config)))
    reference, info = transformers.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = reference_states(reference.eval(), IDS)
    states = backbone(batch_of(IDS))
    difference = to_numpy(states) - expected.last_hidden_state.numpy()
    assert np.abs(difference)[IDS != 0].max() <= 2e-5
    again = load_backbone(tmp_path)
    assert again.config == config
