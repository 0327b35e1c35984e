"""Whisper: Radford et al. 2022, https://arxiv.org/abs/2212.04356.

An encoder of log-mel frames with two convolutions, and a text decoder.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.seq2seq.bart import SIDES
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_ATTENTION = {
    **attention("attn.{}_proj", "q", "k", "v", "out", ours="attention"),
    "attention_norm": "attn_layer_norm",
}
_FEED_FORWARD = {
    "feed_forward/intermediate": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}

# Values of the smallest model, the defaults of Transformers' config.
_DEFAULTS = {
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
}


def _read_sides(values: Values) -> dict[str, Any]:
    ours = SIDES.read(_DEFAULTS | dict(values))
    stem = {
        "kind": "frames",
        "num_bins": number(values, "num_mel_bins", 80),
        "num_frames": 2 * number(values, "max_source_positions", 1500),
    }
    return {**ours, "encoder": {**ours.get("encoder", {}), "vocabulary_size": 0, "stem": stem}}


def _write_sides(config: TransformerConfig) -> dict[str, Any]:
    stem = config.side("encoder").stem
    if stem is None or stem.kind != "frames":
        raise ValueError("A checkpoint of this family needs an encoder with a stem for frames.")
    theirs = {"num_mel_bins": stem.num_bins, "max_source_positions": stem.num_states}
    # The embedding row that is not trained in Transformers must exist.
    padding = min(50256, config.side("decoder").vocabulary_size - 1)
    return {**SIDES.write(config), **theirs, "pad_token_id": padding, "scale_embedding": False}


def _stack(name: str) -> tuple[WeightLine, ...]:
    ours, theirs = f"{name}/layer_{{i}}/", f"{name}.layers.{{i}}."
    return (
        *layers(_ATTENTION, f"{ours}self_", f"{theirs}self_"),
        *layers(_FEED_FORWARD, ours, theirs),
        *layers({"position_embedding": "embed_positions"}, f"{name}/", f"{name}."),
        *layers({"final_norm": "layer_norm"}, f"{name}/", f"{name}."),
    )


WHISPER = Family(
    model_type="whisper",
    architecture="WhisperModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 51865),
        "d_model": ConfigField("hidden_dim", 384),
        "encoder_layers": ConfigField("num_layers", 4),
        "decoder_layers": ConfigField("num_decoder_layers", 4),
        "activation_function": ConfigField("activation", "gelu"),
        "dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_target_positions": ConfigField("max_sequence_length", 448),
        "init_std": ConfigField("initializer_range", 0.02),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "seq2seq",
        "position": "learned",
        "normalize_first": True,
        "normalization_epsilon": 1e-5,
        "key_bias": False,
        "share_embeddings": False,
    },
    conversions=(Conversion(_read_sides, _write_sides),),
    weights=(
        WeightLine("token_embedding/embeddings", "decoder.embed_tokens.weight"),
        output_matrix("proj_out.weight"),
        *layers(
            {f"encoder/input_convolution_{i}": f"encoder.conv{i + 1}" for i in range(2)},
            convolution=True,
        ),
        *_stack("encoder"),
        *_stack("decoder"),
        *layers(_ATTENTION, "decoder/layer_{i}/cross_", "decoder.layers.{i}.encoder_"),
    ),
    heads={"SpeechToText": PublishedHead(values={"start_id": 50258})},
    names=Names(prefixes=("model.",)),
)
