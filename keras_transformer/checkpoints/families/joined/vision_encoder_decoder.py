"""VisionEncoderDecoder: Li et al. 2021, https://arxiv.org/abs/2109.10282, "TrOCR", section 2.

An image encoder (ViT, DeiT) and a text decoder that attends to it (BERT, RoBERTa, GPT-2, TrOCR's),
for captions and text recognition.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.joined import EncoderDecoderFamily
from keras_transformer.checkpoints.families.base.shared import unread
from keras_transformer.checkpoints.families.encoders.bert import OLDER_NORMS
from keras_transformer.checkpoints.families.joined.trocr import TROCR
from keras_transformer.checkpoints.families.joined.writers import (
    BERT_WRITER,
    GPT2_WRITER,
    ROBERTA_WRITER,
)
from keras_transformer.checkpoints.families.vision.vit import DEIT, VIT
from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.checkpoints.weights.tables import Names

_JOINED = EncoderDecoderFamily(
    encoders=(VIT, DEIT),
    decoders=(BERT_WRITER, ROBERTA_WRITER, GPT2_WRITER, TROCR),
    wide=("trocr",),
)
_IGNORED = (
    *unread("encoder.pooler.dense"),
    "encoder.embeddings.mask_token",  # used in masked pre-training
    "decoder.model.decoder.embed_positions._float_tensor",  # Transformers never reads this tensor
)


def _read_ids(values: Values) -> dict[str, Any]:
    """Return the start and end ids of a text, if the decoder's config has them."""
    decoder = values.get("decoder")
    decoder = decoder if isinstance(decoder, dict) else {}
    said = ("decoder_start_token_id", "eos_token_id", "bos_token_id")
    found = {n: values.get(n) if values.get(n) is not None else decoder.get(n) for n in said}
    if found["decoder_start_token_id"] is None:
        found["decoder_start_token_id"] = found["bos_token_id"]
    return START_ID.read(found) | END_IDS.read(found)


# If the top-level config has no ids, the decoder's config is used.
IDS = Conversion(_read_ids, lambda task: {})
# The decoder's own config determines whether its output is tied.
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
        "ImageToText": PublishedHead(architectures=("VisionEncoderDecoderModel",), options=(IDS,)),
    },
    names=Names(suffixes=OLDER_NORMS, ignored=_IGNORED),
)
