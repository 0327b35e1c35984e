"""BlenderBot: Roller et al. 2020, https://arxiv.org/abs/2004.13637.

mBART's blocks without a norm on the embeddings, for dialogue.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, PublishedHead
from keras_transformer.checkpoints.families.base.shared import sides
from keras_transformer.checkpoints.families.seq2seq.bart import TIES
from keras_transformer.checkpoints.families.seq2seq.mbart import MBART, PEGASUS
from keras_transformer.checkpoints.weights.tables import Names, layers

BLENDERBOT = dataclasses.replace(
    MBART,
    model_type="blenderbot",
    architecture="BlenderbotModel",
    fields={
        **MBART.fields,
        "vocab_size": ConfigField("vocabulary_size", 8008),
        "d_model": ConfigField("hidden_dim", 2560),
        "encoder_layers": ConfigField("num_layers", 2),
        "decoder_layers": ConfigField("num_decoder_layers", 24),
        "max_position_embeddings": ConfigField("max_sequence_length", 128),
    },
    constants={**MBART.constants, "position_offset": 0, "embedding_normalization": False},
    conversions=(
        sides(attention_heads=("num_heads", 32), ffn_dim=("intermediate_dim", 10240)),
        TIES,
    ),
    weights=(
        *PEGASUS.weights,
        *layers(
            {f"{s}/position_embedding": f"{s}.embed_positions" for s in ("encoder", "decoder")}
        ),
    ),
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 1})},
    names=Names(prefixes=("model.",)),
)
