"""ModernBERT-Decoder: Weller et al. 2025, https://arxiv.org/abs/2507.11412.

A ModernBERT whose tokens see only earlier ones (Ettin), with a dense layer and a norm before the
logits.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag
from keras_transformer.checkpoints.families.encoders.modernbert import (
    MODERNBERT,
    NORM_BIAS,
    layers_of_kinds,
    read_head,
    write_head,
)
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint
from keras_transformer.checkpoints.weights.tables import (
    WeightLine,
    attention,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_ONCE = {
    "token_embedding": "embeddings.tok_embeddings",
    "decoder/embedding_norm": "embeddings.norm",
    "decoder/final_norm": "final_norm",
}
_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("gate", "intermediate")]
_LAYER = {
    **attention("attn.{}", "q_proj", "k_proj", "v_proj", "Wo"),
    "self_attention_norm": "attn_norm",
    "feed_forward_norm": "mlp_norm",
    "feed_forward/output": "mlp.Wo",
}
_TRANSFORM = {"output_transform": "lm_head.dense", "output_transform_norm": "lm_head.norm"}


def _read_transform(values: Values) -> dict[str, Any]:
    hidden = read_head(values)
    return {
        "output_transform": hidden["hidden_activation"],
        "output_transform_bias": hidden["hidden_bias"],
    }


def _write_transform(config: TransformerConfig) -> dict[str, Any]:
    if config.output_transform is None:
        return {}
    task = {
        "hidden_activation": config.output_transform,
        "hidden_bias": config.output_transform_bias,
    }
    return write_head(task)


def _read_classifier(values: Values) -> dict[str, Any]:
    if values.get("classifier_bias"):
        raise ValueError(
            "classifier_bias=True is not supported for a TextClassifier of a decoder, only False."
        )
    return read_head(values)


class ModernBertDecoderFamily(Family):
    """ModernBERT as a decoder, whose tensors show whether the layers before the logits are there.

    A bare model and a classifier have none.
    """

    @property
    def silent(self) -> frozenset[str]:
        return frozenset({"output_transform", "output_transform_bias"})

    def _seen_in(
        self, tensors: Checkpoint, config: TransformerConfig, values: Values
    ) -> dict[str, Any]:
        seen = super()._seen_in(tensors, config, values)
        if "lm_head.dense.weight" not in tensors:
            seen |= {"output_transform": None, "output_transform_bias": True}
        return seen

    def published_config(
        self, config: TransformerConfig, task: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        theirs = super().published_config(config, task)
        if task is not None and task["name"] == "CausalLM" and config.output_transform is None:
            raise ValueError(
                f"A {self.model_type} checkpoint of a CausalLM cannot express "
                "output_transform=None, only an activation."
            )
        return theirs


MODERNBERT_DECODER = ModernBertDecoderFamily(
    model_type="modernbert-decoder",
    architecture="ModernBertDecoderModel",
    fields=MODERNBERT.fields,
    constants={**MODERNBERT.constants, "kind": "decoder"},
    conversions=(
        # Half of the published width is before a token, as in the encoder, but with the token.
        layers_of_kinds(lambda width: width // 2, lambda window: 2 * window),
        NORM_BIAS,
        # Theirs must be a number in the vocabulary. Export writes the tokenizer's id over it.
        Conversion(lambda values: {}, lambda config: {"pad_token_id": 0}),
        Conversion(_read_transform, _write_transform),
        Conversion(
            lambda values: {"output_bias": flag(values, "decoder_bias", True)},
            lambda config: {"decoder_bias": config.output_bias},
        ),
    ),
    weights=(
        *layers(_ONCE),
        *fused(_BRANCHES, f"{_THEIRS}mlp.Wi"),
        *layers(_LAYER, _OURS, _THEIRS),
        *layers(_TRANSFORM, outside=True),
        output_matrix("decoder.weight"),
        WeightLine("output_bias/bias", "decoder.bias", outside=True),
    ),
    heads={
        "CausalLM": PublishedHead(),
        "TextClassifier": PublishedHead(
            weights=(
                *layers({"hidden": "head.dense", "hidden_norm": "head.norm"}),
                WeightLine("output/kernel", "classifier.weight", transpose=True),
            ),
            values={"block_norm": True},
            options=(Conversion(_read_classifier, write_head),),
            dropout="classifier_dropout",
        ),
    },
    names=MODERNBERT.names,
    output_bias="decoder.bias",
)
