"""VisionEncoderDecoder: Li et al. 2021, https://arxiv.org/abs/2109.10282, "TrOCR", section 2.

An encoder of images (ViT, DeiT) and a decoder of text that attends to it (BERT, RoBERTa, GPT-2,
TrOCR's): captions, and lines of text that are read.
"""

from typing import Any

from keras_transformer.checkpoints.families.bert import OLDER_NORMS
from keras_transformer.checkpoints.families.family import Conversion, Family, Head, Values
from keras_transformer.checkpoints.families.joined import Joined
from keras_transformer.checkpoints.families.shared import unread
from keras_transformer.checkpoints.families.trocr import TROCR
from keras_transformer.checkpoints.families.vit import DEIT, VIT
from keras_transformer.checkpoints.families.writers import BERT_WRITER, GPT2_WRITER, ROBERTA_WRITER
from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.checkpoints.weights import Names

_JOINED = Joined(
    encoders=(VIT, DEIT),
    decoders=(BERT_WRITER, ROBERTA_WRITER, GPT2_WRITER, TROCR),
    wide=("trocr",),
)
_IGNORED = (
    *unread("encoder.pooler.dense"),
    "encoder.embeddings.mask_token",  # of the training with masked patches
    "decoder.model.decoder.embed_positions._float_tensor",  # never read, whatever it holds
)


def _read_ids(values: Values) -> dict[str, Any]:
    """The ids that a text starts and ends with, where the decoder's config says them."""
    decoder = values.get("decoder")
    decoder = decoder if isinstance(decoder, dict) else {}
    said = ("decoder_start_token_id", "eos_token_id", "bos_token_id")
    found = {n: values.get(n) if values.get(n) is not None else decoder.get(n) for n in said}
    if found["decoder_start_token_id"] is None:
        found["decoder_start_token_id"] = found["bos_token_id"]
    return START_ID.read(found) | END_IDS.read(found)


# Where the config of a model of two sides says nothing, that of its decoder does.
IDS = Conversion(_read_ids, lambda task: {})
# The output of the decoder is tied by its own config.
FLAGS = Conversion(
    lambda values: {}, lambda config: {"is_encoder_decoder": True, "tie_word_embeddings": False}
)

VISION_ENCODER_DECODER = Family(
    model_type="vision-encoder-decoder",
    architecture="VisionEncoderDecoderModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(_JOINED.conversion, FLAGS),
    weights=(),
    of_config=_JOINED.weights,
    heads={
        "ImageToText": Head(architectures=("VisionEncoderDecoderModel",), options=(IDS,)),
    },
    names=Names(suffixes=OLDER_NORMS, ignored=_IGNORED),
)
