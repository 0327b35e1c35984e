"""mBART: Liu et al. 2020, https://arxiv.org/abs/2001.08210; mBART-50: Tang et al. 2020.

Pegasus: Zhang et al. 2019, https://arxiv.org/abs/1912.08777.

BART and Marian with normalizations in front of the sub-layers, and one behind each stack.
"""

import dataclasses

from keras_transformer.checkpoints.families.bart import BART, MARIAN
from keras_transformer.checkpoints.families.family import Head
from keras_transformer.checkpoints.families.shared import seq2seq_heads
from keras_transformer.checkpoints.weights import layers

_FINAL = layers({f"{side}/final_norm": f"{side}.layer_norm" for side in ("encoder", "decoder")})

MBART = dataclasses.replace(
    BART,
    model_type="mbart",
    architecture="MBartModel",
    constants={**BART.constants, "normalize_first": True},
    weights=(*BART.weights, *_FINAL),
    heads={**BART.heads, **seq2seq_heads(None, 2)},
)

PEGASUS = dataclasses.replace(
    MARIAN,
    model_type="pegasus",
    architecture="PegasusModel",
    fields=BART.fields,
    constants={**MARIAN.constants, "normalize_first": True},
    conversions=BART.conversions,
    weights=(*MARIAN.weights, *_FINAL),
    heads={"Seq2SeqLM": Head(values={"start_id": 0})},
)
