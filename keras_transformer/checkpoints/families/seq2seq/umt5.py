"""UMT5: Chung et al. 2023, https://arxiv.org/abs/2304.09151.

An MT5 with a table of relative position biases for each layer.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.seq2seq.mt5 import MT5
from keras_transformer.checkpoints.families.seq2seq.t5 import T5, encoder_alone, is_tied
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import TransformerConfig

_BIAS = "block.*.layer.0.SelfAttention.relative_attention_bias.weight"


_OWN, _SHARED = (("relative_tables", kind) for kind in ("own", "shared"))


def _read_tables(values: Values) -> dict[str, Any]:
    # The table of a single layer is stored as the one that all layers of a T5 share.
    layers = values.get("num_layers", 8)
    further = values.get("num_decoder_layers")
    first, last = ({"relative_tables": "shared" if n == 1 else "own"} for n in (layers, further))
    return {**first, "decoder": last} if further not in (None, layers) else first


def _write_scale(config: TransformerConfig) -> dict[str, bool]:
    return {"tie_word_embeddings": config.scale_logits}


UMT5 = dataclasses.replace(
    MT5,
    model_type="umt5",
    architecture="UMT5Model",
    fields={n: field for n, field in MT5.fields.items() if n != "tie_word_embeddings"}
    | {"vocab_size": ConfigField("vocabulary_size", 250112)},
    conversions=(
        MT5.conversions[0],
        # The states before the output are scaled unless the config says that the embedding is not
        # shared, as in release 4 of Transformers. Release 5 scales them in any case, and writes
        # configs that say so.
        Conversion(
            lambda values: {"scale_logits": is_tied(values)},
            _write_scale,
        ),
        Conversion(_read_tables, lambda config: {}),
        encoder_alone("UMT5EncoderModel", "UMT5ForTokenClassification"),
    ),
    weights=(
        *(
            dataclasses.replace(line, when=_SHARED) if "relative_bias" in line.ours else line
            for line in T5.weights
        ),
        *(
            WeightLine(f"{side}/relative_bias/embeddings", f"{side}.{_BIAS}", when=_OWN)
            for side in ("encoder", "decoder")
        ),
    ),
)
