"""FNet: Lee-Thorp et al. 2021, https://arxiv.org/abs/2105.03824.

A BERT that mixes tokens by Fourier transforms without weights, with a layer behind its embeddings.
The published model mixes the padding of a batch in; here each text is mixed alone.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import encoder_heads
from keras_transformer.checkpoints.families.encoders.bert import (
    BERT,
    EMBEDDINGS,
    FIELDS,
    OLDER_NORMS,
)
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix
from keras_transformer.config import Fourier

_OF_ATTENTION = ("num_attention_heads", "attention_probs_dropout_prob")
_ONCE = {
    **EMBEDDINGS,
    "encoder/embedding_projection": "embeddings.projection",
    "pooler": "pooler.dense",
}
_LAYER = {
    "mixer_norm": "fourier.output.LayerNorm",
    "feed_forward/intermediate": "intermediate.dense",
    "feed_forward/output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}

FNET = dataclasses.replace(
    BERT,
    model_type="fnet",
    architecture="FNetModel",
    fields={
        **{name: field for name, field in FIELDS.items() if name not in _OF_ATTENTION},
        "vocab_size": ConfigField("vocabulary_size", 32000),
        "hidden_act": ConfigField("activation", "gelu_new"),
        "type_vocab_size": ConfigField("segment_vocabulary_size", 4),
    },
    constants={**BERT.constants, "mixer": Fourier(), "embedding_projection": True},
    required={},
    weights=(
        *layers(_ONCE),
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("cls.predictions.decoder.weight"),
    ),
    heads=encoder_heads(
        BERT.heads["MaskedLM"].weights,
        masked_classes=("FNetForMaskedLM", "FNetForPreTraining"),
    ),
    names=Names(prefixes=("fnet.",), suffixes=OLDER_NORMS, ignored=BERT.names.ignored),
)
