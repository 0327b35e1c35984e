"""Gemma3n: Google DeepMind 2025, https://ai.google.dev/gemma/docs/gemma-3n.

With sound: Conformer blocks, whose attention sees the last few states, read a log-mel spectrogram
that two convolutions have halved. Every fourth of their states is normalized, projected and placed
among the text tokens. A recording always has 188 places: the embedding of the last token fills the
rest. The last tokens of the vocabulary have embeddings of the width of sound. Its
tower of images, a convolutional network, is not read.
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
# What every published tower has. The cap of gradients also limits states, which are far below it.
_CONSTANTS = {
    "conf_attention_context_right": 0,
    "conf_residual_weight": 0.5,
    "rms_norm_eps": 1e-6,
    "gradient_clipping": 1e10,
}
_OF_STEM = {"sscp_conv_kernel_size": 3, "sscp_conv_stride_size": 2}  # of both axes of both
# The text model by keywords: its other parts are added to the whole.
_BY_KEYWORDS = dataclasses.replace(GEMMA3N_TEXT, parts=None)


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
    side, projector, size = config.encoder, config.projector, config.vocabulary_size
    stem, mixer, conformer = side.input, side.block.mixer, side.block.conformer
    theirs: dict[str, Any] = {}
    alike = isinstance(stem, ConvolvedFrameStemConfig) and isinstance(mixer, LocalAttention)
    if alike and projector is not None and stem.norm_epsilon is not None:
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


def _by_keywords(side: Side) -> TransformerConfig:
    """Return a model of the sizes of a tower of sound, which keywords describe."""
    stem = side.input
    return TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=side.hidden_dim,
        num_layers=side.num_layers,
        num_heads=side.block.mixer.num_heads,
        intermediate_dim=side.block.feed_forward.dim,
        position="none",
        normalization="rms_norm",
        final_normalization=False,
        stem={"kind": "convolved_frames", "num_bins": stem.num_bins, "filters": stem.filters},
    )


def _sides(values: Values) -> tuple[Side, Projector]:
    text = nested(values, "text_config")
    return _read_sound(nested(values, "audio_config"), number(text, "vocab_size", 262_400))


def _read(values: Values) -> dict[str, Any]:
    padding = nested(values, "text_config").get("pad_token_id", 0)
    if padding != 0:
        raise ValueError(
            f"pad_token_id={padding!r} is not supported, only 0: the places of recordings have its "
            "vectors for each layer."
        )
    side, _ = _sides(values)
    return with_encoder(
        _by_keywords(side),
        read_text(values, _BY_KEYWORDS),
        placeholder_id=number(values, "audio_token_id", 262_273),
        projector="linear",
        projector_bias=False,
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "audio_token_id": config.placeholder_id,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    text = nested(values, "text_config")
    decoder = GEMMA3N_TEXT.parts.read(text, config.side("decoder"))
    side, projector = _sides(values)
    return config.replace(encoder=side, projector=projector, decoder=decoder.decoder)


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.kind != "seq2seq" or config.hearing_side != "encoder":
        return config, {}
    sound, decoder = _written_sound(config), config.side("decoder")
    vectors = decoder.decoder.layer_inputs
    first = 0 if vectors is None else vectors.vocabulary_size
    theirs = {
        "audio_config": sound,
        "text_config": write_text(config, GEMMA3N_TEXT),
        # Its weights are not here: published models state no other.
        "vision_config": {
            "model_type": _VISION,
            "vocab_offset": first,
            "vocab_size": max(sound["vocab_offset"] - first, 1),
        },
        "image_token_id": first + 1,
    }
    plain = {
        "encoder": _by_keywords(config.encoder).encoder,
        "projector": Projector(type="linear", bias=False),
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
_OURS, _THEIRS = "encoder/layer_{i}/", "audio_tower.conformer.{i}."
_INPUT, _SUBSAMPLING = "encoder/input_", "audio_tower.subsample_conv_projection."
_TOWER = (
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
    WeightLine("projector/hard_embeddings", "embed_audio.embedding.weight"),
    *layers(
        {
            "projector/hard_norm": "embed_audio.hard_embedding_norm",
            "projector/norm": "embed_audio.soft_embedding_norm",
            "projector/output": "embed_audio.embedding_projection",
        }
    ),
)

GEMMA3N = Family(
    model_type="gemma3n",
    architecture="Gemma3nModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=(
        *_TOWER,
        *prefixed(GEMMA3N_TEXT.weights, "language_model."),
        output_matrix("lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Gemma3nForConditionalGeneration",),
            values={"image_token": "<image_soft_token>"},
            options=(TEXT_END,),
        )
    },
    names=Names(
        prefixes=("model.",),
        ignored=(
            *(f"language_model.{each}" for each in SHARED_KEYS),
            "vision_tower.*",
            "embed_vision.*",
        ),
        told={
            "vision_tower.*": "the weights of images, vision_tower and embed_vision, are not read: "
            "the model reads texts and recordings."
        },
    ),
)
