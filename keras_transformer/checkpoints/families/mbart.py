"""mBART: Liu et al. 2020, https://arxiv.org/abs/2001.08210; mBART-50: Tang et al. 2020.

Pegasus: Zhang et al. 2019, https://arxiv.org/abs/1912.08777.

BART and Marian with normalizations in front of the sub-layers, and one behind each stack.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.bart import BART, EMBEDDINGS, MARIAN, WEIGHTS
from keras_transformer.checkpoints.families.family import Conversion, Head, Values
from keras_transformer.checkpoints.families.shared import seq2seq_heads
from keras_transformer.checkpoints.weights import layers

_FINAL = layers({f"{side}/final_norm": f"{side}.layer_norm" for side in ("encoder", "decoder")})


def _read_start(values: Values) -> dict[str, Any]:
    # Their generation starts from this one where a config names none to start from.
    said, other = (values.get(name) for name in ("decoder_start_token_id", "bos_token_id"))
    return {"start_id": other} if said is None and isinstance(other, int) else {}


MBART = dataclasses.replace(
    BART,
    model_type="mbart",
    architecture="MBartModel",
    constants={**BART.constants, "normalize_first": True},
    weights=(*BART.weights, *_FINAL),
    heads={
        **seq2seq_heads(None, 2),
        "Seq2SeqLM": Head(
            values={"start_id": 0}, options=(Conversion(_read_start, lambda task: {}),)
        ),
    },
)

PEGASUS = dataclasses.replace(
    MARIAN,
    model_type="pegasus",
    architecture="PegasusModel",
    fields=BART.fields,
    constants={**MARIAN.constants, "normalize_first": True},
    conversions=BART.conversions,
    weights=(*EMBEDDINGS, *WEIGHTS, *_FINAL),
    heads={"Seq2SeqLM": Head(values={"start_id": 0})},
)
