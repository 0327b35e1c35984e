"""XLNet: Yang et al. 2019, https://arxiv.org/abs/1906.08237.

A BERT without added positions and segments: its scores compare the sinusoids of distances, and say
whether two tokens are of one segment. The second stream of states, which predicts words in permuted
orders, is read in pretraining alone.
"""

from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number, unread
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import RelativeSinusoids, TransformerConfig

_SEGMENTS = 4  # of the tokenizer: two texts, the token of the class, and padding


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    longest = number(values, "clamp_len", -1)
    bias = RelativeSinusoids(max_distance=longest if longest > 0 else None)
    side = config.encoder
    block = side.block.replace(mixer=side.block.mixer.replace(score_bias=bias))
    tokens = side.input.replace(segments=_SEGMENTS, segment_use="compared")
    return config.replace(encoder=side.replace(block=block, input=tokens))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    side = config.encoder if config.kind == "encoder" else None
    bias = None if side is None else side.score_bias
    if not isinstance(bias, RelativeSinusoids):
        return config, {}
    block = side.block.replace(mixer=side.block.mixer.replace(score_bias=None))
    plain = side.replace(block=block, input=side.input.replace(segments=0, segment_use="added"))
    longest = -1 if bias.max_distance is None else bias.max_distance
    return config.replace(encoder=plain), {"clamp_len": longest}


# One rate, of the states and of the attention weights.
_DROPOUT = Conversion(
    lambda values: dict.fromkeys(("dropout", "attention_dropout"), values.get("dropout", 0.1)),
    lambda config: {"dropout": config.dropout},
)
_OURS, _THEIRS = "encoder/layer_{i}/", "layer.{i}."
_ATTENTION = f"{_OURS}self_attention/"
_KERNELS = {"query": "q", "key": "k", "value": "v", "relative/position_key": "r"}
_VECTORS = {
    "content_bias": "r_w_bias",
    "position_bias": "r_r_bias",
    "segment_bias": "r_s_bias",
    "segments": "seg_embed",
}
_LAYER = {
    "self_attention_norm": "rel_attn.layer_norm",
    "feed_forward/intermediate": "ff.layer_1",
    "feed_forward/output": "ff.layer_2",
    "feed_forward_norm": "ff.layer_norm",
}

XLNET = Family(
    model_type="xlnet",
    architecture="XLNetModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 32000),
        "d_model": ConfigField("hidden_dim", 1024),
        "n_layer": ConfigField("num_layers", 24),
        "n_head": ConfigField("num_heads", 16),
        "d_inner": ConfigField("intermediate_dim", 4096),
        "ff_activation": ConfigField("activation", "gelu"),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-12),
        "initializer_range": ConfigField("initializer_range", 0.02),
    },
    constants={
        "kind": "encoder",
        "position": "none",
        "normalization": "layer_norm",
        "normalize_first": False,
        "attention_bias": False,
        "attention_output_bias": False,
    },
    conversions=(_DROPOUT,),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    required={
        "attn_type": "bi",
        "bi_data": False,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    },
    weights=(
        WeightLine("token_embedding/embeddings", "word_embedding.weight"),
        *(
            WeightLine(
                f"{_ATTENTION}{ours}/kernel", f"{_THEIRS}rel_attn.{theirs}", split_heads=True
            )
            for ours, theirs in _KERNELS.items()
        ),
        WeightLine(
            f"{_ATTENTION}output/kernel",
            f"{_THEIRS}rel_attn.o",
            transpose=True,
            split_heads=True,
        ),
        *(
            WeightLine(f"{_ATTENTION}relative/{ours}", f"{_THEIRS}rel_attn.{theirs}")
            for ours, theirs in _VECTORS.items()
        ),
        *layers(_LAYER, _OURS, _THEIRS),
    ),
    heads={
        "TextClassifier": PublishedHead(
            weights=layers({"hidden": "sequence_summary.summary", "output": "logits_proj"}),
            values={"hidden_activation": "tanh", "pooling": "last"},
            dropout="summary_last_dropout",
        ),
        "TokenClassifier": PublishedHead(weights=layers({"output": "classifier"})),
        "QuestionAnswerer": PublishedHead(
            architectures=("XLNetForQuestionAnsweringSimple",),
            weights=layers({"output": "qa_outputs"}),
        ),
    },
    # What stands in the place of predicted words, in pretraining alone.
    computed=lambda config: {"mask_emb": np.zeros((1, 1, config.hidden_dim), "float32")},
    names=Names(prefixes=("transformer.",), ignored=("mask_emb", *unread("lm_loss"))),
)
