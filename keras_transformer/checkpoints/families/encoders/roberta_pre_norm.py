"""RoBERTa with its norms before the sub-layers, and one after the last block.

XLM-RoBERTa-XL: Goyal et al. 2021, https://arxiv.org/abs/2105.00572, without a norm on the
embeddings.

RoBERTa-PreLayerNorm: Ott et al. 2019, https://arxiv.org/abs/1904.01038, as trained by fairseq's
option `--encoder-normalize-before`.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.encoders.bert import EMBEDDINGS, LAYER
from keras_transformer.checkpoints.families.encoders.roberta import (
    ROBERTA,
    XLM_ROBERTA,
    counted_positions,
)
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix

_PRE_NORM = {**ROBERTA.constants, "normalize_first": True}
_REST = (output_matrix("lm_head.decoder.weight"), *layers({"pooler": "pooler.dense"}))
_THEIRS = "encoder.layer.{i}."

_XL_ONCE = {
    **{ours: theirs for ours, theirs in EMBEDDINGS.items() if "norm" not in ours},
    "encoder/final_norm": "encoder.LayerNorm",
}
_XL_LAYER = {
    **LAYER,
    "self_attention_norm": "attention.self_attn_layer_norm",
    "feed_forward_norm": "LayerNorm",
}

XLM_ROBERTA_XL = dataclasses.replace(
    XLM_ROBERTA,
    model_type="xlm-roberta-xl",
    architecture="XLMRobertaXLModel",
    fields={
        **XLM_ROBERTA.fields,
        "vocab_size": ConfigField("vocabulary_size", 250880),
        "hidden_size": ConfigField("hidden_dim", 2560),
        "num_hidden_layers": ConfigField("num_layers", 36),
        "num_attention_heads": ConfigField("num_heads", 32),
        "intermediate_size": ConfigField("intermediate_dim", 10240),
        "type_vocab_size": ConfigField("segment_vocabulary_size", 1),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={**_PRE_NORM, "embedding_normalization": False},
    conversions=(counted_positions(514),),
    weights=(*layers(_XL_ONCE), *layers(_XL_LAYER, "encoder/layer_{i}/", _THEIRS), *_REST),
)

_ONCE = {**EMBEDDINGS, "encoder/final_norm": "LayerNorm"}
_LAYER = {
    **LAYER,
    "self_attention_norm": "attention.LayerNorm",
    "feed_forward_norm": "intermediate.LayerNorm",
}

ROBERTA_PRE_NORM = dataclasses.replace(
    ROBERTA,
    model_type="roberta-prelayernorm",
    architecture="RobertaPreLayerNormModel",
    constants=_PRE_NORM,
    weights=(*layers(_ONCE), *layers(_LAYER, "encoder/layer_{i}/", _THEIRS), *_REST),
    names=Names(prefixes=("roberta_prelayernorm.",)),
)
