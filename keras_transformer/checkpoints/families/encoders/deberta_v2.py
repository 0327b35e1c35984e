"""DeBERTa: He et al. 2020, https://arxiv.org/abs/2006.03654; v3: He et al. 2021.

A BERT whose scores also use relative positions; v3 was trained like ELECTRA. The largest v2 models
have a convolution beside their first layer.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    encoder_heads,
    flag,
    hidden_activation,
    masked_lm,
    number,
    unread,
)
from keras_transformer.checkpoints.families.encoders import deberta_convolution
from keras_transformer.checkpoints.families.encoders.bert import (
    EMBEDDINGS,
    FIELDS,
    LAYER,
    OLDER_NORMS,
)
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix
from keras_transformer.config import TransformerConfig

_LAYER = {
    **LAYER,
    **attention(
        "attention.{}", "self.query_proj", "self.key_proj", "self.value_proj", "output.dense"
    ),
    "self_attention/position_query": "attention.self.pos_query_proj",
    "self_attention/position_key": "attention.self.pos_key_proj",
}
_RELATIVE = {
    "encoder/relative_embedding": "encoder.rel_embeddings",
    "encoder/relative_embedding/norm": "encoder.LayerNorm",
}
_BOTH = ["c2p", "p2c"]


def _read_positions(values: Values) -> dict[str, Any]:
    ours = {"position": "learned" if flag(values, "position_biased_input", True) else "none"}
    kinds = values.get("pos_att_type") or []
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    relative = flag(values, "relative_attention", False)
    kinds = sorted(kinds, key=str) if isinstance(kinds, list) else kinds
    wanted = {"pos_att_type": (kinds, _BOTH if relative else [])}
    if relative:
        wanted["norm_rel_ebd"] = (values.get("norm_rel_ebd", "none"), "layer_norm")
    for name, (found, supported) in wanted.items():
        if found != supported:
            raise ValueError(
                f"{name}={values.get(name)!r} is not supported with relative_attention={relative}, "
                f"only {supported!r}."
            )
    if not relative:
        return ours
    longest = number(values, "max_relative_positions", -1)
    if longest < 1:
        longest = number(values, "max_position_embeddings", 512)
    buckets = number(values, "position_buckets", -1)
    if buckets >= longest:
        raise ValueError(
            f"position_buckets={buckets} must be below {longest}, the number of distances."
        )
    return ours | {
        "disentangled": "shared" if values.get("share_att_key", False) else "own",
        "relative_num_buckets": 2 * (buckets if buckets > 0 else longest),
        "relative_max_distance": longest,
    }


def _write_positions(config: TransformerConfig) -> dict[str, Any]:
    theirs = {
        "position_biased_input": config.position == "learned",
        "relative_attention": config.disentangled is not None,
    }
    if config.disentangled is None:
        return theirs
    half, longest = config.relative_num_buckets // 2, config.relative_max_distance
    return theirs | {
        "pos_att_type": _BOTH,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": config.disentangled == "shared",
        "position_buckets": half if half < longest else -1,
        "max_relative_positions": longest,
    }


RELATIVE_SCORES = Conversion(_read_positions, _write_positions)


def _read_width(values: Values) -> dict[str, Any]:
    width = number(values, "hidden_size", 1536)
    heads = number(values, "num_attention_heads", 24)
    usual = {
        "embedding_size": width,
        "pooler_hidden_size": width,
        "attention_head_size": width // max(heads, 1),
    }
    for name, supported in usual.items():
        if values.get(name, supported) not in (supported, None):
            raise ValueError(f"{name}={values[name]!r} is not supported, only {supported!r}.")
    # The newer head of masked language models always uses the token embedding.
    return {} if values.get("legacy", True) else {"tie_embeddings": True}


_MASKED, _NEWER = (
    masked_lm("cls.predictions.", "transform.dense", "transform.LayerNorm", "decoder.bias", "bias"),
    masked_lm("lm_predictions.lm_head.", "dense", "LayerNorm", "bias"),
)

DEBERTA_V2 = Family(
    model_type="deberta-v2",
    architecture="DebertaV2Model",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 128100),
        "hidden_size": ConfigField("hidden_dim", 1536),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 24),
        "intermediate_size": ConfigField("intermediate_dim", 6144),
        "type_vocab_size": ConfigField("segment_vocabulary_size", 0),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-7),
    },
    constants=ENCODER,
    conversions=(
        RELATIVE_SCORES,
        deberta_convolution.CONVERSION,
        Conversion(_read_width, lambda config: {}),
    ),
    weights=(
        *layers({**EMBEDDINGS, **_RELATIVE}),
        *deberta_convolution.WEIGHTS,
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("cls.predictions.decoder.weight"),
    ),
    heads=encoder_heads(
        tuple(
            dataclasses.replace(line, also=(*line.also, newer.theirs))
            for line, newer in zip(_MASKED, _NEWER, strict=True)
        ),
        classifier={"output": "classifier", "hidden": "pooler.dense"},
        hidden=hidden_activation("pooler_hidden_act", "gelu"),
        dropout="cls_dropout",
    ),
    names=Names(
        prefixes=("deberta.",),
        suffixes=OLDER_NORMS,
        # Tensors of the discriminator in v3's pre-training.
        ignored=unread(*(f"mask_predictions.{n}" for n in ("dense", "LayerNorm", "classifier"))),
    ),
)
