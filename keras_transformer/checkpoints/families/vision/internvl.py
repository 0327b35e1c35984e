"""InternVL: Chen et al. 2024, https://arxiv.org/abs/2404.16821.

An InternViT reads tiles; squares of its states are joined, normalized, projected by two layers, and
put among the tokens of a Qwen 2, Qwen 3 or Llama.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import patch_weights, patches
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    nested,
    prefixed,
    read_text,
    write_text,
)
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.base.towers import (
    read_images,
    with_encoder,
    write_images,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA, QWEN2, QWEN3
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_NORMS = ("layer_norm", "rms_norm")
_EPSILON = 1e-6  # of the norms of queries and keys, which no published value changes


def _read_tower(values: Values) -> dict[str, Any]:
    norm, mean = values.get("norm_type", "layer_norm"), flag(values, "use_mean_pooling", True)
    across = flag(values, "use_qk_norm", False)
    if norm not in _NORMS:
        raise ValueError(f"norm_type={norm!r} is not supported, only {' and '.join(_NORMS)}.")
    if norm == "rms_norm" and not mean:
        raise ValueError("use_mean_pooling=false is not supported with norm_type='rms_norm'.")
    epsilon = values.get("layer_norm_eps", _EPSILON)
    if across and (norm, epsilon) != ("rms_norm", _EPSILON):
        raise ValueError(
            "use_qk_norm=true is only supported with norm_type='rms_norm' and "
            f"layer_norm_eps={_EPSILON}, received {norm!r} and {epsilon!r}."
        )
    return {
        "normalization": norm,
        "query_key_norm": across,
        "query_key_norm_across_heads": across,
        "final_normalization": not mean,
        "position": "learned" if flag(values, "use_absolute_position_embeddings", True) else "none",
    }


def _write_tower(config: TransformerConfig) -> dict[str, Any]:
    return {
        "norm_type": config.normalization,
        "use_qk_norm": config.query_key_norm,
        "use_mean_pooling": not config.final_normalization,
        "use_absolute_position_embeddings": config.position == "learned",
        "layer_scale_init_value": 0.1,
        "use_mask_token": False,
        "model_type": "internvl_vision",
    }


_IMAGES = (
    {
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 4096),
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "attention_bias": ConfigField("attention_bias", False),
        "layer_norm_eps": ConfigField("normalization_epsilon", _EPSILON),
    },
    {"attention_output_bias": True, "trained_residual_scale": True},
    (patches(448, 14), Conversion(_read_tower, _write_tower)),
)
_TEXTS = (QWEN2, QWEN3, LLAMA)


def _read(values: Values) -> dict[str, Any]:
    supported = {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"}
    for name, only in supported.items():
        if values.get(name, only) != only:
            raise ValueError(f"{name}={values[name]!r} is not supported, only {only!r}.")
    ratio = values.get("downsample_ratio", 0.5)
    if not isinstance(ratio, float) or ratio <= 0 or not (1 / ratio).is_integer():
        raise ValueError(f"downsample_ratio={ratio!r} must be 1 over a whole number.")
    activation = values.get("projector_hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"projector_hidden_act={activation!r} is not supported.")
    return with_encoder(
        read_images({"vision_config": nested(values, "vision_config")}, _IMAGES),
        read_text(values, *_TEXTS),
        placeholder_id=number(values, "image_token_id", 151667),
        place_class_token=False,
        projector="shuffled_mlp",
        projector_activation=ACTIVATIONS[activation],
        projector_pool=int(1 / ratio),
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "vision_config": write_images(config.side("encoder"), _IMAGES),
        "text_config": write_text(config, *_TEXTS),
        "image_token_id": config.placeholder_id,
        "image_seq_length": config.num_placeholders,
        "downsample_ratio": 1 / config.projector_pool,
        "projector_hidden_act": names[config.projector_activation],
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": config.tie_embeddings,
    }


_OURS, _THEIRS = "encoder/layer_{i}/", "vision_tower.encoder.layer.{i}."
_LAYER = {
    **attention("attention.{}", "q_proj", "k_proj", "v_proj", "projection_layer"),
    "self_attention/query_norm": "attention.q_norm",
    "self_attention/key_norm": "attention.k_norm",
    "self_attention_norm": "layernorm_before",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "layernorm_after",
}
_PROJECTOR = "multi_modal_projector."

INTERNVL = Family(
    model_type="internvl",
    architecture="InternVLModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(
        *patch_weights(
            "vision_tower.embeddings.", "patch_embeddings.projection", "position_embeddings"
        ),
        WeightLine("encoder/input_class_token", "vision_tower.embeddings.cls_token", row=2),
        *layers(_LAYER, _OURS, _THEIRS),
        WeightLine(f"{_OURS}self_attention_scale", f"{_THEIRS}lambda_1"),
        WeightLine(f"{_OURS}feed_forward_scale", f"{_THEIRS}lambda_2"),
        *layers({"encoder/final_norm": "vision_tower.layernorm"}),
        WeightLine("projector/norm/gamma", f"{_PROJECTOR}layer_norm.weight"),
        WeightLine("projector/norm/beta", f"{_PROJECTOR}layer_norm.bias"),
        *layers(
            {"projector/mlp/intermediate": "linear_1", "projector/mlp/output": "linear_2"},
            theirs=_PROJECTOR,
        ),
        *prefixed(LLAMA.weights, "language_model.model."),
        output_matrix("language_model.lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("InternVLForConditionalGeneration",),
            values={
                "template": "<|im_start|>user\n<IMG_CONTEXT>\n{prompt}<|im_end|>\n"
                "<|im_start|>assistant\n",
                "image_text": "<img>{image}</img>",
            },
            options=(TEXT_END,),
        )
    },
    names=Names(ignored=("vision_tower.embeddings.mask_token",)),
)
