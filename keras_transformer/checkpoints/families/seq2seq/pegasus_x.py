"""Pegasus-X: Phang et al. 2022, https://arxiv.org/abs/2208.04347.

A Pegasus for long texts. Its encoder attends within chunks, which every second layer moves by half
a chunk, and to trained global states, which have a norm of their own in each layer. Its attention
has no biases.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.seq2seq.mbart import PEGASUS
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import Attention, Chunks, TransformerConfig


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Add the global states, their norms and the chunks of the encoder's layers."""
    size, count = number(values, "block_size", 512), number(values, "num_global_tokens", 32)
    if count < 1:
        raise ValueError(f"num_global_tokens={count} is not supported, only 1 or more.")
    side = config.encoder
    staggered = flag(values, "stagger_local_blocks", True) and side.num_layers > 1
    if staggered and size % 2:
        raise ValueError(
            f"block_size={size} is not supported with stagger_local_blocks=True, only an even "
            "number."
        )
    chunks = Chunks(size=size, global_tokens=count)
    whole, moved = (
        side.block.replace(mixer=side.block.mixer.replace(pattern=each), global_norm=True)
        for each in (chunks, chunks.replace(shift=size // 2 if staggered else 0))
    )
    layers_ = (whole, moved) if staggered else ()
    return config.replace(encoder=side.replace(block=whole, layers=layers_, global_states=count))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    side = config.encoder
    if config.kind != "seq2seq" or not isinstance(side.block.mixer, Attention):
        return config, {}
    mixer = side.block.mixer
    if not isinstance(mixer.pattern, Chunks):
        raise ValueError(f"the encoder's layers there attend within `Chunks`, received {mixer}.")
    theirs = {
        "block_size": mixer.pattern.size,
        "num_global_tokens": side.global_states,
        "stagger_local_blocks": bool(side.layers),
    }
    plain = side.block.replace(mixer=mixer.replace(pattern=None), global_norm=False)
    return config.replace(encoder=side.replace(block=plain, layers=(), global_states=0)), theirs


PEGASUS_X = dataclasses.replace(
    PEGASUS,
    model_type="pegasus_x",
    architecture="PegasusXModel",
    fields={
        **PEGASUS.fields,
        "vocab_size": ConfigField("vocabulary_size", 96103),
        "encoder_layers": ConfigField("num_layers", 16),
        "decoder_layers": ConfigField("num_decoder_layers", 16),
        "max_position_embeddings": ConfigField("max_sequence_length", 16384),
        "scale_embedding": ConfigField("scale_embedding", True),
    },
    constants={
        **PEGASUS.constants,
        "sinusoidal_inclusive": True,
        "attention_bias": False,
        "attention_output_bias": False,
    },
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=(
        *(line for line in PEGASUS.weights if not line.ours.startswith("output_bias")),
        WeightLine("encoder/global_states/embeddings", "encoder.embed_global.weight"),
        *layers(
            {"global_norm": "global_self_attn_layer_norm"},
            "encoder/layer_{i}/",
            "encoder.layers.{i}.",
        ),
    ),
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 0})},
    output_bias=None,
)
