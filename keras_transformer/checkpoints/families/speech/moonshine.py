"""Moonshine: Jeffries et al. 2024, https://arxiv.org/abs/2410.15608.

An encoder of audio samples with three convolutions, and a gated text decoder.
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
from keras_transformer.checkpoints.families.base.shared import number, rotary
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_HEADS = [
    f"{side}_num_{kind}_heads"
    for side in ("encoder", "decoder")
    for kind in ("attention", "key_value")
]
_ROTARY = rotary(default_share=0.9)
_ATTENTION = attention("{}_proj", "q", "k", "v", "o", ours="attention")
_STEM = {
    "kind": "waveform",
    "kernel_sizes": (127, 7, 3),
    "strides": (64, 3, 2),
    "activation": "gelu",
    "first_activation": "tanh",
    "use_bias": True,
    "first_bias": False,
    "norm": "recording",
    "projection_norm": False,
    "projection": False,
    "position_size": 0,
}


def _read(values: Values) -> dict[str, Any]:
    named = values.get("encoder_hidden_act", "gelu")
    if not isinstance(named, str) or named not in ACTIVATIONS:
        raise ValueError(f"encoder_hidden_act={named!r} is not supported.")
    width, heads = number(values, "hidden_size", 288), number(values, _HEADS[0], 8)
    for name in _HEADS:
        if values.get(name, heads) not in (heads, None):
            raise ValueError(
                f"{name}={values[name]!r} is not supported with {_HEADS[0]}={heads}: the "
                "published model has equal numbers of heads on both sides."
            )
    stem = {**_STEM, "filters": (width, 2 * width, width)}
    own = {"vocabulary_size": 0, "gated": False, "activation": ACTIVATIONS[named], "stem": stem}
    return {"num_heads": heads, "encoder": own} | _ROTARY.read(
        {**values, "hidden_size": width, "num_attention_heads": heads}
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    encoder, decoder = config.side("encoder"), config.side("decoder")
    named = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == encoder.activation)
    heads = dict.fromkeys(_HEADS, decoder.num_heads)
    return {**_ROTARY.write(decoder), **heads, "encoder_hidden_act": named}


def _stack(name: str, feed_forward_norm: str) -> tuple[WeightLine, ...]:
    table = {f"self_{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()}
    table |= {
        "self_attention_norm": "input_layernorm",
        "feed_forward/output": "mlp.fc2",
        "feed_forward_norm": feed_forward_norm,
    }
    return (
        *layers(table, f"{name}/layer_{{i}}/", f"{name}.layers.{{i}}."),
        *layers({f"{name}/final_norm": f"{name}.{'layer_' * (name == 'encoder')}norm"}),
    )


_CONVOLUTION = "encoder/input_convolution_{}"
_INNER = "{}/layer_{{i}}/feed_forward/{}"
_CROSS = {f"cross_{ours}": f"encoder_attn.{theirs}" for ours, theirs in _ATTENTION.items()}

MOONSHINE = Family(
    model_type="moonshine",
    architecture="MoonshineModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 32768),
        "hidden_size": ConfigField("hidden_dim", 288),
        "head_dim": ConfigField("head_dim", None),
        "intermediate_size": ConfigField("intermediate_dim", 1152),
        "encoder_num_hidden_layers": ConfigField("num_layers", 6),
        "decoder_num_hidden_layers": ConfigField("num_decoder_layers", 6),
        "decoder_hidden_act": ConfigField("activation", "silu"),
        "attention_bias": ConfigField("attention_bias", False),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 512),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "seq2seq",
        "gated": True,
        "position": "rotary",
        "rotary_interleaved": True,
        "normalization": "layer_norm_no_bias",
        "normalization_epsilon": 1e-5,
        "normalize_first": True,
        "attention_output_bias": False,
        "share_embeddings": False,
    },
    conversions=(Conversion(_read, _write),),
    weights=(
        WeightLine("token_embedding/embeddings", "decoder.embed_tokens.weight"),
        output_matrix("proj_out.weight"),
        *layers(
            {_CONVOLUTION.format(i): f"encoder.conv{i + 1}" for i in range(3)}, convolution=True
        ),
        WeightLine(f"{_CONVOLUTION.format(0)}_norm/gamma", "encoder.groupnorm.weight"),
        WeightLine(f"{_CONVOLUTION.format(0)}_norm/beta", "encoder.groupnorm.bias"),
        *_stack("encoder", "post_attention_layernorm"),
        *layers({_INNER.format("encoder", "intermediate"): "encoder.layers.{i}.mlp.fc1"}),
        *_stack("decoder", "final_layernorm"),
        # The linear branch, then the gate.
        *fused(
            [_INNER.format("decoder", part) for part in ("intermediate", "gate")],
            "decoder.layers.{i}.mlp.fc1",
        ),
        *layers(
            {**_CROSS, "cross_attention_norm": "post_attention_layernorm"},
            "decoder/layer_{i}/",
            "decoder.layers.{i}.",
        ),
    ),
    heads={
        "SpeechToText": PublishedHead(
            values={"start_id": 1, "tokens_per_second": 6.5, "window_seconds": 64.0}
        )
    },
    names=Names(prefixes=("model.",)),
)
