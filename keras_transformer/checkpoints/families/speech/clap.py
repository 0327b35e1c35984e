"""CLAP: Wu et al. 2022, https://arxiv.org/abs/2211.06687.

A Swin that reads spectrograms, folded to images as in HTS-AT (Chen et al. 2022,
https://arxiv.org/abs/2202.00874), and a RoBERTa, with vectors in a common space.
"""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.base.towers import towers
from keras_transformer.checkpoints.families.encoders.bert import EMBEDDINGS, FIELDS, LAYER
from keras_transformer.checkpoints.families.encoders.roberta import counted_positions
from keras_transformer.checkpoints.families.vision.dpt import norm_lines
from keras_transformer.checkpoints.families.vision.swin import (
    keywords_of,
    lines_of,
    read_parts,
    write_parts,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import FoldedFrameStemConfig, TransformerConfig
from keras_transformer.layers.attention.grid import window_index

_SOUND = {
    "hidden_act": ConfigField("activation", "gelu"),
    "hidden_dropout_prob": ConfigField("dropout", 0.1),
    "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
    "qkv_bias": ConfigField("attention_bias", True),
}
_CONSTANTS = {
    "position": "none",
    "embedding_normalization": True,
    "normalization_epsilon": 1e-5,
    "attention_output_bias": True,
    "vector_pooling": "mean",
}
# Values of the sound tower that determine what it computes, with the only ones supported.
_REQUIRED = {
    "patch_embed_input_channels": 1,
    "flatten_patch_embeds": True,
    "enable_patch_layer_norm": True,
    "layer_norm_eps": 1e-5,
}
# Names of the stages' values in a Swin -> their names here, and their defaults.
_STAGES = {
    "depths": ("depths", (2, 2, 6, 2)),
    "num_heads": ("num_attention_heads", (4, 8, 16, 32)),
    "embed_dim": ("patch_embeds_hidden_size", 96),
    "window_size": ("window_size", 8),
    "mlp_ratio": ("mlp_ratio", 4.0),
}
_TEXTS = {
    **{
        name: field
        for name, field in FIELDS.items()
        if name not in ("max_position_embeddings", "initializer_range", "tie_word_embeddings")
    },
    "vocab_size": ConfigField("vocabulary_size", 50265),
    "type_vocab_size": ConfigField("segment_vocabulary_size", 1),
}
_TEXT = {
    "normalize_first": False,
    "embedding_normalization": True,
    "bidirectional": True,
    "vector_pooling": "first",
    "vector_pooler": True,
}


def _stages(sound: Values) -> dict[str, Any]:
    """Return the values of the stages by their names in a Swin."""
    return {ours: sound.get(theirs, usual) for ours, (theirs, usual) in _STAGES.items()}


def _side(values: Values, name: str, usual: int) -> int:
    """Return a size of both axes, which may be given as two that are equal."""
    given = values.get(name, usual)
    if isinstance(given, (list, tuple)) and len(given) == 2 and given[0] == given[1]:
        given = given[0]
    return number({name: given}, name, usual)


def _read_sound(sound: Values) -> dict[str, Any]:
    """Return the keywords of the sound tower, with all layers like the last, and its stem."""
    for name, only in _REQUIRED.items():
        if sound.get(name, only) not in (only, None):
            raise ValueError(
                f"{name}={sound[name]!r} is not supported in an audio_config, only {only!r}."
            )
    found = keywords_of(_stages(sound))
    if number(sound, "hidden_size", 768) != found["hidden_dim"]:
        raise ValueError(
            f"hidden_size={sound.get('hidden_size', 768)} of an audio_config must be the width of "
            f"the last stage, {found['hidden_dim']}."
        )
    size, bins = number(sound, "spec_size", 256), number(sound, "num_mel_bins", 64)
    patch, step = _side(sound, "patch_size", 4), _side(sound, "patch_stride", 4)
    stem = {
        "kind": "folded_frames",
        "num_bins": bins,
        "image_size": (size, size),
        "patch_size": patch,
        "stride": step,
        "padding": max(patch - step, 0) // 2,
    }
    if flag(sound, "enable_fusion", False):
        if sound.get("fusion_type") == "channel_map":
            raise ValueError("fusion_type='channel_map' of an audio_config is not supported.")
        stem["fusion"] = number(sound, "aff_block_r", 4)
    return {**found, "stem": stem}


def _write_sound(side: TransformerConfig) -> dict[str, Any]:
    stem = side.stem
    square = isinstance(stem, FoldedFrameStemConfig) and stem.image_size[0] == stem.image_size[1]
    if not square:
        raise ValueError("A checkpoint of this family needs a stem of square, folded frames.")
    return {
        **_REQUIRED,
        "model_type": "clap_audio_model",
        "num_mel_bins": stem.num_bins,
        "spec_size": stem.image_size[0],
        "patch_size": stem.patch_size,
        "patch_stride": [stem.stride, stem.stride],
        "hidden_size": side.hidden_dim,
        "enable_fusion": stem.fusion is not None,
        **({} if stem.fusion is None else {"aff_block_r": stem.fusion}),
    }


def _read_vectors(values: Values) -> dict[str, Any]:
    name = values.get("projection_hidden_act", "relu")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"projection_hidden_act={name!r} is not supported, only "
            f"{', '.join(map(repr, ACTIVATIONS))}."
        )
    return {
        "vector_dim": number(values, "projection_dim", 512),
        "vector_bias": True,
        "vector_activation": ACTIVATIONS[name],
    }


