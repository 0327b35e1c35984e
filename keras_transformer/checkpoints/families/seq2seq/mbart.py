"""mBART: Liu et al. 2020, https://arxiv.org/abs/2001.08210; mBART-50: Tang et al. 2020.

Pegasus: Zhang et al. 2019, https://arxiv.org/abs/1912.08777.

BART and Marian with pre-norm, and a norm after each stack.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, PublishedHead, Values
from keras_transformer.checkpoints.families.base.shared import seq2seq_heads
from keras_transformer.checkpoints.families.seq2seq.bart import BART, EMBEDDINGS, MARIAN, WEIGHTS
from keras_transformer.checkpoints.weights.tables import layers

_FINAL = layers({f"{side}/final_norm": f"{side}.layer_norm" for side in ("encoder", "decoder")})


def _read_start(values: Values) -> dict[str, Any]:
    # Transformers' `generate` starts with this token if the config does not name one.
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
        "Seq2SeqLM": PublishedHead(
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
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 0})},
)
