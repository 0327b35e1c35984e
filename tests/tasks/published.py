"""Transformers' BERT beside ours: the same random weights, and one tokenizer."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt

TEXTS = [
    "Angela Merkel met Emmanuel Macron in Paris .",
    "The café José opened in São Paulo was playing (unbelievably) good jazz .",
    "wind and weather , winding and weathering",
    "unaffable playing, café's 2nd best!",
]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_PIECES = "angela met in paris cafe opened play wind weather good un and was ##ing ##er ##able ##ly"
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@functools.cache
def tokenizer():
    """BERT's tokenizer of an uncased model, with a small vocabulary."""
    pieces = [*_SPECIAL, *_PIECES.split(), *_LETTERS, *(f"##{c}" for c in _LETTERS), *"().,!'-"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(pieces) + "\n")
        return kt.Tokenizer.from_files(folder)


def fast_tokenizer(folder):
    """The same tokenizer in Transformers."""
    transformers = pytest.importorskip("transformers")
    tokenizer().save(folder)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder, model_input_names=names)


def reference(architecture, words, **values):
    """A random model of Transformers, such as `"BertForMaskedLM"`, in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(
        vocab_size=words.vocabulary_size, intermediate_size=40, max_position_embeddings=48,
        hidden_act="gelu", layer_norm_eps=1e-7, attn_implementation="eager", **sizes, **values,
    )  # fmt: skip
    torch.manual_seed(3)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            scale = 0.1 if parameter.ndim == 1 else 1.0 if "word" in name else 0.3
            parameter.copy_(offset + torch.randn(parameter.shape) * scale)
    return model


def backbone_of(model, pooler=False):
    """Our encoder with the weights of a model of Transformers."""
    given = model.config
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=given.vocab_size, hidden_dim=given.hidden_size,
        num_layers=given.num_hidden_layers, num_heads=given.num_attention_heads,
        intermediate_dim=given.intermediate_size, activation="gelu", position="learned",
        max_sequence_length=given.max_position_embeddings, segment_vocabulary_size=2,
        embedding_normalization=True, normalization_epsilon=given.layer_norm_eps, pooler=pooler,
    )  # fmt: skip
    backbone = kt.models.Encoder(config)
    weights = {name: tensor.detach().numpy() for name, tensor in model.bert.named_parameters()}
    names = {
        "token_embedding": "embeddings.word_embeddings",
        "encoder/segment_embedding": "embeddings.token_type_embeddings",
        "encoder/position_embedding": "embeddings.position_embeddings",
        "encoder/embedding_norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
    }
    parts = {
        "self_attention/query": "attention.self.query",
        "self_attention/key": "attention.self.key",
        "self_attention/value": "attention.self.value",
        "self_attention/output": "attention.output.dense",
        "self_attention_norm": "attention.output.LayerNorm",
        "feed_forward/intermediate": "intermediate.dense",
        "feed_forward/output": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    }
    for i in range(given.num_hidden_layers):
        names |= {f"encoder/layer_{i}/{o}": f"encoder.layer.{i}.{t}" for o, t in parts.items()}
    for variable in backbone.weights:
        layer, kind = variable.path.removeprefix(f"{backbone.name}/").rsplit("/", 1)
        value = weights[f"{names[layer]}.{'bias' if kind in ('bias', 'beta') else 'weight'}"]
        variable.assign(value.T if kind == "kernel" else value)
    return backbone


def assign_head(task, **modules):
    """Copies the modules of Transformers to the layers of these names in a task's head."""
    for name, module in modules.items():
        for path, variable in task.head.items():
            layer, kind = path.rsplit("/", 1)
            if layer == name:
                value = module.bias if kind in ("bias", "beta") else module.weight
                value = value.detach().numpy()
                variable.assign(value.T if kind == "kernel" else value)


def logits_of(model, fast, *texts):
    """The logits of Transformers for a batch, and its mask."""
    import torch

    batch = fast(*texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**batch)
    return outputs, batch["attention_mask"].numpy().astype(bool)


def largest_difference(found, expected, mask):
    """The largest absolute difference at real tokens, of `(batch, length, ...)`."""
    return float(np.abs(np.asarray(found)[:, : mask.shape[1]][mask] - expected[mask]).max())
