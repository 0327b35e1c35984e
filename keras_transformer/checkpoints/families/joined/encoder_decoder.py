"""EncoderDecoder: Rothe et al. 2019, https://arxiv.org/abs/1907.12461.

An encoder and a decoder from published text models (BERT, RoBERTa; also GPT-2 as a decoder).
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import PublishedHead
from keras_transformer.checkpoints.families.base.joined import EncoderDecoderFamily
from keras_transformer.checkpoints.families.encoders import roberta
from keras_transformer.checkpoints.families.encoders.bert import BERT
from keras_transformer.checkpoints.families.joined.vision_encoder_decoder import (
    FLAGS,
    IDS,
    VISION_ENCODER_DECODER,
)
from keras_transformer.checkpoints.families.joined.writers import (
    BERT_WRITER,
    CAMEMBERT_WRITER,
    GPT2_WRITER,
    ROBERTA_WRITER,
    XLM_ROBERTA_WRITER,
)

_JOINED = EncoderDecoderFamily(
    encoders=(BERT, roberta.ROBERTA, roberta.XLM_ROBERTA, roberta.CAMEMBERT),
    decoders=(BERT_WRITER, ROBERTA_WRITER, XLM_ROBERTA_WRITER, CAMEMBERT_WRITER, GPT2_WRITER),
)

ENCODER_DECODER = dataclasses.replace(
    VISION_ENCODER_DECODER,
    model_type="encoder-decoder",
    architecture="EncoderDecoderModel",
    conversions=(_JOINED.conversion, FLAGS),
    of_config=_JOINED.weights,
    heads={"Seq2SeqLM": PublishedHead(architectures=("EncoderDecoderModel",), options=(IDS,))},
)
