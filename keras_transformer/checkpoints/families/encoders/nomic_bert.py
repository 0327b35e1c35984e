"""NomicBERT: Nussbaum et al. 2024, https://arxiv.org/abs/2402.01613.

A BERT with rotary positions, gated feed-forward layers and no biases except in its norms.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    NEXT_SENTENCE,
    encoder_heads,
    masked_lm,
    rotary,
)
from keras_transformer.checkpoints.families.encoders.bert import FIELDS
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix

_ONCE = {
    "token_embedding": "embeddings.word_embeddings",
    "encoder/segment_embedding": "embeddings.token_type_embeddings",
    "encoder/embedding_norm": "emb_ln",
    "pooler": "pooler.dense",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layers.{i}."
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "attn.out_proj",
    "self_attention_norm": "norm1",
    "feed_forward/intermediate": "mlp.fc11",
    "feed_forward/gate": "mlp.fc12",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "norm2",
}

# Names in configs from before Transformers supported the model, and values that are always the
# same.
_OLDER = {
    "n_embd": "hidden_dim",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "n_inner": "intermediate_dim",
    "n_positions": "max_sequence_length",
    "layer_norm_epsilon": "normalization_epsilon",
}
_GATES = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}
_ALIKE = {
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "prenorm": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "causal": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
}


def _read_older(values: Values) -> dict[str, Any]:
    for name, supported in _ALIKE.items():
        if values.get(name, supported) != supported:
            raise ValueError(f"{name}={values[name]!r} is not supported, only {supported!r}.")
    ours = {ours: values[name] for name, ours in _OLDER.items() if name in values}
    gate = values.get("activation_function", "swiglu")
    if gate not in _GATES:
        raise ValueError(f"activation_function={gate!r} is not supported, only {[*_GATES]}.")
    return ours | ({"activation": _GATES[gate]} if "activation_function" in values else {})


# Transformers has no class for question answering with this architecture.
_HEADS = encoder_heads(
    masked_lm("cls.predictions.", "transform.dense", "transform.layer_norm", "decoder.bias", "bias")
)

NOMIC_BERT = Family(
    model_type="nomic_bert",
    architecture="NomicBertModel",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 30528),
        "head_dim": ConfigField("head_dim", None),
        "hidden_act": ConfigField("activation", "silu"),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "type_vocab_size": ConfigField("segment_vocabulary_size", 2),
    },
    constants={**ENCODER, "position": "rotary", "gated": True, "use_bias": False},
    conversions=(rotary(default_base=1000.0), Conversion(_read_older, lambda config: {})),
    weights=(
        *layers(_ONCE),
        *fused(_QKV, f"{_THEIRS}attn.Wqkv"),
        *layers(_LAYER, _OURS, _THEIRS),
        output_matrix("cls.predictions.decoder.weight"),
    ),
    heads={task: head for task, head in _HEADS.items() if task != "QuestionAnswerer"},
    names=Names(prefixes=("nomic_bert.", "bert."), ignored=NEXT_SENTENCE),
    pooler="pooler.dense.weight",
)
