"""PLBart: Ahmad et al. 2021, https://arxiv.org/abs/2103.06333.

A BART for programs, whose decoder starts with the token of a language.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import sides
from keras_transformer.checkpoints.families.seq2seq.bart import BART, TIES
from keras_transformer.checkpoints.families.seq2seq.mbart import MBART

PLBART = dataclasses.replace(
    BART,
    model_type="plbart",
    architecture="PLBartModel",
    fields={
        **BART.fields,
        "vocab_size": ConfigField("vocabulary_size", 50005),
        "d_model": ConfigField("hidden_dim", 768),
        "encoder_layers": ConfigField("num_layers", 6),
        "decoder_layers": ConfigField("num_decoder_layers", 6),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "scale_embedding": ConfigField("scale_embedding", True),
    },
    conversions=(
        sides(attention_heads=("num_heads", 12), ffn_dim=("intermediate_dim", 3072)),
        TIES,
    ),
    heads={name: MBART.heads[name] for name in ("Seq2SeqLM", "TextClassifier")},
)
