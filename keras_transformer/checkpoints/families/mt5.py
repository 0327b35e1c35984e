"""MT5: Xue et al. 2020, https://arxiv.org/abs/2010.11934.

T5 1.1 of 101 languages.
"""

import dataclasses

from keras_transformer.checkpoints.families.family import Conversion, Field, Head
from keras_transformer.checkpoints.families.t5 import (
    ONE_TEXT_HEADS,
    T5,
    encoder_alone,
    read_feed_forward,
    write_feed_forward,
)

MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    architecture="MT5Model",
    fields=T5.fields
    | {
        "vocab_size": Field("vocabulary_size", 250112),
        "d_ff": Field("intermediate_dim", 1024),
        "num_layers": Field("num_layers", 8),
        "num_heads": Field("num_heads", 6),
        # True too where the weights have an output matrix of their own, as the published ones.
        "tie_word_embeddings": Field("tie_embeddings", True),
    },
    conversions=(
        Conversion(
            lambda values: read_feed_forward({"feed_forward_proj": "gated-gelu", **values}),
            write_feed_forward,
        ),
        encoder_alone("MT5EncoderModel", "MT5ForTokenClassification"),
    ),
    heads={
        "Seq2SeqLM": Head(values={"start_id": 0}, prefix=""),
        **ONE_TEXT_HEADS,
    },
)
