"""Gemma3n: Google DeepMind 2025, https://ai.google.dev/gemma/docs/gemma-3n.

With images and sound: a MobileNetV5, whose last maps are joined to 256 states of an image; and
Conformer blocks, whose attention sees the last few states, which read a log-mel spectrogram that
two convolutions have halved, and of whose states every fourth is taken. Both are normalized,
projected, normalized again and placed among the text tokens. A recording always has 188 places: the
embedding of the last token fills the rest. The last tokens of the vocabulary have embeddings of the
width of images, and behind them of sound.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    nested,
    prefixed,
    read_text,
    write_text,
)
from keras_transformer.checkpoints.families.base.shared import flag, number, number_of_layers
from keras_transformer.checkpoints.families.base.towers import with_encoder
from keras_transformer.checkpoints.families.decoders.gemma3n import GEMMA3N_TEXT
from keras_transformer.checkpoints.families.decoders.gemma4 import SHARED_KEYS
from keras_transformer.checkpoints.families.vision.gemma4_sound import (
    check_sound,
    sound_block,
    two_filters,
)
from keras_transformer.checkpoints.families.vision.mobilenet import (
    network_lines,
    read_network,
    write_network,
)
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    layers,
    output_matrix,
)
from keras_transformer.config import (
    ConvolvedFrameStemConfig,
    LocalAttention,
    Projector,
    Side,
    TransformerConfig,
)
from keras_transformer.support.checking import shorten

_KIND, _VISION = "gemma3n_audio", "gemma3n_vision"
_STATES = "vision_soft_tokens_per_image"
# What every published tower has. The cap of gradients also limits states, which are far below it.
_CONSTANTS = {
    "conf_attention_context_right": 0,
    "conf_residual_weight": 0.5,
    "rms_norm_eps": 1e-6,
    "gradient_clipping": 1e10,
}
_OF_STEM = {"sscp_conv_kernel_size": 3, "sscp_conv_stride_size": 2}  # of both axes of both
# The text model by keywords: its other parts are added to the whole.
_TEXT_BY_KEYWORDS = dataclasses.replace(GEMMA3N_TEXT, parts=None)


def _read_sound(values: Values, vocabulary_size: int) -> tuple[Side, Projector]:
    """Return the side and the projector of a published `audio_config`.

    Raises ValueError if a value is out of range, or not supported.
    """
    check_sound(values, _KIND, _CONSTANTS)
    for name, size in _OF_STEM.items():
        given = values.get(name, [[size, size]] * 2)
        if given not in ([[size, size]] * 2, ((size, size),) * 2):
            raise ValueError(
                f"{name}={shorten(given)} of the tower of sound is not supported, only "
                f"{[[size, size]] * 2}."
            )
    hard = number(values, "vocab_size", 128)
    first = number(values, "vocab_offset", 262_272)
    if hard < 1 or first + hard != vocabulary_size:
        raise ValueError(
            "The tokens of sound must be the last of the vocabulary: vocab_offset and vocab_size "
            f"of the audio_config are {first:,} and {hard:,}, and vocab_size of the text_config is "
            f"{vocabulary_size:,}."
        )
    width = number(values, "hidden_size", 1536)
    mixer = LocalAttention(
        num_heads=number(values, "conf_num_attention_heads", 8),
        size=max(number(values, "conf_attention_context_left", 13), 1),
        soft_cap=number(values, "conf_attention_logit_cap", 50.0, float),
        scale_keys=False,
    )
    number(values, "conf_attention_chunk_size", 12)  # which changes no output
    side = Side(
        input=ConvolvedFrameStemConfig(
            num_bins=number(values, "input_feat_size", 128),
            filters=two_filters(values, "sscp_conv_channel_size"),
            norm="cumulative_group",
            norm_epsilon=number(values, "sscp_conv_group_norm_eps", 1e-3, float),
            padding="reverse_causal",
        ),
        hidden_dim=width,
        num_layers=number_of_layers(
            {"num_hidden_layers": values.get("conf_num_hidden_layers", 12)}, 12
        ),
        block=sound_block(mixer, width, number(values, "conf_conv_kernel_size", 5)),
        final_norm=False,
    )
    stride = max(number(values, "conf_reduction_factor", 4), 1)
    return side, Projector(type="norm_around", bias=False, stride=stride, hard_tokens=hard)


def _written_sound(config: TransformerConfig) -> dict[str, Any]:
    """Return the published `audio_config`. Raises ValueError if the model has no such tower."""
    side, projector, size = config.sound, config.sound_projector, config.vocabulary_size
    stem, mixer = side and side.input, side and side.block.mixer
    theirs: dict[str, Any] = {}
    alike = isinstance(stem, ConvolvedFrameStemConfig) and isinstance(mixer, LocalAttention)
    if alike and projector is not None and stem.norm_epsilon is not None:
        conformer = side.block.conformer
        theirs = {
            "model_type": _KIND,
            "vocab_size": projector.hard_tokens,
            "vocab_offset": size - projector.hard_tokens,
            "input_feat_size": stem.num_bins,
            "hidden_size": side.hidden_dim,
            "conf_attention_chunk_size": max(mixer.size - 1, 1),
            "conf_attention_context_left": mixer.size,
            "conf_attention_logit_cap": mixer.soft_cap,
            "conf_num_attention_heads": mixer.num_heads,
            "conf_num_hidden_layers": side.num_layers,
            "conf_conv_kernel_size": 5 if conformer is None else conformer.size,
            "conf_reduction_factor": projector.stride,
            "sscp_conv_channel_size": list(stem.filters),
            "sscp_conv_group_norm_eps": stem.norm_epsilon,
            **{name: [[each, each]] * 2 for name, each in _OF_STEM.items()},
            **_CONSTANTS,
        }
    if not theirs or _read_sound(theirs, size) != (side, projector):
        raise ValueError("a tower of sound there is one of Gemma 3n.")
    return theirs


def _images_of(values: Values, first_of_sound: int) -> tuple[Side, Projector]:
    """Return the side and the projector of a published `vision_config`.

    Raises ValueError if a value is out of range, or not supported.
    """
    kind = values.get("model_type", _VISION)
    if kind != _VISION:
        raise ValueError(
            f"The image tower {shorten(kind)} is not supported, only {_VISION!r} with a network of "
            "timm."
        )
    hard = number(values, "vocab_size", 128)
    first = number(values, "vocab_offset", 262_144)
    if hard < 1 or first + hard != first_of_sound:
        raise ValueError(
            "The tokens of images must be those before the tokens of sound: vocab_offset and "
            f"vocab_size of the vision_config are {first:,} and {hard:,}, and vocab_offset of the "
            f"audio_config is {first_of_sound:,}."
        )
    projector = Projector(type="norm_around", bias=False, scaled=True, hard_tokens=hard)
    return read_network(values), projector


def _written_images(config: TransformerConfig, first_of_sound: int) -> dict[str, Any]:
    """Return the published `vision_config`. Raises ValueError if the model has no such tower."""
    theirs = {**write_network(config.encoder), "model_type": _VISION}
    if config.projector is not None:
        hard = config.projector.hard_tokens
        theirs |= {"vocab_size": hard, "vocab_offset": first_of_sound - hard}
    if _images_of(theirs, first_of_sound)[1] != config.projector:
        raise ValueError("the projector of images there is one of Gemma 3n.")
    return theirs


def _by_keywords(width: int) -> TransformerConfig:
    """Return a model of images that keywords describe, in place of the tower."""
    return TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=width,
        num_layers=1,
        num_heads=1,
        intermediate_dim=1,
        position="none",
        normalization="rms_norm",
        final_normalization=False,
        stem={"kind": "patches", "class_token": False},
    )


def _sides(values: Values) -> tuple[tuple[Side, Projector], tuple[Side, Projector]]:
    """Return the sides and projectors of images and of sound."""
    text, sound = nested(values, "text_config"), nested(values, "audio_config")
    heard = _read_sound(sound, number(text, "vocab_size", 262_400))
    first = number(sound, "vocab_offset", 262_272)
    token = number(values, "audio_token_id", 262_273)
    if token != first + 1:
        raise ValueError(
            f"audio_token_id={token:,} must be the second of the tokens of sound, {first + 1:,}."
        )
    images = _images_of(nested(values, "vision_config"), first)
    states, given = images[0].input.num_states, number(values, _STATES, 256)
    if given != states:
        raise ValueError(
            f"{_STATES}={given} must be the number of states of an image, which the image tower "
            f"says, {states}."
        )
    return images, heard


def _read(values: Values) -> dict[str, Any]:
    padding = nested(values, "text_config").get("pad_token_id", 0)
    if padding != 0:
        raise ValueError(
            f"pad_token_id={padding!r} is not supported, only 0: the places of images and "
            "recordings have its vectors for each layer."
        )
    (images, _), _ = _sides(values)
    return with_encoder(
        _by_keywords(images.hidden_dim),
        read_text(values, _TEXT_BY_KEYWORDS),
        placeholder_id=number(values, "image_token_id", 262_145),
        projector="linear",
        projector_bias=False,
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "image_token_id": config.placeholder_id,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    text = nested(values, "text_config")
    decoder = GEMMA3N_TEXT.parts.read(text, config.side("decoder"))
    (images, projector), (sound, of_sound) = _sides(values)
    return config.replace(
        encoder=images,
        projector=projector,
        sound=sound,
        sound_projector=of_sound,
        decoder=decoder.decoder,
    )


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.kind != "seq2seq" or config.placeholders is None:
        return config, {}
    sound, decoder = _written_sound(config), config.side("decoder")
    first = sound["vocab_offset"]
    theirs = {
        "audio_config": sound,
        "text_config": write_text(config, GEMMA3N_TEXT),
        "vision_config": _written_images(config, first),
        _STATES: config.num_placeholders,
        "audio_token_id": first + 1,
    }
    plain = {
        "encoder": _by_keywords(config.encoder.hidden_dim).encoder,
        "projector": Projector(type="linear", bias=False),
        "sound": None,
        "sound_projector": None,
        "decoder": GEMMA3N_TEXT.parts.write(decoder)[0].decoder,
    }
    return config.replace(**plain), theirs


_FEED_FORWARD = {
    "intermediate": "ffw_layer_1",
    "output": "ffw_layer_2",
    "norm": "pre_layer_norm",
    "output_norm": "post_layer_norm",
}
_LAYER = {
    **{f"mixer/{name}": f"attention.attn.{name[0]}_proj" for name in ("query", "key", "value")},
    "mixer/output": "attention.post",
    "mixer/position_key": "attention.attn.relative_position_embedding.pos_proj",
    "mixer_norm": "attention.pre_attn_norm",
    "mixer_output_norm": "attention.post_norm",
    "conformer/expansion": "lconv1d.linear_start",
    "conformer/output": "lconv1d.linear_end",
    "conformer/convolution_norm": "lconv1d.pre_layer_norm",
    "conformer/depthwise_norm": "lconv1d.conv_norm",
    "conformer/final_norm": "norm",
    **{
        f"{ours}{'_' if 'norm' in mine else '/'}{mine}": f"{theirs}.{its}"
        for ours, theirs in (
            ("conformer/first", "ffw_layer_start"),
            ("feed_forward", "ffw_layer_end"),
        )
        for mine, its in _FEED_FORWARD.items()
    },
}
_OURS, _THEIRS = "sound/layer_{i}/", "audio_tower.conformer.{i}."
_INPUT, _SUBSAMPLING = "sound/input_", "audio_tower.subsample_conv_projection."
_TOWERS = (
    *(
        line
        for i in (0, 1)
        for line in (
            *layers({f"{_INPUT}convolution_{i}": f"{_SUBSAMPLING}conv_{i}.conv"}, convolution=True),
            WeightLine(f"{_INPUT}norm_{i}/gamma", f"{_SUBSAMPLING}conv_{i}.norm.weight"),
        )
    ),
    *layers({f"{_INPUT}projection": f"{_SUBSAMPLING}input_proj_linear"}),
    *layers(_LAYER, _OURS, _THEIRS),
    WeightLine(f"{_OURS}mixer/query_scale", f"{_THEIRS}attention.attn.per_dim_scale"),
    WeightLine(
        f"{_OURS}conformer/depthwise_convolution/kernel",
        f"{_THEIRS}lconv1d.depthwise_conv1d.weight",
        depthwise=True,
    ),
    *(
        line
        for ours, theirs in (("projector", "embed_vision"), ("sound_projector", "embed_audio"))
        for line in (
            WeightLine(f"{ours}/hard_embeddings", f"{theirs}.embedding.weight"),
            *layers(
                {
                    f"{ours}/hard_norm": f"{theirs}.hard_embedding_norm",
                    f"{ours}/norm": f"{theirs}.soft_embedding_norm",
                    f"{ours}/output": f"{theirs}.embedding_projection",
                }
            ),
        )
    ),
)

GEMMA3N = Family(
    model_type="gemma3n",
    architecture="Gemma3nModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    of_config=lambda config: network_lines(config, "vision_tower.timm_model."),
    weights=(
        *_TOWERS,
        *prefixed(GEMMA3N_TEXT.weights, "language_model."),
        output_matrix("lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Gemma3nForConditionalGeneration",),
            values={
                "template": "<start_of_turn>user\n\n\n<start_of_image>{image}<end_of_image>\n\n"
                "{prompt}<end_of_turn>\n<start_of_turn>model\n",
                "image_text": "\n\n<start_of_image>{image}<end_of_image>\n\n",
            },
            options=(TEXT_END,),
        )
    },
    names=Names(
        prefixes=("model.",),
        ignored=tuple(f"language_model.{each}" for each in SHARED_KEYS),
    ),
)
