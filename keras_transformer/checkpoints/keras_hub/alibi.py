"""KerasHub decoders with ALiBi: Bloom and Falcon-RW.

Facts are from KerasHub 0.32, `models/bloom/*.py` and `models/falcon/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.decoders.bloom import BLOOM
from keras_transformer.checkpoints.keras_hub.decoders import DECODER, HEADS, NAMES
from keras_transformer.checkpoints.keras_hub.family import (
    DROPOUT,
    FIELDS,
    HEAD_WIDTH,
    layers,
    make_family,
)
from keras_transformer.checkpoints.weights.tables import attention

_ONCE = {"token_embedding": "reversible_embedding", "decoder/final_norm": "layer_normalization"}
_PARTS = ("query", "key", "value")


def _attention(theirs: str) -> dict[str, str]:
    """Return the layers of queries, keys and values; the output has no axis of heads."""
    table = attention(theirs, *_PARTS, "output")
    return {ours: its for ours, its in table.items() if not ours.endswith("output")}


_BLOOM = ("decoder/layer_{i}/", "layers/bloom_decoder{i}/")
_BLOOM_TABLE = {
    **_attention("_self_attention_layer/_{}_dense"),
    "self_attention_norm": "_pre_attention_layernorm",
    "feed_forward/intermediate": "_mlp_intermediate_dense",
    "feed_forward/output": "_mlp_output_dense",
    "feed_forward_norm": "_post_attention_layernorm",
}
_BLOOM_ONCE = {
    **_ONCE,
    "decoder/embedding_norm": "layer_normalization",
    "decoder/final_norm": "layer_normalization_1",
}
_FALCON = ("decoder/layer_{i}/", "layers/falcon_transformer_decoder{i}/")
_FALCON_TABLE = {
    **_attention("attention_layer/{}_dense"),
    "self_attention_norm": "input_layernorm",
    "feed_forward/intermediate": "dense_h_to_4h",
    "feed_forward/output": "dense_4h_to_h",
    "feed_forward_norm": "post_attention_layernorm",
}


def _read_falcon(values: Values) -> dict[str, Any]:
    # The bias of a position is added before the scores are scaled.
    width = HEAD_WIDTH.read(values)["head_dim"]
    return {
        "head_dim": width,
        "alibi_scale": width**-0.5,
        "attention_dropout": values.get("attention_dropout_rate", 0.0),
    }


ALIBI = (
    make_family(
        "bloom",
        "Bloom",
        {
            **FIELDS,
            "dropout": ConfigField("dropout", 0.0),
            "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        },
        {**DECODER, **BLOOM.constants, "tie_embeddings": True},
        (
            *layers(_BLOOM_ONCE, theirs="layers/"),
            *layers(_BLOOM_TABLE, *_BLOOM),
            *layers(
                {"self_attention/output": "_self_attention_layer/_output_dense"},
                *_BLOOM,
                apart=False,
            ),
        ),
        HEADS,
        conversions=(HEAD_WIDTH, DROPOUT),
        more=(),
        names=NAMES,
    ),
    make_family(
        "falcon",
        "Falcon",
        {
            **{
                name: field
                for name, field in FIELDS.items()
                if name not in ("num_heads", "dropout")
            },
            "num_attention_heads": ConfigField("num_heads", None),
            "feedforward_dropout_rate": ConfigField("dropout", 0.0),
        },
        {
            **DECODER,
            "position": "alibi",
            "alibi_rounded": False,  # they are as precise as the states, unlike in Falcon's code
            "activation": "gelu",
            "normalization_epsilon": 1e-5,
            "tie_embeddings": True,
        },
        (
            *layers(_ONCE, theirs="layers/"),
            *layers(_FALCON_TABLE, *_FALCON),
            *layers(
                {"self_attention/output": "attention_layer/output_dense"}, *_FALCON, apart=False
            ),
        ),
        HEADS,
        conversions=(
            Conversion(
                _read_falcon, lambda config: {"attention_dropout_rate": config.attention_dropout}
            ),
        ),
        more=("attention_dropout_rate",),
        required={"layer_norm_epsilon": 1e-5},  # of the last norm; the blocks' is a constant
        names=NAMES,
    ),
)
