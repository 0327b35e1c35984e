"""MT5: Xue et al. 2020, https://arxiv.org/abs/2010.11934.

T5 1.1 for 101 languages.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
)
from keras_transformer.checkpoints.families.seq2seq.t5 import (
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
        "vocab_size": ConfigField("vocabulary_size", 250112),
        "d_ff": ConfigField("intermediate_dim", 1024),
        "num_layers": ConfigField("num_layers", 8),
        "num_heads": ConfigField("num_heads", 6),
        # True even if the weights have a separate output matrix, as the published ones do.
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    conversions=(
        Conversion(
            lambda values: read_feed_forward({"feed_forward_proj": "gated-gelu", **values}),
            write_feed_forward,
        ),
        encoder_alone("MT5EncoderModel", "MT5ForTokenClassification"),
    ),
    heads={
        "Seq2SeqLM": PublishedHead(values={"start_id": 0}, prefix=""),
        **ONE_TEXT_HEADS,
    },
)