def _write_vectors(config: TransformerConfig) -> dict[str, Any]:
    side = config.sides[0]
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    activation = names.get(side.vector_activation, side.vector_activation)
    return {"projection_dim": side.vector_dim, "projection_hidden_act": activation}


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    return read_parts(_stages(nested(values, "audio_config")), config)


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    """Return the config by keywords, and the published values of the stages of the sound tower."""
    if config.kind != "dual":
        return config, {}
    side = config.side("encoder")
    constants = {**IMAGE_ENCODER, **_CONSTANTS}
    constants |= {name: getattr(side, name) for name in _OF_VECTORS}
    constants["max_sequence_length"] = side.max_sequence_length
    plain, stated = write_parts(side, constants, lambda mixers: {})
    if not stated:
        return config, {}
    theirs = {_STAGES[name][0]: value for name, value in stated.items()}
    theirs["num_hidden_layers"] = len(theirs["depths"])
    return config.replace(encoder=plain.encoder), {"audio_config": theirs}


_OF_VECTORS = ("vector_dim", "vector_bias", "vector_activation")


def _computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the tables that Transformers keeps among the weights."""
    side = config.encoder
    places = config.decoder.num_positions + config.decoder.position.offset
    found = {
        "text_model.embeddings.position_ids": np.arange(places)[None],
        "text_model.embeddings.token_type_ids": np.zeros((1, places), "int64"),
    }
    name = "relative_position_bias_table"
    for line in _lines(config):
        if line.theirs.endswith(name):
            i = int(line.ours.split("/")[1].removeprefix("layer_"))
            index = window_index(side.layer(i).mixer.pattern.size)
            found[line.theirs.replace(name, "relative_position_index")] = index.astype("int64")
    return found


_TOWER = "audio_model.audio_encoder."


def _lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    return (*_of_fusion(config), *lines_of(config, stages=f"{_TOWER}layers."))


def _of_fusion(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of the pieces and of the gates; their ReLU counts in their numbers."""
    if config.encoder.input.fusion is None:
        return ()
    patches = f"{_TOWER}patch_embed."
    lines = layers({"encoder/input_pieces": f"{patches}mel_conv2d"}, convolution=True)
    for gate, first in (("local", 0), ("global", 1)):  # behind the mean of all places
        ours, theirs = f"encoder/input_{gate}_gate/", f"{patches}fusion_model.{gate}_att."
        for i, name in ((first, "hidden"), (first + 3, "output")):
            lines += (
                WeightLine(f"{ours}{name}/kernel", f"{theirs}{i}.weight", transpose=True, column=2),
                WeightLine(f"{ours}{name}/bias", f"{theirs}{i}.bias"),
                *norm_lines(f"{ours}{name}_norm", f"{theirs}{i + 1}", outside=False),
            )
    return lines


def _projection(side: str, theirs: str) -> tuple[WeightLine, ...]:
    table = {"vector_projection": "linear1", "vector_output": "linear2"}
    return layers(table, f"{side}/", f"{theirs}.")


def _of_texts() -> tuple[WeightLine, ...]:
    """Return BERT's lines for the text tower."""
    lines = (
        *layers(EMBEDDINGS, theirs="text_model."),
        *layers(LAYER, "encoder/layer_{i}/", "text_model.encoder.layer.{i}."),
        *layers({"encoder/vector_pooler": "text_model.pooler.dense"}),
    )
    return tuple(
        dataclasses.replace(line, ours=line.ours.replace("encoder/", "decoder/", 1))
        for line in lines
    )


CLAP = Family(
    model_type="clap",
    architecture="ClapModel",
    fields={},
    constants={"kind": "dual", "similarity_text_scale": True},
    conversions=(
        towers(
            (_SOUND, _CONSTANTS, (Conversion(_read_sound, _write_sound),)),
            (_TEXTS, _TEXT, (counted_positions(514),)),
            name="audio",
        ),
        Conversion(_read_vectors, _write_vectors),
    ),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=(
        *norm_lines("encoder/input_norm", f"{_TOWER}batch_norm", outside=False),
        *layers({"encoder/input_patches": f"{_TOWER}patch_embed.proj"}, convolution=True),
        *layers({
            "encoder/embedding_norm": f"{_TOWER}patch_embed.norm",
            "encoder/final_norm": f"{_TOWER}norm",
        }),
        *_projection("encoder", "audio_projection"),
        *_of_texts(),
        *_projection("decoder", "text_projection"),
        WeightLine("similarity_scale", "logit_scale_a"),
        WeightLine("similarity_text_scale", "logit_scale_t"),
    ),
    of_config=_lines,
    computed=_computed,
    names=Names(),
)  # fmt: skip
