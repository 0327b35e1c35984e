"""EncoderDecoder: Rothe et al. 2019, https://arxiv.org/abs/1907.12461.

An encoder and a decoder of published models of text (BERT, RoBERTa; as a decoder GPT-2 too).
"""

import dataclasses

from keras_transformer.checkpoints.families import roberta
from keras_transformer.checkpoints.families.bert import BERT
from keras_transformer.checkpoints.families.family import Head
from keras_transformer.checkpoints.families.joined import Joined
from keras_transformer.checkpoints.families.vision_encoder_decoder import (
    FLAGS,
    IDS,
    VISION_ENCODER_DECODER,
)
from keras_transformer.checkpoints.families.writers import (
    BERT_WRITER,
    CAMEMBERT_WRITER,
    GPT2_WRITER,
    ROBERTA_WRITER,
    XLM_ROBERTA_WRITER,
)

_JOINED = Joined(
    encoders=(BERT, roberta.ROBERTA, roberta.XLM_ROBERTA, roberta.CAMEMBERT),
    decoders=(BERT_WRITER, ROBERTA_WRITER, XLM_ROBERTA_WRITER, CAMEMBERT_WRITER, GPT2_WRITER),
)

ENCODER_DECODER = dataclasses.replace(
    VISION_ENCODER_DECODER,
    model_type="encoder-decoder",
    architecture="EncoderDecoderModel",
    conversions=(_JOINED.conversion, FLAGS),
    of_config=_JOINED.weights,
    heads={"Seq2SeqLM": Head(architectures=("EncoderDecoderModel",), options=(IDS,))},
)
