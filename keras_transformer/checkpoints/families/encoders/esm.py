"""ESM: Lin et al. 2022, https://www.biorxiv.org/content/10.1101/2022.07.20.500902.

ESM-2 is an encoder of proteins, pre-norm with a norm at the end. Masks have no embedding, and the
other embeddings are scaled as in dropout. Positions are rotary, or learned (ESM-1b). The head that
predicts contacts of amino acids is left out.
"""

from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    ENCODER,
    encoder_heads,
    flag,
    masked_lm,
    number,
    unread,
)
from keras_transformer.checkpoints.families.encoders.bert import (
    EMBEDDINGS,
    FIELDS,
    LAYER,
    OLDER_NORMS,
)
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.position import RotaryEmbedding

_FREQUENCIES = "rotary_embeddings.inv_freq"
_ONCE = {
    **{ours: theirs for ours, theirs in EMBEDDINGS.items() if "segment" not in ours},
    "encoder/embedding_norm": "embeddings.layer_norm",
    "encoder/final_norm": "encoder.emb_layer_norm_after",
    "pooler": "pooler.dense",
}
_LAYER = {**LAYER, "self_attention_norm": "attention.LayerNorm", "feed_forward_norm": "LayerNorm"}
_FIELDS = {
    name: field
    for name, field in FIELDS.items()
    if name not in ("hidden_act", "max_position_embeddings", "type_vocab_size")
}


def _given(values: Values, name: str, default: int) -> int:
    """Return a published number; the default also if the config says null."""
    return default if values.get(name) is None else number(values, name, default)


def _read(values: Values) -> dict[str, Any]:
    padding = _given(values, "pad_token_id", 1)
    ours = {
        # Their default of null makes no model; 33 is the size of all published vocabularies.
        "vocabulary_size": _given(values, "vocab_size", 33),
        "max_sequence_length": number(values, "max_position_embeddings", 1026) - padding - 1,
        "embedding_normalization": flag(values, "emb_layer_norm_before"),
    }
    if values.get("token_dropout"):
        ours["dropped_token_id"] = number(values, "mask_token_id", None)
    kind = values.get("position_embedding_type", "absolute")
    if kind == "rotary":
        base = number(values, "rope_theta", 10000.0, float)
        return ours | {"position": "rotary", "rotary_base": base}
    if kind != "absolute":
        raise ValueError(
            f"position_embedding_type={kind!r} is not supported, only 'absolute' and 'rotary'."
        )
    return ours | {"position_padding_id": padding, "position_offset": padding + 1}


def _write(config: TransformerConfig) -> dict[str, Any]:
    rotary = config.position == "rotary"
    padding = 1 if config.position_padding_id is None else config.position_padding_id
    theirs = {
        "pad_token_id": padding,
        "max_position_embeddings": config.max_sequence_length + padding + 1,
        "emb_layer_norm_before": config.embedding_normalization,
        "token_dropout": config.dropped_token_id is not None,
        "position_embedding_type": "rotary" if rotary else "absolute",
        "rope_theta": config.rotary_base,
    }
    if config.dropped_token_id is not None:
        theirs["mask_token_id"] = config.dropped_token_id
    return theirs


def _frequencies(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the angles per position, which Transformers reads from the checkpoint."""
    if config.position != "rotary":
        return {}
    rotary = RotaryEmbedding(config.rotary_base, precision=config.rotary_precision)
    return {_FREQUENCIES: rotary.frequencies(config.head_dim).astype("float32")}


class EsmFamily(Family):
    """ESM, whose tensors say the precision of its rotary positions.

    The published models were trained in float16, and Transformers rotates by the stored angles.
    """

    @property
    def silent(self) -> frozenset[str]:
        return frozenset({"rotary_precision"})

    def _seen_in(
        self, tensors: Checkpoint, config: TransformerConfig, values: Values
    ) -> dict[str, Any]:
        seen = super()._seen_in(tensors, config, values)
        stored = next((name for name in tensors if name.endswith(".inv_freq")), None)
        if config.position == "rotary" and stored is not None:
            rounded = config.replace(rotary_precision="float16")
            same = np.array_equal(tensors.read(stored), _frequencies(rounded)[_FREQUENCIES])
            seen["rotary_precision"] = "float16" if same else "float32"
        return seen


_HEADS = encoder_heads(
    masked_lm("lm_head.", "dense", "layer_norm", "bias"),
    classifier={"output": "classifier.out_proj", "hidden": "classifier.dense"},
    hidden_activation="tanh",
)

ESM = EsmFamily(
    model_type="esm",
    architecture="EsmModel",
    fields={**_FIELDS, "vocab_size": ConfigField("vocabulary_size", 33)},
    constants={**ENCODER, "normalize_first": True, "activation": "gelu"},
    conversions=(Conversion(_read, _write),),
    required={"is_folding_model": False, "is_decoder": False, "add_cross_attention": False},
    weights=(
        *layers(_ONCE),
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("lm_head.decoder.weight"),
    ),
    computed=_frequencies,
    # Transformers has no class for question answering with this architecture.
    heads={task: head for task, head in _HEADS.items() if task != "QuestionAnswerer"},
    names=Names(
        prefixes=("esm.",), suffixes=OLDER_NORMS, ignored=unread("contact_head.regression")
    ),
    pooler="pooler.dense.weight",
)
